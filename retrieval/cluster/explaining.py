"""Explanations of searches over collections in several shards."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from indexes.base.errors import DeadlineExceeded, Unavailable
from indexes.base.model import Floats, Settings
from indexes.base.work import WorkBudget
from retrieval.cluster.names import read_token, token_of
from retrieval.cluster.targets import sharded_of, target_of
from retrieval.handlers.explain import answer_explained
from retrieval.handlers.state import PIPELINE
from retrieval.handlers.wire import body
from retrieval.search.pipeline import MIN_SEQ_WAIT_S, TracedSearch
from retrieval.search.shard import DocumentRead, Seqs
from retrieval.wire.explain import ExplainRequest
from retrieval.wire.search import SearchRequest


async def explain(request: web.Request) -> web.Response:
    return await answer_explained(request, await body(request, ExplainRequest), ExplainedShards(request))


@dataclass(frozen=True, slots=True)
class ExplainedShards:
    """The collection in the path, as an `Explainable`."""

    request: web.Request

    @property
    def settings(self) -> Settings:
        return sharded_of(self.request).settings

    async def read(self, document_id: str, alike: int = 0) -> DocumentRead:
        return await self.request.app[PIPELINE].read_document(target_of(self.request), document_id, alike)

    async def follow(
        self, request: SearchRequest, vectors: dict[str, Floats], work: WorkBudget | None
    ) -> TracedSearch:
        target = target_of(self.request, request.min_seq)
        try:
            await target.reach(asyncio.get_running_loop().time() + MIN_SEQ_WAIT_S, int(MIN_SEQ_WAIT_S * 1000))
        except Unavailable as error:
            raise DeadlineExceeded(error.message, param="min_seq") from None
        return await self.request.app[PIPELINE].follow_shards(target, request, vectors, work)

    async def wait_for(self, seqs: Seqs) -> None:
        """Searches that ask for operations wait for them."""

    def write_down(self, seqs: Seqs) -> str:
        return token_of(seqs)

    def read_seqs(self, seq: int | str) -> Seqs:
        return read_token(seq, sharded_of(self.request).of)
