"""Bulk ingestion: sends documents to a service in requests of bounded size, two at a time.

    documents -> batches within the service's limits -> two requests in flight -> acknowledged: durable and searchable

A batch has as much text as the service writes in a few seconds, at the pace of its answers so far; a document that
takes longer is sent alone. Requests are repeated while the service is busy or unreachable; if it refuses a document,
the others are still sent. Repeating is idempotent: writes are keyed by document id, and unchanged documents cost the
service almost nothing.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from retrieval.clients.errors import ServiceError
from retrieval.clients.replies import JSON
from retrieval.clients.transport import (
    Patience,
    ServiceConnection,
    encode_json,
    path_of,
)

if TYPE_CHECKING:
    from retrieval.clients.wire.records import RequestLimits, Written
    from retrieval.clients.wire.requests import SentDocument

DOCUMENTS_PER_REQUEST = 200  # to be embedded
VECTORS_PER_REQUEST = 1000  # documents that bring theirs: the service writes thousands a second
CHARS_PER_REQUEST = 200_000  # a retry resends no more than this
CHARS_AT_FIRST, CHARS_AT_LEAST = 20_000, 2_000  # before the service's pace is known, and if it is slow
REQUEST_S = 5.0  # target time of a request, so that progress is visible
REQUESTS_AT_ONCE = 2  # one is embedded while the next is read and chunked; more would just queue
REQUEST_S_MAX = 3600.0  # embedding a document of several megabytes can take many minutes
BUSY_S = 600.0
AWAY_S = 60.0
ENVELOPE_BYTES = len(b'{"documents":[]}')
# For services that do not report their limits.
LIMITS: RequestLimits = {
    "documents_per_request": 1000,
    "document_bytes": 1_048_576,
    "request_bytes": 33_554_432,
    "metadata_keys": 64,
}
REFUSED = {400, 413, 422}  # the request's content is at fault; other errors would hit the next request too


@dataclass(slots=True)
class Ingested:
    """What the service has acknowledged.

    The first `read` documents of the iterable are all settled: written, unchanged or refused. `last_id` is the id of
    the last one. To resume after an interruption, start after them with the same total: `ingest(collection,
    itertools.islice(documents, done.read, None), total=done)`. `seq` is the sequence number of the last operation.
    """

    documents: int = 0
    unchanged: int = 0
    refused: int = 0
    passages: int = 0
    tokens: int = 0
    seq: int | str = 0
    read: int = 0
    last_id: str | int | None = None
    seconds: float = 0.0

    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """A document that cannot be written, and why. `position` is its index in the iterable, from 0."""

    position: int
    id: str | int
    reason: str


class RefusedDocument(ServiceError):
    """A document cannot be written; see `refused`."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"document {refused.id!r}: {refused.reason}", status=422, kind="invalid_input")
        self.refused = refused

    def __reduce__(self) -> tuple[type[RefusedDocument], tuple[Refused]]:
        return type(self), (self.refused,)


OnProgress = Callable[[Ingested], None]
OnRefused = Callable[[Refused], None]
Steps = Generator[Coroutine[Any, Any, Any], Any, Ingested]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document as it is sent, with what errors report about it."""

    position: int
    id: str | int
    chars: int
    body: bytes
    embedded: bool = True
    """Whether the service embeds its text."""


def plan_ingestion(
    connection: ServiceConnection,
    collection: str,
    documents: Iterable[SentDocument | Mapping[str, Any]],
    *,
    requests: int,
    on_progress: OnProgress,
    on_refused: OnRefused | None,
    total: Ingested | None,
    limits: RequestLimits | None = None,
    patience: Patience | None = None,
) -> Steps:
    """Yield the coroutines of an ingestion; await each before asking for the next. This way the caller's own thread
    reads the documents."""
    patience = patience or bulk_patience()
    write = partial(connection.answer, "POST", path_of(collection, "documents"), patience=patience)

    def learn(chars: int, seconds: float) -> None:
        pace = chars / max(seconds, 0.001)
        connection.chars_per_s = (pace + (connection.chars_per_s or pace)) / 2

    bulk = Bulk(write, total or Ingested(), requests, on_progress, on_refused or stop, learn)
    try:
        if limits is None:
            limits = limits_in((yield connection.answer("GET", path_of(collection), patience=patience)))
        numbered = enumerate(documents, bulk.total.read)
        for batch in batches(numbered, limits, bulk.unsent.append, lambda: chars_per_request(connection)):
            yield bulk.send(batch)
        yield bulk.finish()
    except BaseException:
        yield bulk.stop()
        raise
    return bulk.total


def limits_in(collection: Mapping[str, Any]) -> RequestLimits:
    """Return the limits in a collection's description, with defaults for missing ones."""
    limits: RequestLimits = {**LIMITS, **collection.get("limits", {})}
    return limits


def chars_per_request(connection: ServiceConnection) -> int:
    """Return how much text the service writes in REQUEST_S, within bounds."""
    if connection.chars_per_s is None:
        return CHARS_AT_FIRST
    return min(max(int(connection.chars_per_s * REQUEST_S), CHARS_AT_LEAST), CHARS_PER_REQUEST)


def bulk_patience() -> Patience:
    """Return the patience for the requests of one ingestion, and those before it."""
    return Patience(busy_s=BUSY_S, away_s=AWAY_S, try_s=REQUEST_S_MAX)


def stop(refused: Refused) -> None:
    raise RefusedDocument(refused)


class Bulk:
    """The requests in flight, oldest first."""

    def __init__(
        self,
        write: Callable[[JSON], Coroutine[Any, Any, Any]],
        total: Ingested,
        requests: int,
        on_progress: OnProgress,
        on_refused: OnRefused,
        learn: Callable[[int, float], None],
    ) -> None:
        """`learn` is called with the number of characters that the service wrote and the seconds it took."""
        self.total = total
        self.unsent: deque[Refused] = deque()  # read but refused by this client
        self._last_unsent: Refused | None = None
        self._request = write
        self._requests = requests
        self._on_progress = on_progress
        self._on_refused = on_refused
        self._learn = learn
        self._begun = time.monotonic() - total.seconds
        self._under_way: deque[tuple[asyncio.Task[None], list[Encoded]]] = deque()

    def _refuse(self, refused: Refused) -> None:
        self._on_refused(refused)
        self.total.refused += 1

    def _refuse_unsent(self) -> None:
        while self.unsent:
            self._last_unsent = self.unsent.popleft()
            self._refuse(self._last_unsent)

    async def send(self, batch: list[Encoded]) -> None:
        """Send a batch; returns once its request is in flight."""
        self._refuse_unsent()
        ids = {one.id for one in batch}
        # The last document with an id wins, so it must not overtake an earlier one.
        while len(self._under_way) >= self._requests or any(
            one.id in ids for _, sent in self._under_way for one in sent
        ):
            await self._finish_oldest()
        self._under_way.append((asyncio.create_task(self._write(batch)), batch))

    async def finish(self) -> None:
        while self._under_way:
            await self._finish_oldest()
        self._refuse_unsent()
        last = self._last_unsent
        if last is not None and last.position >= self.total.read:
            self.total.read, self.total.last_id = last.position + 1, last.id
        self.total.seconds = time.monotonic() - self._begun

    async def stop(self) -> None:
        tasks = [task for task, _ in self._under_way]
        for task in tasks:
            task.cancel()
        # Those that a closed client has ended are of an event loop that is no more.
        await asyncio.gather(*(task for task in tasks if not task.done()), return_exceptions=True)

    async def _finish_oldest(self) -> None:
        task, batch = self._under_way[0]
        await task
        self._under_way.popleft()
        self.total.read, self.total.last_id = batch[-1].position + 1, batch[-1].id
        self._progress()

    async def _write(self, batch: list[Encoded]) -> None:
        """Write the documents of the batch that the service accepts."""
        parts: list[Sequence[Encoded]] = [batch]
        while parts:
            part = parts.pop()
            try:
                body = {"documents": [msgspec.Raw(one.body) for one in part]}
                written: Written = await self._request(body)
                if not written.get("unchanged"):  # unchanged documents cost no time
                    self._learn(sum(one.chars for one in part), written.get("took_ms", 0) / 1000)
                self._count(written)
            except ServiceError as error:
                if error.status not in REFUSED:
                    raise
                at = refused_place(error, part)
                if at is None:  # the error names no document: bisect
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                    continue
                self._refuse(Refused(part[at].position, part[at].id, reason_of(error, part)))
                if len(part) > 1:
                    parts.append([*part[:at], *part[at + 1 :]])

    def _count(self, written: Written) -> None:
        total = self.total
        total.documents += written["documents"]
        total.unchanged += written.get("unchanged", 0)
        total.passages += written["passages"]
        total.tokens += written.get("tokens", 0)
        total.seq = later_seq(total.seq, written["seq"])
        self._progress()

    def _progress(self) -> None:
        self.total.seconds = time.monotonic() - self._begun
        self._on_progress(self.total)


def later_seq(one: int | str, other: int | str) -> int | str:
    """Return the later of two positions in a log; of a collection in several shards, the later one of each."""
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other)
    shards: dict[int, int] = {}
    for token in (one, other):
        for part in token.split("-") if isinstance(token, str) else ():
            shard, seq = map(int, part.split("."))
            shards[shard] = max(seq, shards.get(shard, 0))
    return "-".join(f"{shard}.{seq}" for shard, seq in sorted(shards.items()))


def batches(
    documents: Iterable[tuple[int, SentDocument | Mapping[str, Any]]],
    limits: RequestLimits,
    refuse: OnRefused,
    chars_max: Callable[[], int] = lambda: CHARS_PER_REQUEST,
) -> Iterator[list[Encoded]]:
    """Yield documents with their positions in batches bounded by number, characters and bytes, with unique ids.
    Oversized documents are refused. `chars_max` may change from batch to batch."""
    batch: list[Encoded] = []
    ids: set[str | int] = set()
    chars = size = embedded = 0
    documents_max = min(VECTORS_PER_REQUEST, limits["documents_per_request"])
    for position, document in documents:
        one = encode(position, document, limits)
        if isinstance(one, Refused):
            refuse(one)
            continue
        if batch and (
            len(batch) >= documents_max
            or embedded + one.embedded > DOCUMENTS_PER_REQUEST
            or chars + one.chars > chars_max()
            or size + request_bytes([one]) > limits["request_bytes"]
            or one.id in ids
        ):
            yield batch
            batch, ids, chars, size, embedded = [], set(), 0, 0, 0
        batch.append(one)
        ids.add(one.id)
        chars += one.chars
        embedded += one.embedded
        size += len(one.body) + 1
    if batch:
        yield batch


def request_bytes(batch: Sequence[Encoded]) -> int:
    return ENVELOPE_BYTES + sum(len(one.body) + 1 for one in batch)  # plus a comma each


def encode(position: int, document: object, limits: RequestLimits) -> Encoded | Refused:
    """Encode a document, or return Refused if it is none, is not UTF-8 or exceeds a limit by itself."""
    document_id: Any = document.get("id") if isinstance(document, Mapping) else None
    text: Any = (document.get("text") or "") if isinstance(document, Mapping) else ""

    def refused(reason: str) -> Refused:
        return Refused(position, document_id, reason)

    if not isinstance(document, Mapping):
        return refused(f"a document is an object, found {type(document).__name__}")
    if isinstance(document_id, Collection) and not isinstance(document_id, str | bytes):
        return refused(f"id is a string or an integer, found {type(document_id).__name__}")
    if not isinstance(text, str):
        return refused(f"text is a string, found {type(text).__name__}")
    if not is_finite(document.get("metadata")):
        return refused("metadata has a number that JSON does not know (NaN or infinity)")
    try:
        vector = document.get("vector")
        if vector is not None and not isinstance(vector, str):
            document = {**document, "vector": packed(vector)}
        body = encode_json(document)
        text_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        return refused(f"contains text that is not valid Unicode: {error.reason}")
    except (TypeError, ValueError) as error:
        return refused(str(error))
    if text_bytes > limits["document_bytes"]:
        return refused(f"text has {text_bytes:,} bytes, at most {limits['document_bytes']:,} are allowed")
    one = Encoded(position, document_id, len(text), body, vector is None)
    if request_bytes([one]) > limits["request_bytes"]:
        return refused(
            f"has {len(body) + 1:,} bytes as JSON, at most {limits['request_bytes']:,} are allowed"
        )
    return one


def packed(vector: Any) -> str:
    """Return base64 of a vector's numbers as float32, little-endian: a fourth of its JSON, and quicker to read.

    Raises ValueError or TypeError for what is no vector.
    """
    try:
        if not (isinstance(vector, list | tuple | array) or hasattr(vector, "tolist")):
            raise TypeError
        numbers = array("f", vector)
    except TypeError:
        raise TypeError(
            f"vector is not a list of numbers, nor base64 as a string: {type(vector).__name__}"
        ) from None
    except OverflowError:
        raise ValueError("vector holds a number that is too large for 32 bits") from None
    if not all(map(math.isfinite, numbers)):
        at = next(at for at, number in enumerate(numbers) if not math.isfinite(number))
        raise ValueError(f"vector[{at}] is not finite, or too large for 32 bits: {vector[at]}")
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def is_finite(value: object) -> bool:
    """Whether all numbers of a JSON value are finite; others would be sent as null."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(is_finite, value))


def reason_of(error: ServiceError, part: Sequence[Encoded]) -> str:
    """Return what is wrong with the document, without its own place in the request. Others that are named get their
    positions."""

    def position(index: re.Match[str]) -> str:
        return str(part[int(index[0])].position)

    reason = re.sub(r"documents\[\d+\][.:]? ?", "", error.message, count=1)
    return re.sub(r"(?<=documents\[)\d+", position, reason)


def refused_place(error: ServiceError, part: Sequence[Encoded]) -> int | None:
    """Return the index of the document that the error is about, or None if unknown."""
    named = re.search(r"documents\[(\d+)\]", error.param or error.message)
    if named and int(named[1]) < len(part):
        return int(named[1])
    return 0 if len(part) == 1 else None
