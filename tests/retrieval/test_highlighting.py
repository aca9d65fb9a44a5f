"""Highlights: a hit shows where the words of the query stand in its text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.search.highlighting import snippet
from tests.support.http import Http

LONG = "Nothing here. " * 40 + "Refunds are paid within days of a return. " + "Nothing here. " * 40


@pytest.fixture
def shop(http: Http) -> str:
    name = http.new_collection()
    http.write(
        name,
        {"id": "refund", "text": "You get a refund: we are refunding within 14 days."},
        {
            "id": "tausch",
            "text": "Die Häuser am See sind groß und das alte Haus ist klein.",
            "language": "de",
        },
    )
    return name


def shown(hit: dict[str, Any]) -> list[str]:
    return [hit["text"][start:end] for start, end in hit["highlights"]]


@pytest.mark.parametrize("mode", ["hybrid", "lexical", "dense"])
def test_words_of_the_query_are_shown(http: Http, shop: str, mode: str) -> None:
    """In every mode and in the language of the hit, stems count as in the search; a short text is its own snippet."""
    hits = http.search(shop, query="how are refunds paid to Haus owners", mode=mode, highlight=True)["hits"]
    found = {hit["document_id"]: hit for hit in hits}
    assert shown(found["refund"]) == ["refund", "refunding"]
    assert shown(found["tausch"]) == ["Häuser", "Haus"]
    assert found["refund"]["snippet"] == [0, len(found["refund"]["text"])]


def test_absent_unless_asked_for(http: Http, shop: str) -> None:
    """A plain search has neither field; an answer with them is not served to it from the cache."""
    http.search(shop, query="refund", highlight=True)
    for options in ({}, {"highlight": False}):
        hit = http.search(shop, query="refund", **options)["hits"][0]
        assert "highlights" not in hit
        assert "snippet" not in hit


def test_a_snippet_holds_the_words(http: Http) -> None:
    """Of a long passage, the stretch with the words, between words, no longer than asked for."""
    name = http.new_collection()
    http.write(name, {"id": "long", "text": LONG})
    hits = http.search(name, query="refund of a return", k=20, highlight={"snippet_chars": 60})["hits"]
    hit = max(hits, key=lambda one: len(one["highlights"]))
    start, end = hit["snippet"]
    part = hit["text"][start:end]
    assert len(part) <= 60
    assert {"Refunds", "return"} <= set(part.replace(".", "").split())
    assert hit["text"][start - 1].isspace()
    assert hit["text"][end].isspace()


def test_a_vector_alone_has_no_words(http: Http, shop: str) -> None:
    """The error names the field."""
    body = {"vector": [1.0] + [0.0] * 383, "highlight": True}
    reply = http.call("POST", f"/v1/collections/{shop}/search", body)
    assert (reply.status, reply.body["error"]["param"]) == (422, "highlight")


@given(st.text("ab \n", max_size=80), st.integers(1, 30), st.data())
def test_a_snippet_stays_in_bounds(text: str, chars: int, data: st.DataObject) -> None:
    """Within the text and the length asked for, whatever is marked; it holds a marked word that fits."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    marks = list(zip(cuts[::2], cuts[1::2]))
    start, end = snippet(text, marks, chars)
    assert 0 <= start <= end <= len(text)
    assert end - start <= chars
