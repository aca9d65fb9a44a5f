"""What travels between nodes: calls of a shard and their replies, several at once, as msgpack.

GET /v1/shards   a WebSocket for calls of the shards of a node (`link.Caller`, `serving.connect`)

`giving` and `taking` move shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from indexes.base.errors import NearlineError, Unavailable
from indexes.base.model import Floats, Ranking, Settings, StoredPassage
from indexes.base.moving import Moving
from indexes.filters.grammar import Filter
from indexes.parts.learned import RankingSettings, SynonymSettings
from indexes.parts.query import Query, TermCounts
from indexes.reading.facets import FacetCounts, FacetQuery
from retrieval.search.shard import (
    Ahead,
    Ask,
    DocumentRead,
    Example,
    Fetched,
    Follow,
    Followed,
    Rivals,
    Searched,
    What,
)
from retrieval.wire.errors import ErrorDetail, error_of, type_name


class Call(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """One call of a shard."""


class SearchShard(Call, frozen=True):
    """The first `likely` passages of each ranking come along: most hits are among them."""

    ask: Ask
    likely: int = 0


class CountTerms(Call, frozen=True):
    query: Query


class Fetch(Call, frozen=True):
    ids: Sequence[int]
    what: What


class CountFacets(Call, frozen=True):
    condition: Filter | None
    asked: Sequence[FacetQuery]


class ReadExamples(Call, frozen=True):
    documents: Sequence[str]


class ScanShard(Call, frozen=True):
    vectors: Floats
    depth: int
    condition: Filter | None


class ReadDocument(Call, frozen=True):
    document: str
    alike: int


class FollowPassages(Call, frozen=True):
    asked: Follow


class CountAhead(Call, frozen=True):
    rivals: Rivals


class AwaitSeq(Call, frozen=True):
    """Answered once the state holds the operation asked for."""


class ReadSeqs(Call, frozen=True):
    """Which operations wrote these documents; missing ones are left out."""

    documents: Sequence[str]


class FindVisible(Call, frozen=True):
    """Which of these documents exist and may be seen by a caller with these groups; None: by one that sees all."""

    documents: Sequence[str]
    groups: Sequence[str] | None


class CountMatching(Call, frozen=True):
    condition: Filter | None


class ReadPage(Call, frozen=True):
    """Documents after a position, in the order they were written, as JSON."""

    after: int
    limit: int
    condition: Filter | None
    text: bool
    vectors: bool
    bytes_max: int


class ShardSearched(msgspec.Struct, array_like=True, frozen=True):
    """What was found, and the passages that come along."""

    searched: Searched
    passages: Mapping[int, StoredPassage]


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


AnyCall = (
    SearchShard
    | CountTerms
    | Fetch
    | CountFacets
    | ReadExamples
    | ScanShard
    | ReadDocument
    | FollowPassages
    | CountAhead
    | AwaitSeq
    | ReadSeqs
    | FindVisible
    | CountMatching
    | ReadPage
)
ANSWERS: dict[type[Call], Any] = {
    SearchShard: ShardSearched,
    CountTerms: TermCounts,
    Fetch: Fetched,
    CountFacets: list[FacetCounts],
    ReadExamples: list[Example | None],
    ScanShard: list[Ranking],
    ReadDocument: DocumentRead,
    FollowPassages: Followed,
    CountAhead: Ahead,
    AwaitSeq: None,
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


class CallRefused(msgspec.Struct, array_like=True, frozen=True):
    """Why a call has no answer: the kind of the error as on the wire, and what it says."""

    kind: str
    message: str
    param: str | None = None
    retry_after_s: float = 1.0

    @staticmethod
    def of(error: NearlineError) -> CallRefused:
        wait_s = error.retry_after_s if isinstance(error, Unavailable) else 1.0
        return CallRefused(type_name(type(error)), error.message, error.param, wait_s)

    @property
    def error(self) -> NearlineError:
        error = error_of(ErrorDetail(self.kind, self.message, self.param))
        if isinstance(error, Unavailable):
            error.retry_after_s = self.retry_after_s
        return error


class CallReply(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a call, packed, or why there is none. `seq` is the last operation of the state that answered; with
    a refusal, the last one of a shard that has lost later ones or was given to another node, else 0."""

    seq: int
    answer: bytes | None
    refusal: CallRefused | None = None


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
    def is_copy(self) -> bool:
        return self.moving is not None and self.moving.role == "copy"


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
