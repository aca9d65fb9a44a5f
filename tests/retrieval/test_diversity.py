"""Hits that differ: the order by maximal marginal relevance, alone and over HTTP."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.search.diversity import marginal_relevance
from tests.support.http import Http


def unit(seed: int, count: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@given(st.integers(0, 1000), st.integers(0, 30), st.sampled_from([0.0, 0.3, 0.7, 0.95]))
def test_each_next_one_is_the_best_by_the_formula(seed: int, count: int, mmr: float) -> None:
    vectors, scores = unit(seed, count), np.sort(np.random.default_rng(seed).random(count))[::-1].copy()
    order = marginal_relevance(vectors, scores, mmr).tolist()
    assert sorted(order) == list(range(count))
    if not count:
        return
    relevance = (scores - scores.min()) / (np.ptp(scores) or 1) if count > 1 else np.ones(1)
    for place in range(1, count):
        before = order[:place]
        worth = mmr * relevance - (1 - mmr) * (vectors @ vectors[before].T).max(axis=1)
        assert worth[order[place]] >= max(worth[order[place:]]) - 1e-6


def test_relevance_alone_changes_nothing() -> None:
    scores = np.array([0.9, 0.5, 0.5, 0.1])
    assert marginal_relevance(unit(1, 4), scores, 1.0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_a_copy_waits_for_what_is_new(http: Http, mode: str) -> None:
    """Near-duplicates lead without `mmr`; with it, one of them and then another text. Before and after a rebuild."""
    name = http.new_collection()
    cat = "Cats sleep for most of the day"
    http.write(
        name,
        {"id": "one", "text": f"{cat}."},
        {"id": "two", "text": f"{cat}!"},
        {"id": "three", "text": f"{cat}, they say."},
        {"id": "dogs", "text": "Dogs guard houses, and cats hunt mice in barns at night."},
    )
    for rebuilt in (False, True):
        if rebuilt:
            http.reindex(name)
        plain = http.found(name, query="cats sleep", mode=mode, k=4)
        diverse = http.found(name, query="cats sleep", mode=mode, k=4, mmr=0.3)
        assert plain[3] == "dogs"
        assert diverse[1] == "dogs"
        assert diverse[0] == plain[0]
        assert http.found(name, query="cats sleep", mode=mode, k=4, mmr=1.0) == plain
    wanted = {"query": "cats sleep", "token_budget": 200, "mode": mode, "mmr": 0.3}
    cited = http.ok("POST", f"/v1/collections/{name}/context", wanted)["citations"]
    assert cited[1]["document_id"] == "dogs"


def test_mmr_is_one_order_alone(http: Http) -> None:
    """With `sort` there would be two; and pages beyond the candidates that may move would repeat hits."""
    name = http.new_collection()
    http.write(name, {"id": "d", "text": "refunds", "metadata": {"year": 2026}})
    path = f"/v1/collections/{name}/search"
    for more, param in (({"sort": [{"key": "year"}]}, "mmr"), ({"offset": 120, "k": 10}, "offset")):
        reply = http.call("POST", path, {"query": "refunds", "mmr": 0.5, **more})
        assert (reply.status, reply.body["error"]["param"]) == (422, param)
    assert http.found(name, query="refunds", mmr=0.5, offset=0, k=500) == ["d"]
