"""Phrases and prefixes: postings narrow the search to rows that may contain them, and texts decide.

Postings have terms, but neither the original words nor their positions. So they only narrow the search to rows with
every word of a phrase, or a word that may start with a prefix; the text of each hit decides (`plain_words`):

    f" {words of the phrase} " in plain_words(text)        f" {prefix}" in plain_words(text)
"""

from __future__ import annotations

import string
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from icu4py.breakers import WordBreaker

from indexes.base.errors import InvalidInput
from indexes.base.masks import Flags
from indexes.base.normalizing import normalize
from indexes.base.work import OnStep, WorkBudget, do_nothing
from indexes.lexical.analysis import query_terms
from indexes.lexical.bm25 import LexicalPart
from indexes.lexical.prefixed import Prefixed, lists_of
from indexes.lexical.words import IGNORED, WORD, fold

PREFIX_TERMS_MAX = 4096  # terms that one prefix may expand to
STEM_LETTERS_MIN = 3  # the stem of a word may be shorter than a prefix of it
# What stemmers put in the place of an ending: writing is write, visibility visibl, existencia existent, kitabı kitap.
ENDINGS = "aefiklpstxy"
ENDING_LETTERS_MAX = 6  # that one of them stands for, within a prefix
# Does to ASCII what `WORD` and `fold` do, thirty times as fast: letters and digits in lower case, and spaces.
ASCII_WORDS = str.maketrans(
    {code: " " for code in range(128) if chr(code) not in string.ascii_letters + string.digits}
    | {letter: letter.lower() for letter in string.ascii_uppercase}
)
UNSPACED = {"han", "unspaced"}
WORD_CACHED_CHARS_MAX = 32

Alternatives = frozenset[str]  # terms of which a row must have one


def plain_words(text: str, chars_max: int = sys.maxsize) -> str:
    """The words of a text in order, folded, with a space before and after each. Scripts without spaces become single
    letters. Of a text with more than `chars_max` characters, those that end within the first ones."""
    normal = normalize("NFKC", text[:chars_max])
    found = f" {' '.join(_plain_words(normal[:chars_max]))} "
    if len(text) > chars_max or len(normal) > chars_max:
        return found[: found.rstrip().rfind(" ") + 1]  # the last one may go on
    return found


def count_words(text: str) -> int:
    """How many words a text has, as people count them: no parts of identifiers, and no letters of segmented words."""
    found = WORD.finditer(IGNORED.sub("", normalize("NFKC", text)))
    whole = (None, "hangul")
    return sum(
        1 if one.lastgroup in whole else sum(1 for _ in WordBreaker(one.group(), "root")) for one in found
    )


def _plain_words(normal: str) -> Iterable[str]:
    if normal.isascii():
        return normal.translate(ASCII_WORDS).split()
    words: list[str] = []
    for match in WORD.finditer(IGNORED.sub("", normal)):
        found = match.group()
        word = _fold(found) if len(found) <= WORD_CACHED_CHARS_MAX else fold(found)
        words += word if match.lastgroup in UNSPACED else [word]
    return words


_fold = lru_cache(16_384)(fold)


def phrase_terms(phrase: str, language: str, others: Mapping[str, float]) -> list[Alternatives]:
    """Return, for each word of a phrase, its terms; a matching passage has at least one. The text decides stopwords."""
    kept = query_terms(phrase, language, others).keys()
    words = [frozenset(query_terms(word, language, others)) for word in dict.fromkeys(phrase.split())]
    return [terms for terms in words if terms & kept]


def prefix_groups(
    prefixes: Iterable[str],
    parts: Sequence[LexicalPart],
    language: str,
    others: Mapping[str, float],
    on_step: OnStep = do_nothing,
    work: WorkBudget | None = None,
) -> dict[str, Prefixed]:
    """The terms of words that may start with each of these prefixes, by a name for each prefix.

    Raises InvalidInput if one prefix, or all of the request together, expand to too many terms.
    """
    groups: dict[str, Prefixed] = {}
    work = work or WorkBudget()
    for prefix in dict.fromkeys(prefixes):
        plain, found = fold(IGNORED.sub("", normalize("NFKC", prefix))), set[str]()
        for part in parts:
            on_step()
            if work.prefix_terms < 0:
                raise _too_many()
            found.update(part.starting(plain))
            if len(found) > PREFIX_TERMS_MAX:
                work.prefix_terms -= len(found)
                raise InvalidInput(
                    f"{prefix}* stands for more than {PREFIX_TERMS_MAX} words; write more letters",
                    param="query",
                )
        work.prefix_terms -= len(found)
        if work.prefix_terms < 0:
            raise _too_many()
        stems = stems_within(plain).union(query_terms(prefix, language, others))
        rest = frozenset(one for one in stems if not one.startswith(plain))
        groups[f"{prefix}*"] = Prefixed(plain, rest | found, rest)
    return groups


def stems_within(prefix: str) -> set[str]:
    """Return the terms of words that begin with a prefix and have a stem that does not."""
    shorter = {prefix[:letters] for letters in range(STEM_LETTERS_MIN, len(prefix))}
    first = max(len(prefix) - ENDING_LETTERS_MAX, STEM_LETTERS_MIN - 1)
    return shorter | {
        prefix[:letters] + ending for letters in range(first, len(prefix)) for ending in ENDINGS
    }


def _too_many() -> InvalidInput:
    return InvalidInput(
        f"the prefixes of the request stand for more than {WorkBudget().prefix_terms} words together; "
        "write more letters",
        param="query",
    )


def rows_with(
    part: LexicalPart, required: Iterable[Alternatives | Prefixed], on_step: OnStep = do_nothing
) -> Flags:
    """Which rows have a term of each group, bool [size]."""
    found = np.ones(part.size, bool)
    for terms in dict.fromkeys(required):
        on_step()
        holding = np.zeros(part.size, bool)
        lists = lists_of(part, terms) if isinstance(terms, Prefixed) else map(part.postings, terms)
        for rows, _ in lists:
            holding[rows] = True
        found &= holding
        if not found.any():
            break
    return found
