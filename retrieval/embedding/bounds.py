"""When the batcher takes no more, and how requests too large for its queue take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from indexes import DeadlineExceeded, Overloaded
from retrieval.embedding.costs import Load
from retrieval.embedding.results import Embedded, Lane

TOO_LATE = "the deadline passed before the text was embedded"
RETRY_AFTER_S = (1.0, 60.0)  # the least and the most a refused caller is asked to wait


def overloaded(why: str, wait_s: float) -> Overloaded:
    """For work that waits about so long."""
    least, most = RETRY_AFTER_S
    return Overloaded(why, retry_after_s=min(max(wait_s, least), most))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Each lane is bounded in tokens, that of queries also in time: `query_wait_s_max` until its turn comes."""

    queue_tokens_max: int
    query_wait_s_max: float

    def refusal(
        self, lane: Lane, *, queued: int, more: int, wait_s: float, left_s: float | None
    ) -> Overloaded | None:
        """Why nothing may join `queued` tokens that take `wait_s`, if so: neither `more` tokens, 0 for the rest of
        what was admitted, nor a caller whose deadline is in `left_s`."""
        if more and queued and queued + more > self.queue_tokens_max:
            why = (
                f"{queued} tokens wait to be embedded and about {more} more would join them; "
                f"at most {self.queue_tokens_max} may wait"
            )
        elif lane == "query" and wait_s > self.query_wait_s_max:
            why = f"the queries that wait already take {wait_s:.2f} s, at most {self.query_wait_s_max:g} s are allowed"
        elif left_s is not None and wait_s > left_s:
            why = f"the texts that wait already take {wait_s:.2f} s, longer than the deadline allows"
        else:
            return None
        return overloaded(why, wait_s)


class LargeRequests:
    """Runs them one at a time, each whole, in the order they came.

    Side by side, all of them would end when the last one does; in turns the first ends as early as if it were alone.
    `seconds_of` foretells how long a load takes; beyond `wait_s_max` seconds of it nothing more may wait.
    """

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
