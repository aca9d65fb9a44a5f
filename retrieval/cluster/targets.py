"""The collection in several shards that a request is for, and how a search sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from indexes.base.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    ModelMismatch,
    NotFound,
    Unavailable,
)
from indexes.base.model import Settings
from indexes.filters.grammar import Filter, Unchecked
from indexes.parts.learned import RankingSettings, SynonymSettings
from retrieval.access.auth import PRINCIPAL
from retrieval.cluster.asking import ask
from retrieval.cluster.calls import AnyCall, AwaitSeq, CountMatching, DocumentsCounted, ReadFrequent
from retrieval.cluster.names import read_token, token_of
from retrieval.cluster.nodes import Nodes, Sharded
from retrieval.cluster.remote import RemoteShard
from retrieval.search.joint import raise_if_of_all
from retrieval.search.known_counts import TERMS_READ, KnownCounts
from retrieval.search.steps import Away
from retrieval.search.stopwatch import in_time

MORE, LIKELY_MAX = 3, 50  # more than an even share of the hits; passages

NODES = web.AppKey[Nodes | None]("NODES")  # None without a cluster


@dataclass(slots=True)
class ShardedTarget:
    """A collection in shards. `least` are operations of shards, by number, that every answer must know of; the last
    ones that a write through this service was acknowledged with are so for every request."""

    nodes: Nodes
    sharded: Sharded
    least: Mapping[int, int]
    parts: list[RemoteShard] = field(init=False)

    def __post_init__(self) -> None:
        known = self.nodes.notes.acknowledged
        names = map(self.sharded.shard, range(self.sharded.of))
        self.parts = [
            RemoteShard(name, max(wanted, known(name)), wanted=wanted)
            for at, name in enumerate(names)
            for wanted in [self.least.get(at, 0)]
        ]

    def keep_up(self) -> None:
        """Have later answers know of all that an answer knew so far: a service that is behind is not asked again."""
        for part in self.parts:
            part.least = max(part.least, part.seq)

    def expect(self, hits: int, *, partial: bool) -> None:
        """Have searches bring along as many passages of each shard as are likely to be among so many hits."""
        is_down = partial and bool(self.nodes.away())
        for part in self.parts:
            part.likely = min(-(-hits // self.sharded.of) + MORE, LIKELY_MAX)
            part.optional = partial
            part.silent |= is_down and not self.nodes.having(part.name)

    @property
    def missing(self) -> list[int]:
        silent = [at for at, one in enumerate(self.parts) if one.silent]
        return silent if len(silent) < len(self.parts) else []

    @property
    def searched(self) -> list[RemoteShard]:
        missing = self.missing
        return [one for at, one in enumerate(self.parts) if at not in missing]

    def count_hits(self) -> None:
        """Keep what was returned, to be counted with a later call."""
        for part in self.parts:
            self.nodes.notes.note_hits(part.name, part.returned)
            part.returned = []

    @property
    def name(self) -> str:
        return self.sharded.name

    @property
    def settings(self) -> Settings:
        return self.sharded.settings

    @property
    def ranking(self) -> RankingSettings | None:
        return self.sharded.ranking

    @property
    def synonyms(self) -> SynonymSettings | None:
        return self.sharded.synonyms

    @property
    def documents(self) -> int:
        return self.sharded.documents

    @property
    def generation(self) -> int:
        return self.sharded.generation

    @property
    def known_counts(self) -> KnownCounts:
        return self.nodes.notes.counts_of(self.name)

    @property
    def seqs(self) -> Mapping[int, int]:
        """The last operation of each shard that the answers so far know of."""
        return {at: one.seq for at, one in enumerate(self.parts)}

    @property
    def seen(self) -> str:
        return token_of(self.seqs)

    def spoken(self) -> Mapping[str, int]:
        return self.sharded.spoken()

    async def ask(self, calls: Sequence[Away[Any]], deadline: float | None = None) -> Sequence[Any]:
        found = await ask(self.nodes, calls, deadline)
        for call, one in zip(calls, found, strict=True):
            if isinstance(one, Unavailable) and not isinstance(one, DeadlineExceeded):
                call.to.silent |= call.to.optional
        return found

    async def counts(self, condition: Filter | None) -> dict[int, DocumentsCounted]:
        """Count the documents and passages that match in each shard. Raises InvalidInput for a filter that no shard can
        match; a key that only some have matches nothing in the others."""
        found = await self.ask([Away(part, CountMatching(condition)) for part in self.parts])
        refused = {at: one for at, one in enumerate(found) if isinstance(one, InvalidInput)}
        counts = {at: answered(one) for at, one in enumerate(found) if at not in refused}
        if refused and not any(one.held for one in counts.values()):
            raise_if_of_all(list(refused.values()))
        if refused and condition is not None:
            unchecked = CountMatching(Unchecked(condition))
            again = await self.ask([Away(self.parts[at], unchecked) for at in refused])
            counts |= dict(zip(refused, map(answered, again), strict=True))
        return counts

    async def read_frequent(self) -> None:
        """Read the most frequent terms of all shards for later searches, if they answer."""
        found = await self.ask([Away(part, ReadFrequent(TERMS_READ)) for part in self.parts])
        if not any(isinstance(one, Exception) for one in found):
            await asyncio.to_thread(self.known_counts.fill, found)

    async def reach(self, deadline: float, deadline_ms: int) -> None:
        """Wait until every shard has what `least` names. Raises DeadlineExceeded at the deadline, in the loop's
        time."""
        async with in_time(deadline, deadline_ms):
            for found in await self.ask([Away(self.parts[at], AwaitSeq()) for at in self.least], deadline):
                answered(found)

    async def ask_one(self, shard: int, call: AnyCall) -> Any:
        [found] = await self.ask([Away(self.parts[shard], call)])
        return answered(found)


def answered(found: Any) -> Any:
    if isinstance(found, Exception):
        raise found
    return found


def nodes_of(request: web.Request) -> Nodes:
    """Raises Conflict if this service is in no cluster."""
    nodes = request.app[NODES]
    if nodes is None:
        raise Conflict("this service has no [cluster] nodes in its configuration")
    return nodes


def sharded_of(request: web.Request) -> Sharded:
    """Return the collection in the path. Raises NotFound, also for one that the caller may not see, and ModelMismatch
    if its shards have vectors of different models."""
    return named_sharded(request, request.match_info["collection"])


def named_sharded(request: web.Request, called: str) -> Sharded:
    """Return the collection of this name or alias. Raises as `sharded_of` does."""
    caller, nodes = PRINCIPAL.get(), nodes_of(request)
    name = caller.full(called)
    found = nodes.collection(name) if caller.may_use(name, nodes.aliases()) else None
    if found is None:
        raise NotFound(f"no collection {name!r}", param="collection")
    prints = {one.settings.fingerprint for one in found.states.values()}
    if found.settings.embeds and len(prints) > 1:
        raise ModelMismatch(f"the shards of {name} have vectors of different models: give all nodes the same")
    return found


def target_of(request: web.Request, min_seq: int | str | None = None) -> ShardedTarget:
    """Return the collection in the path, to be asked in a state that holds `min_seq`."""
    sharded = sharded_of(request)
    return ShardedTarget(nodes_of(request), sharded, read_token(min_seq, sharded.of))
