"""Health, readiness, metrics, and the API description with its page."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import time
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from indexes.base.errors import Conflict, NotFound, NotReady
from indexes.store.uploading import Uploader
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.gates import Load
from retrieval.handlers.browsers import protect
from retrieval.handlers.error_shapes import response
from retrieval.handlers.state import API, CATALOG, CEILING, KEYS, METRICS, READY, START, STORE
from retrieval.handlers.wire import answer, query_int
from retrieval.upkeep.starting import StartBody
from retrieval.wire.collections import StoreChanges

PAGE = Path(__file__).with_name("docs.html").read_text()
SCRIPTS = re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)
HASHES = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in SCRIPTS]
OWN_SCRIPTS = " ".join(f"'sha256-{one}'" for one in HASHES)
# Swagger UI sets styles inline and embeds its icons in its style sheet.
PAGE_POLICY = (
    f"default-src 'none'; script-src 'self' {OWN_SCRIPTS}; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ASSETS = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}  # the files the page loads


START_RETRY_S = 2
WAIT_S_MAX = 30
LOOK_S = 1.0  # how often a request that waits looks whether the service stops


class Health(msgspec.Struct):
    status: str


class Readiness(msgspec.Struct, omit_defaults=True):
    """Whether the service is ready. `starting` is the progress of a start, `quarantined` lists collections that
    cannot serve, and `refusing` the request classes that there is no memory for."""

    status: Literal["ready", "not ready"]
    starting: StartBody | UnsetType = UNSET
    quarantined: list[str] | UnsetType = UNSET
    refusing: list[Load] | UnsetType = UNSET


async def healthz(request: web.Request) -> web.Response:
    """Answer that the process responds; nothing else is promised."""
    return answer(Health("ok"))


async def readyz(request: web.Request) -> web.Response:
    """200 once the collections are open and the models are loaded; 503 before that and while closing.

    A quarantined collection does not fail it, since taking the whole service out of rotation helps no one; it is
    named if there are no access keys. Nor does a lack of memory, which passes sooner than a load balancer would
    notice.
    """
    if not request.app[READY]["ready"]:
        return answer(Readiness("not ready"), status=503, headers={"Retry-After": f"{START_RETRY_S}"})
    refusing = request.app[CEILING].refusing()
    # With access keys, collection names are not public.
    quarantined = UNSET if request.app[KEYS].required else sorted(request.app[CATALOG].quarantined)
    return answer(Readiness("ready", quarantined=quarantined, refusing=refusing or UNSET))


async def store_changes(request: web.Request) -> web.Response:
    """How often something was put into the store; waits, if told so, until that is no longer `since`. Raises Conflict
    if this service writes to none, and Forbidden for keys that do not see everything."""
    PRINCIPAL.get().require_service()
    PRINCIPAL.get().require_whole()
    since = query_int(request, "since", 0, least=0, most=2**62)
    wait_s = query_int(request, "wait_s", 0, least=0, most=WAIT_S_MAX)
    store, app = request.app[STORE], request.app
    if not isinstance(store, Uploader):
        raise Conflict("this service writes to no store")
    until = time.monotonic() + wait_s
    while store.changes == since and app[READY]["ready"] and (left := until - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(store.arrivals.at(since + 1)), min(left, LOOK_S))
    return answer(StoreChanges(store.changes, store.epoch))


def starting_server(app: web.Application) -> web.Server:
    """Return a server for the time before the application runs: it reports liveness and progress, and 503 otherwise."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        at = app[START].at
        if app[KEYS].required:
            at = msgspec.structs.replace(at, name="")
        if request.path == "/healthz":
            reply: web.StreamResponse = answer(Health("ok"))
        elif request.path == "/readyz":
            reply = answer(
                Readiness("not ready", at), status=503, headers={"Retry-After": f"{START_RETRY_S}"}
            )
        else:
            words = f"the service is starting ({at.stage}, {at.done} of {at.total} are done)"
            reply = response(request.path, NotReady(words, retry_after_s=START_RETRY_S))
        protect(reply)
        reply.force_close()  # the next request should reach the application
        return reply

    return web.Server(handle)


async def metrics(request: web.Request) -> web.Response:
    # On a thread: with many collections this reads a lot, from disk too, and writes a lot.
    return web.Response(
        body=await asyncio.to_thread(request.app[METRICS].render),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


async def openapi(request: web.Request) -> web.Response:
    return answer(await asyncio.to_thread(request.app[API]))


async def root(request: web.Request) -> web.Response:
    raise web.HTTPFound("ui")  # relative, because a proxy may add a prefix


async def docs(request: web.Request) -> web.Response:
    return web.Response(text=PAGE, content_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})


async def asset(request: web.Request) -> web.Response:
    """Serve a file of the page. Only the two files it loads: no path is built from client input."""
    name = request.match_info["name"]
    if name not in ASSETS:
        raise NotFound("no such path: the page has no such file")
    path = Path(str(files("swagger_ui"))) / "static" / name
    # Not a FileResponse: sendfile bypasses our buffers, so a client that does not read would go unnoticed.
    content = await asyncio.to_thread(path.read_bytes)
    return web.Response(
        body=content,
        content_type=ASSETS[name],
        charset="utf-8",
        headers={"Cache-Control": "max-age=86400"},
    )
