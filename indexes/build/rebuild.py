"""Runs a build in a child process and follows its progress. Blocking: the service calls it from a thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from indexes.build.builder import BuildRequest
from indexes.errors import NotReady, StorageError
from indexes.parts.generation import Shelf

Progress = Callable[[str, int, int], None]


class Rebuild:
    """One build under way. `run` waits for it; `cancel`, from any thread, ends the child."""

    def __init__(self, request: BuildRequest, *, timeout_s: float) -> None:
        self.request = request
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[str] | None = None
        self._cancelled = threading.Event()

    def run(self, progress: Progress) -> int:
        """Returns the number of the sealed generation. Raises StorageError with the child's own last words."""
        if self._cancelled.is_set():
            raise NotReady("the build was cancelled")
        command = [sys.executable, "-m", "indexes.build.builder", msgspec.json.encode(self.request).decode()]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment()
        )
        self._child = child
        if self._cancelled.is_set():  # while the child was being started
            child.kill()
        timer = threading.Timer(self._timeout_s, child.kill)
        errors: list[str] = []
        # Read both pipes at once: a child that fills the one nobody reads would wait for ever.
        drain = threading.Thread(target=lambda: errors.extend(child.stderr or ()), daemon=True)
        timer.start()
        drain.start()
        try:
            last = self._follow(child, progress)
            status = child.wait()
        finally:
            timer.cancel()
            child.kill()
            child.wait()
            # A builder that was killed cannot clear up after itself, and the next one may need the room.
            Shelf(Path(self.request.collection)).sweep(builder=child.pid)
            drain.join(timeout=5)
        if self._cancelled.is_set():
            raise NotReady("the build was cancelled")
        if status != 0 or "generation" not in last:
            reason = last.get("error") or (errors[-1].strip() if errors else f"exit status {status}")
            raise StorageError(f"build of generation {self.request.number} failed: {reason}")
        return int(str(last["generation"]))

    def cancel(self) -> None:
        self._cancelled.set()
        if self._child is not None:
            self._child.kill()

    @staticmethod
    def _follow(child: subprocess.Popen[str], progress: Progress) -> dict[str, object]:
        last: dict[str, object] = {}
        for line in child.stdout or ():
            try:
                last = json.loads(line)
            except json.JSONDecodeError:
                continue  # a library's own chatter
            if "stage" in last:
                progress(str(last["stage"]), int(str(last["done"])), int(str(last["total"])))
        return last


def child_environment() -> dict[str, str]:
    """OpenMP would otherwise take every core and spin on it while searches want one."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
