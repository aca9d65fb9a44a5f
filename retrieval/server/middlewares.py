"""What every request passes through: an id and metrics, errors as JSON, caller checks, a key, its body, admission."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from indexes.base.errors import (
    Conflict,
    InvalidInput,
    NearlineError,
    NotFound,
    Quarantined,
    StorageError,
    TooLarge,
)
from indexes.base.suggestions import suggestion
from indexes.base.work import BEGAN
from retrieval.access.auth import NODE, PRINCIPAL
from retrieval.admission.gates import Load
from retrieval.admission.turns import PATIENT
from retrieval.base.request_id import REQUEST_ID, request_id_of
from retrieval.cache import REDIS_WAIT, RedisWait
from retrieval.cluster.routing import handler_for
from retrieval.handlers.browsers import FORM, let_page_read, require_known_caller
from retrieval.handlers.error_shapes import own_response, response
from retrieval.handlers.state import (
    BODY,
    CEILING,
    CONFIG,
    ENTRY,
    GATES,
    HELD,
    KEYS,
    LIMITER,
    LOADS,
    METRICS,
    PARAMETERS,
    READY,
    SCOPES,
    STOPPING,
    STORE,
)
from retrieval.handlers.wire import form, in_callers_words, require_once
from retrieval.observe.request_log import CLIENT_LEFT, LOG, log_request
from retrieval.server.door import DOOR, arrived
from retrieval.server.writer import WRITER, WriterLink, is_about_its_jobs, is_for_writer
from retrieval.wire.decoding import ALIKE, shorten
from retrieval.wire.errors import (
    MalformedRequest,
    MethodNotAllowed,
    RateLimited,
    RequestTimeout,
    UnsupportedEncoding,
)

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PREFLIGHT_S = "7200"  # a browser repeats its preflight after this; Chromium's maximum
LAST_WORD_S = 1.0  # for an answer to be sent before the connection closes
PLAIN = {"Content-Encoding": {"", "identity"}, "Transfer-Encoding": {"", "chunked"}}  # codings that we read


@web.middleware
async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count and time the request; echo the client's X-Request-Id or assign one."""
    request_id = request_id_of(request.headers)
    REQUEST_ID.set(request_id)  # each request has its own task in aiohttp, so its own context
    request[LOG] = request.app[CONFIG].log
    started = time.perf_counter()
    try:
        answer = await handler(request)
    except asyncio.CancelledError:
        log_request(request, CLIENT_LEFT, time.perf_counter() - started)
        raise
    answer.headers["X-Request-Id"] = request_id
    if not request.app[READY]["ready"]:
        answer.force_close()  # the service is stopping: tell keep-alive clients
    route = request.match_info.route.resource
    request.app[METRICS].request(
        request.method,
        route.canonical if route else "unknown",
        answer.status,
        time.perf_counter() - started,
    )
    return answer


@web.middleware
async def cross_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """CORS: let pages of the configured origins call from a browser, and read answers, errors and all headers.
    Credentials are never allowed, so `*` may stand for all headers; only a preflight has to name them."""
    allowed = request.app[CONFIG].server.cors_origins
    if not allowed:
        return await handler(request)
    origin = request.headers.get("Origin", "")
    known = origin in allowed or "*" in allowed
    method = request.headers.get("Access-Control-Request-Method")
    if known and method is not None and request.method == "OPTIONS":
        answer: web.StreamResponse = web.Response(status=204)
        answer.headers["Access-Control-Allow-Methods"] = method  # the request itself is answered with 405
        answer.headers["Access-Control-Allow-Headers"] = request.headers.get(
            "Access-Control-Request-Headers", "*"
        )
        answer.headers["Access-Control-Max-Age"] = PREFLIGHT_S
    else:
        answer = await handler(request)
    let_page_read(request, answer)
    return answer


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error in the shape of its path's dialect. An unexpected error is logged with its traceback and
    answered without details; a storage error is logged with its path and answered without it."""
    try:
        return await handler(request)
    except NearlineError as error:
        if isinstance(error, StorageError) and not isinstance(
            error, Quarantined
        ):  # quarantine was logged when it began
            logger.error("%s %s failed: %s", request.method, request.rel_url.raw_path, error.message)
        refusal = response(request.path, in_callers_words(request.app, error))
        if isinstance(error, RequestTimeout):
            refusal.force_close()
        if isinstance(error, RateLimited):
            request.app[METRICS].rate_limited(error.limit, refusal.status)
        return refusal
    except web.HTTPException as error:
        return from_aiohttp(request, error)
    except Exception:
        logger.exception("%s %s failed", request.method, request.rel_url.raw_path)
        return response(request.path, NearlineError("internal error; the service's log has the details"))


@web.middleware
async def within_grace(request: web.Request, handler: Handler) -> web.StreamResponse:
    """End requests that a stopping service cannot wait for."""
    async with request.app[STOPPING].within_grace():
        return await handler(request)


def writer_for(request: web.Request) -> WriterLink | None:
    """Return the writer if it must answer a replica's request. Raises Conflict if the replica passes nothing on."""
    writer = request.app[WRITER] if request.app[CONFIG].store.forward_writes else None
    if is_for_writer(request):
        if writer is None and (store := request.app[STORE]) is not None:
            store.require_up()
        return writer
    return writer if writer is not None and is_about_its_jobs(request) else None


@web.middleware
async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Admit a known caller whose key allows the request, once its body is here and its class has room for it.

    Usually the door has given it its slot already, for its body is here. Otherwise it is checked in this order, so that
    no request holds a slot while waiting for its client. From here on `PRINCIPAL` is the caller, and handlers report to
    `HELD` how much memory their answers take. Paths missing from the routing table need a key too.
    """
    app = request.app
    entry = app[DOOR].take_admission(request.protocol)
    done = False
    REDIS_WAIT.set(RedisWait())
    try:
        require_known_caller(request)
        caller = app[KEYS].admit(request.headers, app[SCOPES].get(request.match_info.handler, "key"))
        PRINCIPAL.set(caller)
        BEGAN.set(time.monotonic())
        require_known_parameters(request)
        writer = writer_for(request) if app[CONFIG].store.replica else None
        with app[LIMITER].under_way(caller.key, caller.limits):
            if writer is not None:
                announced_bytes(request)
                return await writer.forward(request)  # which counts it by the same limits
            handler = await handler_for(request, handler)
            load = load_of(request)
            if load is None:
                await app[LIMITER].take(caller.key, caller.limits)
                return await handler(request)
            PATIENT.set(load != "search")
            key, stated = caller.key if app[KEYS].required else None, announced_bytes(request)
            if entry is None:
                app[GATES].require_room(load, key, stated)
            await app[LIMITER].take(caller.key, caller.limits)
            with app[CEILING].hold(load) as held:
                request[HELD] = held
                await receive(request, key)
                if entry is None:
                    pieces = (request[BODY],) if BODY in request else arrived(request.content)
                    entry = app[GATES].enter(load, key, request.content.total_bytes, pieces)
                request[ENTRY] = entry
                answer = await handler(request)
        done = True
    finally:
        if entry is not None:
            entry.leave(done=done)
    return answer


def require_known_parameters(request: web.Request) -> None:
    """Raises InvalidInput for a parameter of the query string that the service's own API does not have here, or that is
    given twice. Nodes have some of their own."""
    known = request.app[PARAMETERS].get(request.match_info.handler)
    if known is None or PRINCIPAL.get() is NODE:
        return
    for name in request.query:
        if name not in known:
            shown = shorten(name)
            wanted = suggestion(name, known, ALIKE) if known else "there are none here"
            raise InvalidInput(f"unknown parameter {shown!r} in the query string; {wanted}", param=shown)
    require_once(request.query, "the query string")


def load_of(request: web.Request) -> Load | None:
    return request.app[LOADS].get(request.match_info.handler, "change" if request.body_exists else None)


def announced_bytes(request: web.Request) -> int:
    """Return the body size announced in the head, or 0. Raises TooLarge, and UnsupportedEncoding for a compressed
    body, which aiohttp passes on as it is."""
    for header, plain in PLAIN.items() if request.body_exists else ():
        encoding = ", ".join(request.headers.getall(header, ()))
        if not plain.issuperset(one.strip().lower() for one in encoding.split(",")):
            raise UnsupportedEncoding(
                f"{header} {encoding[:40]!r} is not supported, send the body uncompressed"
            )
    most, stated = request.app[CONFIG].server.body_bytes_max, request.content_length or 0
    if stated > most:
        raise body_too_large(most)
    return stated


async def receive(request: web.Request, key: str | None) -> None:
    """Read the whole body within the time limit; aiohttp itself would wait for a slow one forever.

    Bytes are counted as they arrive. Raises TooLarge for a chunked body over the limit, and Overloaded if the share
    of its key or the memory has no room.
    """
    app, content, held = request.app, request.content, request[HELD]
    most, limit_s = app[CONFIG].server.body_bytes_max, app[CONFIG].server.body_timeout_s
    if content.is_eof():  # most bodies arrive with their heads
        held.body(content.total_bytes)
        return
    try:
        with app[GATES].bodies.arriving(key) as grow:
            async with asyncio.timeout(limit_s):
                if request.content_type == FORM:
                    await form(request)  # aiohttp spools large parts to disk
                    held.body(content.total_bytes)
                    return
                body = bytearray()
                async for piece in content.iter_any():
                    body += piece
                    if len(body) > most:
                        raise body_too_large(most)
                    grow(len(body))
                    held.body(len(piece))
                request[BODY] = bytes(body)
    except TimeoutError:
        if request.transport is not None:
            # Otherwise aiohttp keeps reading for ten seconds, for clients that read only after sending everything.
            asyncio.get_running_loop().call_later(LAST_WORD_S, request.transport.close)
        raise RequestTimeout(f"the body did not arrive within {limit_s:g} seconds") from None


def body_too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is larger than {most} bytes", param="body")


def from_aiohttp(request: web.Request, error: web.HTTPException) -> web.StreamResponse:
    """Convert aiohttp's plain-text errors to the shape of the path's dialect."""
    if error.status < 400:
        return error
    kinds: dict[int, NearlineError] = {
        400: MalformedRequest(f"bad request: {error.text or error.reason}"),
        404: NotFound(f"no such path: {request.path}"),
        405: MethodNotAllowed(f"{request.method} is not allowed on {request.path}"),
        409: Conflict(error.reason),
        413: body_too_large(request.app[CONFIG].server.body_bytes_max),
    }
    ours = kinds.get(error.status, InvalidInput(error.reason))
    if request.path == "/" and error.status == 405:  # a dialect has only its POST
        answer = own_response(ours)
    else:
        answer = response(request.path, ours, status=error.status)
    if allowed := error.headers.get("Allow"):
        answer.headers["Allow"] = allowed
    return answer
