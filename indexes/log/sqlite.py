"""SQLite through apsw, as the log uses it: opening, errors translated into ours, and a pool of readers.

Descriptors: a connection that writes holds up to four (file, WAL, shared memory, and the file once more where a reader
was closed beside it), and so does a reader. Idle readers are bounded over all logs together, and so are logs that stay
open for writing while they are idle (`Log.rest`): beyond these, a collection that is not used holds none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw

from indexes import failpoints
from indexes.durable import NO_ROOM, disk_errors
from indexes.errors import (
    Damaged,
    DiskFull,
    InvalidInput,
    NotFound,
    OutOfDescriptors,
    StorageError,
    Unavailable,
)

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 10_000
CHECKPOINT_PAGES = 1000  # of the WAL, at which they are moved into the database file; as SQLite itself would
READERS_KEPT = 32  # idle ones of all logs together: opening one costs more than a small read
KEPT_OUT_S_MAX = 0.2  # that reads wait for one under way to end, so that they can be kept out
READER_CACHE_KIB, WRITER_CACHE_KIB = 4096, 16384
# The bytes cannot be read, or are not what was written. No sync is involved, so nothing acknowledged is in doubt.
UNREADABLE = (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS)


def connect(path: Path, *, read_only: bool = False, create: bool = False) -> apsw.Connection:
    """A connection in WAL mode whose commits are synced before they return.

    Where descriptors run out, idle readers give up theirs.
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
        if not read_only:
            # Where the switch fails, SQLite raises nothing and names the mode that stays.
            if db.execute("PRAGMA journal_mode = WAL").get != "wal":
                db.close()
                raise StorageError(f"{path} cannot be switched to a write-ahead log")
            # FULL, not the WAL default of NORMAL: an acknowledged write must survive a power loss.
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA journal_size_limit = 67108864")
        # Small for readers: they come in numbers, and the system caches the file once for all of them.
        db.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB if read_only else WRITER_CACHE_KIB}")
    return db


class Checkpoints:
    """Moves a connection's WAL into the database file when it has grown, in place of SQLite's own automatic.

    That one keeps a failed sync to itself, and the next one may then succeed without the bytes being on disk.
    """

    def __init__(self, db: apsw.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._pages = 0
        db.set_wal_hook(self._note)

    def _note(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def run_if_due(self) -> None:
        """After a commit. Raises StorageError if a sync fails; a full disk leaves the pages where they are safe too."""
        if self._pages < CHECKPOINT_PAGES:
            return
        failpoints.reach("checkpoint.begin")
        try:
            checkpoint(self._db, self._path)
        except DiskFull:
            logger.warning("no space left to move the WAL of %s into the file", self._path)
        failpoints.reach("checkpoint.end")

    def close(self) -> None:
        self._db.set_wal_hook(None)


def empty_wal(db: apsw.Connection, path: Path) -> bool:
    """Move all of the WAL into the database file, both synced, and cut it to nothing. False if it is being read."""
    with sqlite_errors(path, db):
        db.set_busy_timeout(0)
        try:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            return False
        finally:
            db.set_busy_timeout(BUSY_TIMEOUT_MS)
    return True


def checkpoint(db: apsw.Connection, path: Path) -> None:
    """Move what no reader needs from the WAL into the database file, both synced. Does not wait."""
    with sqlite_errors(path, db), contextlib.suppress(apsw.BusyError):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


class Readers:
    """Read-only connections, borrowed by one thread at a time and kept for the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = False
        self._borrowed = 0
        self._kept_out = False
        self._coming_and_going = threading.Condition()

    @contextlib.contextmanager
    def borrow(self) -> Iterator[apsw.Connection]:
        if self._closed:
            raise NotFound(f"{self._path.parent.name} was closed or deleted meanwhile")
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
        """In this block no connection is open; who wants one waits for its end. Keep it short.

        Raises Unavailable if one is borrowed for longer than a moment.
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
        with _change:
            if not self._closed:
                _idle.append((self, db))
                closing = _idle.pop(0)[1] if len(_idle) > READERS_KEPT else None
        if closing is not None:
            closing.close()


# Of the whole process, as descriptors are. The one unused longest comes first.
_idle: list[tuple[Readers, apsw.Connection]] = []
_change = threading.Lock()


def close_idle_readers(readers: Readers | None = None) -> None:
    """Of one log, or of all."""
    with _change:
        closing = [one for one in _idle if readers in (None, one[0])]
        _idle[:] = [one for one in _idle if one not in closing]
    for _, db in closing:
        db.close()


@contextlib.contextmanager
def sqlite_errors(path: Path, db: apsw.Connection | None = None) -> Iterator[None]:
    """Translate SQLite's errors into ours, with the path. With the connection, a used-up quota is a full disk too."""
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
        # SQLite does not say why. The file itself can be opened now, so whatever was in the way is gone already.
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
    """Whether a write failed for want of room where SQLite does not say so: a quota, a limit, its shared memory.

    A failed sync never counts: what it leaves on the disk is unknown, whatever the reason.
    """
    growing = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE)
    return getattr(error, "extendedresult", 0) in growing and db.system_errno in NO_ROOM
