"""Keeps a collection equal to a folder: `nearline ingest --sync`.

    scan the folder -> files that changed -> read them, claim and send what changed in them -> delete what is gone

1. The collection says which documents it has. What is recorded as written and is not there is written again.
2. A file of the recorded size and time is not opened; one of the recorded digest is not read.
3. Of a file that is read, documents of the recorded digest are not sent, nor are those whose ids another file has. Once
   all others are acknowledged, the file is recorded as done.
4. A document is gone if its file was read whole and lacks it, or is not in a folder that was listed whole. It is
   deleted last, if the caller consents, and if no other file holds it too. Documents that no sync into this collection
   recorded are never deleted.

A run may be killed between any two of these; the next goes on from the record (`sync_record` says why).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import msgspec

from indexes.base.errors import InvalidInput
from jobs.ingestion.ingesting import Ingested, Progress, ingest
from jobs.ingestion.sync_record import Claim, Stamp, SyncRecord
from jobs.sources import (
    FoundFile,
    SourceDocument,
    SourceError,
    SourceOptions,
    SourceReport,
    find_files,
    note_repeated,
    printable,
    read_files,
)
from nearline import AsyncClient, CollectionBody, path_of
from retrieval.clients.wire.records import RequestLimits

EXTRACTION = 3  # raise it when files are to be read again, since what is made of them changed
DOCUMENTS_AT_ONCE, CHARS_AT_ONCE = 1000, 1_000_000  # several requests
RECENT_NS = 2_000_000_000  # a file changed less than this ago may change again within one tick of its clock


@dataclass(slots=True)
class Synced:
    """What one run did, or would do."""

    ingested: Ingested = field(default_factory=Ingested)
    files_changed: int = 0
    files_unchanged: int = 0
    deleted: int = 0
    gone: list[str] = field(default_factory=list)
    """Ids of documents that are gone from the folder and were not deleted."""
    shared: int = 0
    """Documents that are gone from a file and that another file has."""


@dataclass(frozen=True, slots=True)
class Changed:
    found: FoundFile
    stamp: Stamp


@dataclass(slots=True)
class Reading:
    """The file that is being read: its ids so far, and whether all of it could be read and was accepted."""

    changed: Changed
    ids: set[str] = field(default_factory=set)
    repeated: bool = False
    whole: bool = True
    accepted: bool = True


@dataclass(frozen=True, slots=True)
class Unsent:
    """A document that was read, of which file, and the digest of all that is sent."""

    reading: Reading
    document: SourceDocument
    digest: bytes

    @property
    def file(self) -> str:
        return key(self.reading.changed.found)


Consent = Callable[[Sequence[str], int], bool]
"""Whether to delete these documents, out of so many of the folder."""


async def sync(
    client: AsyncClient,
    collection: str,
    folder: Path,
    record: SyncRecord,
    *,
    options: SourceOptions,
    report: SourceReport,
    consent: Consent,
    limits: RequestLimits,
    progress: Progress = lambda _: None,
    dry_run: bool = False,
) -> Synced:
    """Raises InvalidInput for a folder that is empty and was not, ServiceError when the service fails or stays away."""
    run = _Run(client, collection, folder, record, options, report, limits, progress, dry_run)
    if not dry_run:
        await run.once(consent)
        return run.done
    try:
        with record.transaction():
            await run.once(lambda *_: False)
            raise _Undone
    except _Undone:
        return run.done


class _Undone(Exception):
    """Ends a transaction that is not to be kept."""


@dataclass(slots=True)
class _Run:
    client: AsyncClient
    collection: str
    folder: Path
    record: SyncRecord
    options: SourceOptions
    report: SourceReport
    limits: RequestLimits
    progress: Progress
    dry_run: bool
    done: Synced = field(default_factory=Synced)
    skipped_bytes: int = 0
    files: set[str] = field(default_factory=set)
    finished: list[Reading] = field(default_factory=list)
    """Files that are read, and of which documents may still have to be sent."""

    async def once(self, consent: Consent) -> None:
        self.options = replace(self.options, metadata_keys_max=self.limits["metadata_keys"])
        settings = msgspec.json.encode(
            [EXTRACTION, replace(self.options, exclude=(), no_ignore=False)]
        ).decode()
        self.record.follow_settings(settings)
        found, unlisted = self._scan()
        self.files = {key(one) for one in found.values()}
        present = {one["id"] async for one in self.client.scroll(self.collection, text=False)}
        self.record.forget_absent(present)
        while True:
            await self._send(self._changed(found))
            if not await self._delete_gone(found, unlisted, present, consent):
                return

    def _scan(self) -> tuple[dict[str, FoundFile], list[str]]:
        """Files by name, and the places that could not be listed."""
        failures = len(self.report.failed)
        files = list(find_files([self.folder], options=self.options, report=self.report))
        unlisted = [failure.source for failure in self.report.failed[failures:]]
        if len(self.report.failed) < self.report.failures:  # not all are named
            unlisted = [printable(self.folder)]
        found = {}
        for one in files:
            try:
                one.name.encode()
            except UnicodeEncodeError:
                self.report.fail(SourceError(printable(one.path), "the file's name is not UTF-8"))
            else:
                found[one.name] = one
        if not found and any(True for _ in self.record.claims()):
            why = self.report.failed[failures].reason if unlisted else "is it mounted?"
            raise InvalidInput(f"{self.folder}: no file to read; nothing was deleted: {why}", param="paths")
        return found, unlisted

    # -- what changed

    def _changed(self, found: dict[str, FoundFile]) -> list[Changed]:
        changed = []
        for one in found.values():
            try:
                stamp = self._new_stamp(one)
            except OSError as error:
                self.report.fail(SourceError(printable(one.path), f"cannot be opened: {error.strerror}"))
                continue
            if stamp is not None:
                changed.append(Changed(one, stamp))
        self.done.files_changed += len(changed)
        self.done.files_unchanged = len(found) - len(changed)
        self.skipped_bytes = sum(one.size_bytes for one in found.values()) - sum(
            one.found.size_bytes for one in changed
        )
        return changed

    def _new_stamp(self, found: FoundFile) -> Stamp | None:
        """None for a file that is as recorded."""
        before, now = self.record.stamp(key(found)), time.time_ns()
        status = found.path.stat()
        if before and (before.size, before.mtime_ns) == (status.st_size, status.st_mtime_ns):
            return None
        with found.path.open("rb") as content:
            digest = hashlib.file_digest(content, "blake2b").digest()
        settled = now - status.st_mtime_ns > RECENT_NS
        stamp = Stamp(status.st_size, status.st_mtime_ns if settled else 0, digest)
        if before and before.digest == digest:
            if before != stamp:
                self.record.finish(key(found), stamp)
            return None
        return stamp

    # -- sending

    async def _send(self, changed: list[Changed]) -> None:
        begun = time.monotonic()
        batch: list[Unsent] = []
        chars = 0
        for one in self._documents(changed):
            batch.append(one)
            chars += len(one.document.text)
            if len(batch) >= DOCUMENTS_AT_ONCE or chars >= CHARS_AT_ONCE:
                await self._write(batch, begun)
                batch, chars = [], 0
        await self._write(batch, begun)

    def _documents(self, changed: list[Changed]) -> Iterator[Unsent]:
        reading: Reading | None = None

        def files() -> Iterator[FoundFile]:
            """Resumed for the next file when all of the one before is read."""
            nonlocal reading
            for one in changed:
                reading = Reading(one)
                failures = self.report.failures
                yield one.found
                reading.whole = self.report.failures == failures
                self.finished.append(reading)

        for document in read_files(files(), options=self.options, report=self.report):
            assert reading is not None
            if document.id not in reading.ids:  # a repetition within its file is nothing to record
                reading.ids.add(document.id)
                yield Unsent(reading, document, digest_of(document))

    def _is_held(self, one: Unsent) -> bool:
        """Whether another file of the folder has the document's id, so that it is claimed and not sent: each run would
        replace the one by the other."""
        holders = [file for file in self.record.other_files(one.file, one.document.id) if file in self.files]
        if not holders and not one.document.repeats:
            return False
        if not one.document.repeats:
            self.report.duplicates += 1
            if not one.reading.repeated:
                note_repeated(one.document, f"is in {holders[0]} too", self.report)
                one.reading.repeated = True
        self.record.claim_unsent(one.file, one.document.id)
        return True

    async def _write(self, batch: list[Unsent], begun: float) -> None:
        """Send what is new in `batch`; record what is acknowledged and which files are done."""
        refused, total = SourceReport(), self.done.ingested
        with self.record.transaction():
            fresh = [one for one in batch if not self._is_held(one)]
            new = [one for one in fresh if self.record.claim(one.file, one.document.id, one.digest)]
            for one in new:
                for other in self.record.other_folders(one.document.id):
                    self.report.note(
                        f"{one.document.source}: {other} holds the id {one.document.id!r} too; the last one sent counts"
                    )
        total.unchanged += len(fresh) - len(new)
        if self.dry_run:
            total.documents += len(new)
        elif new:
            documents = [one.document for one in new]
            sent = await ingest(
                self.client, self.collection, documents, lambda _: None, refused, limits=self.limits
            )
            total.documents += sent.documents
            total.unchanged += sent.unchanged
            total.passages += sent.passages
            total.tokens += sent.tokens
            total.seq = max(total.seq, sent.seq)
            total.bytes_read = self.skipped_bytes + sent.bytes_read
            total.seconds = time.monotonic() - begun
        places = {failure.source for failure in refused.failed}
        with self.record.transaction():
            for one in new:
                if one.document.source in places:
                    one.reading.accepted = False
                else:
                    self.record.acknowledge(one.file, one.document.id, one.digest)
            for reading in self.finished:
                file = key(reading.changed.found)
                if reading.whole:
                    self.record.mark_gone(file, but=reading.ids)
                if reading.whole and reading.accepted:
                    self.record.finish(file, reading.changed.stamp)
        self.finished.clear()
        self.report.add(refused)
        self.progress(total)

    # -- deleting

    async def _delete_gone(
        self, found: dict[str, FoundFile], unlisted: list[str], present: set[str], consent: Consent
    ) -> bool:
        """Returns whether files of this folder are to be read again."""
        claims = list(self.record.claims())
        again = False
        gone: dict[str, list[Claim]] = defaultdict(list)
        with self.record.transaction():
            for one in claims:
                if not one.gone and (one.file in self.files or self._hidden(one.file, unlisted)):
                    continue
                if others := self.record.hand_over(one):
                    self.done.shared += 1
                    again = again or self.record.folder in others
                if (
                    others or one.id not in present
                ):  # not there: the run that claimed it ended before sending it
                    self.record.release([one])
                else:
                    gone[one.id].append(one)
        ids = self.done.gone = list(gone)
        if again or not ids or not consent(ids, len({one.id for one in claims})):
            return again
        most = self.limits["documents_per_request"]
        for start in range(0, len(ids), most):
            part = ids[start : start + most]
            path = path_of(self.collection, "documents", "delete")
            self.done.deleted += (await self.client.request("POST", path, {"ids": part}))["deleted"]
            self.record.release(one for document_id in part for one in gone[document_id])
        self.done.gone = []
        return False

    def _hidden(self, file: str, unlisted: list[str]) -> bool:
        """Whether the file may still be there, where nothing could be listed."""
        path = printable(self.folder / file)
        return any(path == place or path.startswith(place.rstrip("/") + "/") for place in unlisted)


def key(found: FoundFile) -> str:
    """The file's path below its folder, as recorded."""
    return found.name.partition("/")[2]


def digest_of(document: SourceDocument) -> bytes:
    content: list[object] = [document.id, document.title, document.text, dict(document.metadata)]
    content += [document.expires_at] if document.expires_at is not None else []
    content += [{"language": document.language}] if document.language else []
    return hashlib.blake2b(repr(content).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def record_path(state: Path, url: str, collection: CollectionBody) -> Path:
    """Of the record of a collection by its own name, and its tenant's: tenants have collections of the same name. It
    stays right if the collection is restored or made anew: what the collection has is asked for in each run."""
    name = "@".join(filter(None, [collection["name"].partition("@")[0], collection["tenant"]]))
    return state / f"{quote(url.rstrip('/'), safe='')}-{quote(name, safe='')}.db"


def state_folder() -> Path:
    """Where records of syncs are kept unless the user says otherwise."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "nearline" / "sync"
