"""The encoders in use, by model name: loaded once, each with its batcher, its token counter and a vector cache."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from indexes.base.errors import (
    Damaged,
    InvalidInput,
    ModelMismatch,
    NearlineError,
    NotFound,
    Overloaded,
)
from indexes.base.languages import chance_of
from indexes.base.model import Floats, Settings
from retrieval.access.auth import PRINCIPAL
from retrieval.base.cancellation import gather_or_cancel
from retrieval.base.flights import Flights
from retrieval.base.settings import Config
from retrieval.cache import EmbeddingCache, SharedVectors
from retrieval.embedding.batcher import Batcher
from retrieval.embedding.costs import CostModel
from retrieval.embedding.counting import TokenCounter
from retrieval.embedding.encoder import Encoder, available_threads
from retrieval.embedding.models import (
    MANIFEST,
    SIMILARITY_FLOOR,
    Kind,
    ModelManifest,
    find_models,
    load_model,
    read_manifest,
)
from retrieval.embedding.queries import QueryReader
from retrieval.embedding.results import EmbeddedTexts, Long, Observer
from retrieval.embedding.sessions import ExecutionProvider

WARM_UP_QUERIES = 3
ATTEMPTS = 30  # while too many documents wait; each refusal asks for a wait of a second to a minute
LARGE_CHARS = 65_536  # larger documents are cut on a separate thread, so that smaller ones do not wait
WARM_UP = ((1, 4), (1, 14), (1, 62), (4, 30), (2, 126), (8, 14))  # number of texts, tokens per text


@dataclass(frozen=True)
class Embedder(QueryReader):
    """One model, ready to embed. Vectors of search queries are cached."""

    batcher: Batcher
    cache: EmbeddingCache
    shared: SharedVectors | None
    flights: Flights[Floats]
    matryoshka: bool  # its vectors may be shortened to their first dimensions

    @property
    def fingerprint(self) -> str:
        return self.encoder.fingerprint

    async def query(
        self,
        text: str,
        deadline: float | None = None,
        *,
        cached: bool = True,
    ) -> Floats:
        """Return the vector of a search query, float32 [dimensions]; of a long one, that of what `long_queries`
        chooses. `deadline` is in the loop's time.

        With `cached` false no cache is read or filled.
        """
        kept_by = self._kept_by
        if cached and (known := self.cache.get(kept_by, text)) is not None:
            return known
        if not cached:
            return await self._embed_query(text, deadline)
        key = kept_by, text
        if (joined := await self.flights.join(key)) is not None:
            self.cache.joined += 1
            return joined
        with self.flights.lead(key) as flight:
            vector = await self._get_shared(kept_by, text, deadline)
            flight.land(kept := self.cache.put(kept_by, text, vector))
        return kept

    async def known(self, text: str) -> Floats | None:
        """Return the vector of a search query if a cache has it."""
        if (vector := self.cache.get(self._kept_by, text)) is not None or self.shared is None:
            return vector
        key = (self._kept_by, self.encoder.variant, text)
        return await self.shared.get(*key, dimensions=self.encoder.dimensions)

    async def keep(self, text: str, vector: Floats) -> None:
        """Cache the vector of a search query that another process embedded."""
        self.cache.put(self._kept_by, text, vector)
        if self.shared is not None:
            await self.shared.put(self._kept_by, self.encoder.variant, text, vector)

    @property
    def _kept_by(self) -> str:
        # Tenants do not share a cache, or timing would reveal what another tenant has asked.
        return f"{self.fingerprint}@{PRINCIPAL.get().tenant}".removesuffix("@")

    async def _get_shared(self, kept_by: str, text: str, deadline: float | None) -> Floats:
        """Take the vector from the shared cache, or embed the text and share it."""
        if self.shared is None:
            return await self._embed_query(text, deadline)
        key = (kept_by, self.encoder.variant, text)
        vector = await self.shared.get(*key, dimensions=self.encoder.dimensions)
        if vector is None:
            vector = await self._embed_query(text, deadline)
            await self.shared.put(*key, vector)
        return vector

    async def _embed_query(self, text: str, deadline: float | None) -> Floats:
        pieces = [text] if self.fits(text) else await asyncio.to_thread(self.pieces, text)
        embed = partial(self.batcher.embed, kind="query", lane="query", deadline=deadline)
        if len(pieces) == 1:
            vector: Floats = (await embed(pieces)).vectors[0]
            return vector
        # At once, so that one run of the model may read both; the query lane takes one text at a time.
        found = await gather_or_cancel(embed([piece]) for piece in pieces)
        return self.mean_of([one.vectors for one in found])

    async def documents(self, texts: list[str], progress: Callable[[float], None] | None = None) -> Floats:
        """Return the vectors of passages, float32 [texts, dimensions]. `progress` is called after each run with the
        share done."""
        embedded = await self.batcher.embed(
            texts, "document", lane="bulk", caller=PRINCIPAL.get().key, progress=progress
        )
        return embedded.vectors

    async def queries(self, texts: list[str]) -> Floats:
        """Return the vectors of many queries, float32 [texts, dimensions], for jobs. Retries while too many documents
        wait, and finally raises Overloaded."""
        for _ in range(ATTEMPTS - 1):
            try:
                return (await self.embed(texts, "query")).vectors
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_s)
        return (await self.embed(texts, "query")).vectors

    async def embed(
        self,
        texts: list[str],
        kind: Kind = "document",
        *,
        long: Long = "cut",
        progress: Callable[[float], None] | None = None,
    ) -> EmbeddedTexts:
        """Return vectors to clients that ask for vectors. A single short text overtakes bulk work. See
        `Batcher.embed`."""
        return await self.batcher.embed(texts, kind, long=long, caller=PRINCIPAL.get().key, progress=progress)


class Described(Protocol):
    """What says which model made a collection's vectors."""

    @property
    def settings(self) -> Settings: ...


class Embedders:
    """Opens each model on first use, one at a time. `close` stops all batchers.

    `shared` caches query vectors for other services too. `in_background`: see `Batcher`.
    """

    def __init__(
        self,
        config: Config,
        observer: Callable[[str], Observer],
        shared: SharedVectors | None = None,
        *,
        in_background: bool = False,
    ) -> None:
        self._config = config
        self._observer = observer
        self._folder = Path(config.models.folder)
        self._open: dict[str, Embedder] = {}
        self._described: dict[str, ModelManifest] = {}  # models that collections name
        self._opening: dict[str, asyncio.Task[Embedder]] = {}
        self._turn = asyncio.Lock()
        self._cutting = [ThreadPoolExecutor(1, thread_name_prefix="cut") for _ in range(2)]
        self.cache = EmbeddingCache(config.embedding.query_cache_bytes)
        self.shared = shared
        self._in_background = in_background

    def cutting(self, chars: int) -> Executor:
        """Return the thread for cutting this many characters into passages. Reads use other threads, so writes do not
        delay them."""
        return self._cutting[chars > LARGE_CHARS]

    async def get(self, name: str) -> Embedder:
        """Return the embedder of a model. Raises NotFound saying how to make it, or Damaged if its files are not
        intact.

        A caller that leaves does not stop the loading; the next caller finds it in progress or done.
        """
        if (found := self._open.get(name)) is not None:
            return found
        if name not in self._opening:
            # In a context of its own: the model outlives the request that came first.
            self._opening[name] = asyncio.create_task(self._open_model(name), context=Context())
        return await asyncio.shield(self._opening[name])

    def bytes_per_s(self) -> float:
        """How fast the model that last embedded documents does so; 0 while none is loaded."""
        batchers = [embedder.batcher for embedder in self._open.values()]
        return max(batchers, key=lambda one: one.bulk_ended).bytes_per_s if batchers else 0.0

    def names(self) -> list[str]:
        """List the exported models, in use or not, sorted."""
        return sorted(name for name, folder in find_models(self._folder).items() if embeds(folder))

    def is_exported(self, name: str) -> bool:
        """Whether a model of this name exists, by one look at the disk. Not for unchecked names from clients."""
        return (self._folder / name / MANIFEST).is_file()

    @property
    def loaded(self) -> Mapping[str, Embedder]:
        """Models in use, by name."""
        return self._open

    def manifest(self, name: str) -> ModelManifest:
        """Return the manifest of an exported model without loading it. Raises NotFound or Damaged."""
        found = self._open.get(name)
        return found.manifest if found else read_manifest(self._folder / name)

    def try_manifest(self, name: str) -> ModelManifest | None:
        """Return the manifest, None if it cannot be read. Cached: only the first call reads the file of a model not in
        use."""
        if name not in self._described:
            try:
                self._described[name] = self.manifest(name)
            except (NotFound, Damaged, InvalidInput):
                return None
        return self._described[name]

    def similarity_floor(self, name: str) -> float:
        """Return a cosine that few unrelated texts reach, from the model's manifest; the usual one if that cannot be
        read."""
        manifest = self.try_manifest(name)
        return SIMILARITY_FLOOR if manifest is None else manifest.similarity_floor

    async def of(self, collection: Described) -> Embedder:
        """Return the embedder whose vectors the collection holds. Raises ModelMismatch if the model has changed, and
        InvalidInput if the collection has none."""
        settings = collection.settings
        if not settings.embeds:
            raise InvalidInput(
                "the collection has no model: its documents and queries bring their vectors", param="model"
            )
        embedder = await self.get(settings.model)
        if embedder.fingerprint != settings.fingerprint:
            raise ModelMismatch(
                f"the collection was written with {settings.model} of fingerprint {settings.fingerprint[:12]}, "
                f"but the model in {self._folder / settings.model} has {embedder.fingerprint[:12]}; "
                "restore that model, or ingest into a new collection",
                param="model",
            )
        return embedder

    async def _open_model(self, name: str) -> Embedder:
        try:
            folder = (await asyncio.to_thread(find_models, self._folder)).get(name)
            if folder is None:
                raise no_such_model(name, self._folder)
            async with self._turn:
                embedder = self._open[name] = await self._load(name, folder)
            return embedder
        finally:
            del self._opening[name]

    async def _load(self, name: str, folder: Path) -> Embedder:
        threads, workers = runs_of(self._config)
        model = await asyncio.to_thread(load_model, folder)
        if model.manifest.makes != "vectors":
            raise InvalidInput(f"{name} is a reranker, not an embedding model", param="model")
        provider = provider_of(self._config)
        encoder = await asyncio.to_thread(Encoder, model, threads=threads, provider=provider)
        counter = TokenCounter(encoder.tokenizers)
        limits, costs = self._config.embedding, CostModel()
        await asyncio.to_thread(warm_up, encoder, costs)
        batcher = Batcher(
            encoder,
            workers=workers,
            query_run_s=limits.query_run_ms / 1000,
            bulk_run_s=limits.bulk_run_ms / 1000,
            batch_texts_max=limits.batch_texts_max,
            queue_tokens_max=limits.queue_tokens_max,
            query_wait_s_max=limits.query_wait_ms_max / 1000,
            large_wait_s_max=self._config.admission.wait_s_max,
            in_background=self._in_background,
            costs=costs,
            observe=self._observer(name),
        )
        await batcher.start()
        for _ in range(WARM_UP_QUERIES):  # the first pass through lanes and threads is slow too
            await batcher.embed(["warm up"], "query", lane="query")
        matryoshka = name in self._config.models.matryoshka
        return Embedder(
            encoder, model.manifest, counter, batcher, self.cache, self.shared, Flights(), matryoshka
        )

    async def close(self) -> None:
        for threads in self._cutting:
            threads.shutdown(wait=False, cancel_futures=True)
        # Models being opened come first: the threads that open them cannot be stopped.
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        async with contextlib.AsyncExitStack() as steps:
            for embedder in self._open.values():
                steps.push_async_callback(embedder.batcher.close)


def runs_of(config: Config) -> tuple[int, int]:
    """Return the threads of one run and the number of parallel runs: how the cores are divided."""
    cores = config.models.threads or available_threads()
    threads = min(config.models.run_threads, cores)
    return threads, max(1, cores // threads)


def provider_of(config: Config) -> ExecutionProvider:
    return ExecutionProvider(config.models.provider, config.models.provider_options)


def embeds(folder: Path) -> bool:
    """Whether the model in the folder makes vectors. One with an unreadable manifest counts as if it did."""
    try:
        return read_manifest(folder).makes == "vectors"
    except NearlineError:
        return True


def no_such_model(name: str, folder: Path) -> NotFound:
    return NotFound(
        f"no model {name!r} in {folder.absolute()}; if it is in another folder, name that in NEARLINE_MODELS_FOLDER "
        "or `models.folder`; else make it with: "
        f"nearline export-model --from SOURCE --name {name} --out {folder / name}",
        param="model",
    )


def warm_up(encoder: Encoder, costs: CostModel) -> None:
    """Run some shapes, so that the first request is as fast as the tenth and its cost is known."""
    chance_of("warm up", (), {})  # loads the detector of languages
    for attempt, (texts, longest) in enumerate((WARM_UP[0], *WARM_UP)):
        tokens = encoder.tokenize(["a " * longest], "document")[0]
        begun = time.monotonic()
        encoder.run([tokens] * texts)
        if attempt:  # the first run of a session takes longer
            costs.learn(texts, len(tokens), time.monotonic() - begun)
