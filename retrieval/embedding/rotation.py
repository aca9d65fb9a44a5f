"""A queue in which callers take turns, and so do the jobs of each caller."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Rotation(Generic[T]):
    """However many jobs a caller has, each other caller waits for only one of them."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, deque[T]] = OrderedDict()  # callers in the order of their turns

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def append(self, caller: str, job: T) -> None:
        self._jobs.setdefault(caller, deque()).append(job)

    def appendleft(self, caller: str, job: T) -> None:
        """Put a job back at the front of the whole queue."""
        self._jobs.setdefault(caller, deque()).appendleft(job)
        self._jobs.move_to_end(caller, last=False)

    def popleft(self) -> T:
        """Take the next job, and move its caller behind the others."""
        caller, jobs = self._jobs.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._jobs[caller] = jobs
        return job

    def remove(self, caller: str, job: T) -> None:
        """Forget a job, if it is here."""
        jobs = self._jobs.get(caller, deque())
        if job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._jobs[caller]

    def clear(self) -> None:
        self._jobs.clear()
