"""Integrity checks of a log: SQLite's own check of the file, then the invariants between rows.

Read-only, and each check sees a single commit, so this may run while the service is serving.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.errors import Damaged, NearlineError
from indexes.base.model import Progress
from indexes.filters.checks import UNIT_TOLERANCE
from indexes.log.content import ContentHash
from indexes.log.pinned import LogState, PinnedLog, pin
from indexes.log.reader import decode_metadata

EXAMPLES = 3  # shown per kind of problem; the rest are only counted
VECTORS_AT_ONCE = 4096
PROGRESS_DOCUMENTS = 1000

LOG = "log"  # the check that fails where the log cannot be read, or is known to lack writes
RESTORE = "restore this collection from a backup (nearline restore --as NEWNAME), then delete this one"
READ_AGAIN = (
    "give the disk room and let it be written, then verify again: nothing shows that anything is damaged"
)
WRITE_AGAIN = "write these documents again, or " + RESTORE

DOCUMENTS = "SELECT pk, id, seq, first_passage, passages, metadata, text FROM documents ORDER BY pk"
PASSAGES = (
    "SELECT p.id, document, ordinal, start, end, text, v.vector FROM passages p LEFT JOIN vectors v ON v.id = p.id"
    " WHERE p.id >= ? AND p.id < ? ORDER BY p.id"
)
WITHOUT_PASSAGE = "SELECT count(*) FROM vectors v LEFT JOIN passages p ON p.id = v.id WHERE p.id IS NULL"
UNLIKE_ITS_OPERATION = (
    "SELECT d.id FROM operations o JOIN documents d ON d.seq = o.seq"
    " WHERE o.first_passage != d.first_passage OR o.passages != d.passages"
)
REMOVED_BUT_THERE = (
    "SELECT p.id FROM operations o CROSS JOIN passages p WHERE o.dead_passages > 0"
    " AND p.id >= o.dead_first AND p.id < o.dead_first + o.dead_passages"
)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `advice` says what to do if it is not `ok`."""

    collection: str
    name: str
    ok: bool
    detail: str
    advice: str = ""


@dataclass(slots=True)
class Trouble:
    """Problems of one kind: a few examples and the total count."""

    examples: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, example: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)

    def check(self, collection: str, name: str, sound: str, advice: str) -> Check:
        if not self.count:
            return Check(collection, name, True, sound)
        more = f", and {self.count - len(self.examples)} more" if self.count > len(self.examples) else ""
        return Check(collection, name, False, "; ".join(self.examples) + more, advice)


def check_log(collection: str, path: Path, *, frozen: bool, progress: Progress) -> Iterator[Check]:
    """Run all checks of one log. An unreadable log ends them early. `frozen` as for `pin`."""
    progress("integrity", 0, 1)
    try:
        yield check_file(collection, path, frozen=frozen)
        with pin(path, frozen=frozen) as log:
            state = log.state()
            yield from check_rows(collection, log, state, progress)
            yield check_history(collection, log, state)
            yield check_content(collection, log)
    except NearlineError as error:
        advice = RESTORE if isinstance(error, Damaged) else READ_AGAIN
        yield Check(collection, LOG, False, error.message, advice)


def check_file(collection: str, path: Path, *, frozen: bool) -> Check:
    trouble = Trouble()
    with pin(path, frozen=frozen) as log:
        for (line,) in log.rows("PRAGMA integrity_check"):
            if line != "ok":
                trouble.add(" ".join(str(line).split()))
    return trouble.check(collection, "log file", "SQLite reports no errors", RESTORE)


def check_rows(collection: str, log: PinnedLog, state: LogState, progress: Progress) -> Iterator[Check]:
    """One pass over all documents and passages, yielding three checks."""
    documents, texts, vectors = Trouble(), Trouble(), Vectors(state.settings.dimensions)
    met = 0
    for at, (pk, document_id, seq, first, count, metadata, text) in enumerate(log.rows(DOCUMENTS)):
        if at % PROGRESS_DOCUMENTS == 0:
            progress("documents", at, state.documents)
        rows = list(log.rows(PASSAGES, (first, first + count)))
        met += len(rows)
        for wrong in wrong_with_document(state, pk, seq, first, count, metadata, rows):
            documents.add(f"document {document_id!r} {wrong}")
        for passage, _, _, start, end, stored, vector in rows:
            if wrong := wrong_with_text(text, start, end, stored):
                texts.add(f"passage {passage} of {document_id!r} {wrong}")
            vectors.add(passage, document_id, vector)
    if (stored := log.value("SELECT count(*) FROM passages")) != met:
        documents.add(f"{stored - met} passages belong to no document")
    if left_over := log.value(WITHOUT_PASSAGE):
        documents.add(f"{left_over} vectors belong to no passage")
    counted = f"{state.documents} documents, {state.passages} passages, seq {state.seq}"
    yield documents.check(collection, "documents", counted, WRITE_AGAIN)
    yield texts.check(collection, "texts", "every passage lies inside its document", WRITE_AGAIN)
    sound = f"{state.settings.dimensions} finite numbers each, of unit length"
    yield vectors.finish().check(collection, "vectors", sound, WRITE_AGAIN)


def wrong_with_document(
    state: LogState, pk: int, seq: int, first: int, count: int, metadata: str, rows: list[Any]
) -> Iterator[str]:
    if count < 1 or len(rows) != count:
        yield f"has {len(rows)} passages, and should have {count}"
    elif any(row[1] != pk or row[0] - first != row[2] for row in rows):
        yield "has passages of another document, or in another order"
    if first + count - 1 > state.last_passage or not 1 <= seq <= state.seq:
        yield f"has numbers (seq {seq}, passages from {first}) that were never given out"
    try:
        decode_metadata(metadata)
    except (msgspec.DecodeError, TypeError) as error:
        yield f"has metadata that cannot be read: {error}"


def wrong_with_text(text: str, start: int, end: int, stored: str | None) -> str:
    """`stored` None means the whole text."""
    # A document with a title alone has one empty passage.
    if not (0 <= start < end or start == end == 0) or end > len(text):
        return f"lies at {start} to {end} in a text of {len(text)} characters"
    if (text if stored is None else stored) != text[start:end]:
        return "has another text than its place in the document"
    return ""


class Vectors:
    """Checks vectors in batches."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._trouble = Trouble()
        self._names: list[str] = []
        self._blobs: list[bytes] = []

    def add(self, passage: int, document_id: str, vector: object) -> None:
        name = f"passage {passage} of {document_id!r}"
        if not isinstance(vector, bytes) or len(vector) != 4 * self._dimensions:
            size = len(vector) if isinstance(vector, bytes) else 0
            self._trouble.add(f"{name} has {size} bytes, and should have {4 * self._dimensions}")
            return
        self._names.append(name)
        self._blobs.append(vector)
        if len(self._blobs) == VECTORS_AT_ONCE:
            self.finish()

    def finish(self) -> Trouble:
        values = np.frombuffer(b"".join(self._blobs), np.float32).reshape(-1, self._dimensions)
        finite: NDArray[np.bool_] = np.all(np.isfinite(values), axis=1)
        lengths = np.linalg.norm(np.where(finite[:, None], values, 0).astype(np.float64), axis=1)
        for at in np.flatnonzero(~finite | (np.abs(lengths - 1) > UNIT_TOLERANCE)):
            found = f"has length {lengths[at]:.4f}" if finite[at] else "holds NaN or an infinity"
            self._trouble.add(f"{self._names[at]} {found}")
        self._names, self._blobs = [], []
        return self._trouble


def check_history(collection: str, log: PinnedLog, state: LogState) -> Check:
    """Check the operations that bring a generation up to date."""
    trouble = Trouble()
    kept = state.seq - state.forgotten
    [(count, newest)] = log.rows("SELECT count(*), max(seq) FROM operations")
    if count != kept or (newest is not None and newest != state.seq):
        trouble.add(f"{count} operations up to {newest}, and should be {kept} up to {state.seq}")
    for (document_id,) in log.rows(UNLIKE_ITS_OPERATION):
        trouble.add(f"document {document_id!r} is not what its operation wrote")
    for (passage,) in log.rows(REMOVED_BUT_THERE):
        trouble.add(f"passage {passage} was removed, and is there")
    known = f"operations {state.forgotten + 1} to {state.seq}" if kept else f"none needed since {state.seq}"
    return trouble.check(collection, "history", known, RESTORE)


def check_content(collection: str, log: PinnedLog) -> Check:
    """Check the content hash, under which services share cached answers: a wrong one would mix up collections."""
    trouble = Trouble()
    expected = ContentHash()
    for document_id, digest in log.rows("SELECT id, digest FROM documents"):
        expected.add(document_id, digest)
    if log.value("SELECT sums FROM content") != expected.stored:
        trouble.add("the content hash is not that of the documents")
    return trouble.check(collection, "content", "its hash is that of the documents", RESTORE)
