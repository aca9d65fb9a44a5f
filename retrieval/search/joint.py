"""Several collections searched as one: one ranking, as if all their passages were in one collection.

BM25 rests on the counts of all shards
together, so its scores compare; cosines compare if one model made the vectors.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from indexes.base.errors import InvalidInput
from indexes.base.model import TIERS, Floats, Ranking, Scalar, StoredPassage, Tier
from indexes.filters.grammar import Filter, Kind, Unchecked, kind_of
from indexes.lexical.analysis import AnalyzedQuery
from indexes.parts.query import (
    NOT_FOUND,
    Candidates,
    Query,
    Ranks,
    TermCounts,
    exactness_of,
    places_in,
)
from indexes.reading.facets import LISTED_MAX, FacetCounts, FacetQuery
from indexes.reading.surroundings import Surroundings
from retrieval.search.known_counts import KnownCounts, terms_of
from retrieval.search.shard import (
    SHARD_BITS,
    Ahead,
    Ask,
    DocumentRead,
    Example,
    Fetched,
    Follow,
    Followed,
    Partition,
    Rivals,
    Searched,
    What,
    shard_of,
)
from retrieval.search.stages import CachedAnswer
from retrieval.search.steps import all_of

T = TypeVar("T", bound=np.generic)
NO_KEY = "no document has the metadata key"
SPREAD, SHARE_MAX = 4, 0.8  # standard deviations above an even share of the best passages; of all of them


@dataclass(slots=True)
class JointShard(Partition):
    """`found` holds what the last search found in each shard. `even`: a hash divides the passages among them.
    `known` is what was counted in all of them for earlier searches."""

    shards: Sequence[Partition]
    even: bool = False
    known: KnownCounts | None = None
    found: list[Searched] = field(default_factory=list, init=False)
    _terms: AnalyzedQuery | None = field(default=None, init=False)
    _counts: TermCounts | None = field(default=None, init=False)
    _foretold: bool = field(default=False, init=False)  # the counts are what was known before

    async def search(self, ask: Ask) -> Searched:
        """Find candidates in all shards, and rank them together. Raises InvalidInput for a key that none knows."""
        await self.count_terms(ask.query)
        await self._search_all(ask)
        if self._foretold and not self._came_true():
            await self._count_now(ask.query)
            await self._search_all(ask)
        found, depths = self.found, (*ask.query.steps, ask.query.depth)
        candidates, kept = join([one.candidates for one in found], depths)
        return Searched(
            candidates=candidates,
            corrected={word: near for one in found for word, near in one.corrected.items()},
            typos_whole=all(one.typos_whole for one in found),
            values=[take(values, kept) for values in zip(*(one.values for one in found), strict=True)],
            terms=frozenset().union(*(one.terms for one in found)),
            grounds=None,
        )

    async def _search_all(self, ask: Ask) -> None:
        """Search all shards with what the scores rest on."""
        if self._counts is not None:
            query = replace(ask.query, statistics=self._counts, terms=self._terms)
            ask = replace(ask, query=query, counts=self._foretold)
        unknown: dict[str, list[InvalidInput]] = {}
        asks = [ask if ask.exact is None else replace(ask, exact=one) for one in self._divide(ask.exact)]
        share = self._share_of(ask)
        first = [replace(one, query=replace(one.query, depth=share)) for one in asks]
        searches = zip(self.shards, first, strict=True)
        self.found = await all_of([self._search_one(shard, one, unknown) for shard, one in searches])
        if share < ask.query.depth:
            short = cut_short([one.candidates for one in self.found], share, ask.query.depth)
            again = await all_of([self._search_one(self.shards[at], asks[at], {}) for at in short])
            for at, one in zip(short, again, strict=True):
                self.found[at] = one
        empty = sum(not one.passages for one in self.found)  # such a shard knows no keys, and refuses none
        for what, errors in unknown.items():
            # Of values, each shard suggests other names, and what has others in each may be in order.
            told = {one.message.partition(";")[0] for one in errors if NO_KEY not in one.message}
            if (what == "filter" or len(told) <= 1) and len(errors) + empty == len(self.shards):
                raise_if_of_all(errors)

    def _came_true(self) -> bool:
        """Whether the scores are those by what the shards have counted while they searched; go on with that."""
        assert self._counts is not None
        assert self.known is not None
        counts = reduce(TermCounts.plus, [one.counts for one in self.found if one.counts is not None])
        is_so = not counts.hides and counts.weighs_as(self._counts)
        if not is_so:
            self.known.correct(self._counts, counts)
        self._counts, self._foretold = replace(counts, corrected={}), False
        return is_so

    async def count_terms(self, query: Query) -> None:
        """Count what the scores of a query rest on, if it has words and they were not counted before."""
        if query.text is None or self._counts is not None:
            return
        self._terms = terms_of(query)  # once for all shards
        query = replace(query, terms=self._terms)
        if self.known is not None and (foretold := self.known.foretell(query)) is not None:
            self._counts, self._foretold = foretold, True
        else:
            await self._count_now(query)

    async def _count_now(self, query: Query) -> None:
        """Have the shards count. Words that all of them lack are corrected by what is near them in any; looking that up
        takes long."""
        query = replace(query, terms=self._terms)
        counts, corrected = await self.statistics(replace(query, typos=False)), {}
        if self.known is not None:
            self.known.learn(query, counts)
        if query.typos and (counts.missing or counts.hides):
            looked = await self.statistics(replace(query, statistics=counts))
            corrected = looked.corrections()
            counts = replace(counts, corrected=corrected, whole=looked.whole)
            if corrected:
                found = await self.statistics(replace(query, statistics=counts))
                counts = replace(found, corrected=corrected, whole=looked.whole)
        self._counts = replace(counts, corrected=corrected, near=())

    def _share_of(self, ask: Ask) -> int:
        """Return how deep to search each shard first. Of passages that are divided evenly, each has about as many among
        the best as any other."""
        query = ask.query
        if not self.even or ask.exact is not None or query.steps:
            return query.depth
        mean = query.depth / len(self.shards)
        share = math.ceil(mean + SPREAD * math.sqrt(mean))
        return share if query.k <= share <= SHARE_MAX * query.depth else query.depth

    def _divide(self, ranking: Ranking | None) -> list[Ranking]:
        """Divide a ranking of all shards."""
        if ranking is None:
            return [Ranking.empty()] * len(self.shards)
        numbers = ranking.ids >> SHARD_BITS
        places = [np.flatnonzero(numbers == at) for at in range(len(self.shards))]
        return [
            Ranking(ranking.ids[some] - (at << SHARD_BITS), ranking.scores[some], ranking.tiers[some])
            for at, some in enumerate(places)
        ]

    async def _search_one(
        self, shard: Partition, ask: Ask, unknown: dict[str, list[InvalidInput]]
    ) -> Searched:
        """Search one shard. Keys that it does not know are noted in `unknown`, by their places in the request: its
        candidates have no values of them, and a condition on them holds for none."""
        asked, query = list(ask.values), ask.query
        while True:
            try:
                found = await shard.search(replace(ask, query=query, values=tuple(asked)))
            except InvalidInput as error:
                places, what = [one.where for one in asked], error.param or ""
                if error.param in places:
                    del asked[places.index(error.param)]
                elif query.condition is not None and not isinstance(query.condition, Unchecked):
                    query, what = replace(query, condition=Unchecked(query.condition)), "filter"
                else:
                    raise
                unknown.setdefault(what, []).append(error)
            else:
                held = dict(zip([one.where for one in asked], found.values, strict=True))
                nothing: list[list[Scalar]] = [[] for _ in range(len(found.candidates))]
                return replace(found, values=[held.get(one.where, nothing) for one in ask.values])

    def answers_by_collection(self, answer: CachedAnswer, sizes: Sequence[int]) -> list[CachedAnswer]:
        """Return an answer for each collection as the joint one, but for which of its tiers were searched. The first
        shards, as many as the first of `sizes` says, are of the first collection, and so on."""
        shards = iter(self.found)
        found = [coverage([next(shards).candidates for _ in range(size)]) for size in sizes]
        return [replace(answer, tiers=list(tiers), cold_skipped=skipped) for tiers, skipped in found]

    async def fetch(self, ids: Sequence[int], what: What) -> Fetched:
        wanted = np.array(ids, np.int64)
        passages: dict[int, StoredPassage] = {}
        around: dict[int, Surroundings] = {}
        vectors: Floats | None = np.zeros((0, 1), np.float32) if what.vectors and not len(wanted) else None
        numbers = np.unique(wanted >> SHARD_BITS).tolist()
        places = [np.flatnonzero(wanted >> SHARD_BITS == at) for at in numbers]
        fetches = [
            self.shards[at].fetch((wanted[some] - (at << SHARD_BITS)).tolist(), what)
            for at, some in zip(numbers, places, strict=True)
        ]
        for at, some, found in zip(numbers, places, await all_of(fetches), strict=True):
            first = at << SHARD_BITS
            passages |= {first + one: replace(held, id=first + one) for one, held in found.passages.items()}
            around |= {first + one: held for one, held in found.around.items()}
            if found.vectors is not None:
                if vectors is None:
                    vectors = np.zeros((len(wanted), found.vectors.shape[1]), np.float32)
                vectors[some] = found.vectors
        return Fetched(passages, around, vectors)

    async def statistics(self, query: Query) -> TermCounts:
        return reduce(TermCounts.plus, await all_of([shard.statistics(query) for shard in self.shards]))

    async def facets(self, condition: Filter | None, asked: Sequence[FacetQuery]) -> list[FacetCounts]:
        """Count facets over all shards. Of a key with more values than a shard lists, rare ones are counted too low."""
        if condition is not None:  # the search found out whether any shard knows its keys
            condition = Unchecked(condition)
        counts = await all_of([shard.facets(condition, asked) for shard in self.shards])
        return [add_counts(one) for one in zip(*counts, strict=True)]

    async def examples(self, documents: Sequence[str]) -> list[Example | None]:
        found: list[Example | None] = [None] * len(documents)
        for at, held in enumerate(await all_of([shard.examples(documents) for shard in self.shards])):
            for place, one in enumerate(held):
                if one is not None:
                    found[place] = replace(one, passages=one.passages + (at << SHARD_BITS))
        return found

    async def scan(self, vectors: Floats, depth: int, condition: Filter | None) -> list[Ranking]:
        faults: list[InvalidInput] = []
        scans = [scan_of(shard, vectors, depth, condition, faults) for shard in self.shards]
        found = await all_of(scans)
        if len(faults) == len(self.shards):
            raise_if_of_all(faults)
        return [first_of(one, depth) for one in zip(*found, strict=True)]

    async def read(self, document_id: str, alike: int = 0) -> DocumentRead:
        found = await all_of([shard.read(document_id, alike) for shard in self.shards])
        near = list(dict.fromkeys(name for one in found for name in one.alike))
        for at, one in enumerate(found):
            if one.document is not None:
                return replace(one, first=one.first + (at << SHARD_BITS), alike=near)
        return DocumentRead(None, expired=False, first=0, alike=near)

    async def follow(self, asked: Follow) -> Followed:
        """Find where passages of one shard stand among those of all. A search has counted what the scores rest on."""
        at = shard_of(int(asked.ids[0]))
        query, first = replace(asked.query, statistics=self._counts), at << SHARD_BITS
        if query.condition is not None:  # the search found out whether any shard knows its keys
            query = replace(query, condition=Unchecked(query.condition))
        own = replace(asked, query=query, ids=asked.ids - first, first=asked.first - first)
        found = await self.shards[at].follow(own)
        dense, lexical = (
            np.array([np.nan if score is None else score for score in scores], np.float32)
            for scores in ([one.dense for one in found.standings], [one.lexical for one in found.standings])
        )
        others = [(shard, number < at) for number, shard in enumerate(self.shards) if number != at]
        ahead = add_ahead(
            await all_of([one.count_ahead(Rivals(query, dense, lexical, before)) for one, before in others])
        )
        standings = [
            dataclasses.replace(
                one,
                id=first + one.id,
                dense_rank=None if one.dense_rank is None else one.dense_rank + by_meaning,
                lexical_rank=None if one.lexical_rank is None else one.lexical_rank + by_words,
            )
            for one, by_meaning, by_words in zip(
                found.standings, ahead.dense.tolist(), ahead.lexical.tolist(), strict=True
            )
        ]
        return replace(
            found,
            standings=standings,
            passages={first + one: replace(held, id=first + one) for one, held in found.passages.items()},
            holding={term: ids + first for term, ids in found.holding.items()},
        )

    async def count_ahead(self, rivals: Rivals) -> Ahead:
        return add_ahead(await all_of([shard.count_ahead(rivals) for shard in self.shards]))


def add_ahead(found: Sequence[Ahead]) -> Ahead:
    dense, lexical = [one.dense for one in found], [one.lexical for one in found]
    return Ahead(np.sum(dense, axis=0), np.sum(lexical, axis=0))


def raise_if_of_all(errors: Sequence[InvalidInput]) -> None:
    """Raise what is wrong with a request for all shards: only if all refuse it for the same part of it, since each
    knows its own keys alone. Of their errors choose one about values, rather than that there is no such key, which is
    true only if all say so; and the one that suggests most."""
    places = sorted((one.param or "" for one in errors), key=len)
    if all(one.startswith(places[0]) for one in places):
        raise max(errors, key=lambda one: worth_telling(one.message))


def worth_telling(message: str) -> tuple[bool, bool, int]:
    return NO_KEY not in message, "did you mean" in message, len(message)


async def scan_of(
    shard: Partition, vectors: Floats, depth: int, condition: Filter | None, faults: list[InvalidInput]
) -> list[Ranking]:
    """Scan one shard. Where it does not have the keys of the condition, which is noted in `faults`, nothing matches."""
    try:
        return await shard.scan(vectors, depth, condition)
    except InvalidInput as error:
        if condition is None:
            raise
        faults.append(error)
    return await shard.scan(vectors, depth, Unchecked(condition))


def add_counts(found: Sequence[FacetCounts]) -> FacetCounts:
    """Add the counts of one facet in several shards. What is wrong with it is only what all find wrong."""
    values: Counter[tuple[Kind, Scalar]] = Counter()  # True is no 1
    for one in found:
        for value, count in one.values:
            values[kind_of(value), value] += count
    first = sorted(((-count, kind, value) for (kind, value), count in values.items()))[:LISTED_MAX]
    faults = [one.fault for one in found if one.fault is not None]
    return FacetCounts(
        values=[(value, -count) for count, _, value in first],
        distinct=max(len(values), *(one.distinct for one in found)),
        ranges=[
            (ranges[0][0], sum(count for _, count in ranges))
            for ranges in zip(*(one.ranges for one in found), strict=True)
        ],
        documents=sum(one.documents for one in found),
        missing=sum(one.missing for one in found),
        fault="" if "" in faults else max(faults, key=worth_telling, default=None),
    )


def first_of(rankings: Sequence[Ranking], depth: int) -> Ranking:
    """Merge rankings of several shards by score."""
    ids = np.concatenate([one.ids + (at << SHARD_BITS) for at, one in enumerate(rankings)])
    scores = np.concatenate([one.scores for one in rankings])
    tiers = np.concatenate([one.tiers for one in rankings])
    order = np.lexsort((ids, -scores))[:depth]
    return Ranking(ids[order], scores[order], tiers[order])


def join(found: Sequence[Candidates], depths: Sequence[int]) -> tuple[Candidates, NDArray[np.intp]]:
    """Rank the candidates of several shards in one ranking of each kind, down to the last of the `depths`. Also returns
    where they stood in the shards' candidates one after the other."""

    def column(of: Callable[[Candidates], NDArray[T]]) -> NDArray[T]:
        return np.concatenate([of(one) for one in found])

    ids = np.concatenate([one.ids + (at << SHARD_BITS) for at, one in enumerate(found)])
    dense, lexical = column(lambda one: one.dense), column(lambda one: one.lexical)
    dense_ranks = rank(dense, column(lambda one: one.dense_ranks), ids, depths)
    lexical_ranks = rank(lexical, column(lambda one: one.lexical_ranks), ids, depths)
    names = np.zeros(len(ids), np.float32)
    if exactness := exactness_of(
        replace(name, ids=[one + (at << SHARD_BITS) for one in name.ids])
        for at, some in enumerate(found)
        for name in some.named
    ):
        names[places_in(ids, np.array(list(exactness)))] = list(exactness.values())
    kept = np.flatnonzero((dense_ranks != NOT_FOUND) | (lexical_ranks != NOT_FOUND) | (names > 0))
    # Dense results first, each kind by rank: NOT_FOUND as an unsigned number is the largest.
    kept = kept[np.lexsort((lexical_ranks[kept].view(np.uint32), dense_ranks[kept].view(np.uint32)))]
    searched, skipped = coverage(found)
    return Candidates(
        ids=ids[kept],
        dense=dense[kept],
        lexical=lexical[kept],
        dense_ranks=dense_ranks[kept],
        lexical_ranks=lexical_ranks[kept],
        tiers=column(lambda one: one.tiers)[kept],
        lexical_bound=max(one.lexical_bound for one in found),
        names=names[kept] if exactness else None,
        searched=searched,
        cold_skipped=skipped,
    ), kept


def cut_short(found: Sequence[Candidates], share: int, depth: int) -> list[int]:
    """Return the shards, by number, that may have more of the best `depth` passages by either score than they returned:
    they returned `share` of them, the last of which is among the best of all."""
    short: set[int] = set()
    for of in (lambda one: (one.dense, one.dense_ranks), lambda one: (one.lexical, one.lexical_ranks)):
        ranked = [scores[ranks != NOT_FOUND] for scores, ranks in map(of, found)]
        together = np.concatenate(ranked)
        least = np.partition(together, -depth)[-depth] if len(together) >= depth else -np.inf
        short.update(at for at, one in enumerate(ranked) if len(one) >= share and one.min() >= least)
    return sorted(short)


def coverage(found: Sequence[Candidates]) -> tuple[tuple[Tier, ...], str | None]:
    """Return the tiers in which some of the candidates were searched for, and why cold ones were not."""
    searched = {tier for one in found for tier in one.searched}
    skipped = dict.fromkeys(one.cold_skipped for one in found if one.cold_skipped)
    return tuple(tier for tier in TIERS if tier in searched), "; ".join(skipped) or None


def rank(scores: Floats, ranks: Ranks, ids: NDArray[np.int64], depths: Sequence[int]) -> Ranks:
    """Rank those that are in a ranking of their shard, by score; NOT_FOUND for all others.

    As in each shard, what a deeper search adds comes after all that was ranked to the depth before, so that later pages
    repeat nothing.
    """
    joined, placed = np.full(len(ranks), NOT_FOUND, np.int32), 0
    for depth in depths:
        more = np.flatnonzero((ranks != NOT_FOUND) & (ranks < depth) & (joined == NOT_FOUND))
        first = more[np.lexsort((ids[more], -scores[more]))][: depth - placed]
        joined[first] = placed + np.arange(len(first))
        placed += len(first)
    return joined


def take(values: Sequence[Sequence[Sequence[Scalar]]], kept: NDArray[np.intp]) -> list[Sequence[Scalar]]:
    """Take the values of the candidates that were kept."""
    together = [one for some in values for one in some]
    return [together[at] for at in kept.tolist()]
