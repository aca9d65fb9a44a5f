"""Runs work in a child process, so that its memory, CPU use and even a crash do not harm the parent.

    parent     Child("package.module", Outcome, what="build", timeout_s=60).run(request, progress) -> Outcome
    child      if __name__ == "__main__": sys.exit(answer(Request, work))       work(request, progress) -> outcome

The request is the child's argument, as JSON. The child writes JSON lines to stdout: {"stage", "done", "total"} for
progress, and finally {"outcome"} or {"error"}. Other lines come from libraries and are ignored.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import msgspec

from indexes.base.errors import NearlineError, NotReady, StorageError
from indexes.base.model import Progress
from indexes.base.priority import NICENESS

Request = TypeVar("Request")
Outcome = TypeVar("Outcome")


class Line(msgspec.Struct, omit_defaults=True):
    """One line of the child's stdout."""

    stage: str | None = None
    done: int = 0
    total: int = 0
    outcome: Any = None
    error: str | None = None


class Child(Generic[Outcome]):
    """One child process. Call `run` once; it waits for the outcome. `cancel`, from any thread, kills the child."""

    def __init__(self, module: str, outcome: type[Outcome], *, what: str, timeout_s: float) -> None:
        """`what` names the work in error messages."""
        self._module = module
        self._outcome = outcome
        self._what = what
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = threading.Event()
        self._overdue = threading.Event()

    @property
    def pid(self) -> int | None:
        """The child's process id; None until it is started."""
        return self._process.pid if self._process is not None else None

    def run(self, request: object, progress: Progress) -> Outcome:
        """Run the child, and return its outcome once it has ended.

        Raises NotReady if cancelled, StorageError with the reason if the child failed.
        """
        if self._cancelled.is_set():
            raise NotReady(f"{self._what} was cancelled")
        command = [sys.executable, "-m", self._module, msgspec.json.encode(request).decode()]
        # A file, not a pipe: the child would block forever on a full pipe that is not being read.
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=child_environment()
            )
            self._process = process
            if self._cancelled.is_set():  # cancelled during startup
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
        """Why the child ended, if it reported no error itself."""
        if self._overdue.is_set():
            return f"it took more than {self._timeout_s:g} s"
        if status < 0:
            return f"signal {-status} ended it"
        errors.seek(0)
        said = errors.read().strip().splitlines()
        return said[-1].strip() if said else f"exit status {status}"


def follow(process: subprocess.Popen[str], progress: Progress) -> Line:
    """Pass on progress until the child closes stdout; return its last line."""
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
    """Limit OpenMP: by default it takes every core and spins on it, in competition with searches. And let Python import
    this code from where it is, never what lies in the current folder."""
    own = str(Path(__file__).parents[2])
    installed = own in site.getsitepackages()
    paths = [*([] if installed else [own]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def answer(request: type[Request], work: Callable[[Request, Progress], object]) -> int:
    """The child's main function: run `work` on the request in the first argument. Returns the exit status.

    The status is 1 after a NearlineError. Also exits with status 1 if the parent has died.
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
    """Lower this process's priority, so that searches on this machine run first."""
    os.nice(max(0, NICENESS - os.nice(0)))


def say(line: Line) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()
