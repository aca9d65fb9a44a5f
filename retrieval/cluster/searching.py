"""Searches and contexts over collections in several shards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

from indexes.base.errors import InvalidInput, NotFound
from indexes.collection.collection import Collection
from indexes.filters.grammar import Exists, Filter
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.ceiling import AnswerBudget
from retrieval.base.cancellation import gather_or_cancel
from retrieval.cluster import documents
from retrieval.cluster.running import keep_running
from retrieval.cluster.targets import ShardedTarget, named_sharded, nodes_of, target_of
from retrieval.context.building import check_context
from retrieval.dialects.vector_store_schemas import OpenAIStoreSearch
from retrieval.dialects.vector_stores import MOST, answer_best
from retrieval.handlers import search as whole
from retrieval.handlers.answers import answer_from, cited_in
from retrieval.handlers.assess import assess_with
from retrieval.handlers.state import CATALOG, CONFIG, ENTRY, METRICS, PIPELINE
from retrieval.handlers.wire import answer, body, json_answer, named_collection
from retrieval.observe.request_log import note_queries
from retrieval.observe.tracing import RECEIPT
from retrieval.wire.answer import AnswerRequest
from retrieval.wire.assess import AssessRequest
from retrieval.wire.search import Citation, ContextAnswer, ContextRequest, SearchAnswer, SearchRequest


def finder(request: web.Request, param: str | None = "k") -> tuple[whole.Find, AnswerBudget]:
    """Return a search of the collection in the path, and the budget that its searches share."""
    app, name = request.app, request.match_info["collection"]
    budget = whole.budget_of(request, param)

    async def find(wanted: SearchRequest) -> SearchAnswer:
        target = target_of(request, wanted.min_seq)
        if target.least:  # before the search has a turn, which others may need
            deadline_ms = wanted.deadline_ms or app[CONFIG].search.deadline_ms
            deadline = asyncio.get_running_loop().time() + deadline_ms / 1000
            with request[ENTRY].waiting():
                await target.reach(deadline, deadline_ms)
        found = await app[PIPELINE].search_shards(name, target, wanted, budget)
        app[METRICS].search([found.receipt], found.timings_ms)
        if target.known_counts.wants_terms():
            keep_running(app, target.read_frequent())
        return found

    return find, budget


async def search(request: web.Request) -> web.Response:
    wanted = await body(request, SearchRequest)
    note_queries(request, [wanted.query])
    find, budget = finder(request)
    found = await find(wanted)
    request[RECEIPT] = found.receipt
    return json_answer(await whole.encode_answer(found, budget), whole.headers_of(found.timings_ms))


async def search_store(request: web.Request) -> web.Response:
    wanted = await body(request, OpenAIStoreSearch)
    return await answer_best(request, wanted, finder(request, MOST)[0])


async def search_batch(request: web.Request) -> web.Response:
    searches, slots = await whole.searches_of(request), asyncio.Semaphore(whole.CONCURRENT_SEARCHES)
    find, budget = finder(request, "searches")

    async def find_one(wanted: SearchRequest) -> SearchAnswer:
        async with slots:
            return await find(wanted)

    return await whole.answer_batch(request, searches, budget, find_one)


async def search_collections(request: web.Request) -> web.Response:
    """Search several collections, of which some may be in shards."""

    async def find(name: str) -> Collection | ShardedTarget:
        full = PRINCIPAL.get().full(name)
        if request.app[CATALOG].holds(full):
            return named_collection(request, name)
        nodes = nodes_of(request)
        await nodes.find(full)
        return ShardedTarget(nodes, named_sharded(request, name), {})

    return await whole.search_named(request, find)


async def context(request: web.Request) -> web.Response:
    built = await context_of(request, await body(request, ContextRequest))
    request[RECEIPT] = built.receipt
    return answer(built, headers=whole.headers_of(built.timings_ms))


async def context_of(request: web.Request, wanted: ContextRequest) -> ContextAnswer:
    check_context(wanted, request.app[CONFIG])
    find, _ = finder(request, None if wanted.k is None else "k")

    async def begin(searches: Sequence[SearchRequest]) -> None:
        if wanted.date_key is not None and PRINCIPAL.get().groups is None:
            try:
                await target_of(request).counts(Exists(wanted.date_key))
            except InvalidInput as error:
                error.param = "date_key"
                raise

    return await whole.pack_context(request, wanted, target_of(request), begin, find)


async def assess(request: web.Request) -> web.Response:
    wanted = await body(request, AssessRequest)

    async def count(condition: Filter | None) -> int:
        found = await target_of(request, wanted.min_seq).counts(condition)
        return sum(one.documents for one in found.values())

    return await assess_with(request, wanted, finder(request, "neighbors")[0], count)


async def answer_question(request: web.Request) -> web.StreamResponse:
    async def passages(citations: Sequence[Citation]) -> dict[int, tuple[str, str]]:
        """Read the documents of all citations at once."""
        names = sorted({one.document_id for one in citations})
        found = await gather_or_cancel(read_document(request, name) for name in names)
        return cited_in({name: one for name, one in zip(names, found, strict=True) if one}, citations)

    return await answer_from(request, await body(request, AnswerRequest), context_of, passages)


async def read_document(request: web.Request, document_id: str) -> tuple[str, str] | None:
    """Return the text and the language of a document; None if it was deleted."""
    try:
        found = await documents.find_one(request, document_id)
    except NotFound:
        return None
    return found["text"], found["language"]
