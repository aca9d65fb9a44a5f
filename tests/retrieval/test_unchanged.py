"""Documents that come again as they are: recognised before anything is done for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retrieval.base.settings import PassagesSection
from retrieval.documents import writing
from retrieval.documents.writing import NewDocument, digest_of
from tests.support.http import Http

FACTS = [
    {
        "id": f"fact {number}",
        "title": f"Fact {number}",
        "text": f"Lighthouse number {number} is {10 + number} metres high. It is white.",
        "metadata": {"height": 10 + number, "colours": ["white"]},
    }
    for number in range(60)
]
DOCUMENT = NewDocument(id="a", text="A text.", title="A title", metadata={"x": 1, "y": ["b", "c"]})


@pytest.fixture
def facts(http: Http) -> str:
    name = http.new_collection()
    http.write(name, *FACTS)
    return name


def embedded(http: Http) -> float:
    return http.metric("nearline_embedding_run_texts_sum", lane="bulk")


def test_what_is_unchanged_costs_nothing(http: Http, facts: str) -> None:
    """Sixty documents written again: nothing is embedded, no operation is made, no passage dies."""
    before, texts = http.ok("GET", f"/v1/collections/{facts}"), embedded(http)
    written = http.write(facts, *FACTS)
    assert (written["documents"], written["unchanged"]) == (0, 60)
    assert (written["passages"], written["tokens"]) == (0, 0)
    assert written["seq"] == before["seq"] == 60
    assert embedded(http) == texts
    assert http.ok("GET", f"/v1/collections/{facts}") == before
    assert before["dead_passages"] == 0
    assert http.metric("nearline_documents_unchanged_total", collection=facts) == 60
    assert http.metric("nearline_documents_written_total", collection=facts) == 60


def test_only_what_changed_is_written(http: Http, facts: str) -> None:
    """In one request with unchanged documents; the answer counts both, and the tokens of what was embedded."""
    texts = embedded(http)
    written = http.write(
        facts,
        *FACTS[:5],
        {**FACTS[5], "text": "It was torn down."},
        *FACTS[6:],
        {"id": "new", "text": "New."},
    )
    assert (written["documents"], written["unchanged"], written["seq"]) == (2, 59, 62)
    assert embedded(http) == texts + 2
    pages = [
        http.ok("GET", f"/v1/collections/{facts}/documents/{one}?vectors=true") for one in ("fact%205", "new")
    ]
    assert written["tokens"] == sum(passage["tokens"] for page in pages for passage in page["passages"]) > 0
    assert pages[0]["text"] == "It was torn down."


def test_what_was_deleted_is_written_again(http: Http, facts: str) -> None:
    """The digest goes with the document."""
    http.ok("DELETE", f"/v1/collections/{facts}/documents/fact%205")
    assert http.write(facts, FACTS[5])["documents"] == 1
    assert "fact 5" in http.found(facts, query="Lighthouse number 5", k=60)


def test_vectors_of_their_own(http: Http, facts: str) -> None:
    """The same vector is unchanged; another one, or none, is a change."""
    axis: list[Any] = [1.0, *[0.0] * 383]
    document = {"id": "own", "text": "A text.", "vector": axis}
    assert http.write(facts, document)["documents"] == 1
    assert http.write(facts, document)["unchanged"] == 1
    assert http.write(facts, {**document, "vector": axis[::-1]})["documents"] == 1
    assert http.write(facts, {"id": "own", "text": "A text."})["documents"] == 1


def test_a_bad_document_is_refused_beside_unchanged_ones(http: Http, facts: str) -> None:
    """What is refused does not depend on what is there."""
    reply = http.call(
        "POST", f"/v1/collections/{facts}/documents", {"documents": [FACTS[0], {"id": "bad", "text": " "}]}
    )
    assert (reply.status, reply.body["error"]["param"]) == (422, "documents[1].text")


@pytest.mark.parametrize(
    "change",
    [
        {"text": "A text. "},
        {"title": ""},
        {"text": "A textA title", "title": "."},
        {"metadata": {"x": 2, "y": ["b", "c"]}},
        {"metadata": {"x": True, "y": ["b", "c"]}},
        {"metadata": {"x": 1.0, "y": ["b", "c"]}},
        {"metadata": {"x": 1, "y": ["c", "b"]}},
        {"metadata": {"x": 1, "y": ["bc"]}},
        {"metadata": {"x": 1}},
        {"vector": np.array([1.0, 0.0], np.float32)},
    ],
)
def test_every_part_counts(change: dict[str, Any]) -> None:
    """Whatever of a document differs, its digest does."""
    assert digest_of(replace(DOCUMENT, **change), PassagesSection()) != digest_of(DOCUMENT, PassagesSection())


def test_the_order_of_metadata_does_not_count() -> None:
    """Nor does the id, which the log keeps beside the digest."""
    turned = replace(DOCUMENT, id="b", metadata={"y": ["b", "c"], "x": 1})
    assert digest_of(turned, PassagesSection()) == digest_of(DOCUMENT, PassagesSection())


def test_what_cuts_passages_counts_where_it_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sizes of passages make every document a changed one, but for those that bring their vector."""
    own = replace(DOCUMENT, vector=np.array([1.0, 0.0], np.float32))

    def digests(passages: PassagesSection) -> tuple[bytes, bytes]:
        return digest_of(DOCUMENT, passages), digest_of(own, passages)

    cut, brought = digests(PassagesSection())
    for passages in (PassagesSection(tokens_max=100), PassagesSection(overlap_tokens=0)):
        assert digests(passages)[0] != cut
        assert digests(passages)[1] == brought
    monkeypatch.setattr(writing, "CHUNKING_VERSION", 0)
    assert digests(PassagesSection())[0] != cut
    assert digests(PassagesSection())[1] == brought
