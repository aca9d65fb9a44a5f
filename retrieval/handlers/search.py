"""Search, batches of searches, and context for a prompt."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from aiohttp import web

from indexes.base.errors import DeadlineExceeded, InvalidInput, NearlineError, NotFound, TooLarge
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.ceiling import AnswerBudget
from retrieval.base.cancellation import gather_or_cancel, run_abandonable
from retrieval.cache import REDIS_WAIT, RedisWait
from retrieval.context.building import build_context, check_context, search_requests
from retrieval.context.encodings import Encoding, encoding
from retrieval.embedding.counting import TokenCounter
from retrieval.embedding.embedders import Described
from retrieval.handlers.state import CONFIG, EMBEDDERS, ENTRY, HELD, METRICS, PIPELINE
from retrieval.handlers.wire import (
    answer,
    answer_from,
    body,
    charge,
    collection_of,
    in_callers_words,
    json_answer,
    named_collection,
    note_search,
    timing_headers,
)
from retrieval.observe.request_log import note_queries
from retrieval.observe.tracing import RECEIPT
from retrieval.search.pipeline import Divided, wait_for_seq
from retrieval.wire.decoding import decode_part
from retrieval.wire.errors import body_of
from retrieval.wire.search import (
    ContextAnswer,
    ContextRequest,
    PageOptions,
    SearchAnswer,
    SearchBatch,
    SearchBatchAnswer,
    SearchCollections,
    SearchCollectionsAnswer,
    SearchRequest,
    Timings,
    seq_in,
)

Find = Callable[[SearchRequest], Awaitable[SearchAnswer]]
COLLECTIONS_MAX = 16  # of one search
CONCURRENT_SEARCHES = 8  # per batch, so that a large batch does not delay other callers' queries
INLINE_BYTES = 1 << 18  # of searches or hits processed on the event loop, in under a millisecond


async def search(request: web.Request) -> web.Response:
    wanted = await body(request, SearchRequest)
    note_queries(request, [wanted.query])
    name, collection = collection_of(request)
    budget = budget_of(request)
    await await_writes(request, collection, [wanted])
    found = await request.app[PIPELINE].search(name, collection, wanted, budget=budget)
    request[RECEIPT] = found.receipt
    note_search(request.app, collection, wanted, found)
    return json_answer(await encode_answer(found, budget), headers_of(found.timings_ms))


async def search_collections(request: web.Request) -> web.Response:
    """Search several collections with one ranking over all."""

    async def find(name: str) -> Collection:
        return named_collection(request, name)

    return await search_named(request, find)


async def search_named(
    request: web.Request, find: Callable[[str], Awaitable[Collection | Divided]]
) -> web.Response:
    """Search the collections that the body names, and that `find` finds."""
    wanted = await body(request, SearchCollections)
    note_queries(request, [wanted.query])
    if wanted.min_seq is not None:
        raise InvalidInput(
            "min_seq is an operation of one collection, and several are searched", param="min_seq"
        )
    collections = await collections_of(wanted.collections, find)
    await charge(request.app, len(collections))
    budget = budget_of(request)
    options = {name: getattr(wanted, name) for name in PageOptions.__struct_fields__}
    found = await request.app[PIPELINE].search_together(
        wanted.collections, collections, SearchRequest(**options), budget
    )
    request.app[METRICS].search(found.receipts, found.timings_ms)
    return json_answer(await encode_answer(found, budget), headers_of(found.timings_ms))


async def collections_of(
    names: Sequence[str], find: Callable[[str], Awaitable[Collection | Divided]]
) -> list[Collection | Divided]:
    """Return the collections that a body names. Raises InvalidInput for none, too many, or one that is named twice, and
    NotFound, each naming its place."""
    if not 1 <= len(names) <= COLLECTIONS_MAX:
        raise InvalidInput(
            f"a search is of 1 to {COLLECTIONS_MAX} collections, found {len(names)}", param="collections"
        )
    found: dict[str, Collection | Divided] = {}
    for at, name in enumerate(names):
        place = f"collections[{at}]"
        try:
            collection = await find(name)
        except NotFound as error:
            raise NotFound(f"no collection {name!r}", param=place) from error
        if collection.name in found:
            raise InvalidInput(f"{name!r} is a collection that is already named", param=place)
        found[collection.name] = collection
    return list(found.values())


async def search_batch(request: web.Request) -> web.Response:
    """Run several searches and answer in their order; one that fails has an error in its place. All exact searches
    of a batch with the same filter share one scan of the log. All searches share the byte budget of one answer."""
    name, collection = collection_of(request)
    searches = await searches_of(request)
    pipeline, slots = request.app[PIPELINE], asyncio.Semaphore(CONCURRENT_SEARCHES)
    budget = budget_of(request, param="searches")
    with contextlib.suppress(DeadlineExceeded):  # each says so in its place
        await await_writes(request, collection, searches)
    scan = pipeline.joint_scan(collection, sum(search.exact for search in searches))

    async def find(search: SearchRequest) -> SearchAnswer:
        if search.exact:  # takes no slot: exact searches wait for each other
            with scan.place() as place:
                found = await pipeline.search(name, collection, search, place, budget)
        else:
            async with slots:
                found = await pipeline.search(name, collection, search, budget=budget)
        note_search(request.app, collection, search, found)
        return found

    return await answer_batch(request, searches, budget, find)


async def searches_of(request: web.Request) -> list[SearchRequest]:
    """Read the searches of a batch, and charge them to their key."""
    wanted = await body(request, SearchBatch)
    most = request.app[CONFIG].limits.searches_per_batch_max
    if not wanted.searches:
        raise InvalidInput("searches is empty, expected at least one", param="searches")
    if len(wanted.searches) > most:
        raise TooLarge(
            f"{len(wanted.searches)} searches in one request, at most {most} are allowed", param="searches"
        )

    def decode_searches() -> list[SearchRequest]:
        parts = enumerate(wanted.searches)
        return [decode_part(one, SearchRequest, f"searches[{at}]") for at, one in parts]

    small = sum(map(len, wanted.searches)) <= INLINE_BYTES
    searches = decode_searches() if small else await asyncio.to_thread(decode_searches)
    note_queries(request, [search.query for search in searches])
    await charge(request.app, len(searches))
    return searches


async def answer_batch(
    request: web.Request, searches: Sequence[SearchRequest], budget: AnswerBudget, find: Find
) -> web.Response:
    """Answer all searches at once. Errors stand in their places."""

    async def one(search: SearchRequest) -> msgspec.Raw:
        REDIS_WAIT.set(RedisWait())  # each search may wait for Redis as long as a single one
        try:
            found = await find(search)
        except NearlineError as error:
            return msgspec.Raw(msgspec.json.encode(body_of(in_callers_words(request.app, error))))
        return msgspec.Raw(await encode_answer(found, budget))  # now: objects take several times the memory

    results = await asyncio.gather(*(one(search) for search in searches))
    return await answer_from(lambda: SearchBatchAnswer(results))


async def context(request: web.Request) -> web.Response:
    built = await context_of(request, await body(request, ContextRequest))
    request[RECEIPT] = built.receipt
    return answer(built, headers=headers_of(built.timings_ms))


async def context_of(request: web.Request, wanted: ContextRequest) -> ContextAnswer:
    """Search for each of the queries, within the byte budget of one answer, and pack what they find."""
    app, config = request.app, request.app[CONFIG]
    name, collection = collection_of(request)
    budget = budget_of(request, None if wanted.k is None else "k")

    async def find(search: SearchRequest) -> SearchAnswer:
        found = await app[PIPELINE].search(name, collection, search, budget=budget)
        note_search(app, collection, search, found)
        return found

    async def begin(searches: Sequence[SearchRequest]) -> None:
        await await_writes(request, collection, searches)
        # To a caller with groups, the keys that there are would tell of hidden documents.
        if wanted.date_key is not None and PRINCIPAL.get().groups is None:
            await asyncio.to_thread(collection.snapshot.require_key, wanted.date_key, "date_key")

    check_context(wanted, config)
    return await pack_context(request, wanted, collection, begin, find)


async def pack_context(
    request: web.Request,
    wanted: ContextRequest,
    collection: Described,
    begin: Callable[[Sequence[SearchRequest]], Awaitable[None]],
    find: Find,
) -> ContextAnswer:
    """Pack what `find` finds for each of the queries, after `begin`."""
    app, config = request.app, request.app[CONFIG]
    deadline_ms = wanted.deadline_ms or config.search.deadline_ms
    deadline = asyncio.get_running_loop().time() + deadline_ms / 1000
    embedders = app[EMBEDDERS]
    # Without a model of its own, a collection's passages are counted in tokens of the default one.
    embeds = collection.settings.embeds
    embedder = await (embedders.of(collection) if embeds else embedders.get(config.models.default))
    slots = asyncio.Semaphore(CONCURRENT_SEARCHES)
    counter: TokenCounter | Encoding = embedder.counter
    if wanted.tokenizer is not None:
        counter = await asyncio.to_thread(encoding, wanted.tokenizer)

    async def find_one(search: SearchRequest) -> SearchAnswer:
        async with slots:
            return await find(search)

    wanted_searches = search_requests(wanted, config)
    note_queries(request, [search.query for search in wanted_searches])
    await charge(app, len(wanted_searches))
    await begin(wanted_searches)
    found = await gather_or_cancel(map(find_one, wanted_searches))
    return await run_abandonable(
        lambda on_step: build_context(
            found,
            wanted,
            partial(counter.starts, on_step=on_step),
            config,
            on_step,
            similarity_floor=embedder.manifest.similarity_floor,
        ),
        deadline=deadline,
    )


def budget_of(request: web.Request, param: str | None = "k") -> AnswerBudget:
    return AnswerBudget(request.app[CONFIG].limits.answer_bytes_max, param=param, hold=request[HELD].answer)


async def await_writes(
    request: web.Request, collection: Collection, searches: Sequence[SearchRequest]
) -> None:
    """Wait once for the newest write that any of the searches asks for. They do not count as under way during that.
    Raises DeadlineExceeded at the first of their deadlines."""
    newest = max((seq_in(one.min_seq) for one in searches), default=0)
    if collection.snapshot.seq >= newest:
        return
    usual, loop = request.app[CONFIG].search.deadline_ms, asyncio.get_running_loop()
    deadline_ms = min(one.deadline_ms or (math.inf if one.exact else usual) for one in searches)
    until = loop.time() + deadline_ms / 1000
    with request[ENTRY].waiting():
        await wait_for_seq(collection, newest, until)
    if collection.snapshot.seq < newest and loop.time() >= until:
        raise DeadlineExceeded(f"no answer within deadline_ms={deadline_ms}", param="deadline_ms")


async def encode_answer(found: SearchAnswer | SearchCollectionsAnswer, budget: AnswerBudget) -> bytes:
    """Return the answer as JSON, encoded on a thread if its hits are large."""

    def in_pieces() -> bytes:
        # Encode each hit separately: encoding many in one step would block every other thread.
        hits = [msgspec.Raw(msgspec.json.encode(hit)) for hit in found.hits]
        return msgspec.json.encode(msgspec.structs.replace(found, hits=hits))

    if budget.taken > INLINE_BYTES:
        return await asyncio.to_thread(in_pieces)
    return msgspec.json.encode(found)


def headers_of(timings: Timings) -> dict[str, str]:
    headers = timing_headers(msgspec.structs.asdict(timings), timings.embed)
    return {**headers, "X-Search-Latency": f"{timings.total - timings.embed:.3f}"}
