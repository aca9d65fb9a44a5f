"""Child processes of the benchmark: started with their job, watched while they run, read when they have ended.

One works at a time; where several are there, the others wait at the stage that they have announced.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from indexes.memory import Lookout, memory_bytes
from jobs.benchmark.embed.job import MARK, Job

TIMEOUT_S = 7200.0
STOP_S = 60.0  # more than a service may take
PROGRAM = (sys.executable, "-m", "jobs.benchmark.embed.child")


def run_job(job: Job) -> dict[str, Any]:
    """What the child found out, with the memory it took. A child that fails gives {"error"} or {"skipped"}."""
    with Child(job) as child:
        child.run()
        return child.found()


def run_in_turns(jobs: Sequence[Job], stage: str, alone: Callable[[Job], object]) -> list[dict[str, Any]]:
    """The same of several jobs, whose children announce `stage` before each of their turns.

    They go through that stage turn by turn, everybody once before anybody twice, and each first as often as last.
    All else each does with the others waiting; `alone` hears whose rest comes next.
    """
    with contextlib.ExitStack() as stack:
        children = []
        for job in jobs:
            children.append(child := stack.enter_context(Child(job)))
            child.run(until=stage)
        turns = list(children)
        while any(child.stage == stage for child in turns):
            for child in turns:
                if child.stage == stage:
                    child.go_on()
            turns.reverse()
        found = []
        for child in children:
            alone(child.job)
            child.run()
            found.append(child.found())
        return found


class Child:
    """A child process at work, and its memory. It waits at each stage that it announces until it is told to go on."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stage: str | None = None
        """What it is about to do; None when it has closed its output, which it does at its end."""
        self._pid = 0
        self._result = Path(job.result)
        self._log = self._result.with_suffix(".log")
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start it, and wait for its first stage."""
        self._result.unlink(missing_ok=True)
        with contextlib.ExitStack() as opening:
            errors = opening.enter_context(self._log.open("w"))
            told = msgspec.json.encode(msgspec.structs.replace(self.job, begun=time.monotonic()))
            self._process = subprocess.Popen(
                [*PROGRAM, told.decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0,  # so that Ctrl-C reaches it once, from here
            )
            opening.callback(_end, self._process)
            timer = threading.Timer(TIMEOUT_S, _interrupt, [self._process])
            timer.start()
            opening.callback(timer.cancel)
            self._watch = opening.enter_context(Watch())
            self._listen()
            self._resources = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def run(self, until: str | None = None) -> None:
        """Let it go on until it announces that stage, or to its end."""
        while self.stage is not None and self.stage != until:
            self.go_on()

    def go_on(self) -> None:
        """Let it do what it announced, and wait for what it announces next. Its memory is followed meanwhile."""
        assert self.stage is not None, "it has ended"
        assert self._process.stdin is not None
        self._watch.begin(self.stage, self._pid)
        with contextlib.suppress(BrokenPipeError):  # it has just ended: its output says so
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        self._listen()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        self.stage = None
        for line in self._process.stdout:
            if line.startswith(MARK):
                self.stage, pid = line.removeprefix(MARK).split()
                self._pid = int(pid)
                break
        self._watch.rest()

    def found(self) -> dict[str, Any]:
        """What it found out; to be asked at its end."""
        status = self._process.wait()
        if status != 0 or not self._result.is_file():
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
            return {"error": f"ended with status {status}: {last[0]}"}
        found: dict[str, Any] = msgspec.json.decode(self._result.read_bytes())
        memory = self._watch.found()
        return {**found, "memory": memory} if memory and not is_failure(found) else found


def _end(child: subprocess.Popen[str]) -> None:
    _interrupt(child)
    assert child.stdout is not None
    child.stdout.close()


def _interrupt(child: subprocess.Popen[str]) -> None:
    """An interrupt before a kill: a service that the child has started is ended by nobody else."""
    assert child.stdin is not None
    child.send_signal(signal.SIGINT)
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()  # one that waits for its turn does not leave before it reads the end
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
    finally:
        child.kill()
        child.wait()


def is_failure(found: dict[str, Any]) -> bool:
    return "error" in found or "skipped" in found


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
        self._stage: str | None = None
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

    def rest(self) -> None:
        """Look no more until something begins: the process waits, and looking would disturb who does not."""
        with self._changing:
            self._stage = None

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
            if self._pid is not None and self._stage is not None:
                now = memory_bytes(self._pid)
                self._own = max(self._own, now["own"])
                self._resident[self._stage] = max(self._resident.get(self._stage, 0), now["resident"])
