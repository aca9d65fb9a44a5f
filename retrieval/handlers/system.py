"""Health, readiness, metrics, and the description of the API with its page."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from retrieval.handlers.wire import answer
from retrieval.keys import API, CATALOG, METRICS, READY

PAGE = Path(__file__).with_name("docs.html")


async def healthz(request: web.Request) -> web.Response:
    """The process answers: nothing else is promised."""
    return answer({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """200 once the collections are open and the models are loaded, 503 before and while closing.

    A quarantined collection is named and does not fail it: taking the whole service out of rotation helps nobody.
    """
    if not request.app[READY]["ready"]:
        return answer({"status": "not ready"}, status=503)
    return answer({"status": "ready", "quarantined": sorted(request.app[CATALOG].quarantined)})


async def metrics(request: web.Request) -> web.Response:
    return web.Response(
        body=request.app[METRICS].render(),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


async def openapi(request: web.Request) -> web.Response:
    return answer(request.app[API])


async def root(request: web.Request) -> web.Response:
    raise web.HTTPFound("/docs")


async def docs(request: web.Request) -> web.Response:
    return web.Response(text=PAGE.read_text(), content_type="text/html")
