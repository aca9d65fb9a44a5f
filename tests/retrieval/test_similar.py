"""More like this: documents as examples, for and against."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.base.errors import InvalidInput
from indexes.base.model import IndexOptions, NewPassage, Settings, Upsert
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL, Principal
from retrieval.base.settings import Config
from retrieval.search.plan import make_plan
from retrieval.search.shard import LocalShard, run_at_once
from retrieval.search.similar import ALPHA, BETA, GAMMA, read_examples
from retrieval.search.stopwatch import Stopwatch
from retrieval.wire.search import SearchRequest
from tests.support.http import Http

DIMENSIONS = 384


def axis(*at: int) -> list[float]:
    return [1.0 if place in at else 0.0 for place in range(DIMENSIONS)]


@pytest.fixture
def plane(http: Http) -> str:
    """Two groups on axes of their own, and one document between them."""
    name = http.new_collection()
    vectors = {
        "a0": (0, 9),
        "a1": (0, 8),
        "a2": (0, 7),
        "b0": (1, 9),
        "b1": (1, 8),
        "b2": (1, 7),
        "ab": (0, 1),
    }
    http.write(
        name, *({"id": one, "text": f"text {one}", "vector": axis(*at)} for one, at in vectors.items())
    )
    return name


@pytest.mark.parametrize("exact", [False, True])
def test_examples_find_their_kind(http: Http, plane: str, exact: bool) -> None:
    """Documents like the examples come first, those unlike last, and no example is among them."""
    found = http.found(plane, like=["a0", "a1"], exact=exact)
    assert found[:2] == ["a2", "ab"]
    assert not {"a0", "a1"} & set(found)
    found = http.found(plane, like=["ab"], unlike=["b0"], exact=exact)
    assert found[:2] == ["a2", "a1"] or found[:2] == ["a1", "a2"]
    assert set(found) == {"a0", "a1", "a2", "b1", "b2"}


def test_the_vector_is_rocchios(http: Http, plane: str) -> None:
    """Query, examples for and against add up with the published weights; a score is the cosine to the sum."""
    hits = http.search(plane, vector=axis(2), like=["a0", "a1"], unlike=["b0"])["hits"]
    unit = {
        name: np.array(axis(*at)) / np.sqrt(2)
        for name, at in {"a0": (0, 9), "a1": (0, 8), "b0": (1, 9)}.items()
    }
    wanted = ALPHA * np.array(axis(2)) + BETA * (unit["a0"] + unit["a1"]) / 2 - GAMMA * unit["b0"]
    wanted /= np.linalg.norm(wanted)
    scores = {hit["document_id"]: hit["scores"]["dense"] for hit in hits}
    assert scores["a2"] == pytest.approx(wanted @ np.array(axis(0, 7)) / np.sqrt(2), abs=1e-3)
    assert all(hit.get("relevance") is None for hit in hits)


@pytest.mark.parametrize(
    "options", [{}, {"group_by_document": True}, {"query": "text", "mode": "hybrid"}], ids=str
)
def test_all_passages_of_an_example_are_left_out(http: Http, options: dict[str, Any]) -> None:
    """A long example does not use up the candidates: k others are found, in pages too."""
    name = http.new_collection()
    long = "A sentence that fills its passage with words about rivers and bridges. " * 2500
    others = [{"id": f"d{at}", "text": f"text {at} of rivers", "vector": axis(0, at + 1)} for at in range(30)]
    http.write(name, {"id": "long", "text": long}, *others)
    found = http.found(name, like=["long"], k=30, **options)
    assert sorted(found) == sorted(f"d{at}" for at in range(30))
    paged = [
        one for at in range(0, 30, 10) for one in http.found(name, like=["long"], k=10, offset=at, **options)
    ]
    assert paged == found


def test_beside_a_query_both_count(http: Http) -> None:
    """An example moves a hybrid search toward its kind; the cache keeps both apart, and ids may be numbers."""
    name = http.new_collection()
    http.write(
        name,
        {"id": 1, "text": "The jaguar hunts deer at the river."},
        {"id": 2, "text": "A leopard is a large spotted cat that climbs trees."},
        {"id": 3, "text": "The new Jaguar accelerates in five seconds."},
        {"id": 4, "text": "Electric cars have a range of 400 kilometers."},
    )

    def lead_of_the_cat(**options: Any) -> float:
        hits = http.search(name, query="jaguar", mode="hybrid", **options)["hits"]
        dense = {hit["document_id"]: hit["scores"]["dense"] for hit in hits}
        return float(dense["1"] - dense["3"])

    assert lead_of_the_cat(like=[4]) < lead_of_the_cat() < lead_of_the_cat(like=[2])
    assert lead_of_the_cat(unlike=[2]) < lead_of_the_cat() < lead_of_the_cat(unlike=[4])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"like": ["a0", "nobody"]}, "like[1]"),
        ({"query": "x", "unlike": ["nobody"]}, "unlike[0]"),
        ({"unlike": ["a0"]}, "query"),
        ({"like": []}, "like"),
        ({"query": "x", "like": ["a0"], "mode": "lexical"}, "like"),
        ({"query": "x", "unlike": ["a0"], "min_relevance": 0.5}, "min_relevance"),
        ({"like": ["a0"], "unlike": ["a0"], "mode": "hybrid"}, "query"),
    ],
    ids=str,
)
def test_a_wrong_example_is_refused(http: Http, plane: str, body: dict[str, Any], param: str) -> None:
    """The error names the field, and the document that is not there."""
    reply = http.call("POST", f"/v1/collections/{plane}/search", body)
    assert (reply.status, reply.body["error"]["param"]) == (422, param)
    assert "nobody" not in str(body) or "'nobody'" in reply.body["error"]["message"]


def test_examples_are_documents_that_the_caller_may_see(tmp_path: Path) -> None:
    """A document of another group is as unknown as one that is not there, and no word is corrected to one of its."""
    unit = np.eye(DIMENSIONS, dtype=np.float32)[0]
    settings = Settings(dimensions=DIMENSIONS, fingerprint="f", model="m")
    with closing(Collection.create(tmp_path / "c", settings, IndexOptions())) as collection:
        passage = NewPassage(0, 4, 1, unit)
        collection.write([Upsert("theirs", "text", "", {"acl": ["them"]}, (passage,))]).result()
        shard = LocalShard(collection, collection.snapshot, Stopwatch())
        request = SearchRequest(like=["theirs"])
        before = PRINCIPAL.set(Principal(groups=("us",)))
        try:
            with pytest.raises(InvalidInput, match="no document 'theirs'"):
                run_at_once(partial(read_examples, shard, request, DIMENSIONS))
            plan = make_plan(SearchRequest(query="x"), DIMENSIONS, Config())
            assert plan.query.visible is not None  # words of documents that it may see, no others
        finally:
            PRINCIPAL.reset(before)
        assert len(run_at_once(partial(read_examples, shard, request, DIMENSIONS)).passages) == 1
