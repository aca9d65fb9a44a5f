"""Sends documents to a running service, in requests of bounded size, a few at a time.

    documents -> batches by the service's limits -> two requests at once -> acknowledged: durable and searchable
                                                      |
                       busy: wait as long as it asks; away: try for a minute; a document refused: the others go on

A request that is sent twice does no harm: the id says which document is written.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from jobs.sources import FirstFailure, SourceDocument, SourceError, SourceReport
from retrieval.client import JSON, Client, ServiceError

DOCUMENTS_PER_REQUEST = 200
CHARS_PER_REQUEST = (
    200_000  # seconds of embedding: progress can be seen, and little is sent again after a failure
)
REQUESTS_AT_ONCE = 2  # one is embedded while the next is read and chunked; more would only wait
REQUEST_S_MAX = 3600.0  # one document of megabytes may be embedded for many minutes
PATIENCE_S = 600.0
RECONNECT_S = 60.0
WAIT_S, WAIT_S_MIN = 1.0, 0.05  # where the service does not say how long, and where it says not at all
ENVELOPE_BYTES = len(b'{"documents":[]}')

BUSY = {429, 503}
AWAY = {0, 408, 502, 504}  # 0: not reached, or the connection broke; the others come from proxies before it
REFUSED = {400, 413, 422}  # for what is in the request; any other error would meet the next request too


@dataclass(slots=True)
class Ingested:
    """What the service acknowledged. `seq` is the last operation's, `bytes_read` those of the source up to there."""

    documents: int = 0
    unchanged: int = 0
    passages: int = 0
    tokens: int = 0
    seq: int = 0
    bytes_read: int = 0
    seconds: float = 0.0

    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


Progress = Callable[[Ingested], None]


class Limits(msgspec.Struct, frozen=True):
    """What the service takes in one request. The defaults are for one that does not say."""

    documents_per_request: int = 1000
    document_bytes: int = 1_048_576
    request_bytes: int = 33_554_432


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document as it is sent, and what is needed to speak of it."""

    id: str
    source: str
    chars: int
    size: int
    """Bytes in a request, with the comma."""
    bytes_read: int
    body: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch under way, and where in the source it begins, in bytes."""

    begins: int
    batch: list[Encoded]


async def ingest(
    client: Client,
    collection: str,
    documents: Iterable[SourceDocument],
    progress: Progress,
    report: SourceReport | None = None,
) -> Ingested:
    """Every document; of those with the same id the last one. `progress` is called after each acknowledgement.

    Documents that the service refuses are taken down in `report`, and the others are written; without a report the
    first of them raises SourceError. Raises ServiceError when the service fails, stays away or makes no progress, and
    what reading the documents raises; what was acknowledged before stays.
    """
    report = report if report is not None else FirstFailure()
    limits = msgspec.convert((await client.collection(collection)).get("limits", {}), Limits)
    writer = PatientWriter(client, collection)
    total, begun = Ingested(), time.monotonic()
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)
    running: set[asyncio.Task[None]] = set()
    under_way: dict[int, Sent] = {}  # by number, in order

    async def send(number: int, sent: Sent) -> None:
        try:
            async for written in write_acceptable(writer, sent.batch, report):
                total.documents += written["documents"]
                total.unchanged += written.get("unchanged", 0)
                total.passages += written["passages"]
                total.tokens += written.get("tokens", 0)
                total.seq = max(total.seq, written["seq"])
                total.seconds = time.monotonic() - begun
                progress(total)
        finally:
            slots.release()
        del under_way[number]
        oldest = next(iter(under_way.values()), None)
        total.bytes_read = oldest.begins if oldest else reached
        progress(total)

    reached = 0  # in the source, with everything that was sent
    try:
        async with asyncio.TaskGroup() as group:
            for number, batch in enumerate(batches(documents, limits, report)):
                await slots.acquire()
                ids = {one.id for one in batch}
                if running and any(one.id in ids for sent in under_way.values() for one in sent.batch):
                    await asyncio.wait(running)  # the last one of an id counts, so it is sent last
                under_way[number] = Sent(reached, batch)
                reached = batch[-1].bytes_read
                task = group.create_task(send(number, under_way[number]))
                running.add(task)
                task.add_done_callback(running.discard)
    except BaseExceptionGroup as failed:
        raise first_of(failed) from None
    total.seconds = time.monotonic() - begun
    return total


def first_of(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first; the others were cancelled for it."""
    first = failed.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


def batches(
    documents: Iterable[SourceDocument], limits: Limits, report: SourceReport
) -> Iterator[list[Encoded]]:
    """Bounded by number, characters and bytes; no id comes twice in one. What no request can hold fails at once."""
    batch: list[Encoded] = []
    chars, size = 0, ENVELOPE_BYTES
    for document in documents:
        try:
            one = encoded(document, limits)
        except SourceError as error:
            report.fail(error)
            continue
        if batch and (
            len(batch) >= min(DOCUMENTS_PER_REQUEST, limits.documents_per_request)
            or chars + one.chars > CHARS_PER_REQUEST
            or size + one.size > limits.request_bytes
            or any(one.id == other.id for other in batch)
        ):
            yield batch
            batch, chars, size = [], 0, ENVELOPE_BYTES
        batch.append(one)
        chars += one.chars
        size += one.size
    if batch:
        yield batch


def encoded(document: SourceDocument, limits: Limits) -> Encoded:
    """Raises SourceError if no request may hold it."""
    source = document.source or document.id
    body = {
        "id": document.id,
        "text": document.text,
        "title": document.title or "",
        "metadata": document.metadata,
    }
    try:
        content = msgspec.json.encode(body)
        text_bytes = len(document.text.encode())
    except UnicodeEncodeError as error:
        raise SourceError(source, f"holds text that cannot be UTF-8: {error.reason}") from None
    if text_bytes > limits.document_bytes:
        raise SourceError(
            source, f"text has {text_bytes:,} bytes, at most {limits.document_bytes:,} are allowed"
        )
    size = len(content) + 1
    if size + ENVELOPE_BYTES > limits.request_bytes:
        raise SourceError(source, f"has {size:,} bytes as JSON, at most {limits.request_bytes:,} are allowed")
    return Encoded(document.id, source, len(document.text), size, document.bytes_read, msgspec.Raw(content))


async def write_acceptable(
    writer: PatientWriter, batch: Sequence[Encoded], report: SourceReport
) -> AsyncIterator[JSON]:
    """Answers to writing all of `batch` that the service accepts; what it refuses is taken down in `report`."""
    parts = [batch]
    while parts:
        part = parts.pop()
        try:
            yield await writer.write([one.body for one in part])
        except ServiceError as error:
            if error.status not in REFUSED:
                raise
            at = refused_place(error, part)
            if at is None:  # one of them, then, or all together
                half = len(part) // 2
                parts += [part[half:], part[:half]]
                continue
            reason = re.sub(r"documents\[\d+\][.:]? ?", "", error.message)
            report.fail(SourceError(part[at].source, reason))
            if len(part) > 1:
                parts.append([*part[:at], *part[at + 1 :]])


def refused_place(error: ServiceError, part: Sequence[Encoded]) -> int | None:
    """Which document the service means."""
    named = re.search(r"documents\[(\d+)\]", error.param or error.message)
    if named and int(named[1]) < len(part):
        return int(named[1])
    return 0 if len(part) == 1 else None


class PatientWriter:
    """Writes to one collection, waiting while the service is busy and trying again while it is away.

    It gives up, with the service's last ServiceError, where nothing was acknowledged for `patience_s` though nothing
    else is under way, or where the service was away for `reconnect_s`.
    """

    def __init__(
        self,
        client: Client,
        collection: str,
        *,
        patience_s: float = PATIENCE_S,
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        self._client = client
        self._collection = collection
        self._patience_s = patience_s
        self._reconnect_s = reconnect_s
        self._under_way = 0
        self._acknowledged_at = time.monotonic()

    async def write(self, documents: Sequence[JSON | msgspec.Raw]) -> JSON:
        """The service's answer. Raises ServiceError for a refusal, and when it gives up."""
        busy_since = time.monotonic()
        away_since: float | None = None
        while True:
            self._under_way += 1
            try:
                written = await self._client.write(self._collection, documents)
            except ServiceError as error:
                failure = error
            else:
                self._acknowledged_at = time.monotonic()
                return written
            finally:
                self._under_way -= 1
            now = time.monotonic()
            if failure.kind == "quarantined":  # waiting mends nothing
                raise failure
            if failure.status in BUSY:
                away_since = None
                stuck_s = now - max(busy_since, self._acknowledged_at)
                if stuck_s > self._patience_s and not self._under_way:
                    raise failure
            elif failure.status in AWAY:
                away_since = away_since or now
                if now - away_since > self._reconnect_s:
                    raise failure
            else:
                raise failure
            wait_s = WAIT_S if failure.retry_after_s is None else max(failure.retry_after_s, WAIT_S_MIN)
            # Jitter, because those who were refused together would come back together.
            await asyncio.sleep(wait_s * random.uniform(1.0, 1.25))
