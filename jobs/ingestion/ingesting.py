"""Sends documents read from files to a running service by bulk ingestion; refusals name the place in the file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import nearline
from jobs.sources import FirstFailure, SourceDocument, SourceError, SourceReport
from nearline import AsyncClient, CollectionBody, Refused, bulk_patience
from retrieval.clients.bulk import REQUESTS_AT_ONCE
from retrieval.clients.wire.records import RequestLimits


@dataclass(slots=True)
class IngestProgress(nearline.Ingested):
    """What the service acknowledged, and the `bytes_read` of the source so far. `waiting_for` is the source of the
    oldest unacknowledged document, which has waited for `waiting_s`, and `waits_because` why it is sent again, if it
    is."""

    bytes_read: int = 0
    waiting_for: str = ""
    waiting_s: float = 0.0
    waits_because: str = ""


Progress = Callable[[IngestProgress], None]
TELL_EVERY_S = 1.0  # also without acknowledgments: one large document can take minutes


async def find_collection(
    client: AsyncClient, name: str, create: Mapping[str, Any] | None, progress: Progress
) -> CollectionBody:
    """Return the collection. If it does not exist, it is created with the settings `create`, unless these are None."""
    async with waiting_for_service(client, progress):
        if create is None:
            return await client.collection(name)
        return await client.ensure_collection(name, **create)


@contextlib.asynccontextmanager
async def waiting_for_service(client: AsyncClient, progress: Progress) -> AsyncIterator[None]:
    """Let the requests within the block wait for a busy or unreachable service as those of `ingest` do, and tell
    `progress` so."""
    connection, patience, begun = client.connection, bulk_patience(), time.monotonic()

    def tell() -> None:
        waited = time.monotonic() - begun
        progress(
            IngestProgress(waiting_for="the service", waiting_s=waited, waits_because=patience.waits_because)
        )

    before, connection.patience = connection.patience, lambda: patience
    try:
        async with call_regularly(tell):
            yield
    finally:
        connection.patience = before


async def ingest(
    client: AsyncClient,
    collection: str,
    documents: Iterable[SourceDocument],
    progress: Progress,
    report: SourceReport | None = None,
    total: IngestProgress | None = None,
    requests: int = REQUESTS_AT_ONCE,
    limits: RequestLimits | None = None,
) -> IngestProgress:
    """Write every document, `requests` at a time; among equal ids the last one wins. Updates `total` and passes it to
    `progress` after each acknowledgment, and every second.

    Documents that cannot be written are recorded in `report` and the others are written; without a report the first one
    raises SourceError. Raises ServiceError if the service fails, stays unreachable or makes no progress, and any
    error of the documents' iterator; acknowledged documents remain written.
    """
    report, done = report if report is not None else FirstFailure(), total or IngestProgress()
    places: dict[int, tuple[str, int]] = {}  # source and bytes read of unsettled documents

    def to_requests() -> Iterator[Mapping[str, Any]]:
        for position, document in enumerate(documents, done.read):
            places[position] = document.source or document.id, document.bytes_read
            yield to_request(document)

    def note_refusal(one: Refused) -> None:
        report.fail(SourceError(places[one.position][0], one.reason))

    def advance(_: nearline.Ingested) -> None:
        for position in [one for one in places if one < done.read]:
            done.bytes_read = places.pop(position)[1]
        progress(done)

    def tell() -> None:
        oldest = min(places, default=None)
        if oldest != waited[0]:
            waited[:] = oldest, time.monotonic()
        done.waiting_for = "" if oldest is None else places[oldest][0]
        done.waiting_s = time.monotonic() - waited[1]
        done.waits_because = patience.waits_because
        progress(done)

    waited: list[Any] = [
        None,
        time.monotonic(),
    ]  # the oldest unsettled document, and since when it is the oldest
    patience = bulk_patience()
    async with call_regularly(tell):
        await client.ingest(
            collection,
            to_requests(),
            requests=requests,
            on_progress=advance,
            on_refused=note_refusal,
            total=done,
            limits=limits,
            patience=patience,
        )
    return done


def to_request(document: SourceDocument) -> Mapping[str, Any]:
    """Return a document as the API takes it."""
    return {
        "id": document.id,
        "text": document.text,
        "title": document.title or "",
        "metadata": document.metadata,
        **({} if document.expires_at is None else {"expires_at": document.expires_at}),
        **({"language": document.language} if document.language else {}),
        **({} if document.vector is None else {"vector": document.vector}),
    }


@contextlib.asynccontextmanager
async def call_regularly(act: Callable[[], None]) -> AsyncIterator[None]:
    """Call `act` every TELL_EVERY_S until the block ends."""

    async def run() -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            act()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
