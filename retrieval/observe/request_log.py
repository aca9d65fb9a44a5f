"""One log line per request: method, path, status, milliseconds, bytes, client; in JSON also the time of each stage.

Answers are never logged, and queries only with `log.queries`. The path is logged as received, percent-encoded and
without its query string.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from retrieval.access.auth import PRINCIPAL, TOKEN
from retrieval.base.settings import LogSection

logger = logging.getLogger("nearline.requests")

PROBES = frozenset({"/healthz", "/readyz", "/health", "/metrics"})  # called every few seconds, forever
CLIENT_LEFT = 499  # never sent; nginx's code for this
PATH_CHARS_MAX = 500
LOG = web.RequestKey("LOG", LogSection)  # the log settings
QUERIES = web.RequestKey[list[str]]("QUERIES")  # its queries, if they are to be logged
STAGE = re.compile(r"(\w+);dur=([\d.]+)")


class RequestLog(AbstractAccessLogger):
    """Called by aiohttp after each answer, in the context of its request, and also for malformed requests."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        timing = response.headers.get("Server-Timing", "")
        log_request(request, response.status, time, response.body_length, timing)


def stages_of(timing: str) -> dict[str, float]:
    """Parse our Server-Timing header into milliseconds by stage."""
    return {name: float(ms) for name, ms in STAGE.findall(timing)}


def note_queries(request: web.Request, texts: Iterable[str | None]) -> None:
    """Add the queries to the log line of this request, if the operator has enabled that."""
    if request[LOG].queries:
        request[QUERIES] = [text for text in texts if text]


def log_request(
    request: web.BaseRequest, status: int, seconds: float, sent_bytes: int = 0, timing: str = ""
) -> None:
    """Log one request. `timing` is the answer's Server-Timing header."""
    path = request.rel_url.raw_path  # percent-encoded, as received
    settings = request.get(LOG)
    slow = bool(timing) and settings is not None and 0 < settings.slow_ms <= seconds * 1000
    level = logging.DEBUG if path in PROBES else logging.WARNING if slow else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields: dict[str, Any] = {
        "method": request.method,
        "path": TOKEN.sub(r"nl_\g<id>_...", path)[:PATH_CHARS_MAX],  # e.g. when a key is revoked
        "status": status,
        "ms": round(seconds * 1000, 3),
        "bytes": sent_bytes,
        "client": request.remote or "-",
    }
    if key := PRINCIPAL.get().key:
        fields["key"] = key
    line = "%(method)s %(path)s %(status)d %(ms).1f ms %(bytes)d bytes to %(client)s"
    # Text lines list stages only for slow requests.
    if timing and settings is not None and (slow or settings.format == "json"):
        fields["stages_ms"] = stages = stages_of(timing)
        line += ", slow: " + ", ".join(f"{name} {ms:.1f}" for name, ms in stages.items()) if slow else ""
    if asked := request.get(QUERIES):
        fields["queries"] = asked
        line += ", asked %(queries)s"
    logger.log(level, line, fields, extra={"fields": fields})
