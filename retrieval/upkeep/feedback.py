"""User feedback about hits, kept for `nearline learn`: judgments, and documents that were opened.

    data/<collection>/feedback.jsonl      a `LineFile`
        {"time_ms": 1772323200000, "query": "how do refunds work", "document_id": "refunds", "grade": 2}
        {"time_ms": 1772323260000, "query": "lost parcel", "document_id": "d4", "passed": ["d9", "d1"]}

Without a grade the document was opened; `passed` are the documents shown above it. The sender is not recorded.

Durability: entries are synced when `keep` returns. Bounds: `days`, and `file_bytes_max`, beyond which the older half is
dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec

from indexes.base.durable import remove
from indexes.base.errors import NearlineError, TooLarge
from indexes.collection.collection import Collection
from retrieval.base.settings import FeedbackSection as Settings
from retrieval.upkeep.line_file import LineFile, encode

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

FILE = "feedback.jsonl"
FORGET_EVERY_S = 3600.0
DAY_MS = 86_400_000


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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feedback")

    def close(self) -> None:
        """Wait for work in progress."""
        self._thread.shutdown()

    async def on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` after all earlier calls and return its result."""
        call = partial(copy_context().run, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def keep(self, collection: Collection, entries: Sequence[FeedbackEntry]) -> None:
        """Append entries durably. Raises TooLarge if they take more than half of the space allowed, and NotReady while
        the collection is being moved."""
        collection.require_here()
        lines = b"".join(map(encode, entries))
        if len(lines) > (half := self._settings.file_bytes_max // 2):
            raise TooLarge(f"{len(lines)} bytes of feedback at once, at most {half}", param="feedback")
        file_of(collection).append(lines, self._settings.file_bytes_max)

    def read(self, collection: Collection) -> list[FeedbackEntry]:
        """Return the entries of the last `days`, oldest first."""
        return list(filter(self._is_recent, file_of(collection).read()[1]))

    def place(self, collection: Collection, entries: Sequence[FeedbackEntry]) -> None:
        """Durably keep these entries of a collection that is being moved here, and no others."""
        remove(collection.folder / FILE)
        if entries:
            file_of(collection).append(b"".join(map(encode, entries)), self._settings.file_bytes_max)

    def forget(self, collection: Collection) -> None:
        """Delete the file and all entries, durably. Raises NotReady while the collection is being moved."""
        collection.require_here()
        remove(collection.folder / FILE)

    def forget_old(self, collection: Collection) -> None:
        """Drop entries older than `days`, and drafts that a killed process left behind."""
        file_of(collection).retain(self._is_recent)

    async def keep_forgetting(self, collections: Callable[[], Sequence[Collection]]) -> None:
        """Forget old entries now and then periodically, forever."""
        while True:
            for collection in collections():
                try:
                    await self.on_thread(self.forget_old, collection)
                except NearlineError as error:
                    logger.warning("cannot delete old feedback of %s: %s", collection.name, error)
            await asyncio.sleep(FORGET_EVERY_S)

    def _is_recent(self, entry: FeedbackEntry) -> bool:
        days = self._settings.days
        return not days or entry.time_ms >= self._now() * 1000 - days * DAY_MS


def file_of(collection: Collection) -> LineFile[FeedbackEntry]:
    return LineFile(collection.folder / FILE, collection.uid, FeedbackEntry)
