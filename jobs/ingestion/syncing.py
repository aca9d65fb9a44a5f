"""Keeps a collection equal to a folder: `nearline ingest --sync`.

    scan the folder -> changed files -> read them, claim and send their changed documents -> delete what is gone

1. Ask the collection which documents it has. Those recorded as written but missing are written again, unless they have
   expired, and so are those that it has in an older version, as after a restore.
2. Skip files with the recorded size and time without opening them, and files with the recorded digest without reading.
3. Send the documents of the other files, except those with the recorded digest and those whose ids another file has.
   Once all are acknowledged, record the file as done.
4. Delete documents that are gone: their file was completely read without them, or is missing from a completely listed
   folder. This comes last, needs the caller's consent, and spares documents that another file holds. Documents that no
   sync into this collection recorded are never deleted.

A run may be killed at any point; the next one resumes from the record (see `sync_record`).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import msgspec

from indexes.base.errors import InvalidInput
from indexes.filters.dates import expires_ms_of
from jobs.ingestion.ingesting import IngestProgress, Progress, ingest, waiting_for_service
from jobs.ingestion.sync_record import Claim, Seq, Stamp, SyncRecord
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
from retrieval.clients.bulk import later_seq
from retrieval.clients.wire.records import RequestLimits

EXTRACTION = 3  # increment it when extraction changes, so that files are read again
DOCUMENTS_AT_ONCE, CHARS_AT_ONCE = 1000, 1_000_000  # several requests
RECENT_NS = 2_000_000_000  # a file changed less than this ago may change again within one tick of its clock


@dataclass(slots=True)
class Synced:
    """What one run did, or would do."""

    ingested: IngestProgress = field(default_factory=IngestProgress)
    files_changed: int = 0
    files_unchanged: int = 0
    files_retried: int = 0
    """Files that failed in an earlier run, are still as they were, and were read again."""
    deleted: int = 0
    gone: list[str] = field(default_factory=list)
    """Ids of documents that are gone from the folder and were not deleted."""
    shared: int = 0
    """Documents that are gone from a file but held by another."""


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """`size_and_time` are those that it had when its stamp was taken."""

    found: FoundFile
    stamp: Stamp
    size_and_time: tuple[int, int]

    def is_as_stamped(self) -> bool:
        try:
            return size_and_time(self.found.path) == self.size_and_time
        except OSError:
            return False


def size_and_time(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@dataclass(slots=True)
class Reading:
    """A file being read, with its ids so far, and whether all of it could be read and was accepted."""

    changed: ChangedFile
    ids: set[str] = field(default_factory=set)
    repeated: bool = False
    whole: bool = True
    accepted: bool = True


@dataclass(frozen=True, slots=True)
class Unsent:
    """A document, the file that it was read from, and the digest of its content."""

    reading: Reading
    document: SourceDocument
    digest: bytes

    @property
    def file(self) -> str:
        return path_in_folder(self.reading.changed.found)


Consent = Callable[[Sequence[str], int], bool]
"""Decides whether to delete these ids, given the number of all documents of the folder."""


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
    seq: Seq = 0,
    progress: Progress = lambda _: None,
    dry_run: bool = False,
) -> Synced:
    """Sync a folder into a collection that is at `seq`. Raises InvalidInput if it was not empty before and is now,
    ServiceError if the service fails or stays unreachable."""
    run = _SyncRun(client, collection, folder, record, options, report, limits, seq, progress, dry_run)
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
    """Rolls back the transaction of a dry run."""


@dataclass(slots=True)
class _SyncRun:
    client: AsyncClient
    collection: str
    folder: Path
    record: SyncRecord
    options: SourceOptions
    report: SourceReport
    limits: RequestLimits
    seq: Seq
    progress: Progress
    dry_run: bool
    done: Synced = field(default_factory=Synced)
    skipped_bytes: int = 0
    files: set[str] = field(default_factory=set)
    finished: list[Reading] = field(default_factory=list)
    """Files that were read, but may have unsent documents."""
    sent: set[str] = field(default_factory=set)
    """Ids of documents that this run has sent: the collection has them, too."""

    async def once(self, consent: Consent) -> None:
        self.options = replace(self.options, metadata_keys_max=self.limits["metadata_keys"])
        settings = msgspec.json.encode(
            [EXTRACTION, replace(self.options, exclude=(), no_ignore=False)]
        ).decode()
        self.record.follow_settings(settings)
        found, unlisted = self._scan()
        self.files = {path_in_folder(one) for one in found.values()}
        async with waiting_for_service(self.client, self.progress):
            present = await self._present()
        self.record.follow_collection(self.seq, present)
        (changed, self.done.files_unchanged), again = self._changed(found), True
        self._count(changed)
        whole = self.report
        while again:
            await self._send(changed)
            if again := await self._delete_gone(found, unlisted, present, consent):
                self.report = SourceReport()
                changed, _ = self._changed(found)
            whole.add_new(self.report)
        if self.done.ingested.documents and not self.dry_run:
            present = await self._present()
        self.record.note_collection(later_seq(self.seq, self.done.ingested.seq), present)

    async def _present(self) -> dict[str, Seq]:
        """Return the collection's documents: their ids, and the operations that wrote them."""
        return {one["id"]: one["seq"] async for one in self.client.scroll(self.collection, text=False)}

    def _scan(self) -> tuple[dict[str, FoundFile], list[str]]:
        """Return files by name, and the places that could not be listed."""
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

    def _changed(self, found: dict[str, FoundFile]) -> tuple[list[ChangedFile], int]:
        """Return the files that are not as recorded, and the number of those that are."""
        changed, unchanged = [], 0
        for one in found.values():
            try:
                new = self._new_state(one)
            except OSError as error:
                self.report.fail(SourceError(printable(one.path), f"cannot be opened: {error.strerror}"))
                continue
            if new is None:
                unchanged += 1
            else:
                changed.append(new)
        self.skipped_bytes = sum(one.size_bytes for one in found.values()) - sum(
            one.found.size_bytes for one in changed
        )
        return changed, unchanged

    def _count(self, changed: list[ChangedFile]) -> None:
        failed = self.record.failed(self.files)
        retried = sum(failed.get(path_in_folder(one.found)) == one.stamp.digest for one in changed)
        self.done.files_changed, self.done.files_retried = len(changed) - retried, retried

    def _new_state(self, found: FoundFile) -> ChangedFile | None:
        """Return the new state of a file, or None if it is as recorded."""
        before, now = self.record.stamp(path_in_folder(found)), time.time_ns()
        size, mtime_ns = size_and_time(found.path)
        if before and (before.size, before.mtime_ns) == (size, mtime_ns):
            return None
        with found.path.open("rb") as content:
            digest = hashlib.file_digest(content, "blake2b").digest()
        settled = now - mtime_ns > RECENT_NS
        stamp = Stamp(size, mtime_ns if settled else 0, digest)
        if before and before.digest == digest:
            if before != stamp:
                self.record.finish(path_in_folder(found), stamp)
            return None
        return ChangedFile(found, stamp, (size, mtime_ns))

    # -- sending

    async def _send(self, changed: list[ChangedFile]) -> None:
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

    def _documents(self, changed: list[ChangedFile]) -> Iterator[Unsent]:
        reading: Reading | None = None

        def files() -> Iterator[FoundFile]:
            """Yield the changed files; the reader resumes this when it has read all of the previous one."""
            nonlocal reading
            for one in changed:
                reading = Reading(one)
                failures = self.report.failures
                yield one.found
                # What was read of one that changed in between is not what was stamped: the next run reads it again.
                reading.whole = self.report.failures == failures and one.is_as_stamped()
                self.finished.append(reading)

        for document in read_files(files(), options=self.options, report=self.report):
            assert reading is not None
            if document.id in reading.ids:  # repetitions within a file are not recorded
                self._note_repeated(reading, document, "came before")
                continue
            reading.ids.add(document.id)
            yield Unsent(reading, document, digest_of(document))

    def _note_repeated(self, reading: Reading, document: SourceDocument, where: str) -> None:
        self.report.duplicates += 1
        if not reading.repeated:
            note_repeated(document, where, self.report)
            reading.repeated = True

    def _is_held(self, one: Unsent, sending: Mapping[str, str]) -> bool:
        """Whether another file of the folder has sent the document's id, or is `sending` it, by id. Then the document
        is only claimed: if both were sent, each run would replace one by the other."""
        holders = [file for file in self.record.other_files(one.file, one.document.id) if file in self.files]
        if (file := sending.get(one.document.id)) is not None:
            holders.append(file)
        if not holders:
            return False
        self._note_repeated(one.reading, one.document, f"is in {holders[0]} too")
        self.record.claim_unsent(one.file, one.document.id)
        return True

    async def _write(self, batch: list[Unsent], begun: float) -> None:
        """Send the new documents of `batch`, and record which are acknowledged and which files are done."""
        refused, total = SourceReport(), self.done.ingested
        with self.record.transaction():
            sending: dict[str, str] = {}
            fresh = []
            for one in batch:
                if not self._is_held(one, sending):
                    sending[one.document.id] = one.file
                    fresh.append(one)
            new = [one for one in fresh if self.record.claim(one.file, one.document.id, one.digest)]
            for one in new:
                for other in self.record.other_folders(one.document.id):
                    self.report.note(
                        f"{one.document.source}: {other} holds the id {one.document.id!r} too; the last one sent counts"
                    )
        total.unchanged += len(fresh) - len(new)
        total.read += len(batch)
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
            total.seq = later_seq(total.seq, sent.seq)
            total.bytes_read = self.skipped_bytes + sent.bytes_read
            total.seconds = time.monotonic() - begun
        places = {failure.source for failure in refused.failed}
        with self.record.transaction():
            self.record.reach(later_seq(self.seq, total.seq))
            for one in new:
                if one.document.source in places:
                    one.reading.accepted = False
                else:
                    expires_ms = expires_ms_of(one.document.expires_at, "expires_at")
                    self.record.acknowledge(one.file, one.document.id, one.digest, expires_ms)
                    self.sent.add(one.document.id)
            for reading in self.finished:
                file = path_in_folder(reading.changed.found)
                if reading.whole:
                    self.record.mark_gone(file, but=reading.ids)
                if reading.whole and reading.accepted:
                    self.record.finish(file, reading.changed.stamp)
                else:
                    self.record.fail(file, reading.changed.stamp.digest)
        self.finished.clear()
        self.report.add(refused)
        self.progress(total)

    # -- deleting

    async def _delete_gone(
        self, found: dict[str, FoundFile], unlisted: list[str], present: Mapping[str, Seq], consent: Consent
    ) -> bool:
        """Delete documents that are gone. Returns whether files of this folder must be read again."""
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
                # Absent if the run that claimed it ended before sending it.
                is_absent = one.id not in present and one.id not in self.sent
                if others or is_absent:
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
        """Whether the file may still exist in a place that could not be listed."""
        path = printable(self.folder / file)
        return any(path == place or path.startswith(place.rstrip("/") + "/") for place in unlisted)


def path_in_folder(found: FoundFile) -> str:
    """Return the file's path below its folder, as recorded."""
    return found.name.partition("/")[2]


def digest_of(document: SourceDocument) -> bytes:
    content: list[object] = [document.id, document.title, document.text, dict(document.metadata)]
    content += [document.expires_at] if document.expires_at is not None else []
    content += [{"language": document.language}] if document.language else []
    content += (
        []
        if document.vector is None
        else [document.vector if isinstance(document.vector, str) else list(document.vector)]
    )
    return hashlib.blake2b(repr(content).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def record_path(state: Path, url: str, collection: CollectionBody) -> Path:
    """Return the path of a collection's record, by its own name and tenant: tenants may share collection names. The
    record stays valid if the collection is restored or recreated, because each run asks what the collection has."""
    name = "@".join(filter(None, [collection["name"].partition("@")[0], collection["tenant"]]))
    return state / f"{quote(url.rstrip('/'), safe='')}-{quote(name, safe='')}.db"


def state_folder() -> Path:
    """Return the default folder for records of syncs."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "nearline" / "sync"
