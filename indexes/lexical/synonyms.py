"""Synonyms of a collection: words and expressions that a search by words takes for each other.

A word of the query that is in a list stands for all words of the list, as one word. The list's expressions of several
words are searched for too; the words of one weigh as much as one word together. The same if the query has all words of
an expression.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from indexes.lexical.analysis import query_terms
from indexes.lexical.prefixed import Prefixed

TERMS_MAX = 64  # that synonyms add to one query
Alternative = frozenset[str]  # the terms of a word or an expression


class Synonyms(msgspec.Struct, frozen=True, cache_hash=True):
    """Lists of words and expressions that mean the same."""

    lists: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a query stands for beyond its words.

    groups    words that count as one, by names that are no terms
    replaced  the query's terms that are in such a group
    counts    how often the groups, and terms that the query does not have, count as if they were in it
    whole     false if further lists would have added more than TERMS_MAX terms
    """

    groups: Mapping[str, Prefixed] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    counts: Mapping[str, float] = field(default_factory=dict)
    whole: bool = True

    @property
    def names(self) -> dict[str, str]:
        """The word to show each group by: one of the query's words if the group has any."""
        return {
            name: min(group.terms & self.replaced, default=min(group.terms))
            for name, group in self.groups.items()
        }


NOTHING = Expansion()


def expand(own: AbstractSet[str], synonyms: Synonyms | None, language: str) -> Expansion:
    """Expand a query by the lists that have one of its words, or all words of an expression. `own` are the query's
    terms in its language."""
    if synonyms is None:
        return NOTHING
    index = _index(synonyms, language)
    groups: list[Alternative] = []
    counts: dict[str, float] = {}
    room, whole = TERMS_MAX, True
    for number in sorted({number for term in own for number in index.get(term, ())}):
        alternatives = _analyzed(synonyms.lists[number], language)
        present = [one for one in alternatives if one <= own]
        room -= len(frozenset().union(*alternatives) - own) if present else 0
        if room < 0:
            whole = False
            break
        words = frozenset().union(*(one for one in alternatives if len(one) == 1))
        if present and (len(words) > 1 or not words <= own):
            met = [group for group in groups if group & words]  # a word may be in several lists
            groups = [*(group for group in groups if group not in met), words.union(*met)]
        for one in alternatives if present else ():
            if len(one) > 1 and one not in present:
                counts |= {term: max(counts.get(term, 0.0), 1 / len(one)) for term in one - own}
    named = {f"~{at}": Prefixed("", words, words) for at, words in enumerate(groups)}  # no term begins so
    grouped = frozenset().union(*groups)
    counts = {term: count for term, count in counts.items() if term not in grouped} | dict.fromkeys(
        named, 1.0
    )
    return Expansion(named, grouped & own, counts, whole)


@lru_cache(64)
def _index(synonyms: Synonyms, language: str) -> Mapping[str, list[int]]:
    """The lists in which each term is."""
    found: dict[str, list[int]] = defaultdict(list)
    for number, one in enumerate(synonyms.lists):
        for term in frozenset().union(*_analyzed(one, language)):
            found[term].append(number)
    return dict(found)


@lru_cache(4096)
def _analyzed(alternatives: tuple[str, ...], language: str) -> tuple[Alternative, ...]:
    """The terms of each alternative; without those that are the same word, or no words."""
    found = (frozenset(query_terms(one, language, {})) for one in alternatives)
    return tuple(dict.fromkeys(one for one in found if one))
