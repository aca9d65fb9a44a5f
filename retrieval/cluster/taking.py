"""The node that a shard is moved to: it copies the shard, and takes its writes when it lacks nothing.

PUT /v1/shards/NAME   begin to take a shard
GET /v1/shards/NAME   say how far that is
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass

import msgspec
from aiohttp import web

from indexes.base.errors import Conflict, NearlineError, Unavailable
from indexes.store.copying import LEVEL_DOCUMENTS, catch_up, place_copy
from indexes.store.following import Follower
from indexes.store.rows import LogChange, Rows
from indexes.store.slots import LogExtent
from indexes.store.uploading import Uploader
from retrieval.access.auth import NODE, PRINCIPAL
from retrieval.cluster.giving import LENGTH_BYTES, CopiedIndexes, PullChanges, read_packed
from retrieval.cluster.link import MSGPACK
from retrieval.cluster.nodes import Node, Nodes
from retrieval.cluster.running import keep_running
from retrieval.cluster.targets import nodes_of
from retrieval.handlers import collections
from retrieval.handlers.state import CATALOG, FEEDBACK, STORE
from retrieval.handlers.wire import names_stored
from retrieval.search.travel import pack, unpack
from retrieval.upkeep.feedback import FeedbackEntry

logger = logging.getLogger(__name__)

ROUNDS = 10  # of catching up before the shard is given
TAKES = web.AppKey["dict[str, Take]"]("TAKES")  # the last one of each shard


class TakeShard(msgspec.Struct, array_like=True, frozen=True):
    """`node` is the name of the node that shall take the shard."""

    node: str


class TakeState(msgspec.Struct, array_like=True, frozen=True):
    stage: str
    done: int
    total: int
    ended: bool
    error: str


@dataclass(slots=True)
class Take:
    """A shard that this node takes, or has taken or not."""

    stage: str = "waiting"
    done: int = 0
    total: int = 0
    error: str = ""
    ended: bool = False

    def progress(self, stage: str, done: int, total: int) -> None:
        self.stage, self.done, self.total = stage, done, total


async def begin(request: web.Request) -> web.Response:
    """Begin to take a shard, unless that has begun."""
    app, shard = request.app, request.match_info["shard"]
    asked = await read_packed(request, TakeShard)
    if shard not in app[TAKES] or app[TAKES][shard].ended:
        app[TAKES][shard] = state = Take()
        keep_running(app, run(app, nodes_of(request), shard, asked.node, state))
    return await show(request)


async def show(request: web.Request) -> web.Response:
    """Say how far the last taking of a shard is."""
    state = request.app[TAKES].get(request.match_info["shard"]) or Take(
        error="it was never begun", ended=True
    )
    reply = TakeState(state.stage, state.done, state.total, state.ended, state.error)
    return web.Response(body=pack(reply), content_type=MSGPACK)


async def run(app: web.Application, nodes: Nodes, shard: str, node: str, state: Take) -> None:
    PRINCIPAL.set(NODE)
    try:
        await take(app, nodes, shard, node, state)
    except NearlineError as error:
        state.error = error.message
        logger.warning("%s cannot be taken: %s", shard, error.message)
    except Exception:
        state.error = "it failed; the log of the node says why"
        logger.exception("%s cannot be taken", shard)
    finally:
        state.ended = True


async def take(app: web.Application, nodes: Nodes, shard: str, node: str, state: Take) -> None:
    """Take a shard. If that fails before this node writes it, its copy is removed, and the other node keeps it.

    Raises Conflict if the shard is written faster than it can be copied, or was here a moment ago; Unavailable if the
    other node is away.
    """
    catalog = app[CATALOG]
    await remove_copy(app, shard)
    if (held := catalog.collections.get(shard)) is not None:
        if held.moving is not None:
            raise Conflict(f"it was given to {held.moving.node}, and is not deleted here yet")
        return
    await nodes.look()
    giver = nodes.writer_of(shard)
    original = RemoteOriginal(nodes, giver, shard, asyncio.get_running_loop())
    await asyncio.to_thread(place_copy, original, catalog.folder, shard, giver.name, state.progress)
    try:
        await asyncio.to_thread(catalog.open_placed, shard)
        copy = catalog.get(shard)
        await names_stored(app)
        state.progress("changes", 0, 0)
        for _ in range(ROUNDS):
            if await asyncio.to_thread(catch_up, original, copy) <= LEVEL_DOCUMENTS:
                break
        original.give_to = node
        await asyncio.to_thread(catch_up, original, copy)
        await app[FEEDBACK].on_thread(app[FEEDBACK].place, copy, await original.feedback())
        await asyncio.to_thread(copy.take)
    except BaseException:
        await remove_copy(app, shard)
        raise
    logger.info("%s is taken from node %s", shard, giver.name)
    if isinstance(store := app[STORE], Uploader):
        state.progress("store", 0, 0)
        await asyncio.to_thread(store.wait_for, copy)


async def remove_copy(app: web.Application, shard: str) -> None:
    """Remove the copy that an attempt to take a shard has left, if there is one."""
    held = app[CATALOG].collections.get(shard)
    if held is not None and held.moving is not None and held.moving.role == "copy":
        await collections.remove(app, shard)


async def remove_copies(app: web.Application) -> None:
    """Remove what another node has, before anything uses it: what was being taken when the service ended, and what was
    given and taken."""
    if not isinstance(app[STORE], Follower):
        for shard, held in app[CATALOG].collections.items():
            if held.moving is not None and held.moving.role != "given":
                await asyncio.to_thread(app[CATALOG].delete, shard)


@dataclass(slots=True)
class RemoteOriginal:
    """A shard at another node, as what copies it on a thread sees it. With `give_to`, the next changes are the last."""

    nodes: Nodes
    giver: Node
    shard: str
    loop: asyncio.AbstractEventLoop
    give_to: str = ""

    def changes(self, since: LogExtent) -> Generator[LogChange, None, None]:
        asked = pack(PullChanges(since, self.give_to))
        change = LogChange(Rows())
        with contextlib.closing(self._frames("POST", "changes", asked)) as frames:
            for frame in frames:
                change = msgspec.msgpack.decode(frame, type=LogChange)
                yield change
        if change.state is None:
            raise Unavailable(f"node {self.giver.name} broke off the changes of {self.shard}")

    def generation(self) -> tuple[int, list[tuple[str, int]], Generator[bytes, None, None]] | None:
        frames = self._frames("GET", "indexes")
        found = unpack(next(frames, b""), CopiedIndexes)
        return (found.number, found.files, frames) if found.number else None

    async def feedback(self) -> list[FeedbackEntry]:
        """Return the feedback that is kept with the shard. Once it is given, no more comes."""
        url = f"{self.giver.url}/v1/shards/{self.shard}/feedback"
        async with self.nodes.link.exchange("GET", url) as reply:
            return msgspec.msgpack.decode(await reply.read(), type=list[FeedbackEntry])

    def _frames(self, method: str, what: str, content: bytes | None = None) -> Generator[bytes, None, None]:
        """Yield the frames of an answer, each awaited on the loop. It ends early if the connection does."""
        received = self._receive(method, what, content)
        try:
            while True:
                step = asyncio.run_coroutine_threadsafe(anext(received, None), self.loop)
                if (frame := step.result()) is None:
                    return
                yield frame
        finally:
            asyncio.run_coroutine_threadsafe(received.aclose(), self.loop).result()

    async def _receive(self, method: str, what: str, content: bytes | None) -> AsyncGenerator[bytes, None]:
        url = f"{self.giver.url}/v1/shards/{self.shard}/{what}"
        async with self.nodes.link.exchange(method, url, content=content) as reply:
            while length := await reply.content.read(1):
                length += await reply.content.readexactly(LENGTH_BYTES - 1)
                yield await reply.content.readexactly(int.from_bytes(length, "big"))
