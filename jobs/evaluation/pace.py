"""A bound on how many queries a second an evaluation sends, so that the service's own users hardly notice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class Pace:
    """`await pace(n)` before sending n queries. What was not used while nobody asked is not made up for later."""

    def __init__(
        self,
        queries_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._each_s = 1 / queries_per_s
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    async def __call__(self, queries: int = 1) -> None:
        now = self._clock()
        begin = max(now, self._free_at)
        self._free_at = begin + queries * self._each_s
        if begin > now:
            await self._sleep(begin - now)
