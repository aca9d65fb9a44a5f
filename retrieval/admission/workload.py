"""How long what is under way will take: the work that is left, by the pace.

Work is counted in bytes of text, and tasks say how far they are. The pace of writes is that of the encoder
(`Batcher.bytes_per_s`), because small ones, which mostly wait for the disk, say little about how fast large ones go.
Elsewhere it is the work done lately, by the time in which there was any to do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

BUSY_S_KEPT = 30.0  # the pace is that of about this much busy time


class Task:
    """The work of one request. Use on the event loop."""

    __slots__ = ("_expected", "_workload", "caller", "left")

    def __init__(self, workload: Workload, size: int, caller: str) -> None:
        self._workload = workload
        self.caller = caller
        self._expected = self.left = size

    def expect(self, size: int) -> None:
        """What is left turned out to be so much: documents may be there already, or bring their vectors, and a small
        request may name a large file."""
        self._expected = size
        self._workload.change(self, size, done=0)

    def advance(self, share: float) -> None:
        """So much of what was expected is done, from 0 to 1."""
        left = round(self._expected * (1 - share))
        self._workload.change(self, left, done=self.left - left)


class Workload:
    """All tasks of one class of requests. Use from one event loop."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, pace: Callable[[], float] | None = None
    ) -> None:
        """`pace`: bytes a second, 0 while unknown; without it, the pace is measured."""
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
        """Seconds by which the tasks hold up one more of this size. It shares the pace with each of its caller's until
        one of the two is done, so those that are larger cost it no more than its own size each; and other callers take
        turns with its own, so each costs no more than that."""
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
        """Ignores a task that has ended."""
        if task in self._tasks:
            self._look()
            self._left += left - task.left
            self._done += done
            task.left = left

    def end(self, task: Task, *, done: bool) -> None:
        """`done`: what was left of it, too."""
        self.change(task, 0, done=task.left if done else 0)
        self._tasks.discard(task)

    def _seconds_of(self, work: int) -> float:
        pace = self._done / self._busy_s if self._pace is None and self._busy_s else 0.0
        if self._pace is not None:
            pace = self._pace()
        return work / pace if pace else 0.0

    def _look(self) -> None:
        """Bring the account of busy time up to now."""
        now = self._clock()
        if self._left:
            self._busy_s += now - self._seen
            if self._busy_s > 2 * BUSY_S_KEPT and self._done:
                self._busy_s, self._done = self._busy_s / 2, self._done / 2
        self._seen = now
