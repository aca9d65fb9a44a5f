"""Exact searches that arrive together share one scan of the log. Only one scan runs at a time.

A scan reads every stored vector, whether for one query or for a hundred. The searches of one batch therefore meet in a
`JointScan`: it starts once each of them has asked or failed, and those with the same filter are answered by the same
pass. Scans run outside the threads that other searches wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np

from indexes.base.model import Floats, Ranking
from indexes.collection.view import CollectionView
from indexes.filters.grammar import Filter
from retrieval.search.shard import LocalShard, Shard, run_at_once
from retrieval.search.stopwatch import Stopwatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """One search's part of a scan: its unit vector [dimensions], how many passages it wants, and its filter."""

    vector: Floats
    depth: int
    condition: Filter | None
    answer: asyncio.Future[Ranking]


class Scanner:
    """Runs the exact scans of a service, one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    def joint(self, collection: CollectionView, members: int) -> JointScan:
        """Return a scan of one collection for `members` searches. Each takes a `place` in it."""
        return JointScan(self, collection, members)

    async def rank(
        self, collection: CollectionView, vector: Floats, depth: int, condition: Filter | None
    ) -> Ranking:
        """Scan for one search alone. Returns the exact best `depth` passages, best first."""
        return await self.joint(collection, 1).ask(vector, depth, condition)

    async def on_thread(self, search: Callable[[], T]) -> T:
        """Run a search that scans the log by itself, when no other scan runs."""
        async with self._turn:
            return await asyncio.to_thread(search)

    async def scan(self, collection: CollectionView, asked: Sequence[ScanRequest]) -> None:
        """Answer all of these searches, with one pass for each distinct filter. Errors are delivered as the answers.

        A scan stops once no caller waits for it. Run it as its own task: if it were cancelled, its thread would go on
        scanning next to the next one.
        """
        for group in group_by_filter(asked):
            waiting: list[ScanRequest] = []
            try:
                async with self._turn:
                    waiting = [one for one in group if not one.answer.done()]  # some callers may have left
                    rankings = await rank_all(collection, waiting) if waiting else []
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
                for one in waiting:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            for one, ranking in zip(waiting, rankings, strict=True):
                if not one.answer.done():  # its caller may have gone
                    one.answer.set_result(ranking)


class JointScan:
    """The exact searches of one batch, gathering for one scan. Belongs to one event loop."""

    def __init__(self, scanner: Scanner, collection: CollectionView, members: int) -> None:
        self.scanner = scanner
        self.collection = collection
        self._missing = members
        self._asked: list[ScanRequest] = []
        self._running: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """Reserve one search's place. Leaving the block without having asked lets the others start."""
        place = Place(self)
        try:
            yield place
        finally:
            if not place.taken:
                self._count_down()

    def ask(self, vector: Floats, depth: int, condition: Filter | None) -> asyncio.Future[Ranking]:
        one = ScanRequest(vector, depth, condition, asyncio.get_running_loop().create_future())
        self._asked.append(one)
        self._count_down()
        return one.answer

    def _count_down(self) -> None:
        self._missing -= 1
        if self._missing == 0 and self._asked:
            # Its own task: cancelling the search that happens to complete the batch must not cancel the others.
            self._running = asyncio.create_task(self.scanner.scan(self.collection, self._asked))


class Place:
    """One search's place in a joint scan. If it asks again, on a newer state, it gets a scan of its own."""

    def __init__(self, scan: JointScan) -> None:
        self._scan = scan
        self.taken = False

    async def rank(
        self, collection: CollectionView, vector: Floats, depth: int, condition: Filter | None
    ) -> Ranking:
        """Return the exact best `depth` passages, best first, from the batch's scan."""
        if self.taken or collection is not self._scan.collection:  # an alias may have moved
            return await self._scan.scanner.rank(collection, vector, depth, condition)
        self.taken = True
        return await self._scan.ask(vector, depth, condition)


def group_by_filter(asked: Sequence[ScanRequest]) -> list[list[ScanRequest]]:
    """Group requests with the same filter, compared as JSON: in Python the values 1 and true would be equal."""
    groups: dict[bytes, list[ScanRequest]] = {}
    for one in asked:
        groups.setdefault(msgspec.json.encode(one.condition), []).append(one)
    return list(groups.values())


async def rank_all(collection: CollectionView, group: Sequence[ScanRequest]) -> list[Ranking]:
    """Scan once for these requests, on a thread, until no caller waits."""
    watch = Stopwatch()

    def leave(_: asyncio.Future[Ranking]) -> None:
        watch.left = all(one.answer.done() for one in group)

    for one in group:
        one.answer.add_done_callback(leave)
    shard: Shard = LocalShard(collection, collection.snapshot, watch)
    vectors, depth = np.stack([one.vector for one in group]), max(one.depth for one in group)
    scan = partial(shard.scan, vectors, depth, group[0].condition)
    rankings = await asyncio.to_thread(run_at_once, scan)
    return [
        Ranking(found.ids[: one.depth], found.scores[: one.depth], found.tiers[: one.depth])
        for one, found in zip(group, rankings, strict=True)
    ]
