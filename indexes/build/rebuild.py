"""Runs a build in a child process and follows its progress. Blocking: the service calls it from a thread."""

from __future__ import annotations

from pathlib import Path

from indexes.build.builder import BuildRequest
from indexes.child import Child
from indexes.model import Progress
from indexes.parts.generation import Shelf


class Rebuild:
    """One build under way. `run` waits for it; `cancel`, from any thread, ends the child."""

    def __init__(self, request: BuildRequest, *, timeout_s: float) -> None:
        self.request = request
        what = f"build of generation {request.number}"
        self.child = Child("indexes.build.builder", int, what=what, timeout_s=timeout_s)

    def run(self, progress: Progress) -> int:
        """Returns the number of the sealed generation. Raises as `Child.run` does."""
        try:
            return self.child.run(self.request, progress)
        finally:
            # A builder that was killed cannot clear up after itself, and the next one may need the room.
            if self.child.pid is not None:
                Shelf(Path(self.request.collection)).sweep(builder=self.child.pid)

    def cancel(self) -> None:
        self.child.cancel()
