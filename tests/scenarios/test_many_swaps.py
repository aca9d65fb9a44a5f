"""A hundred swaps of generations while searches and writes go on."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from indexes.parts.query import Query
from tests.support.vectors import World, fill, make_collection, rebuild

SWAPS = 100


@pytest.mark.slow
def test_a_hundred_swaps_under_load(tmp_path: Path) -> None:
    """No search fails, each finds its k passages in one generation, and no write is lost on the way."""
    world = World()
    options = IndexOptions(delta_passages_max=256, segments_max=0, generations_kept=2)
    collection = make_collection(tmp_path / "c", options=options)
    fill(collection, world, range(900))
    rebuild(collection)
    fill(collection, world, range(900, 1300))
    rebuild(collection)
    older, newer = collection.shelf.numbers()
    done, seen = threading.Event(), set[int]()
    failures: list[object] = []
    written = [1300]

    def search(seed: int) -> None:
        rng = np.random.default_rng(seed)
        queries = world.queries(50)
        while not done.is_set():
            try:
                known = written[0]
                snapshot = collection.snapshot
                query = queries[rng.integers(len(queries))]
                found = snapshot.prepare(Query(10, 10, vector=query)).dense().ranking
                words = snapshot.lexical(world.text(int(rng.integers(known))), 10)
                live, numbered = snapshot.live, snapshot.generation
                seen.add(numbered)
                if len(found) != 10 or len(set(found.ids.tolist())) != 10 or not len(words) or live < known:
                    failures.append((numbered, live, known, found.ids.tolist()))
            except Exception as error:  # noqa: BLE001 - whatever it is, the search failed
                failures.append(repr(error))

    def write() -> None:
        while not done.is_set():
            number = written[0]
            collection.write([world.document(number)]).result()
            written[0] = number + 1

    threads = [threading.Thread(target=search, args=(seed,)) for seed in range(2)]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    try:
        for swap in range(SWAPS):
            collection.adopt(older if swap % 2 == 0 else newer)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert seen == {older, newer}
    assert_whole(collection, world, written[0])
    collection.settle()
    collection.close()
    again = Collection(tmp_path / "c", options)
    assert again.snapshot.generation == newer
    assert_whole(again, world, written[0])
    again.close()


def assert_whole(collection: Collection, world: World, written: int) -> None:
    """Every document is there, once, and is found by its own vector."""
    assert collection.snapshot.live == written
    for number in range(0, written, 97):
        ids = collection.snapshot.dense(world.vector(number, 0, 0), 3).ranking.ids
        stored = collection.passages(ids.tolist())
        assert f"d{number}" in {passage.document_id for passage in stored.values()}
