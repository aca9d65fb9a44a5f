"""Work that ends early: because its caller has left, its deadline has passed, or the service is stopping."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, TypeVar

from indexes.base.errors import DeadlineExceeded, NotReady
from indexes.base.work import OnStep

T = TypeVar("T")

RETRY_AFTER_S = 5.0  # by then another process should have taken over


class Abandoned(Exception):
    """Ends work whose caller has left, so no one sees it."""


async def run_abandonable(
    work: Callable[[OnStep], T], *, deadline: float | None = None, threads: Executor | None = None
) -> T:
    """Run `work` on a thread and return its result. It must call its argument between steps, which raises Abandoned
    once the caller has left.

    `deadline` is in the loop's time; raises DeadlineExceeded after it. `threads` replaces the default executor.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    gone = threading.Event()

    def on_step() -> None:
        if gone.is_set():
            raise Abandoned

    try:
        async with asyncio.timeout_at(deadline):
            return await loop.run_in_executor(threads, context.run, work, on_step)
    except TimeoutError:
        raise DeadlineExceeded(
            "the deadline passed before the answer was complete", param="deadline_ms"
        ) from None
    finally:
        gone.set()


async def gather_or_cancel(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all at once, and return the results in order. If one fails, or the caller leaves, the others are cancelled and
    have ended when this raises."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class Stopping:
    """Tracks the requests in progress, which may finish within a grace period. For one event loop."""

    def __init__(self) -> None:
        self._over: float | None = None  # in the loop's time
        self._under_way: set[asyncio.Timeout] = set()

    @contextlib.asynccontextmanager
    async def within_grace(self) -> AsyncIterator[None]:
        """Cancel the block when the grace period is over, and raise NotReady instead, with the notes of its
        CancelledError."""
        limit = asyncio.timeout_at(self._over)
        try:
            async with limit:
                self._under_way.add(limit)
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            done = getattr(error.__cause__, "__notes__", ())  # by what was cancelled
            raise NotReady(
                "; ".join(
                    ("the service is stopping and could not finish this in time", *done, "send it again")
                ),
                retry_after_s=RETRY_AFTER_S,
            ) from None
        finally:
            self._under_way.discard(limit)

    def end_grace(self) -> None:
        self._over = asyncio.get_running_loop().time()
        for limit in self._under_way:
            if not limit.expired():
                limit.reschedule(self._over)
