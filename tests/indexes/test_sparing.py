"""A search that may leave the cold tier out: what it returns, and what whoever decides is asked and told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from indexes.base.model import TIERS, ColdPolicy, DenseResult, Floats, Ids, Ranking
from indexes.dense.cold import ColdIndex, ColdSettings
from indexes.dense.cold_skips import ColdSkipper, Decision
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
SEARCH, NOTED = Decision(True), Decision(True, note=True)
SKIP, AUDITED = Decision(False, "not worth it"), Decision(False, "not worth it", note=True)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    """All three tiers, searched so thoroughly that nothing is missed."""
    collection = make_collection(tmp_path_factory.mktemp("sparing") / "c", hot_capacity=200)
    fill(collection, WORLD, range(900))
    rebuild(collection)
    fill(collection, WORLD, range(900, 950))
    snapshot = collection.snapshot
    assert snapshot.counts() == {"delta": 50, "hot": 200, "cold": 700}
    for visible in snapshot.parts:
        if isinstance(visible.part, Generation):
            visible.part.tune(ef=500, cold=ColdSettings(visible.part.lists, 700))
    yield snapshot
    collection.close()


class Script:
    """In the place of a ColdSkipper: decides as it was told to, and keeps what it was asked and taught."""

    def __init__(self, decision: Decision) -> None:
        self.policy = ColdPolicy("calibrated")
        self.decision = decision
        self.asked: list[tuple[Floats, int, bool]] = []
        self.learnt: list[tuple[Decision, float]] = []

    def decide(self, query: Floats, warm: Ranking, k: int, *, counted: bool = True) -> Decision:
        self.asked.append((warm.scores, k, counted))
        return self.decision

    def learn(self, decision: Decision, loss: float) -> None:
        self.learnt.append((decision, loss))


def dense_scores(snapshot: Snapshot, vector: Floats, ids: Ids) -> Floats:
    return snapshot.prepare(Query(K, DEPTH, vector=vector)).scores(ids)[0]


def search(
    snapshot: Snapshot, vector: Floats, condition: Filter | None = None, *, counted: bool = True
) -> DenseResult:
    query = Query(K, DEPTH, vector=vector, condition=condition, counted=counted)
    return snapshot.prepare(query).dense()


def watched(snapshot: Snapshot, by: Script | ColdSkipper) -> Snapshot:
    return replace(snapshot, skipper=cast(ColdSkipper, by))


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


@pytest.mark.parametrize("decision", [SEARCH, NOTED], ids=["search", "noted"])
def test_a_search_returns_the_best_of_all_tiers(snapshot: Snapshot, decision: Decision) -> None:
    """The same as a search that asks nobody, whether it is noted or not."""
    for query in QUERIES:
        found = told(search(watched(snapshot, Script(decision)), query))
        assert found == (best(snapshot, query, cold=True), ("delta", "hot", "cold"), None)
        assert found == told(snapshot.dense(query, DEPTH))


@pytest.mark.parametrize("decision", [SKIP, AUDITED], ids=["skip", "audited"])
def test_a_skip_returns_the_best_of_the_others(snapshot: Snapshot, decision: Decision) -> None:
    """Whoever asks sees the reason, and cannot tell whether the skip was audited."""
    for query in QUERIES:
        found = told(search(watched(snapshot, Script(decision)), query))
        assert found == (best(snapshot, query, cold=False), ("delta", "hot"), "not worth it")


def test_a_skip_leaves_the_cold_tier_alone(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not audited never looks into it."""
    forbid_cold(monkeypatch)
    for query in QUERIES:
        assert len(search(watched(snapshot, Script(SKIP)), query).ranking) == DEPTH


# --- what is asked and taught ---------------------------------------------------------------------------------


def test_the_decision_is_made_by_the_other_tiers(snapshot: Snapshot) -> None:
    """It is given the scores of the best that are not cold, best first, and the number of hits that matter."""
    script = Script(SEARCH)
    for query in QUERIES:
        search(watched(snapshot, script), query)
        scores, k, _ = script.asked[-1]
        warm = np.array(best(snapshot, query, cold=False))
        # The graph holds float32; scored one by one they are read as float16.
        np.testing.assert_allclose(scores, dense_scores(snapshot, query, warm), atol=5e-4)
        assert k == K


@pytest.mark.parametrize("counted", [True, False])
def test_who_decides_knows_what_counts(snapshot: Snapshot, counted: bool) -> None:
    """Whether the query is one of the load is passed on; it is unless said otherwise."""
    script = Script(SEARCH)
    search(watched(snapshot, script), QUERIES[0], counted=counted)
    search(watched(snapshot, script), QUERIES[0])
    assert [given for _, _, given in script.asked] == [counted, True]


@pytest.mark.parametrize("decision", [NOTED, AUDITED], ids=["noted", "audited"])
def test_the_loss_is_the_cold_share_of_the_nearest(snapshot: Snapshot, decision: Decision) -> None:
    """Of the K that matter, however many more are asked for; and it is told of the very decision."""
    script = Script(decision)
    for query in QUERIES:
        search(watched(snapshot, script), query)
    assert [loss for _, loss in script.learnt] == pytest.approx(losses(snapshot))
    assert len(set(losses(snapshot))) > 2
    assert all(learnt is decision for learnt, _ in script.learnt)


@pytest.mark.parametrize("decision", [SEARCH, SKIP], ids=["search", "skip"])
def test_what_is_not_noted_teaches_nothing(snapshot: Snapshot, decision: Decision) -> None:
    """Searched or skipped, nothing is learnt unless the decision asked for it."""
    script = Script(decision)
    search(watched(snapshot, script), QUERIES[0])
    assert len(script.asked) == 1
    assert script.learnt == []


# --- who is asked ---------------------------------------------------------------------------------------------


def test_a_filtered_search_asks_nobody(snapshot: Snapshot) -> None:
    """It always looks into the cold tier, whatever would have been decided."""
    script = Script(AUDITED)
    for query in QUERIES:
        found = told(search(watched(snapshot, script), query, EVEN))
        assert found == (best(snapshot, query, EVEN, cold=True), ("delta", "hot", "cold"), None)
    assert not script.asked
    assert not script.learnt


def test_measuring_one_searcher_asks_nobody(snapshot: Snapshot) -> None:
    """`Snapshot.dense` searches all tiers whatever the policy."""
    script = Script(SKIP)
    found = told(watched(snapshot, script).dense(QUERIES[0], DEPTH))
    assert found == (best(snapshot, QUERIES[0], cold=True), ("delta", "hot", "cold"), None)
    assert script.asked == []


@pytest.mark.parametrize("condition", [None, EVEN], ids=["plain", "filtered"])
def test_never_holds_for_filters_too(
    snapshot: Snapshot, condition: Filter | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy never to search the cold tier leaves it out with a filter and without."""
    forbid_cold(monkeypatch)
    never = watched(snapshot, ColdSkipper(ColdPolicy("never"), None))
    for query in QUERIES:
        expected = best(snapshot, query, condition or ALL, cold=False)
        found = told(search(never, query, condition))
        assert found == (expected, ("delta", "hot"), "cold policy is never")


def test_where_nothing_cold_matches_there_is_nothing_to_skip(snapshot: Snapshot) -> None:
    """The reason given is the filter, not the policy."""
    never = watched(snapshot, ColdSkipper(ColdPolicy("never"), None))
    found = told(search(never, QUERIES[0], NEWEST))
    assert found == (best(snapshot, QUERIES[0], NEWEST, cold=True), ("delta", "hot"), NO_COLD_MATCH)
