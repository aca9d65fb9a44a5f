"""Files of JSON lines in a collection's folder, which hold what users ask and what they think of the answers.

The first line names the collection by its uid, because names may be reused; entries follow, oldest first. A line that
a crash has torn or the disk has damaged is left out, and dropped when the file is next written as a whole.

Privacy: users' texts are personal data. Only the service's user can read the files, backups leave them out, entries
age out, and the files are deleted with their collection, or at once by `durable.remove`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from indexes.base.durable import append, disk_errors, draft_of, publish
from indexes.base.errors import Damaged

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

VERSION = 1
MODE = 0o600


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """`seen` is the number of queries on each day, of which a query log holds a sample."""

    version: int
    uid: str
    seen: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class LineFile(Generic[T]):
    """The file of the collection `uid`. Methods that change it must run one at a time; all raise StorageError."""

    path: Path
    uid: str
    entry: type[T]

    def read(self) -> tuple[Header, list[T]]:
        """Return the contents, none if the file is missing or not usable."""
        header, lines = self._load()
        return header, [one for line in lines if (one := decode(line, self.entry))]

    def append(self, lines: bytes, bytes_max: int) -> None:
        """Append whole lines, durable once this returns; a crash may leave some of them. If the file would exceed
        `bytes_max`, only its newest lines are kept, up to half of that."""
        if 0 < (end := self._end()) <= bytes_max - len(lines):
            append(self.path, lines, end)
        else:
            kept = newest(self._load()[1], bytes_max // 2)
            publish(self.path, encode(Header(VERSION, self.uid)) + kept + lines, MODE)

    def retain(self, wanted: Callable[[T], bool]) -> None:
        """Durably drop all other entries, and drafts that a killed process left behind."""
        with disk_errors(self.path):
            draft_of(self.path).unlink(missing_ok=True)
        lines = self._load()[1]
        kept = [line for line in lines if (one := decode(line, self.entry)) and wanted(one)]
        if len(kept) < len(lines):
            publish(self.path, b"".join([encode(Header(VERSION, self.uid)), *kept]), MODE)

    def _end(self) -> int:
        """Return the size of the whole lines, 0 if there are none. Reads the whole file only if its end is torn."""
        with disk_errors(self.path), suppress(FileNotFoundError), self.path.open("rb") as file:
            if decode(file.readline(), Header) == Header(VERSION, self.uid):
                end = file.seek(-1, os.SEEK_END) + 1
                if file.read() == b"\n":
                    return end
                file.seek(0)
                return file.read().rfind(b"\n") + 1
        return 0

    def _load(self) -> tuple[Header, list[bytes]]:
        with disk_errors(self.path), suppress(FileNotFoundError):
            try:
                return read_lines(self.path, self.uid)
            except Damaged as error:
                logger.warning("starting over: %s", error)
        return Header(VERSION, self.uid), []


def read_lines(path: Path, uid: str | None = None) -> tuple[Header, list[bytes]]:
    """Return the header and the whole lines. Raises OSError, and Damaged for another version or collection."""
    content = path.read_bytes()
    first, *lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True) or [b""]
    header = decode(first, Header)
    if header is None or header.version != VERSION or header.uid != (uid or header.uid):
        raise Damaged(f"{path} belongs to another collection or version")
    return header, lines


def newest(lines: Sequence[bytes], bytes_max: int) -> bytes:
    """Return the last lines that fit."""
    kept, left = len(lines), bytes_max
    while kept and (left := left - len(lines[kept - 1])) >= 0:
        kept -= 1
    return b"".join(lines[kept:])


def encode(line: msgspec.Struct) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def decode(line: bytes, kind: type[T]) -> T | None:
    """Decode a line, or return None if it is damaged."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
