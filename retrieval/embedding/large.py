"""Requests too large for the queue take turns, whole and in the order they came.

Side by side, all of them would end when the last one does, and under overload no caller waits that long. In turns the
first ends as early as if it were alone. What waits for its turn is bounded by foretold time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from indexes.errors import DeadlineExceeded
from retrieval.embedding.bounds import TOO_LATE, overloaded
from retrieval.embedding.costs import Load
from retrieval.embedding.results import Embedded


class LargeRequests:
    """`seconds_of` foretells how long a load takes; beyond `wait_s_max` seconds of it nothing more may wait."""

    def __init__(self, seconds_of: Callable[[Load], float], wait_s_max: float) -> None:
        self._seconds_of = seconds_of
        self._wait_s_max = wait_s_max
        self._load = Load()  # of those that wait, and what is left of the one whose turn it is
        self._turn = asyncio.Lock()

    async def embed(
        self,
        parts: Sequence[range],
        tokens: Sequence[int],
        embed_part: Callable[[range], Awaitable[Embedded]],
        deadline: float | None,
    ) -> Embedded:
        """All parts, one after the other. `tokens` of each text; `deadline` in the loop's time.

        Raises Overloaded, DeadlineExceeded, and what `embed_part` raises.
        """
        wait_s = self._seconds_of(self._load)
        if wait_s > self._wait_s_max:
            raise overloaded(
                f"large requests before this one take about {wait_s:.0f} s, at most {self._wait_s_max:g} s may wait",
                wait_s,
            )
        for length in tokens:
            self._load.add(length)
        done: list[Embedded] = []
        try:
            await self._turn_before(deadline)
            try:
                for part in parts:
                    done.append(await embed_part(part))
                    for at in part:
                        self._load.add(tokens[at], -1)
            finally:
                self._turn.release()
        finally:
            for part in parts[len(done) :]:
                for at in part:
                    self._load.add(tokens[at], -1)
        return Embedded.joined(done)

    async def _turn_before(self, deadline: float | None) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError as error:
            raise DeadlineExceeded(TOO_LATE) from error
