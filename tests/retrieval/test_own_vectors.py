"""Collections without a model: documents and queries bring their vectors, and words are searched as ever."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.serving.process import serving
from nearline import Client
from retrieval.server.routes import ROUTES
from tests.retrieval.test_budgets import BODIES, concrete
from tests.support.http import Http

DIMENSIONS = 5
RNG = np.random.default_rng(4)
VECTORS = RNG.normal(size=(40, DIMENSIONS))
WORDS = ["river", "mountain", "harbor", "desert"]


def documents() -> list[dict[str, Any]]:
    return [
        {
            "id": f"d{at}",
            "text": f"A {WORDS[at % 4]} on map {at}.",
            "vector": (3 * one).tolist(),
            "metadata": {"n": at},
        }
        for at, one in enumerate(VECTORS)
    ]


@pytest.fixture
def maps(http: Http) -> str:
    name = http.new_collection(dimensions=DIMENSIONS)
    http.write(name, *documents())
    return name


def nearest(vector: np.ndarray[Any, Any], k: int) -> list[str]:
    cosines = VECTORS @ vector / np.linalg.norm(VECTORS, axis=1)
    return [f"d{at}" for at in np.argsort(-cosines)[:k]]


def test_it_says_what_it_is(http: Http, maps: str) -> None:
    """Without a model, with the wanted dimensions, and a fingerprint that no other collection has."""
    found = http.ok("GET", f"/v1/collections/{maps}")
    assert (found["model"], found["dimensions"], found["documents"]) == (None, DIMENSIONS, 40)
    other = http.ok("GET", f"/v1/collections/{http.new_collection(dimensions=DIMENSIONS)}")
    assert other["fingerprint"] != found["fingerprint"]
    with Client(http.url) as client:
        assert client.create_collection(f"{maps}-c", dimensions=1536)["dimensions"] == 1536


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 4097}, "dimensions"),
        ({"dimensions": "many"}, "dimensions"),
        ({"dimensions": 3, "model": "all-MiniLM-L6-v2"}, "dimensions"),
    ],
)
def test_wrong_dimensions(http: Http, settings: dict[str, object], param: str) -> None:
    reply = http.call("POST", "/v1/collections", {"name": "never", **settings})
    assert (reply.status, reply.body["error"]["param"]) == (422, param)


def test_by_vector_by_words_and_both(http: Http, maps: str) -> None:
    """A vector finds its nearest, words theirs; a text alone is searched by words; both together are fused."""
    wanted = RNG.normal(size=DIMENSIONS)
    assert http.found(maps, vector=wanted.tolist(), k=10) == nearest(wanted, 10)
    assert set(http.found(maps, query="harbor", k=40)) == {f"d{at}" for at in range(2, 40, 4)}
    both = http.search(maps, query="harbor", vector=wanted.tolist(), k=5, explain=True)
    assert any(hit["scores"]["dense"] for hit in both["hits"])
    assert both["receipt"]["model"] is None
    by_words = http.search(maps, query="harbor")
    assert all(hit["scores"]["dense"] is None for hit in by_words["hits"])
    assert http.found(maps, vector=wanted.tolist(), k=3, exact=True) == nearest(wanted, 3)
    assert "d7" not in http.found(maps, like=["d7"], k=5)
    reply = http.call("POST", f"/v1/collections/{maps}/search", {"like": ["d7"], "query": "harbor"})
    assert (reply.status, reply.body["error"]["param"]) == (422, "vector")
    assert http.found(maps, like=["d7"], query="harbor", vector=wanted.tolist(), k=5)
    filtered = http.found(maps, vector=wanted.tolist(), k=40, filter={"type": "lt", "key": "n", "value": 10})
    assert filtered == [one for one in nearest(wanted, 40) if int(one[1:]) < 10]


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_a_text_has_no_vector_here(http: Http, maps: str, mode: str) -> None:
    reply = http.call("POST", f"/v1/collections/{maps}/search", {"query": "harbor", "mode": mode})
    assert (reply.status, reply.body["error"]["param"]) == (422, "vector")
    assert "no model" in reply.body["error"]["message"]


def test_every_document_brings_its_vector(http: Http, maps: str) -> None:
    """One without, or of another length, names the field; nothing of the request is written."""
    for wrong in ({}, {"vector": [1.0] * 4}, {"vector": [0.0] * DIMENSIONS}):
        sent = [
            {"id": "new", "text": "A river.", "vector": [1.0] * DIMENSIONS},
            {"id": "b", "text": "x", **wrong},
        ]
        reply = http.call("POST", f"/v1/collections/{maps}/documents", {"documents": sent})
        assert (reply.status, reply.body["error"]["param"]) == (422, "documents[1].vector")
    assert http.ok("GET", f"/v1/collections/{maps}")["documents"] == 40
    again = http.write(maps, *documents())
    assert (again["unchanged"], again["documents"]) == (40, 0)


def test_a_rebuild_measures_it(http: Http) -> None:
    name = http.new_collection(dimensions=DIMENSIONS, hot_capacity=100)
    vectors = np.random.default_rng(7).normal(size=(1500, DIMENSIONS))
    for start in range(0, 1500, 500):
        http.write(
            name,
            *(
                {"id": f"v{at}", "text": f"number {at}", "vector": vectors[at].tolist()}
                for at in range(start, start + 500)
            ),
        )
    assert http.reindex(name)["status"] == "succeeded"
    found = http.ok("GET", f"/v1/collections/{name}")
    assert found["passages"]["cold"] == 1400
    assert found["recall"]["all"] >= 0.95
    assert http.found(name, vector=vectors[77].tolist(), k=1) == ["v77"]


def test_several_of_them(http: Http, maps: str) -> None:
    """Their vectors may come from different models, so only words are searched together."""
    other = http.new_collection(dimensions=DIMENSIONS)
    http.write(other, *documents()[:8])
    both = {"collections": [maps, other], "query": "harbor", "k": 5}
    assert len(http.ok("POST", "/v1/search", both)["hits"]) == 5
    shorter = http.new_collection(dimensions=DIMENSIONS - 1)
    http.write(shorter, {"id": "s", "text": "A harbor.", "vector": [1.0] * (DIMENSIONS - 1)})
    for more, param in (
        ({"vector": [1.0] * DIMENSIONS}, "collections"),
        ({"mmr": 0.5}, "mmr"),
        ({"collapse": {"similarity": 0.9}}, "collapse.similarity"),
    ):
        for names in ([maps, other], [maps, shorter]):
            reply = http.call("POST", "/v1/search", {**both, "collections": names, **more})
            assert (reply.status, reply.body["error"]["param"]) == (422, param), reply.body


def test_nothing_fails_for_want_of_a_model(http: Http, maps: str) -> None:
    """Whatever is asked of it is answered, or refused as the caller's mistake."""
    asked = {"query": "harbor", "token_budget": 200}
    assert "harbor" in http.ok("POST", f"/v1/collections/{maps}/context", asked)["context"]
    explained = http.ok("POST", f"/v1/collections/{maps}/explain", {"query": "desert", "document_id": "d2"})
    assert explained["cause"]
    far = {"query": "desert", "vector": (-VECTORS[2]).tolist(), "document_id": "d2"}
    assert http.ok("POST", f"/v1/collections/{maps}/explain", far)["cause"]
    watched = http.call("POST", f"/v1/collections/{maps}/watch", {"query": "harbor", "mode": "dense"})
    assert (watched.status, watched.body["error"]["param"]) == (422, "vector")
    for route in ROUTES:
        path = route.path.replace("{collection}", maps).replace("{id:.+}", "d1")
        answered_at_once = not route.path.endswith(("/watch", "/rename"))
        if route.request is None or maps not in path or "{" in path or not answered_at_once:
            continue
        body = BODIES.get(concrete(route))
        reply = http.call(route.method, path, body(1) if body is not None else {"query": "harbor"})
        assert reply.status < 500, (path, reply.body)


def test_it_outlives_a_restart(tmp_path: Path, model_folder: Path) -> None:
    """Searches find the same after a restart, with and without search processes."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    wanted = RNG.normal(size=DIMENSIONS)
    for processes in ("0", "2"):
        with serving(tmp_path / "data", {**environ, "NEARLINE_SERVER_SEARCH_PROCESSES": processes}) as server:
            http = Http(server.url)
            if processes == "0":
                http.ok("POST", "/v1/collections", {"name": "maps", "dimensions": DIMENSIONS})
                http.write("maps", *documents())
            assert http.found("maps", vector=wanted.tolist(), k=10) == nearest(wanted, 10)
            assert len(http.found("maps", query="desert", k=40)) == 10
            until = time.monotonic() + 20
            while processes == "2" and not http.metric("nearline_search_process_answers_total"):
                assert http.found("maps", query="desert", k=4, cache=False)
                assert time.monotonic() < until
