"""When the batcher refuses work, and how requests too large for its queue share the encoder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from indexes.base.errors import DeadlineExceeded, Overloaded
from retrieval.embedding.costs import TextLoad
from retrieval.embedding.results import EmbeddedTexts, Lane

TOO_LATE = "the deadline passed before the text was embedded"
SMALL_SHARE = 64  # a request of at most this part of the bulk queue may use its last quarter
RETRY_AFTER_S = (1.0, 60.0)  # minimum and maximum wait asked of a refused caller


def overloaded(why: str, wait_s: float) -> Overloaded:
    """Make an Overloaded error that asks the caller to retry after about `wait_s`, within RETRY_AFTER_S."""
    least, most = RETRY_AFTER_S
    return Overloaded(why, retry_after_s=min(max(wait_s, least), most))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds each lane in tokens, and the query lane also in time: `query_wait_s_max` until a query's turn comes."""

    queue_tokens_max: int
    query_wait_s_max: float

    def refusal(
        self, lane: Lane, *, queued: int, more: int, wait_s: float, left_s: float | None
    ) -> Overloaded | None:
        """Return why a request may not join `queued` tokens that take `wait_s`; None if it may.

        `more` is how many tokens it adds, 0 for later parts of an admitted request; `left_s` is the time to its
        deadline.
        """
        most = self.queue_tokens_max
        if lane == "bulk" and more > most // SMALL_SHARE:
            most -= most // 4
        if more and queued and queued + more > most:
            why = f"{queued} tokens wait to be embedded and about {more} more would join them; at most {most} may wait"
        elif lane == "query" and wait_s > self.query_wait_s_max:
            why = f"the queries that wait already take {wait_s:.2f} s, at most {self.query_wait_s_max:g} s are allowed"
        elif left_s is not None and wait_s > left_s:
            why = f"the texts that wait already take {wait_s:.2f} s, longer than the deadline allows"
        else:
            return None
        return overloaded(why, wait_s)


class LargeRequests:
    """Lets requests that are too large for the queue share the encoder, a part at a time.

    Requests of one caller and of similar size are embedded one after another, in order of arrival: in parallel, all of
    them would end when the last one does. Sizes, by factors of four, take turns, and so do callers: a request is never
    stuck behind a much larger one, or behind a hundred of another caller.

    `seconds_of` predicts how long a load takes. A request that others would delay by more than `wait_s_max` is refused.
    """

    def __init__(self, seconds_of: Callable[[TextLoad], float], wait_s_max: float) -> None:
        self._seconds_of = seconds_of
        self._wait_s_max = wait_s_max
        self._loads: list[TextLoad] = []  # what is left of each request
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def embed(
        self,
        parts: Sequence[range],
        tokens: Sequence[int],
        embed_part: Callable[[range], Awaitable[EmbeddedTexts]],
        deadline: float | None,
        caller: str = "",
    ) -> EmbeddedTexts:
        """Embed all parts, one after another. `tokens` has the count of each text; `deadline` is in the loop's time.

        Raises Overloaded, DeadlineExceeded, and what `embed_part` raises.
        """
        load = TextLoad()
        for length in tokens:
            load.add(length)
        wait_s = self._delay_s(load)
        if wait_s > self._wait_s_max:
            raise overloaded(
                f"other large requests would delay this one by about {wait_s:.0f} s, at most {self._wait_s_max:g} s "
                "are allowed",
                wait_s - self._wait_s_max,
            )
        size = load.tokens.bit_length() // 2
        done: list[EmbeddedTexts] = []
        self._loads.append(load)
        try:
            async with self._turn(deadline, (caller, size)):
                for part in parts:
                    # Locks are first come, first served: sizes take turns within a caller, then callers do.
                    async with self._turn(deadline, caller, None):
                        done.append(await embed_part(part))
                    for at in part:
                        load.add(tokens[at], -1)
        finally:
            self._loads = [other for other in self._loads if other is not load]
        return EmbeddedTexts.concatenate(done)

    def _delay_s(self, load: TextLoad) -> float:
        """Estimate the delay by others: the request shares the encoder with each of them until one of the two is
        done."""
        own_s = self._seconds_of(load)
        return sum(min(self._seconds_of(other), own_s) for other in self._loads)

    @contextlib.asynccontextmanager
    async def _turn(self, deadline: float | None, *names: Hashable) -> AsyncIterator[None]:
        """Hold the locks of these names, taken in this order."""
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout_at(deadline):
                    for name in names:
                        await held.enter_async_context(self._locks.setdefault(name, asyncio.Lock()))
            except TimeoutError as error:
                raise DeadlineExceeded(TOO_LATE) from error
            yield
