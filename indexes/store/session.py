"""A store that this process writes to: opened once it can be reached, with the upload of each collection."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from indexes.base.errors import NotReady, Unavailable
from indexes.base.model import Progress
from indexes.collection.collection import Collection
from indexes.store.availability import Availability
from indexes.store.checkpoints import DAY_MS
from indexes.store.collection_log import CollectionUpload
from indexes.store.directory import note_put
from indexes.store.objects import Objects
from indexes.store.opening import OpenStore, open_store
from indexes.store.slots import SlotWriter

PRESENT_S = 1.0  # how often a bucket is asked whether it is still the one that was opened; a folder each time
LOOK_S = 0.1


@dataclass(slots=True)
class Tracked:
    """A collection whose commits are uploaded. `waiting_since`: when the oldest commit that is not in the store was
    made, by the monotonic clock; 0 if all are. `upload_began`: that of the last one. `files`: when the settings beside
    its log were changed. `generation`: which live one was last compared with that in the store."""

    collection: Collection
    waiting_since: float = 0.0
    upload_began: float = 0.0
    files_due: float = 0.0
    files: tuple[object, ...] = ()
    generation: int = 0
    uploading: threading.Lock = field(default_factory=threading.Lock)  # changes
    carrying: threading.Lock = field(default_factory=threading.Lock)  # a generation

    def committed(self, seq: int = 0) -> None:
        """There is something to upload. On the thread that writes to the collection, after each commit."""
        self.waiting_since = self.waiting_since or time.monotonic()


class Session:
    """Thread-safe, but for `open`. `on_upload` gets the uid of a collection and the last operation that the store has
    of it, after each upload; `on_append` is called after each slot."""

    def __init__(
        self,
        objects: Objects,
        url: str,
        data: Path,
        keep_days: float,
        on_upload: Callable[[str, int], None],
        on_append: Callable[[], None],
    ) -> None:
        self.objects, self._url, self._data = objects, url, data
        self.keep_ms = int(keep_days * DAY_MS)
        self.on_upload, self.on_append = on_upload, on_append
        self.available = Availability()
        self.opened: OpenStore | None = None
        self.closing = threading.Event()
        self.tracked: dict[str, Tracked] = {}  # by uid
        self._uploads: dict[str, CollectionUpload] = {}  # by uid; also of collections that are gone
        self._beginning, self._present_until = threading.Lock(), 0.0

    def open(self, progress: Progress, *, restores: bool) -> OpenStore:
        """Raises like `open_store`."""
        self.opened = open_store(self.objects, self._url, self._data, progress, restores=restores)
        return self.opened

    def require_present(self, writer: SlotWriter | None = None) -> None:
        """Raise Unavailable if the store is no longer the one that was opened, or, for a folder, lacks the last slot of
        a writer: another one may be mounted in its place."""
        cheap = self._url.startswith("file:")
        if self.opened is not None and time.monotonic() >= self._present_until:
            self.opened.require_present()
            self._present_until = time.monotonic() + (0.0 if cheap else PRESENT_S)
        if cheap and writer is not None and not writer.is_there():
            raise Unavailable(
                f"the store {self._url} lacks what this service has put there: it is an older copy, or was changed; a "
                "restart of the service completes it"
            )

    def require_open(self) -> None:
        if self.closing.is_set():
            raise NotReady("the service is closing")

    @contextlib.contextmanager
    def holding(self, lock: threading.Lock) -> Iterator[None]:
        """Hold a lock of a collection. Raises NotReady if the service closes first."""
        while not lock.acquire(timeout=LOOK_S):
            self.require_open()
        try:
            yield
        finally:
            lock.release()

    def last_copied(self, uid: str) -> int:
        """The last operation of a collection that the store has."""
        if uid in self._uploads:
            return self._uploads[uid].seq
        if self.opened is not None and uid in self.opened.writers:
            return self.opened.writers[uid].slots.last.slot.reached.operations
        return 0

    def track(self, collection: Collection) -> Tracked:
        """Follow a collection that is new or was opened again."""
        uid = collection.uid
        known = self.tracked.setdefault(uid, Tracked(collection))
        known.collection = collection
        if uid in self._uploads:
            self._uploads[uid].log = collection.log
        return known

    def upload_of(self, tracked: Tracked) -> CollectionUpload:
        """The upload of a collection, begun if the store does not have it."""
        if self.opened is None:
            raise Unavailable(f"the store cannot be used yet: {self.available.error}")
        uid = tracked.collection.uid
        with self._beginning:  # changes and a generation are uploaded on two threads
            if uid not in self._uploads:
                writer = self.opened.writer_of(uid)
                self._uploads[uid] = CollectionUpload(
                    writer.held,
                    writer.slots,
                    tracked.collection.log,
                    writer.checkpoint,
                    keep_ms=self.keep_ms,
                    on_upload=partial(self.on_upload, uid),
                    on_append=self.on_append,
                    on_settings=partial(note_put, self._data, uid),
                )
        return self._uploads[uid]
