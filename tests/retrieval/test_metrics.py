"""What Prometheus is told of a real collection with a cold tier."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.base.model import ColdPolicy, IndexOptions, Spared
from indexes.dense.cold_skips import NOTES, ColdSkipper
from indexes.directory.catalog import Catalog
from retrieval.cache import MemoryStore, ResultCache
from retrieval.observe.collectors import caches, collections
from retrieval.observe.metrics import Metrics
from tests.support.http import Http
from tests.support.vectors import World, fill, rebuild, settings


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """A hundred hot passages and three hundred cold ones."""
    policy = ColdPolicy("calibrated", budget=0.005, audit=0.05)
    made = Catalog(tmp_path / "data", IndexOptions(delta_passages_max=256, segments_max=0, cold=policy))
    docs = made.create("docs", settings(hot_capacity=100))
    fill(docs, World(), range(400))
    rebuild(docs)
    yield made
    made.close()


def ask(watch: ColdSkipper, loss: float, until: Callable[[], bool]) -> int:
    """Queries that would all lose so much without the cold tier; how many it took."""
    rng = np.random.default_rng(3)
    queries = 0
    while not until():
        sparing = watch.sparing()
        assert sparing is not None
        margin = float(rng.uniform(0.1, 0.3))
        outcome: Any = "skipped" if margin > sparing.threshold else "searched"
        watch.learn(Spared(sparing, outcome, margin, loss if sparing.observed else None))
        queries += 1
    return queries


def test_the_cold_tier(catalog: Catalog) -> None:
    """Outcomes add up to the queries; audits and stops count by themselves; an unknown loss is not called none."""
    metrics = Metrics()
    metrics.watch(partial(collections, catalog))
    skipper = catalog.get("docs").snapshot.skipper
    assert skipper is not None

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"nearline_cold_{name}", {"collection": "docs", **labels})

    assert value("loss_bound") is None
    queries = ask(skipper, 0.0, lambda: skipper.state().audits >= 20)
    assert queries > NOTES
    bound = value("loss_bound")
    assert bound is not None
    assert 0 < bound < 0.005
    queries += ask(skipper, 1.0, lambda: skipper.state().state == "learning")
    state = skipper.state()
    assert value("loss_bound") is None
    outcomes = {one: value("decisions_total", outcome=one) for one in ("searched", "skipped", "proven")}
    assert outcomes == {
        "searched": queries - state.skipped - state.proven,
        "skipped": state.skipped,
        "proven": state.proven,
    }
    assert value("decisions_total", outcome="audits") is None
    assert value("audits_total") == state.audits > 20
    assert value("stops_total") == 1
    metrics.render()


def test_an_empty_store_is_reported() -> None:
    """What a store counts is told while it holds nothing, too."""
    metrics, near = Metrics(), MemoryStore(1000, time.monotonic)
    metrics.watch(partial(caches, ResultCache(near, None, ttl_s=1, now=time.time), None, near, None))
    labels = {"store": "memory", "event": "hits"}
    assert metrics.registry.get_sample_value("nearline_cache_store_total", labels) == 0


def test_names_that_are_gone_are_not_counted(http: Http) -> None:
    """After a deletion, a renaming and the removal of an alias no sample carries the name."""
    deleted, renamed = http.new_collection(), http.new_collection()
    alias, new = f"alias-of-{deleted}", f"{renamed}-new"
    http.ok("PUT", f"/v1/aliases/{alias}", {"collection": deleted})
    for name in (deleted, renamed, alias):
        http.write(name, {"id": "a", "text": "counted"})
        http.search(name, query="counted")
        assert http.metric("nearline_searches_total", collection=name) == 1
    http.ok("DELETE", f"/v1/aliases/{alias}")
    http.ok("DELETE", f"/v1/collections/{deleted}")
    http.ok("POST", f"/v1/collections/{renamed}/rename", {"name": new})
    text = http.ok("GET", "/metrics")
    for name in (deleted, renamed, alias):
        assert f'collection="{name}"' not in text
    assert f'collection="{new}"' in text
