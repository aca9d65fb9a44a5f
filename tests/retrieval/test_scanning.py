"""Exact searches of one batch: one scan, everybody's own answer, and nobody left waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from indexes.base.model import Floats
from indexes.base.work import OnStep, do_nothing
from indexes.collection.collection import Collection
from indexes.filters.grammar import Filter, Unchecked, parse_filter
from retrieval.base.cancellation import Abandoned
from retrieval.search.scanning import JointScan, Scanner
from tests.support.http import Http
from tests.support.vectors import World, fill, make_collection

EVEN = {"type": "eq", "key": "even", "value": True}


class CountingCollection(Collection):
    """A real collection that counts its scans. While the gate is shut, they begin but do not end."""

    scans = 0
    at_once: ClassVar[list[int]] = []  # of each scan, how many were under way when it began, itself included
    under_way = 0
    ended = 0  # without having read everything
    gate = threading.Event()
    count = threading.Lock()

    def exact(
        self, queries: Floats, k: int, condition: Filter | None = None, on_step: OnStep = do_nothing
    ) -> Any:
        kind = type(self)
        with self.count:
            kind.scans += 1
            kind.under_way += 1
            self.at_once.append(self.under_way)
        try:
            assert self.gate.wait(20)
            return super().exact(queries, k, condition, on_step)
        except Abandoned:
            kind.ended += 1
            raise
        finally:
            with self.count:
                kind.under_way -= 1

    async def busy(self) -> None:
        """Return once a scan is under way."""
        while not self.under_way:  # noqa: ASYNC110 - it begins on another thread
            await asyncio.sleep(0.002)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def collection(tmp_path: Path, world: World) -> Iterator[CountingCollection]:
    made = make_collection(tmp_path / "c")
    fill(made, world, range(500))
    made.close()
    opened = CountingCollection(made.folder, made.options)
    CountingCollection.scans = CountingCollection.ended = 0
    CountingCollection.at_once.clear()
    CountingCollection.gate.set()
    yield opened
    opened.close()


async def ask(
    scan: JointScan, collection: Collection, query: Floats, depth: int, condition: Filter | None
) -> list[int]:
    with scan.place() as place:
        ranking = await place.rank(collection, query, depth, condition)
        return [int(one) for one in ranking.ids]


def test_a_batch_is_one_scan_for_each_filter(collection: CountingCollection, world: World) -> None:
    """Nine searches with one filter or none are two scans, and each gets what it would get alone."""
    queries = world.queries(9)
    even = parse_filter(EVEN, conditions_max=1)
    conditions = [even if number % 3 == 0 else None for number in range(9)]

    async def batch() -> list[list[int]]:
        scan = Scanner().joint(collection, 9)
        return await asyncio.gather(
            *(
                ask(scan, collection, query, 3 + number, condition)
                for number, (query, condition) in enumerate(zip(queries, conditions, strict=True))
            )
        )

    found = asyncio.run(batch())
    assert CountingCollection.scans == 2
    for number, (query, condition) in enumerate(zip(queries, conditions, strict=True)):
        alone = collection.exact(query[None, :], 3 + number, condition)[0][0]
        assert found[number] == alone.tolist()


def test_true_and_one_are_different_filters(collection: CountingCollection, world: World) -> None:
    """Python thinks that 1 equals True; a filter does not."""
    filters = [
        Unchecked(parse_filter({**EVEN, "type": "in", "value": [first, False]}, conditions_max=1))
        for first in (1, True)
    ]

    async def both() -> list[list[int]]:
        scan = Scanner().joint(collection, 2)
        query = world.queries(1)[0]
        return await asyncio.gather(*(ask(scan, collection, query, 500, some) for some in filters))

    found = asyncio.run(both())
    assert (len(found[0]), len(found[1])) == (250, 500)


def test_who_leaves_holds_nobody_up(collection: CountingCollection, world: World) -> None:
    """Of three, one fails before it asks and one is cancelled while it waits: the third has its answer."""
    query = world.queries(1)[0]

    async def fails(scan: JointScan) -> None:
        with scan.place():
            await asyncio.sleep(0.01)
            raise ValueError("before asking")

    async def batch() -> list[int]:
        scan = Scanner().joint(collection, 3)
        cancelled = asyncio.create_task(ask(scan, collection, query, 5, None))
        third = asyncio.create_task(ask(scan, collection, query, 5, None))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(ValueError, match="before asking"):
            await fails(scan)
        async with asyncio.timeout(20):
            return await third

    assert len(asyncio.run(batch())) == 5
    assert CountingCollection.scans == 1


def test_an_alias_that_moves_meanwhile(collection: CountingCollection, world: World, tmp_path: Path) -> None:
    """A search that finds another collection under the name is answered by that one, and holds nobody up."""
    other = make_collection(tmp_path / "other")
    fill(other, world, range(1000, 1020))
    query = world.queries(1)[0]

    async def batch() -> list[list[int]]:
        scan = Scanner().joint(collection, 2)
        return await asyncio.gather(*(ask(scan, one, query, 50, None) for one in (other, collection)))

    moved, stayed = asyncio.run(batch())
    assert (len(moved), len(stayed)) == (20, 50)
    other.close()


def test_an_error_of_the_scan_reaches_everybody(collection: CountingCollection, world: World) -> None:
    """A filter by an unknown key fails those who asked for it, not the others."""
    unknown = parse_filter({"type": "eq", "key": "nobody", "value": 1}, conditions_max=1)
    query = world.queries(1)[0]

    async def batch() -> list[Any]:
        scan = Scanner().joint(collection, 3)
        searches = (ask(scan, collection, query, 5, some) for some in (unknown, None, unknown))
        return await asyncio.gather(*searches, return_exceptions=True)

    first, second, third = asyncio.run(batch())
    assert "nobody" in str(first)
    assert "nobody" in str(third)
    assert len(second) == 5


def test_deadlines_start_no_second_scan(collection: CountingCollection, world: World) -> None:
    """A scan whose searches have all left reads no further, and ends before the next begins."""
    query = world.queries(1)[0]
    scanner = Scanner()

    async def search(limit: asyncio.Timeout) -> None:
        async with limit:
            await scanner.rank(collection, query, 5, None)

    async def story() -> int:
        CountingCollection.gate.clear()
        limits = [asyncio.timeout(None) for _ in range(3)]
        searches = [asyncio.create_task(search(limit)) for limit in limits]
        await collection.busy()
        for limit in limits:
            limit.reschedule(asyncio.get_running_loop().time())
        for one in searches:
            with pytest.raises(TimeoutError):
                await one
        last = asyncio.create_task(scanner.rank(collection, query, 5, None))
        await asyncio.sleep(0.1)  # time enough for a second scan to begin, if it could
        CountingCollection.gate.set()
        return len(await last)

    assert asyncio.run(story()) == 5
    assert CountingCollection.at_once == [1, 1]
    assert CountingCollection.ended == 1


def test_nobody_is_scanned_for_in_vain(collection: CountingCollection, world: World) -> None:
    """Who leaves while waiting for the turn is not scanned for, alone or in a batch."""
    query = world.queries(1)[0]
    even = parse_filter(EVEN, conditions_max=1)

    async def story() -> list[int]:
        scanner = Scanner()
        CountingCollection.gate.clear()
        first = asyncio.create_task(scanner.rank(collection, query, 5, None))
        await collection.busy()
        alone = asyncio.create_task(scanner.rank(collection, query, 5, None))
        scan = scanner.joint(collection, 3)
        leaves, stays, other = (
            asyncio.create_task(ask(scan, collection, query, depth, some))
            for depth, some in ((400, None), (6, None), (7, even))
        )
        for _ in range(5):  # until all of them wait for the turn
            await asyncio.sleep(0)
        for one in (alone, leaves, other):
            one.cancel()
        await asyncio.gather(alone, leaves, other, return_exceptions=True)
        CountingCollection.gate.set()
        found = [len(await first), len(await stays)]
        assert scan._running is not None
        await scan._running
        return found

    assert asyncio.run(story()) == [5, 6]
    assert CountingCollection.scans == 2


def test_over_http(http: Http) -> None:
    """A batch of exact and other searches answers each in its place, the wrong ones with their errors."""
    name = http.new_collection()
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 384))
    for number, vector in enumerate(vectors):
        http.write(name, {"id": f"d{number}", "text": f"text {number}", "vector": vector.tolist()})
    searches: list[dict[str, Any]] = [
        {"vector": rng.normal(size=384).tolist(), "k": 4, "exact": True, "cache": number % 2 == 0}
        for number in range(12)
    ]
    searches[3] = {"query": "words", "exact": True, "mode": "lexical"}
    searches[5] = {"vector": [1.0], "exact": True}
    searches[7] = {"query": "text 7", "mode": "lexical", "k": 1}
    for _ in range(2):  # the second time half of them come from the cache and never reach the scan
        results = http.ok("POST", f"/v1/collections/{name}/search/batch", {"searches": searches})["results"]
        for number, (search, result) in enumerate(zip(searches, results, strict=True)):
            if number in (3, 5):
                assert result["error"]["param"] in ("exact", "vector")
            elif number == 7:
                assert result["hits"][0]["document_id"] == "d7"
            else:
                best = np.argsort(-(vectors / np.linalg.norm(vectors, axis=1)[:, None]) @ search["vector"])[
                    :4
                ]
                assert [hit["document_id"] for hit in result["hits"]] == [f"d{one}" for one in best]
