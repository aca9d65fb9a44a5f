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

    `deadline`, in the loop's time, is when the caller stops waiting; `left` is set when it has stopped. `look` tells
    whether it has, where that has to be found out.
    """

    deadline: float | None = None
    left: bool = False
    look: Callable[[], bool] | None = None
    cpu_s: float = 0.0  # CPU time of the stages on the search threads
    started: float = field(default_factory=time.perf_counter)
    spans: list[tuple[float, float, str]] = field(default_factory=list)  # begun, ended, stage

    def on_step(self) -> None:
        """Raise Abandoned once the caller has left, or DeadlineExceeded after its deadline. Work on any thread calls
        this between its steps."""
        if self.left or (self.look is not None and self.look()):
            raise Abandoned
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded("the deadline passed before the answer was complete", param="deadline_ms")

    def charge_cpu(self, work: Callable[[], T]) -> T:
        """Run `work` and add its CPU time to `cpu_s`."""
        begun = time.thread_time()
        try:
            return work()
        finally:
            self.cpu_s += time.thread_time() - begun

    def time_stage(self, stage: str | None, work: Callable[[], T]) -> T:
        """Run `work` and record it as `stage`; None records nothing, for a stage that this search does not have."""
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

    async def time_await(self, stage: str, work: Coroutine[Any, Any, T]) -> T:
        begun = time.perf_counter()
        try:
            return await work
        finally:
            self.spans.append((begun, time.perf_counter(), stage))

    def stop(self) -> Timings:
        """Return the milliseconds spent in each stage, in total, and in no stage (mostly waiting for a thread)."""
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
    """Raise DeadlineExceeded at time `at` of the event loop, never if None. `deadline_ms` is what the request asked
    for."""
    try:
        async with asyncio.timeout_at(at):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"no answer within deadline_ms={deadline_ms}", param="deadline_ms") from None


def elapsed_ms(since: float) -> float:
    return round((time.perf_counter() - since) * 1000, 3)
