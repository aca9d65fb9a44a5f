"""Passages of four megabytes, which documents with vectors of their own may be, take little CPU in any request."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from indexes.base.model import NewPassage, StoredPassage, Upsert
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from retrieval.search.operators import parse_operators
from tests.retrieval.test_budgets import CPU_S_MAX
from tests.support.encoders import DIMENSIONS
from tests.support.worst_case import FREQUENT, LETTERS, NAME, Request, Service, serving_worst_case

CHARS = 4_000_000
C = f"/v1/collections/{NAME}"
FIRST = "first data time"
DOCUMENTS = ("frequent", "different", "unspaced", "accented")


def texts() -> dict[str, str]:
    """Frequent words, different words, one token of many words, and letters with accents, by the names of the
    documents. The first words of each are the same."""
    chance = random.Random(1)
    words = ("".join(chance.choices(LETTERS, k=6)) for _ in range(CHARS // 7))
    made = (
        " ".join(chance.choices(FREQUENT, k=CHARS // 7)),
        " ".join(words),
        "a/" * (CHARS // 2),
        "\u00e9\u0433 " * (CHARS // 5),
    )
    return {name: f"{FIRST} {text}" for name, text in zip(DOCUMENTS, made, strict=True)}


def fill(collection: Collection) -> None:
    draw = np.random.default_rng(1)
    for name, text in texts().items():
        vector = draw.normal(size=DIMENSIONS).astype(np.float32)
        passage = NewPassage(0, len(text), 0, vector / np.linalg.norm(vector))
        collection.write([Upsert(name, text, "", {"number": 0}, (passage,))]).result()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_worst_case(tmp_path_factory.mktemp("long"), fill) as found:
        yield found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_metadata_changes_without_the_text(service: Service, document: str) -> None:
    """The text is stored again, and neither cut, nor analyzed, nor embedded."""
    for number in range(1, 4):
        patch = Request(f"{C}/documents/{document}", {"metadata": {"number": number}}, "PATCH")
        assert service.least_cpu_s(patch, CPU_S_MAX) <= CPU_S_MAX
    matching = {"filter": {"type": "eq", "key": "number", "value": 3}, "query": document, "mode": "dense"}
    _, _, answer = service.ask(Request(f"{C}/search", matching))
    assert document in [hit["document_id"] for hit in answer["hits"]]


# By what they ask for, with what the receipt says is left out.
SEARCHES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a phrase": ({"query": '"first data"', "operators": True}, ["operators"]),
    "a phrase that none has": ({"query": f'"{FIRST} first"', "operators": True}, ["operators"]),
    "sixteen phrases": ({"query": '"data first" ' * 16, "operators": True}, ["operators"]),
    "a prefix": ({"query": "fir*", "operators": True}, ["operators"]),
    "frequent words": ({"query": " ".join(FREQUENT), "highlight": {"snippet_chars": 10_000}}, ["highlight"]),
    "a rare word": ({"query": "first", "highlight": True, "mode": "lexical"}, ["highlight"]),
    "a letter": ({"query": "a \u00e9\u0433", "highlight": True, "mode": "lexical"}, ["highlight"]),
    "typing errors": ({"query": "firstt datta tiime", "typos": True}, []),
    "ranks": ({"query": "data time", "explain": True}, []),
}


@pytest.mark.parametrize("asked", SEARCHES)
def test_a_search_reads_the_beginnings_and_says_so(service: Service, asked: str) -> None:
    """The first hit is found, or marked, by its first words, whatever follows them."""
    search, cut_short = SEARCHES[asked]
    answer = ask_cheaply(service, f"{C}/search", {**search, "cache": False})
    assert answer["receipt"].get("over_budget", []) == cut_short
    if asked in ("a phrase", "a prefix"):
        assert answer["hits"]
    if search.get("highlight"):
        first = answer["hits"][0]
        assert first["highlights"][0][0] <= len(FIRST) + 1
        assert first["snippet"]
        assert "highlights" not in answer["hits"][-1]


CONTEXTS: dict[str, dict[str, Any]] = {
    "usual": {"query": "data time"},
    "large": {"query": "data time", "token_budget": 100_000},
    "of another tokenizer": {"query": "data time", "tokenizer": "cl100k_base"},
    "whole": {"query": "data time", "excerpt_tokens": 0},
    "small": {"query": "data time", "token_budget": 20},
    "several": {"queries": ["data time", "first data", "time", "a"], "k": 2},
}


@pytest.mark.parametrize("asked", CONTEXTS)
def test_a_context_counts_what_fits(service: Service, asked: str) -> None:
    """A context shows an excerpt from the beginning of each long passage, and counts no more tokens than it needs."""
    body = {"token_budget": 1000, "cache": False, "explain": True, "k": 20, **CONTEXTS[asked]}
    answer = ask_cheaply(service, f"{C}/context", body)
    assert answer["tokens"] <= body["token_budget"]
    shown = {one["document_id"] for one in answer["citations"]}
    if asked in ("usual", "large"):
        assert shown & set(DOCUMENTS)
        assert all(one["excerpt"] for one in answer["citations"] if one["document_id"] in DOCUMENTS)


def test_a_phrase_counts_only_where_it_was_read(service: Service) -> None:
    """A passage is no hit for what would be half a word at the end of what was read of it."""
    passage = StoredPassage(1, "d", 0, 0, 0, 0, "one two threefold", "", {})
    for chars, found in [(10, False), (17, True), (18, True)]:
        work = WorkBudget(phrase_chars=chars)
        assert parse_operators('"two threefold"').hold_in(passage, work) == found
        assert not parse_operators('"two three"').hold_in(passage, WorkBudget(phrase_chars=13))
        assert work.phrase_chars < 0


EXPLANATIONS: dict[str, dict[str, Any]] = {
    "found": {"query": "data time"},
    "missed": {"query": "datta tiime nothing", "k": 1},
    "without a phrase": {"query": f'"{FIRST} first"', "operators": True},
}


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("asked", EXPLANATIONS)
def test_an_explanation_compares_the_beginning(service: Service, asked: str, document: str) -> None:
    body = {"document_id": document, **EXPLANATIONS[asked]}
    ask_cheaply(service, f"{C}/explain", body)


def ask_cheaply(service: Service, path: str, body: dict[str, Any]) -> Any:
    """The first time, what is read once is read."""
    request = Request(path, body)
    _, status, answer = service.ask(request)
    assert status == 200
    assert service.least_cpu_s(request, CPU_S_MAX) <= CPU_S_MAX
    return answer
