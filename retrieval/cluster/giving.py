"""The node that a shard is moved from: it says what the copy lacks, gives the shard away, and deletes it in the end.

POST /v1/shards/NAME/changes   what leads from a state of the log to the last commit; the last time, it gives the shard
                               away with that
GET  /v1/shards/NAME/indexes   the live generation
GET  /v1/shards/NAME/feedback  what users think of its documents
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import msgspec
from aiohttp import web

from indexes.base.errors import NearlineError
from indexes.base.moving import Moving
from indexes.collection.collection import Collection
from indexes.store.copying import changes_to_copy, generation_to_copy
from indexes.store.slots import LogExtent
from retrieval.access.auth import NODE, PRINCIPAL
from retrieval.cluster.link import MSGPACK
from retrieval.cluster.nodes import LOOK_S, Nodes
from retrieval.handlers import collections
from retrieval.handlers.state import BODY, CATALOG, FEEDBACK
from retrieval.handlers.wire import settings_stored
from retrieval.search.travel import pack, unpack
from retrieval.wire.errors import MalformedRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

LENGTH_BYTES = 4  # of the length before each frame
SETTLE_S = 0.1  # between two looks at what became of a shard that was given just now
SOON_S = 5.0  # for how long it was given just now
GIVEN = web.AppKey("GIVEN", asyncio.Event)  # set when a shard is given away


class PullChanges(msgspec.Struct, array_like=True, frozen=True):
    """`since` is the state that the copy has. `give_to` is the node that takes the shard with this; "" to go on."""

    since: LogExtent
    give_to: str = ""


class CopiedIndexes(msgspec.Struct, array_like=True, frozen=True):
    """A generation: its number, and its files with their sizes, whose bytes follow. 0: there is none."""

    number: int
    files: list[tuple[str, int]]


async def changes(request: web.Request) -> web.StreamResponse:
    asked = await read_packed(request, PullChanges)
    collection = request.app[CATALOG].get(request.match_info["shard"])
    if asked.give_to:
        await asyncio.to_thread(give, collection, asked.give_to)
        await settings_stored(
            request.app, collection, anyway=True
        )  # else, lost and restored, this machine would write it
        request.app[GIVEN].set()

    def frames() -> Iterator[bytes]:
        return (msgspec.msgpack.encode(change) for change in changes_to_copy(collection, asked.since))

    return await stream(request, frames())


async def read_packed(request: web.Request, kind: type[T]) -> T:
    """Raises MalformedRequest."""
    try:
        found: T = unpack(request.get(BODY) or await request.read(), kind)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise MalformedRequest(f"the body is not what nodes send each other: {error}") from None
    return found


def give(collection: Collection, node: str) -> None:
    """Give a shard away, if it was not given to the same node already: its answer may have been lost."""
    if (moving := collection.moving) is None or (moving.role, moving.node) != ("given", node):
        seq = collection.give(node)
        logger.info("%s is given to node %s at seq %d", collection.name, node, seq)


async def indexes(request: web.Request) -> web.StreamResponse:
    collection = request.app[CATALOG].get(request.match_info["shard"])

    def frames() -> Iterator[bytes]:
        found = generation_to_copy(collection)
        number, files, pieces = found or (0, [], iter(()))
        yield pack(CopiedIndexes(number, files))
        yield from pieces

    return await stream(request, frames())


async def feedback(request: web.Request) -> web.Response:
    app, collection = request.app, request.app[CATALOG].get(request.match_info["shard"])
    entries = await app[FEEDBACK].on_thread(app[FEEDBACK].read, collection)
    return web.Response(body=msgspec.msgpack.encode(entries), content_type=MSGPACK)


async def stream(request: web.Request, frames: Iterator[bytes]) -> web.StreamResponse:
    """Answer with frames, each after its length. If they end with an error, the connection does."""
    reply = web.StreamResponse(headers={"Content-Type": MSGPACK})
    await reply.prepare(request)
    step = partial(next, frames, None)
    try:
        while (frame := await asyncio.to_thread(step)) is not None:
            await reply.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
        await reply.write_eof()
    except (NearlineError, OSError) as error:
        logger.warning("a shard could not be copied to its end: %s", error)
        if request.transport is not None:
            request.transport.close()
    return reply


async def keep_settling(app: web.Application, nodes: Nodes) -> None:
    """Delete shards that were given away, once their new node writes them, and keep those that it has not taken, until
    cancelled. Its node takes a shard within a moment, so it is asked more often then."""
    PRINCIPAL.set(NODE)
    given, soon_until = app[GIVEN], 0.0
    while True:
        soon = time.monotonic() < soon_until
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S if soon else LOOK_S):
                await given.wait()
                given.clear()
                soon_until = time.monotonic() + SOON_S
        for collection in app[CATALOG].collections.values():
            if (moving := collection.moving) is not None and moving.role != "copy":
                try:
                    await settle(app, nodes, collection, moving)
                except NearlineError as error:
                    logger.warning("%s is not settled yet: %s", collection.name, error.message)


async def settle(app: web.Application, nodes: Nodes, shard: Collection, moving: Moving) -> None:
    """Ask the node that a shard was given to what became of it; as long as it does not answer, nothing is certain."""
    if moving.role == "gone":
        await delete_taken(app, shard, moving.node)
        return
    taker = next((one for one in nodes.members if one.name == moving.node and one.writes), None)
    if taker is None:
        return
    await nodes.look_at(taker)
    if (held := taker.shards) is None or shard.name in held.taking:
        return
    if (state := held.shards.get(shard.name)) is None:
        logger.warning("node %s has not taken %s, which stays here", moving.node, shard.name)
        await asyncio.to_thread(shard.take)
    elif state.moving is None and state.seq >= moving.seq:
        try:
            await delete_taken(app, shard, moving.node)
        except NearlineError:  # a job, such as erasing, works for it
            await asyncio.to_thread(shard.part_with)
            raise


async def delete_taken(app: web.Application, shard: Collection, node: str) -> None:
    await collections.remove(app, shard.name)
    logger.info("%s is deleted here: node %s has it", shard.name, node)
