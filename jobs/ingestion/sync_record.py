"""Records what earlier syncs wrote to a collection, in a small SQLite file: the documents of each folder, with digests.

    files       completely read and acknowledged: their size, time and digest
    failed      not completely read or not accepted: their digest
    documents   claimed by a file before they are sent; with a digest once acknowledged; gone once the file lacks them

A document is claimed before it is sent, so that every synced document in the collection has a record of its file. Every
change is one transaction: a process may be killed at any time. Only one process at a time can open the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import apsw

from indexes.base.errors import StorageError, message_of

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
            self._db.execute("REPLACE INTO folders VALUES (?, ?)", (self.folder, settings))

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
        self._db.execute("REPLACE INTO documents VALUES (?, ?, ?, NULL, 0)", key)
        return True

    def claim_unsent(self, file: str, document_id: str) -> None:
        """Record that `file` also holds the document, in case the file that it was sent from loses it."""
        self._db.execute(
            "INSERT INTO documents VALUES (?, ?, ?, NULL, 0) "
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

    def acknowledge(self, file: str, document_id: str, digest: bytes) -> None:
        self._db.execute(
            "UPDATE documents SET digest = ? WHERE folder = ? AND file = ? AND id = ?",
            (digest, self.folder, file, document_id),
        )

    def mark_gone(self, file: str, *, but: set[str]) -> None:
        """Mark the documents of `file` as gone, except `but`, the ids that it holds now."""
        query = "SELECT id FROM documents WHERE folder = ? AND file = ?"
        gone = [id_ for (id_,) in self._db.execute(query, (self.folder, file)) if id_ not in but]
        self._db.executemany(
            "UPDATE documents SET gone = 1 WHERE folder = ? AND file = ? AND id = ?",
            [(self.folder, file, id_) for id_ in gone],
        )

    def forget_absent(self, present: set[str]) -> int:
        """Reopen acknowledged documents that are not `present`, so that they are sent again; return their number."""
        query = "SELECT file, id FROM documents WHERE folder = ? AND digest NOT NULL"
        absent = [row for row in self._db.execute(query, (self.folder,)) if row[1] not in present]
        with self._db:
            for file, document_id in absent:
                self._reopen(self.folder, str(file), str(document_id))
        return len(absent)

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
