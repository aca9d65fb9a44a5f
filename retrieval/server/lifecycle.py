"""Opens and closes what the application carries, one context per part. aiohttp closes them in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from threadpoolctl import threadpool_limits

from indexes.base import failures
from indexes.base.durable import publish
from indexes.base.errors import InvalidInput, NearlineError, StorageError
from indexes.base.model import NO_REPLICATION, Floats
from indexes.base.work import do_nothing
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.parts.memory import give_back
from indexes.store.following import Follower
from indexes.store.objects import Bucket
from indexes.store.uploading import StoreOptions, Uploader
from retrieval.access.privacy import VECTOR_EXPORT, VectorExport
from retrieval.base.config import Config
from retrieval.base.index_options import options_of
from retrieval.cache import MemoryStore, ResultCache, SharedVectors
from retrieval.context.llm import LanguageModel
from retrieval.dialects.store_expiry import delete_expired_regularly, save_uses
from retrieval.documents.uploads import Uploads
from retrieval.embedding.embedders import Embedders, provider_of, runs_of
from retrieval.handlers.state import (
    CATALOG,
    CEILING,
    CONFIG,
    EMBEDDERS,
    FAILED,
    FEEDBACK,
    FOLDERS,
    FREQUENT,
    GATES,
    IN_PROCESSES,
    KEYS,
    LIMITER,
    LLM,
    METRICS,
    PIPELINE,
    PROCESSES,
    QUERY_LOG,
    READY,
    RELOADED,
    RERANKER,
    SHARED,
    START,
    STORE,
    TASKS,
    UPLOADS,
)
from retrieval.observe import collectors
from retrieval.processes.asking import InProcesses
from retrieval.search.pipeline import Pipeline
from retrieval.search.reranking import Reranker
from retrieval.upkeep.expiring import keep_deleting
from retrieval.upkeep.feedback import Feedback
from retrieval.upkeep.frequent import Frequent
from retrieval.upkeep.healing import keep_healing
from retrieval.upkeep.query_log import QueryLog
from retrieval.upkeep.questions import questions_of
from retrieval.upkeep.starting import StartBody
from retrieval.upkeep.tasks import Tasks
from retrieval.wire.search import SearchRequest

if TYPE_CHECKING:
    from retrieval.cache.redis_store import RedisStore

logger = logging.getLogger(__name__)

Context = Callable[[web.Application], AsyncIterator[None]]
SECRET_BYTES = 32
LAG_EVERY_S = 0.05
MEMORY_EVERY_S = 0.5
# How often it is looked for collections to rest: some times in the time that they are idle.
RESTS, RESTING_S_MAX = 4, 60.0


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` in the background for the duration of a with-block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def catalog_ctx(data: Path) -> Context:
    async def context(app: web.Application) -> AsyncIterator[None]:
        app[FAILED] = asyncio.Event()
        forget = failures.listen(leave_on_failure(app, asyncio.get_running_loop()))
        try:
            # Search processes map the same files: a copy here would hold them twice.
            copied_max = 0 if app[PROCESSES].count else app[CEILING].bytes_max
            start, options = app[START], options_of(app[CONFIG], copied_max)
            app[STORE] = store = await asyncio.to_thread(store_of, app[CONFIG], data)
            replication = store or NO_REPLICATION
            options = replace(options, read=start.read, room=app[CEILING].left, replication=replication)
            before = partial(store.open, start.restoring) if store else do_nothing
            app[CATALOG] = await start.on_thread(Catalog, data, options, start.collection, before)
            await asyncio.to_thread(app[KEYS].read_again)
            await asyncio.to_thread(app[KEYS].remember)
            app[METRICS].watch(partial(collectors.collections, app[CATALOG]))
            asked = asyncio.Event()
            app[RELOADED].append(asked.set)
            if store is not None:
                store.start(app[CATALOG])
                app[METRICS].watch(partial(collectors.store, store, app[CATALOG]))
            async with in_background(keep_healing(app[CATALOG], asked)):
                yield
            if store is not None:
                await asyncio.to_thread(store.close)
            await asyncio.to_thread(app[CATALOG].close)
        finally:
            forget()

    return context


def store_of(config: Config, data: Path) -> Uploader | Follower | None:
    """Return what keeps the store up to date, or follows it. Raises InvalidInput for a replica without a store, or one
    that passes writes on and does not know where to."""
    store = config.store
    if store.forward_writes and not store.writer:
        raise InvalidInput(
            "store.forward_writes needs store.writer, the service that writes", param="store.forward_writes"
        )
    if not store.url:
        if store.replica:
            raise InvalidInput("a replica follows a store: set store.url", param="store.url")
        return None
    if store.replica:
        objects = Bucket(store.url, may_be_away=True)
        return Follower(objects, objects.url, data, store.poll_ms / 1000, store.writer)
    objects = Bucket(store.url, makes_folder=True)
    options = StoreOptions(objects.url, store.acknowledge, store.lag_s_max, store.keep_days)
    return Uploader(objects, options, data)


def leave_on_failure(app: web.Application, loop: asyncio.AbstractEventLoop) -> failures.Listener:
    """Return a listener for failed syncs: it makes the service unready and sets `FAILED`, so that the process exits."""

    def leave(error: StorageError) -> None:
        logger.critical("the storage failed, exiting: %s", error.message)
        app[READY]["ready"] = False
        app[FAILED].set()

    def on_any_thread(error: StorageError) -> None:
        loop.call_soon_threadsafe(leave, error)

    return on_any_thread


async def privacy_ctx(app: web.Application) -> AsyncIterator[None]:
    privacy, data = app[CONFIG].privacy, app[CATALOG].folder
    secret = shared_secret(privacy.secret)
    if privacy.vector_noise and not privacy.secret:
        secret = await asyncio.to_thread(own_secret, data, "vectors.secret")
    app[VECTOR_EXPORT] = VectorExport(privacy.vector_noise, secret)
    yield


async def shared_ctx(app: web.Application) -> AsyncIterator[None]:
    """Open the store that services share for answers, query vectors and limits: one, so that a dead Redis is noticed
    once."""
    app[SHARED] = store = await asyncio.to_thread(shared_store, app[CONFIG], app[CATALOG].folder)
    app[LIMITER].shared = store
    async with in_background(app[LIMITER].keep_writing()):
        yield
    await asyncio.to_thread(app[LIMITER].write)
    if store is not None:
        await store.close()


async def embedders_ctx(app: web.Application) -> AsyncIterator[None]:
    """Load the models in use now, so that the first query does not wait. A model that cannot be loaded is only a
    warning: other collections still serve, and its own answer with the reason."""
    store = app[SHARED]
    shared = None if store is None else SharedVectors(store, ttl_s=ttl_s(app[CONFIG]))
    app[EMBEDDERS] = embedders = Embedders(
        app[CONFIG], app[METRICS].embedding_observer, shared, in_background=app[PROCESSES].count > 0
    )
    app[GATES].text_pace = embedders.bytes_per_s
    app[METRICS].watch(partial(collectors.query_vectors, embedders.cache))
    app[METRICS].watch(partial(collectors.models, embedders))
    app[CEILING].relief.append(embedders.cache.clear)
    embedding = {name: one for name, one in app[CATALOG].collections.items() if one.settings.embeds}
    models = {one.settings.model for one in embedding.values()} | {app[CONFIG].models.default}
    app[START].at = StartBody("models", 0, len(models), app[CONFIG].models.default)
    try:
        await embedders.get(app[CONFIG].models.default)
    except NearlineError as error:
        logger.warning("the default model is not available: %s", error.message)
    for alias, model in app[CONFIG].models.aliases.items():
        if not embedders.is_exported(model) and model != app[CONFIG].rerank.model:
            logger.warning("[models] aliases: there is no model %s, which %s stands for", model, alias)
    for name, collection in embedding.items():
        app[START].at = StartBody("models", len(embedders.names()), len(models), collection.settings.model)
        try:
            await embedders.of(collection)
        except NearlineError as error:
            logger.warning("collection %s cannot embed text: %s", name, error.message)
    yield
    await embedders.close()


async def reranker_ctx(app: web.Application) -> AsyncIterator[None]:
    """Load the reranker. Failure is only a warning: searches that do not ask for it still work."""
    app[RERANKER] = None
    config = app[CONFIG]
    if config.rerank.model:
        try:
            folder = Path(config.models.folder) / config.rerank.model
            threads, provider = runs_of(config)[0], provider_of(config)
            app[RERANKER] = await asyncio.to_thread(Reranker, folder, threads=threads, provider=provider)
        except NearlineError as error:
            logger.warning("the reranker is not available: %s", error.message)
    yield


async def llm_ctx(app: web.Application) -> AsyncIterator[None]:
    """Prepare the language model. It is first called for the first answer, so a server that is down does not stop a
    start."""
    app[LLM] = LanguageModel(app[CONFIG].llm)
    app[METRICS].watch(partial(collectors.language_model, app[LLM]))
    yield
    await app[LLM].close()


async def query_log_ctx(app: web.Application) -> AsyncIterator[None]:
    """Keep the query log. Disabled, as by default, it reads and stores nothing and has no background task."""
    catalog, settings = app[CATALOG], app[CONFIG].query_log
    app[QUERY_LOG] = log = QueryLog(settings, now=time.time)
    if not settings.enabled:
        yield
        return
    await asyncio.to_thread(log.load, list(catalog.collections.values()))
    async with in_background(log.keep_writing(lambda: list(catalog.collections.values()))):
        yield
    await log.write(list(catalog.collections.values()))


async def feedback_ctx(app: web.Application) -> AsyncIterator[None]:
    app[FEEDBACK] = feedback = Feedback(app[CONFIG].feedback, now=time.time)
    async with in_background(feedback.keep_forgetting(lambda: list(app[CATALOG].collections.values()))):
        yield
    await asyncio.to_thread(feedback.close)


async def uploads_ctx(app: web.Application) -> AsyncIterator[None]:
    app[UPLOADS] = uploads = Uploads(app[CATALOG].folder, app[CONFIG].files, now=time.time)
    async with in_background(uploads.keep_forgetting()):
        yield


async def processes_ctx(app: web.Application) -> AsyncIterator[None]:
    """Start the search processes, and have them open all collections."""
    processes = app[PROCESSES]
    app[RELOADED].append(processes.configure)
    app[METRICS].watch(partial(collectors.processes, processes))
    await processes.start()
    for collection in app[CATALOG].collections.values():
        processes.prepare(collection)
    yield
    await processes.close()


async def pipeline_ctx(app: web.Application) -> AsyncIterator[None]:
    config = app[CONFIG]
    near, far = MemoryStore(config.cache.results_bytes_max, time.monotonic), app[SHARED]
    results = ResultCache(near, far, ttl_s=ttl_s(config), now=time.time)
    app[METRICS].watch(partial(collectors.caches, results, app[EMBEDDERS].shared, near, far))
    app[CEILING].relief.append(near.clear)

    def reloaded() -> None:
        results.ttl_s = ttl_s(config)
        if (vectors := app[EMBEDDERS].shared) is not None:
            vectors.ttl_s = ttl_s(config)

    app[RELOADED].append(reloaded)

    def crowded(key: str) -> bool:
        # On a service without keys, all callers count as one caller without a key.
        return app[GATES].is_crowded("search", key or None)

    elsewhere = app[IN_PROCESSES] = InProcesses(app[PROCESSES], app[EMBEDDERS], config, crowded)
    app[PIPELINE] = Pipeline(app[EMBEDDERS], results, config, app[RERANKER], crowded, elsewhere)
    app[METRICS].watch(partial(collectors.load, app[GATES], app[PIPELINE]))
    # A search's matrix products are small; BLAS would spread each over all cores and wait for all of them.
    with threadpool_limits(1, user_api="blas"):
        yield
    await asyncio.to_thread(app[PIPELINE].close)
    await near.close()


async def tasks_ctx(app: web.Application) -> AsyncIterator[None]:
    app[TASKS] = tasks = Tasks(
        app[METRICS].job_finished, app[FOLDERS], partial(embed_questions, app), app[PROCESSES].released
    )
    app[METRICS].watch(partial(collectors.jobs, tasks))
    after_s = app[CONFIG].index.erase_after_h * 3600
    async with in_background(tasks.keep_up(lambda: app[CATALOG].collections, after_s)):
        yield
    await tasks.close()


async def expiry_ctx(app: web.Application) -> AsyncIterator[None]:
    """Delete expired documents and expired OpenAI vector stores. A replica learns of it from its store."""
    if app[CONFIG].store.replica:
        yield
        return
    every_s = app[CONFIG].index.expire_every_s
    async with (
        in_background(keep_deleting(lambda: app[CATALOG].collections, every_s)),
        in_background(delete_expired_regularly(app)),
    ):
        yield
    await save_uses(app)


async def embed_questions(app: web.Application, collection: Collection) -> tuple[str, Floats] | None:
    """Return where the questions to measure a build with are from, and their vectors; None if there are too few, or
    they cannot be embedded."""
    try:
        found = await asyncio.to_thread(questions_of, collection, app[QUERY_LOG], app[FEEDBACK])
        if found is None:
            return None
        return found.source, await (await app[EMBEDDERS].of(collection)).queries(found.texts)
    except NearlineError as error:
        logger.warning("measuring %s with synthetic queries: %s", collection.name, error.message)
        return None


async def warm_ctx(app: web.Application) -> AsyncIterator[None]:
    """Repeat frequent searches whenever caches start empty. The service is ready while this runs."""
    app[FREQUENT] = frequent = Frequent(app[CONFIG].cache.warm_searches)
    app[METRICS].watch(partial(collectors.warm_ups, frequent))
    log, catalog = app[QUERY_LOG], app[CATALOG]
    async with in_background(frequent.keep_warm(app[PIPELINE], lambda: catalog.collections, log.texts)):
        yield


async def loop_lag_ctx(app: web.Application) -> AsyncIterator[None]:
    """Measure continuously how late the event loop runs scheduled work."""

    async def watch() -> None:
        while True:
            due = time.perf_counter() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            app[METRICS].loop_lag(max(0.0, time.perf_counter() - due))

    async with in_background(watch()):
        yield


async def memory_ctx(app: web.Application) -> AsyncIterator[None]:
    """Free memory while the process is close to its limit."""
    ceiling = app[CEILING]

    async def watch() -> None:
        while True:
            await asyncio.sleep(MEMORY_EVERY_S)
            ceiling.others = sum(held for held, _ in app[PROCESSES].usage())
            if ceiling.is_near:
                for relieve in ceiling.relief:
                    relieve()
                await asyncio.to_thread(ceiling.relieve)

    app[METRICS].watch(partial(collectors.memory, ceiling))
    async with in_background(watch()):
        yield


async def resting_ctx(app: web.Application) -> AsyncIterator[None]:
    """Let collections that are not searched leave memory. The next search of one brings it back."""

    def rest(idle_s: float) -> None:
        rested = [one.rest(idle_s) for one in app[CATALOG].collections.values()]
        if any(rested):
            give_back()

    async def watch() -> None:
        while True:
            idle_s = app[CONFIG].index.idle_s
            await asyncio.sleep(min(idle_s / RESTS, RESTING_S_MAX))
            app[PROCESSES].rest(idle_s)
            await asyncio.to_thread(rest, idle_s)

    async with in_background(watch()):
        yield


async def ready_ctx(app: web.Application) -> AsyncIterator[None]:
    """Become ready once a search has been answered with each model. Searching every collection would take too long,
    and opening one has already checked that it is intact."""
    tried = {one.settings.model: (name, one) for name, one in app[CATALOG].collections.items()}
    for done, (name, collection) in enumerate(tried.values()):
        app[START].at = StartBody("searches", done, len(tried), name)
        try:
            await app[PIPELINE].search(name, collection, SearchRequest(query="ready", k=1, cache=False))
        except NearlineError as error:
            logger.warning("collection %s cannot answer a lexical search: %s", name, error.message)
    app[READY]["ready"] = True
    if refusing := app[CEILING].refusing():
        logger.warning(
            "server.memory_bytes_max is less than this process needs: %s are refused", ", ".join(refusing)
        )
    yield
    app[READY]["ready"] = False


def ttl_s(config: Config) -> int:
    """Return the lifetime of cache entries, in whole seconds as the stores count it."""
    return max(1, int(config.cache.ttl_s))


def shared_store(config: Config, data: Path) -> RedisStore | None:
    """Return the store in the Redis of `redis.url`, shared with services that have the same secret."""
    if not config.redis.url:
        return None
    from retrieval.cache.redis_store import RedisStore

    return RedisStore(
        config.redis.url,
        secret=shared_secret(config.redis.secret)
        if config.redis.secret
        else own_secret(data, "cache.secret"),
        timeout_ms=config.redis.timeout_ms,
        retry_after_s=config.redis.retry_after_s,
        prefix=config.redis.prefix.encode(),
        clock=time.monotonic,
    )


def shared_secret(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=SECRET_BYTES, person=b"nearline-secret").digest()


def own_secret(data: Path, name: str) -> bytes:
    """Return the random secret of this data directory and its copies, created on first use."""
    path = data / name
    if not path.is_file():
        publish(path, secrets.token_bytes(SECRET_BYTES), mode=0o600)
    return path.read_bytes()
