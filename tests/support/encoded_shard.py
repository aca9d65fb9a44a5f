"""A shard that encodes every argument and result to bytes and back, as a shard in another process would have to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from indexes.base.model import Floats, Ranking
from indexes.filters.grammar import Filter
from indexes.parts.query import Query, TermCounts
from indexes.reading.facets import FacetCounts, FacetQuery
from retrieval.search.shard import (
    Ahead,
    Ask,
    DocumentRead,
    Example,
    Fetched,
    Follow,
    Followed,
    Later,
    LaterPassages,
    LocalShard,
    Rivals,
    Searched,
    What,
)
from retrieval.search.travel import pack, unpack

T = TypeVar("T")


def travel(value: T, kind: Any) -> T:
    """Return what arrives of a value that is declared as this type."""
    arrived: T = unpack(pack(value), kind)
    return arrived


class EncodedShard(LocalShard):
    """A local shard behind bytes."""

    async def search(self, ask: Ask) -> Searched:
        return travel(await LocalShard.search(self, travel(ask, Ask)), Searched)

    async def fetch(self, ids: Sequence[int], what: What) -> Fetched:
        return travel(await LocalShard.fetch(self, travel(ids, list[int]), travel(what, What)), Fetched)

    async def statistics(self, query: Query) -> TermCounts:
        return travel(await LocalShard.statistics(self, travel(query, Query)), TermCounts)

    async def facets(self, condition: Filter | None, asked: Sequence[FacetQuery]) -> list[FacetCounts]:
        arrived = travel(condition, Filter | None), travel(asked, list[FacetQuery])
        return travel(await LocalShard.facets(self, *arrived), list[FacetCounts])

    async def examples(self, documents: Sequence[str]) -> list[Example | None]:
        return travel(await LocalShard.examples(self, travel(documents, list[str])), list[Example | None])

    async def later(self, asked: Later) -> LaterPassages:
        return travel(await LocalShard.later(self, travel(asked, Later)), LaterPassages)

    async def scan(self, vectors: Floats, depth: int, condition: Filter | None) -> list[Ranking]:
        arrived = travel(vectors, Floats), travel(depth, int), travel(condition, Filter | None)
        return travel(await LocalShard.scan(self, *arrived), list[Ranking])

    async def read(self, document_id: str, alike: int = 0) -> DocumentRead:
        return travel(await LocalShard.read(self, document_id, alike), DocumentRead)

    async def count_ahead(self, rivals: Rivals) -> Ahead:
        return travel(await LocalShard.count_ahead(self, travel(rivals, Rivals)), Ahead)

    async def follow(self, asked: Follow) -> Followed:
        return travel(await LocalShard.follow(self, travel(asked, Follow)), Followed)
