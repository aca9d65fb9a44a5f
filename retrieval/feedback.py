"""What users say about hits, kept for `nearline learn`: judgments, and documents they opened.

    data/<collection>/feedback.jsonl      mode 0600
        {"version": 1, "uid": "9f..."}
        {"time_ms": 1772323200000, "query": "how do refunds work", "document_id": "refunds", "grade": 2}
        {"time_ms": 1772323260000, "query": "lost parcel", "document_id": "d4", "passed": ["d9", "d1"]}

Without a grade the document was opened; `passed` are those shown above it. Nothing tells who sent it.

Durability: what `keep` was given is synced when it returns, and a crash in the middle of it leaves what was there
before, and perhaps some whole lines more. Bounds: `file_bytes_max`, beyond which the older half goes, and `days`.

Privacy: texts of users are personal data wherever they are. As with the query log, the file is readable by the
service's user only, is not part of a backup, is forgotten as it ages, and goes with its collection, or at once by
`forget`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from indexes import Collection, StorageError, TooLarge, append, publish
from retrieval.settings import Feedback as Settings

logger = logging.getLogger(__name__)

FILE = "feedback.jsonl"
VERSION = 1
MODE = 0o600
FORGET_EVERY_S = 3600.0
DAY_MS = 86_400_000


class Header(msgspec.Struct, frozen=True):
    version: int
    uid: str


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. `grade` is from 0 to 3, None where the document was opened."""

    time_ms: int
    query: str
    document_id: str
    grade: int | None = None
    passed: list[str] = []


class Feedback:
    """The feedback about a service's collections. Its methods wait for the disk: for a thread, not for the loop."""

    def __init__(self, settings: Settings, *, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._changing = threading.Lock()

    def keep(self, collection: Collection, entries: Sequence[Entry]) -> None:
        """Durable once this returns. Raises TooLarge for more than half of what may be kept."""
        lines = b"".join(map(line, entries))
        if len(lines) > (half := self._settings.file_bytes_max // 2):
            raise TooLarge(f"{len(lines)} bytes of feedback at once, at most {half}", param="feedback")
        path = collection.folder / FILE
        with self._changing:
            present = lines_of(path, collection.uid)
            end = sum(map(len, present))
            if not present:
                publish(path, header(collection.uid) + lines, MODE)
            elif end + len(lines) <= self._settings.file_bytes_max:
                append(path, lines, end)
            else:
                publish(path, header(collection.uid) + newest(present[1:], half) + lines, MODE)

    def read(self, collection: Collection) -> list[Entry]:
        """Oldest first, of the last `days`."""
        kept = (decoded(one) for one in lines_of(collection.folder / FILE, collection.uid)[1:])
        return [one for one in kept if one.time_ms >= self._first_ms()]

    def forget(self, collection: Collection) -> None:
        """All of it, with the file."""
        with self._changing:
            (collection.folder / FILE).unlink(missing_ok=True)

    def forget_old(self, collection: Collection) -> None:
        """What is older than `days`."""
        path = collection.folder / FILE
        with self._changing:
            present = lines_of(path, collection.uid)[1:]
            kept = [one for one in present if decoded(one).time_ms >= self._first_ms()]
            if len(kept) < len(present):
                publish(path, header(collection.uid) + b"".join(kept), MODE)

    async def keep_forgetting(self, collections: Callable[[], Sequence[Collection]]) -> None:
        """Forget what is old, every so often, for ever."""
        while True:
            await asyncio.sleep(FORGET_EVERY_S)
            for collection in collections():
                try:
                    await asyncio.to_thread(self.forget_old, collection)
                except (StorageError, OSError) as error:
                    logger.warning("old feedback of %s is not forgotten: %s", collection.name, error)

    def _first_ms(self) -> float:
        days = self._settings.days
        return self._now() * 1000 - days * DAY_MS if days else 0


def lines_of(path: Path, uid: str) -> list[bytes]:
    """The whole lines of a file, its header first; none if there is no file, or it is not of this collection."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)  # the last may be torn by a crash
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        if lines and msgspec.json.decode(lines[0], type=Header) == Header(VERSION, uid):
            return lines
    logger.warning("%s is begun anew: it is of another collection or version", path)
    return []


def newest(lines: Sequence[bytes], bytes_max: int) -> bytes:
    """The last lines that fit."""
    kept, left = len(lines), bytes_max
    while kept and (left := left - len(lines[kept - 1])) >= 0:
        kept -= 1
    return b"".join(lines[kept:])


def header(uid: str) -> bytes:
    return msgspec.json.encode(Header(VERSION, uid)) + b"\n"


def line(one: Entry) -> bytes:
    return msgspec.json.encode(one) + b"\n"


def decoded(one: bytes) -> Entry:
    """A line; one that is damaged is older than anything, and so left out and forgotten."""
    try:
        return msgspec.json.decode(one, type=Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Entry(-1, "", "")
