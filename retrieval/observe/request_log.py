"""One log line a request: method, path, status, milliseconds, bytes, client; as JSON the time of each stage too. Never
what was answered, and what was asked only with `log.queries`.

The path is logged as it came, percent-encoded and without its query string. `REQUEST_ID` is the X-Request-Id of the
request that the present task or thread works for, "" where there is none: formatters of log lines add it.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from retrieval.access.auth import PRINCIPAL, TOKEN
from retrieval.base.settings import Log

logger = logging.getLogger("nearline.requests")

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
PROBES = frozenset({"/healthz", "/readyz", "/health", "/metrics"})  # asked every few seconds, for ever
GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLIENT_LEFT = 499  # not sent to anybody: nginx's number for it
PATH_CHARS_MAX = 500
LOG = web.RequestKey("LOG", Log)  # how to log it
QUERIES = web.RequestKey[list[str]]("QUERIES")  # what it asks, where that is wanted in the log
STAGE = re.compile(r"(\w+);dur=([\d.]+)")


def new_request_id() -> str:
    """It has to differ, not to be hard to guess: asking the system for random bytes would yield the interpreter."""
    return random.randbytes(16).hex()


class RequestLog(AbstractAccessLogger):
    """Called by aiohttp once an answer is sent, in the context of its request; malformed requests come here too."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        timing = response.headers.get("Server-Timing", "")
        log_request(request, response.status, time, response.body_length, timing)


def stages_of(timing: str) -> dict[str, float]:
    """Milliseconds by stage, of a header Server-Timing of ours."""
    return {name: float(ms) for name, ms in STAGE.findall(timing)}


def note_queries(request: web.Request, texts: Iterable[str | None]) -> None:
    """Have the log line of this request say what it asks, if the operator wants that."""
    if request[LOG].queries:
        request[QUERIES] = [text for text in texts if text]


def log_request(
    request: web.BaseRequest, status: int, seconds: float, sent_bytes: int = 0, timing: str = ""
) -> None:
    """`timing`: the answer's header Server-Timing."""
    path = request.rel_url.raw_path  # as it came, percent-encoded
    settings = request.get(LOG)
    slow = bool(timing) and settings is not None and 0 < settings.slow_ms <= seconds * 1000
    level = logging.DEBUG if path in PROBES else logging.WARNING if slow else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields: dict[str, Any] = {
        "method": request.method,
        "path": TOKEN.sub(r"nl_\g<id>_...", path)[:PATH_CHARS_MAX],  # revoked by all of it, say
        "status": status,
        "ms": round(seconds * 1000, 3),
        "bytes": sent_bytes,
        "client": request.remote or "-",
    }
    if key := PRINCIPAL.get().key:
        fields["key"] = key
    line = "%(method)s %(path)s %(status)d %(ms).1f ms %(bytes)d bytes to %(client)s"
    # A line of text has no room for them, unless it is about a slow request.
    if timing and settings is not None and (slow or settings.format == "json"):
        fields["stages_ms"] = stages = stages_of(timing)
        line += ", slow: " + ", ".join(f"{name} {ms:.1f}" for name, ms in stages.items()) if slow else ""
    if asked := request.get(QUERIES):
        fields["queries"] = asked
        line += ", asked %(queries)s"
    logger.log(level, line, fields, extra={"fields": fields})
