"""The cold lists: which of them a search visits, what it scores again, and what is foretold of that."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexes.base.masks import pack_flags
from indexes.base.model import Floats, Rows
from indexes.dense import cold
from indexes.dense.cold import RANKS, ColdIndex, ColdSettings, horizon_of
from indexes.dense.forecast import Forecast
from indexes.dense.mixtures import mixtures_of
from indexes.dense.training import train
from indexes.dense.vectors import GATHERED_ROWS, StoredVectors

SIZE, DIMENSIONS = 6000, 16
K = 10


def scattered(count: int, seed: int) -> Floats:
    """Unit vectors without clusters, so that neighbours lie in many lists."""
    vectors = np.random.default_rng(seed).standard_normal((count, DIMENSIONS)).astype(np.float32)
    unit: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


@pytest.fixture(scope="module")
def shard() -> ColdIndex:
    """All rows cold, in the order of their lists."""
    vectors = scattered(SIZE, seed=1)
    index, _ = train(vectors, SIZE, 0.95)
    lists = index.quantizer.search(vectors, 1)[1][:, 0]
    ordered = vectors[np.argsort(lists, kind="stable")]
    index.add(ordered)
    stored = StoredVectors.allocate(SIZE, DIMENSIONS)
    stored.halves[:] = ordered
    return ColdIndex(index, stored, ColdSettings())


@pytest.fixture
def queries() -> Floats:
    return scattered(50, seed=2)


def exact(shard: ColdIndex, query: Floats) -> tuple[Rows, Floats]:
    return shard._vectors.best(np.arange(SIZE), query, K)


def nearest(shard: ColdIndex, query: Floats, settings: ColdSettings) -> Rows:
    return shard.nearest(query, K, None, SIZE, settings)[0]


def recall(shard: ColdIndex, queries: Floats, settings: ColdSettings) -> float:
    found = [np.isin(exact(shard, query)[0], nearest(shard, query, settings)).mean() for query in queries]
    return float(np.mean(found))


def test_further_reach_finds_more(shard: ColdIndex, queries: Floats) -> None:
    """From one list always, the reach alone takes recall from poor to all there is to find."""
    recalls = [recall(shard, queries, ColdSettings(1, 400, reach=reach)) for reach in (-1.0, 0.5, 2.0)]
    assert recalls[0] < recalls[1] < recalls[2]
    assert recalls[2] > 0.98


def test_a_search_for_more_looks_further(shard: ColdIndex, queries: Floats) -> None:
    """Where a hundred ranks matter, the settings chosen for ten find about as much of them; ten cost what they did."""
    settings, depth, queries = ColdSettings(shard.lists // 4, 100, reach=0.05), 100, queries[:15]
    best = [shard._vectors.best(np.arange(SIZE), query, depth)[0] for query in queries]

    def found(ranks: int) -> float:
        rows = [shard.nearest(query, depth, None, SIZE, settings, ranks)[0] for query in queries]
        return float(np.mean([np.isin(*both).mean() for both in zip(best, rows, strict=True)]))

    assert found(RANKS) == found(1)
    assert found(depth) > found(RANKS) + 0.01
    assert found(depth) > recall(shard, queries, settings) - 0.02


def test_the_foretold_scan_is_the_one_that_happens(
    shard: ColdIndex, queries: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `Forecast` says of the codes scanned is what searches scan, or up to a fifth less.

    It knows each answer before: a search decides by what its first lists held.
    """
    forecast = Forecast(shard, queries)
    wanted = ColdSettings(2, 100, reach=0.4)
    sizes, scanned = shard.list_sizes(), []
    scan = shard._scan_lists

    def counting(query: Floats, wanted: int, lists: Rows, *others: object) -> Rows:
        scanned.append(int(sizes[lists].sum()))
        return scan(query, wanted, lists, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(shard, "_scan_lists", counting)
    for query in queries:
        nearest(shard, query, wanted)
    assert 0.8 <= forecast.codes(wanted) * len(queries) / sum(scanned) <= 1
    assert len(scanned) > len(queries)  # some searches scanned a second time


def test_a_few_deletions_do_not_widen_searches(
    shard: ColdIndex, queries: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end where they did. Where a filter keeps half, they go on to lists further away."""
    horizons: list[float] = []

    def noted(*arguments: object) -> float:
        horizons.append(horizon_of(*arguments))  # type: ignore[arg-type]
        return horizons[-1]

    monkeypatch.setattr(cold, "horizon_of", noted)

    def searched(left_out: int) -> Floats:
        flags = np.ones(SIZE, bool)
        flags[np.random.default_rng(5).choice(SIZE, left_out, replace=False)] = False
        allowed = pack_flags(flags) if left_out else None
        horizons.clear()
        for query in queries:
            shard.nearest(query, K, allowed, SIZE - left_out, ColdSettings(shard.lists, 300, reach=0.05))
        return np.array(horizons, np.float32)

    whole = searched(0)
    assert np.mean(searched(5) == whole) > 0.9  # the others lost one of their best rows
    assert np.all(searched(SIZE // 2) < whole - 0.04)


@pytest.mark.parametrize("reach", [0.2, 0.5, 2.0])
def test_predicted_recall_is_nearly_what_searches_find(
    shard: ColdIndex, queries: Floats, reach: float
) -> None:
    """A little less where few lists are scanned, because there fewer passages compete for being scored again."""
    wanted = ColdSettings(1, 300, reach=reach)
    found = recall(shard, queries, wanted)
    assert found - 0.1 <= Forecast(shard, queries).recall(wanted) <= found + 0.02


def test_more_lists_cost_more(shard: ColdIndex, queries: Floats) -> None:
    """The cost foreseen rises with each of the settings."""
    forecast = Forecast(shard, queries)
    least = forecast.cost_ns(ColdSettings(1, 50, reach=-1.0))
    for more in (
        ColdSettings(8, 50, reach=-1.0),
        ColdSettings(1, 50, reach=0.5),
        ColdSettings(1, 70, reach=-1.0),
    ):
        assert forecast.cost_ns(more) > least


def test_too_few_found_means_all_lists(shard: ColdIndex, queries: Floats) -> None:
    """Where the first lists hold fewer allowed passages than wanted, the search goes on to every list."""
    assert horizon_of(0.9, np.ones(K - 1, np.float32), K, 0.1) == -math.inf
    flags = np.ones(SIZE, bool)
    near = np.argsort(-(shard.centroids() @ queries[0]))[: shard.lists // 3]
    starts = np.concatenate([[0], np.cumsum(shard.list_sizes())])
    for number in near:
        flags[starts[number] : starts[number + 1]] = False
    rows, _ = shard.nearest(queries[0], K, pack_flags(flags), int(flags.sum()), ColdSettings(1, 50))
    assert len(rows) == K
    assert flags[rows].all()


def test_the_horizon_is_that_of_the_last_passage_that_matters() -> None:
    """A later one lies further away, and with it the horizon."""
    scores = np.linspace(0.9, 0.1, 200, dtype=np.float32)
    assert horizon_of(0.8, scores, 200, 0.2) < horizon_of(0.8, scores, RANKS, 0.2)
    assert horizon_of(0.8, scores, 3, 0.2) == pytest.approx((0.8 + float(scores[2])) / 2 - 0.2)


@settings(max_examples=30)
@given(st.integers(0, 3 * GATHERED_ROWS), st.integers(1, 40), st.integers(0, 1000))
def test_the_best_of_any_rows(count: int, depth: int, seed: int) -> None:
    """Scored side by side in as many turns as it takes: what numpy finds, best first."""
    rng = np.random.default_rng(seed)
    stored = StoredVectors.allocate(2000, 8)
    stored.halves[:] = rng.standard_normal((2000, 8))
    query = rng.standard_normal(8).astype(np.float32)
    rows = rng.permutation(2000)[:count]
    found, scores = stored.best(rows, query, depth)
    expected = np.sort(stored.halves[rows].astype(np.float32) @ query)[::-1][:depth]
    assert np.allclose(scores, expected, atol=1e-3)
    assert np.allclose(stored.halves[found].astype(np.float32) @ query, scores, atol=1e-3)
    assert len(np.unique(found)) == len(found) == min(count, depth)


def test_threads_gather_apart(shard: ColdIndex, queries: Floats) -> None:
    """Searches of several threads at once find what each finds alone."""
    wanted = ColdSettings(2, 100, reach=0.4)
    alone = [nearest(shard, query, wanted).tolist() for query in queries]
    wrong: list[int] = []

    def search() -> None:
        for _ in range(5):
            for at, query in enumerate(queries):
                if nearest(shard, query, wanted).tolist() != alone[at]:
                    wrong.append(at)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_query_of_another_shape_is_refused(shard: ColdIndex) -> None:
    """Calls go below faiss's wrapper, so the shape is checked here."""
    with pytest.raises(ValueError, match="shape"):
        shard._vectors.best(np.arange(20), np.ones(DIMENSIONS - 1, np.float32), K)


def test_probes_are_unit_vectors_whatever_they_are_made_of() -> None:
    """Passages that are all alike, one alone, and ordinary ones."""
    same = np.tile(scattered(1, seed=3), (5, 1))
    for vectors in (same, same[:1], scattered(50, seed=3)):
        assert np.allclose(np.linalg.norm(mixtures_of(vectors), axis=1), 1, atol=1e-5)
