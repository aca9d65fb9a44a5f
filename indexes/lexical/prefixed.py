"""Terms that count as one word: all with a prefix of a query, or synonyms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Postings = tuple[NDArray[np.uint32], NDArray[np.uint16]]


class Lists(Protocol):
    """The posting lists of one part."""

    def postings(self, term: str) -> Postings:
        """The postings of a term: distinct rows, ascending, and the term frequency in each."""
        ...

    def postings_starting(self, prefix: str) -> Postings:
        """The concatenated postings of all terms with this prefix: rows repeat, in no order."""
        ...


class Prefixed(NamedTuple):
    """`terms` that count as one word: all with a prefix, if it is not empty, and some `others` without it."""

    prefix: str
    terms: frozenset[str]
    others: frozenset[str] = frozenset()


Groups = Mapping[str, Prefixed]  # by a name that is no term
NO_GROUPS: Groups = {}


def postings_of(part: Lists, term: str, groups: Groups) -> Postings:
    """The postings of a term, or of a group of terms as if they were one."""
    if term not in groups:
        return part.postings(term)
    lists = lists_of(part, groups[term])
    rows = np.concatenate([rows for rows, _ in lists])
    # By row, not by sorting: frequent words have millions of postings.
    sums = np.bincount(rows, np.concatenate([counts for _, counts in lists]))
    found = np.flatnonzero(sums)
    return found.astype(np.uint32), np.minimum(sums[found], np.iinfo(np.uint16).max).astype(np.uint16)


def lists_of(part: Lists, group: Prefixed) -> list[Postings]:
    begins = [part.postings_starting(group.prefix)] if group.prefix else []
    return [*begins, *map(part.postings, group.others)]
