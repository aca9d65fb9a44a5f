"""What travels between the service and a search process: a length in four bytes, then one of these as msgpack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from indexes.base.model import Spared, Sparing
from indexes.base.work import WorkBudget
from indexes.parts.learned import RankingSettings
from retrieval.base.settings import Config
from retrieval.search.calls import CallRefused, CallReply
from retrieval.search.stages import CachedAnswer

LENGTH_BYTES = 4


class Frame(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A value that travels."""


class Configure(Frame, frozen=True):
    """The settings from now on."""

    config: Config
    data: str


class Opened(msgspec.Struct, array_like=True, frozen=True):
    """A collection as the service has it open: `opening` tells apart two of one name, `generation` is the live one, and
    `tuned_ms` says when its search settings were chosen, 0 if they were not."""

    name: str
    opening: bytes
    generation: int
    tuned_ms: int


class FollowCollection(Frame, frozen=True):
    """Open this collection, and load its live generation. Answered by `Following`."""

    collection: Opened


class CatchUp(Frame, frozen=True):
    """Bring a collection to the last commit while no search waits. Answered by `Reached`."""

    name: str


class Forget(Frame, frozen=True):
    """Close a collection. If it is `withheld`, also one that is being opened, and the answer is `Forgotten` once none
    of its files is open."""

    name: str
    withheld: bool = True


class AskSearch(Frame, frozen=True):
    """A search. `deadline` is on the monotonic clock, which all processes of a machine share.

    request       JSON
    seq           the operation that the searched state must hold
    documents     how many there are
    synonyms_ms   when the collection's synonyms were set
    caller        the access key, the tenant, and the groups of the caller
    vector        that of the text, float32, if it is known
    sparing       how it may spare the cold tier
    work, taken   what the searches of the request may still do, and how many bytes of hits they have
    param         what the caller asked too much of if the hits are too large
    """

    id: int
    collection: str
    request: bytes
    seq: int
    documents: int
    ranking: RankingSettings | None
    synonyms_ms: int | None
    caller: tuple[str, str, tuple[str, ...] | None]
    strained: bool
    counted: bool
    deadline: float | None
    vector: bytes | None
    sparing: Sparing | None
    work: WorkBudget
    taken: int
    bytes_max: int
    param: str | None


class AskShard(Frame, frozen=True):
    """Calls of a shard, packed, that another service has sent. The rest is as of `AskSearch`."""

    id: int
    collection: str
    calls: bytes
    seq: int
    documents: int
    key: str
    deadline: float | None


class Leave(Frame, frozen=True):
    """The caller of a search has left. It is still replied to, as usual or with a `SearchFailure`."""

    id: int


class Begun(Frame, frozen=True):
    """The search that is worked on now, where that is not the oldest of those that were not replied to."""

    id: int


class Alive(Frame, frozen=True):
    """A sign of life during long work."""


class SearchReply(Frame, frozen=True):
    """The answer to `AskSearch`, and the state that was searched. `hits` are the passages to count, `vector` that of
    the text if it was embedded here, `spans` the stages on the monotonic clock, and `spared` what the cold policy
    learns from it."""

    id: int
    answer: CachedAnswer
    vanished: bool
    grounds: bytes
    generation: int
    seq: int
    content: bytes
    spans: list[tuple[float, float, str]]
    cpu_s: float
    vector: bytes | None
    work: WorkBudget
    taken: int
    hits: list[int]
    spared: Spared | None


class ShardReply(Frame, frozen=True):
    """The answers to `AskShard`, in order, from one state. The rest is as of `SearchReply`."""

    id: int
    seq: int
    replies: list[CallReply]
    hits: list[int]
    spared: list[Spared]


class SearchFailure(Frame, frozen=True):
    """Why a search, or calls of a shard, have no answer. `refusal` is None if the process cannot answer, and another
    one may."""

    id: int
    message: str
    refusal: CallRefused | None = None


class Following(Frame, frozen=True):
    """The collection, as it is searched here now; None if it cannot be."""

    name: str
    collection: Opened | None


class Reached(Frame, frozen=True):
    """The last operation of a collection that is searched here now."""

    name: str
    seq: int


class Forgotten(Frame, frozen=True):
    name: str


AnyAsk = AskSearch | AskShard
Answer = SearchReply | ShardReply
Order = Configure | FollowCollection | CatchUp | Forget | AnyAsk | Leave
Reply = Begun | Alive | Answer | SearchFailure | Following | Reached | Forgotten

ORDERS: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
ENCODER = msgspec.msgpack.Encoder()


def encode_frame(frame: Order | Reply) -> bytes:
    content = bytearray(LENGTH_BYTES)
    ENCODER.encode_into(frame, content, LENGTH_BYTES)
    content[:LENGTH_BYTES] = (len(content) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
    return bytes(content)


class Arriving:
    """The frames in a stream of bytes."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self._decoder = decoder
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the frames that are complete. Raises msgspec.DecodeError."""
        self._held += data
        while len(self._held) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._held[:LENGTH_BYTES], "big")
            if len(self._held) < end:
                return
            content = bytes(self._held[LENGTH_BYTES:end])
            del self._held[:end]
            yield self._decoder.decode(content)
