"""SQLite through apsw, as the log uses it: opening, error translation, and a pool of readers.

Descriptors: a write connection holds up to four (file, WAL, shared memory, and the file again if a reader was closed
while it was open), and so does a reader. Idle readers are bounded across all logs, and so are idle logs that stay open
for writing (`Log.rest`): beyond these bounds, an unused collection holds none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import apsw

from indexes.base import failpoints
from indexes.base.durable import NO_ROOM, disk_errors
from indexes.base.errors import (
    Damaged,
    DiskFull,
    InvalidInput,
    NotReady,
    OutOfDescriptors,
    StorageError,
    Unavailable,
)

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 10_000
CHECKPOINT_PAGES = 1000  # WAL pages that trigger a checkpoint; SQLite's own default
READERS_KEPT = 32  # idle, across all logs: opening one costs more than a small read
KEPT_OUT_S_MAX = 0.2  # how long `kept_out` blocks new reads while it waits for running ones
READER_CACHE_KIB, WRITER_CACHE_KIB = 4096, 16384
# The bytes are unreadable or not what was written. No sync is involved, so no acknowledged write is in doubt.
UNREADABLE = (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS)


def connect(path: Path, *, read_only: bool = False, create: bool = False) -> apsw.Connection:
    """A connection in WAL mode whose commits are synced before they return.

    If descriptors run out, closes idle readers and retries.
    """
    try:
        return _connect(path, read_only, create)
    except OutOfDescriptors:
        close_idle_readers()
        return _connect(path, read_only, create)


def _connect(path: Path, read_only: bool, create: bool) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
    with sqlite_errors(path):
        db = apsw.Connection(str(path), flags=flags)
        db.set_busy_timeout(BUSY_TIMEOUT_MS)
    with sqlite_errors(path, db):
        if not read_only:
            if db.readonly("main"):  # SQLite opens it anyway
                db.close()
                raise StorageError(f"{path} may not be written")
            # If the switch fails, SQLite does not raise; it returns the mode still in use.
            if db.execute("PRAGMA journal_mode = WAL").get != "wal":
                db.close()
                raise StorageError(f"{path} cannot be switched to a write-ahead log")
            # FULL, not the WAL default of NORMAL: an acknowledged write must survive a power loss.
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA journal_size_limit = 67108864")
        # Small for readers: there are many, and they share the OS page cache.
        db.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB if read_only else WRITER_CACHE_KIB}")
    return db


def connect_frozen(path: Path) -> apsw.Connection:
    """A connection to the database file alone, as if it had no WAL and nothing wrote it."""
    uri = f"file:{quote(str(path))}?immutable=1"
    return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


@contextlib.contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """A transaction that is committed at the end of the block, or rolled back if that raises. After a full disk SQLite
    has rolled it back by itself, and asking again would be an error that hides the cause."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


class Checkpoints:
    """Checkpoints a connection's WAL when it has grown, replacing SQLite's automatic checkpoint.

    SQLite's own hides a failed sync, after which the next sync may succeed although the bytes are not on disk.
    """

    def __init__(self, db: apsw.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._pages = 0
        db.set_wal_hook(self._note)

    def _note(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def run_if_due(self, pages: int | None = None) -> bool:
        """Checkpoint if the WAL has grown by this many pages, by default CHECKPOINT_PAGES. Returns whether all of it
        is in the database now.

        Call after a commit. Raises StorageError if a sync fails. On a full disk, pages stay safely in the WAL.
        """
        if self._pages < (CHECKPOINT_PAGES if pages is None else pages):
            return False
        failpoints.reach("checkpoint.begin")
        complete = False
        try:
            complete = checkpoint(self._db, self._path)
        except DiskFull:
            logger.warning("no space left to move the WAL of %s into the file", self._path)
        failpoints.reach("checkpoint.end")
        if complete:
            self._pages = 0
        return complete

    def close(self) -> None:
        self._db.set_wal_hook(None)


def empty_wal(db: apsw.Connection, path: Path) -> bool:
    """Checkpoint the whole WAL, synced, and truncate it. False if a reader prevents that."""
    with sqlite_errors(path, db):
        db.set_busy_timeout(0)
        try:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            return False
        finally:
            db.set_busy_timeout(BUSY_TIMEOUT_MS)
    return True


def checkpoint(db: apsw.Connection, path: Path) -> bool:
    """Passive checkpoint: move WAL pages that no reader needs into the database file, synced. Does not wait.

    Returns whether that was all of them.
    """
    with sqlite_errors(path, db), contextlib.suppress(apsw.BusyError):
        pages, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return 0 <= pages == moved
    return False


class Readers:
    """Read-only connections, borrowed by one thread at a time and kept for the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = False
        self._borrowed = 0
        self._kept_out = False
        self._coming_and_going = threading.Condition()
        self._of_thread = threading.local()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """A connection for several reads at the same commit. Until it ends, no checkpoint passes that commit."""
        with self.borrow() as db:
            if db is self._pinned:
                yield db
                return
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    @property
    def _pinned(self) -> apsw.Connection | None:
        return getattr(self._of_thread, "pinned", None)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[apsw.Connection]:
        """A transaction which has all that this thread reads inside the block."""
        before = self._pinned
        with self.transaction() as db:
            self._of_thread.pinned = db
            try:
                yield db
            finally:
                self._of_thread.pinned = before

    @contextlib.contextmanager
    def borrow(self) -> Iterator[apsw.Connection]:
        if self._pinned is not None:
            with sqlite_errors(self._path):
                yield self._pinned
            return
        if self._closed:
            message = f"{self._path.parent.name} was closed, renamed or deleted while it was read; ask again"
            raise NotReady(message, retry_after_s=1, param="collection")
        with self._coming_and_going:
            self._coming_and_going.wait_for(lambda: not self._kept_out)
            self._borrowed += 1
        try:
            with sqlite_errors(self._path):
                db = self._take() or connect(self._path, read_only=True)
                try:
                    yield db
                finally:
                    self._give_back(db)
        finally:
            with self._coming_and_going:
                self._borrowed -= 1
                self._coming_and_going.notify_all()

    @contextlib.contextmanager
    def kept_out(self) -> Iterator[None]:
        """No connection is open inside this block; `borrow` waits until it ends. Keep it short.

        Raises Unavailable if a connection is still borrowed after KEPT_OUT_S_MAX.
        """
        with self._coming_and_going:
            self._kept_out = True
        try:
            with self._coming_and_going:
                if not self._coming_and_going.wait_for(lambda: not self._borrowed, KEPT_OUT_S_MAX):
                    raise Unavailable(f"{self._path.parent.name}/{self._path.name} is being read")
            close_idle_readers(self)
            yield
        finally:
            with self._coming_and_going:
                self._kept_out = False
                self._coming_and_going.notify_all()

    def close(self) -> None:
        self._closed = True
        close_idle_readers(self)

    def _take(self) -> apsw.Connection | None:
        with _change:
            at = next((at for at in reversed(range(len(_idle))) if _idle[at][0] is self), None)
            return None if at is None else _idle.pop(at)[1]

    def _give_back(self, db: apsw.Connection) -> None:
        closing: apsw.Connection | None = db
        # A cursor with rows left keeps its commit, even after a rollback: the next borrower would read that one.
        reading = db.txn_state() != apsw.SQLITE_TXN_NONE
        with _change:
            if not self._closed and not reading:
                _idle.append((self, db))
                closing = _idle.pop(0)[1] if len(_idle) > READERS_KEPT else None
        if closing is not None:
            closing.close(force=True)


# Per process, like descriptors. Least recently used first.
_idle: list[tuple[Readers, apsw.Connection]] = []
_change = threading.Lock()


def close_idle_readers(readers: Readers | None = None) -> None:
    """Close the idle readers of one log, or of all."""
    with _change:
        closing = [one for one in _idle if readers in (None, one[0])]
        _idle[:] = [one for one in _idle if one not in closing]
    for _, db in closing:
        db.close()


@contextlib.contextmanager
def sqlite_errors(path: Path, db: apsw.Connection | None = None) -> Iterator[None]:
    """Translate SQLite's errors into ours, with the path. Given `db`, an exhausted quota also counts as DiskFull."""
    try:
        yield
    except apsw.FullError as error:
        raise DiskFull(f"no space left for {path}") from error
    except apsw.BusyError as error:
        raise Unavailable(f"{path} is locked by another program", retry_after_s=5) from error
    except apsw.TooBigError as error:
        raise InvalidInput(f"a value is too large for the log: {error}") from error
    except apsw.CantOpenError as error:
        with disk_errors(path), damage_unless_found(path):
            os.close(os.open(path, os.O_RDONLY))
        # SQLite does not say why. The file itself can be opened now, so the cause was transient.
        raise Unavailable(f"{path.parent.name}/{path.name} could not be opened: {error}") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise Damaged(f"{path.parent.name}/{path.name} is damaged: {error}") from error
    except apsw.IOError as error:
        if getattr(error, "extendedresult", 0) in UNREADABLE:
            raise Damaged(f"{path.parent.name}/{path.name} is damaged, it cannot be read: {error}") from error
        if db is not None and lacks_room(error, db):
            raise DiskFull(f"no space left for {path}") from error
        raise StorageError(f"{path}: {type(error).__name__}: {error}") from error
    except apsw.Error as error:
        raise StorageError(f"{path}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def damage_unless_found(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise Damaged(f"{path.parent.name}/{path.name} cannot be opened: {error.strerror}") from error


def lacks_room(error: apsw.IOError, db: apsw.Connection) -> bool:
    """Whether a write failed for lack of space that SQLite does not report as such: a quota, a limit, shared memory.

    A failed sync never counts: it leaves the disk in an unknown state, whatever the reason.
    """
    growing = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE)
    return getattr(error, "extendedresult", 0) in growing and db.system_errno in NO_ROOM
