"""Standing queries over collections in several shards.

They are searched again when the shards are known to have other operations than those of the last search: at once after
a write through this service, and after others with the next look at their nodes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from aiohttp import web

from indexes.base.errors import Conflict
from retrieval.admission.ceiling import AnswerBudget
from retrieval.cluster.asking import ask
from retrieval.cluster.calls import ReadSeqs
from retrieval.cluster.collections import require_all
from retrieval.cluster.names import read_token, shard_of_document, token_of
from retrieval.cluster.nodes import Nodes, Sharded
from retrieval.cluster.remote import RemoteShard
from retrieval.cluster.targets import ShardedTarget, answered, nodes_of, sharded_of
from retrieval.handlers.state import PIPELINE
from retrieval.handlers.watch import ID_CHARS, stream_hits, unknown
from retrieval.search.shard import Seqs
from retrieval.search.steps import Away
from retrieval.wire.search import Hit, SearchRequest


async def watch(request: web.Request) -> web.StreamResponse:
    return await stream_hits(request, WatchedShards(request))


class WatchedShards:
    """A collection in shards, as a `Watchable`. Its `id` is made of the logs that its shards were created with, and
    stays the same when they move.

    A search includes the operations that it has asked for. What else it saw is found again by the next one.
    """

    def __init__(self, request: web.Request) -> None:
        self._request, self._nodes = request, nodes_of(request)
        self._sharded = sharded_of(request)
        require_all(self._nodes, self._sharded)
        self._origins = origins_of(self._sharded)
        self.id = blake2b(repr(self._origins).encode(), digest_size=ID_CHARS // 2).hexdigest()
        self._known: Seqs = {}
        self._parts: Sequence[RemoteShard] = ()
        self._asked_at = 0.0

    async def require_known(self, after: Seqs | None) -> None:
        await self._nodes.look_at_answering()
        known = self._newest()
        for at in (at for at, seq in (after or {}).items() if seq > known[at]):
            self._nodes.writer_of(self._sharded.shard(at))  # else others may only lag behind it
            raise unknown(token_of(after or {}), token_of(known))

    def write_down(self, seqs: Seqs) -> str:
        return token_of(seqs)

    def read(self, text: str) -> Seqs:
        return read_token(text, self._sharded.of)

    async def arrival(self, known: Seqs) -> None:
        while all(seq <= known[at] for at, seq in self._newest().items()):
            await self._nodes.news.wait()

    def _newest(self) -> Seqs:
        """Return the last operations that this service knows of."""
        now = self._nodes.collections().get(self._sharded.name)
        newest = {}
        for at in range(self._sharded.of):
            seq = now.states[at].seq if now is not None and at in now.states else 0
            acknowledged = self._nodes.notes.acknowledged(self._sharded.shard(at))
            newest[at] = max(seq, acknowledged, self._known.get(at, 0))
        return newest

    async def search(self, wanted: SearchRequest, budget: AnswerBudget) -> tuple[Seqs, list[Hit]]:
        self._known, self._asked_at = self._newest(), time.monotonic()
        target = ShardedTarget(self._nodes, sharded_of(self._request), self._known)
        self._parts, name = target.parts, self._request.match_info["collection"]
        search = self._request.app[PIPELINE].search_shards
        found = await search(name, target, wanted, budget, counted=False)
        return self._known, found.hits

    async def written(self, documents: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        of_shard: dict[int, list[str]] = defaultdict(list)
        for one in documents:
            of_shard[shard_of_document(one, self._sharded.of)].append(one)
        calls: list[Away[Any]] = [Away(self._parts[at], ReadSeqs(some)) for at, some in of_shard.items()]
        found = zip(of_shard, await ask(self._nodes, calls), strict=True)
        return {one: (at, seq) for at, seqs in found for one, seq in answered(seqs).items()}

    def require_same(self) -> None:
        if self._nodes.away():  # which may have the shards that are missing
            return
        now = sharded_of(self._request)
        same = now.name == self._sharded.name and now.of == self._sharded.of
        if not same or not origins_of(now).items() <= self._origins.items():
            raise Conflict("this is another collection now; watch again", param="collection")
        if (lost := lost_since(self._nodes, now, self._known, self._asked_at)) is not None:
            raise Conflict(f"shard {lost} was restored; watch again", param="collection")


def origins_of(sharded: Sharded) -> dict[int, str]:
    return {at: state.origin for at, state in sorted(sharded.states.items())}


def lost_since(nodes: Nodes, sharded: Sharded, known: Seqs, asked_at: float) -> str | None:
    """Return a shard whose writer no longer had its known operations when it was looked at after a time (monotonic)."""
    for name, seq in ((sharded.shard(at), seq) for at, seq in known.items()):
        for node in nodes.having(name):
            state = node.state_of(name) if node.takes_writes_of(name) else None
            if state is not None and state.seq < seq and node.looked_at > asked_at:
                return name
    return None
