"""Operators: phrases in double quotes, and prefixes with a star."""

from __future__ import annotations

import random
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.base.errors import InvalidInput
from indexes.base.model import Bm25, StoredPassage
from indexes.base.work import WorkBudget
from indexes.lexical.analysis import AnalyzedQuery
from indexes.lexical.bm25 import Statistics, best_of, weigh
from indexes.lexical.operators import phrase_terms, plain_words, prefix_groups, rows_with
from indexes.lexical.postings import GrowingLexical
from jobs.serving.process import ServerProcess
from retrieval.search.operators import parse_operators
from tests.support.cpu import slowness
from tests.support.http import Http

WORDS = [
    "the",
    "river",
    "of",
    "silver",
    "bridges",
    "and",
    "old",
    "markets",
    "installs",
    "instances",
    "winter",
    "writing",
    "during",
    "visibility",
    "varying",
    "happily",
]
TEXTS: list[dict[str, Any]] = [
    {"id": "order", "text": "The silver river flows under the bridge."},
    {"id": "other", "text": "The river is silver, and the bridge is old."},
    {"id": "title", "title": "Silver river", "text": "About a place in the north."},
    {"id": "be", "text": "To be, or not to be: that is the question."},
    {"id": "install", "text": "Installation takes a minute."},
    {"id": "instance", "text": "An instance needs memory."},
    {"id": "happy", "text": "Happiness is a warm engine."},
    {"id": "camel", "text": "Call getUserName() for State-of-the-art café names."},
    {"id": "ja", "text": "東京都に住んでいます。", "language": "ja"},
    {"id": "de", "text": "Die Wohnungen am silbernen Fluss.", "language": "de"},
]


@pytest.fixture(scope="module", params=["delta", "generation"])
def notes(service: ServerProcess, request: pytest.FixtureRequest) -> tuple[Http, str]:
    http = Http(service.url)
    name = http.new_collection()
    http.write(name, *TEXTS)
    if request.param == "generation":
        http.reindex(name)
    return http, name


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('"silver river"', {"order", "title"}),
        ('"SILVER  River" bridge', {"order", "title"}),
        ('"river silver"', set()),
        ('"the river is silver"', {"other"}),
        ('"to be or not to be"', {"be"}),
        ('"to be or not to be" gold', {"be"}),
        ('"silver river" gold', {"order", "title"}),
        ('gold "that is the" "to be"', {"be"}),
        ('"state of the art" "cafe names"', {"camel"}),
        ('"silver river" "place in"', {"title"}),
        ("“silver river”", {"order", "title"}),
        ('"am silbernen Fluss"', {"de"}),
        ('"東京都"', {"ja"}),
        ("inst*", {"install", "instance"}),
        ("installat*", {"install"}),
        ("happin*", {"happy"}),
        ("getUs*", {"camel"}),
        ("wohnung*", {"de"}),
        ("old inst*", {"install", "instance"}),
        ('inst* "takes a minute"', {"install"}),
        ("xyz*", set()),
    ],
)
def test_every_hit_holds_what_is_asked_for(
    notes: tuple[Http, str], query: str, found: set[str], mode: str
) -> None:
    """Phrases in order, case and accents aside, in text or title; words that begin so, whatever their stems."""
    http, name = notes
    assert set(http.found(name, query=query, mode=mode, operators=True)) == found


def test_marks_are_plain_text_otherwise(notes: tuple[Http, str]) -> None:
    """Without `operators` quotes and stars mean nothing: they are frequent in questions and in alerts."""
    http, name = notes
    assert "other" in http.found(name, query='"river silver"', mode="lexical")
    assert http.found(name, query="inst*", mode="lexical", typos=False) == []


def test_highlights_show_the_words_of_operators(notes: tuple[Http, str]) -> None:
    """What a prefix stands for, and the words of a phrase."""
    http, name = notes
    for query, shown in (("inst*", ["Installation"]), ('"takes a minute"', ["takes", "minute"])):
        hits = http.search(name, query=query, mode="lexical", operators=True, highlight=True)["hits"]
        hit = next(hit for hit in hits if hit["document_id"] == "install")
        assert [hit["text"][start:end] for start, end in hit["highlights"]] == shown


def test_rare_phrases_are_found_among_many(http: Http) -> None:
    """A phrase is found however many passages have its words in another order, with a filter and in pages too."""
    name, rnd = http.new_collection(), random.Random(4)
    texts = [" ".join(rnd.sample(WORDS, 8)) for _ in range(600)]
    texts[100:103] = ["a old silver river and some more words of winter"] * 3
    vector = [1.0] + [0.0] * 383
    http.write(name, *({"id": f"d{at}", "text": text, "vector": vector} for at, text in enumerate(texts)))
    holding = {f"d{at}" for at, text in enumerate(texts) if " old silver river " in f" {text} "}
    for options in ({"mode": "lexical"}, {"mode": "hybrid"}, {"mode": "lexical", "group_by_document": True}):
        search = {"query": '"old silver river"', "operators": True, "collapse": False, **options}
        assert set(http.found(name, k=200, **search)) == holding
        paged = [
            one for at in range(0, len(holding), 2) for one in http.found(name, k=2, offset=at, **search)
        ]
        assert sorted(paged) == sorted(holding)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"query": "a*"}, "query"),
        ({"query": '""'}, "query"),
        ({"query": " ".join(f'"w{at}"' for at in range(17))}, "query"),
        ({"query": '"silver"', "mode": "dense"}, "operators"),
    ],
    ids=str,
)
def test_wrong_operators_are_refused(notes: tuple[Http, str], options: dict[str, Any], param: str) -> None:
    """The error names the field."""
    http, name = notes
    reply = http.call("POST", f"/v1/collections/{name}/search", {"operators": True, **options})
    assert (reply.status, reply.body["error"]["param"]) == (422, param)


def test_a_prefix_may_stand_for_too_many_words() -> None:
    """It is refused rather than cut at some of them."""
    growing = GrowingLexical()
    growing.add(" ".join(f"zz{at}" for at in range(4097)))
    with pytest.raises(InvalidInput, match="4096 words"):
        prefix_groups(["zz"], [growing.view(1)], "en", {})


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8), min_size=1, max_size=20), st.data())
def test_postings_leave_out_no_row_that_holds_it(rows: list[list[str]], data: st.DataObject) -> None:
    """Any stretch of any text is found among the rows that the postings leave; so is the beginning of any word."""
    growing = GrowingLexical()
    for words in rows:
        growing.add(" ".join(words))
    own = data.draw(st.sampled_from(rows))
    start = data.draw(st.integers(0, len(own) - 1))
    phrase = " ".join(own[start : data.draw(st.integers(start + 1, len(own)))])
    word = data.draw(st.sampled_from(own))
    prefix = word[: data.draw(st.integers(2, len(word)))]
    for part in (growing.view(len(rows)), growing.seal(len(rows))):
        left = set(np.flatnonzero(rows_with(part, phrase_terms(phrase, "en", {}))).tolist())
        assert {
            at for at, words in enumerate(rows) if plain_words(phrase) in plain_words(" ".join(words))
        } <= left
        groups = prefix_groups([prefix], [part], "en", {})
        left = set(np.flatnonzero(rows_with(part, groups.values())).tolist())
        beginning = {at for at, words in enumerate(rows) if any(one.startswith(prefix) for one in words)}
        assert beginning <= left
        weighed = weigh(
            AnalyzedQuery.of(""), [part], Statistics(len(rows), part.length), Bm25(), groups=groups
        )
        found, scores = best_of(part, weighed, len(rows))
        assert set(found.tolist()) == left
        assert (scores > 0).all()


@pytest.mark.parametrize(("text", "title"), [("\ufdfa" * 200_000, ""), ("parcel", "\ufdfa" * 4500)])
def test_characters_that_stand_for_many_are_charged_as_many(text: str, title: str) -> None:
    """Reading them, in texts and in titles, takes little CPU until the budget is used up."""
    asked, work, begun = parse_operators('"a phrase"'), WorkBudget(), process_time()
    while work.phrase_chars >= 0:
        asked.hold_in(StoredPassage(1, "d", 0, 0, 0, 0, text, title, {}), work)
    assert process_time() - begun < 0.3 * slowness()


@pytest.mark.parametrize(
    ("language", "word"),
    [
        *(("hi", "किताब"), ("ne", "क्षेत्र"), ("bn", "বইগুলো"), ("ta", "புத்தகம்")),
        *(("te", "పుస్తకం"), ("ml", "പുസ്തകം"), ("si", "පොත"), ("km", "សៀវភៅ")),
        *(("my", "စာအုပ်"), ("th", "หนังสือ"), ("lo", "ປຶ້ມ"), ("he", "שָׁלוֹם")),
        *(("ar", "سَلَام"), ("fa", "می\u200cخواهم"), ("vi", "tiếng"), ("ko", "한국어")),
        *(("el", "βιβλίο"), ("am", "መጽሐፍ"), ("ja", "ありがとう")),
        *(("es", "existencia"), ("fr", "heureuse"), ("tr", "kitabı"), ("en", "organizational")),
    ],
)
def test_words_of_any_script_have_prefixes(language: str, word: str) -> None:
    """Also where vowels are marks, which are no letters."""
    growing = GrowingLexical()
    growing.add(f"xx {word} yy", language)
    for letters in range(2, len(word) + 1):
        asked = parse_operators(f"{word[:letters]}*")
        assert asked.prefixes == (word[:letters],)
        assert asked.hold_in(StoredPassage(1, "d", 0, 0, 0, 0, f"xx {word} yy", "", {}), WorkBudget())
        groups = prefix_groups(asked.prefixes, [growing.view(1)], language, {})
        assert rows_with(growing.view(1), groups.values()).all(), letters


def test_invisible_characters_in_words_do_not_matter() -> None:
    """A joiner or a soft hyphen that only one side has, as the words of an index have none."""
    for text, asked in (("می\u200cخواهم", '"میخواهم"'), ("Donau\u00adschiff", '"donauschiff"')):
        for one in (text, asked.strip('"')):
            for query in (asked, f'"{text}"'):
                assert parse_operators(query).hold_in(
                    StoredPassage(1, "d", 0, 0, 0, 0, f"xx {one} yy", "", {}), WorkBudget()
                )


def test_operators_are_read_from_a_query() -> None:
    """Words for BM25 without the prefixes, text for the model without the marks."""
    found = parse_operators('find "red fish" or inst* in 2*3')
    assert (found.phrases, found.prefixes) == (("red fish",), ("inst",))
    assert found.words.split() == ["find", "or", "in", "2*3", "red", "fish"]
    assert found.text.split() == ["find", "red", "fish", "or", "inst", "in", "2*3"]
