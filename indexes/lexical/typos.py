"""Words of a query that no passage has, and what was probably meant: the nearest terms of the dictionary.

A word is compared as the term it would be indexed as, by edits: a letter more, less, another, or two swapped (optimal
string alignment). Like most readers of typing errors we take the first letter for right. A word with digits, or of a
script without spaces, is a name or a code and stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rapidfuzz import process
from rapidfuzz.distance import OSA

from indexes.lexical.analysis import BARE, query_terms
from indexes.lexical.bm25 import LexicalPart
from indexes.lexical.postings import CHARACTER_BYTES_MAX
from indexes.lexical.words import WORD

LETTERS_MIN = 4  # shorter words are near too many others
LETTERS_FOR_TWO = 8  # from here on two edits are forgiven
CORRECTED_MAX = 3  # words of one query: each costs a look at a share of the dictionary
TERMS_MAX = 32  # of a query; a longer one has enough other words


def corrections(
    text: str, parts: Sequence[LexicalPart], language: str, others: Mapping[str, float]
) -> dict[str, tuple[frozenset[str], str]]:
    """For words of a query that no passage has: the terms they would be, and the nearest term that some passage has.

    The most frequent of several equally near. At most CORRECTED_MAX words, the first ones.
    """
    found: dict[str, tuple[frozenset[str], str]] = {}
    words = list(dict.fromkeys(text.split()))
    if len(words) > TERMS_MAX:
        return found
    for word in words:
        if len(query_terms(word, language)) != 1:
            continue  # parts of an identifier, or a script without spaces
        meant = frozenset(query_terms(word, language, others))
        if any(_frequency(parts, term) for term in meant):
            continue
        near = [one for term in sorted(meant) for one in _nearest(term, parts)]
        if near:
            found[BARE.sub("", word)] = meant, min(near)[-1]
        if len(found) == CORRECTED_MAX:
            break
    return found


def _nearest(term: str, parts: Sequence[LexicalPart]) -> list[tuple[int, int, str]]:
    """The terms within the edits forgiven: edits, frequency (negative), term."""
    if len(term) < LETTERS_MIN or not _is_plain(term):
        return []
    edits = 1 if len(term) < LETTERS_FOR_TWO else 2
    size, room = len(term.encode()), edits * CHARACTER_BYTES_MAX
    least = size - (edits if term.isascii() else room)
    known = {name for part in parts for name in part.starting(term[0], least, size + room)}
    near = process.extract(term, known, scorer=OSA.distance, score_cutoff=edits, limit=None)
    return [
        (distance, -frequency, name)
        for name, distance, _ in near
        if _is_plain(name) and (frequency := _frequency(parts, name))
    ]


def _is_plain(term: str) -> bool:
    match = WORD.fullmatch(term)
    return match is not None and match.lastgroup is None and term.isalpha()


def _frequency(parts: Sequence[LexicalPart], term: str) -> int:
    return sum(len(part.postings(term)[0]) for part in parts)
