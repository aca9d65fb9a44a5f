"""The encoders in use, by model name: loaded once, each with its batcher, its token counter and a vector cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from indexes.collection import Collection
from indexes.errors import ModelMismatch, NotFound
from indexes.model import Floats
from retrieval.cache import EmbeddingCache
from retrieval.embedding.batcher import Batcher, Observer
from retrieval.embedding.encoder import Encoder, available_threads
from retrieval.embedding.models import find_models, load_model
from retrieval.embedding.tokens import TokenCounter
from retrieval.settings import Config


class Embedder:
    """One model, ready to embed. Queries go through a cache of vectors, then the query lane of the batcher."""

    def __init__(
        self, encoder: Encoder, batcher: Batcher, counter: TokenCounter, cache: EmbeddingCache
    ) -> None:
        self.encoder = encoder
        self.counter = counter
        self._batcher = batcher
        self._cache = cache

    @property
    def fingerprint(self) -> str:
        return self.encoder.fingerprint

    async def query(self, text: str) -> Floats:
        """Unit vector of a query, float32 [dimensions]."""
        cached = self._cache.get(self.fingerprint, text)
        if cached is not None:
            return cached
        return self._cache.put(self.fingerprint, text, await self._batcher.embed_query(text))

    async def documents(self, texts: list[str]) -> Floats:
        """Unit vectors of passages, float32 [texts, dimensions]."""
        return await self._batcher.embed_documents(texts)

    async def close(self) -> None:
        await self._batcher.close()


class Embedders:
    """Opens each model on first use. `close` stops all batchers."""

    def __init__(self, config: Config, observer: Callable[[str], Observer]) -> None:
        self._config = config
        self._observer = observer
        self._folder = Path(config.models.folder)
        self._open: dict[str, Embedder] = {}
        self._opening = asyncio.Lock()
        self.cache = EmbeddingCache(config.embedding.query_cache_entries)

    async def get(self, name: str) -> Embedder:
        """The embedder of a model. Raises NotFound naming what is there, or Damaged if its files are not whole."""
        if (found := self._open.get(name)) is not None:
            return found
        async with self._opening:
            if name not in self._open:
                self._open[name] = await self._load(name)
            return self._open[name]

    async def of(self, collection: Collection) -> Embedder:
        """The embedder whose vectors the collection holds. Raises ModelMismatch if the model has changed."""
        settings = collection.settings
        embedder = await self.get(settings.model)
        if embedder.fingerprint != settings.fingerprint:
            raise ModelMismatch(
                f"the collection was written with {settings.model} of fingerprint {settings.fingerprint[:12]}, "
                f"but the model in {self._folder / settings.model} has {embedder.fingerprint[:12]}; "
                "restore that model, or ingest into a new collection",
                param="model",
            )
        return embedder

    async def _load(self, name: str) -> Embedder:
        folder = (await asyncio.to_thread(find_models, self._folder)).get(name)
        if folder is None:
            raise NotFound(
                f"no model {name!r} in {self._folder}; make it with: nearline export-model --out {self._folder / name}",
                param="model",
            )
        model = await asyncio.to_thread(load_model, folder)
        threads = self._config.models.threads or available_threads()
        encoder = await asyncio.to_thread(Encoder, model, threads=threads)
        counter = await asyncio.to_thread(TokenCounter, model)
        limits = self._config.embedding
        batcher = Batcher(
            encoder,
            batch_tokens_max=limits.batch_tokens_max,
            batch_texts_max=limits.batch_texts_max,
            queue_tokens_max=limits.queue_tokens_max,
            bulk_batch_tokens_max=limits.bulk_batch_tokens_max,
            observe=self._observer(name),
        )
        await batcher.start()
        return Embedder(encoder, batcher, counter, self.cache)

    async def close(self) -> None:
        for embedder in self._open.values():
            await embedder.close()
