"""One log line a request: method, path, status, milliseconds, bytes, client. Never what was asked or answered.

The path is logged as it came, percent-encoded and without its query string. `REQUEST_ID` is the X-Request-Id of the
request that the present task or thread works for, "" where there is none: formatters of log lines add it.
"""

from __future__ import annotations

import logging
import random
import re
from contextvars import ContextVar

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from retrieval.auth import PRINCIPAL, TOKEN

logger = logging.getLogger("nearline.requests")

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
PROBES = frozenset({"/healthz", "/readyz", "/health", "/metrics"})  # asked every few seconds, for ever
GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLIENT_LEFT = 499  # not sent to anybody: nginx's number for it
PATH_CHARS_MAX = 500


def new_request_id() -> str:
    """It has to differ, not to be hard to guess: asking the system for random bytes would yield the interpreter."""
    return random.randbytes(16).hex()


class RequestLog(AbstractAccessLogger):
    """Called by aiohttp once an answer is sent, in the context of its request; malformed requests come here too."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        log_request(request, response.status, time, response.body_length)


def log_request(request: web.BaseRequest, status: int, seconds: float, sent_bytes: int = 0) -> None:
    path = request.rel_url.raw_path  # as it came, percent-encoded
    level = logging.DEBUG if path in PROBES else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields = {
        "method": request.method,
        "path": TOKEN.sub(r"nl_\g<id>_...", path)[:PATH_CHARS_MAX],  # revoked by all of it, say
        "status": status,
        "ms": round(seconds * 1000, 3),
        "bytes": sent_bytes,
        "client": request.remote or "-",
    }
    if key := PRINCIPAL.get().key:
        fields["key"] = key
    logger.log(
        level, "%(method)s %(path)s %(status)d %(ms).1f ms %(bytes)d bytes to %(client)s", fields,
        extra={"fields": fields},
    )  # fmt: skip
