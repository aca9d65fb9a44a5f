"""A shard that a node has: every call is sent there, with the operation that the answer must know of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from indexes.base.model import Floats, Ranking, StoredPassage
from indexes.filters.grammar import Filter
from indexes.parts.query import Query, TermCounts
from indexes.reading.facets import FacetCounts, FacetQuery
from retrieval.cluster.calls import AnyCall
from retrieval.search.calls import (
    CountAhead,
    CountFacets,
    CountTerms,
    Fetch,
    FollowPassages,
    ReadDocument,
    ReadExamples,
    ScanShard,
    SearchShard,
    ShardSearched,
)
from retrieval.search.shard import (
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
)
from retrieval.search.steps import Away

NOTHING, TEXTS = What(), What(passages=True)


@dataclass(slots=True)
class RemoteShard(Partition):
    """`least` is the operation that each answer must know of, `wanted` that of the request, and `seq` the last one that
    the answers knew of. `returned` are the passages that a user got, which its node is told of with a later call. A
    search brings `likely` passages of each ranking along, so that few have to be fetched. An `optional` one
    is left out of answers once it is `silent`: no node answers for it."""

    name: str
    least: int = 0
    likely: int = 0
    wanted: int = 0
    optional: bool = field(default=False, init=False)
    silent: bool = field(default=False, init=False)
    seq: int = field(default=0, init=False)
    returned: list[int] = field(default_factory=list, init=False)
    _passages: dict[int, StoredPassage] = field(default_factory=dict, init=False)

    def away(self, call: AnyCall) -> Away[Any]:
        return Away(self, call)

    async def search(self, ask: Ask) -> Searched:
        found: ShardSearched = await self.away(SearchShard(ask, self.likely))
        self._passages |= found.passages
        return found.searched

    async def fetch(self, ids: Sequence[int], what: What) -> Fetched:
        if what.hits:
            self.returned += ids
            what = replace(what, hits=False)
        if not ids or what == NOTHING:
            return Fetched()
        known = {one: self._passages[one] for one in ids if one in self._passages} if what == TEXTS else {}
        if len(known) == len(ids):
            return Fetched(known)
        found: Fetched = await self.away(Fetch([one for one in ids if one not in known], what))
        return replace(found, passages={**known, **found.passages}) if known else found

    async def statistics(self, query: Query) -> TermCounts:
        found: TermCounts = await self.away(CountTerms(query))
        return found

    async def facets(self, condition: Filter | None, asked: Sequence[FacetQuery]) -> list[FacetCounts]:
        found: list[FacetCounts] = await self.away(CountFacets(condition, asked))
        return found

    async def examples(self, documents: Sequence[str]) -> list[Example | None]:
        found: list[Example | None] = await self.away(ReadExamples(documents))
        return found

    async def scan(self, vectors: Floats, depth: int, condition: Filter | None) -> list[Ranking]:
        found: list[Ranking] = await self.away(ScanShard(vectors, depth, condition))
        return found

    async def read(self, document_id: str, alike: int = 0) -> DocumentRead:
        found: DocumentRead = await self.away(ReadDocument(document_id, alike))
        return found

    async def follow(self, asked: Follow) -> Followed:
        found: Followed = await self.away(FollowPassages(asked))
        return found

    async def count_ahead(self, rivals: Rivals) -> Ahead:
        found: Ahead = await self.away(CountAhead(rivals))
        return found
