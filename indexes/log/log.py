"""The log of one collection: documents, passages, vectors and operations, in SQLite. The source of truth.

Guarantees
- `commit` returns after the operations of all its writes are synced to disk, or raises and keeps none.
- Passage ids and sequence numbers only grow and are never reused, even after deletions and restarts.
- The content hash is updated in the same transaction as the documents, so it always describes them.
- A deleted or replaced passage disappears from `passages` and `documents` at once; its id range stays in
  `operations` as a tombstone until every generation that may hold it is gone, so that indexes can hide it. Operations
  hold numbers only, and deleting a missing document records none.
- A lost file of the log, or one from an earlier time, is noticed when the log is opened (`mark`).
- Removed content is counted in `owed` until it is erased: SQLite leaves its bytes in the file (`rewriting`).

Only the collection's writer thread may call `commit`. Reads are in `LogReader` (`reader.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw
import msgspec

from indexes.base import failpoints, failures
from indexes.base.durable import publish, replace_synced
from indexes.base.errors import Conflict, Damaged, DiskFull, StorageError, Unavailable
from indexes.base.model import Delete, Operation, Settings, Upsert, WriteResult, now_ms
from indexes.base.work import OnStep
from indexes.log.applying import Applied, apply
from indexes.log.content import ContentHash
from indexes.log.mark import FILE as MARK
from indexes.log.mark import Mark, MarkFile, UnopenedLog, cycle_after, cycle_of, first_cycle
from indexes.log.owed import OWED, Owed
from indexes.log.reader import FORMAT, LogReader
from indexes.log.rewriting import Copy, remove_copies
from indexes.log.schema import CREATED, FORGOTTEN, INSERT_CONTENT, SCHEMA
from indexes.log.sqlite import Checkpoints, checkpoint, connect, empty_wal, sqlite_errors, transaction
from indexes.log.wal import require_whole_wal, wal_of

# Idle logs that keep their write connection open, with up to four descriptors each: 1,024 descriptors must suffice for
# a thousand logs plus client connections.
OPEN_KEPT = 64

PUT_META = "INSERT OR REPLACE INTO meta VALUES(?, ?)"
# The time of the last operation that is deleted stays.
KEEP_FORGOTTEN = (
    "INSERT OR REPLACE INTO meta SELECT ?, at_ms FROM operations WHERE seq <= ? ORDER BY seq DESC LIMIT 1"
)


logger = logging.getLogger(__name__)

_open: weakref.WeakSet[Log] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Transacted:
    """What a transaction did, and the state that it leaves."""

    results: list[WriteResult]
    applied: list[Applied]
    content: ContentHash
    owed: Owed
    cycle: int


class Log(LogReader):
    """A log open for reading and writing. `Log.create` makes one, `Log(path)` opens one; `close` it."""

    def __init__(self, path: Path, clock: Callable[[], int] = now_ms) -> None:
        known = UnopenedLog.read(path)
        require_whole_wal(path)
        self._connection: apsw.Connection | None = None  # opened when needed, see `rest`
        self._files: dict[Path, os.stat_result] = {}  # those of the connection, as they were last seen
        self._release = failures.hold()
        try:
            super().__init__(path, clock)
            self.newest_seq = self.position().seq
            """Seq of the last commit started; set just before that commit becomes readable."""
            self._cycle = int(self._rows("PRAGMA user_version")[0][0])
            if lacking := known.lacking(self.uid, self.newest_seq, self._cycle):
                raise Damaged(lacking)
            remove_copies(path)
            self._complete = known.without_wal  # log.db alone holds every commit: the next one begins a cycle
            self._mark = MarkFile(path, known.mark)
            rows = self._rows("SELECT sums FROM content")
            if len(rows) != 1:
                raise Damaged(f"{path} has {len(rows)} content hashes, expected one")
            self._content = ContentHash(rows[0][0])
            [(owed,)] = self._rows("SELECT value FROM meta WHERE key = ?", (OWED,))
            self.owed = Owed.read(owed)
            # Always connect: a log that is not writable should fail here, not at the first write.
            with contextlib.suppress(DiskFull), self._changing() as db:
                if not known.without_wal:
                    self._overwrite_unseen(db)
                self._note(complete=self._complete)
                self._mark.sync()
            self.rest()
        except BaseException:
            self.close(as_is=True)
            raise

    @staticmethod
    def create(path: Path, settings: Settings, uid: str) -> Log:
        """Make a new log. Raises Conflict if the file exists."""
        if path.exists():
            raise Conflict(f"{path} exists already")
        meta = {
            "format": str(FORMAT),
            "uid": uid,
            "settings": msgspec.json.encode(settings).decode(),
            OWED: Owed().stored,
            CREATED: str(now_ms()),
        }
        with changing(path):
            with contextlib.closing(create_empty(path)) as db:
                with sqlite_errors(path, db):
                    db.executemany("INSERT INTO meta VALUES(?, ?)", list(meta.items()))
                checkpoint(db, path)  # closing would checkpoint too, but hides a failed sync
                make_mark(path, db)
        return Log(path)

    def close(self, *, as_is: bool = False) -> None:
        """Checkpoint the WAL and close. With `as_is`, or after a failure, leave the files for the next opening."""
        super().close()
        try:
            if self._connection is None:
                return
            marked = False
            if not as_is:
                with contextlib.suppress(StorageError), self._changing() as db:
                    self._note(complete=checkpoint(db, self.path) or self._complete)
                    self._mark.sync()
                    marked = True
            if not marked or self.damage is not None or failures.any_reported():
                self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._disconnect()
        finally:
            self._release()

    def rest(self) -> None:
        """Checkpoint an idle log, so that its last writes are not only in its WAL. If too many logs are open, truncate
        its WAL and close the write connection too.

        Writer thread only; the next commit reopens the connection. A failed sync is reported.
        """
        if self._connection is None:
            return
        with contextlib.suppress(StorageError), self._changing() as db:
            self._checkpoint_if(pages=1)
            if len(_open) <= OPEN_KEPT:
                return
            self._note(complete=True)
            self._mark.sync()
            if empty_wal(db, self.path):
                self._complete = True
                self._disconnect()

    @property
    def _db(self) -> apsw.Connection:
        if self._connection is None:
            if not self.path.exists():
                raise Damaged(f"{self._name} is gone")
            self._connection = connect(self.path)
            self._checkpoints = Checkpoints(self._connection, self.path)
            _open.add(self)
        self._require_files()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._checkpoints.close()
            self._connection.close()
            self._connection = None
            self._files.clear()
            _open.discard(self)

    def _require_files(self) -> None:
        """Raise Damaged unless the files that are open are still there. SQLite goes on writing to one that was removed,
        and nothing of that is found again. log.db never gets shorter; its WAL may."""
        for path in (self.path, wal_of(self.path)):
            known = self._files.get(path)
            try:
                found = path.stat()
            except FileNotFoundError:
                if known is None and path != self.path:  # the WAL, before the first access
                    continue
                raise Damaged(f"{path.parent.name}/{path.name} is gone") from None
            if known is not None and found.st_ino != known.st_ino:
                raise Damaged(f"{path.parent.name}/{path.name} was replaced while it was open")
            if known is not None and path == self.path and found.st_size < known.st_size:
                raise Damaged(f"{self._name} was truncated while it was open")
            self._files[path] = found

    @property
    def _name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def content(self) -> bytes:
        """A 32-byte hash of the live documents after the last commit. Writer thread only."""
        return self._content.short

    def digests(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Digests of the live documents among these, by id."""
        sql = "SELECT id, digest FROM documents WHERE id IN (SELECT value FROM json_each(?))"
        return dict(self._rows(sql, (msgspec.json.encode(list(ids)).decode(),)))

    def commit(self, writes: Sequence[Sequence[Operation]]) -> tuple[list[WriteResult], list[Applied]]:
        """Apply several writes in one synced transaction. Returns one result per write, and all operations in order.

        Raises DiskFull after rolling all of them back, Quarantined if the file turns out to be damaged. After any other
        StorageError they may or may not exist when the log is reopened, and nothing more is committed until then.
        """
        done = self._retry_on_damage(lambda: self._transact(writes))
        self._content, self.owed = done.content, done.owed
        failpoints.reach("commit.synced")
        if done.applied:
            with self._sound():
                self._committed(done.cycle)
        return done.results, done.applied

    def _transact(self, writes: Sequence[Sequence[Operation]]) -> Transacted:
        """Run one synced transaction. If it raises, nothing of it remains, except as `commit` says."""
        results: list[WriteResult] = []
        applied: list[Applied] = []
        content, owed, cycle = self._content.copy(), self.owed, self._cycle
        weights = self.settings.field_weights
        with self._transaction() as db:
            for operations in writes:
                done = [apply(db, operation, content, weights) for operation in operations]
                applied += [one for one in done if one is not None]
                results.append(self._summarize(operations, done, last_seq(db)))
            if applied:
                db.execute("UPDATE content SET sums = ?", (content.stored,))
                cycle = self._begin_cycle(db)
                self.newest_seq = applied[-1].seq
            if dead := sum(one.dead_bytes for one in applied):
                owed = owed.plus(dead, now_ms())
                db.execute(PUT_META, (OWED, owed.stored))
        return Transacted(results, applied, content, owed, cycle)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[apsw.Connection]:
        """A transaction that is synced at the end of the block, or rolled back with `newest_seq` if that raises."""
        db, newest_before = self._db, self.newest_seq
        with changing(self.path, db):
            failpoints.reach("commit.begin")
            try:
                with transaction(db):
                    yield db
                    failpoints.reach("commit.before_sync")
            except BaseException:
                self.newest_seq = newest_before
                raise

    def replay(self, write: Callable[[apsw.Connection], int]) -> None:
        """Commit, in one synced transaction, rows with the numbers that the log of another machine gave them, counters
        and content hash included. `write` writes them and returns how many bytes of content it removed.

        Raises like `commit`.
        """
        with self._sound():
            with self._transaction() as db:
                dead = write(db)
                content = ContentHash(bytes(db.execute("SELECT sums FROM content").get))
                cycle = self._begin_cycle(db)
                owed = self.owed.plus(dead, now_ms()) if dead else self.owed
                db.execute(PUT_META, (OWED, owed.stored))
                self.newest_seq = last_seq(db)
            self._content, self.owed = content, owed
            self._committed(cycle)

    def _begin_cycle(self, db: apsw.Connection) -> int:
        """Inside a transaction. The first one after a complete checkpoint begins a new cycle; returns the cycle."""
        if not self._complete:
            return self._cycle
        cycle = cycle_after(self._cycle)
        db.execute(f"PRAGMA user_version = {cycle}")
        return cycle

    def _committed(self, cycle: int) -> None:
        self._cycle, self._complete = cycle, False
        self._note(complete=False)
        self._checkpoint_if()

    def _overwrite_unseen(self, db: apsw.Connection) -> None:
        """Commit nothing, so that a commit which is not seen at this opening is not seen at a later one either.

        SQLite writes a commit to the WAL and then to the index it shares with other programs. If a kill comes in
        between while a backup or a builder reads the log, the commit stays unseen until the last of them has left:
        only then does SQLite rebuild the index from the WAL. A commit on top of it takes its place in the WAL.
        """
        db.execute(f"PRAGMA user_version = {self._cycle}")

    def _note(self, *, complete: bool, next_cycle: int = 0) -> None:
        self._mark.note(Mark(self.uid, self.newest_seq, self._cycle, complete, next_cycle))

    def _checkpoint_if(self, pages: int | None = None) -> None:
        """Checkpoint, and sync the mark, if the WAL has grown by this many pages."""
        if self._checkpoints.run_if_due(pages):
            self._complete = True
            self._note(complete=True)
            self._mark.sync()

    def follow(self, copy: Copy, on_step: OnStep) -> int:
        """Let a copy catch up, see `Copy.follow`."""
        with self._sound():
            return copy.follow(on_step)

    def replace_by(self, copy: Copy, erased: Owed, began_ms: int) -> None:
        """Replace the file with a copy, free of what was owed when the copy began. Writer thread only.

        Reads block until it is done. Raises Unavailable, and changes nothing, if another program, such as a backup,
        has the log open.
        """
        owed = self.owed.less(erased, began_ms)
        with self._changing() as db:
            checkpoint(db, self.path)  # as much as possible before blocking reads
            copy.finish(owed)
        failpoints.reach("erase.synced")
        with self._readers.kept_out(), self._changing() as db:
            self._note(complete=True, next_cycle=copy.cycle)
            self._mark.sync()
            emptied = empty_wal(db, self.path)
            self._complete = self._complete or emptied
            self._disconnect()
            # SQLite removes the WAL with the last connection. A leftover WAL would corrupt the new file.
            if not emptied or wal_of(self.path).exists():
                raise Unavailable(f"{self._name} is being read by another program")
            failpoints.reach("erase.wal_removed")
            replace_synced(copy.path, self.path)
        failpoints.reach("erase.replaced")
        self.owed, self._cycle, self._complete = owed, copy.cycle, True
        self._note(complete=True)

    def forget_operations(self, before_seq: int) -> None:
        """Delete operations up to and including `before_seq`; no kept generation may be older than that."""
        with self._changing() as db:
            failpoints.reach("forget.begin")
            with transaction(db):
                db.execute(KEEP_FORGOTTEN, (FORGOTTEN, before_seq))
                db.execute("DELETE FROM operations WHERE seq <= ?", (before_seq,))
                cycle = self._begin_cycle(db)
            failpoints.reach("forget.synced")
            self._committed(cycle)

    def _summarize(
        self, operations: Sequence[Operation], applied: Sequence[Applied | None], seq: int
    ) -> WriteResult:
        upserts = [op for op in operations if isinstance(op, Upsert)]
        deleted = [
            done
            for op, done in zip(operations, applied, strict=True)
            if isinstance(op, Delete) and done is not None
        ]
        return WriteResult(
            seq=seq,
            documents=len(upserts),
            passages=sum(len(op.passages) for op in upserts),
            tokens=sum(passage.tokens for op in upserts for passage in op.passages),
            deleted=len(deleted),
            expired=sum(not self.is_live(one.dead_expires_ms) for one in deleted),
        )

    @contextlib.contextmanager
    def _changing(self) -> Iterator[apsw.Connection]:
        with self._sound():
            db = self._db
            with changing(self.path, db):
                yield db


def create_empty(path: Path) -> apsw.Connection:
    """Make a log without documents and without `meta`, in a cycle of its own."""
    db = connect(path, create=True)
    try:
        with sqlite_errors(path, db), transaction(db):
            for table in SCHEMA:
                db.execute(table)
            db.execute(INSERT_CONTENT, (ContentHash().stored,))
            db.execute(f"PRAGMA user_version = {first_cycle()}")
    except BaseException:
        db.close()
        raise
    return db


def make_mark(path: Path, db: apsw.Connection) -> None:
    """Publish the mark of a log that is whole: a new or a restored one."""
    uid = str(db.execute("SELECT value FROM meta WHERE key = 'uid'").get)
    publish(path.with_name(MARK), Mark(uid, last_seq(db), cycle_of(db), complete=True).stored)


@contextlib.contextmanager
def changing(path: Path, db: apsw.Connection | None = None) -> Iterator[None]:
    """Refuse to start after an earlier failed sync, and report one that happens in this block."""
    failures.require_none()
    try:
        with sqlite_errors(path, db):
            yield
    except StorageError as error:
        if failures.may_be_a_failed_sync(error):
            failures.report(error)
        raise


def last_seq(db: apsw.Connection) -> int:
    found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'operations'").get
    return int(found) if isinstance(found, int) else 0
