"""Admits or refuses requests as soon as aiohttp has parsed them, before each has a task.

In a flood most requests are refused. Refusing one through the middlewares takes a good part of the interpreter time of
a search, so at five times the capacity refusing alone would keep the interpreter busy. A request with a valid key whose
body arrived with its head therefore takes its place here. Others pass undecided, and take theirs in the middlewares.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable

from aiohttp import StreamReader, web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import RawRequestMessage

from indexes.base.errors import Overloaded
from retrieval.access.auth import Keys
from retrieval.admission.gates import AdmittedRequest, Gates, Load
from retrieval.base.request_id import request_id_of
from retrieval.handlers.browsers import protect
from retrieval.handlers.error_shapes import response
from retrieval.observe.metrics import Metrics
from retrieval.wire.errors import Unauthorized

logger = logging.getLogger(__name__)

LOG_S = 1.0


def arrived(body: StreamReader) -> Iterable[bytes]:
    """Return the pieces of a body that have arrived, without taking them. An empty body has none."""
    return getattr(body, "_buffer", ())


class Door:
    """The front door of one service. Use it on the event loop."""

    def __init__(self, gates: Gates, keys: Keys, metrics: Metrics, classes: dict[str, Load]) -> None:
        """`classes` maps the paths of POST routes, as the router has them, to their load classes."""
        self._gates = gates
        self._keys = keys
        self._metrics = metrics
        resources = [(web.DynamicResource(path), load) for path, load in classes.items()]
        self._classes = [(one.get_info()["pattern"], one.canonical, load) for one, load in resources]
        self._class_of = functools.lru_cache(maxsize=256)(self._find)
        # By connection, until its request has reached the middlewares.
        self._let_in: dict[object, AdmittedRequest] = {}
        self._refused = 0  # since the last log line

    def refusal(self, connection: object, message: RawRequestMessage, body: StreamReader) -> bytes | None:
        """Return the response that refuses a request, or None to let it pass. Its `body` is complete, and its
        connection has no other request in progress."""
        found = self._class_of(message.path) if message.method == "POST" else None
        # Answers to web pages have more headers.
        if found is None or message.should_close or message.upgrade or "Origin" in message.headers:
            return None
        route, load = found
        try:
            key = self._keys.find(message.headers)
            entry = self._gates.enter(load, key.id if key else None, body.total_bytes, arrived(body))
        except Unauthorized:
            return None
        except Overloaded as error:
            status, head, content = refusal_response(route, error.message, error.retry_after_s)
        else:
            self._let_in[connection] = entry
            return None
        self._metrics.request("POST", route, status, 0.0)
        self._log_soon()
        ours = f"X-Request-Id: {request_id_of(message.headers)}\r\nDate: {rfc822_formatted_time()}\r\n\r\n"
        return b"%s%s%s" % (head, ours.encode(), content)

    def _find(self, path: str) -> tuple[str, Load] | None:
        """Return the route that a path belongs to and its class."""
        return next(((route, load) for like, route, load in self._classes if like.fullmatch(path)), None)

    def take_admission(self, connection: object) -> AdmittedRequest | None:
        """Hand over the admission of the request that arrived on this connection, if it was decided here."""
        return self._let_in.pop(connection, None)

    def forget(self, connection: object) -> None:
        """Release the admission of a closed connection whose request may not have been read."""
        if entry := self.take_admission(connection):
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
