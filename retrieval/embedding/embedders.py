"""The encoders in use, by model name: loaded once, each with its batcher, its token counter and a vector cache."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path

from indexes.base.errors import (
    Damaged,
    InvalidInput,
    ModelMismatch,
    NearlineError,
    NotFound,
    Overloaded,
)
from indexes.base.languages import chance_of, primary
from indexes.base.model import Floats
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
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
    Manifest,
    find_models,
    load_model,
    read_manifest,
)
from retrieval.embedding.reading import share_read
from retrieval.embedding.results import Embedded, Long, Observer

WARM_UP_QUERIES = 3
ATTEMPTS = 30  # while too many documents wait; each is told to wait for a second to a minute
SURE = 0.99  # chance of a language
LARGE_CHARS = 65_536  # documents of more are cut on a thread of their own: smaller ones do not wait for them
WARM_UP = ((1, 4), (1, 14), (1, 62), (4, 30), (2, 126), (8, 14))  # texts and tokens of each


@dataclass(frozen=True, slots=True)
class Embedder:
    """One model, ready to embed. Vectors of searches' queries are cached."""

    encoder: Encoder
    manifest: Manifest
    batcher: Batcher
    counter: TokenCounter
    cache: EmbeddingCache
    shared: SharedVectors | None
    flights: Flights[Floats]
    matryoshka: bool  # the first dimensions of its vectors mean something by themselves

    @property
    def fingerprint(self) -> str:
        return self.encoder.fingerprint

    async def query(
        self,
        text: str,
        deadline: float | None = None,
        *,
        cached: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> Floats:
        """Vector of a search's query, float32 [dimensions]. `deadline` in the loop's time; without `cached` no cache
        is read or filled. `meanwhile` is called, on the loop, if the model has to run, right before."""
        # Tenants share none: how long it takes would tell what another one has asked.
        kept_by = f"{self.fingerprint}@{PRINCIPAL.get().tenant}".removesuffix("@")
        if cached and (known := self.cache.get(kept_by, text)) is not None:
            return known
        if not cached:
            return await self._embedded(text, deadline, meanwhile)
        key = kept_by, text
        if (joined := await self.flights.joined(key)) is not None:
            self.cache.joined += 1
            return joined
        with self.flights.leading(key) as flight:
            vector = await self._shared(kept_by, text, deadline, meanwhile)
            flight.land(kept := self.cache.put(kept_by, text, vector))
        return kept

    async def _shared(
        self, kept_by: str, text: str, deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Floats:
        """From another service, or embedded for all of them."""
        if self.shared is None:
            return await self._embedded(text, deadline, meanwhile)
        key = (kept_by, self.encoder.variant, text)
        vector = await self.shared.get(*key, dimensions=self.encoder.dimensions)
        if vector is None:
            vector = await self._embedded(text, deadline, meanwhile)
            await self.shared.put(*key, vector)
        return vector

    async def _embedded(
        self, text: str, deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Floats:
        embedded = await self.batcher.embed(
            [text], "query", lane="query", deadline=deadline, meanwhile=meanwhile
        )
        vector: Floats = embedded.vectors[0]
        return vector

    def share_read(self, text: str, language: str | None, held: Callable[[], Mapping[str, int]]) -> float:
        """How much of a query the model reads, 0 to 1: its own languages whole, of others what its tokenizer knows.

        The language is given, or guessed among those that `held` has with a number of passages each.
        """
        # A model that does not say what it reads most likely reads English.
        spoken = {primary(code) for code in self.manifest.languages or ("en",)}
        if language is not None:
            spoken_to = float(primary(language) in spoken)
        else:
            spoken_to = chance_of(text, spoken, held())
        if spoken_to > SURE:
            return 1.0  # to tokenize takes longer than to detect
        with self.encoder.tokenizers.borrow() as tokenizer:
            return max(spoken_to, share_read(tokenizer, text))

    async def documents(self, texts: list[str], progress: Callable[[float], None] | None = None) -> Floats:
        """Vectors of passages, float32 [texts, dimensions]. `progress` hears, run by run, how much of it is done."""
        embedded = await self.batcher.embed(
            texts, "document", lane="bulk", caller=PRINCIPAL.get().key, progress=progress
        )
        return embedded.vectors

    async def queries(self, texts: list[str]) -> Floats:
        """Vectors of many queries, float32 [texts, dimensions], for jobs. Waits while too many documents wait; raises
        Overloaded if they do for too long."""
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
    ) -> Embedded:
        """Vectors for clients that want vectors; a single short text overtakes the bulk. See `Batcher.embed`."""
        return await self.batcher.embed(texts, kind, long=long, caller=PRINCIPAL.get().key, progress=progress)


class Embedders:
    """Opens each model on first use, one at a time. `close` stops all batchers.

    `shared` keeps query vectors for other services too.
    """

    def __init__(
        self, config: Config, observer: Callable[[str], Observer], shared: SharedVectors | None = None
    ) -> None:
        self._config = config
        self._observer = observer
        self._folder = Path(config.models.folder)
        self._open: dict[str, Embedder] = {}
        self._described: dict[str, Manifest] = {}  # models that collections name
        self._opening: dict[str, asyncio.Task[Embedder]] = {}
        self._turn = asyncio.Lock()
        self._cutting = [ThreadPoolExecutor(1, thread_name_prefix="cut") for _ in range(2)]
        self.cache = EmbeddingCache(config.embedding.query_cache_bytes)
        self.shared = shared

    def cutting(self, chars: int) -> Executor:
        """Where to find passages in so many characters: however many are written, the threads of reads stay free."""
        return self._cutting[chars > LARGE_CHARS]

    async def get(self, name: str) -> Embedder:
        """The embedder of a model. Raises NotFound saying how to make it, or Damaged if its files are not whole.

        A caller that leaves does not stop the loading: whoever asks next finds it further on, or done.
        """
        if (found := self._open.get(name)) is not None:
            return found
        if name not in self._opening:
            # In a context of its own: what stays open does not belong to the request that came first.
            self._opening[name] = asyncio.create_task(self._opened(name), context=Context())
        return await asyncio.shield(self._opening[name])

    def bytes_per_s(self) -> float:
        """How fast texts of documents are embedded by the model that did so last; 0 while none is loaded."""
        batchers = [embedder.batcher for embedder in self._open.values()]
        return max(batchers, key=lambda one: one.bulk_ended).bytes_per_s if batchers else 0.0

    def names(self) -> list[str]:
        """Exported models, whether in use or not, sorted."""
        return sorted(name for name, folder in find_models(self._folder).items() if embeds(folder))

    def exported(self, name: str) -> bool:
        """Whether there is a model of this name: one look at the disk. Not for names as clients send them."""
        return (self._folder / name / MANIFEST).is_file()

    @property
    def loaded(self) -> Mapping[str, Embedder]:
        """Models in use, by name."""
        return self._open

    def manifest(self, name: str) -> Manifest:
        """What an exported model says of itself, without loading it. Raises NotFound, or Damaged."""
        found = self._open.get(name)
        return found.manifest if found else read_manifest(self._folder / name)

    def described(self, name: str) -> Manifest | None:
        """The same, None if it cannot be read; kept, so that only the first call reads the file of one not in use."""
        if name not in self._described:
            try:
                self._described[name] = self.manifest(name)
            except (NotFound, Damaged, InvalidInput):
                return None
        return self._described[name]

    def similarity_floor(self, name: str) -> float:
        """A cosine that few unrelated texts reach, by the model's manifest; the usual one if that cannot be read."""
        manifest = self.described(name)
        return SIMILARITY_FLOOR if manifest is None else manifest.similarity_floor

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

    async def _opened(self, name: str) -> Embedder:
        try:
            folder = (await asyncio.to_thread(find_models, self._folder)).get(name)
            if folder is None:
                raise missing(name, self._folder)
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
        encoder = await asyncio.to_thread(Encoder, model, threads=threads)
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
            costs=costs,
            observe=self._observer(name),
        )
        await batcher.start()
        for _ in range(WARM_UP_QUERIES):  # the way through lanes and threads has its own first time
            await batcher.embed(["warm up"], "query", lane="query")
        matryoshka = name in self._config.models.matryoshka
        return Embedder(
            encoder, model.manifest, batcher, counter, self.cache, self.shared, Flights(), matryoshka
        )

    async def close(self) -> None:
        for threads in self._cutting:
            threads.shutdown(wait=False, cancel_futures=True)
        # What is being opened first: the threads that do it cannot be stopped.
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        async with contextlib.AsyncExitStack() as steps:
            for embedder in self._open.values():
                steps.push_async_callback(embedder.batcher.close)


def runs_of(config: Config) -> tuple[int, int]:
    """Threads of one run, and runs at once: how the cores are shared out."""
    cores = config.models.threads or available_threads()
    threads = min(config.models.run_threads, cores)
    return threads, max(1, cores // threads)


def embeds(folder: Path) -> bool:
    """Whether the model there makes vectors; one whose manifest cannot be read may."""
    try:
        return read_manifest(folder).makes == "vectors"
    except NearlineError:
        return True


def missing(name: str, folder: Path) -> NotFound:
    return NotFound(
        f"no model {name!r} in {folder}; make it with: "
        f"nearline export-model --from SOURCE --name {name} --out {folder / name}",
        param="model",
    )


def warm_up(encoder: Encoder, costs: CostModel) -> None:
    """Run some shapes, so that the first request is as fast as the tenth and its cost is known."""
    chance_of("warm up", (), {})  # loads the detector of languages
    for texts, longest in WARM_UP:
        tokens = encoder.tokenise(["a " * longest], "document")[0]
        for attempt in range(2):
            begun = time.monotonic()
            encoder.run([tokens] * texts)
            if attempt:  # the first run of a shape takes memory that later ones find ready
                costs.learn(texts, len(tokens), time.monotonic() - begun)
