"""The nodes of a cluster as this service sees them: which shards each has, which of them answer, and how to ask.

    [cluster.nodes]
    a = ["http://10.0.0.1:8080", "http://10.0.0.2:8080"]   one writes, the others follow it through the object store
    b = ["http://10.0.0.3:8080"]

Each is asked every second what it has, so a node that was restored, promoted or given another address is found by
itself. Nothing is kept here: the shards say what there is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from indexes.base.errors import Conflict, NearlineError, Unavailable, message_of
from indexes.base.model import Settings
from indexes.parts.learned import RankingSettings, SynonymSettings
from retrieval.access.auth import CLUSTER_HEADER, OPEN_CLUSTER
from retrieval.base.cancellation import gather_or_cancel
from retrieval.base.request_id import REQUEST_ID
from retrieval.base.settings import ClusterSection
from retrieval.cluster.calls import ANSWERS, Addressed, CallReply, Calls, NodeShards, ShardState
from retrieval.cluster.names import ShardName, weigh
from retrieval.search.steps import Away
from retrieval.search.travel import pack, unpack
from retrieval.wire.errors import ErrorBody, error_of

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at what a node has
LOOK_AGAIN_S = 0.2  # between two looks for a collection that is not known
FEW = 1000  # documents
AT_ONCE = 8  # requests to all shards: a node admits a bounded number
HITS_KEPT = 1000  # of a shard, until its node is told
CONNECT_S = 2.0
WRITE_S = 600.0  # between two pieces of an answer; embedding a large request takes minutes
RETRY_AFTER_S = 2.0
SILENT_S = 10.0  # after which a node that does not answer looks has no more time for anything else
REFUSES = (401, 403)
REPLIES = list[CallReply]


@dataclass(slots=True)
class Node:
    """One service of a node. `shards` is what it last said that it has; None while it does not answer."""

    name: str
    url: str
    shards: NodeShards | None = None
    under_way: int = 0
    answered: int = 0
    failed: int = 0
    why: str = "has not been asked yet"


@dataclass(frozen=True, slots=True)
class Sharded:
    """A collection in several shards. `name` is its full name; `states` are those of its shards that answer, by
    number."""

    name: str
    of: int
    settings: Settings
    states: Mapping[int, ShardState]

    def shard(self, number: int) -> str:
        return str(ShardName(self.name, number, self.of))

    @property
    def documents(self) -> int:
        return sum(one.documents for one in self.states.values())

    @property
    def generation(self) -> int:
        return max((one.generation for one in self.states.values()), default=0)

    @property
    def ranking(self) -> RankingSettings | None:
        """How the collection ranks, as the shard says in which that was set last."""
        found = [one.ranking for one in self.states.values() if one.ranking is not None]
        return max(found, key=lambda one: one.set_ms, default=None)

    @property
    def synonyms(self) -> SynonymSettings | None:
        found = [one.synonyms for one in self.states.values() if one.synonyms is not None]
        return max(found, key=lambda one: one.set_ms, default=None)

    def spoken(self) -> Mapping[str, int]:
        """How many passages are in each language, the most frequent first."""
        held: Counter[str] = Counter()
        for one in self.states.values():
            held.update(one.spoken)
        return dict(held.most_common())


@dataclass(slots=True)
class Nodes:
    """Use it from one event loop; `close` it."""

    settings: ClusterSection
    members: list[Node] = field(init=False)
    hits: dict[str, list[int]] = field(default_factory=dict, init=False)  # to be counted, by shard
    # The last operation of each shard that a write through this service was acknowledged with, and when.
    _acknowledged: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)
    _found: tuple[dict[str, Sharded], dict[str, list[Node]]] | None = field(default=None, init=False)
    _written: bool = field(default=False, init=False)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _look: asyncio.Future[None] | None = field(default=None, init=False)
    _looked_at: float = field(default=float("-inf"), init=False)
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.members = [
            Node(name, url.rstrip("/")) for name, urls in self.settings.nodes.items() for url in urls
        ]

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
                headers={CLUSTER_HEADER: self.settings.secret or OPEN_CLUSTER},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=WRITE_S),
            )
        return self._session

    # --- what there is ----------------------------------------------------------------------------------------

    async def keep_looking(self) -> None:
        """Ask every service what it has, until cancelled. One that hangs does not keep the others waiting."""

        async def look(node: Node) -> None:
            while True:
                await self._look_at(node)
                await asyncio.sleep(LOOK_S)

        await asyncio.gather(*map(look, self.members))

    async def look(self) -> None:
        """Ask every service now what it has."""
        await asyncio.gather(*map(self._look_at, self.members))

    async def _look_at_answering(self) -> None:
        """Ask the services that answered the last time: the others are asked again by `keep_looking`, and would make
        each of its callers wait."""
        await asyncio.gather(*(self._look_at(one) for one in self.members if one.shards is not None))

    async def _look_at(self, node: Node) -> None:
        begun = time.monotonic()
        try:
            async with self._exchange(node, "GET", "/v1/shards", within_s=CONNECT_S) as reply:
                node.shards, why = unpack(await reply.read(), NodeShards), ""
        except NearlineError as error:
            node.shards, why = None, error.message
        else:
            self._forget_lost(node.shards, begun)
        self._found = None
        if why != node.why:
            node.why = why
            logger.warning("node %s at %s %s", node.name, node.url, why or "answers")

    def _forget_lost(self, held: NodeShards, looked_at: float) -> None:
        """Wait no more for what was acknowledged before this look and its writer does not have: the shard was created
        again, or has lost its last writes with a machine."""
        for name, state in held.shards.items() if held.writes else ():
            seq, at = self._acknowledged.get(name, (0, 0.0))
            if state.seq < seq and at < looked_at:
                logger.warning(
                    "shard %s is at seq %d, and a write was acknowledged with %d", name, state.seq, seq
                )
                self._acknowledged[name] = state.seq, looked_at

    async def find(self, name: str) -> Sharded | None:
        """Return the collection of this full name. All nodes are asked first if it is not known, not whole, or empty,
        or something was written through this service since: it may have been created, deleted or filled a moment ago.
        They are asked a few times a second at most, unless there are few documents, of which each one counts for what
        a query's language is, or a shard is missing though all nodes answer."""
        found = self.collection(name)
        few = found is not None and found.documents < FEW
        whole = found is not None and len(found.states) == found.of
        if found is not None and whole and found.documents and not self._written:
            return found
        torn = found is not None and not whole and not self.away()
        arrived = time.monotonic()
        async with self._looking:
            if self._looked_at < arrived:  # else somebody who came before has looked since
                if not (torn or (few and self._written)):
                    await asyncio.sleep(max(self._looked_at + LOOK_AGAIN_S - arrived, 0.0))
                self._written, self._looked_at = False, time.monotonic()
                self._look = asyncio.ensure_future(self._look_at_answering())  # none that hangs is waited for
                await asyncio.wait({self._look}, timeout=LOOK_S)
        return self.collection(name)

    def collection(self, name: str) -> Sharded | None:
        """Return the collection of this full name, if any node has one of its shards."""
        return self.collections().get(name)

    def collections(self) -> dict[str, Sharded]:
        return self._find()[0]

    def _find(self) -> tuple[dict[str, Sharded], dict[str, list[Node]]]:
        """Return the collections, and the services that have each shard, found out again after each look: a search asks
        for every shard."""
        if self._found is None:
            holders: dict[str, list[Node]] = defaultdict(list)
            for node in self.members:
                for name in self._held(node):
                    holders[name].append(node)
            self._found = self._find_collections(), dict(holders)
        return self._found

    def _find_collections(self) -> dict[str, Sharded]:
        found: dict[str, dict[int, dict[int, ShardState]]] = defaultdict(lambda: defaultdict(dict))
        for node in self.members:
            for name, state in self._held(node).items():
                if (shard := ShardName.parse(name)) is not None:
                    states = found[shard.collection][shard.of]
                    if (known := states.get(shard.number)) is None or known.seq < state.seq:
                        states[shard.number] = state
        # Shards of several divisions under one name would be the work of somebody's hands: the fullest counts.
        return {
            name: Sharded(name, of, next(iter(states.values())).settings, states)
            for name, divisions in found.items()
            for of, states in [max(divisions.items(), key=lambda one: len(one[1]) / one[0])]
        }

    def _held(self, node: Node) -> Mapping[str, ShardState]:
        """Return the shards of a service. What the writer of its node has no longer was deleted; replicas follow."""
        if node.shards is None:
            return {}
        writer = next(
            (
                one.shards
                for one in self.members
                if one.name == node.name and one.shards and one.shards.writes
            ),
            None,
        )
        held = node.shards.shards
        return held if writer is None else {name: one for name, one in held.items() if name in writer.shards}

    def has_name(self, name: str) -> bool:
        """Whether a node has a collection in one piece, or an alias, of this full name."""
        return any(one.shards is not None and name in one.shards.names for one in self.members)

    def away(self) -> list[str]:
        """Return the nodes of which no service answers."""
        up = {one.name for one in self.members if one.shards is not None}
        return sorted(self.settings.nodes.keys() - up)

    def having(self, shard: str) -> list[Node]:
        """Return the services that answer for a shard, those with the least to do first."""
        return sorted(self._find()[1].get(shard, ()), key=lambda one: one.under_way)

    def writer_of(self, shard: str) -> Node:
        """Return the service that takes the writes of a shard. Raises Unavailable if none does, and Conflict if several
        do."""
        found = [one for one in self.having(shard) if one.shards is not None and one.shards.writes]
        if len(found) > 1:
            raise Conflict(f"{found[0].url} and {found[1].url} both write to shard {shard}: stop one of them")
        if not found:
            raise Unavailable(f"no node takes writes of shard {shard} now", retry_after_s=RETRY_AFTER_S)
        return found[0]

    def reader_of(self, shard: str) -> Node:
        """Return the service that writes a shard, which knows the newest, or another one that has it while that does
        not answer. Raises Unavailable if none has."""
        held = self.having(shard)
        if not held:
            raise Unavailable(f"no node answers for shard {shard} now", retry_after_s=RETRY_AFTER_S)
        return next((one for one in held if one.shards is not None and one.shards.writes), held[0])

    def acknowledge(self, shard: str, seq: int) -> None:
        """Note that a write was acknowledged: from now on every answer through this service knows of it."""
        self._acknowledged[shard] = max(seq, self.acknowledged(shard)), time.monotonic()
        self._written = True

    def acknowledged(self, shard: str) -> int:
        """Return the last operation that every answer must know of."""
        return self._acknowledged.get(shard, (0, 0.0))[0]

    def forget(self, shard: str) -> None:
        """Forget what was acknowledged of a shard that was deleted."""
        self._acknowledged.pop(shard, None)

    def note_hits(self, shard: str, passages: Sequence[int]) -> None:
        """Keep passages that a user got until the next call of their shard, which counts them."""
        held = self.hits.setdefault(shard, [])
        held += passages[: HITS_KEPT - len(held)]

    def place(self, name: str, shards: int) -> list[Node]:
        """Choose the service that shall hold each shard of a new collection: each node gets as many as any other, and
        of those that have room the one that the shard prefers. Raises Unavailable while a node takes no writes."""
        writers = {one.name: one for one in self.members if one.shards is not None and one.shards.writes}
        if missing := sorted(set(self.settings.nodes) - writers.keys()):
            raise Unavailable(
                f"node {missing[0]} takes no writes now, and a new collection is divided among all nodes",
                retry_after_s=RETRY_AFTER_S,
            )
        room = Counter(dict.fromkeys(writers, -(-shards // len(writers))))
        placed = []
        for number in range(shards):
            shard = ShardName(name, number, shards)
            best = max((one for one in writers if room[one]), key=lambda node: weigh(shard, node))
            room[best] -= 1
            placed.append(writers[best])
        return placed

    # --- calls of shards --------------------------------------------------------------------------------------

    async def ask(
        self,
        calls: Sequence[Away[Any]],
        deadline: float | None = None,
        without: frozenset[str] = frozenset(),
    ) -> list[Any]:
        """Answer calls of shards, each `to` a `RemoteShard`, with an exception for each that failed.

        Calls for one service travel together. What a service does not answer is asked of another one that has the
        shard, and what it is late with, too. The services at the URLs in `without` are not asked.
        """
        answers: dict[int, Any] = {}
        tried: dict[int, set[str]] = defaultdict(set)
        errors: dict[int, Unavailable] = {}
        while len(answers) < len(calls):
            by_node: dict[str, tuple[Node, list[int]]] = {}
            for at, call in enumerate(calls):
                if at in answers:
                    continue
                left = [one for one in self.having(call.to.name) if one.url not in tried[at] | without]
                if not left:
                    why = f"no node answers for shard {call.to.name} now"
                    answers[at] = errors.get(at) or Unavailable(why, retry_after_s=RETRY_AFTER_S)
                    continue
                # Those that have been chosen in this round share a request, which costs one more call little.
                node = min(left, key=lambda one: (one.url not in by_node, one.under_way))
                by_node.setdefault(node.url, (node, []))[1].append(at)
            asked = [(node, [calls[at] for at in places], places) for node, places in by_node.values()]
            replied = await gather_or_cancel(
                self._ask_again_if_late(node, some, deadline, without) for node, some, _ in asked
            )
            for (node, _, places), replies in zip(asked, replied, strict=True):
                if isinstance(replies, Unavailable):
                    for at in places:
                        tried[at].add(node.url)
                        errors[at] = replies
                else:
                    answers |= zip(places, replies, strict=True)
        return [answers[at] for at in range(len(calls))]

    async def _ask_again_if_late(
        self, node: Node, calls: Sequence[Away[Any]], deadline: float | None, without: frozenset[str]
    ) -> list[Any] | Unavailable:
        """Return the answers of a service, or of others with the same shards if it is late; or why it gave none."""
        without |= {node.url}
        first = asyncio.ensure_future(self._ask_node(node, calls, deadline))
        second: asyncio.Future[list[Any]] | None = None
        try:
            if all(any(one.url not in without for one in self.having(call.to.name)) for call in calls):
                await asyncio.wait({first}, timeout=self.settings.late_ms / 1000)
                if not first.done():
                    second = asyncio.ensure_future(self.ask(calls, deadline, without))
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

    async def _ask_node(
        self, node: Node, calls: Sequence[Away[Any]], deadline: float | None
    ) -> list[Any] | Unavailable:
        """Return the answers of one service, or why it gave none."""
        now = asyncio.get_running_loop().time()
        within_s = None if deadline is None else max(deadline - now, 0.0)
        hits = [
            (shard, ids) for shard in {one.to.name for one in calls} if (ids := self.hits.pop(shard, None))
        ]
        sent = pack(Calls([Addressed(one.to.name, one.to.least, one.call) for one in calls], within_s, hits))
        limit_s = min(self.settings.timeout_s, within_s or self.settings.timeout_s)
        node.under_way += 1
        try:
            async with self._exchange(node, "POST", "/v1/shards", content=sent, within_s=limit_s) as answer:
                replies = unpack(await answer.read(), REPLIES)
        except Unavailable as error:
            node.failed += 1
            error.message = f"node {node.name} {error.message}"
            logger.warning("%s, at %s", error.message, node.url)
            return error
        except NearlineError as error:
            return [error] * len(calls)
        finally:
            node.under_way -= 1
        node.answered += 1
        return [answer_of(call, reply) for call, reply in zip(calls, replies, strict=True)]

    # --- requests to a service --------------------------------------------------------------------------------

    async def send_each(self, requests: Sequence[tuple[Node, str, str, object]]) -> list[dict[str, Any]]:
        """Send requests as `send` does, a few at a time, and return the answers in order. If one fails, raises it."""
        few = asyncio.Semaphore(AT_ONCE)

        async def send(node: Node, method: str, path: str, body: object) -> dict[str, Any]:
            async with few:
                return await self.send(node, method, path, body)

        return await gather_or_cancel(send(*one) for one in requests)

    async def send(self, node: Node, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Send a request of the public API to a service, and return its answer. Raises what it answered as an error,
        and Unavailable if it does not answer, also no look at what it has; it may have done what was asked then."""
        content = None if body is None else msgspec.json.encode(body)

        async def exchange() -> dict[str, Any]:
            async with self._exchange(node, method, path, content=content, within_s=WRITE_S) as reply:
                answer: dict[str, Any] = msgspec.json.decode(await reply.read() or b"{}")
                return answer

        task, silent_s = asyncio.ensure_future(exchange()), 0.0
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
                silent_s = 0.0 if node.shards is not None else silent_s + LOOK_S
                if silent_s > SILENT_S:
                    raise Unavailable(
                        f"node {node.name} does not answer, and may have done what was asked",
                        retry_after_s=RETRY_AFTER_S,
                    )
            return task.result()
        finally:
            task.cancel()

    @asynccontextmanager
    async def _exchange(
        self, node: Node, method: str, path: str, *, content: bytes | None = None, within_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._open().request(
                method,
                node.url + path,
                data=content,
                headers={"X-Request-Id": REQUEST_ID.get(), "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=within_s, sock_connect=CONNECT_S),
            ) as reply:
                if reply.status >= 400:
                    raise error_in(await reply.read(), reply.status, reply.headers.get("Retry-After", ""))
                yield reply
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError, ValueError) as error:
            away = isinstance(error, aiohttp.ClientConnectorError)
            why = "cannot be reached" if away else f"did not answer ({message_of(error) or 'too late'})"
            raise Unavailable(why, retry_after_s=RETRY_AFTER_S) from None


def answer_of(call: Away[Any], reply: CallReply) -> Any:
    if reply.refusal is not None:
        return reply.refusal.error
    call.to.seq = max(call.to.seq, reply.seq)
    return unpack(reply.answer or b"", ANSWERS[type(call.call)])


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
