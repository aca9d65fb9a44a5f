"""Suggests which name was probably meant, for errors about unknown names."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from rapidfuzz import process
from rapidfuzz.distance import Indel

LISTED_MAX = 20
NAME_CHARS_SHOWN = 100  # of a name in a request, for comparing and showing it
COMPARED_MAX = 1000  # names, those of the most similar length

Alike = Sequence[frozenset[str]]


def suggestion(name: str, known: Collection[str], alike: Alike = ()) -> str:
    """`did you mean 'k'?` if that is likely, else the known names. `alike`: groups of names for the same thing."""
    meant = synonym(name, known, alike) or next(iter(similar(name, known, 1)), None)
    if meant is not None:
        return f"did you mean {meant!r}?"
    listed = ", ".join(sorted(known)[:LISTED_MAX]) or "none"
    return f"known names: {listed}" + (", ..." if len(known) > LISTED_MAX else "")


def similar(name: str, known: Iterable[str], most: int, least: float = 0.6) -> list[str]:
    """The known names that are spelled like this one, most similar first. `least` is the least similarity, 0 to 1."""
    long = [one for one in known if len(one) > 2]  # any four letters are "close" to some two
    shown = name[:NAME_CHARS_SHOWN]
    compared = heapq.nsmallest(COMPARED_MAX, long, key=lambda one: abs(len(one) - len(shown)))
    near = process.extract(
        shown, compared, scorer=Indel.normalized_similarity, score_cutoff=least, limit=most
    )
    return [one for one, _, _ in near]


def synonym(name: str, known: Collection[str], alike: Alike) -> str | None:
    """The known name with the same meaning: this one in lower case, without MongoDB's dollar, or another of its
    group."""
    wanted = name[:NAME_CHARS_SHOWN].lower().lstrip("$")
    same = {wanted}.union(*(group for group in alike if wanted in group))
    return wanted if wanted in known else min(same & set(known), default=None)
