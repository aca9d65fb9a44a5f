"""Searching a lexical index: finding terms, the best rows, and counts over chosen rows."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexes.base.masks import pack_flags
from indexes.base.model import Bm25
from indexes.lexical import scoring
from indexes.lexical.analysis import AnalyzedQuery, index_terms
from indexes.lexical.bm25 import LexicalPart, Statistics, best_of, score_rows, weigh
from indexes.lexical.postings import (
    SLICE_POSTINGS,
    TERMS_CACHED_MAX,
    GrowingLexical,
    Names,
    SealedLexical,
)
from tests.support.scoring import best_rows, score_all
from tests.support.texts import read_texts

WORDS = st.sampled_from(["apple", "pear", "plum", "fig", "nut", "lime"])
TEXTS = st.lists(st.lists(WORDS, min_size=1, max_size=6).map(" ".join), max_size=40)


def sealed(texts: list[str]) -> SealedLexical:
    index = GrowingLexical()
    for text in texts:
        index.add(text)
    return index.seal(len(texts))


def statistics_of(*parts: LexicalPart) -> Statistics:
    return Statistics(sum(part.size for part in parts), sum(part.length for part in parts))


@pytest.mark.slow
@given(
    TEXTS,
    st.lists(WORDS, max_size=4).map(" ".join),
    st.integers(1, 12),
    st.sampled_from([Bm25(), Bm25(0.0, 0.4), Bm25(2.0, 1.0), Bm25(0.9, 0.0)]),
    st.lists(st.sampled_from([0.7, 0.96, 1.0, 1.04, 1.4]), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
@settings(max_examples=300, deadline=None)
def test_the_best_are_the_best_of_all(
    texts: list[str], query: str, depth: int, bm25: Bm25, growths: list[float], random: Random
) -> None:
    """Whatever the parameters and the mean length, the best rows among those allowed are found, with the scores of a
    plain scan, bit for bit. Equals are in row order."""
    part = sealed(texts)
    flags = np.array([random.random() < 0.6 for _ in texts], bool)
    for growth in growths:
        statistics = Statistics(part.size, int(part.length * growth))
        weighed = weigh(AnalyzedQuery.of(query), [part], statistics, bm25)
        scores = score_all(part, weighed)
        for allowed in (None, flags):
            expected = best_rows(scores if allowed is None else scores * allowed, depth)
            rows, found = best_of(part, weighed, depth, None if allowed is None else pack_flags(allowed))
            assert rows.tolist() == expected.tolist()
            assert found.tolist() == scores[expected].tolist()
        some = np.flatnonzero(flags)
        assert score_rows(part, weighed, some).tolist() == scores[some].tolist()


@pytest.mark.slow
def test_the_best_of_real_text(shared_data: Path) -> None:
    """Where far more rows are touched than wanted, the same rows come first as when all are sorted."""
    part = sealed(read_texts(shared_data / "squad-sent"))
    allowed = np.random.default_rng(1).random(part.size) < 0.4
    half = np.arange(part.size) % 2 == 0
    for query in read_texts(shared_data / "squad-sent", file="queries.jsonl.gz", limit=100):
        weighed = weigh(AnalyzedQuery.of(query), [part], statistics_of(part), Bm25())
        scores = score_all(part, weighed)
        best = best_of(part, weighed, 20)
        assert best[0].tolist() == best_rows(scores, 20).tolist()
        assert best[1].tolist() == scores[best[0]].tolist()
        some = best_of(part, weighed, 20, pack_flags(allowed))[0]
        assert some.tolist() == best_rows(scores * allowed, 20).tolist()
        floor = float(best[1][-1])
        high = best_of(part, weighed, 20, pack_flags(half), floor=floor)[0]
        expected = best_rows(scores * half, 20)
        wanted = expected[scores[expected] >= floor].tolist()
        assert high[: len(wanted)].tolist() == wanted


def test_a_query_scores_parts_it_was_not_weighed_with() -> None:
    """The postings a query keeps save a look-up and are not needed: another part of the same texts scores the same."""
    texts = ["apple pear", "pear plum plum", "fig"]
    part, same = sealed(texts), sealed(texts)
    growing = GrowingLexical()
    for text in texts:
        growing.add(text)
    weighed = weigh(AnalyzedQuery.of("plum pear nowhere"), [part], statistics_of(part), Bm25())
    for other in (same, growing.view(3)):
        assert score_all(other, weighed).tolist() == score_all(part, weighed).tolist()
        assert best_of(other, weighed, 2)[0].tolist() == [1, 0]


def test_words_that_nothing_holds_count() -> None:
    """A passage with one of two words has at most half of what the query could score, also if none has the other."""
    part = sealed(["apple pear", "plum fig", "fig"])
    whole, half = (
        weigh(AnalyzedQuery.of(text), [part], statistics_of(part), Bm25())
        for text in ("apple", "apple chromodynamics")
    )
    scores = [float(best_of(part, one, 1)[1][0]) for one in (whole, half)]
    assert scores[0] == scores[1]
    assert half.bound > 2 * whole.bound > 2 * scores[0]
    assert weigh(AnalyzedQuery.of("chromodynamics"), [part], statistics_of(part), Bm25()).bound > 0


def test_the_bound_forgets_what_only_dead_passages_hold() -> None:
    """A term of another language that only a deleted passage holds adds no more to the bound than after a rebuild."""
    live = ["apple pear", "plum fig", "fig"]
    grown = GrowingLexical()
    for text in live:
        grown.add(text)
    grown.add("quarrelling", "es")
    before, after = grown.seal(4), sealed(live)
    dead = before.frequencies_of(np.array([3]))
    now = Statistics(after.size, after.length, (dead,))
    others = {"es": 0.5}
    bounds = [
        weigh(AnalyzedQuery.of(text, "en", others), [part], statistics, Bm25()).bound
        for text in ("quarrelling", "quarrelling apple")
        for part, statistics in ((before, now), (after, statistics_of(after)))
    ]
    assert bounds[0] == bounds[1]
    assert bounds[2] == bounds[3]


def test_a_repeated_word_is_missed_as_often() -> None:
    """What it would be in other languages is not missed, however often the query repeats it."""
    part = sealed(["apple pear", "plum fig", "fig"])
    once, twice = (
        weigh(AnalyzedQuery.of(text, "en", {"es": 0.5}), [part], statistics_of(part), Bm25()).bound
        for text in ("quarrelling", "quarrelling quarrelling")
    )
    assert twice == pytest.approx(2 * once)


@given(st.lists(st.text(alphabet="abcé東", min_size=1, max_size=4), max_size=300), st.text(max_size=3))
@settings(max_examples=100, deadline=None)
def test_every_term_is_found_and_no_other(words: list[str], other: str) -> None:
    """Each term of a dictionary has its place; a term that is not there has none."""
    encoded = sorted({word.encode() for word in words})
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    names = Names(np.frombuffer(b"".join(encoded), np.uint8), offsets)
    assert list(names) == encoded
    assert [names.find(name) for name in encoded] == list(range(len(encoded)))
    if (name := other.encode(errors="replace")) not in encoded:
        assert names.find(name) is None


@pytest.mark.slow
def test_chosen_rows_are_counted(shared_data: Path) -> None:
    """In how many of the chosen rows each term occurs, over more postings than one slice holds."""
    texts = read_texts(shared_data / "scifact")
    part = sealed(texts)
    assert len(part.rows) > SLICE_POSTINGS
    chosen = np.random.default_rng(2).choice(len(texts), 300, replace=False)
    expected = Counter(term for row in chosen for term in set(index_terms(texts[row], "en")))
    assert part.frequencies_of(chosen) == expected


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_nothing_is_found_in_nothing(texts: list[str]) -> None:
    """An index without terms answers every query with no rows."""
    part = sealed(texts)
    weighed = weigh(AnalyzedQuery.of("apple"), [part], statistics_of(part), Bm25())
    assert not len(best_of(part, weighed, 10)[0])
    assert score_all(part, weighed).tolist() == [0] * len(texts)
    assert part.frequencies_of(np.arange(len(texts))) == {}


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_best_of_many_rows(seed: int) -> None:
    """Over many windows of rows, with words from very rare to very common, with filters from strict to loose, and with
    rows far apart: the best rows are those of a plain scan, and so is every score, in any order of the rows."""
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 60_000))  # so that some words have more postings than BOUNDED_POSTINGS_MIN
    shares = random.choice([3e-5, 1e-3, 0.02, 0.3, 0.9], random.integers(1, 8))
    holders = [np.flatnonzero(random.random(size) < share).astype(np.uint32) for share in shares]
    sizes = np.array([len(rows) for rows in holders])
    frequencies = random.integers(1, random.choice([2, 300, 65_536]), sizes.sum()).astype(np.uint16)
    lengths = random.integers(1, random.choice([2, 500]), size).astype(np.uint32)
    terms = [f"w{at}" for at in range(len(shares))]
    part = SealedLexical.from_arrays(terms, sizes, np.concatenate(holders), frequencies, lengths)
    text = " ".join(terms * int(random.integers(1, 3)))
    for share in (1.0, 0.5, 0.01, 0.0):
        drifted = Statistics(size, int(part.length * random.choice([0.9, 1.0, 1.03])))
        weighed = weigh(AnalyzedQuery.of(text), [part], drifted, Bm25())
        scores = score_all(part, weighed)
        flags = random.random(size) < share
        depth = int(random.choice([1, 10, 100, size]))
        rows, found = best_of(part, weighed, depth, None if share == 1 else pack_flags(flags))
        assert rows.tolist() == best_rows(scores * flags, depth).tolist()
        assert found.tolist() == scores[rows].tolist()
    wanted = random.integers(0, size, 50)
    assert score_rows(part, weighed, wanted).tolist() == scores[wanted].tolist()


@pytest.mark.parametrize("depth", [10, 1000])
def test_queries_of_thousands_of_words_take_little_time(depth: int) -> None:
    """A word that every passage has makes the search sum bounds first, and look candidates up."""
    random = np.random.default_rng(3)
    size, words = 100_000, 4000
    holders = [np.sort(random.choice(size, 40, replace=False)).astype(np.uint32) for _ in range(words)]
    rows = np.concatenate([np.arange(size, dtype=np.uint32), *holders])
    lengths = random.integers(1, 50, size).astype(np.uint32)
    terms = [f"{at:05}" for at in range(words + 1)]
    sizes = np.array([size, *[40] * words])
    part = SealedLexical.from_arrays(terms, sizes, rows, np.ones(len(rows), np.uint16), lengths)
    weighed = replace(
        weigh(AnalyzedQuery.of(" ".join(terms[:2])), [part], statistics_of(part), Bm25()),
        weights=((terms[0], 1.0), *((term, 1e-3) for term in terms[1:])),
        met=(),
    )
    part.impacts(terms[0], Bm25(), weighed.mean_length)
    begun = time.thread_time()
    found = best_of(part, weighed, depth)[0]
    assert time.thread_time() - begun < 0.3
    assert found.tolist() == best_rows(score_all(part, weighed), depth).tolist()


def test_damaged_lists_do_not_end_the_process() -> None:
    """Rows beyond the part are refused, as are arrays of different lengths; rows in no order may find anything."""
    lengths, ones = np.ones(50_000, np.uint32), np.ones(3, np.uint16)
    rows = np.array([1, 2, 50_000], np.uint32)
    formula = (0.1, 0.5, 1.9)
    for wrong in ([(rows, ones)], [(rows[:2], ones)]):
        with pytest.raises(ValueError, match="does not fit"):
            scoring.best(wrong, [1.0], [None], lengths, formula, 10, None, 0.0)
        with pytest.raises(ValueError, match="does not fit"):
            scoring.score(wrong, [1.0], lengths, formula, np.zeros(1, np.uint32))
    good = [(rows[:2], ones[:2])]
    for weights, bounds, depth in (([], [None], 1), ([1.0], [], 1), ([1.0], [None], 0)):
        with pytest.raises(ValueError):
            scoring.best(good, weights, bounds, lengths, formula, depth, None, 0.0)
    with pytest.raises(ValueError, match="not in the part"):
        scoring.score(good, [1.0], lengths, formula, np.array([50_000], np.uint32))
    random = np.random.default_rng(1)
    for _ in range(200):
        lists = [
            (random.integers(50_000, size=n).astype(np.uint32), np.ones(n, np.uint16)) for n in (30, 3000)
        ]
        scoring.best(lists, [1.0, 2.0], [None, None], lengths, formula, 10, None, 0.0)
        scoring.score(lists, [1.0, 2.0], lengths, formula, np.arange(50_000, dtype=np.uint32))


def test_a_lookup_after_many_others_finds_the_same() -> None:
    """The terms a sealed index remembers are bounded, and forgetting them changes no answer."""
    words = [f"w{number}" for number in range(TERMS_CACHED_MAX + 10)]
    part = sealed([" ".join(words[at : at + 50]) for at in range(0, len(words), 50)])
    for _ in range(2):
        for at, word in enumerate(words):
            assert part.postings(word)[0].tolist() == [at // 50]
    assert not len(part.postings("absent")[0])
