"""Child processes of the benchmark: started with their job, watched while they run, read when they have ended."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from indexes.memory import Lookout, memory_bytes
from jobs.benchmark.embed.job import MARK, Job

TIMEOUT_S = 7200.0
STOP_S = 60.0  # more than a service may take


def run_job(job: Job) -> dict[str, Any]:
    """What the child found out, with the memory it took. A child that fails gives {"error"} or {"skipped"}."""
    result = Path(job.result)
    result.unlink(missing_ok=True)
    log = result.with_suffix(".log")
    with log.open("w+") as errors:
        job = msgspec.structs.replace(job, begun=time.monotonic())
        child = subprocess.Popen(
            [sys.executable, "-m", "jobs.benchmark.embed.child", msgspec.json.encode(job).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,  # so that Ctrl-C reaches it once, from here
        )
        timer = threading.Timer(TIMEOUT_S, _end, [child])
        timer.start()
        try:
            memory = _follow(child)
            child.wait()
        finally:
            timer.cancel()
            _end(child)
    if child.returncode != 0 or not result.is_file():
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return {"error": f"ended with status {child.returncode}: {last[0]}"}
    found: dict[str, Any] = msgspec.json.decode(result.read_bytes())
    return {**found, "memory": memory} if memory and not is_failure(found) else found


def _end(child: subprocess.Popen[str]) -> None:
    """An interrupt first: a service that the child has started is ended by nobody else."""
    child.send_signal(signal.SIGINT)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
    finally:
        child.kill()
        child.wait()


def is_failure(found: dict[str, Any]) -> bool:
    return "error" in found or "skipped" in found


def _follow(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Answer the child's lines until it closes its output: the memory of the process it named last."""
    assert child.stdin is not None
    assert child.stdout is not None
    with Watch() as watch:
        for line in child.stdout:
            if line.startswith(MARK):
                stage, pid = line.removeprefix(MARK).split()
                watch.begin(stage, int(pid))
                child.stdin.write("\n")
                child.stdin.flush()
    return watch.found()


def busy_share(seconds: float = 1.0) -> float:
    """Which share of this machine's processors others use, looked at for a while in which we do nothing."""
    before = _ticks()
    time.sleep(seconds)
    total, idle = (after - begun for after, begun in zip(_ticks(), before, strict=True))
    return round(1 - idle / total, 3) if total else 0.0


def _ticks() -> tuple[int, int]:
    """All ticks of all processors since the start, and those spent idle or waiting for disks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


class Watch(Lookout):
    """Follows the memory of one process while the `with` block runs: a process's own, and all that is resident."""

    def __init__(self) -> None:
        super().__init__(self._look)
        self._pid: int | None = None
        self._stage = ""
        self._before = self._own = 0
        self._resident: dict[str, int] = {}
        self._changing = threading.Lock()

    def begin(self, stage: str, pid: int) -> None:
        """Look at this process now and from now on. What was seen of another is forgotten.

        The child itself has own memory before it loads an engine; a service that it starts is the engine's whole.
        """
        with contextlib.suppress(OSError):  # it has ended: the child that used it says what came of that
            with self._changing:
                if pid != self._pid:
                    self._before = memory_bytes(pid)["own"] if self._pid is None else 0
                    self._own, self._resident = 0, {}
                    self._pid = pid
                self._stage = stage
            self._look()

    def found(self) -> dict[str, Any]:
        """Bytes at their peak: all that was resident, also by stage, the process's own, and how much that had grown."""
        if self._pid is None:
            return {}
        return {
            "resident_bytes": max(self._resident.values(), default=0),
            "resident_bytes_by_stage": dict(self._resident),
            "own_bytes": self._own,
            "grown_bytes": self._own - self._before,
        }

    def _look(self) -> None:
        with self._changing:
            if self._pid is not None:
                now = memory_bytes(self._pid)
                self._own = max(self._own, now["own"])
                self._resident[self._stage] = max(self._resident.get(self._stage, 0), now["resident"])
