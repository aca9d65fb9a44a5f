"""A node's own shards: says which there are, and answers calls of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from aiohttp import WSMsgType, web

from indexes.base.errors import NearlineError, NotReady, Unavailable
from indexes.base.model import Spared
from indexes.base.moving import Moving
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from indexes.reading import scrolling
from indexes.store.following import Follower
from retrieval.access.auth import Principal
from retrieval.access.privacy import VECTOR_EXPORT, VectorExport
from retrieval.admission.gates import AdmittedRequest
from retrieval.base.cancellation import gather_or_cancel
from retrieval.base.request_id import REQUEST_ID
from retrieval.cluster.calls import (
    Addressed,
    AnyCall,
    AwaitSeq,
    Calls,
    CountMatching,
    DocumentsCounted,
    DocumentsPage,
    FindVisible,
    NodeShards,
    ReadFrequent,
    ReadPage,
    ReadSeqs,
    Replies,
    ShardState,
)
from retrieval.cluster.link import NUMBER_BYTES
from retrieval.cluster.names import ShardName
from retrieval.cluster.taking import TAKES
from retrieval.cluster.targets import NODES
from retrieval.handlers.documents import encode_page
from retrieval.handlers.state import CATALOG, CONFIG, GATES, IN_PROCESSES, PIPELINE, STORE, TASKS
from retrieval.search.calls import CallRefused, CallReply, PartitionCall, SearchShard, answer_call
from retrieval.search.pipeline import wait_for_seq
from retrieval.search.shard import LocalShard
from retrieval.search.stopwatch import Stopwatch
from retrieval.search.travel import pack, unpack
from retrieval.wire.errors import MalformedRequest

logger = logging.getLogger(__name__)

# The messages whose calls are answered on search threads now.
ON_THREADS = web.AppKey("ON_THREADS", set[int])
# The connections of other nodes, each with the answers under way, by the number of their calls.
CONNECTIONS = web.AppKey["dict[web.WebSocketResponse, dict[bytes, asyncio.Task[None]]]"]("CONNECTIONS")


def describe(app: web.Application, jobs: Mapping[str, str]) -> NodeShards:
    """Say which shards there are here, and in which state. `jobs` are those under way, by collection. It reads the
    counts of languages: run it on a thread."""
    collections, catalog = app[CATALOG].collections, app[CATALOG]
    shards = {
        name: state_of(one, jobs.get(name, ""))
        for name, one in collections.items()
        if ShardName.parse(name) is not None
    }
    return NodeShards(
        shards=shards,
        writes=not isinstance(app[STORE], Follower),
        names=[one for one in (*collections, *catalog.quarantined, *catalog.aliases) if one not in shards],
        taking=[name for name, one in app[TAKES].items() if not one.ended],
    )


def state_of(collection: Collection, job: str) -> ShardState:
    snapshot = collection.snapshot
    return ShardState(
        seq=snapshot.seq,
        documents=collection.documents,
        generation=snapshot.generation,
        settings=collection.settings,
        spoken=snapshot.languages(),
        ranking=collection.ranking.current,
        synonyms=collection.synonyms.current,
        moving=collection.moving,
        aliases=called.names if (called := collection.aliases.current) else {},
        origin=collection.log.origin,
        job=job,
    )


async def connect(request: web.Request) -> web.WebSocketResponse:
    """Answer calls of another node over one connection, as `Caller` sends them, until it ends or the service stops."""
    app = request.app
    connection = web.WebSocketResponse(compress=False, max_msg_size=app[CONFIG].server.body_bytes_max)
    await connection.prepare(request)
    under_way: dict[bytes, asyncio.Task[None]] = {}
    app[CONNECTIONS][connection] = under_way
    try:
        async for message in connection:
            if message.type is not WSMsgType.BINARY:
                break
            number, content = message.data[:NUMBER_BYTES], message.data[NUMBER_BYTES:]
            if content:
                under_way[number] = asyncio.create_task(reply_to(app, connection, number, content))
                under_way[number].add_done_callback(partial(forget, under_way, number))
            elif number in under_way:  # its caller waits no longer
                under_way[number].cancel()
    finally:
        del app[CONNECTIONS][connection]
        for task in under_way.values():
            task.cancel()
    return connection


def forget(under_way: dict[bytes, asyncio.Task[None]], number: bytes, _: object) -> None:
    under_way.pop(number, None)


async def close_all(app: web.Application) -> None:
    """Close the connections when the service stops, once what was asked is answered."""
    for connection, under_way in list(app[CONNECTIONS].items()):
        await asyncio.gather(*under_way.values(), return_exceptions=True)
        await connection.close()


async def reply_to(
    app: web.Application, connection: web.WebSocketResponse, number: bytes, content: bytes
) -> None:
    """Answer calls that came together, or say why not."""
    try:
        entry, done = app[GATES].enter("search", None, len(content)), False
        try:
            reply = await answer(app, content, entry)
            done = True
        finally:
            entry.leave(done=done)
    except NearlineError as error:
        reply = pack(Replies(CallRefused.of(error)))
    except Exception:
        logger.exception("calls of shards failed")
        reply = pack(
            Replies(CallRefused.of(NearlineError("internal error; the log of the node has the details")))
        )
    with contextlib.suppress(ConnectionError):
        await connection.send_bytes(number + reply)


async def answer(app: web.Application, content: bytes, entry: AdmittedRequest) -> bytes:
    """Answer calls of shards. One that fails has its error in its place."""
    try:
        asked: Calls = unpack(content, Calls)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise MalformedRequest(f"these are no calls of shards: {error}") from None
    REQUEST_ID.set(asked.request_id)
    if not asked.calls:
        return pack(Replies(state=await asyncio.to_thread(describe, app, app[TASKS].under_way())))
    now = asyncio.get_running_loop().time()
    until = math.inf if asked.within_s is None else now + asked.within_s
    watch = Stopwatch(deadline=None if asked.within_s is None else until)
    for shard, ids in asked.hits:
        if (held := app[CATALOG].collections.get(shard)) is not None:
            held.hits.count(ids)
    with entry.waiting():  # each for the same time, so one after the other takes no longer
        shards = [await open_shard(app, one, watch, until) for one in asked.calls]

    calls = [with_cold_policy(shard, one.call) for shard, one in zip(shards, asked.calls, strict=True)]
    try:
        return pack(Replies(calls=await answer_all(app, shards, calls, watch)))
    finally:
        watch.left = True


async def answer_all(
    app: web.Application,
    shards: Sequence[LocalShard | NoAnswer],
    calls: Sequence[AnyCall],
    watch: Stopwatch,
) -> list[CallReply]:
    """Answer calls, each of the shard at its place: those of several shards in search processes, side by side, and so
    those that come beside others. A single one is answered sooner on a search thread of this service, where the rest
    is, too."""
    by_shard: dict[str, tuple[LocalShard, list[int], list[PartitionCall]]] = {}
    for at, (shard, call) in enumerate(zip(shards, calls, strict=True)):
        if isinstance(shard, LocalShard) and isinstance(call, PartitionCall):
            _, places, some = by_shard.setdefault(shard.collection.name, (shard, [], []))
            places.append(at)
            some.append(call)
    replies: dict[int, CallReply] = {}

    async def ask(shard: LocalShard, places: list[int], some: list[PartitionCall]) -> None:
        try:
            found = await app[IN_PROCESSES].ask_shard(shard, some, watch.deadline)
        except NearlineError as error:  # as of calls that end processes
            found = [CallReply(0, None, CallRefused.of(error))] * len(some)
        if found is not None:
            replies.update(zip(places, found, strict=True))

    on_threads = app[ON_THREADS]
    if len(by_shard) > 1 or on_threads:
        await gather_or_cancel(ask(*one) for one in by_shard.values())
    left = [at for at in range(len(calls)) if at not in replies]
    if left:
        export = app[VECTOR_EXPORT]
        on_threads.add(id(watch))
        try:
            found = await app[PIPELINE].on_thread(
                lambda: [reply_of(shards[at], calls[at], export) for at in left]
            )
        finally:
            on_threads.discard(id(watch))
        replies.update(zip(left, found, strict=True))
    return [replies[at] for at in range(len(calls))]


def with_cold_policy(shard: LocalShard | NoAnswer, call: AnyCall) -> AnyCall:
    """Return a search with what the cold policy of its shard says about it."""
    if not (isinstance(call, SearchShard) and isinstance(shard, LocalShard)):
        return call
    query = shard.snapshot.with_cold_policy(call.ask.query)
    return msgspec.structs.replace(call, ask=msgspec.structs.replace(call.ask, query=query))


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a shard does not answer. `seq` is as in `CallReply`."""

    error: NearlineError
    seq: int = 0


async def open_shard(
    app: web.Application, asked: Addressed, watch: Stopwatch, until: float
) -> LocalShard | NoAnswer:
    """Return a shard in a state that holds the operation asked for, or why there is none."""
    if (collection := app[CATALOG].collections.get(asked.shard)) is None:
        return NoAnswer(NotReady(f"shard {asked.shard} is not here"))
    moving = collection.moving
    try:
        require_newest(app, moving)
    except NotReady as error:
        return NoAnswer(error, moving.seq if moving else 0)
    try:
        newest = collection.log.newest_seq
        if not isinstance(asked.call, AwaitSeq) and asked.seq > newest and writes(app, collection):
            why = f"shard {asked.shard} is at seq {newest}, before {asked.seq}, which was lost"
            return NoAnswer(Unavailable(why), newest)
        await wait_for_seq(collection, asked.seq, until)
        snapshot = collection.snapshot
        if snapshot.seq < asked.seq:
            why = f"shard {asked.shard} is at seq {snapshot.seq} here, before {asked.seq}"
            return NoAnswer(Unavailable(why))
        return LocalShard(collection, snapshot, watch, WorkBudget())
    except NearlineError as error:
        return NoAnswer(error)


def writes(app: web.Application, shard: Collection) -> bool:
    """Whether this service takes the writes of a shard, so that no operation comes from elsewhere."""
    return shard.moving is None and not isinstance(app[STORE], Follower)


def require_newest(app: web.Application, moving: Moving | None) -> None:
    """Raise NotReady if another node may have more of a shard that moves than there is here: the one that it was given
    to, unless that does not answer and may not have taken it, or the one that it is still copied from. Who asks here
    has last looked before."""
    nodes = app[NODES]
    if moving is not None and moving.role == "copy":
        raise NotReady(f"the shard is being copied from node {moving.node}")
    up = moving is not None and nodes is not None and nodes.is_up(moving.node)
    if moving is not None and (moving.role == "gone" or up):
        raise NotReady(f"the shard is given to node {moving.node}")


def reply_of(shard: LocalShard | NoAnswer, call: AnyCall, export: VectorExport) -> CallReply:
    """Answer a call on a search thread."""
    if isinstance(shard, NoAnswer):
        return CallReply(shard.seq, None, CallRefused.of(shard.error))
    if isinstance(call, PartitionCall):
        spared: list[Spared] = []
        reply = answer_call(shard, call, spared)
        for one in spared:
            shard.snapshot.learn(one)
        return reply
    try:
        return CallReply(shard.seq, pack(do(shard, call, export)))
    except NearlineError as error:
        return CallReply(0, None, CallRefused.of(error))


def do(shard: LocalShard, call: AnyCall, export: VectorExport) -> object:
    """Answer a call that is of a node and its log."""
    collection = shard.collection
    assert isinstance(collection, Collection)
    match call:
        case CountMatching():
            found = scrolling.count(collection, call.condition, shard.watch.on_step)
            return DocumentsCounted(found.documents, found.passages, found.seq, shard.snapshot.live)
        case ReadPage():
            return read_page(collection, shard, call, export)
        case AwaitSeq():
            return None
        case ReadFrequent():
            return shard.snapshot.frequent_terms(call.most)
        case ReadSeqs():
            return collection.log.seqs_of(call.documents)
        case FindVisible():
            caller = Principal(groups=None if call.groups is None else tuple(call.groups))
            return [*collection.log.visible(call.documents, caller.may_read)]
        case _:
            raise TypeError(f"{type(call).__name__} is no call of a node")


def read_page(
    collection: Collection, shard: LocalShard, call: ReadPage, export: VectorExport
) -> DocumentsPage:
    page = scrolling.page(
        collection,
        call.after,
        call.limit,
        condition=call.condition,
        text=call.text,
        vectors=call.vectors,
        bytes_max=call.bytes_max,
        on_step=shard.watch.on_step,
    )
    return DocumentsPage([bytes(one) for one in encode_page(page, export, text=call.text)], page.following)
