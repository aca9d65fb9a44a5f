"""The log of one collection: documents, passages, vectors and operations, in SQLite. The only truth.

Promises
- `commit` returns after the operations of all its writes are synced to disk, or raises and none is kept.
- Passage ids and sequence numbers only grow and are never used twice, also after deletions and restarts.
- A deleted or replaced passage is gone from `passages` and `documents` at once; its id range stays in
  `operations` until every generation that may hold it is gone, so that an index can be told to hide it.

`commit` belongs to one thread, the collection's writer. Reading is in `LogReader`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec

from indexes import failpoints, failures
from indexes.courtesy import give_way
from indexes.errors import Conflict, DiskFull, StorageError
from indexes.log.reader import FORMAT_VERSION, LogReader, searchable_text
from indexes.log.sqlite import Checkpoints, checkpoint, connect, sqlite_errors
from indexes.model import Delete, Operation, Settings, Upsert, WriteResult

SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE documents(
    pk INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL,
    first_passage INTEGER NOT NULL, passages INTEGER NOT NULL,
    title TEXT NOT NULL, metadata TEXT NOT NULL, text TEXT NOT NULL);
-- `text` is null where the passage is the whole document; the vector comes last so that reading text skips it.
CREATE TABLE passages(
    id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL, ordinal INTEGER NOT NULL,
    start INTEGER NOT NULL, end INTEGER NOT NULL, tokens INTEGER NOT NULL, text TEXT, vector BLOB NOT NULL);
CREATE TABLE operations(
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, document_id TEXT NOT NULL,
    first_passage INTEGER NOT NULL, passages INTEGER NOT NULL,
    dead_first INTEGER NOT NULL, dead_passages INTEGER NOT NULL);
"""

INSERT_DOCUMENT = (
    "INSERT INTO documents(id, seq, first_passage, passages, title, metadata, text)"
    " VALUES(?, 0, 0, ?, ?, ?, ?)"
)
INSERT_PASSAGE = (
    "INSERT INTO passages(document, ordinal, start, end, tokens, text, vector) VALUES(?, ?, ?, ?, ?, ?, ?)"
)
INSERT_OPERATION = (
    "INSERT INTO operations(at_ms, document_id, first_passage, passages, dead_first, dead_passages)"
    " VALUES(?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True, slots=True)
class Applied:
    """One committed operation, as the indexes need it: which passages came, which went and what they said."""

    seq: int
    first_passage: int
    upsert: Upsert | None
    dead: range
    dead_texts: tuple[str, ...]


class Log(LogReader):
    """A log open for writing too. `Log.create` makes it, `Log(path)` opens it; `close` ends every connection."""

    def __init__(self, path: Path) -> None:
        self._db = connect(path)
        self._checkpoints = Checkpoints(self._db, path)
        self._failed = False
        super().__init__(path)

    @staticmethod
    def create(path: Path, settings: Settings, uid: str) -> Log:
        """Make a new log. Raises Conflict if the file exists."""
        if path.exists():
            raise Conflict(f"{path} exists already")
        meta = {
            "format_version": str(FORMAT_VERSION),
            "uid": uid,
            "settings": msgspec.json.encode(settings).decode(),
        }
        with changing(path):
            db = connect(path, create=True)
            with db:
                db.execute(SCHEMA)
                db.executemany("INSERT INTO meta VALUES(?, ?)", list(meta.items()))
            checkpoint(db, path)  # closing would do it too, but keeps a failed sync to itself
            db.close()
        return Log(path)

    def close(self) -> None:
        """Moves the WAL into the file, unless the storage has failed: then all stays as it is for the next opening."""
        super().close()
        with contextlib.suppress(StorageError), self._changing():
            checkpoint(self._db, self.path)
        if self._failed:
            self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._checkpoints.close()
        self._db.close()

    def commit(self, writes: Sequence[Sequence[Operation]]) -> tuple[list[WriteResult], list[Applied]]:
        """Apply several writes in one synced transaction: one result for each, and all operations in order.

        Raises DiskFull after rolling back all of them. After a StorageError they may be there or not when the log is
        opened again, and nothing more is committed before that.
        """
        db = self._db
        results: list[WriteResult] = []
        applied: list[Applied] = []
        with self._changing():
            failpoints.reach("commit.begin")
            db.execute("BEGIN IMMEDIATE")
            try:
                for operations in writes:
                    done = []
                    for operation in operations:
                        give_way()
                        done.append(apply(db, operation))
                    applied += done
                    results.append(summarise(operations, done, last_seq(db)))
                failpoints.reach("commit.before_sync")
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            failpoints.reach("commit.synced")
            self._checkpoints.run_if_due()
        return results, applied

    def forget_operations(self, before_seq: int) -> None:
        """Drop the history up to and including `before_seq`: every kept generation is at least that new."""
        with self._changing():
            failpoints.reach("forget.begin")
            self._db.execute("DELETE FROM operations WHERE seq <= ?", (before_seq,))
            failpoints.reach("forget.synced")
            self._checkpoints.run_if_due()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with changing(self.path, self._db):
                yield
        except StorageError as error:
            self._failed |= not isinstance(error, DiskFull)
            raise


@contextlib.contextmanager
def changing(path: Path, db: apsw.Connection | None = None) -> Iterator[None]:
    """Refuse to begin after a failure, and report one that happens."""
    failures.require_none()
    try:
        with sqlite_errors(path, db):
            yield
    except StorageError as error:
        if not isinstance(error, DiskFull):
            failures.report(error)
        raise


def apply(db: apsw.Connection, operation: Operation) -> Applied:
    """Inside a transaction: remove what the document was, insert what it is now, note both."""
    dead, dead_texts = remove(db, operation.id)
    upsert = operation if isinstance(operation, Upsert) else None
    first = insert(db, upsert) if upsert else 0
    count = len(upsert.passages) if upsert else 0
    at_ms = time.time_ns() // 1_000_000
    db.execute(INSERT_OPERATION, (at_ms, operation.id, first, count, dead.start, len(dead)))
    seq = db.last_insert_rowid()
    if upsert:
        db.execute("UPDATE documents SET seq = ? WHERE id = ?", (seq, operation.id))
    return Applied(seq, first, upsert, dead, dead_texts)


def remove(db: apsw.Connection, document_id: str) -> tuple[range, tuple[str, ...]]:
    """Take a document out. Returns its passages' ids, and their searchable texts in the same order."""
    sql = "SELECT pk, first_passage, passages, title, text FROM documents WHERE id = ?"
    row: Any = db.execute(sql, (document_id,)).fetchone()
    if row is None:
        return range(0), ()
    pk, first, count, title, text = row
    spans: Any = db.execute(
        "SELECT start, end FROM passages WHERE id >= ? AND id < ? ORDER BY id", (first, first + count)
    ).fetchall()
    db.execute("DELETE FROM passages WHERE id >= ? AND id < ?", (first, first + count))
    db.execute("DELETE FROM documents WHERE pk = ?", (pk,))
    return range(first, first + count), tuple(searchable_text(title, text[start:end]) for start, end in spans)


def insert(db: apsw.Connection, new: Upsert) -> int:
    """Insert document and passages; the passages of one document get consecutive ids. Returns the first id."""
    metadata = msgspec.json.encode(new.metadata).decode()
    db.execute(INSERT_DOCUMENT, (new.id, len(new.passages), new.title, metadata, new.text))
    pk = db.last_insert_rowid()
    first = 0
    for ordinal, passage in enumerate(new.passages):
        whole = passage.start == 0 and passage.end == len(new.text)
        text = None if whole else new.text[passage.start : passage.end]
        values = (pk, ordinal, passage.start, passage.end, passage.tokens, text, passage.vector.tobytes())
        db.execute(INSERT_PASSAGE, values)
        first = first or db.last_insert_rowid()
    db.execute("UPDATE documents SET first_passage = ? WHERE pk = ?", (first, pk))
    return first


def last_seq(db: apsw.Connection) -> int:
    found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'operations'").get
    return int(found) if isinstance(found, int) else 0


def summarise(operations: Sequence[Operation], applied: Sequence[Applied], seq: int) -> WriteResult:
    upserts = [op for op in operations if isinstance(op, Upsert)]
    return WriteResult(
        seq=applied[-1].seq if applied else seq,
        documents=len(upserts),
        passages=sum(len(op.passages) for op in upserts),
        deleted=sum(
            1 for op, done in zip(operations, applied, strict=True) if isinstance(op, Delete) and done.dead
        ),
    )
