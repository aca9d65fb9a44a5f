"""Nearline in one process without HTTP: the encoder and the batcher of the service, built as the service builds them.

The only module here that knows how they are made and called.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from indexes.model import Floats
from jobs.benchmark.embed.engine import Served, Setup, in_requests, service_threads
from retrieval.config import Config, load_config
from retrieval.embedders import Embedder, Embedders
from retrieval.embedding.observing import Silent


class InProcess(Served):
    """Queries through the query lane, documents through the bulk lane; no query is answered from the cache."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.what = (
            "the exported graph, encoder and micro-batcher on an event loop, the whole service imported"
        )
        self._embedders: Embedders | None = None
        self._embedder: Embedder | None = None

    async def open(self) -> None:
        config = config_of(Path(self.setup.model))
        self._embedders = Embedders(config, lambda name: Silent())
        self._embedder = await self._embedders.get(config.models.default)
        self.threads = service_threads(self.setup)

    async def query(self, text: str) -> Floats:
        return await self._open.query(text)

    async def documents(self, texts: Sequence[str]) -> Floats:
        return await in_requests(self._open.documents, texts)

    async def close(self) -> None:
        if self._embedders is not None:
            await self._embedders.close()

    @property
    def _open(self) -> Embedder:
        assert self._embedder is not None, "open it first"
        return self._embedder


def config_of(model: Path) -> Config:
    """The service's settings in this environment, with this model, and without the cache of query vectors."""
    config = load_config(None, os.environ)
    models = msgspec.structs.replace(config.models, folder=str(model.parent), default=model.name)
    embedding = msgspec.structs.replace(config.embedding, query_cache_entries=0)
    return msgspec.structs.replace(config, models=models, embedding=embedding)
