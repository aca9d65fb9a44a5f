"""Sends documents to a running service, in requests of bounded size, a few at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jobs.sources import SourceDocument
from retrieval.client import JSON, Client, ServiceError

DOCUMENTS_PER_REQUEST = 200
CHARS_PER_REQUEST = 2_000_000
REQUESTS_AT_ONCE = 2  # one is embedded while the next is read and chunked; more would only wait
RETRIES = 8

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Ingested:
    """What the service acknowledged. `seq` is the last operation's; `unchanged` documents were there already."""

    documents: int = 0
    unchanged: int = 0
    passages: int = 0
    seq: int = 0


async def ingest(
    client: Client, collection: str, documents: Iterable[SourceDocument], progress: Progress
) -> Ingested:
    """Every document, in order of requests; `progress(documents, source bytes)` after each acknowledgement.

    Raises ServiceError at the first request that is refused, or what reading the documents raises; what was
    acknowledged before stays.
    """
    total = Ingested()
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def send(batch: list[SourceDocument]) -> None:
        try:
            written = await write_patiently(client, collection, [as_json(document) for document in batch])
        except ServiceError as error:
            raise with_sources(error, batch) from None
        finally:
            slots.release()
        total.documents += written["documents"]
        total.unchanged += written["unchanged"]
        total.passages += written["passages"]
        total.seq = max(total.seq, written["seq"])
        progress(total.documents + total.unchanged, batch[-1].bytes_read)

    try:
        async with asyncio.TaskGroup() as group:
            for batch in batches(documents):
                await slots.acquire()
                group.create_task(send(batch))
    except BaseExceptionGroup as failed:
        raise first_of(failed) from None
    return total


def first_of(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first; the others were cancelled for it."""
    first = failed.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


async def write_patiently(client: Client, collection: str, documents: list[JSON]) -> JSON:
    """Write, waiting where the service says that it has too much to do."""
    for attempt in range(RETRIES):
        try:
            return await client.write(collection, documents)
        except ServiceError as error:
            if error.status not in (429, 503) or attempt == RETRIES - 1:
                raise
            await asyncio.sleep(min(2**attempt * 0.25, 8))
    raise AssertionError("unreachable")


def with_sources(error: ServiceError, batch: Sequence[SourceDocument]) -> ServiceError:
    """The service names documents by their place in the request; the user knows them by file."""

    def source(match: re.Match[str]) -> str:
        at = int(match[1])
        return batch[at].source if at < len(batch) else match[0]

    message = re.sub(r"documents\[(\d+)\]", source, error.message)
    return ServiceError(message, status=error.status, kind=error.kind, param=error.param)


def batches(documents: Iterable[SourceDocument]) -> Iterator[list[SourceDocument]]:
    """Bounded by number and by characters."""
    batch: list[SourceDocument] = []
    chars = 0
    for document in documents:
        if batch and (len(batch) >= DOCUMENTS_PER_REQUEST or chars + len(document.text) > CHARS_PER_REQUEST):
            yield batch
            batch, chars = [], 0
        batch.append(document)
        chars += len(document.text)
    if batch:
        yield batch


def as_json(document: SourceDocument) -> JSON:
    return {
        "id": document.id,
        "text": document.text,
        "title": document.title or "",
        "metadata": document.metadata,
    }
