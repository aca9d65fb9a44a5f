"""The service that writes to the store, as its replicas see it: asked for news, and given what it alone may change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from indexes.base.errors import Conflict, Unavailable, message_of
from indexes.store.following import Follower
from retrieval.base.request_id import REQUEST_ID
from retrieval.base.settings import StoreSection
from retrieval.cluster import serving
from retrieval.dialects import vector_stores
from retrieval.handlers import auth, collections, feedback, jobs
from retrieval.handlers.state import CONFIG, SCOPES, STORE, TASKS
from retrieval.wire.collections import StoreChanges

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
ANSWER_S = 600.0  # between two pieces of an answer; embedding a large request takes minutes
WAIT_S = 20  # for news, in one request
PAUSE_S = 2.0
OF_THIS_MACHINE = {jobs.reindex, jobs.tune, jobs.rollback, serving.answer}  # its indexes
OF_WRITER = {feedback.write, feedback.list_feedback}  # which is in no store
NAMING = {  # what changes names or keys; it is known here before its answer goes on
    collections.create,
    collections.rename,
    collections.delete,
    collections.set_alias,
    collections.remove_alias,
    vector_stores.create,
    vector_stores.delete_store,
    auth.create,
    auth.rotate,
    auth.revoke,
}
NAMES_S, NAMES_LOOK_S = 3.0, 0.1
VIA = "nearline replica"
HOP_BY_HOP = {
    "connection",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    "date",
    "server",
    "x-request-id",
}


def is_for_writer(request: web.Request) -> bool:
    """Whether only the service that writes may do it, or has what it asks for."""
    handler = request.match_info.handler
    scope = request.app[SCOPES].get(handler, "key")
    changes = scope == "admin" and request.method not in {"GET", "HEAD"} and handler not in OF_THIS_MACHINE
    return changes or scope == "write" or handler in OF_WRITER


def is_unknown_job(request: web.Request) -> bool:
    """Whether a job is asked for that the writer may have."""
    return request.match_info.handler is jobs.show and not request.app[TASKS].knows(request.match_info["job"])


class WriterLink:
    """The writer at `store.writer`. Use it from one event loop; `close` it."""

    def __init__(self, settings: StoreSection) -> None:
        self._url, self._key = settings.writer.rstrip("/"), settings.writer_api_key
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S),
                auto_decompress=False,
                skip_auto_headers=("Accept-Encoding", "User-Agent"),
            )
        return self._session

    async def keep_asking(self, follower: Follower) -> None:
        """Tell the follower as soon as the writer has put something into the store, until cancelled."""
        is_told: bool | None = None
        since, headers = 0, {"Authorization": f"Bearer {self._key}"} if self._key else {}
        while True:
            try:
                async with self._open().get(
                    f"{self._url}/v1/store/changes",
                    params={"since": since, "wait_s": WAIT_S},
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=WAIT_S + CONNECT_S),
                ) as reply:
                    reply.raise_for_status()
                    since = msgspec.json.decode(await reply.read(), type=StoreChanges).changes
                is_told = True
            except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
                if is_told is not False:
                    logger.warning(
                        "store.writer does not say what is new, so the store is asked: %s", message_of(error)
                    )
                is_told = False
                await asyncio.sleep(PAUSE_S)
            follower.hear(is_told=is_told)

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Have the writer answer a request, piece by piece; a change of names or keys is known here then. Raises
        Unavailable if it cannot be reached, or does not answer; it may have done what was asked then."""
        if VIA in request.headers.getall("Via", ()):
            raise Conflict("store.writer leads to a replica, not to the service that writes")
        headers = without_hops(request.headers)
        headers["Via"] = VIA
        headers["X-Request-Id"] = request_id = REQUEST_ID.get()
        answer, follower = web.StreamResponse(), request.app[STORE]
        assert isinstance(follower, Follower)
        known = follower.names_known
        try:
            async with self._open().request(
                request.method,
                URL(self._url + request.raw_path, encoded=True),
                headers=headers,
                data=request.content if request.body_exists else None,
                allow_redirects=False,
            ) as reply:
                answer.set_status(reply.status, reply.reason)
                answer.headers.update(without_hops(reply.headers))
                answer.headers["X-Request-Id"] = request_id
                if reply.ok and request.match_info.handler in NAMING:
                    await follow_names(follower, known)
                await answer.prepare(request)
                async for piece in reply.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            logger.warning("the writer did not answer: %s", message_of(error))
            if not answer.prepared:
                away = isinstance(error, aiohttp.ClientConnectorError)
                why = "cannot be reached" if away else "did not answer, and may have done what was asked"
                raise Unavailable(f"the service that writes {why}", retry_after_s=PAUSE_S) from None
            if request.transport is not None:  # the client must not take what it has for all of it
                request.transport.close()
        return answer


async def follow_names(follower: Follower, known: int) -> None:
    """Wait until names or keys that the writer has just changed are known here, for NAMES_S at most."""
    until = time.monotonic() + NAMES_S
    while follower.names_known == known and time.monotonic() < until:
        await asyncio.sleep(NAMES_LOOK_S)
        follower.hear(is_told=follower.is_told)


WRITER = web.AppKey[WriterLink | None]("WRITER")  # None without store.writer


def without_hops(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP)


async def writer_ctx(app: web.Application) -> AsyncIterator[None]:
    settings, follower = app[CONFIG].store, app[STORE]
    app[WRITER] = writer = WriterLink(settings) if settings.replica and settings.writer else None
    if writer is None:
        yield
        return
    assert isinstance(follower, Follower)
    asking = asyncio.create_task(writer.keep_asking(follower))
    yield
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await writer.close()
