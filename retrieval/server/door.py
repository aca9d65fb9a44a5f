"""Admits or refuses requests by the raw bytes of their heads, before aiohttp parses them.

In a flood most requests are refused. Refusing one through aiohttp and the middlewares takes a good part of the
interpreter time of a search, so at five times the capacity refusing alone would keep the interpreter busy. A small
request that arrives in one piece with a valid key is therefore decided here. Any request that is unusual passes
undecided: the middlewares apply the same rule to it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from email.utils import formatdate

from aiohttp import web

from indexes.base.errors import Overloaded
from retrieval.access.auth import Keys
from retrieval.admission.gates import AdmittedRequest, Gates, Load
from retrieval.handlers.browsers import protect
from retrieval.handlers.error_shapes import response
from retrieval.observe.metrics import Metrics
from retrieval.observe.request_log import new_request_id
from retrieval.wire.errors import Unauthorized

logger = logging.getLogger(__name__)

REQUEST_LINE = re.compile(rb"POST (/[A-Za-z0-9._~/-]*) HTTP/1\.1\r\n")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)
AUTHORIZATION = re.compile(rb"\r\nauthorization: *+([^\r\n]*+)\r\n", re.IGNORECASE)
GIVEN_ID = re.compile(rb"\r\nx-request-id: *([A-Za-z0-9._-]{1,64})\r\n", re.IGNORECASE)
UNUSUAL = re.compile(
    rb"\r\n(?:origin|expect|upgrade|transfer-encoding|content-encoding|connection: *close)", re.IGNORECASE
)
HEAD_END = b"\r\n\r\n"
LOG_S = 1.0


class Door:
    """The front door of one service. Use it on the event loop."""

    def __init__(self, gates: Gates, keys: Keys, metrics: Metrics, classes: dict[str, Load]) -> None:
        """`classes` maps the paths of the routes decided here, as the router has them, to their load classes."""
        self._gates = gates
        self._keys = keys
        self._metrics = metrics
        self._classes = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), path, load) for path, load in classes.items()
        ]
        self._class_of = functools.lru_cache(maxsize=256)(self._find)
        # By connection, until its request has reached the middlewares.
        self._let_in: dict[object, AdmittedRequest] = {}
        self._refused = 0  # since the last log line

    def refusal(self, connection: object, data: bytes) -> bytes | None:
        """Return the response that refuses these bytes, or None to let them pass. `data` is everything received on a
        connection that awaits a request."""
        line = REQUEST_LINE.match(data)
        end = data.find(HEAD_END) + len(HEAD_END)
        length = LENGTH.search(data, 0, end)
        if (
            line is None
            or length is None
            or len(data) != end + int(length[1])
            or UNUSUAL.search(data, 0, end)
        ):
            return None
        found = self._class_of(line[1].decode())
        if found is None:
            return None
        route, load = found
        sent = AUTHORIZATION.search(data, 0, end)
        try:
            key = self._keys.holder(sent[1].decode("latin-1") if sent else "")
            self._let_in[connection] = self._gates.enter(load, key, int(length[1]))
            return None
        except Unauthorized:
            return None
        except Overloaded as error:
            full = error
        given = GIVEN_ID.search(data, 0, end)
        request_id = given[1].decode() if given else new_request_id()
        status, head, body = refusal_response(route, full.message, full.retry_after_s)
        self._metrics.request("POST", route, status, 0.0)
        self._log_soon()
        ours = f"X-Request-Id: {request_id}\r\nDate: {date(int(time.time()))}"
        return b"%s%s%s%s" % (head, ours.encode(), HEAD_END, body)

    def _find(self, path: str) -> tuple[str, Load] | None:
        """Return the route that a path belongs to and its class."""
        return next(((route, load) for like, route, load in self._classes if like.fullmatch(path)), None)

    def let_in(self, connection: object) -> AdmittedRequest | None:
        """Hand over the admission of the request that arrived on this connection, if it was decided here."""
        return self._let_in.pop(connection, None)

    def forget(self, connection: object) -> None:
        """Release the admission of a closed connection whose request may not have been read."""
        if entry := self.let_in(connection):
            entry.leave(done=False)

    def _log_soon(self) -> None:
        """Log once a second rather than per refusal: writing the lines would take longer than refusing."""
        if not self._refused:
            asyncio.get_running_loop().call_later(LOG_S, self._log)
        self._refused += 1

    def _log(self) -> None:
        logger.warning(
            "%d requests in %g s were refused with 429: too many were under way", self._refused, LOG_S
        )
        self._refused = 0


DOOR = web.AppKey("DOOR", Door)


@functools.lru_cache(maxsize=1)
def date(second: int) -> str:
    """Return the Date header, computed once a second rather than per refusal."""
    return formatdate(second, usegmt=True)


@functools.lru_cache(maxsize=64)
def refusal_response(path: str, message: str, retry_after_s: float) -> tuple[int, bytes, bytes]:
    """Return status, head and body of a refusal in the dialect of the path; the caller appends the last header
    lines."""
    answer = response(path, Overloaded(message, retry_after_s=retry_after_s))
    protect(answer)
    assert isinstance(answer.body, bytes)
    head = [f"HTTP/1.1 {answer.status} {answer.reason}", f"Content-Length: {len(answer.body)}"]
    head += [f"{name}: {value}" for name, value in answer.headers.items() if name != "Content-Length"]
    return answer.status, "".join(f"{line}\r\n" for line in head).encode(), answer.body
