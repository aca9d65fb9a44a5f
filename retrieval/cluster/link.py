"""Requests from one node of a cluster to another, and the connections for calls of shards."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import msgspec

from indexes.base.errors import NearlineError, Unavailable, message_of
from retrieval.access.auth import CLUSTER_HEADER, OPEN_CLUSTER
from retrieval.base.request_id import REQUEST_ID
from retrieval.cluster.calls import Calls, Replies
from retrieval.search.travel import pack, unpack
from retrieval.wire.errors import ErrorBody, error_of

CONNECT_S = 2.0
UNHEARD_S = (
    4.0  # without a sign of a machine's network, until a connection ends; a busy or stopped process gives it
)
READ_S = 600.0  # between two pieces of an answer; embedding a large request takes minutes
RETRY_AFTER_S = 2.0
LEAVE_S = 0.1  # to say that a call is waited for no longer
REFUSES = (401, 403)
NUMBER_BYTES = 8  # of what tells the calls of a connection apart
MSGPACK = "application/msgpack"


@dataclass(slots=True)
class Link:
    """Sends requests with the secret of the cluster. Use it from one event loop; `close` it."""

    secret: str
    _callers: dict[str, Caller] = field(default_factory=dict, init=False)
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    async def close(self) -> None:
        for caller in self._callers.values():
            await caller.close()
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60, socket_factory=socket_to_node),
                headers={CLUSTER_HEADER: self.secret or OPEN_CLUSTER},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S),
            )
        return self._session

    @asynccontextmanager
    async def exchange(
        self, method: str, url: str, *, content: bytes | None = None, within_s: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and give its answer to be read. Raises the error that was answered, and Unavailable if there
        is no answer, whole and in time."""
        try:
            async with self._open().request(
                method,
                url,
                data=content,
                headers={"X-Request-Id": REQUEST_ID.get(), "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=within_s, sock_connect=CONNECT_S, sock_read=READ_S),
            ) as reply:
                if reply.status >= 400:
                    raise error_in(await reply.read(), reply.status, reply.headers.get("Retry-After", ""))
                yield reply
        except (
            aiohttp.ClientError,
            OSError,
            TimeoutError,
            msgspec.MsgspecError,
            ValueError,
            RecursionError,
        ) as error:
            raise unanswered(error) from None

    async def call(self, url: str, calls: Calls, within_s: float) -> Replies:
        """Send calls of shards to a service, and return its replies. Raises why it refuses all of them, and Unavailable
        if there are no replies in time."""
        caller = self._callers.setdefault(url, Caller(self, url))
        try:
            async with asyncio.timeout(within_s):
                replies: Replies = unpack(await caller.call(pack(calls)), Replies)
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            raise unanswered(error) from None
        if replies.refusal is not None:
            raise replies.refusal.error
        return replies

    async def connect(self, url: str) -> aiohttp.ClientWebSocketResponse:
        """Raises aiohttp.ClientError, OSError, and Unavailable if the service refuses."""
        try:
            return await self._open().ws_connect(f"{url}/v1/shards", compress=0, max_msg_size=0)
        except aiohttp.WSServerHandshakeError as error:
            raise error_in(b"", error.status, "") from None


def socket_to_node(address: aiohttp.AddrInfoType) -> socket.socket:
    """Make a socket that ends soon after the network is cut. By itself, TCP goes on trying for as long as the cut took,
    and again as long after it."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * UNHEARD_S))
    return made


class Caller:
    """A connection to a service, which is opened when it is needed. Each message is a number and calls, or their
    replies; without calls it says that the caller of that number waits no longer."""

    def __init__(self, link: Link, url: str) -> None:
        self._link, self._url = link, url
        self._opening = asyncio.Lock()
        self._open: OpenConnection | None = None
        self._number = 0

    async def call(self, content: bytes) -> bytes:
        opened = await self._connected()
        self._number += 1
        number = self._number.to_bytes(NUMBER_BYTES, "big")
        reply = opened.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await opened.connection.send_bytes(number + content)
            answer: bytes = await reply
            return answer
        finally:
            del opened.waiting[number]
            if not reply.done() or reply.cancelled():
                with contextlib.suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(LEAVE_S):  # a node that hangs reads nothing
                        await opened.connection.send_bytes(number)

    async def _connected(self) -> OpenConnection:
        async with self._opening:
            if self._open is None or self._open.connection.closed:
                self._open = OpenConnection(await self._link.connect(self._url))
            return self._open

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()


class OpenConnection:
    """A connection, and what is awaited from it, by number."""

    def __init__(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        self.connection = connection
        self.waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.connection:
            if message.type is not aiohttp.WSMsgType.BINARY:
                break
            reply = self.waiting.get(message.data[:NUMBER_BYTES])
            if reply is not None and not reply.done():
                reply.set_result(message.data[NUMBER_BYTES:])
        for reply in self.waiting.values():
            if not reply.done():
                reply.set_exception(ConnectionResetError("the connection was closed"))
        await self.connection.close()

    async def close(self) -> None:
        await self.connection.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


def unanswered(error: Exception) -> Unavailable:
    away = isinstance(error, aiohttp.ClientConnectorError)
    why = "cannot be reached" if away else f"did not answer ({message_of(error) or 'too late'})"
    return Unavailable(why, retry_after_s=RETRY_AFTER_S)


def error_in(content: bytes, status: int, retry_after: str) -> NearlineError:
    """Return the error that a service answered with."""
    if status in REFUSES:
        return Unavailable("refuses cluster.secret, which must be the same on all nodes")
    try:
        detail = msgspec.json.decode(content, type=ErrorBody).error
    except msgspec.MsgspecError:
        return Unavailable(f"answered with status {status}", retry_after_s=RETRY_AFTER_S)
    error = error_of(detail)
    if isinstance(error, Unavailable) and retry_after.isdigit():
        error.retry_after_s = float(retry_after)
    return error
