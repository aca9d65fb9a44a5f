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


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. `grade` is from 0 to 3, None where the document was opened."""

    time_ms: int
    query: str
    document_id: str
    grade: int | None = None
    passed: list[str] = []


class Feedback:
    """The feedback about a service's collections.

    What changes a file waits for the disk and takes turns: a service calls it with `on_thread`, whose one thread is
    its own, so that slow syncs do not use up those that reads need. `close` ends it.
    """

    def __init__(self, settings: Settings, *, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        # Of files, as they were left whole.
        self._sizes: WeakKeyDictionary[Collection, int] = WeakKeyDictionary()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feedback")

    def close(self) -> None:
        """Wait for what is under way."""
        self._thread.shutdown()

    async def on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns, after all that was asked for before."""
        call = partial(copy_context().run, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def keep(self, collection: Collection, entries: Sequence[Entry]) -> None:
        """Durable once this returns. Raises TooLarge for more than half of what may be kept."""
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
        """Bytes of whole lines; 0 if there are none. Only a file that is not as it was left is read for that."""
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

    def read(self, collection: Collection) -> list[Entry]:
        """Oldest first, of the last `days`."""
        kept = (decoded(one) for one in lines_of(collection.folder / FILE, collection.uid)[1:])
        return [one for one in kept if one.time_ms >= self._first_ms()]

    def forget(self, collection: Collection) -> None:
        """All of it, with the file, durably."""
        remove(collection.folder / FILE)

    def forget_old(self, collection: Collection) -> None:
        """What is older than `days`, and what a kill left of a file that was being replaced."""
        path = collection.folder / FILE
        with disk_errors(path):
            draft_of(path).unlink(missing_ok=True)
        present = lines_of(path, collection.uid)[1:]
        kept = [one for one in present if decoded(one).time_ms >= self._first_ms()]
        if len(kept) < len(present):
            self._replace(collection, b"".join(kept))

    async def keep_forgetting(self, collections: Callable[[], Sequence[Collection]]) -> None:
        """Forget what is old, at once and then every so often, for ever."""
        while True:
            for collection in collections():
                try:
                    await self.on_thread(self.forget_old, collection)
                except NearlineError as error:
                    logger.warning("old feedback of %s is not forgotten: %s", collection.name, error)
            await asyncio.sleep(FORGET_EVERY_S)

    def _first_ms(self) -> float:
        days = self._settings.days
        return self._now() * 1000 - days * DAY_MS if days else 0


def lines_of(path: Path, uid: str) -> list[bytes]:
    """The whole lines of a file, its header first; none if there is no file, or it is not of this collection."""
    with disk_errors(path):
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
