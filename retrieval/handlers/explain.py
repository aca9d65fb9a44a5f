"""Explain why a document is, or is not, among the hits of a search."""

from __future__ import annotations

from aiohttp import web

from retrieval.handlers.search import await_writes, budget_of
from retrieval.handlers.state import CONFIG, EMBEDDERS, PIPELINE
from retrieval.handlers.wire import answer, body, collection_of
from retrieval.insight import explaining
from retrieval.search.pipeline import wait_for_seq
from retrieval.wire.explain import ExplainRequest


async def explain(request: web.Request) -> web.Response:
    wanted = await body(request, ExplainRequest)
    _, collection = collection_of(request)
    app, budget = request.app, budget_of(request)
    await await_writes(request, collection, [wanted], budget)
    await wait_for_seq(collection, wanted.min_seq or 0, budget.seq_until)
    return answer(await explaining.explain(app[PIPELINE], app[EMBEDDERS], collection, wanted, app[CONFIG]))
