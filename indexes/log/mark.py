"""`log.mark`: how far a log is known to reach, so that a lost file of it, or one from an earlier time, is noticed.

SQLite accepts any files: without its write-ahead log a database merely ends earlier, and with one from another time it
mixes both. Two numbers reveal this. The *cycle* changes with the first commit after every complete checkpoint and is
stored in the database (`user_version`), in the same transaction. So log.db by itself is always at the same cycle as the
log read with its WAL, or one behind it. And the mark beside them has the last seq and cycle that were acknowledged.

    nearline-mark 1 <uid> <seq> <cycle> <complete> <next cycle> <crc32>        padded with spaces to MARK_BYTES

It is written in place after each commit, before the acknowledgment, and not synced: it survives a kill, costs no sync,
and is never ahead of the log. After a power loss it may be older, which only makes it say less. It is synced at each
checkpoint, so that a log without a WAL always has a mark of its own cycle that is `complete` (1): log.db alone had all
that was acknowledged. `next cycle` is that of a copy which is about to replace the log; it is 0 otherwise.

What cannot be noticed: all files of a log, its mark included, taken from the same earlier moment, if no generation is
newer; and the loss of commits that a power cut took from the mark too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import apsw

from indexes.base.durable import disk_errors, publish, sync_file
from indexes.base.errors import Damaged, StorageError
from indexes.log.sqlite import connect_frozen
from indexes.log.wal import FRAME_HEADER, HEADER, wal_of

FILE = "log.mark"
MARK_BYTES = 256
CYCLES = (1 << 31) - 1  # user_version is a signed 32-bit number
SQLITE_HEADER, MAGIC, USER_VERSION_AT = 100, b"SQLite format 3\0", 60
SMALLEST_PAGE = 512
NEWEST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'operations'"


@dataclass(frozen=True, slots=True)
class Mark:
    uid: str
    seq: int
    cycle: int
    complete: bool
    next_cycle: int = 0

    @property
    def stored(self) -> bytes:
        text = f"nearline-mark 1 {self.uid} {self.seq} {self.cycle} {self.complete:d} {self.next_cycle}"
        return f"{text} {zlib.crc32(text.encode()):08x}".ljust(MARK_BYTES - 1).encode() + b"\n"


class MarkFile:
    """The mark of a log that is open for writing. Writer thread only."""

    def __init__(self, log: Path, found: Mark | None) -> None:
        """Raises StorageError for one that may not be written, before any write has been acknowledged."""
        self._path = log.with_name(FILE)
        self._written, self._synced = found, found
        with disk_errors(self._path), contextlib.suppress(FileNotFoundError):
            os.close(os.open(self._path, os.O_WRONLY))

    def note(self, mark: Mark) -> None:
        """Write the mark without syncing. A failure only leaves an older mark, which `sync` repairs or reports."""
        if mark != self._written:
            self._written, self._synced = mark, None
            with contextlib.suppress(OSError, StorageError):
                self._write(mark)

    def sync(self) -> None:
        """Make the last mark durable. Raises DiskFull or StorageError."""
        if self._written is not None and self._synced != self._written:
            with disk_errors(self._path):
                self._write(self._written)
                sync_file(self._path)
            self._synced = self._written

    def _write(self, mark: Mark) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY)
        except FileNotFoundError:
            publish(self._path, mark.stored)
            return
        try:
            os.pwrite(descriptor, mark.stored, 0)
        finally:
            os.close(descriptor)


def read_mark(log: Path) -> Mark | None:
    """Read the mark of a log; None if it is missing or unreadable."""
    try:
        text, _, checksum = log.with_name(FILE).read_text().strip().rpartition(" ")
        if f"{zlib.crc32(text.encode()):08x}" != checksum:
            return None
        _, _, uid, seq, cycle, complete, next_cycle = text.split(" ")
        return Mark(uid, int(seq), int(cycle), complete == "1", int(next_cycle))
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def first_cycle() -> int:
    """A random cycle, so that no WAL of another file fits."""
    return secrets.randbelow(CYCLES) + 1


def cycle_after(cycle: int) -> int:
    return cycle % CYCLES + 1


def cycle_of(db: apsw.Connection) -> int:
    return int(db.execute("PRAGMA user_version").get)


@dataclass(frozen=True, slots=True)
class UnopenedLog:
    """What the files of a log say before SQLite joins them: `cycle` and `seq` (None if unreadable) of log.db alone."""

    name: str
    cycle: int
    seq: int | None
    without_wal: bool
    mark: Mark | None

    @staticmethod
    def read(path: Path) -> UnopenedLog:
        """Raises Damaged if log.db is missing or is not a database; SQLite would delete the WAL of an empty one."""
        name = f"{path.parent.name}/{path.name}"
        mark = read_mark(path)
        try:
            with disk_errors(path), path.open("rb") as file:
                header = file.read(SQLITE_HEADER)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise Damaged(f"{name} is gone") from error
            raise
        if len(header) < SQLITE_HEADER or not header.startswith(MAGIC):
            raise Damaged(f"{name} is damaged: it does not begin like a database")
        (cycle,) = struct.unpack_from(">i", header, USER_VERSION_AT)
        without_wal = wal_bytes(path) < HEADER.size + FRAME_HEADER + SMALLEST_PAGE
        return UnopenedLog(name, cycle, None if without_wal else seq_alone(path), without_wal, mark)

    def lacking(self, uid: str, seq: int, cycle: int) -> str | None:
        """Why the log, as read with its WAL, cannot be all that was acknowledged; None if nothing says so."""
        mark, alone = self.mark, self.seq
        if (cycle - self.cycle) % CYCLES > 1 or (alone is not None and alone > seq):
            return f"{self.name} and its write-ahead log are from different times"
        if mark is None:
            return f"{FILE} is gone or damaged, and nothing else tells whether {self.name} has its last operations"
        if mark.uid != uid:
            return f"{FILE} belongs to another log than {self.name}"
        if mark.seq > seq:
            return f"{self.name} ends at operation {seq}, and operations up to {mark.seq} were acknowledged"
        fits = mark.complete and self.cycle in (mark.cycle, mark.next_cycle)
        if self.without_wal and not fits:
            return f"the write-ahead log of {self.name} is gone, and {FILE} is from another time"
        return None


def wal_bytes(path: Path) -> int:
    try:
        return wal_of(path).stat().st_size
    except FileNotFoundError:
        return 0


def seq_alone(path: Path) -> int | None:
    """The newest seq in log.db without its WAL. None if that cannot be read: a checkpoint may have ended midway."""
    with contextlib.suppress(apsw.Error):
        db = connect_frozen(path)
        try:
            found = db.execute(NEWEST_SEQ).get
        finally:
            db.close()
        return found if isinstance(found, int) else 0
    return None
