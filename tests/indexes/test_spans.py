"""Words with their places: the same words as in indexing, each where it stands."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indexes.base.work import WorkBudget
from indexes.lexical.analysis import query_terms, terms
from indexes.lexical.spans import Marks, Span, spans
from indexes.lexical.words import words

PIECES = [
    "user's", "don\u2019t", "c++", ".net", "R&D", "1,000.5%", "v1.2.3", "snake_case", "getHTTPServer", "a.b's", " ",
    "\n", "-", "Stra\u00dfe", "cafe\u0301", "\ufb01le",
    "soft\u00adhyphen", "\u0e01\u0e34\u0e19\u0e02\u0e49\u0e32\u0e27",
    "\u6771\u4eac\u90fd", "\ud559\uad50\uc5d0\uc11c", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
]  # fmt: skip


def mark_spans(text: str, wanted: Collection[str], language: str) -> list[Span]:
    return list(Marks(wanted).of(text, language, WorkBudget()))


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
@example("getHTTPServer's snake_case.node.js c# 10%, r&d")
def test_spans_are_the_words_of_indexing(text: str) -> None:
    """The same words as often, whatever the script; each inside the text."""
    found = list(spans(text))
    assert sorted(word for _, _, word in found) == sorted(words(text))
    assert all(0 <= start < end <= len(text) for start, end, _ in found)


@pytest.mark.parametrize(
    ("language", "query", "text", "shown"),
    [
        ("en", "refund", "Refunds are refunded, it's all refunding.", ["Refunds", "refunded", "refunding"]),
        ("de", "Häuser", "Das Haus, zwei H\u00e4user (haeuser auch)", ["Haus", "H\u00e4user", "haeuser"]),
        ("en", "cafe", "a cafe\u0301 and a CAF\u00c9", ["cafe\u0301", "CAF\u00c9"]),
        ("en", "http", "getHTTPServer() over HTTP", ["HTTP", "HTTP"]),
        ("en", "c++ and .net", "C++, C and .NET", ["C++", ".NET"]),
        ("ja", "\u6771\u4eac", "\u79c1\u306f\u6771\u4eac\u90fd\u306b", ["\u6771\u4eac"]),
        ("ko", "\ud559\uad50", "\uc6b0\ub9ac \ud559\uad50\uc5d0\uc11c", ["\ud559\uad50"]),
        ("en", "softhyphen", "a soft\u00adhyphen", ["soft\u00adhyphen"]),
    ],
)
def test_marked_shows_what_the_search_sees(language: str, query: str, text: str, shown: list[str]) -> None:
    """Each word with a stem of the query, and of a compound the part alone."""
    found = mark_spans(text, query_terms(query, language).keys(), language)
    assert [text[start:end] for start, end in found] == shown


@given(st.text(max_size=60), st.text(max_size=20))
def test_marked_is_what_is_indexed(text: str, query: str) -> None:
    """A passage has a mark if and only if it is indexed under a term of the query; marks ascend and do not touch."""
    wanted = query_terms(query, "en").keys()
    found = mark_spans(text, wanted, "en")
    assert bool(found) == bool(wanted & set(terms(text, "en")))
    assert all(end < start for (_, end), (start, _) in pairwise(found))
