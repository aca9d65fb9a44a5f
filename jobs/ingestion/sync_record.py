"""Records what earlier syncs wrote to a collection, in a small SQLite file: the documents of each folder, with digests.

    files       completely read and acknowledged: their size, time and digest
    failed      not completely read or not accepted: their digest
    documents   claimed by a file before they are sent; with a digest once acknowledged, when they expire, and the
                `seq` that the collection gave them; gone once the file lacks them
    folders     with the last `seq` of the collection that was acknowledged

A document is claimed before it is sent, so that every synced document in the collection has a record of its file. Every
change is one transaction: a process may be killed at any time. Only one process at a time can open the file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import apsw

from indexes.base.errors import StorageError, message_of
from retrieval.clients.bulk import later_seq

WAIT_MS_MAX = 30_000  # for another sync into the same collection
SCHEMA = """
CREATE TABLE IF NOT EXISTS folders(folder TEXT PRIMARY KEY, settings TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files(
    folder TEXT, file TEXT, size INTEGER, mtime_ns INTEGER, digest BLOB, PRIMARY KEY (folder, file)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failed(folder TEXT, file TEXT, digest BLOB, PRIMARY KEY (folder, file)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS documents(
    folder TEXT, file TEXT, id TEXT, digest BLOB, gone INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (folder, file, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS documents_by_id ON documents(id);
"""
# Columns that earlier versions did not have.
ADDED = {"folders": ("seq",), "documents": ("seq", "expires_ms")}

Seq = int | str  # text if the collection is in several shards


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identifies a state of a file. `mtime_ns` is 0 if the file may still change within the same clock tick."""

    size: int
    mtime_ns: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """A document that a folder's file holds or held."""

    file: str
    id: str
    gone: bool


class SyncRecord:
    """The record of one folder. Raises StorageError if it cannot be opened, or another sync has it open."""

    def __init__(self, path: Path, folder: str) -> None:
        self.folder = folder
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = apsw.Connection(str(path))
            self._db.set_busy_timeout(WAIT_MS_MAX)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL")
            self._db.execute("BEGIN IMMEDIATE;" + SCHEMA + "COMMIT")
            for table, columns in ADDED.items():
                known = {name for _, name, *_ in self._db.execute(f"PRAGMA table_info({table})")}
                for column in columns:
                    if column not in known:
                        self._db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        except apsw.BusyError as error:
            raise StorageError(f"{path}: another sync into this collection is under way") from error
        except (apsw.Error, OSError) as error:
            raise StorageError(
                f"{path}: the record of syncs cannot be opened: {message_of(error)}"
            ) from error

    def close(self) -> None:
        self._db.close()

    def transaction(self) -> AbstractContextManager[object]:
        """Make the block's changes atomic: none are kept if it raises. May be nested."""
        return self._db

    # -- files

    def follow_settings(self, settings: str) -> None:
        """Forget all files if they were read with other settings, so that they are read again."""
        with self._db:
            for (before,) in self._db.execute(
                "SELECT settings FROM folders WHERE folder = ?", (self.folder,)
            ):
                if before == settings:
                    return
            self._db.execute("DELETE FROM files WHERE folder = ?", (self.folder,))
            self._db.execute("DELETE FROM failed WHERE folder = ?", (self.folder,))
            self._db.execute(
                "INSERT INTO folders(folder, settings) VALUES (?1, ?2) "
                "ON CONFLICT (folder) DO UPDATE SET settings = ?2",
                (self.folder, settings),
            )

    def follow_collection(self, seq: Seq, present: Mapping[str, Seq]) -> None:
        """Reopen the documents that the collection does not have as they were sent, so that they are sent again: absent
        ones that have not expired, and those with an earlier operation than before. All of them if the collection
        itself is at an earlier `seq`, as after a restore. `present` maps the ids of its documents to theirs."""
        query = "SELECT seq FROM folders WHERE folder = ?"
        before = self._db.execute(query, (self.folder,)).get
        put_back = before is not None and is_earlier(seq, before)
        query = "SELECT file, id, seq, expires_ms FROM documents WHERE folder = ? AND digest NOT NULL"
        lost = []
        now_ms = time.time() * 1000
        for file, document_id, sent, expires_ms in self._db.execute(query, (self.folder,)):
            held = present.get(document_id)
            if held is None:
                is_lost = expires_ms is None or expires_ms > now_ms
            else:
                is_lost = put_back or (sent is not None and is_earlier(held, sent))
            if is_lost:
                lost.append((file, document_id))
        with self._db:
            for file, document_id in lost:
                self._reopen(self.folder, str(file), str(document_id))

    def reach(self, seq: Seq) -> None:
        """Record the `seq` of the collection: if it is at an earlier one later, it was put back."""
        self._db.execute("UPDATE folders SET seq = ? WHERE folder = ?", (seq, self.folder))

    def note_collection(self, seq: Seq, present: Mapping[str, Seq]) -> None:
        """Record the `seq` of the collection, and those of the documents sent since the last sync."""
        query = "SELECT DISTINCT id FROM documents WHERE folder = ? AND digest NOT NULL AND seq IS NULL"
        sent = [str(document_id) for (document_id,) in self._db.execute(query, (self.folder,))]
        with self._db:
            self.reach(seq)
            self._db.executemany(
                "UPDATE documents SET seq = ? WHERE folder = ? AND id = ? AND digest NOT NULL AND seq IS NULL",
                [(present[one], self.folder, one) for one in sent if one in present],
            )

    def stamp(self, file: str) -> Stamp | None:
        """Return the state of a file when all of it was acknowledged, or None if it never was."""
        query = "SELECT size, mtime_ns, digest FROM files WHERE folder = ? AND file = ?"
        for row in self._db.execute(query, (self.folder, file)):
            return Stamp(*row)
        return None

    def finish(self, file: str, stamp: Stamp) -> None:
        row = (self.folder, file, stamp.size, stamp.mtime_ns, stamp.digest)
        self._db.execute("REPLACE INTO files VALUES (?, ?, ?, ?, ?)", row)
        self._forget_failed(file)

    def fail(self, file: str, digest: bytes) -> None:
        """Record that reading or sending a file with this content failed. What it was before is forgotten: some of it
        may have been replaced."""
        self._db.execute("DELETE FROM files WHERE folder = ? AND file = ?", (self.folder, file))
        self._db.execute("REPLACE INTO failed VALUES (?, ?, ?)", (self.folder, file, digest))

    def failed(self, among: set[str]) -> dict[str, bytes]:
        """Return the digests of the files that failed when they were last tried, and forget files not `among` these."""
        query = "SELECT file, digest FROM failed WHERE folder = ?"
        failed = dict(self._db.execute(query, (self.folder,)))
        with self._db:
            for file in failed.keys() - among:
                self._forget_failed(file)
        return failed

    def _forget_failed(self, file: str) -> None:
        self._db.execute("DELETE FROM failed WHERE folder = ? AND file = ?", (self.folder, file))

    # -- documents

    def claims(self) -> Iterator[Claim]:
        """Yield all claims of the folder."""
        query = "SELECT file, id, gone FROM documents WHERE folder = ?"
        return (Claim(file, id_, bool(gone)) for file, id_, gone in self._db.execute(query, (self.folder,)))

    def claim(self, file: str, document_id: str, digest: bytes) -> bool:
        """Claim a document before it is sent. Returns False if it is already acknowledged with this digest."""
        key = (self.folder, file, document_id)
        query = "SELECT digest, gone FROM documents WHERE folder = ? AND file = ? AND id = ?"
        for before, gone in self._db.execute(query, key):
            if before == digest:
                if gone:
                    self._db.execute(
                        "UPDATE documents SET gone = 0 WHERE folder = ? AND file = ? AND id = ?", key
                    )
                return False
        self._db.execute("REPLACE INTO documents(folder, file, id) VALUES (?, ?, ?)", key)
        return True

    def claim_unsent(self, file: str, document_id: str) -> None:
        """Record that `file` also holds the document, in case the file that it was sent from loses it."""
        self._db.execute(
            "INSERT INTO documents(folder, file, id) VALUES (?, ?, ?) "
            "ON CONFLICT (folder, file, id) DO UPDATE SET digest = NULL, gone = 0",
            (self.folder, file, document_id),
        )

    def other_files(self, file: str, document_id: str) -> list[str]:
        """Return the other files of the folder that sent the document and hold it as far as recorded."""
        query = (
            "SELECT file FROM documents "
            "WHERE id = ? AND folder = ? AND file != ? AND gone = 0 AND digest NOT NULL"
        )
        return [str(other) for (other,) in self._db.execute(query, (document_id, self.folder, file))]

    def other_folders(self, document_id: str) -> list[str]:
        """Return the other folders whose files hold this document."""
        query = "SELECT DISTINCT folder FROM documents WHERE id = ? AND gone = 0 AND folder != ?"
        return [str(folder) for (folder,) in self._db.execute(query, (document_id, self.folder))]

    def acknowledge(self, file: str, document_id: str, digest: bytes, expires_ms: int | None = None) -> None:
        """Record that the collection has the document, which expires then."""
        self._db.execute(
            "UPDATE documents SET digest = ?, expires_ms = ?, seq = NULL WHERE folder = ? AND file = ? AND id = ?",
            (digest, expires_ms, self.folder, file, document_id),
        )

    def mark_gone(self, file: str, *, but: set[str]) -> None:
        """Mark the documents of `file` as gone, except `but`, the ids that it holds now."""
        query = "SELECT id FROM documents WHERE folder = ? AND file = ?"
        gone = [id_ for (id_,) in self._db.execute(query, (self.folder, file)) if id_ not in but]
        self._db.executemany(
            "UPDATE documents SET gone = 1 WHERE folder = ? AND file = ? AND id = ?",
            [(self.folder, file, id_) for id_ in gone],
        )

    def release(self, claims: Iterable[Claim]) -> None:
        """Drop the claims of deleted documents."""
        with self._db:
            self._db.executemany(
                "DELETE FROM documents WHERE folder = ? AND file = ? AND id = ?",
                [(self.folder, one.file, one.id) for one in claims],
            )
            self._db.execute(
                "DELETE FROM files WHERE folder = ?1 AND file NOT IN (SELECT file FROM documents WHERE folder = ?1)",
                (self.folder,),
            )

    def hand_over(self, claim: Claim) -> list[str]:
        """Return the folders of other files that hold the document, and reopen it there: the collection may have the
        version of this file, so theirs must be sent again."""
        query = (
            "SELECT folder, file FROM documents WHERE id = ? AND gone = 0 AND NOT (folder = ? AND file = ?)"
        )
        others = list(self._db.execute(query, (claim.id, self.folder, claim.file)))
        for folder, file in others:
            self._reopen(str(folder), str(file), claim.id)
        return [str(folder) for folder, _ in others]

    def _reopen(self, folder: str, file: str, document_id: str) -> None:
        key = (folder, file)
        self._db.execute(
            "UPDATE documents SET digest = NULL WHERE folder = ? AND file = ? AND id = ?", (*key, document_id)
        )
        self._db.execute("DELETE FROM files WHERE folder = ? AND file = ?", key)


def is_earlier(one: Seq, other: Seq) -> bool:
    """Whether an operation came before another one of the same collection, or shard."""
    return later_seq(one, other) != one
