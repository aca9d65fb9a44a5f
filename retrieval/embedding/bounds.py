"""When a lane of the batcher takes no more."""

from __future__ import annotations

from dataclasses import dataclass

from indexes.errors import Overloaded
from retrieval.embedding.results import Lane

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
