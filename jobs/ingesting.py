"""Sends documents to a running service in requests of bounded size, two at a time.

    documents -> batches within the service's limits -> two requests in flight -> acknowledged: durable and searchable

If the service is busy, wait for its Retry-After; if it is unreachable, retry for a minute; if it refuses a document,
send the others. Retries are idempotent: writes are keyed by document id.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from jobs.sources import FirstFailure, SourceDocument, SourceError, SourceReport
from retrieval.client import JSON, Client, ServiceError

DOCUMENTS_PER_REQUEST = 200
CHARS_PER_REQUEST = 200_000  # seconds of embedding: progress is visible, and a retry resends little
REQUESTS_AT_ONCE = 2  # one is embedded while the next is read and chunked; more would only queue
REQUEST_S_MAX = 3600.0  # embedding a document of several megabytes can take many minutes
PATIENCE_S = 600.0
RECONNECT_S = 60.0
WAIT_S, WAIT_S_MIN = 1.0, 0.05  # without Retry-After, and the minimum with one (it may be 0)
ENVELOPE_BYTES = len(b'{"documents":[]}')

BUSY = {429, 503}
AWAY = {0, 408, 502, 504}  # 0: unreachable or disconnected; the others come from proxies in front of it
REFUSED = {400, 413, 422}  # the request's content is at fault; other errors would hit the next request too


@dataclass(slots=True)
class Ingested:
    """What the service acknowledged: `seq` of the last operation, `bytes_read` of the source up to it."""

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
    """The service's limits for one request. The defaults are for services that report none."""

    documents_per_request: int = 1000
    document_bytes: int = 1_048_576
    request_bytes: int = 33_554_432


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document as sent, with what errors and progress report about it."""

    id: str
    source: str
    chars: int
    bytes_read: int
    body: bytes


async def ingest(
    client: Client,
    collection: str,
    documents: Iterable[SourceDocument],
    progress: Progress,
    report: SourceReport | None = None,
    total: Ingested | None = None,
) -> Ingested:
    """Write every document; among equal ids the last one wins. Updates `total` and passes it to `progress` after each
    acknowledgement.

    Documents that the service refuses are recorded in `report` and the others are written; without a report the first
    refusal raises SourceError. Raises ServiceError when the service fails, stays unreachable or makes no progress, and
    whatever reading the documents raises; acknowledged documents remain written.
    """
    report = report if report is not None else FirstFailure()
    limits = msgspec.convert((await client.collection(collection)).get("limits", {}), Limits)
    writer = PatientWriter(client, collection)
    total, begun = total or Ingested(), time.monotonic()
    under_way: deque[tuple[asyncio.Task[None], list[Encoded]]] = deque()

    async def send(batch: list[Encoded]) -> None:
        async for written in write_acceptable(writer, batch, report):
            total.documents += written["documents"]
            total.unchanged += written.get("unchanged", 0)
            total.passages += written["passages"]
            total.tokens += written.get("tokens", 0)
            total.seq = max(total.seq, written["seq"])
            total.seconds = time.monotonic() - begun
            progress(total)

    async def finish_oldest() -> None:
        task, batch = under_way[0]
        await task
        under_way.popleft()
        total.bytes_read = batch[-1].bytes_read
        progress(total)

    try:
        for batch in batches(documents, limits, report):
            ids = {one.id for one in batch}
            # Among equal ids the last document wins, so it must not overtake an earlier one.
            while len(under_way) >= REQUESTS_AT_ONCE or any(
                one.id in ids for _, sent in under_way for one in sent
            ):
                await finish_oldest()
            under_way.append((asyncio.create_task(send(batch)), batch))
        while under_way:
            await finish_oldest()
    finally:
        tasks = [task for task, _ in under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    total.seconds = time.monotonic() - begun
    return total


def batches(
    documents: Iterable[SourceDocument], limits: Limits, report: SourceReport
) -> Iterator[list[Encoded]]:
    """Batches bounded by documents, characters and bytes, with unique ids. Oversized documents go to `report`."""
    batch: list[Encoded] = []
    for document in documents:
        try:
            one = encoded(document, limits)
        except SourceError as error:
            report.fail(error)
            continue
        if batch and (
            len(batch) >= min(DOCUMENTS_PER_REQUEST, limits.documents_per_request)
            or sum(other.chars for other in batch) + one.chars > CHARS_PER_REQUEST
            or request_bytes([*batch, one]) > limits.request_bytes
            or any(one.id == other.id for other in batch)
        ):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def request_bytes(batch: Sequence[Encoded]) -> int:
    return ENVELOPE_BYTES + sum(len(one.body) + 1 for one in batch)  # plus a comma each


def encoded(document: SourceDocument, limits: Limits) -> Encoded:
    """Raises SourceError for a document that is not UTF-8 or exceeds a limit by itself."""
    source = document.source or document.id
    fields = {
        "id": document.id,
        "text": document.text,
        "title": document.title or "",
        "metadata": document.metadata,
    }
    try:
        body = msgspec.json.encode(fields)
        text_bytes = len(document.text.encode())
    except UnicodeEncodeError as error:
        raise SourceError(source, f"holds text that cannot be UTF-8: {error.reason}") from None
    if text_bytes > limits.document_bytes:
        reason = f"text has {text_bytes:,} bytes, at most {limits.document_bytes:,} are allowed"
        raise SourceError(source, reason)
    one = Encoded(document.id, source, len(document.text), document.bytes_read, body)
    if request_bytes([one]) > limits.request_bytes:
        reason = f"has {len(body) + 1:,} bytes as JSON, at most {limits.request_bytes:,} are allowed"
        raise SourceError(source, reason)
    return one


async def write_acceptable(
    writer: PatientWriter, batch: Sequence[Encoded], report: SourceReport
) -> AsyncIterator[JSON]:
    """Write what the service accepts of `batch`, yielding its answers; refusals are recorded in `report`."""
    parts = [batch]
    while parts:
        part = parts.pop()
        try:
            yield await writer.write([msgspec.Raw(one.body) for one in part])
        except ServiceError as error:
            if error.status not in REFUSED:
                raise
            at = refused_place(error, part)
            if at is None:  # an unnamed document, or the total size: bisect
                half = len(part) // 2
                parts += [part[half:], part[:half]]
                continue
            reason = re.sub(r"documents\[\d+\][.:]? ?", "", error.message)
            report.fail(SourceError(part[at].source, reason))
            if len(part) > 1:
                parts.append([*part[:at], *part[at + 1 :]])


def refused_place(error: ServiceError, part: Sequence[Encoded]) -> int | None:
    """Index of the document that the error is about; None if unknown."""
    named = re.search(r"documents\[(\d+)\]", error.param or error.message)
    if named and int(named[1]) < len(part):
        return int(named[1])
    return 0 if len(part) == 1 else None


class PatientWriter:
    """Writes to one collection, retrying while the service is busy or unreachable.

    Gives up with the last ServiceError if nothing was acknowledged for `patience_s` with no other request in flight,
    or if the service was unreachable for `reconnect_s`.
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
        """The service's answer. Raises ServiceError for a refusal and when giving up."""
        busy_since = time.monotonic()
        away_since: float | None = None
        while True:
            self._under_way += 1
            try:
                written = await self._client.write(self._collection, documents)
                self._acknowledged_at = time.monotonic()
                return written
            except ServiceError as error:
                failure = error
            finally:
                self._under_way -= 1
            now = time.monotonic()
            busy = failure.status in BUSY
            if failure.kind == "quarantined" or not (busy or failure.status in AWAY):
                raise failure  # retrying cannot help
            away_since = None if busy else away_since or now
            stuck = now - max(busy_since, self._acknowledged_at) > self._patience_s and not self._under_way
            if (busy and stuck) or (away_since and now - away_since > self._reconnect_s):
                raise failure
            wait_s = WAIT_S if failure.retry_after_s is None else max(failure.retry_after_s, WAIT_S_MIN)
            # Jitter, or clients that were refused together would retry together.
            await asyncio.sleep(wait_s * random.uniform(1.0, 1.25))
