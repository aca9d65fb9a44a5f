"""How long each stage of a search took, and whether its caller still waits."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from indexes.base.errors import DeadlineExceeded
from retrieval.base.cancellation import Abandoned
from retrieval.wire.search import Timings

T = TypeVar("T")


@dataclass(slots=True)
class Stopwatch:
    """When each stage ran. Stages may run on different threads, at the same time, and more than once.

    `deadline`, in the loop's time, is when the caller stops waiting; `left`: it has stopped already.
    """

    deadline: float | None = None
    left: bool = False
    cpu_s: float = 0.0  # of its stages on the search threads
    started: float = field(default_factory=time.perf_counter)
    spans: list[tuple[float, float, str]] = field(default_factory=list)  # begun, ended, stage

    def on_step(self) -> None:
        """Work on any thread calls this between its steps. Raises Abandoned once the caller has left, DeadlineExceeded
        after its deadline."""
        if self.left:
            raise Abandoned
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded("the deadline passed before the answer was complete", param="deadline_ms")

    def charged(self, work: Callable[[], T]) -> T:
        """What the work returns; the CPU time it took is added to `cpu_s`."""
        begun = time.thread_time()
        try:
            return work()
        finally:
            self.cpu_s += time.thread_time() - begun

    def timed(self, stage: str | None, work: Callable[[], T]) -> T:
        """`stage` None: not one that this search has."""
        if stage is None:
            return work()
        begun = time.perf_counter()
        try:
            return work()
        finally:
            self.spans.append((begun, time.perf_counter(), stage))

    @property
    def elapsed_ms(self) -> float:
        return (time.perf_counter() - self.started) * 1000

    async def awaited(self, stage: str, work: Coroutine[Any, Any, T]) -> T:
        begun = time.perf_counter()
        try:
            return await work
        finally:
            self.spans.append((begun, time.perf_counter(), stage))

    def stop(self) -> Timings:
        """Milliseconds in each stage, in all, and while no stage ran: time in line for a thread, mostly."""
        ended = time.perf_counter()
        stages: dict[str, float] = defaultdict(float)
        in_stages, reached = 0.0, self.started
        for begun, until, stage in sorted(self.spans):
            stages[stage] += until - begun
            in_stages += max(0.0, until - max(begun, reached))
            reached = max(reached, until)
        stages["total"] = ended - self.started
        stages["wait"] = stages["total"] - in_stages
        return Timings(**{stage: round(seconds * 1000, 3) for stage, seconds in stages.items()})


@asynccontextmanager
async def in_time(at: float | None, deadline_ms: int | None) -> AsyncIterator[None]:
    """Raises DeadlineExceeded at a time of the event loop, which a request's `deadline_ms` comes to; None: never."""
    try:
        async with asyncio.timeout_at(at):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"no answer within deadline_ms={deadline_ms}", param="deadline_ms") from None


def elapsed_ms(since: float) -> float:
    return round((time.perf_counter() - since) * 1000, 3)
