"""`nearline bench semantic`: the pairs it makes, and the arithmetic of its tables."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from jobs.benchmark.semantic import THRESHOLDS, PairResult, by_kind, by_threshold
from jobs.benchmark.wordings import HARD_NEGATIVES, PARAPHRASES, Pair, pairs

QUESTIONS = [
    "what is the average size of the old center?",
    "who did not win the first war in 1990?",
    "in 1974, what country is located north of france?",
    "what year did the 3rd march from paris to london begin in april?",
    "where is the city that was the capital for 40 miles?",
    "what type of organization was founded in march 2007?",
    "when was the constitution the king signed?",
    "what city was the festival held in in 1974?",
]


@pytest.mark.parametrize("kind", [*PARAPHRASES, *HARD_NEGATIVES])
def test_every_kind_has_pairs(kind: str) -> None:
    found = [pair for pair in pairs(QUESTIONS, each=3, seed=0) if pair.kind == kind]
    assert 1 <= len(found) <= 3
    assert all(pair.kept in QUESTIONS and pair.asked != pair.kept for pair in found)
    assert all(pair.same == (kind in PARAPHRASES) for pair in found)


def test_pairs_are_the_same_every_time() -> None:
    made = pairs(QUESTIONS, each=3, seed=0)
    assert made == pairs([*QUESTIONS, QUESTIONS[0]], each=3, seed=0) == pairs(QUESTIONS, each=3, seed=0)
    assert made != pairs(QUESTIONS, each=3, seed=1)
    assert len(made) == len(set(made))


@pytest.mark.parametrize(
    ("kind", "asked", "wanted"),
    [
        ("time first", "who won in 1990?", {"in 1990, who won?"}),
        ("time last", "in 1990, who won?", {"who won in 1990?"}),
        ("indirect", "when was the king of france crowned?", {"tell me when the king of france crowned was"}),
        ("negation", "who did the king meet?", {"who did not the king meet?"}),
        ("opposite", "who won first?", {"who lost first?", "who won last?"}),
        ("year", "who won in 1990?", {f"who won in {year}?" for year in (1980, 1989, 1991, 1992)}),
        ("number", "who has 7 cups?", {f"who has {number} cups?" for number in (8, 9, 17)}),
        ("ordinal", "who had the 3rd place?", {"who had the 13th place?"}),
        ("swapped", "a train from paris to rome?", {"a train from rome to paris?"}),
        ("month or day", "who was born in march?", {"who was born in july?"}),
        ("typo", "constitution", None),
    ],
)
def test_what_rules_make(kind: str, asked: str, wanted: set[str] | None) -> None:
    rule = {**PARAPHRASES, **HARD_NEGATIVES}[kind]
    made = {rule(asked, random.Random(seed)) for seed in range(60)}
    if wanted is None:
        assert all(
            one is not None and Counter(one) == Counter(asked) and one != asked for one in made - {None}
        )
        assert made - {None}
    else:
        assert made == wanted
        assert rule("", random.Random(0)) is None


def tried(
    same: bool, similarity: float, answered_from: float, *, by: str = "kept", false: bool = False
) -> PairResult:
    """Answered by the text `by` up to a threshold."""
    one = PairResult(Pair("kept", "asked", "same" if same else "other", same), similarity, "kept", similarity)
    one.answered_by = {threshold: by if threshold <= answered_from else None for threshold in THRESHOLDS}
    one.false = false
    return one


def test_the_tables() -> None:
    """Hits are of paraphrases by any question, false hits of hard negatives by their first question."""
    some = [
        *(tried(True, 0.96, 0.95) for _ in range(3)),
        tried(True, 0.8, 0, false=False),
        *(tried(False, 0.97, 0) for _ in range(7)),
        tried(False, 0.97, 0.9, false=True),
        tried(False, 0.97, 0.9, by="another that asks the same"),
        tried(False, 0.5, 0),
    ]
    rows = {row["similarity_from"]: row for row in by_threshold(some)}
    shares = [
        rows[0.9][f"{way}: {what} %"]
        for way in ("similarity alone", "with words")
        for what in ("hits", "false hits")
    ]
    assert shares == [75, 90, 75, 10]
    assert rows[0.97]["with words: hits %"] == 0
    kinds = {row["kind"]: row for row in by_kind(some, 0.9)}
    assert (kinds["same"]["pairs"], kinds["same"]["answered"], kinds["same"]["searched: false"]) == (4, 3, 0)
    assert (kinds["other"]["answered"], kinds["other"]["by the first question"]) == (2, 1)
    assert kinds["all that do not"] == {
        "kind": "all that do not", "pairs": 10, "answered": 2, "by the first question": 1, "searched: false": 1,
    }  # fmt: skip
