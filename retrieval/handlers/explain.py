"""Why a document is, or is not, among the hits of a search."""

from __future__ import annotations

from aiohttp import web

from retrieval.explain_schemas import ExplainRequest
from retrieval.explaining import explain as explained
from retrieval.handlers.wire import answer, body, collection_of
from retrieval.keys import CONFIG, EMBEDDERS, PIPELINE


async def explain(request: web.Request) -> web.Response:
    wanted = await body(request, ExplainRequest)
    _, collection = collection_of(request)
    app = request.app
    return answer(await explained(app[PIPELINE], app[EMBEDDERS], collection, wanted, app[CONFIG]))
