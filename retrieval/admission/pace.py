"""Pacing of standing queries: those of one key search one at a time, in order, with a pause after each.

Every write can make all of them search again. No caller is waiting for those answers, so they must not slow down the
searches of callers who are. A query that waits for its turn then sees all writes up to that point.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

REST = 9  # times as long as the search took: a tenth of the time is for searching


class Pace:
    """The turns of one key, in one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn of the block. The next turn comes when this one has ended and the key has rested."""
        await self._turn.acquire()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            loop.call_later(REST * (loop.time() - began), self._turn.release)
