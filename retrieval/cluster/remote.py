"""A shard that a node has: every call is sent there, with the operation that the answer must know of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from indexes.base.model import Floats, Ranking
from indexes.filters.grammar import Filter
from indexes.parts.query import Query, TermCounts
from indexes.reading.facets import FacetCounts, FacetQuery
from retrieval.cluster.calls import (
    AnyCall,
    CountFacets,
    CountTerms,
    Fetch,
    ReadExamples,
    ScanShard,
    SearchShard,
)
from retrieval.search.shard import Ask, Example, Fetched, Partition, Searched, What
from retrieval.search.steps import Away

NOTHING = What()


@dataclass(slots=True)
class RemoteShard(Partition):
    """`least` is the operation that each answer must know of, `seq` the last one that the answers knew of. `returned`
    are the passages that a user got, which its node is told of with a later call."""

    name: str
    least: int = 0
    seq: int = field(default=0, init=False)
    returned: list[int] = field(default_factory=list, init=False)

    def away(self, call: AnyCall) -> Away[Any]:
        return Away(self, call)

    async def search(self, ask: Ask) -> Searched:
        found: Searched = await self.away(SearchShard(ask))
        return found

    async def fetch(self, ids: Sequence[int], what: What) -> Fetched:
        if what.hits:
            self.returned += ids
            what = replace(what, hits=False)
        if not ids or what == NOTHING:
            return Fetched()
        found: Fetched = await self.away(Fetch(ids, what))
        return found

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
