"""Requests from one node of a cluster to another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import msgspec

from indexes.base.errors import NearlineError, Unavailable, message_of
from retrieval.access.auth import CLUSTER_HEADER, OPEN_CLUSTER
from retrieval.base.request_id import REQUEST_ID
from retrieval.wire.errors import ErrorBody, error_of

CONNECT_S = 2.0
READ_S = 600.0  # between two pieces of an answer; embedding a large request takes minutes
RETRY_AFTER_S = 2.0
REFUSES = (401, 403)
MSGPACK = "application/msgpack"


@dataclass(slots=True)
class Link:
    """Sends requests with the secret of the cluster. Use it from one event loop; `close` it."""

    secret: str
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
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
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError, ValueError) as error:
            away = isinstance(error, aiohttp.ClientConnectorError)
            why = "cannot be reached" if away else f"did not answer ({message_of(error) or 'too late'})"
            raise Unavailable(why, retry_after_s=RETRY_AFTER_S) from None


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
