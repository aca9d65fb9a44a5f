"""User feedback about hits, kept for `nearline learn`: judgments, and documents that were opened.

    data/<collection>/feedback.jsonl      mode 0600
        {"version": 1, "uid": "9f..."}
        {"time_ms": 1772323200000, "query": "how do refunds work", "document_id": "refunds", "grade": 2}
        {"time_ms": 1772323260000, "query": "lost parcel", "document_id": "d4", "passed": ["d9", "d1"]}

Without a grade the document was opened; `passed` are the documents shown above it. The sender is not recorded.

Durability: entries are synced when `keep` returns. A crash during `keep` preserves everything before it, and perhaps
some whole lines of the new entries. Bounds: `file_bytes_max`, beyond which the older half is dropped, and `days`.

Privacy: users' texts are personal data wherever they are. As with the query log, only the service's user can read
the file, backups leave it out, entries age out, and it is deleted with its collection, or at once by `forget`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from indexes.base.durable import append, disk_errors, draft_of, publish, remove
from indexes.base.errors import NearlineError, TooLarge
from indexes.collection.collection import Collection
from retrieval.base.settings import Feedback as Settings

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

FILE = "feedback.jsonl"
VERSION = 1
MODE = 0o600
FORGET_EVERY_S = 3600.0
DAY_MS = 86_400_000


class Header(msgspec.Struct, frozen=True):
    version: int
    uid: str


class FeedbackEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the file. `grade` is from 0 to 3, or None if the document was opened."""

    time_ms: int
    query: str
    document_id: str
    grade: int | None = None
    passed: list[str] = []


class Feedback:
    """The feedback about a service's collections.

    Methods that change a file wait for the disk and must run one at a time. A service calls them with `on_thread`,
    whose single thread belongs to this object, so that slow syncs do not use up threads that reads need. `close`
    stops it.
    """

    def __init__(self, settings: Settings, *, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        # Size of each file after its last whole write.
        self._sizes: WeakKeyDictionary[Collection, int] = WeakKeyDictionary()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feedback")

    def close(self) -> None:
        """Wait for work in progress."""
        self._thread.shutdown()

    async def on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` after all earlier calls and return its result."""
        call = partial(copy_context().run, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def keep(self, collection: Collection, entries: Sequence[FeedbackEntry]) -> None:
        """Append entries durably. Raises TooLarge if they take more than half of the space allowed."""
        lines = b"".join(map(line, entries))
        if len(lines) > (half := self._settings.file_bytes_max // 2):
            raise TooLarge(f"{len(lines)} bytes of feedback at once, at most {half}", param="feedback")
        path = collection.folder / FILE
        end = self._end(collection)
        if end and end + len(lines) <= self._settings.file_bytes_max:
            append(path, lines, end)
            self._sizes[collection] = end + len(lines)
        else:
            present = lines_of(path, collection.uid)[1:]
            self._replace(collection, newest(present, half) + lines)

    def _end(self, collection: Collection) -> int:
        """Return the size of the whole lines, 0 if there are none. Reads the file only if its size has changed
        since."""
        path = collection.folder / FILE
        known = self._sizes.get(collection)
        with disk_errors(path):
            if known is not None and path.is_file() and path.stat().st_size == known:
                return known
        return sum(map(len, lines_of(path, collection.uid)))

    def _replace(self, collection: Collection, lines: bytes) -> None:
        content = header(collection.uid) + lines
        publish(collection.folder / FILE, content, MODE)
        self._sizes[collection] = len(content)

    def read(self, collection: Collection) -> list[FeedbackEntry]:
        """Return the entries of the last `days`, oldest first."""
        kept = (decode_line(one) for one in lines_of(collection.folder / FILE, collection.uid)[1:])
        return [one for one in kept if one.time_ms >= self._first_ms()]

    def forget(self, collection: Collection) -> None:
        """Delete the file and all entries, durably."""
        remove(collection.folder / FILE)

    def forget_old(self, collection: Collection) -> None:
        """Drop entries older than `days`, and drafts that a killed process left behind."""
        path = collection.folder / FILE
        with disk_errors(path):
            draft_of(path).unlink(missing_ok=True)
        present = lines_of(path, collection.uid)[1:]
        kept = [one for one in present if decode_line(one).time_ms >= self._first_ms()]
        if len(kept) < len(present):
            self._replace(collection, b"".join(kept))

    async def keep_forgetting(self, collections: Callable[[], Sequence[Collection]]) -> None:
        """Forget old entries now and then periodically, forever."""
        while True:
            for collection in collections():
                try:
                    await self.on_thread(self.forget_old, collection)
                except NearlineError as error:
                    logger.warning("cannot delete old feedback of %s: %s", collection.name, error)
            await asyncio.sleep(FORGET_EVERY_S)

    def _first_ms(self) -> float:
        days = self._settings.days
        return self._now() * 1000 - days * DAY_MS if days else 0


def lines_of(path: Path, uid: str) -> list[bytes]:
    """Return the whole lines of a file, header first; none if it is missing or belongs to another collection."""
    with disk_errors(path):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return []
    # A crash may have torn the last line.
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        if lines and msgspec.json.decode(lines[0], type=Header) == Header(VERSION, uid):
            return lines
    logger.warning("starting %s over: it belongs to another collection or version", path)
    return []


def newest(lines: Sequence[bytes], bytes_max: int) -> bytes:
    """Return the last lines that fit."""
    kept, left = len(lines), bytes_max
    while kept and (left := left - len(lines[kept - 1])) >= 0:
        kept -= 1
    return b"".join(lines[kept:])


def header(uid: str) -> bytes:
    return msgspec.json.encode(Header(VERSION, uid)) + b"\n"


def line(one: FeedbackEntry) -> bytes:
    return msgspec.json.encode(one) + b"\n"


def decode_line(one: bytes) -> FeedbackEntry:
    """Decode a line. A damaged line counts as infinitely old, so it is left out and later dropped."""
    try:
        return msgspec.json.decode(one, type=FeedbackEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return FeedbackEntry(-1, "", "")
