"""The rows of a log as a store keeps them: read from a live log, and written into one that is restored.

A state of a log is its counters, its content hash, and the rows of its documents, passages and vectors that live. What
leads from one state to a later one is the rows that were written in between and still live, and the operations in
between, which say which passages died (`log/rewriting.py` copies a log in the same way). A text that was written and
replaced in between is in neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from indexes.base.durable import sync_file
from indexes.base.errors import Damaged
from indexes.base.model import now_ms
from indexes.log.content import ContentHash
from indexes.log.log import create_empty, make_mark
from indexes.log.owed import OWED, Owed
from indexes.log.reader import LogReader
from indexes.log.schema import FORGOTTEN, ORIGIN
from indexes.log.sqlite import checkpoint, sqlite_errors, transaction
from indexes.store.slots import LogExtent

PART_BYTES = 16 << 20  # of rows in one object; a single document may be larger
BLOCK_BYTES = (
    4 << 20
)  # of rows read in one transaction, and about the most in a slot; an upload holds some copies
DOCUMENTS = (
    "SELECT pk, id, seq, first_passage, passages, digest, title, metadata, language, text"
    " FROM documents WHERE pk > ? AND pk <= ? ORDER BY pk"
)
SIZES = (
    "SELECT pk, octet_length(text) + octet_length(metadata), passages"
    " FROM documents WHERE pk > ? AND pk <= ? ORDER BY pk"
)
PASSAGES = (
    "SELECT id, document, ordinal, start, end, tokens, heading, text FROM passages WHERE id >= ? AND id < ?"
)
VECTORS = "SELECT id, vector FROM vectors WHERE id >= ? AND id < ?"
OPERATIONS = (
    "SELECT seq, at_ms, first_passage, passages, dead_first, dead_passages FROM operations"
    " WHERE seq > ? ORDER BY seq"
)
EMPTY = "DELETE FROM documents; DELETE FROM passages; DELETE FROM vectors; DELETE FROM operations"
COUNTERS = "SELECT name, seq FROM sqlite_sequence"

Row = tuple[Any, ...]


class Rows(msgspec.Struct, array_like=True):
    """Rows of live documents, ascending, with their passages and vectors."""

    documents: list[Row] = []
    passages: list[Row] = []
    vectors: list[Row] = []

    @property
    def bytes(self) -> int:
        """About as many as they take."""
        texts = sum(len(row[6]) + len(row[7]) + len(row[9]) for row in self.documents)
        return texts + sum(len(vector) for _, vector in self.vectors) + 64 * len(self.passages)


class LoggedState(msgspec.Struct, frozen=True):
    """A state of a log besides its rows. `sums` are those of `ContentHash`; `files` are the settings that lie beside
    the log, by name."""

    reached: LogExtent
    sums: bytes
    meta: dict[str, str]
    files: dict[str, bytes] = {}


class LogChange(msgspec.Struct):
    """What one slot of a log holds. Without a state, more follows in the next one. `restarts`: it
    replaces everything before it."""

    rows: Rows
    operations: list[Row] = []
    state: LoggedState | None = None
    restarts: bool = False


def reached_by(db: apsw.Connection) -> LogExtent:
    """How far a log has come, at the commit that a connection reads."""
    numbers: dict[str, int] = dict(db.execute(COUNTERS).fetchall())  # type: ignore[arg-type]
    content = ContentHash(sums_of(db)).short
    return LogExtent(
        numbers.get("operations", 0), numbers.get("documents", 0), numbers.get("passages", 0), content
    )


def sums_of(db: apsw.Connection) -> bytes:
    sums = db.execute("SELECT sums FROM content").get
    if not isinstance(sums, bytes):
        raise Damaged("the log has no content hash")
    return sums


def state_of(db: apsw.Connection, files: dict[str, bytes]) -> LoggedState:
    meta: dict[str, str] = dict(db.execute("SELECT key, value FROM meta").fetchall())  # type: ignore[arg-type]
    return LoggedState(reached_by(db), sums_of(db), meta, files)


def read_rows(db: apsw.Connection, after: int, upto: int) -> Rows:
    """The rows of the live documents with after < pk <= upto."""
    documents: Any = db.execute(DOCUMENTS, (after, upto)).fetchall()
    if not documents:
        return Rows()
    span = (documents[0][3], documents[-1][3] + documents[-1][4])  # documents and passages ascend together
    return Rows(documents, db.execute(PASSAGES, span).fetchall(), db.execute(VECTORS, span).fetchall())


def end_of_block(db: apsw.Connection, after: int, upto: int, most_bytes: int, dimensions: int) -> int:
    """The last pk up to `upto` so that the rows after `after` have about `most_bytes`, at least one document."""
    size = 0
    for pk, chars, passages in db.execute(SIZES, (after, upto)):
        size += int(chars) + int(passages) * (4 * dimensions + 64)
        if size >= most_bytes:
            return int(pk)
    return upto


def parts_between(log: LogReader, after: int, upto: int) -> Iterator[tuple[int, Rows]]:
    """The rows of live documents with after < pk <= upto, in parts of about PART_BYTES, each with the last pk that it
    covers. Each block is a transaction of its own, so later blocks may lack what died since the first."""
    part, size = Rows(), 0
    while after < upto:
        with log.transaction() as db:
            end = end_of_block(db, after, upto, BLOCK_BYTES, log.settings.dimensions)
            rows = read_rows(db, after, end)
        after = end
        part.documents += rows.documents
        part.passages += rows.passages
        part.vectors += rows.vectors
        size += rows.bytes
        if size >= PART_BYTES or (after == upto and part.documents):
            yield after, part
            part, size = Rows(), 0


def changes_since(log: LogReader, since: LogExtent, files: dict[str, bytes]) -> Iterator[LogChange]:
    """What leads from a state of the log to its last commit, in changes of about BLOCK_BYTES: after an hour without the
    store there may be more to upload than fits into memory. All but the last have no state."""
    with log.transaction() as db:
        restarts = since.operations > 0 and not has_operations_after(db, since)
    if restarts:  # it was written while no store was configured, and rebuilt
        yield LogChange(Rows(), restarts=True)
        since = LogExtent()
    after = since.documents
    while True:
        with log.transaction() as db:
            upto = reached_by(db).documents
            end = end_of_block(db, after, upto, BLOCK_BYTES, log.settings.dimensions)
            change = (
                LogChange(read_rows(db, after, end)) if end < upto else last_change(db, since, after, files)
            )
        yield change
        if change.state is not None:
            return
        after = end


def last_change(db: apsw.Connection, since: LogExtent, after: int, files: dict[str, bytes]) -> LogChange:
    """What leads to the commit that a connection reads, if documents up to `after` came before."""
    state = state_of(db, files)
    operations: Any = db.execute(OPERATIONS, (since.operations,)).fetchall()
    return LogChange(read_rows(db, after, state.reached.documents), operations, state)


def has_operations_after(db: apsw.Connection, since: LogExtent) -> bool:
    """Whether a log has all operations after a state; it drops those that no generation needs."""
    ((count,),) = db.execute("SELECT count(*) FROM operations WHERE seq > ?", (since.operations,)).fetchall()
    return count == reached_by(db).operations - since.operations


class RestoredLog:
    """A log that is being written from what a store holds: parts first, then changes in order, then `finish`."""

    def __init__(self, path: Path) -> None:
        self._path, self._db = path, create_empty(path)
        self._db.execute("PRAGMA synchronous = OFF")  # `finish` syncs it
        self.state: LoggedState | None = None
        self._forgotten_ms = 0

    def insert(self, rows: Rows) -> None:
        """Add rows. A document replaces that of the same id."""
        with sqlite_errors(self._path, self._db), transaction(db := self._db):
            insert(db, rows)

    def apply(self, changes: list[LogChange]) -> None:
        """Apply the changes that lead to the next state, the last of which has it."""
        state = changes[-1].state
        assert state is not None
        with sqlite_errors(self._path, self._db), transaction(db := self._db):
            write_changes(db, changes)
        self.state = state

    def set_state(self, state: LoggedState, last_ms: int) -> None:
        """Take what was inserted for a state, the last operation of which is of `last_ms`. Its operations are not
        known: they would only tell older indexes what died."""
        self.state, self._forgotten_ms = state, last_ms

    def finish(self, uid: str | None = None) -> LoggedState:
        """Check that the documents are those of the state, and make the log durable. Raises Damaged."""
        assert self.state is not None
        state, db = self.state, self._db
        with sqlite_errors(self._path, db):
            content = ContentHash()
            for document_id, digest in db.execute("SELECT id, digest FROM documents"):
                content.add(str(document_id), bytes(digest))
            last = state.reached.operations
            if content.stored != state.sums:
                raise Damaged(f"what the store holds does not make the documents of operation {last}")
            meta = state.meta if uid is None else {ORIGIN: state.meta["uid"], **state.meta, "uid": uid}
            meta = {**meta, OWED: known_now(Owed.read(meta[OWED])).stored}
            if self._forgotten_ms:
                meta = {**meta, FORGOTTEN: str(self._forgotten_ms)}
            with transaction(db):
                db.execute("DELETE FROM meta")
                db.executemany("INSERT INTO meta VALUES(?, ?)", list(meta.items()))
                db.execute("DELETE FROM content")
                db.execute("INSERT INTO content VALUES(?)", (state.sums,))
                number(db, state.reached)
            db.execute("PRAGMA synchronous = FULL")
            checkpoint(db, self._path)
        sync_file(self._path)
        make_mark(self._path, db)
        return state

    def close(self) -> None:
        self._db.close()


def known_now(owed: Owed) -> Owed:
    """What another machine owes is owed by a copy, too: its files hold what was removed since the last checkpoint. Not
    later than now by this machine's clock, by which it learns of erasures."""
    return owed if owed.since_ms is None else Owed(owed.bytes, min(owed.since_ms, now_ms()))


def insert(db: apsw.Connection, rows: Rows) -> None:
    db.executemany("INSERT OR REPLACE INTO documents VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows.documents)
    db.executemany("INSERT OR REPLACE INTO passages VALUES(?, ?, ?, ?, ?, ?, ?, ?)", rows.passages)
    db.executemany("INSERT OR REPLACE INTO vectors VALUES(?, ?)", rows.vectors)


def insert_operation(db: apsw.Connection, row: Row) -> None:
    db.execute("INSERT OR REPLACE INTO operations VALUES(?, ?, '', ?, ?, ?, ?)", row)


def remove(db: apsw.Connection, dead_first: int, dead_passages: int) -> int:
    """Remove the document of these passages; returns about how many bytes it had."""
    span = (dead_first, dead_first + dead_passages)
    removed: Any = db.execute(
        "DELETE FROM documents WHERE pk = (SELECT document FROM passages WHERE id = ?)"
        " RETURNING octet_length(text) + octet_length(metadata)",
        (dead_first,),
    ).fetchall()
    db.execute("DELETE FROM passages WHERE id >= ? AND id < ?", span)
    vectors: Any = db.execute(
        "DELETE FROM vectors WHERE id >= ? AND id < ? RETURNING octet_length(vector)", span
    )
    return sum(size for (size,) in [*removed, *vectors])


def replay(changes: list[LogChange], db: apsw.Connection) -> int:
    """Write into a live log the changes that lead to the next state, in an open transaction. Returns how many bytes of
    content they removed."""
    state = changes[-1].state
    assert state is not None
    dead = write_changes(db, changes)
    db.execute("UPDATE content SET sums = ?", (state.sums,))
    number(db, state.reached)
    return dead


def write_changes(db: apsw.Connection, changes: list[LogChange]) -> int:
    dead = 0
    for change in changes:
        if change.restarts:
            db.execute(EMPTY)
        insert(db, change.rows)
        for operation in change.operations:
            insert_operation(db, operation)
            dead += remove(db, dead_first=operation[4], dead_passages=operation[5])
    return dead


def number(db: apsw.Connection, reached: LogExtent) -> None:
    """Set the numbers that a log has given."""
    db.execute("DELETE FROM sqlite_sequence")
    numbers = [(one, getattr(reached, one)) for one in ("operations", "documents", "passages")]
    db.executemany("INSERT INTO sqlite_sequence VALUES(?, ?)", numbers)
