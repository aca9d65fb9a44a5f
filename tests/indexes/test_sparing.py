"""A search that may spare the cold tier: what it returns, and what it tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from indexes.base.model import TIERS, ColdPolicy, DenseResult, Floats, Ids, IndexOptions, Spared, Sparing
from indexes.collection.collection import Collection
from indexes.dense.cold import ColdIndex, ColdSettings
from indexes.dense.cold_skips import NEAR_WEIGHT, NEVER, mean_of_best
from indexes.filters.grammar import Comparison, Filter
from indexes.parts.generation import Generation
from indexes.parts.prepared import NO_COLD_MATCH
from indexes.parts.query import Query
from indexes.parts.snapshot import Snapshot
from tests.support.vectors import World, fill, make_collection, rebuild

WORLD = World(seed=12)
QUERIES = WORLD.queries(8)
K, DEPTH = 10, 30
COLD = TIERS.index("cold")
ALL = Comparison("eq", "tags", "all")
EVEN = Comparison("eq", "even", True)
NEWEST = Comparison("gte", "number", 800)  # none of them cold
SEARCH, NOTED = Sparing(1), Sparing(1, observed=True)
NEVER_COLD = Sparing(1, never=True)
SKIP, AUDITED = Sparing(1, threshold=-9), Sparing(1, threshold=-9, observed=True)


@pytest.fixture(scope="module")
def world_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with all three tiers."""
    return write_world(tmp_path_factory.mktemp("sparing") / "c", hot=200)


def write_world(folder: Path, *, hot: int) -> Path:
    with closing(make_collection(folder, hot_capacity=hot)) as collection:
        fill(collection, WORLD, range(900))
        rebuild(collection)
        fill(collection, WORLD, range(900, 950))
    return folder


@pytest.fixture
def snapshot(world_folder: Path) -> Iterator[Snapshot]:
    """It is searched so thoroughly that nothing is missed."""
    collection = Collection(world_folder, IndexOptions(cold=ColdPolicy("calibrated")))
    snapshot = collection.snapshot
    assert snapshot.counts() == {"delta": 50, "hot": 200, "cold": 700}
    for visible in snapshot.parts:
        if isinstance(visible.part, Generation):
            visible.part.tune(ef=500, cold=ColdSettings(visible.part.lists, 700))
    yield snapshot
    collection.close()


def dense_scores(snapshot: Snapshot, vector: Floats, ids: Ids) -> Floats:
    return snapshot.prepare(Query(K, DEPTH, vector=vector)).scores(ids)[0]


def search(
    snapshot: Snapshot, vector: Floats, sparing: Sparing | None, condition: Filter | None = None
) -> DenseResult:
    query = Query(K, DEPTH, vector=vector, condition=condition, sparing=sparing)
    return snapshot.prepare(query).dense()


def best(snapshot: Snapshot, query: Floats, condition: Filter = ALL, *, cold: bool) -> list[int]:
    """The nearest of all passages, or of those that are not cold, scored one by one."""
    ids = snapshot.matching(condition)
    if not cold:
        ids = ids[snapshot.tiers_of(ids) != COLD]
    return ids[np.lexsort((ids, -dense_scores(snapshot, query, ids)))][:DEPTH].tolist()


def losses(snapshot: Snapshot) -> list[float]:
    """For each query the share of its true nearest K that are cold."""
    nearest = [np.array(best(snapshot, query, cold=True)[:K]) for query in QUERIES]
    return [float(np.mean(snapshot.tiers_of(ids) == COLD)) for ids in nearest]


def forbid_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the cold tier was searched")

    monkeypatch.setattr(ColdIndex, "nearest", fail)


def told(result: DenseResult) -> tuple[list[int], tuple[str, ...], str | None]:
    return result.ranking.ids.tolist(), result.tiers, result.cold_skipped


# --- what is returned -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sparing", [SEARCH, NOTED], ids=["search", "noted"])
def test_a_search_returns_the_best_of_all_tiers(snapshot: Snapshot, sparing: Sparing) -> None:
    """The same as a search that spares nothing, whether it is observed or not."""
    for query in QUERIES:
        found = told(search(snapshot, query, sparing))
        assert found == (best(snapshot, query, cold=True), ("delta", "hot", "cold"), None)
        assert found == told(snapshot.dense(query, DEPTH))


@pytest.mark.parametrize("sparing", [SKIP, AUDITED], ids=["skip", "audited"])
def test_a_skip_returns_the_best_of_the_others(snapshot: Snapshot, sparing: Sparing) -> None:
    """It says why, and not whether it was audited."""
    for query in QUERIES:
        ids, tiers, reason = told(search(snapshot, query, sparing))
        assert (ids, tiers) == (best(snapshot, query, cold=False), ("delta", "hot"))
        assert str(reason).startswith("calibrated: margin ")


def test_a_skip_leaves_the_cold_tier_alone(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not audited never looks into it."""
    forbid_cold(monkeypatch)
    for query in QUERIES:
        assert len(search(snapshot, query, SKIP).ranking) == DEPTH


# --- what is told ---------------------------------------------------------------------------------------------


def test_the_margin_is_that_of_the_other_tiers(snapshot: Snapshot) -> None:
    """It is the k-th of their scores, less half the mean of the nearest centroids'."""
    assert snapshot.bounds is not None
    for query in QUERIES:
        warm = np.array(best(snapshot, query, cold=False))
        kth = dense_scores(snapshot, query, warm)[K - 1]
        near = NEAR_WEIGHT * mean_of_best(snapshot.bounds.similarities(query))
        # The graph holds float32; scored one by one they are read as float16.
        assert spared_by(snapshot, query, SEARCH).margin == pytest.approx(kth - near, abs=5e-4)


@pytest.mark.parametrize(
    ("sparing", "outcome"), [(NOTED, "searched"), (AUDITED, "skipped")], ids=["noted", "audited"]
)
def test_the_loss_is_the_cold_share_of_the_nearest(
    snapshot: Snapshot, sparing: Sparing, outcome: str
) -> None:
    """It is that of the K nearest, however many more are asked for, and both searches took some time."""
    told = [spared_by(snapshot, query, sparing) for query in QUERIES]
    assert [one.loss for one in told] == pytest.approx(losses(snapshot))
    assert len(set(losses(snapshot))) > 2
    assert all(one.by == sparing and one.outcome == outcome for one in told)
    assert all(one.first_s > 0 and one.lists_s > 0 for one in told)


@pytest.mark.parametrize("sparing", [SEARCH, SKIP], ids=["search", "skip"])
def test_what_is_not_observed_tells_no_loss(snapshot: Snapshot, sparing: Sparing) -> None:
    """Searched or skipped, what that loses is unknown."""
    assert spared_by(snapshot, QUERIES[0], sparing).loss is None


def spared_by(snapshot: Snapshot, query: Floats, sparing: Sparing) -> Spared:
    spared = search(snapshot, query, sparing).spared
    assert spared is not None
    return spared


# --- who spares nothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sparing", "condition"),
    [(AUDITED, EVEN), (None, None), (Sparing(2, threshold=-9), None)],
    ids=["filtered", "not told to", "told of another generation"],
)
def test_the_cold_tier_is_searched(
    snapshot: Snapshot, sparing: Sparing | None, condition: Filter | None
) -> None:
    """A search with a filter always looks into the cold tier, and so does one whose threshold is that of other
    lists."""
    for query in QUERIES:
        found = search(snapshot, query, sparing, condition)
        expected = best(snapshot, query, condition or ALL, cold=True)
        assert told(found) == (expected, ("delta", "hot", "cold"), None)
        assert found.spared is None


@pytest.mark.parametrize("condition", [None, EVEN], ids=["plain", "filtered"])
def test_never_holds_for_filters_too(
    snapshot: Snapshot, condition: Filter | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy never to search the cold tier leaves it out with a filter and without."""
    forbid_cold(monkeypatch)
    for query in QUERIES:
        expected = best(snapshot, query, condition or ALL, cold=False)
        found = told(search(snapshot, query, NEVER_COLD, condition))
        assert found == (expected, ("delta", "hot"), NEVER)


def test_where_nothing_cold_matches_there_is_nothing_to_skip(snapshot: Snapshot) -> None:
    """The reason given is the filter, not the policy."""
    found = told(search(snapshot, QUERIES[0], NEVER_COLD, NEWEST))
    assert found == (best(snapshot, QUERIES[0], NEWEST, cold=True), ("delta", "hot"), NO_COLD_MATCH)


# --- who is told to -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "sparing"),
    [("always", None), ("calibrated", NOTED), ("never", NEVER_COLD), ("auto", None)],
)
def test_policies(world_folder: Path, mode: Any, sparing: Sparing | None) -> None:
    """The first query is told what the policy says. `auto` says nothing where the graph is larger than the lists."""
    with closing(Collection(world_folder, IndexOptions(cold=ColdPolicy(mode)))) as collection:
        snapshot, query = collection.snapshot, Query(K, DEPTH, vector=QUERIES[0])
        assert snapshot.with_cold_policy(query) == replace(query, sparing=sparing)
        # A search of several collections is told nothing.
        assert ("cold" in snapshot.prepare(query).dense().tiers) == (mode != "never")


def test_auto_where_the_graph_is_smaller_than_the_lists(tmp_path: Path) -> None:
    """It observes queries, and the graph is read from its file when the first one walks it."""
    policy = ColdPolicy("auto", observed=1.0)
    with closing(Collection(write_world(tmp_path / "c", hot=10), IndexOptions(cold=policy))) as collection:
        snapshot = collection.snapshot
        [generation] = [one.part for one in snapshot.parts if isinstance(one.part, Generation)]
        query = snapshot.with_cold_policy(Query(K, DEPTH, vector=QUERIES[0]))
        assert query.sparing == NOTED
        assert generation.tier_bytes()["hot"] == 0
        found = snapshot.prepare(query).dense()
        assert found.spared is not None
        assert found.spared.loss is not None
        assert generation.tier_bytes()["hot"] > 0


@pytest.mark.slow
def test_a_generation_that_was_removed_is_searched_to_the_end(tmp_path: Path) -> None:
    """The graph, which no query had walked before, is gone; its passages are scanned instead."""
    policy = ColdPolicy("auto", observed=1.0)
    folder = write_world(tmp_path / "c", hot=10)
    with closing(Collection(folder, IndexOptions(cold=policy))) as collection:
        snapshot = collection.snapshot
        expected = best(snapshot, QUERIES[0], cold=True)[:K]
        next(folder.glob("generations/*/hot.hnsw")).unlink()
        found = snapshot.prepare(snapshot.with_cold_policy(Query(K, DEPTH, vector=QUERIES[0]))).dense()
        assert found.spared is not None
        assert np.isin(found.ranking.ids[:K], expected).mean() > 0.8
