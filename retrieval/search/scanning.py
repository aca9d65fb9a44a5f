"""Exact searches that come together share one scan of the log; there is never more than one scan at a time.

A scan reads every stored vector, whether for one query or for a hundred. The searches of one batch therefore meet in
a `JointScan`: it begins when each of them has asked, or has left because it failed before, and those with the same
filter are answered by the same reading. Scans run beside the threads that other searches wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from indexes.base.model import Floats, Ranking
from indexes.collection.collection import Collection
from indexes.filters.grammar import Filter
from retrieval.base.cancellation import Abandoned


@dataclass(frozen=True, slots=True)
class Asked:
    """One search's share of a scan: its unit vector [dimensions], how many passages it wants, and of which."""

    vector: Floats
    depth: int
    condition: Filter | None
    answer: asyncio.Future[Ranking]


class Scanner:
    """Runs the exact scans of a service, one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    def joint(self, collection: Collection, members: int) -> JointScan:
        """A scan of one collection for so many searches; each takes a `place` in it."""
        return JointScan(self, collection, members)

    async def rank(
        self, collection: Collection, vector: Floats, depth: int, condition: Filter | None
    ) -> Ranking:
        """A scan for one search alone: the exact best `depth`, best first."""
        return await self.joint(collection, 1).ask(vector, depth, condition)

    async def scan(self, collection: Collection, asked: Sequence[Asked]) -> None:
        """Answer all of these, with one reading for each different filter. Errors become the answers.

        A scan ends when nobody waits for it any more. Run it as a task of its own: cancelled, it would leave its
        thread scanning beside the next one.
        """
        for group in grouped(asked):
            waiting: list[Asked] = []
            try:
                async with self._turn:
                    waiting = [one for one in group if not one.answer.done()]  # some may have left meanwhile
                    rankings = await asyncio.to_thread(rank_all, collection, waiting) if waiting else []
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
                for one in waiting:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            for one, ranking in zip(waiting, rankings, strict=True):
                if not one.answer.done():  # its caller may have gone
                    one.answer.set_result(ranking)


class JointScan:
    """The exact searches of one batch on their way to one scan. Belongs to one event loop."""

    def __init__(self, scanner: Scanner, collection: Collection, members: int) -> None:
        self.scanner = scanner
        self.collection = collection
        self._missing = members
        self._asked: list[Asked] = []
        self._running: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """One search's place. Whoever leaves the block without having asked lets the others go on."""
        place = Place(self)
        try:
            yield place
        finally:
            if not place.taken:
                self._one_less()

    def ask(self, vector: Floats, depth: int, condition: Filter | None) -> asyncio.Future[Ranking]:
        one = Asked(vector, depth, condition, asyncio.get_running_loop().create_future())
        self._asked.append(one)
        self._one_less()
        return one.answer

    def _one_less(self) -> None:
        self._missing -= 1
        if self._missing == 0 and self._asked:
            # A task of its own: the search that happens to complete the batch may be cancelled, the others not.
            self._running = asyncio.create_task(self.scanner.scan(self.collection, self._asked))


class Place:
    """One search's part in a joint scan. It may ask again, of a newer state, and then has a scan for itself."""

    def __init__(self, scan: JointScan) -> None:
        self._scan = scan
        self.taken = False

    async def rank(
        self, collection: Collection, vector: Floats, depth: int, condition: Filter | None
    ) -> Ranking:
        """The exact best `depth`, best first, from the scan of the batch."""
        if self.taken or collection is not self._scan.collection:  # an alias may have moved meanwhile
            return await self._scan.scanner.rank(collection, vector, depth, condition)
        self.taken = True
        return await self._scan.ask(vector, depth, condition)


def grouped(asked: Sequence[Asked]) -> list[list[Asked]]:
    """Those with the same filter together. By its JSON: in Python the values 1 and true would be equal."""
    groups: dict[bytes, list[Asked]] = {}
    for one in asked:
        groups.setdefault(msgspec.json.encode(one.condition), []).append(one)
    return list(groups.values())


def rank_all(collection: Collection, group: Sequence[Asked]) -> list[Ranking]:
    def on_step() -> None:
        if all(one.answer.done() for one in group):
            raise Abandoned

    vectors = np.stack([one.vector for one in group])
    found = collection.exact(vectors, max(one.depth for one in group), group[0].condition, on_step)
    return [
        Ranking(ids[: one.depth], scores[: one.depth], np.zeros(min(len(ids), one.depth), np.int8))
        for one, (ids, scores) in zip(group, found, strict=True)
    ]
