"""Child processes of the benchmark: started with their job, watched while they run, read when they have ended.

Every measurement runs in a process of its own, so that its memory is its own and its failure nobody else's.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from indexes.memory import Lookout, memory_bytes

POLL_S = 0.05
CHILD_TIMEOUT_S = 7200


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is to do. `folder` is the engine's own, `run` holds queries and true scores of this run."""

    task: Literal["build", "search", "load"]
    engine: str
    material: str
    run: str
    folder: str
    result: str
    k: int
    recall: float
    repeat: int
    threads: int
    ingest: int = 0


def run_job(job: Job) -> dict[str, Any]:
    """What the child found out, with the peaks of its memory. A child that fails gives {"error"} or {"skipped"}."""
    # One thread a search, for everybody; a build sets its own number. Idle OpenMP threads must not spin.
    threads = str(job.threads if job.task == "build" else 1)
    numbers = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"}
    child = subprocess.Popen(
        [sys.executable, "-m", "jobs.benchmark.index.child", msgspec.json.encode(job).decode()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **numbers},
    )
    try:
        with Watch(lambda: child.pid) as watch:
            _, errors = child.communicate(timeout=CHILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {CHILD_TIMEOUT_S} s"}
    finally:
        child.kill()
        child.wait()
    result = Path(job.result)
    if child.returncode != 0 or not result.is_file():
        last = errors.strip().splitlines()[-1:] or [""]
        return {"error": f"ended with status {child.returncode}: {last[0]}"}
    found: dict[str, Any] = msgspec.json.decode(result.read_bytes())
    return {**found, **watch.peaks()} if job.task == "build" else found


class Watch(Lookout):
    """Follows the memory of one process while the `with` block runs. `find` names it, or None if it is not there."""

    def __init__(self, find: Callable[[], int | None]) -> None:
        super().__init__(self._follow, POLL_S)
        self._find = find
        self._own = self._resident = 0

    def peaks(self) -> dict[str, int]:
        """Bytes: of memory that was the process's own (looked at every 50 ms), and of all of it with mapped files."""
        return {"build_peak_own_bytes": self._own, "build_peak_resident_bytes": self._resident}

    def _follow(self) -> None:
        pid = self._find()
        if pid is not None:
            now = memory_bytes(pid)
            self._own = max(self._own, now["own"])
            self._resident = max(self._resident, now["resident"])


def child_of(module: str) -> Callable[[], int | None]:
    """Finds the child of this process that runs a Python module."""
    known: list[int] = []

    def find() -> int | None:
        if not known:
            known.extend(pid for pid in children() if module.encode() in command_of(pid))
        return known[0] if known else None

    return find


def children() -> list[int]:
    """Process ids of the children of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # Fields after the command, which stands in brackets and may hold blanks: state, parent, ...
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == os.getpid():
                found.append(int(entry.name))
    return found


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def settled_memory() -> int:
    """Bytes of this process's own memory, after what was freed has gone back to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another libc: it keeps what it keeps
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    time.sleep(0.1)
    return memory_bytes()["own"]


def mapped_bytes(folder: Path, pid: int | None = None) -> int:
    """Resident bytes of the files below a folder that a process (None: this one) has mapped."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid or 'self'}/smaps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if not fields[0].endswith(":"):
            inside = len(fields) == 6 and Path(fields[5]).is_relative_to(folder.resolve())
        elif inside and fields[0] == "Rss:":
            total += int(fields[1]) * 1024
    return total


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
