"""Which passages are hot after a rebuild."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexes.base.model import TIERS
from indexes.collection.collection import Collection
from indexes.rebuild.hits import ENTRIES_MIN, Hits
from indexes.rebuild.placement import place
from tests.support.vectors import World, delete, fill, make_collection, rebuild

WORLD = World(seed=4)
NOBODY = (np.empty(0, np.int64), np.empty(0, np.float64))


def tiers(collection: Collection, ids: list[int]) -> list[str]:
    return [TIERS[tier] for tier in collection.snapshot.tiers_of(np.array(ids))]


def test_the_newest_are_hot() -> None:
    """Without hits, the newest passages fill the hot tier."""
    placed = place(np.arange(1, 2001), 500, *NOBODY)
    assert placed.hot.tolist() == list(range(1501, 2001))
    assert placed.cold.tolist() == list(range(1, 1501))


def test_wanted_passages_are_hot_up_to_half() -> None:
    """The most hit old passages take the place of the oldest new ones, up to half of the capacity."""
    hit = np.arange(1000, 0, -1)  # passage 1000 most
    placed = place(np.arange(1, 2001), 500, hit, np.linspace(100, 2, 1000))
    assert placed.by_hits == 250
    assert placed.hot.tolist() == [*range(751, 1001), *range(1751, 2001)]
    assert len(placed.hot) + len(placed.cold) == 2000


def test_hits_on_dead_or_new_passages_take_no_place() -> None:
    """Hits on passages that are gone, or are new enough to be hot anyway, leave the share to others."""
    live = np.arange(1, 2001)[np.arange(1, 2001) != 7]
    placed = place(live, 500, np.array([7, 1999, 3, 4]), np.array([50.0, 40.0, 30.0, 1.0]))
    assert placed.by_hits == 1  # one hit, as passage 4 has, is chance
    assert placed.hot.tolist() == [3, *range(1502, 2001)]


def test_a_small_remainder_stays_hot() -> None:
    """What would be too little to train cold lists with is hot too, whatever the capacity."""
    placed = place(np.arange(1, 301), 100, *NOBODY)
    assert len(placed.hot) == 300
    assert not len(placed.cold)


def test_no_hot_tier() -> None:
    """With a capacity of zero everything is cold, hit or not."""
    placed = place(np.arange(1, 1001), 0, np.array([5]), np.array([9.0]))
    assert not len(placed.hot)
    assert len(placed.cold) == 1000


@pytest.mark.slow
def test_a_rebuild_moves_passages_both_ways(tmp_path: Path) -> None:
    """Passages that searches return come back into the hot tier; the manifest says how many moved."""
    collection = make_collection(tmp_path / "c", hot_capacity=400)
    fill(collection, WORLD, range(1200))
    rebuild(collection)
    assert tiers(collection, [1, 2, 1200]) == ["cold", "cold", "hot"]
    moves = collection.info().moves
    assert moves is not None
    assert (moves.hot_by_age, moves.hot_by_hits, moves.to_cold, moves.to_hot) == (400, 0, 800, 0)
    for _ in range(3):
        collection.hits.count([1, 2])
    rebuild(collection)
    assert tiers(collection, [1, 2, 3, 801, 802, 803]) == ["hot", "hot", "cold", "cold", "cold", "hot"]
    moves = collection.info().moves
    assert moves is not None
    assert (moves.hot_by_age, moves.hot_by_hits, moves.to_cold, moves.to_hot) == (398, 2, 2, 2)
    collection.close()


def test_hits_survive_a_restart(tmp_path: Path) -> None:
    """Counts are saved at closing; a file that is damaged only means that counting starts anew."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(20))
    collection.hits.count([3, 3, 5])
    collection.close()
    again = Collection(tmp_path / "c", collection.options)
    ids, counts = again.hits.most()
    assert ids.tolist() == [3, 5]
    assert counts.tolist() == [2, 1]
    delete(again, range(3))
    again.close()
    (tmp_path / "c" / "hits.msgpack").write_bytes(b"\x93garbage")
    last = Collection(tmp_path / "c", collection.options)
    assert len(last.hits) == 0
    last.close()


def test_hits_are_bounded(tmp_path: Path) -> None:
    """However many passages are hit, the counts keep to their limit, and those hit most stay."""
    hits = Hits(tmp_path / "hits.msgpack", hot_capacity=10)
    for _ in range(5):
        hits.count([1, 2, 3])
    for start in range(100, 100 + 3 * ENTRIES_MIN, 100):
        hits.count(range(start, start + 100))
        hits.count([1, 2, 3])
    assert len(hits) <= ENTRIES_MIN
    assert hits.most()[0][:3].tolist() == [3, 2, 1]


def test_old_hits_fade(tmp_path: Path) -> None:
    """What was hit before several rebuilds weighs less than what is hit now."""
    hits = Hits(tmp_path / "hits.msgpack", hot_capacity=10)
    hits.count([1] * 10)
    for _ in range(3):
        hits.fade()
    hits.count([2, 2])
    assert hits.most()[0].tolist() == [2, 1]
