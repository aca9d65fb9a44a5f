"""The service that writes to the store, as its replicas see it: asked for news, and given what it alone may change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from indexes.base.errors import Conflict, NearlineError, Unavailable, message_of
from indexes.store.following import Follower
from indexes.store.uploading import Uploader
from retrieval.base.request_id import REQUEST_ID
from retrieval.base.settings import StoreSection
from retrieval.dialects import vector_stores
from retrieval.handlers import auth, collections, feedback, jobs
from retrieval.handlers.state import CONFIG, SCOPES, STORE, TASKS
from retrieval.wire.collections import StoreChanges

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
ANSWER_S = 600.0  # between two pieces of an answer; embedding a large request takes minutes
WAIT_S = 5  # for news, in one request
SILENT_S = 15.0  # a writer that answers nothing for so long, not even what is new, hangs
PAUSE_S = 2.0
OF_THIS_MACHINE = {jobs.reindex, jobs.tune, jobs.rollback}  # its indexes
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
NAMES_S = 3.0  # how long an answer waits at the writer, and again at the replica
VIA, SLOT = "nearline replica", "Nearline-Names-Slot"
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
    reads = request.method in {"GET", "HEAD"} or handler in OF_THIS_MACHINE
    return (scope in {"admin", "node"} and not reads) or scope == "write" or handler in OF_WRITER


def is_about_its_jobs(request: web.Request) -> bool:
    """Whether jobs are asked for that the writer has or may have."""
    handler = request.match_info.handler
    return handler is jobs.list_jobs or (
        handler is jobs.show and not request.app[TASKS].knows(request.match_info["job"])
    )


class WriterLink:
    """The writer at `store.writer`. Use it from one event loop; `close` it."""

    def __init__(self, settings: StoreSection) -> None:
        self._url, self._key = settings.writer.rstrip("/"), settings.writer_api_key
        self._session: aiohttp.ClientSession | None = None
        self._heard_at = time.monotonic()
        self._epoch = 0  # that it has taken in the store, if it has said so
        self._limits = set[asyncio.Timeout]()  # of requests that wait for an answer

    def _hear(self) -> None:
        """The writer has answered something."""
        self._heard_at = time.monotonic()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time() + SILENT_S)

    @contextlib.asynccontextmanager
    async def _while_heard(self) -> AsyncIterator[None]:
        """Raise TimeoutError in this block once the writer has answered nothing for SILENT_S, and Unavailable before it
        if that is so already."""
        silent_s = time.monotonic() - self._heard_at
        if silent_s > SILENT_S:
            raise Unavailable(
                f"the service that writes has not answered for {silent_s:.0f} s; nothing was passed on to it",
                retry_after_s=PAUSE_S,
            )
        async with asyncio.timeout(SILENT_S) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

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
                    self._hear()
                    reply.raise_for_status()
                    news = msgspec.json.decode(await reply.read(), type=StoreChanges)
                since, self._epoch = news.changes, news.epoch
                is_told = self._epoch >= follower.epoch  # else it has nothing to tell any more
                if not is_told:
                    await asyncio.sleep(PAUSE_S)
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
        Unavailable if it cannot be reached, hangs, or does not answer; the words say if it may have done what was
        asked."""
        if VIA in request.headers.getall("Via", ()):
            raise Conflict("store.writer leads to a replica, not to the service that writes")
        follower = request.app[STORE]
        if isinstance(follower, Follower) and 0 < self._epoch < follower.epoch:
            raise Unavailable(
                "another service has taken over the store from the one at store.writer; nothing was passed on to it",
                retry_after_s=PAUSE_S,
            )
        headers = without_hops(request.headers)
        headers["Via"] = VIA
        headers["X-Request-Id"] = request_id = REQUEST_ID.get()
        answer = web.StreamResponse()
        try:
            async with (
                self._while_heard(),
                self._open().request(
                    request.method,
                    URL(self._url + request.raw_path, encoded=True),
                    headers=headers,
                    data=request.content if request.body_exists else None,
                    allow_redirects=False,
                ) as reply,
            ):
                self._hear()
                answer.set_status(reply.status, reply.reason)
                answer.headers.update(without_hops(reply.headers))
                answer.headers["X-Request-Id"] = request_id
                if slot := answer.headers.pop(SLOT, ""):
                    await follow_names(request, int(slot))
                if request.match_info.handler is jobs.list_jobs and reply.ok:
                    return jobs.with_others(request, await reply.read())
                await answer.prepare(request)
                async for piece in reply.content.iter_any():
                    self._hear()
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


async def follow_names(request: web.Request, slot: int) -> None:
    """Wait until a slot of names and keys is known here, for NAMES_S at most."""
    follower = request.app[STORE]
    assert isinstance(follower, Follower)
    known: asyncio.Future[None] = asyncio.wrap_future(follower.names.at(slot))
    follower.hear(is_told=follower.is_told)
    await asyncio.wait({known}, timeout=NAMES_S)
    known.cancel()


async def tell_slot(request: web.Request, answer: web.StreamResponse) -> None:
    """Tell a replica, with the answer to what it has passed on, which slot of the store has the names and keys that
    were changed. If the store does not get it within NAMES_S, it goes without."""
    if (
        VIA in request.headers.getall("Via", ())
        and answer.status < 400
        and request.match_info.handler in NAMING
        and isinstance(store := request.app[STORE], Uploader)
    ):
        with contextlib.suppress(TimeoutError, NearlineError):
            async with asyncio.timeout(NAMES_S):
                slot: asyncio.Future[int] = asyncio.wrap_future(store.directory_changed())
                answer.headers[SLOT] = str(await slot)


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
