"""Search, batches of searches, and context for a prompt."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
from aiohttp import web

from indexes import InvalidInput, NearlineError, TooLarge
from retrieval.cancellation import abandonable
from retrieval.ceiling import AnswerBudget
from retrieval.context import build_context, search_request
from retrieval.decoding import decode_part
from retrieval.errors import body_of, without_folders
from retrieval.handlers.wire import answer, answer_from, body, collection_of, json_answer, timing_headers
from retrieval.keys import CONFIG, EMBEDDERS, FOLDERS, HELD, METRICS, PIPELINE, QUERY_LOG
from retrieval.schemas import (
    ContextRequest,
    SearchAnswer,
    SearchBatch,
    SearchBatchAnswer,
    SearchRequest,
    Timings,
)

CONCURRENT_SEARCHES = 8  # of one batch; a large batch must not push everybody else's query back
INLINE_BYTES = 1 << 18  # of searches and of hits, handled on the event loop: less than a millisecond


async def search(request: web.Request) -> web.Response:
    wanted = await body(request, SearchRequest)
    name, collection = collection_of(request)
    budget = budget_of(request)
    found = await request.app[PIPELINE].search(name, collection, wanted, budget=budget)
    request.app[METRICS].search(found)
    request.app[QUERY_LOG].note(collection, wanted)
    return json_answer(await encoded(found, budget), headers_of(found.timings_ms))


async def search_batch(request: web.Request) -> web.Response:
    """Answers in the order of the searches; one that fails has an error in its place.

    All exact searches of a batch share one scan of the log, for each different filter. All searches share the budget of
    one answer.
    """
    wanted = await body(request, SearchBatch)
    name, collection = collection_of(request)
    most = request.app[CONFIG].limits.searches_per_batch_max
    if not wanted.searches:
        raise InvalidInput("searches is empty, expected at least one", param="searches")
    if len(wanted.searches) > most:
        raise TooLarge(
            f"{len(wanted.searches)} searches in one request, at most {most} are allowed", param="searches"
        )

    def decoded() -> list[SearchRequest]:
        parts = enumerate(wanted.searches)
        return [decode_part(one, SearchRequest, f"searches[{at}]") for at, one in parts]

    small = sum(map(len, wanted.searches)) <= INLINE_BYTES
    searches = decoded() if small else await asyncio.to_thread(decoded)
    slots = asyncio.Semaphore(CONCURRENT_SEARCHES)

    pipeline = request.app[PIPELINE]
    budget = budget_of(request, param="searches")
    scan = pipeline.joint_scan(collection, sum(search.exact for search in searches))

    async def find(search: SearchRequest) -> SearchAnswer:
        if search.exact:  # without a slot: they wait for each other
            with scan.place() as place:
                return await pipeline.search(name, collection, search, place, budget)
        async with slots:
            return await pipeline.search(name, collection, search, budget=budget)

    async def one(search: SearchRequest) -> msgspec.Raw:
        try:
            found = await find(search)
        except NearlineError as error:
            folders = request.app[FOLDERS]
            error.message = without_folders(error.message, folders)
            return msgspec.Raw(msgspec.json.encode(body_of(error)))
        request.app[METRICS].search(found)
        request.app[QUERY_LOG].note(collection, search)
        return msgspec.Raw(await encoded(found, budget))  # now: its parts take several times as much memory

    results = await asyncio.gather(*(one(search) for search in searches))
    return await answer_from(lambda: SearchBatchAnswer(results))


async def context(request: web.Request) -> web.Response:
    wanted = await body(request, ContextRequest)
    name, collection = collection_of(request)
    config = request.app[CONFIG]
    if wanted.token_budget > config.limits.token_budget_max:
        raise TooLarge(f"token_budget must be at most {config.limits.token_budget_max}", param="token_budget")
    deadline_ms = wanted.deadline_ms or config.search.deadline_ms
    deadline = asyncio.get_running_loop().time() + deadline_ms / 1000
    embedder = await request.app[EMBEDDERS].of(collection)
    search = search_request(wanted, config)
    found = await request.app[PIPELINE].search(name, collection, search, budget=budget_of(request))
    request.app[METRICS].search(found)
    request.app[QUERY_LOG].note(collection, search)
    built = await abandonable(
        lambda go_on: build_context(
            found,
            wanted,
            partial(embedder.counter.starts, go_on=go_on),
            config,
            go_on,
            similarity_floor=embedder.manifest.similarity_floor,
        ),
        deadline=deadline,
    )
    return answer(built, headers=headers_of(found.timings_ms))


def budget_of(request: web.Request, param: str = "k") -> AnswerBudget:
    return AnswerBudget(request.app[CONFIG].limits.answer_bytes_max, param=param, hold=request[HELD].answer)


async def encoded(found: SearchAnswer, budget: AnswerBudget) -> bytes:
    """Its JSON, made on a thread if the hits in the budget are large."""

    def in_pieces() -> bytes:
        # Each hit by itself: encoding many in one step would hold up every other thread.
        hits = [msgspec.Raw(msgspec.json.encode(hit)) for hit in found.hits]
        return msgspec.json.encode(msgspec.structs.replace(found, hits=hits))

    if budget.taken > INLINE_BYTES:
        return await asyncio.to_thread(in_pieces)
    return msgspec.json.encode(found)


def headers_of(timings: Timings) -> dict[str, str]:
    headers = timing_headers(msgspec.structs.asdict(timings), timings.embed)
    return {**headers, "X-Search-Latency": f"{timings.total - timings.embed:.3f}"}
