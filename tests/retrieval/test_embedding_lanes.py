"""Whose turn it is, with a clock that the test moves and no worker threads."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from retrieval.embedding.lanes import EmbedJob, Lanes
from retrieval.embedding.models import Kind
from retrieval.embedding.results import Lane
from retrieval.embedding.tokens import Tokens


class Words:
    """One token a word."""

    tokens_max = 32

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[Tokens]:
        return [Tokens([1] * len(text.split()), False) for text in texts]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def job(lane: Lane, text: str = "w") -> EmbedJob:
    made = EmbedJob(
        [text],
        "document",
        lane,
        "cut",
        asyncio.get_running_loop().create_future(),
        [len(text.split())],
        normalize=False,
    )
    if lane == "bulk":
        made.pieces = Words().tokenize([text], "document")
        made.plan.append([0])
    return made


def lanes_of(
    workers: int, texts_max: int, *, tokens: float = inf, clock: Callable[[], float] = time.monotonic
) -> Lanes:
    """A run of queries may have so many tokens, padding included."""
    return Lanes(
        Words(),
        workers=workers,
        texts_max=texts_max,
        query_room=lambda texts, longest: texts * longest <= tokens,
        bulk_room=lambda texts, longest: True,
        clock=clock,
    )


async def turns(clock: Clock, *, at: Sequence[float], bulk: int) -> list[Lane]:
    """Whose batch a single worker takes at these seconds after so many bulk requests came. A query always waits."""
    lanes = lanes_of(1, 1, clock=clock)
    began, found = clock.now, list[Lane]()
    for _ in range(bulk):
        lanes.add_bulk(job("bulk"))
    for seconds in at:
        clock.now = began + seconds
        lanes.add_query(job("query"))
        batch = lanes.next_batch()
        assert batch is not None
        lanes.end_batch(batch)
        found.append(batch.lane)
    return found


async def beside_a_run(*texts: str) -> list[tuple[Lane, int]]:
    """Which batches of what size come next where these queries, and a document, wait while a query runs: for the other
    worker, then for the first one after its run."""
    lanes = lanes_of(2, 8, tokens=4)
    lanes.add_query(job("query"))
    first = lanes.next_batch()
    assert first is not None
    for text in texts:
        lanes.add_query(job("query", text))
    lanes.add_bulk(job("bulk"))
    other = lanes.next_batch()
    lanes.end_batch(first)
    then = lanes.next_batch()
    assert other is not None
    assert then is not None
    return [(batch.lane, len(batch.members)) for batch in (other, then)]


def test_queries_that_fit_into_one_run_wait_for_the_one_under_way() -> None:
    """The other worker leaves them alone, and the one that ran takes them together."""
    assert asyncio.run(beside_a_run("w", "w w")) == [("bulk", 1), ("query", 2)]


def test_queries_that_do_not_fit_take_another_worker() -> None:
    """As many as have room run beside the first, and the rest waits in turn for that run."""
    assert asyncio.run(beside_a_run("w w", "w w", "w w")) == [("query", 2), ("bulk", 1)]


def test_no_query_is_left_behind() -> None:
    """However workers, queries and documents come and go, somebody is awake for what waits."""
    lanes, chance = lanes_of(2, 8, tokens=4), random.Random(4)
    ran: list[Lane] = []

    def work() -> None:
        while (batch := lanes.next_batch()) is not None:
            time.sleep(chance.choice((0, 0.0002, 0.001)))
            lanes.end_batch(batch)
            ran.extend(batch.lane for _ in batch.members)

    async def ask() -> list[EmbedJob]:
        return [
            job(chance.choice(("query", "query", "bulk")), "w " * chance.randint(1, 4)) for _ in range(1500)
        ]

    asked = asyncio.run(ask())
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for at, one in enumerate(asked):
            lanes.add_query(one) if one.lane == "query" else lanes.add_bulk(one)
            time.sleep(chance.choice((0, 0, 0.0005)))
            if chance.random() < 0.1:  # all of it runs before the next comes
                wait_for(ran, at + 1)
        wait_for(ran, len(asked))
    finally:
        lanes.close()
    for thread in threads:
        thread.join()


def test_more_queries_than_one_run_holds_take_another_worker() -> None:
    """Eight short ones would share the next run, a ninth would not."""

    async def waiting(count: int) -> bool:
        lanes = lanes_of(2, 8)
        lanes.add_query(job("query"))
        assert lanes.next_batch() is not None
        for _ in range(count):
            lanes.add_query(job("query"))
        lanes.add_bulk(job("bulk"))
        batch = lanes.next_batch()
        assert batch is not None
        return batch.lane == "bulk"

    assert [asyncio.run(waiting(count)) for count in (8, 9)] == [True, False]


def wait_for(ran: list[Lane], count: int) -> None:
    deadline = time.monotonic() + 10
    while len(ran) < count:
        assert time.monotonic() < deadline, "something waits, and nobody is awake"
        time.sleep(0.0002)


def test_queries_do_not_stop_bulk() -> None:
    """Though queries never cease, bulk work gets a turn each time it has waited for more than 100 ms."""
    times = [0, 0.05, 0.099, 0.101, 0.11, 0.2, 0.202, 0.203]
    found = asyncio.run(turns(Clock(), at=times, bulk=3))
    assert found == ["query", "query", "query", "bulk", "query", "query", "bulk", "query"]
