"""A search's query and its candidates: plain values that can be sent to another process.

The service calls `snapshot.prepare`, then `lexical` and `dense`, then `Candidates.join`, and fuses the candidates
itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.model import DenseResult, Floats, Ids, Ranking, Spared, Sparing, Tier
from indexes.filters.grammar import Filter
from indexes.lexical.analysis import AnalyzedQuery
from indexes.lexical.bm25 import Statistics, round_count
from indexes.lexical.synonyms import Synonyms
from indexes.lexical.typos import NearTerms, correct

Ranks = NDArray[np.int32]
NOT_FOUND = -1
SHARED_MAX = 32  # a name of more passages than this tells none of them from others
NAMED_IN_PART = 0.5  # by the heading, or the last part of a name


class TermCounts(msgspec.Struct, frozen=True):
    """What the BM25 scores of a query rest on: how many live passages there are, how many terms they have together, and
    in how many of them each term of the query is. `missing` are the terms of words that none of them has, `seen` those
    of words that need no correction. `hides`: the frequencies count passages that are hidden or have expired. `near` is
    what may be used for words that none has, if that was asked for, and `whole` says that no such word was left out.
    `corrected` are the terms of words with the term that is used for them; None: that is not decided."""

    passages: int
    length: int
    frequencies: Mapping[str, int]
    missing: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    hides: bool = False
    near: tuple[NearTerms, ...] = ()
    whole: bool = True
    corrected: Mapping[str, tuple[frozenset[str], str]] | None = None

    def plus(self, other: TermCounts) -> TermCounts:
        """The counts over both, for shards that have no passage in common."""
        frequencies = Counter(self.frequencies)
        frequencies.update(other.frequencies)
        return TermCounts(
            self.passages + other.passages,
            self.length + other.length,
            frequencies,
            self.missing & other.missing,
            self.seen | other.seen,
            self.hides or other.hides,
            join_near(self.near, other.near),
            self.whole and other.whole,
            self.corrected,
        )

    def weighs_as(self, other: TermCounts) -> bool:
        """Whether BM25 weighs the terms of the other counts alike by both."""
        mine, others = (Statistics(one.passages, one.length) for one in (self, other))
        return (
            mine.mean_length == others.mean_length
            and round_count(mine.passages) == round_count(others.passages)
            and all(
                round_count(self.frequencies.get(term, 0)) == round_count(count)
                for term, count in other.frequencies.items()
            )
        )

    def corrections(self) -> dict[str, tuple[frozenset[str], str]]:
        """Return the terms of words that none of the passages has, each with the term to use for it."""
        return correct(one for one in self.near if not one.meant & self.seen)


def join_near(some: Iterable[NearTerms], others: Iterable[NearTerms]) -> tuple[NearTerms, ...]:
    found = {one.place: one for one in some}
    for one in others:
        found[one.place] = found[one.place].plus(one) if one.place in found else one
    return tuple(found.values())


class Query(msgspec.Struct, frozen=True):
    """One query. `text` is for BM25, `vector` (unit length, float32 [dimensions]) for the dense indexes; None skips
    that searcher.

    `language` is the text's; None: guessed among those of the passages. `typos`: words that no passage has are replaced
    by the nearest ones; only passages that match `visible` count, None: all. Only passages that may contain all
    `phrases`, and a word with each of the `prefixes`, are found; their texts decide. BM25 and the dense indexes each
    return `depth` candidates. The first `k` may be shown, on this page or an earlier one: what sparing the cold tier
    loses is measured on them. `counted`: the query is real traffic. `sparing`: how it may spare the cold tier of the
    generation it names; None: it searches the lists. `steps`: the depths, ascending,
    of earlier searches whose dense rankings this one extends. `ranks`: how many places of the dense ranking are found
    with the recall that was asked of the index, later ones with less; 0: `k`. `statistics`: what BM25 counts, if these
    passages are not all that the scores shall rest on; None: these passages. `spoken`: likewise, the languages of how
    many passages a query's language is guessed among. `terms`: those of the text, if they were found before.
    `synonyms` expand the text.
    """

    k: int
    depth: int
    text: str | None = None
    vector: Floats | None = None
    condition: Filter | None = None
    counted: bool = True
    language: str | None = None
    typos: bool = False
    visible: Filter | None = None
    phrases: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    ranks: int = 0
    statistics: TermCounts | None = None
    synonyms: Synonyms | None = None
    sparing: Sparing | None = None
    spoken: Mapping[str, int] | None = None
    terms: AnalyzedQuery | None = None


class Named(msgspec.Struct, frozen=True):
    """Passages that have a possible name of a query, its `name`-th. `match` is in which of the ways that are looked
    for, 0 the best; `exactness`: see `names` of Candidates; `count` of them. `ids` are left out where they are more
    than SHARED_MAX."""

    name: int
    match: int
    exactness: float
    count: int
    ids: list[int]


def exactness_of(named: Iterable[Named]) -> dict[int, float]:
    """Return the passages that a query names, with their exactness. Of each name, which may be found in several
    collections or shards, the best match counts, if at most SHARED_MAX passages have it."""
    by_name: dict[int, list[Named]] = {}
    for one in named:
        by_name.setdefault(one.name, []).append(one)
    found: dict[int, float] = {}
    for several in by_name.values():
        best = min(one.match for one in several)
        held = [one for one in several if one.match == best]
        if sum(one.count for one in held) <= SHARED_MAX:
            found |= {id_: max(one.exactness, found.get(id_, 0.0)) for one in held for id_ in one.ids}
    return found


class Candidates(msgspec.Struct, frozen=True):
    """The union of both searchers' results: columns of n, dense results first.

    Scores are float32, NaN where that searcher did not find the passage; ranks count from 0, NOT_FOUND where it is not
    in that ranking. `tiers` int8 index TIERS. `lexical_bound`: the score of a passage with unlimited occurrences of
    every query word, including words that no passage has. `names` float32: 1 for a passage whose document's id or
    title the text holds, NAMED_IN_PART for other names, else 0; None: all 0. Named passages are candidates even if they
    are in neither ranking; `named` says by what, if it may be found elsewhere, too. `searched` lists the tiers that the
    dense search covered; BM25 always covers all.
    """

    ids: Ids
    dense: Floats
    lexical: Floats
    dense_ranks: Ranks
    lexical_ranks: Ranks
    tiers: NDArray[np.int8]
    lexical_bound: float = 0.0
    names: Floats | None = None
    named: Sequence[Named] = ()
    searched: tuple[Tier, ...] = ()
    cold_skipped: str | None = None
    spared: Spared | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def join(dense: DenseResult, lexical: Ranking, lexical_bound: float = 0.0) -> Candidates:
        first = dense.ranking
        places = places_in(first.ids, lexical.ids)
        new = places == NOT_FOUND
        ids = np.concatenate([first.ids, lexical.ids[new]])
        places[new] = np.arange(len(first), len(ids))
        scores = np.full((2, len(ids)), np.nan, np.float32)
        ranks = np.full((2, len(ids)), NOT_FOUND, np.int32)
        scores[0, : len(first)] = first.scores
        ranks[0, : len(first)] = np.arange(len(first))
        scores[1, places] = lexical.scores
        ranks[1, places] = np.arange(len(lexical))
        tiers = np.concatenate([first.tiers, lexical.tiers[new]])
        return Candidates(
            ids=ids,
            dense=scores[0],
            lexical=scores[1],
            dense_ranks=ranks[0],
            lexical_ranks=ranks[1],
            tiers=tiers,
            lexical_bound=lexical_bound,
            searched=dense.tiers,
            cold_skipped=dense.cold_skipped,
            spared=dense.spared,
        )


def places_in(ids: Ids, wanted: Ids) -> NDArray[np.int64]:
    """Position of each wanted id in `ids`, NOT_FOUND if absent."""
    if not len(ids):
        return np.full(len(wanted), NOT_FOUND, np.int64)
    order = np.argsort(ids)
    at = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[at] == wanted, at, NOT_FOUND)
