"""Filters keep their recall: whatever share they let through, and wherever that lies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from indexes.base.model import Floats, IndexOptions, Metadata, NewPassage, Settings, Upsert
from indexes.collection.collection import Collection
from indexes.dense.hot import HotGraph
from indexes.filters.grammar import Comparison, Filter
from indexes.parts.memory import serving_bytes
from tests.support.vectors import World, delete, fill, make_collection, rebuild

WORLD = World(seed=8, dimensions=64)
SIZE = 12_000
K = 10
AXIS = WORLD.vector(99)
SCANNED = {"scanned": 5000, "by index": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rebuilt collection with a tenth of its passages hot. `bucket` is random, `side` depends on the vector."""
    folder = tmp_path_factory.mktemp("filtered") / "c"
    settings = Settings(dimensions=64, fingerprint="f", model="m", hot_capacity=SIZE // 10)
    collection = Collection.create(folder, settings, IndexOptions(segments_max=0))
    for start in range(0, SIZE, 500):
        batch = []
        for number in range(start, start + 500):
            passage = NewPassage(0, 4, 1, WORLD.vector(number))
            metadata: Metadata = {"bucket": number * 7919 % 1000, "side": side(number)}
            batch.append(Upsert(f"d{number}", "text", "", metadata, (passage,)))
        collection.write(batch).result()
    rebuild(collection)
    collection.close()
    return folder


@pytest.fixture(params=list(SCANNED))
def collection(folder: Path, request: pytest.FixtureRequest) -> Iterator[Collection]:
    """With exact scans of few matches, as served, and without, so that the indexes must find them."""
    opened = Collection(folder, IndexOptions(segments_max=0, exact_scan_passages_max=SCANNED[request.param]))
    yield opened
    opened.close()


def recall(collection: Collection, condition: Filter) -> tuple[float, float]:
    """Recall@10 against exact search over the log, and the share of searches with as many hits as there can be."""
    shares, full = [], []
    queries = WORLD.queries(60)
    for query, (truth, _) in zip(queries, collection.exact(queries, K, condition), strict=True):
        found = collection.snapshot.dense(query, K, condition).ranking.ids
        shares.append(np.isin(truth, found).mean())
        full.append(len(found) == len(truth))
    return float(np.mean(shares)), float(np.mean(full))


@pytest.mark.parametrize("percent", [50, 25, 10, 1, 0.1])
def test_random_filters(collection: Collection, percent: float) -> None:
    """Half of the passages or one in a thousand: recall@10 is at least .97, and k hits come when k match."""
    found, full = recall(collection, Comparison("lt", "bucket", int(percent * 10)))
    assert full == 1
    assert found >= 0.97


@pytest.mark.parametrize("percent", [50, 25, 10, 1, 0.1])
@pytest.mark.parametrize("end", ["near", "far"])
def test_filters_that_go_with_the_vectors(collection: Collection, percent: float, end: str) -> None:
    """The same where a filter keeps one side of the space, so that for most queries its matches lie far away."""
    sides = np.sort([side(number) for number in range(SIZE)])
    if end == "near":
        condition = Comparison("gte", "side", float(sides[-int(SIZE * percent / 100)]))
    else:
        condition = Comparison("lt", "side", float(sides[int(SIZE * percent / 100)]))
    found, full = recall(collection, condition)
    assert full == 1
    assert found >= 0.97


@pytest.mark.parametrize("percent", [80, 60, 50, 40, 30, 20])
def test_filters_that_leave_only_what_is_far(scattered: tuple[Collection, Floats], percent: int) -> None:
    """Vectors of many clusters that have little in common, and questions of those that are filtered out: what is left
    lies about as far in all lists."""
    collection, queries = scattered
    condition = Comparison("lt", "place", SIZE * percent // 100)
    shares = [
        np.isin(truth, collection.snapshot.dense(query, K, condition).ranking.ids).mean()
        for query, (truth, _) in zip(queries, collection.exact(queries, K, condition), strict=True)
    ]
    assert np.mean(shares) >= 0.97


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collection, Floats]]:
    """A rebuilt collection whose `place` is the order along an axis, and the questions that lie furthest along it."""
    rng = np.random.default_rng(3)

    def unit(values: NDArray[np.floating[Any]]) -> Floats:
        return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)

    centers = unit(rng.normal(size=(300, 128)))
    vectors = unit(centers[rng.integers(300, size=SIZE + 2000)] + unit(rng.normal(size=(SIZE + 2000, 128))))
    along = vectors @ unit(rng.normal(size=(1, 128)))[0]
    places = np.argsort(np.argsort(along[:SIZE])).tolist()
    settings = Settings(dimensions=128, fingerprint="f", model="m", hot_capacity=SIZE // 10)
    options = IndexOptions(segments_max=0, exact_scan_passages_max=0)
    with closing(Collection.create(tmp_path_factory.mktemp("scattered") / "c", settings, options)) as made:
        for first in range(0, SIZE, 500):
            some = range(first, first + 500)
            made.write(
                [
                    Upsert(f"d{at}", "text", "", {"place": places[at]}, (NewPassage(0, 4, 1, vectors[at]),))
                    for at in some
                ]
            ).result()
        rebuild(made)
        yield made, vectors[SIZE:][np.argsort(-along[SIZE:])[:100]]


@cache
def side(number: int) -> float:
    """Where a document lies along one direction of the space."""
    return round(float(WORLD.vector(number) @ AXIS), 6)


def test_the_settings_were_measured(collection: Collection) -> None:
    """The manifest says how the lists were chosen and what was measured with and without a filter."""
    generation = collection._assembly.generation
    assert generation is not None
    manifest = generation.manifest
    assert manifest.training.lists in manifest.training.scanned_share
    assert set(manifest.training.kept) == {"x4fs", "x4fsr"}
    assert manifest.search.probes > 0
    assert all(manifest.recall[name] >= 0.98 for name in ("hot", "cold", "cold_filtered"))


def test_memory_is_as_foretold(collection: Collection) -> None:
    """The formula gives the size of the indexes in memory within 15 percent."""
    generation = collection._assembly.generation
    assert generation is not None
    manifest = generation.manifest
    foretold = serving_bytes(manifest.hot, manifest.cold, manifest.training.lists, 0, manifest.dimensions)
    assert sum(collection.info().tier_bytes.values()) == pytest.approx(foretold, rel=0.15)
    assert manifest.peak_bytes["train"] > 0


def test_small_filters_are_exact_in_a_graph_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is cold, what is at most `exact_scan_passages_max` is scanned, though it be most of the graph."""
    with closing(make_collection(tmp_path / "c", hot_capacity=600)) as made:
        fill(made, World(seed=8), range(600))
        rebuild(made)

        def fail(*_: object) -> None:
            raise AssertionError("the graph was walked")

        monkeypatch.setattr(HotGraph, "search", fail)
        query = World(seed=8).queries(1)[0]
        condition = Comparison("lt", "number", 500)
        [(truth, _)] = made.exact(query[None], K, condition)
        assert made.snapshot.dense(query, K, condition).ranking.ids.tolist() == truth.tolist()


def test_tombstones_do_not_starve_a_search(folder: Path, tmp_path: Path) -> None:
    """With nine passages of ten deleted, every search still returns its k live hits, nearly all of the right ones."""
    shutil.copytree(folder, tmp_path / "c")
    collection = Collection(tmp_path / "c", IndexOptions(segments_max=0, exact_scan_passages_max=0))
    for start in range(0, SIZE, 1000):
        for rest in range(1, 10):
            delete(collection, range(start + rest * 100, start + rest * 100 + 100))
    shares = []
    queries = WORLD.queries(60)
    for query, (truth, _) in zip(queries, collection.exact(queries, K), strict=True):
        found = collection.snapshot.dense(query, K).ranking.ids
        assert len(found) == K
        shares.append(np.isin(truth, found).mean())
    assert np.mean(shares) >= 0.97
    collection.close()
