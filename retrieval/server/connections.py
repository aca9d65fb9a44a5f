"""Limits what slow or silent clients can hold: connections, and the time to send headers and to read a response.

    what the client does                            disconnected after
    connects and sends nothing, or partial headers  server.header_timeout_s
    sends a partial body                            server.body_timeout_s (a middleware, which answers 408)
    does not read its response                      server.write_timeout_s without reading a byte; one second while
                                                    unread responses exceed a quarter of the memory ceiling
    stays idle between requests                     server.keepalive_timeout_s (aiohttp)

When all connections are taken, a new one replaces the one whose client has been silent longest. It is refused with
503 only if every open connection is waiting for the server.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
from collections.abc import Coroutine, Iterable
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import StreamReader, web
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from indexes.base.errors import NearlineError
from retrieval.base.settings import ServerSection
from retrieval.handlers.browsers import protect
from retrieval.handlers.error_shapes import own_response, response
from retrieval.observe.request_log import RequestLog
from retrieval.server.door import Door
from retrieval.wire import errors

logger = logging.getLogger(__name__)

SWEEP_S = 0.5
STALLED_S = 1.0  # without reading a byte, once unread responses are over their limit
UNSENT_BYTES_MAX = 1 << 28
ACCEPT_LOG_S = 60.0
SHOWN_CHARS_MAX = 100
# aiohttp's limits on a head. They differ because its error identifies the exceeded limit only by its value.
TARGET_BYTES_MAX, HEADER_BYTES_MAX = 8190, 8192
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
NO_ROOM: Final = b'{"error":{"type":"unavailable","message":"too many connections are open"}}'
REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nServer: nearline\r\nRetry-After: 1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
) % (len(NO_ROOM), NO_ROOM)


class Connections:
    """All open connections. Used on the event loop only."""

    def __init__(self, settings: ServerSection, door: Door, unsent_bytes_max: int = UNSENT_BYTES_MAX) -> None:
        """`unsent_bytes_max` limits unread responses over all clients."""
        self.settings = settings
        self.door = door
        self._unsent_bytes_max = unsent_bytes_max
        # Leave the other half of the descriptors to the collections' files.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max = max(1, min(settings.connections_max, descriptors // 2))
        self._open: set[Connection] = set()

    def accept(self, server: web.Server) -> Connection:
        """Return the protocol for a new connection."""
        return Connection(
            server,
            self,
            loop=asyncio.get_running_loop(),
            access_log_class=RequestLog,
            max_line_size=TARGET_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            auto_decompress=False,  # compressed bodies are refused, so do not unpack them first
            keepalive_timeout=self.settings.keepalive_timeout_s,
        )

    def admit(self, new: Connection) -> bool:
        """Register a connection, disconnecting another if there are too many. False if there is no room."""
        same = [one for one in self._open if one.address == new.address]
        if len(same) >= self.settings.connections_per_address_max and not self._make_room(same):
            return False
        if len(self._open) >= self._max and not self._make_room(self._open):
            return False
        self._open.add(new)
        return True

    def _make_room(self, among: Iterable[Connection]) -> bool:
        waiting = [one for one in among if one.waits_for_client]
        if not waiting:
            return False
        longest = min(waiting, key=lambda one: one.quiet_since)
        longest.disconnect()
        self.forget(longest)
        return True

    def forget(self, gone: Connection) -> None:
        self._open.discard(gone)

    async def watch(self) -> None:
        """Disconnect clients that missed a deadline and, while unread responses are over their limit, those that have
        read nothing for longest. Runs until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = asyncio.get_running_loop().time()
            for one in [one for one in self._open if one.is_late(now)]:
                one.disconnect()
            beyond = sum(one.unsent for one in self._open) - self._unsent_bytes_max
            for one in sorted(self._open, key=lambda one: one.unread_since):
                if beyond > 0 and now - one.unread_since >= STALLED_S:
                    beyond -= one.unsent
                    one.disconnect()


class Connection(web.RequestHandler):
    """aiohttp's connection, which also tracks what it waits for and since when."""

    def __init__(self, server: web.Server, connections: Connections, **options: Any) -> None:
        super().__init__(server, **options)
        self._parser = cast(Any, RefusingParser(self._parser, self))
        self._connections = connections
        # Set when connected: aiohttp drops its own reference before everything is sent.
        self._wire: asyncio.Transport
        self.address = ""
        self._head_since: float | None = None  # waiting for headers since; None if not waiting
        self._unread = 0  # response bytes
        self.unread_since = 0.0

    @property
    def waits_for_client(self) -> bool:
        """Whether it waits for a request, the rest of one, or for its response to be read."""
        request = self._current_request
        return bool(request is None or not request.content.is_eof() or self.unsent)

    @property
    def _awaits_head(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    @property
    def quiet_since(self) -> float:
        """When it was opened or last finished a request; only comparable among connections."""
        return self._next_keepalive_close_time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        if not self._connections.admit(self):
            self._wire.write(REFUSAL)
            self._wire.close()
            return
        super().connection_made(transport)
        self._head_since = self._loop.time()

    def data_received(self, data: bytes) -> None:
        if self._awaits_head and self._head_since is None:
            self._head_since = self._loop.time()
        super().data_received(data)
        if not self._awaits_head:
            self._head_since = None

    def refuse(self, message: RawRequestMessage, body: StreamReader) -> bool:
        """Refuse a request for which there is no room, if it can be answered at once. Return whether it was."""
        at_once = self._awaits_head and body.is_eof()
        if not at_once or (refusal := self._connections.door.refusal(self, message, body)) is None:
            return False
        self._wire.write(refusal)
        self._head_since = None
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.forget(self)
        self._connections.door.forget(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are not HTTP in our own shape: without a path, the dialect is unknown."""
        super().handle_error(request, status, exc, message)  # logs; raises if part of an answer was sent
        answer = own_response(error_of(status, exc, message or ""))
        answer.force_close()
        protect(answer)
        return answer

    def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        """Replace aiohttp's refusal of an unknown Expect, which no middleware sees."""
        if isinstance(resp, web.HTTPExpectationFailed):
            asked = request.headers.get("Expect", "")[:SHOWN_CHARS_MAX]
            failed = errors.ExpectationFailed(f"expected no Expect or 100-continue, found {asked!r}")
            resp = response(request.path, failed)
            resp.force_close()
        return super().finish_response(request, resp, start_time)

    def is_late(self, now: float) -> bool:
        settings = self._connections.settings
        unread = self.unsent
        if unread != self._unread or not unread:
            self._unread, self.unread_since = unread, now
        if now - self.unread_since >= settings.write_timeout_s:
            return True
        return self._head_since is not None and now - self._head_since >= settings.header_timeout_s

    def disconnect(self) -> None:
        """Abort the connection; what the client has not read is lost."""
        self._wire.abort()

    @property
    def unsent(self) -> int:
        """Response bytes the client has yet to read."""
        return self._wire.get_write_buffer_size()


class RefusingParser:
    """aiohttp's parser of a connection, which keeps back the requests that are refused. Raises BadHttpMessage for
    chunks in a version before HTTP/1.1, which has none: a proxy may see another end of the request there."""

    def __init__(self, parser: Any, connection: Connection) -> None:
        self._parser = parser
        self._refuse = connection.refuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> Any:
        parsed = self._parser.feed_data(data)
        for message, _ in parsed[0]:
            if message.version < HttpVersion11 and "Transfer-Encoding" in message.headers:
                raise BadHttpMessage("Transfer-Encoding needs HTTP/1.1")
        if len(parsed[0]) != 1 or not self._refuse(*parsed[0][0]):
            return parsed
        self._parser.message_consumed()
        return (), *parsed[1:]


def error_of(status: int, error: BaseException | None, message: str) -> NearlineError:
    """Return the error for what aiohttp's parser rejected, or for a fault of ours."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return NearlineError("internal error; the service's log has the details")
    if isinstance(error, LineTooLong):
        if error.args[1] == TARGET_BYTES_MAX:
            return errors.TargetTooLong(f"the path is longer than {TARGET_BYTES_MAX} bytes")
        return errors.HeadersTooLarge(f"a header is longer than {HEADER_BYTES_MAX} bytes")
    if "Too many" in message:
        return errors.HeadersTooLarge("there are too many headers")
    what = message.partition("\n")[0].rstrip(": ")[:SHOWN_CHARS_MAX]
    return errors.MalformedRequest(f"the request is not valid HTTP: {what}")


class AcceptErrors:
    """An exception handler for the loop. When descriptors run out, asyncio logs a traceback per failed accept, hundreds
    a second; this logs one line a minute with their number."""

    def __init__(self) -> None:
        self._count = 0
        self._next = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in OUT_OF_RESOURCES or "socket" not in context:
            loop.default_exception_handler(context)
            return
        self._count += 1
        if loop.time() >= self._next:
            logger.error("cannot accept connections: %s (%d attempts)", error.strerror, self._count)
            self._count, self._next = 0, loop.time() + ACCEPT_LOG_S
