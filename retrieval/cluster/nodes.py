"""The nodes of a cluster as this service sees them: which shards each has, which of them answer, and how to ask.

    [cluster.nodes]
    a = ["http://10.0.0.1:8080", "http://10.0.0.2:8080"]   one writes, the others follow it through the object store
    b = ["http://10.0.0.3:8080"]

Each is asked every second what it has, so a node that was restored, promoted or given another address is found by
itself. Nothing is kept here: the shards say what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from indexes.base.errors import Conflict, NearlineError, Unavailable
from indexes.base.model import Settings
from indexes.parts.learned import RankingSettings, SynonymSettings
from retrieval.base.settings import ClusterSection
from retrieval.cluster.calls import Calls, NodeShards, ShardState
from retrieval.cluster.link import CONNECT_S, RETRY_AFTER_S, Link
from retrieval.cluster.names import ShardName
from retrieval.cluster.notes import ShardNotes

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at what a node has
LOOK_AGAIN_S = 0.2  # between two looks for a collection that is not known
STARTS_S = 5.0  # in which services that were started together are up
FEW = 1000  # documents


@dataclass(slots=True)
class Node:
    """One service of a node. `shards` is what it last said that it has, asked at `looked_at`; None while it does not
    answer. `remembered` stays then."""

    name: str
    url: str
    shards: NodeShards | None = None
    remembered: NodeShards | None = None
    looked_at: float = float("-inf")
    under_way: int = 0
    answered: int = 0
    failed: int = 0
    why: str = "has not been asked yet"

    @property
    def writes(self) -> bool:
        """Whether it answers and is no replica."""
        return self.shards is not None and self.shards.writes

    def state_of(self, shard: str) -> ShardState | None:
        return None if self.shards is None else self.shards.shards.get(shard)

    def takes_writes_of(self, shard: str) -> bool:
        return self.writes and (held := self.state_of(shard)) is not None and held.moving is None


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

    def documents_in(self, shard: int) -> int:
        """How many documents a shard had at the last look."""
        return self.states[shard].documents if shard in self.states else 0

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


@dataclass(frozen=True, slots=True)
class Findings:
    """What there is by the last looks: the collections by their full names, their names by alias, and the services that
    have each shard."""

    collections: dict[str, Sharded]
    aliases: dict[str, str]
    holders: dict[str, list[Node]]


def find_aliases(collections: Mapping[str, Sharded]) -> dict[str, str]:
    """Return what each alias names: of several collections the one that got it last."""
    given = [
        (at, alias, name)
        for name, one in collections.items()
        if 0 in one.states
        for alias, at in one.states[0].aliases.items()
        if alias not in collections
    ]
    return {alias: name for _, alias, name in sorted(given)}


def names_shards_of(name: str, said: NodeShards) -> bool:
    """Whether a node has shards of a collection of this full name or alias."""
    return any(
        name in state.aliases
        or ((parsed := ShardName.parse(shard)) is not None and parsed.collection == name)
        for shard, state in said.shards.items()
    )


@dataclass(slots=True)
class Nodes:
    """Use it from one event loop; `close` it."""

    settings: ClusterSection
    members: list[Node] = field(default_factory=list, init=False)
    link: Link = field(init=False)
    notes: ShardNotes = field(default_factory=ShardNotes, init=False)
    news: asyncio.Event = field(
        default_factory=asyncio.Event, init=False
    )  # set once more is known, and replaced
    _found: Findings | None = field(default=None, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)
    _written: bool = field(default=False, init=False)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _look: asyncio.Future[None] | None = field(default=None, init=False)
    _looked_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self.link = Link(self.settings.secret)
        self.reload()

    def reload(self) -> None:
        """Take over the nodes that the settings name now. What is known of those that stay remains."""
        known = {(one.name, one.url): one for one in self.members}
        named = [(name, url.rstrip("/")) for name, urls in self.settings.nodes.items() for url in urls]
        self.members = [known.get(one) or Node(*one) for one in named]
        self._found = None

    async def close(self) -> None:
        await self.link.close()

    # --- what there is ----------------------------------------------------------------------------------------

    async def keep_looking(self) -> None:
        """Ask every service what it has, until cancelled. One that hangs does not keep the others waiting."""
        looks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                looks = {url: task for url, task in looks.items() if not task.done()}
                for node in self.members:
                    if node.url not in looks:
                        looks[node.url] = asyncio.create_task(self.look_at(node))
                await asyncio.sleep(LOOK_S)
        finally:
            for task in looks.values():
                task.cancel()
            await asyncio.gather(*looks.values(), return_exceptions=True)

    async def look(self) -> None:
        """Ask every service now what it has."""
        await asyncio.gather(*map(self.look_at, self.members))

    async def look_again(self) -> None:
        """Ask who has what now, unless that was done a moment ago."""
        if time.monotonic() >= self._looked_at + LOOK_AGAIN_S or self._look is None:
            self._looked_at = time.monotonic()
            self._look = asyncio.ensure_future(self.look_at_answering())
        await asyncio.wait({self._look}, timeout=LOOK_S)

    async def look_at_answering(self) -> None:
        """Ask the services that answered the last time, or may not have been up yet: the others are asked again by
        `keep_looking`, and would make each of its callers wait."""
        is_new = time.monotonic() < self._began + STARTS_S
        await asyncio.gather(*(self.look_at(one) for one in self.members if is_new or one.shards is not None))

    async def look_at(self, node: Node) -> None:
        """Ask a service what it has. What an older look says after a newer one does not count."""
        begun = time.monotonic()
        try:
            shards, why = (await self.link.call(node.url, Calls([], None), CONNECT_S)).state, ""
        except NearlineError as error:
            shards, why = None, error.message
        if begun < node.looked_at:
            return
        if shards is not None:
            self.notes.forget_lost(shards, begun)
            node.remembered = shards
        self._found, node.shards, node.looked_at = None, shards, begun
        self._tell()
        if why != node.why:
            node.why = why
            logger.warning("node %s at %s %s", node.name, node.url, why or "answers")

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
                self._look = asyncio.ensure_future(self.look_at_answering())  # none that hangs is waited for
                await asyncio.wait({self._look}, timeout=LOOK_S)
        return self.collection(name)

    def collection(self, name: str) -> Sharded | None:
        """Return the collection of this full name or alias, if any node has one of its shards."""
        return self.collections().get(self.aliases().get(name, name))

    def collections(self) -> dict[str, Sharded]:
        return self._find().collections

    def aliases(self) -> dict[str, str]:
        """Return the collections by their aliases, full names."""
        return self._find().aliases

    def _find(self) -> Findings:
        """Find out again after each look: a search asks for every shard."""
        if self._found is None:
            holders: dict[str, list[Node]] = defaultdict(list)
            for node in self.members:
                for name in self._held(node):
                    holders[name].append(node)
            collections = self._find_collections()
            self.notes.keep_counts(collections)
            self._found = Findings(collections, find_aliases(collections), dict(holders))
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
        """Return the shards of a service, without copies that are being made. What the writer of its node has no longer
        was deleted; replicas follow."""
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
        return {
            name: one
            for name, one in node.shards.shards.items()
            if not one.is_elsewhere and (writer is None or name in writer.shards)
        }

    def missing(self) -> list[str]:
        """Return the shards that no service has which answers, of collections of which one has others, or had some."""
        found = self.collections()
        torn = [one.shard(at) for one in found.values() for at in range(one.of) if at not in one.states]
        return torn + [shard for shards in self.hidden().values() for shard in shards]

    def hidden(self) -> dict[str, list[str]]:
        """Return the shards of collections that no node which answers has a part of, by the collections' names: those
        that the other nodes had when they last answered."""
        away, known, found = self.away(), self.collections(), defaultdict[str, set[str]](set)
        for node in self.members:
            for shard in node.remembered.shards if node.name in away and node.remembered else ():
                if (name := ShardName.parse(shard)) is not None and name.collection not in known:
                    found[name.collection].add(shard)
        return {name: sorted(shards) for name, shards in found.items()}

    def require_known(self, name: str) -> None:
        """Raise Unavailable if a node that does not answer may have shards of a collection of this full name or alias:
        it had some when it answered, or has not since this service began."""
        for away in self.away():
            services = [one for one in self.members if one.name == away]
            said = [one.remembered for one in services if one.remembered is not None]
            if not said or any(names_shards_of(name, one) for one in said):
                why = f"no node that answers has {name!r}, which {away} may have, and that does not answer"
                raise Unavailable(why, retry_after_s=RETRY_AFTER_S)

    def naming(self, name: str) -> set[str]:
        """Return the nodes that have a collection in one piece, or an alias, of this full name."""
        return {one.name for one in self.members if one.shards is not None and name in one.shards.names}

    def away(self) -> list[str]:
        """Return the nodes of which no service answers."""
        up = {one.name for one in self.members if one.shards is not None}
        return sorted(self.settings.nodes.keys() - up)

    def is_up(self, node: str) -> bool:
        """Whether a service of a node answers."""
        return any(one.shards is not None for one in self.members if one.name == node)

    def having(self, shard: str) -> list[Node]:
        """Return the services that answer for a shard, those with the least to do first."""
        return sorted(self._find().holders.get(shard, ()), key=lambda one: one.under_way)

    def writer_of(self, shard: str) -> Node:
        """Return the service that takes the writes of a shard. Raises Unavailable if none does, and Conflict if several
        do."""
        found = [one for one in self.having(shard) if one.takes_writes_of(shard)]
        if len(found) > 1:
            raise Conflict(f"{found[0].url} and {found[1].url} both write to shard {shard}: stop one of them")
        if not found:
            raise Unavailable(f"no node takes writes of shard {shard} now", retry_after_s=RETRY_AFTER_S)
        return found[0]

    def is_moving(self, shard: str) -> bool:
        """Whether a node gives a shard to another one, which takes writes soon, or has them and is not known for it."""
        held = (one.state_of(shard) for one in self.members)
        return any(one is not None and one.moving is not None and one.moving.role != "copy" for one in held)

    def require_writer(self, shard: str) -> None:
        """Raise as `writer_of`, unless there may be one soon."""
        if not self.is_moving(shard):
            with contextlib.suppress(Conflict):  # a look at one of them may be older than that at the other
                self.writer_of(shard)

    def reader_of(self, shard: str) -> Node:
        """Return the service that writes a shard, which knows the newest, or another one that has it while that does
        not answer. Raises Unavailable if none has."""
        held = self.having(shard)
        if not held:
            raise Unavailable(f"no node answers for shard {shard} now", retry_after_s=RETRY_AFTER_S)
        return next((one for one in held if one.takes_writes_of(shard)), held[0])

    def writer_at(self, node: str) -> Node:
        """Return the service of a node that takes writes. Raises Unavailable if none does."""
        found = next((one for one in self.members if one.name == node and one.writes), None)
        if found is None:
            why = "takes no writes now" if self.is_up(node) else "does not answer"
            raise Unavailable(f"node {node} {why}", retry_after_s=RETRY_AFTER_S)
        return found

    def writers(self) -> dict[str, Node]:
        """Return the service of each node that takes writes. Raises Unavailable while a node has none."""
        return {name: self.writer_at(name) for name in self.settings.nodes}

    def acknowledge(self, shard: str, seq: int) -> None:
        """Note that a write was acknowledged: from now on every answer through this service knows of it."""
        self.notes.know(shard, seq)
        self._written = True
        self._tell()

    def _tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()
