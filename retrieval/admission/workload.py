"""How long the requests in progress will take: the work that is left, divided by the pace.

Work is counted in bytes of text, and tasks report their progress. The pace of writes is that of the encoder
(`Batcher.bytes_per_s`), because small writes, which mostly wait for the disk, say little about how fast large ones go.
Elsewhere it is the work done recently, divided by the time in which there was any to do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

BUSY_S_KEPT = 30.0  # the pace is measured over about this much busy time


class Task:
    """The work of one request. Use on the event loop."""

    __slots__ = ("_expected", "_workload", "caller", "left")

    def __init__(self, workload: Workload, size: int, caller: str) -> None:
        self._workload = workload
        self.caller = caller
        self._expected = self.left = size

    def expect(self, size: int) -> None:
        """Correct the work that is left: documents may exist already or bring their vectors, and a small request may
        name a large file."""
        self._expected = size
        self._workload.change(self, size, done=0)

    def advance(self, share: float) -> None:
        """Report that this share of the expected work is done, from 0 to 1."""
        left = round(self._expected * (1 - share))
        self._workload.change(self, left, done=self.left - left)


class Workload:
    """All tasks of one class of requests. Use from one event loop."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, pace: Callable[[], float] | None = None
    ) -> None:
        """`pace` returns bytes per second, 0 while unknown. Without it, the pace is measured."""
        self._clock = clock
        self._pace = pace
        self._tasks: set[Task] = set()
        self._left = 0
        self._done = self._busy_s = 0.0
        self._seen = clock()

    @property
    def wait_s(self) -> float:
        """Seconds until all tasks are done; 0 while the pace is unknown."""
        self._look()
        return self._seconds_of(self._left)

    def delay_s(self, size: int, caller: str = "") -> float:
        """Return the seconds by which the tasks delay one more of this size.

        It shares the pace with each of its caller's tasks until one of the two is done, so a larger task delays it by
        no more than its own size. Callers take turns, so each other caller delays it by no more than all work of its
        own caller.
        """
        self._look()
        own, others = size, Counter[str]()
        for task in self._tasks:
            if task.caller == caller:
                own += min(task.left, size)
            else:
                others[task.caller] += task.left
        return self._seconds_of(own - size + sum(min(left, own) for left in others.values()))

    def begin(self, size: int, caller: str = "") -> Task:
        self._look()
        task = Task(self, size, caller)
        self._tasks.add(task)
        self._left += size
        return task

    def change(self, task: Task, left: int, done: int) -> None:
        """Update the work left. Ignores a task that has ended."""
        if task in self._tasks:
            self._look()
            self._left += left - task.left
            self._done += done
            task.left = left

    def end(self, task: Task, *, done: bool) -> None:
        """End a task. With `done`, what was left of it counts as done too."""
        self.change(task, 0, done=task.left if done else 0)
        self._tasks.discard(task)

    def _seconds_of(self, work: int) -> float:
        pace = self._done / self._busy_s if self._pace is None and self._busy_s else 0.0
        if self._pace is not None:
            pace = self._pace()
        return work / pace if pace else 0.0

    def _look(self) -> None:
        now = self._clock()
        if self._left:
            self._busy_s += now - self._seen
            if self._busy_s > 2 * BUSY_S_KEPT and self._done:
                self._busy_s, self._done = self._busy_s / 2, self._done / 2
        self._seen = now
