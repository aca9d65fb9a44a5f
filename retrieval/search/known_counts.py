"""What BM25 counts over all shards of a collection, kept between searches.

A search whose words are known need not have them counted first: it rests on what was counted before, and each shard
counts again while it searches. Only if a score would differ by that, it is searched again. BM25 rounds what it counts,
so few writes make a difference. The most frequent terms are read from all shards once, others are kept when they are
counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from indexes.base.languages import QueryLanguage
from indexes.lexical.analysis import AnalyzedQuery
from indexes.parts.query import Query, TermCounts
from indexes.parts.snapshot import rounded

TERMS_READ = 1 << 14  # of each shard
TERMS_KEPT = 1 << 16
CHARS_MAX = 300  # of a query; the words of longer ones are seldom all known
MISTAKES_MAX = 50  # after which the terms are read again
READ_EVERY_S = 60.0


@dataclass(slots=True)
class KnownCounts:
    """Use it from any thread. `frequencies` holds the terms that were counted last, the oldest first. That they change
    between two looks at them does no harm: what is foretold is counted again."""

    passages: int = 0
    length: int = 0
    hides: bool = False
    frequencies: dict[str, int] = field(default_factory=dict)
    _mistakes: int = MISTAKES_MAX
    _read_at: float = float("-inf")
    _keeping: threading.Lock = field(default_factory=threading.Lock)

    def foretell(self, query: Query) -> TermCounts | None:
        """Return what the shards would count for a query; None if that is not known, or if some of its words are not in
        any shard, which others may stand for. Forms of its words in other languages are in none if they are not
        known."""
        if self.hides or not may_be_known(query):
            return None
        terms = query.terms
        assert terms is not None
        found = {term: self.frequencies.get(term, 0) for term in terms.weights}
        if not all(found[term] for term in terms.own):
            return None
        return TermCounts(self.passages, self.length, found, seen=terms.own, corrected={})

    def learn(self, query: Query, counts: TermCounts) -> None:
        """Keep what all shards have counted for a query."""
        if may_be_known(query):
            self._keep(counts, counts.frequencies)

    def correct(self, foretold: TermCounts, counts: TermCounts) -> None:
        """Keep what all shards have counted where something else was foretold."""
        self._mistakes += 1
        self._keep(counts, {term: counts.frequencies.get(term, 0) for term in foretold.frequencies})

    def wants_terms(self, now: float | None = None) -> bool:
        """Whether the frequent terms of the shards should be read now, which is said once. Ask on the event loop."""
        now = time.monotonic() if now is None else now
        if self._mistakes < MISTAKES_MAX or now < self._read_at + READ_EVERY_S:
            return False
        self._mistakes, self._read_at = 0, now
        return True

    def fill(self, shards: Sequence[TermCounts]) -> None:
        """Keep the frequent terms of all shards. A term that one of them does not name is in none of its passages if it
        has named all; else it is not known in how many."""
        counts = reduce(TermCounts.plus, shards)
        known = set(counts.frequencies)
        for one in shards:
            if len(one.frequencies) >= TERMS_READ:
                known &= one.frequencies.keys()
        self._keep(counts, {term: counts.frequencies[term] for term in known})

    def _keep(self, counts: TermCounts, frequencies: Mapping[str, int]) -> None:
        with self._keeping:
            self.passages, self.length, self.hides = counts.passages, counts.length, counts.hides
            for term, count in frequencies.items():
                self.frequencies.pop(term, None)
                self.frequencies[term] = count
            while len(self.frequencies) > TERMS_KEPT:
                del self.frequencies[next(iter(self.frequencies))]


def may_be_known(query: Query) -> bool:
    """Whether the counts of a query are those of its terms, over all passages, and nothing else decides its scores."""
    return query.terms is not None and not (query.visible or query.prefixes or query.synonyms)


def terms_of(query: Query) -> AnalyzedQuery | None:
    """Return the terms of a query with a text as every shard finds them; None if the text is long, or the languages of
    all passages are not known."""
    if query.text is None or not query.spoken or len(query.text) > CHARS_MAX:
        return None
    found = QueryLanguage.of(query.text, query.language, rounded(query.spoken))
    return AnalyzedQuery.of(query.text, found.language, found.others).with_phrases(query.phrases)
