"""A rate limiter for jobs, so that they leave capacity for users."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class RateLimiter:
    """`await pace(n)` before sending n queries or documents. No burst credit; a rate of 0 means no limit."""

    def __init__(
        self,
        per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._each_s = 1 / per_s if per_s else 0.0
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    async def __call__(self, count: int = 1) -> None:
        now = self._clock()
        begin = max(now, self._free_at)
        self._free_at = begin + count * self._each_s
        if begin > now:
            await self._sleep(begin - now)
