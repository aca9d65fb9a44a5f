"""What travels between nodes: calls of a shard and their replies, several at once, as msgpack.

GET /v1/shards   a WebSocket for calls of the shards of a node (`link.Caller`, `serving.connect`)

`giving` and `taking` move shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from indexes.base.model import Settings
from indexes.base.moving import Moving
from indexes.filters.grammar import Filter
from indexes.parts.learned import RankingSettings, SynonymSettings
from indexes.parts.query import TermCounts
from retrieval.search.calls import ANSWERS as OF_PARTITIONS
from retrieval.search.calls import Call, CallRefused, CallReply, PartitionCall


class AwaitSeq(Call, frozen=True):
    """Answered once the state holds the operation asked for."""


class ReadSeqs(Call, frozen=True):
    """Which operations wrote these documents; missing ones are left out."""

    documents: Sequence[str]


class FindVisible(Call, frozen=True):
    """Which of these documents exist and may be seen by a caller with these groups; None: by one that sees all."""

    needs_newest: ClassVar[bool] = True  # a write follows
    documents: Sequence[str]
    groups: Sequence[str] | None


class CountMatching(Call, frozen=True):
    condition: Filter | None


class ReadFrequent(Call, frozen=True):
    """The most frequent terms, at most so many, and about how many passages have each."""

    most: int


class ReadPage(Call, frozen=True):
    """Documents after a position, in the order they were written, as JSON."""

    after: int
    limit: int
    condition: Filter | None
    text: bool
    vectors: bool
    bytes_max: int


class DocumentsCounted(msgspec.Struct, array_like=True, frozen=True):
    """Those that match. `held` are all passages of the shard."""

    documents: int
    passages: int
    seq: int
    held: int


class DocumentsPage(msgspec.Struct, array_like=True, frozen=True):
    """`following` is the position after which the next page begins; None: the end."""

    documents: list[bytes]
    following: int | None


AnyCall = PartitionCall | AwaitSeq | ReadSeqs | FindVisible | CountMatching | ReadFrequent | ReadPage
ANSWERS: dict[type[Call], Any] = {
    **OF_PARTITIONS,
    AwaitSeq: None,
    ReadFrequent: TermCounts,
    ReadSeqs: dict[str, int],
    FindVisible: list[str],
    CountMatching: DocumentsCounted,
    ReadPage: DocumentsPage,
}


class Addressed(msgspec.Struct, array_like=True, frozen=True):
    """A call of a shard in a state that holds the operation `seq`."""

    shard: str
    seq: int
    call: AnyCall


class Calls(msgspec.Struct, array_like=True, frozen=True):
    """Calls that are answered together; none asks which shards there are. `within_s`: how long the replies are waited
    for; None: not known. `hits` are passages of shards that earlier searches returned, to be counted."""

    calls: list[Addressed]
    within_s: float | None
    hits: list[tuple[str, list[int]]] = []
    request_id: str = ""


class ShardState(msgspec.Struct, frozen=True, kw_only=True):
    """A shard as its node has it. `spoken`: how many of its passages are in each language. `moving`: it takes no writes
    there, because it comes from another node or goes there. `aliases` are those of the collection, in its first shard,
    with the times at which they were given. `origin` is another one if the shard was created again. `job` is the id of
    one that works for it."""

    seq: int
    documents: int
    generation: int
    settings: Settings
    spoken: dict[str, int]
    ranking: RankingSettings | None
    synonyms: SynonymSettings | None
    moving: Moving | None = None
    aliases: dict[str, int] = {}
    origin: str = ""
    job: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether another node has it: it is still copied from there, or was taken over by it."""
        return self.moving is not None and self.moving.role != "given"


class NodeShards(msgspec.Struct, frozen=True, kw_only=True):
    """The shards of a node, by full name. `writes` is false for a replica. `names` are those of its other collections
    and of aliases, `taking` those of shards that it is about to take from another node."""

    shards: dict[str, ShardState]
    writes: bool
    names: list[str] = []
    taking: list[str] = []


class Replies(msgspec.Struct, array_like=True, frozen=True):
    """The replies to calls that came together, or why there are none. `state` is for no calls."""

    refusal: CallRefused | None = None
    calls: list[CallReply] = []
    state: NodeShards | None = None
