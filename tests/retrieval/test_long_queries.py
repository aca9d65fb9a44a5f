"""Queries that are longer than the model reads: their questions are found, and the receipt says so."""

from __future__ import annotations

from typing import Any

import pytest

from retrieval.embedding.long_queries import pieces_of, sentences_of
from tests.support.http import Http

STORY = "We moved to a house by the sea last year, and the children like the garden behind it. "
REFUNDS, ORCHIDS = "Refunds are paid within 14 days.", "Orchids are watered once a week."


def starts(text: str) -> list[int]:
    return [at for at, character in enumerate(text) if at == 0 or text[at - 1] == " "]


def test_its_questions_are_read() -> None:
    """The last ones that fit, wherever they stand; marks inside a sentence end none."""
    text = f"{STORY * 20}Who was U.S. president in 1901? See http://a.b/?c=d. {STORY * 20}返金はいつですか？{STORY}"
    assert pieces_of(text, starts(text)) == ["Who was U.S. president in 1901? 返金はいつですか？"]
    many = " ".join(f"Is the sea deeper than {at} meters?" for at in range(100))
    (piece,) = pieces_of(many, starts(many))
    assert piece.endswith("99 meters?")
    assert len(piece) <= 650
    (piece,) = pieces_of("why " * 1000 + "?", starts("why " * 1000))
    assert len(piece) == 600


def test_without_a_question_both_ends_are_read() -> None:
    text = " ".join(f"word{at}" for at in range(300))
    first, last = pieces_of(text, starts(text))
    assert first.split() == [f"word{at}" for at in range(32)]
    assert last.split() == [f"word{at}" for at in range(268, 300)]
    assert pieces_of("a b c d", [0, 2, 4, 6]) == ["a b ", "c d"]


def test_sentences() -> None:
    assert sentences_of("One. Two!  Three\nFour? U.S. president") == [
        "One.",
        "Two!",
        "Three",
        "Four?",
        "U.S. president",
    ]


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    ["{story} When are refunds paid?", "{story} when refunds are paid", "when refunds are paid. {story}"],
)
def test_a_question_around_a_long_story_is_found(http: Http, text: str) -> None:
    """A question is found by meaning alone, although the text before it is longer than the model reads. Searches and
    contexts say that it was cut. Clients who ask for vectors still get that of the beginning."""
    name = http.new_collection()
    http.write(
        name, *({"id": f"story{at}", "text": STORY} for at in range(3)), {"id": "orchids", "text": ORCHIDS}
    )
    http.write(name, {"id": "refunds", "text": REFUNDS}, {"id": "house", "text": "A house by the sea."})
    query, short = text.format(story=STORY * 16), "when are refunds paid"
    search: dict[str, Any] = {"query": query, "mode": "dense"}
    found = http.search(name, **search)
    places = [hit["document_id"] for hit in found["hits"]]
    assert places.index("refunds") < places.index("orchids")
    if query.endswith("?"):
        assert places[0] == "refunds"
    for _ in range(2):  # cached or not
        assert http.search(name, **search)["receipt"]["query_cut"] is True
    assert "query_cut" not in http.search(name, query=short)["receipt"]
    for queries, cut in ([query], True), ([short, query], True), ([short], None):
        body = {"queries": queries, "token_budget": 200}
        assert http.ok("POST", f"/v1/collections/{name}/context", body)["receipt"].get("query_cut") is cut
    inputs = [STORY * 40, f"{STORY * 40}{short}"]
    made = http.ok("POST", "/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": inputs})["data"]
    assert made[0]["embedding"] == made[1]["embedding"]
