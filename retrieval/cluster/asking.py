"""Calls of shards that other nodes have, and requests for them: who is asked, and who else if it does not answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from indexes.base.errors import Conflict, DeadlineExceeded, NearlineError, NotFound, NotReady, Unavailable
from retrieval.base.cancellation import gather_or_cancel
from retrieval.base.request_id import REQUEST_ID
from retrieval.cluster.calls import ANSWERS, Addressed, Calls
from retrieval.cluster.link import READ_S, RETRY_AFTER_S
from retrieval.cluster.names import ShardName
from retrieval.cluster.nodes import LOOK_S, Node, Nodes
from retrieval.search.calls import CallReply
from retrieval.search.steps import Away
from retrieval.search.travel import unpack

logger = logging.getLogger(__name__)
T = TypeVar("T")

AT_ONCE = 8  # requests to all shards: a node admits a bounded number
SILENT_S = 10.0  # after which a node that does not answer looks has no more time for anything else
MOVING_S = 15.0  # for a shard that is being moved to take writes at its new node
MOVING_LOOK_S = 0.05
AGREE_S = 2.0  # for looks at several nodes to be of the same time


async def ask(
    nodes: Nodes,
    calls: Sequence[Away[Any]],
    deadline: float | None = None,
    without: frozenset[str] = frozenset(),
) -> list[Any]:
    """Answer calls of shards, each `to` a `RemoteShard`, with an exception for each that failed.

    Calls for one service travel together. What a service does not answer, or is late with, is asked of another one that
    has the shard; if there is none, the nodes are asked who has it now. The services at the URLs in `without` are not
    asked.
    """
    answers: dict[int, Any] = {}
    tried: dict[int, set[str]] = defaultdict(set)
    errors: dict[int, Unavailable] = {}
    has_looked, begun = bool(without), time.monotonic()
    while len(answers) < len(calls):
        by_node: dict[str, tuple[Node, list[int]]] = {}
        lost = []
        for at, call in enumerate(calls):
            if at in answers:
                continue
            left = [one for one in nodes.having(call.to.name) if one.url not in tried[at] | without]
            if not left:
                lost.append(at)
                continue
            node = choose_node(left, call, by_node)
            by_node.setdefault(node.url, (node, []))[1].append(at)
        waited_s = time.monotonic() - begun
        moving = [] if without else [
            at for at in lost if waited_s < patience_of_search(nodes, calls[at].to.name, errors.get(at))
        ]  # fmt: skip
        if lost and (moving or not has_looked):
            await asyncio.sleep(MOVING_LOOK_S if has_looked else 0.0)
            has_looked = True
            await nodes.look_again()
            for at in moving:  # its new node answers soon
                tried[at].clear()
            continue
        for at in lost:
            why = f"no node answers for shard {calls[at].to.name} now"
            answers[at] = errors.get(at) or Unavailable(why, retry_after_s=RETRY_AFTER_S)
        asked = [(node, [calls[at] for at in places], places) for node, places in by_node.values()]
        replied = await gather_or_cancel(
            ask_again_if_late(nodes, node, some, deadline, without) for node, some, _ in asked
        )
        for (node, _, places), replies in zip(asked, replied, strict=True):
            for at, reply in zip(places, replies, strict=True):
                if isinstance(reply, AskAgain):
                    continue
                if isinstance(reply, Unavailable) and not isinstance(reply, DeadlineExceeded):
                    tried[at].add(node.url)
                    errors[at] = reply
                else:
                    answers[at] = reply
    return [answers[at] for at in range(len(calls))]


def choose_node(left: Sequence[Node], call: Away[Any], chosen: Container[str]) -> Node:
    """Choose the service with the least to do. Those that are `chosen` already, by their URLs, share a request, which
    costs one more call little."""

    def rank(node: Node) -> tuple[bool, bool, int]:
        is_behind = call.call.needs_newest and not node.takes_writes_of(call.to.name)
        return is_behind, node.url not in chosen, node.under_way

    return min(left, key=rank)


def patience_of_search(nodes: Nodes, shard: str, error: Unavailable | None) -> float:
    """Return how long to look for a service that answers for a shard, in seconds, if the error is the last one's."""
    refused = isinstance(error, NotReady)
    if (refused or nodes.is_moving(shard)) and nodes.having(shard):
        return MOVING_S
    # Looks at several nodes, of which one has lost the shard and the other was looked at before it had it.
    may_be_seen_soon = error is None or (refused and is_known(nodes, shard))
    return AGREE_S if may_be_seen_soon and not nodes.away() else 0.0


async def ask_again_if_late(
    nodes: Nodes, node: Node, calls: Sequence[Away[Any]], deadline: float | None, without: frozenset[str]
) -> list[Any]:
    """Return the answers of a service, or of others with the same shards if it is late."""
    without |= {node.url}
    if not all(any(one.url not in without for one in nodes.having(call.to.name)) for call in calls):
        return await ask_node(nodes, node, calls, deadline)
    first = asyncio.ensure_future(ask_node(nodes, node, calls, deadline))
    second: asyncio.Future[list[Any]] | None = None
    try:
        await asyncio.wait({first}, timeout=nodes.settings.late_ms / 1000)
        if not first.done():
            second = asyncio.ensure_future(ask(nodes, calls, deadline, without))
            await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        if second is not None and second.done():
            answers = await second
            if not any(isinstance(one, Unavailable) for one in answers):
                return answers
        return await first
    finally:
        first.cancel()
        if second is not None:
            second.cancel()
        await asyncio.gather(first, *([second] if second else ()), return_exceptions=True)


async def ask_node(nodes: Nodes, node: Node, calls: Sequence[Away[Any]], deadline: float | None) -> list[Any]:
    """Return the answers of one service; for each call why there is none, if it gave none. Where shards may be left
    out, a service that does not answer looks either is not waited for."""
    within_s = None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0.0)
    hits = [
        (shard, ids) for shard in {one.to.name for one in calls} if (ids := nodes.notes.hits.pop(shard, None))
    ]
    addressed = [Addressed(one.to.name, one.to.least, one.call) for one in calls]
    sent = Calls(addressed, within_s, hits, REQUEST_ID.get())
    timeout_s = nodes.settings.timeout_s
    limit_s = min(timeout_s, within_s or timeout_s)
    node.under_way += 1
    try:
        call = nodes.link.call(node.url, sent, limit_s)
        if any(one.to.optional for one in calls):
            call = while_it_answers(node, call, 0.0, "does not answer")
        replies = (await call).calls
    except NearlineError as error:
        if isinstance(error, Unavailable):
            node.failed += 1
            error.message = f"node {node.name} {error.message}"
            logger.warning("%s, at %s", error.message, node.url)
        return [error] * len(calls)
    finally:
        node.under_way -= 1
    node.answered += 1
    return [answer_of(nodes, call, reply) for call, reply in zip(calls, replies, strict=True)]


def answer_of(nodes: Nodes, call: Away[Any], reply: CallReply) -> Any:
    shard = call.to
    if reply.refusal is not None:
        error = reply.refusal.error
        if isinstance(error, NotReady):
            if reply.seq > shard.least:
                nodes.notes.know(shard.name, reply.seq)
                shard.least = reply.seq
            return error
        if not shard.wanted <= reply.seq < shard.least:
            return error
        nodes.notes.lose(shard.name, reply.seq)
        shard.least = reply.seq
        return AskAgain()
    shard.seq = max(shard.seq, reply.seq)
    return unpack(reply.answer or b"", ANSWERS[type(call.call)])


class AskAgain(Unavailable):
    """A call asked for operations that its shard has lost, and does so no longer."""

    def __init__(self) -> None:
        super().__init__("the last operations were lost")


async def change(nodes: Nodes, shard: str, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Send a request to the service that takes the writes of a shard, and return its answer. While the shard is being
    moved, wait until it takes writes at its new node. Raises like `Nodes.writer_of` and `send`."""
    return await follow(nodes, shard, Nodes.writer_of, method, path, body)


async def read(nodes: Nodes, shard: str, path: str) -> dict[str, Any]:
    """Ask the service that knows the newest of a shard. Raises like `Nodes.reader_of` and `send`."""
    return await follow(nodes, shard, Nodes.reader_of, "GET", path)


async def follow(
    nodes: Nodes,
    shard: str,
    choose: Callable[[Nodes, str], Node],
    method: str,
    path: str,
    body: object = None,
) -> dict[str, Any]:
    """Send a request to the service that is chosen for a shard, again if the shard has moved."""
    begun, gone = time.monotonic(), None
    while True:
        node, asked_at = None, time.monotonic()
        try:
            node = choose(nodes, shard)
            return await send(nodes, node, method, path, body)
        except NearlineError as error:
            gone = error if isinstance(error, NotFound) else gone
            await nodes.look_again()
            if time.monotonic() - begun > patience_of(nodes, shard, node, error, asked_at):
                raise (gone if gone is not None and not is_known(nodes, shard) else error) from None
        await asyncio.sleep(MOVING_LOOK_S)


def patience_of(nodes: Nodes, shard: str, node: Node | None, error: NearlineError, asked_at: float) -> float:
    """Return how long to send a request again, in seconds: only if it was refused and nothing was done, because its
    shard is moving or has moved. `node` is the one that refused it when asked at `asked_at`, None if there was none or
    two to choose from."""
    if isinstance(error, NotReady):
        return MOVING_S
    if node is None and isinstance(error, Unavailable | Conflict):
        if nodes.is_moving(shard):
            return MOVING_S
        return AGREE_S if isinstance(error, Conflict) or not nodes.away() else 0.0
    gone = isinstance(error, NotFound) and error.param == "collection"
    # It has moved, or was deleted; a look from before the request cannot tell.
    if gone and node is not None and (node.looked_at < asked_at or not node.takes_writes_of(shard)):
        return MOVING_S if nodes.having(shard) else AGREE_S if is_known(nodes, shard) else 0.0
    return 0.0


def is_known(nodes: Nodes, shard: str) -> bool:
    """Whether any node has a shard of this one's collection."""
    named = ShardName.parse(shard)
    return named is not None and nodes.collection(named.collection) is not None


async def few_at_a_time(sends: Iterable[Callable[[], Awaitable[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Await requests, a few at a time, and return their answers in order. If one fails, raises it."""
    few = asyncio.Semaphore(AT_ONCE)

    async def in_turn(one: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        async with few:
            return await one()

    return await gather_or_cancel(map(in_turn, sends))


async def send(nodes: Nodes, node: Node, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Send a request of the public API to a service, and return its answer. Raises what it answered as an error, and
    Unavailable if it does not answer, also no look at what it has; it may have done what was asked then."""
    content = None if body is None else msgspec.json.encode(body)

    async def exchange() -> dict[str, Any]:
        async with nodes.link.exchange(method, node.url + path, content=content, within_s=READ_S) as reply:
            answer: dict[str, Any] = msgspec.json.decode(await reply.read() or b"{}")
            return answer

    why = f"node {node.name} does not answer, and may have done what was asked"
    return await while_it_answers(node, exchange(), SILENT_S, why)


async def while_it_answers(node: Node, work: Coroutine[Any, Any, T], most_s: float, why: str) -> T:
    """Await the answer of a service. Raises Unavailable that says `why` once it has not answered looks either for more
    than `most_s` seconds."""
    task, silent_s = asyncio.ensure_future(work), 0.0
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            silent_s = 0.0 if node.shards is not None else silent_s + LOOK_S
            if silent_s > most_s:
                raise Unavailable(why, retry_after_s=RETRY_AFTER_S)
        return task.result()
    finally:
        task.cancel()
