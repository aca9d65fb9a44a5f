"""Work in a process of its own: it may take memory, cores and even the process down without harm to who asked.

    parent     Child("package.module", Outcome, what="build", timeout_s=60).run(request, progress) -> Outcome
    child      if __name__ == "__main__": sys.exit(answer(Request, work))       work(request, progress) -> outcome

The request is the child's argument as JSON. On standard output it says, a line each, {"stage", "done", "total"}, and
last {"outcome"} or {"error"}. Other lines there are a library's own chatter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import IO, Any, Generic, TypeVar

import msgspec

from indexes.errors import NearlineError, NotReady, StorageError
from indexes.model import Progress

Request = TypeVar("Request")
Outcome = TypeVar("Outcome")

NICE = 10


class Line(msgspec.Struct, omit_defaults=True):
    """One line of the child."""

    stage: str | None = None
    done: int = 0
    total: int = 0
    outcome: Any = None
    error: str | None = None


class Child(Generic[Outcome]):
    """One piece of work. `run` waits for it, once; `cancel`, from any thread, ends it."""

    def __init__(self, module: str, outcome: type[Outcome], *, what: str, timeout_s: float) -> None:
        """`what` names the work in errors."""
        self._module = module
        self._outcome = outcome
        self._what = what
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = threading.Event()
        self._overdue = threading.Event()

    @property
    def pid(self) -> int | None:
        """None before it was started."""
        return self._process.pid if self._process is not None else None

    def run(self, request: object, progress: Progress) -> Outcome:
        """Raises NotReady if it was cancelled, StorageError with the child's own last words. The child is gone then."""
        if self._cancelled.is_set():
            raise NotReady(f"{self._what} was cancelled")
        command = [sys.executable, "-m", self._module, msgspec.json.encode(request).decode()]
        # A file, not a pipe: a child that fills a pipe nobody reads would wait for ever.
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=child_environment()
            )
            self._process = process
            if self._cancelled.is_set():  # while it was being started
                process.kill()
            timer = threading.Timer(self._timeout_s, self._give_up)
            timer.start()
            try:
                last = follow(process, progress)
                status = process.wait()
            finally:
                timer.cancel()
                process.kill()
                process.wait()
            if self._cancelled.is_set():
                raise NotReady(f"{self._what} was cancelled")
            if status == 0 and last.outcome is not None:
                return msgspec.convert(last.outcome, self._outcome)
            raise StorageError(f"{self._what} failed: {last.error or self._reason(status, errors)}")

    def cancel(self) -> None:
        self._cancelled.set()
        if self._process is not None:
            self._process.kill()

    def _give_up(self) -> None:
        self._overdue.set()
        if self._process is not None:
            self._process.kill()

    def _reason(self, status: int, errors: IO[str]) -> str:
        """Why it ended, where it did not say so itself."""
        if self._overdue.is_set():
            return f"it took more than {self._timeout_s:g} s"
        if status < 0:
            return f"signal {-status} ended it"
        errors.seek(0)
        said = errors.read().strip().splitlines()
        return said[-1].strip() if said else f"exit status {status}"


def follow(process: subprocess.Popen[str], progress: Progress) -> Line:
    """What the child said last, once it has said everything."""
    last = Line()
    for text in process.stdout or ():
        try:
            line = msgspec.json.decode(text, type=Line)
        except msgspec.DecodeError:
            continue
        last = line
        if line.stage is not None:
            progress(line.stage, line.done, line.total)
    return last


def child_environment() -> dict[str, str]:
    """OpenMP would otherwise take every core and spin on it while searches want one."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def answer(request: type[Request], work: Callable[[Request, Progress], object]) -> int:
    """The child's side: do the work asked for in the first argument. Returns the exit status, 1 after an error of ours.

    Ends with status 1 when the parent has gone: nobody would take the outcome.
    """
    asked = msgspec.json.decode(sys.argv[1], type=request)
    parent = os.getppid()
    step_back()

    def report(stage: str, done: int, total: int) -> None:
        if os.getppid() != parent:
            sys.exit(1)
        say(Line(stage=stage, done=done, total=total))

    try:
        outcome = work(asked, report)
    except NearlineError as error:
        say(Line(error=error.message))
        return 1
    say(Line(outcome=outcome))
    return 0


def step_back() -> None:
    """Let searches of a service on this machine go first from now on."""
    os.nice(max(0, NICE - os.nice(0)))


def say(line: Line) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()
