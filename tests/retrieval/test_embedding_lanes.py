"""Whose turn it is, with a clock that the test moves and no worker threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.embedding.lanes import Job, Lanes
from retrieval.embedding.models import Kind
from retrieval.embedding.results import Lane
from retrieval.embedding.tokens import Tokens


class Words:
    """One token a word."""

    tokens_max = 32

    def tokenise(self, texts: Sequence[str], kind: Kind) -> list[Tokens]:
        return [Tokens([1] * len(text.split()), False) for text in texts]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def job(lane: Lane, text: str = "w") -> Job:
    made = Job(
        [text],
        "document",
        lane,
        "cut",
        asyncio.get_running_loop().create_future(),
        [1],
        normalise=False,
    )
    if lane == "bulk":
        made.pieces = Words().tokenise([text], "document")
        made.plan.append([0])
    return made


async def turns(clock: Clock, *, at: Sequence[float], bulk: int) -> list[Lane]:
    """Whose batch a single worker takes at these seconds after so many bulk requests came. A query always waits."""
    lanes = Lanes(
        Words(),
        workers=1,
        texts_max=1,
        query_room=lambda texts, longest: True,
        bulk_room=lambda texts, longest: True,
        clock=clock,
    )
    began, found = clock.now, list[Lane]()
    for _ in range(bulk):
        lanes.add_bulk(job("bulk"))
    for seconds in at:
        clock.now = began + seconds
        lanes.add_query(job("query"))
        batch = lanes.next_batch()
        assert batch is not None
        lanes.ended(batch)
        found.append(batch.lane)
    return found


def test_queries_do_not_stop_bulk() -> None:
    """Though queries never cease, bulk work gets a turn each time it has waited for more than 100 ms."""
    times = [0, 0.05, 0.099, 0.101, 0.11, 0.2, 0.202, 0.203]
    found = asyncio.run(turns(Clock(), at=times, bulk=3))
    assert found == ["query", "query", "query", "bulk", "query", "query", "bulk", "query"]
