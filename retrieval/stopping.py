"""A service that stops: what it has accepted may finish within a grace, what has not by then is answered with 503."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from indexes.errors import NotReady

RETRY_AFTER_S = 5.0  # until another process has taken over


class Stopping:
    """Knows the requests under way. For one event loop."""

    def __init__(self) -> None:
        self._over: float | None = None  # in the loop's time
        self._under_way: set[asyncio.Timeout] = set()

    @contextlib.asynccontextmanager
    async def within_grace(self) -> AsyncIterator[None]:
        """Cancels the block when the grace is over, and raises NotReady instead."""
        limit = asyncio.timeout_at(self._over)
        try:
            async with limit:
                self._under_way.add(limit)
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise NotReady(
                "the service is stopping and could not finish this in time; send it again",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        finally:
            self._under_way.discard(limit)

    def end_grace(self) -> None:
        self._over = asyncio.get_running_loop().time()
        for limit in self._under_way:
            if not limit.expired():
                limit.reschedule(self._over)
