"""Calls of a shard as values: what the methods of a `Partition` take and return, for shards in other processes and on
other machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np

from indexes.base.errors import NearlineError, Unavailable
from indexes.base.model import Floats, Ranking, Spared, StoredPassage
from indexes.filters.grammar import Filter
from indexes.parts.query import Candidates, Query, TermCounts
from indexes.reading.facets import FacetCounts, FacetQuery
from retrieval.search.shard import (
    Ahead,
    Ask,
    DocumentRead,
    Example,
    Fetched,
    Follow,
    Followed,
    LocalShard,
    Rivals,
    Searched,
    What,
    run_at_once,
)
from retrieval.search.travel import pack
from retrieval.wire.errors import ErrorDetail, error_of, type_name


class Call(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """One call of a shard. With `needs_newest`, a replica may know too little to answer it."""

    needs_newest: ClassVar[bool] = False


class SearchShard(Call, frozen=True):
    """The first `likely` passages of each ranking come along: most hits are among them."""

    ask: Ask
    likely: int = 0


class CountTerms(Call, frozen=True):
    query: Query


class Fetch(Call, frozen=True):
    ids: Sequence[int]
    what: What


class CountFacets(Call, frozen=True):
    condition: Filter | None
    asked: Sequence[FacetQuery]


class ReadExamples(Call, frozen=True):
    documents: Sequence[str]


class ScanShard(Call, frozen=True):
    vectors: Floats
    depth: int
    condition: Filter | None


class ReadDocument(Call, frozen=True):
    document: str
    alike: int


class FollowPassages(Call, frozen=True):
    asked: Follow


class CountAhead(Call, frozen=True):
    rivals: Rivals


class ShardSearched(msgspec.Struct, array_like=True, frozen=True):
    """What was found, and the passages that come along."""

    searched: Searched
    passages: Mapping[int, StoredPassage]


PartitionCall = (
    SearchShard
    | CountTerms
    | Fetch
    | CountFacets
    | ReadExamples
    | ScanShard
    | ReadDocument
    | FollowPassages
    | CountAhead
)
ANSWERS: dict[type[Call], Any] = {
    SearchShard: ShardSearched,
    CountTerms: TermCounts,
    Fetch: Fetched,
    CountFacets: list[FacetCounts],
    ReadExamples: list[Example | None],
    ScanShard: list[Ranking],
    ReadDocument: DocumentRead,
    FollowPassages: Followed,
    CountAhead: Ahead,
}


class CallRefused(msgspec.Struct, array_like=True, frozen=True):
    """Why a call has no answer: the kind of the error as on the wire, and what it says."""

    kind: str
    message: str
    param: str | None = None
    retry_after_s: float = 1.0

    @staticmethod
    def of(error: NearlineError) -> CallRefused:
        wait_s = error.retry_after_s if isinstance(error, Unavailable) else 1.0
        return CallRefused(type_name(type(error)), error.message, error.param, wait_s)

    @property
    def error(self) -> NearlineError:
        error = error_of(ErrorDetail(self.kind, self.message, self.param))
        if isinstance(error, Unavailable):
            error.retry_after_s = self.retry_after_s
        return error


class CallReply(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a call, packed, or why there is none. `seq` is the last operation of the state that answered; with
    a refusal, the last one of a shard that has lost later ones or was given to another node, else 0."""

    seq: int
    answer: bytes | None
    refusal: CallRefused | None = None


def answer_call(shard: LocalShard, call: PartitionCall, spared: list[Spared]) -> CallReply:
    """Answer a call of a shard in this process, and add to `spared` what the cold policy learns from it."""
    try:
        return CallReply(shard.seq, pack(run_at_once(partial(_ask, shard, call, spared))))
    except NearlineError as error:
        return CallReply(0, None, CallRefused.of(error))


async def _ask(shard: LocalShard, call: PartitionCall, spared: list[Spared]) -> object:
    match call:
        case SearchShard():
            searched = await shard.search(call.ask)
            if searched.candidates.spared is not None:
                spared.append(searched.candidates.spared)
            first = likely_hits(searched.candidates, call.likely)
            return ShardSearched(searched, shard.collection.passages(first))
        case CountTerms():
            return await shard.statistics(call.query)
        case Fetch():
            return await shard.fetch(call.ids, call.what)
        case CountFacets():
            return await shard.facets(call.condition, call.asked)
        case ReadExamples():
            return await shard.examples(call.documents)
        case ReadDocument():
            return await shard.read(call.document, call.alike)
        case FollowPassages():
            return await shard.follow(call.asked)
        case CountAhead():
            return await shard.count_ahead(call.rivals)
        case ScanShard():
            return await shard.scan(call.vectors, call.depth, call.condition)


def likely_hits(candidates: Candidates, each: int) -> list[int]:
    """Return the passages that are among the first of a ranking, or are named by the query."""
    first = (candidates.dense_ranks.view(np.uint32) < each) | (
        candidates.lexical_ranks.view(np.uint32) < each
    )
    if candidates.names is not None:
        first |= candidates.names > 0
    chosen: list[int] = candidates.ids[first].tolist() if each else []
    return chosen
