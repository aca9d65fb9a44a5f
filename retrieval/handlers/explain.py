"""Explain why a document is, or is not, among the hits of a search."""

from __future__ import annotations

from aiohttp import web

from retrieval.handlers.search import await_writes
from retrieval.handlers.state import CONFIG, EMBEDDERS, PIPELINE
from retrieval.handlers.wire import answer, body, collection_of
from retrieval.insight import explaining
from retrieval.insight.explaining import Explainable, ExplainedCollection
from retrieval.wire.explain import ExplainRequest


async def explain(request: web.Request) -> web.Response:
    wanted = await body(request, ExplainRequest)
    _, collection = collection_of(request)
    await await_writes(request, collection, [wanted])
    return await answer_explained(request, wanted, ExplainedCollection(request.app[PIPELINE], collection))


async def answer_explained(
    request: web.Request, wanted: ExplainRequest, explained: Explainable
) -> web.Response:
    app = request.app
    return answer(await explaining.explain(explained, app[EMBEDDERS], wanted, app[CONFIG]))
