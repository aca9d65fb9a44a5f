"""Phrases and prefixes: which rows may hold them by the postings, and which texts do.

Postings know terms, not the words they were made of nor their places. So they only narrow the search to rows with every
word of a phrase, or a word that may begin with a prefix; the text of each hit decides (`plain_words`):

    f" {words of the phrase} " in plain_words(text)        f" {prefix}" in plain_words(text)
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np

from indexes.errors import InvalidInput
from indexes.lexical.analysis import query_terms
from indexes.lexical.bm25 import NO_ROWS, LexicalPart
from indexes.lexical.words import WORD, fold
from indexes.model import Rows

PREFIX_TERMS_MAX = 4096  # that one prefix may stand for
STEM_LETTERS_MIN = 3  # the stem of a word may be shorter than a prefix of it

Alternatives = frozenset[str]  # terms of which a row must have one


def plain_words(text: str) -> str:
    """The words of a text in their order, folded, with a space before and after each. Scripts without spaces are single
    letters."""
    words: list[str] = []
    for match in WORD.finditer(unicodedata.normalize("NFKC", text)):
        word = fold(match.group())
        words += word if match.lastgroup in {"han", "unspaced"} else [word]
    return f" {' '.join(words)} "


def phrase_terms(phrase: str, language: str, others: Mapping[str, float]) -> list[Alternatives]:
    """For each word of a phrase, the terms that a passage with it has one of. Stopwords are left to the text."""
    kept = query_terms(phrase, language, others).keys()
    words = [frozenset(query_terms(word, language, others)) for word in phrase.split()]
    return [terms for terms in words if terms & kept]


def prefix_terms(
    prefix: str, parts: Sequence[LexicalPart], language: str, others: Mapping[str, float]
) -> Alternatives:
    """The terms of words that may begin with a prefix. Raises InvalidInput for one that stands for too many."""
    plain = fold(prefix)
    found = {term for part in parts for term in part.starting(plain)}
    if len(found) > PREFIX_TERMS_MAX:
        raise InvalidInput(
            f"{prefix}* stands for more than {PREFIX_TERMS_MAX} words; write more letters", param="query"
        )
    stems = {plain[:letters] for letters in range(STEM_LETTERS_MIN, len(plain))}
    return frozenset(found | stems.union(query_terms(prefix, language, others)))


def rows_with(part: LexicalPart, required: Iterable[Alternatives]) -> Rows:
    """Rows that have a term of each of the alternatives, at least one, ascending."""

    def rows_of(terms: Alternatives) -> Rows:
        lists = [part.postings(term)[0] for term in terms]
        return np.unique(np.concatenate([*lists, NO_ROWS]))

    lists = sorted(map(rows_of, required), key=len)
    return reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), lists)
