"""Consistent reads of one commit of a log, or a copy of the whole file, from outside the service.

Writers are not blocked, but the write-ahead log cannot be checkpointed past the pinned commit, so it grows until the
block ends.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np

from indexes.base.errors import Damaged, DiskFull, StorageError, Unavailable
from indexes.base.model import Ids, Progress, Settings
from indexes.log.mark import NEWEST_SEQ, UnopenedLog, cycle_of
from indexes.log.reader import require_format
from indexes.log.sqlite import connect, connect_frozen, sqlite_errors
from indexes.log.wal import require_whole_wal, wal_of

FIRST_READ = "BEGIN; SELECT count(*) FROM meta"
NO_PLACE = (apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMOPEN, apsw.SQLITE_IOERR_SHMMAP)
STEPS_BETWEEN = 100_000  # of SQLite, between two checks whether to stop
COPIED_PAGES = 4096  # per step: small enough to show progress and to be interruptible
LOOKS, PAUSE_S = (
    4,
    0.05,
)  # tries on files that seem to be from different times, in case a writer just changed one


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of a log at one commit. Its history holds every operation after `forgotten` up to `seq`."""

    uid: str
    settings: Settings
    seq: int
    last_passage: int
    documents: int
    passages: int
    forgotten: int

    def covers(self, generation_seq: int) -> bool:
        """Whether a generation of this seq can be brought up to date from this log."""
        return self.forgotten <= generation_seq <= self.seq


@contextlib.contextmanager
def pin(path: Path, *, frozen: bool = False) -> Iterator[PinnedLog]:
    """Pin the last commit of the log at `path`. Raises StorageError if the file is not a readable log, Damaged if
    acknowledged operations are missing (`mark`, `wal`).

    `frozen` asserts that nothing writes the file, as in a backup; then no WAL or lock file is created beside it.
    """
    with sqlite_errors(path):
        db = connect_frozen(path) if frozen else begin_whole(path)
        try:
            yield PinnedLog(path, db)
        finally:
            db.close()


def require_readable(path: Path, stopped: Callable[[], bool]) -> None:
    """Read the whole log. Raises Damaged or StorageError unless all of it is there and well-formed, or if `stopped`."""
    with pin(path) as log:
        log.db.set_progress_handler(stopped, STEPS_BETWEEN)
        found = str(log.value("PRAGMA quick_check(1)"))
    if found != "ok":
        raise Damaged(f"{path.parent.name}/{path.name} is damaged: {found}")


def begin_whole(path: Path) -> apsw.Connection:
    """Like `begin`. Raises Damaged if another file shows that operations are missing from the log."""
    lacking = None
    for look in range(LOOKS):
        time.sleep(PAUSE_S if look else 0)
        known = UnopenedLog.read(path)
        require_whole_wal(path)
        db = begin(path)
        try:
            uid = str(db.execute("SELECT value FROM meta WHERE key = 'uid'").get)
            lacking = known.lacking(uid, int(db.execute(NEWEST_SEQ).get or 0), cycle_of(db))
            if lacking is None:
                return db
        except BaseException:
            db.close()
            raise
        db.close()
    raise Damaged(str(lacking))


def begin(path: Path) -> apsw.Connection:
    """A connection with a read transaction on the last commit.

    If the service replaces the file (`Log.replace_by`) between the open and the first read, the connection may combine
    the old file with the new WAL: retry.

    SQLite makes a small file beside the log to read it. On a disk that is full or read-only, a log without commits in
    its WAL is read without that file; another one raises DiskFull or StorageError.
    """
    while True:
        opened = inode(path)
        try:
            db = connect(path, read_only=True)
        except (StorageError, Unavailable) as error:
            if lacks_a_place(path, error.__cause__):
                return begin_frozen(path)
            raise
        try:
            db.execute(FIRST_READ).fetchall()
            if inode(path) == opened:
                return db
        except BaseException as error:
            db.close()
            if lacks_a_place(path, error):
                return begin_frozen(path)
            raise
        db.close()


def lacks_a_place(path: Path, error: BaseException | None) -> bool:
    """Whether SQLite could not make its file beside the log."""
    if isinstance(error, apsw.IOError):
        return getattr(error, "extendedresult", 0) in NO_PLACE
    cannot_open = isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError))
    return cannot_open and path.is_file() and (not os.access(path.parent, os.W_OK) or not has_room(path))


def has_room(path: Path) -> bool:
    return os.statvfs(path.parent).f_bavail > 0


def begin_frozen(path: Path) -> apsw.Connection:
    wal = wal_of(path)
    if wal.exists() and wal.stat().st_size:
        if has_room(path):
            raise StorageError(f"{path.parent} may not be written, which reading {wal.name} needs")
        raise DiskFull(f"no space left in {path.parent}, which reading {wal.name} needs")
    db = connect_frozen(path)
    db.execute(FIRST_READ).fetchall()
    return db


def inode(path: Path) -> int:
    """The file's inode; 0 if it is missing, in which case opening it raises the error."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


class PinnedLog:
    """Reads one commit. Made by `pin`; valid inside its block, on one thread."""

    def __init__(self, path: Path, db: apsw.Connection) -> None:
        self.path = path
        self.db = db

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> Iterator[Any]:
        return iter(self.db.execute(sql, parameters))

    def value(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        """The first column of the first row, None if there is none."""
        return next((row[0] for row in self.rows(sql, parameters)), None)

    def state(self) -> LogState:
        """Raises StorageError for an unsupported log format, Damaged if its `meta` cannot be read."""
        meta: dict[str, str] = dict(self.rows("SELECT key, value FROM meta"))
        require_format(meta, self.path)
        try:
            uid, settings = meta["uid"], msgspec.json.decode(meta["settings"], type=Settings)
        except (KeyError, msgspec.DecodeError) as error:
            raise Damaged(f"{self.path}: the description of the collection is damaged: {error}") from error
        counters = dict(self.rows("SELECT name, seq FROM sqlite_sequence"))
        seq = int(counters.get("operations", 0))
        # Seqs are contiguous, so only the oldest operations can be missing.
        oldest = self.value("SELECT min(seq) FROM operations")
        [(documents, passages)] = self.rows("SELECT count(*), coalesce(sum(passages), 0) FROM documents")
        return LogState(
            uid=uid,
            settings=settings,
            seq=seq,
            last_passage=int(counters.get("passages", 0)),
            documents=documents,
            passages=passages,
            forgotten=seq if oldest is None else oldest - 1,
        )

    def live_ids(self, upto: int) -> Ids:
        """Ids of the live passages, ascending."""
        ids = (row[0] for row in self.rows("SELECT id FROM passages WHERE id <= ? ORDER BY id", (upto,)))
        return np.fromiter(ids, np.int64)

    def dead_ids(self, after_seq: int) -> Ids:
        """Ids of the passages that operations after this one removed."""
        sql = "SELECT dead_first, dead_passages FROM operations WHERE seq > ? AND dead_passages > 0"
        ranges = [np.arange(first, first + count) for first, count in self.rows(sql, (after_seq,))]
        return np.concatenate(ranges) if ranges else np.empty(0, np.int64)

    def copy_to(self, path: Path, progress: Progress) -> None:
        """Copy the whole log at this commit to a new file, not synced. Progress counts bytes.

        Raises DiskFull or StorageError; the caller then removes the partial file.
        """
        with sqlite_errors(path):
            copy = apsw.Connection(str(path))
        try:
            with sqlite_errors(path, copy):
                copy.execute("PRAGMA synchronous = OFF")  # the publisher of the file syncs it
                page_bytes = int(self.value("PRAGMA page_size"))
                with copy.backup("main", self.db, "main") as backup:
                    while not backup.done:
                        backup.step(COPIED_PAGES)
                        done = backup.page_count - backup.remaining
                        progress("log", done * page_bytes, backup.page_count * page_bytes)
        finally:
            copy.close()
