"""SQLite through apsw, as the log uses it: opening, errors translated into ours, and a pool of readers."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path

import apsw

from indexes.errors import DiskFull, InvalidInput, NotFound, StorageError, Unavailable

BUSY_TIMEOUT_MS = 10_000
READERS_KEPT = 8
READER_CACHE_KIB, WRITER_CACHE_KIB = 4096, 16384


def connect(path: Path, *, read_only: bool = False, create: bool = False) -> apsw.Connection:
    """A connection in WAL mode whose commits are synced before they return."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
    with sqlite_errors(path):
        db = apsw.Connection(str(path), flags=flags)
        db.set_busy_timeout(BUSY_TIMEOUT_MS)
        if not read_only:
            db.execute("PRAGMA journal_mode = WAL")
            # FULL, not the WAL default of NORMAL: an acknowledged write must survive a power loss.
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA journal_size_limit = 67108864")
        # Small for readers: they come in numbers, and the system caches the file once for all of them.
        db.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB if read_only else WRITER_CACHE_KIB}")
    return db


class Readers:
    """Read-only connections, borrowed by one thread at a time and kept for the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = False
        self._idle: queue.SimpleQueue[apsw.Connection] = queue.SimpleQueue()

    @contextlib.contextmanager
    def borrow(self) -> Iterator[apsw.Connection]:
        if self._closed:
            raise NotFound(f"{self._path.parent.name} was closed or deleted meanwhile")
        with sqlite_errors(self._path):
            try:
                db = self._idle.get_nowait()
            except queue.Empty:
                db = connect(self._path, read_only=True)
            try:
                yield db
            finally:
                if self._idle.qsize() < READERS_KEPT and not self._closed:
                    self._idle.put(db)
                else:
                    db.close()

    def close(self) -> None:
        self._closed = True
        while not self._idle.empty():
            self._idle.get_nowait().close()


@contextlib.contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Translate SQLite's errors into ours, with the path."""
    try:
        yield
    except apsw.FullError as error:
        raise DiskFull(f"no space left for {path}") from error
    except apsw.BusyError as error:
        raise Unavailable(f"{path} is locked by another program", retry_after_s=5) from error
    except apsw.TooBigError as error:
        raise InvalidInput(f"a value is too large for the log: {error}") from error
    except apsw.Error as error:
        raise StorageError(f"{path}: {type(error).__name__}: {error}") from error
