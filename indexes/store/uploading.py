"""Carries what is written on this machine into a store, in the background, and says how far it has come.

One thread looks after all collections, and a few others upload. The upload of a commit begins at once, but half of
`lag_s_max` after the one before it at the earliest, together with those that came in between. If writes are
acknowledged only when the store has them (`acknowledge = "bucket"`), it begins at once, and what is committed during an
upload goes with the next one.

If the store cannot be used, everything waits and is tried again; nothing is lost from the disk. If another service has
taken over the store, this process stops: what it would go on to acknowledge could not be kept.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from indexes.base import failures
from indexes.base.arrivals import Arrivals
from indexes.base.errors import NearlineError, StorageError, Unavailable
from indexes.base.model import Progress, Replication, WriteResult, now_ms
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.store.carrying import Carrier
from indexes.store.collection_log import FILES, changes_of
from indexes.store.confirming import Confirmations
from indexes.store.directory import note_removal, read_record
from indexes.store.naming import NamesUpload
from indexes.store.objects import Objects, prove
from indexes.store.session import LOOK_S, Session, Tracked
from indexes.store.slots import Superseded

logger = logging.getLogger(__name__)

UPLOADS_TOGETHER = 4
FENCE_EVERY_S = (
    5.0  # how often a service that has nothing to upload finds out that another one has taken over
)
FILES_EVERY_S = 5.0  # how often the thread looks for settings that have changed
CLEAR_EVERY_S = 3600.0
FLUSH_S = 4.0  # at the end; the service has little more


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store is used. `keep_days`: how long earlier moments can be restored."""

    url: str
    acknowledge: Literal["local", "bucket"] = "local"
    lag_s_max: float = 1.0
    keep_days: float = 7.0


@dataclass(frozen=True, slots=True)
class UploadState:
    """How far the store is behind a collection: its last operation there, how many more there are here, and for how
    many seconds the oldest of them has waited."""

    seq: int
    behind: int
    lag_s: float


class Uploader(Replication):
    """Keeps a store up to date with the collections of a catalog. Thread-safe.

    In this order: give it to the catalog in its options, call `open` once the directory is locked, `start`, `close`.
    """

    def __init__(
        self, objects: Objects, options: StoreOptions, data: Path, clock: Callable[[], int] = now_ms
    ) -> None:
        self.options, self._data, self._clock = options, data, clock
        self.uploads = 0
        self.changes, self.arrivals = 0, Arrivals(0)
        """How many slots this process has put into the store, and waits for more."""
        self._counting = threading.Lock()
        self._wake, self._stopped = threading.Event(), False
        self._confirmations = Confirmations(self.last_copied, self._wake.set)
        self._session = Session(
            objects, options.url, data, options.keep_days, self._confirmations.reached, self._note_change
        )
        self._names = NamesUpload(self._session, data, clock)
        self._carrier = Carrier(self._session, clock)
        self._names_due = self._clear_due = self._fence_due = 0.0
        self._is_probing = False
        self._pool = ThreadPoolExecutor(UPLOADS_TOGETHER, "store")
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def open(self, progress: Progress) -> None:
        """Open the store, before any collection is open, and restore what the directory lacks. If the store cannot be
        reached and the directory had it before, go on without it until it can. Raises like `open_store`."""
        try:
            self._names.stored = self._session.open(progress, restores=True).directory
        except Unavailable as error:
            record = read_record(self._data)
            if record is None or not record.token or record.url != self.options.url or record.restoring:
                raise
            self._session.available.failed(error)

    def start(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._track()
        self._thread.start()

    def close(self) -> None:
        """Upload what is left, for at most FLUSH_S, and stop."""
        self._session.closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_S + 1)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- what callers ask

    @property
    def error(self) -> str:
        """Why the store cannot be used; "" if it can."""
        return self._session.available.error

    def state_of(self, collection: Collection) -> UploadState:
        tracked = self._session.tracked.get(collection.uid)
        is_listed = collection.uid in self._names.stored.collections.values()  # else it would not be restored
        seq = self._session.last_copied(collection.uid) if is_listed else 0
        since = tracked.waiting_since if tracked else 0.0
        return UploadState(
            seq, max(collection.log.newest_seq - seq, 0), time.monotonic() - since if since else 0.0
        )

    def wait_for(self, collection: Collection) -> None:
        """Wait until the store has the last operation that a collection has now, and the settings beside its log.
        Raises NotReady if the service closes first."""
        seq = collection.log.newest_seq
        while not self._has(collection, seq):
            self._session.require_open()
            time.sleep(LOOK_S)

    def _has(self, collection: Collection, seq: int) -> bool:
        tracked = self._session.tracked.get(collection.uid)
        is_listed = collection.uid in self._names.stored.collections.values()
        return tracked is not None and is_listed and self._session.upload_of(tracked).has(seq)

    @property
    def epoch(self) -> int:
        """The epoch that this service has taken in the store; 0 if the store could not be opened yet."""
        opened = self._session.opened
        return 0 if opened is None else opened.names.epoch

    @property
    def lag_s(self) -> float:
        """For how long the oldest commit waits that is not in the store."""
        waiting = [one.waiting_since for one in list(self._session.tracked.values()) if one.waiting_since]
        return time.monotonic() - min(waiting) if waiting else 0.0

    def require_up(self) -> None:
        if self._stopped:
            failures.require_none()
        if self.options.acknowledge == "bucket" and self.error:
            raise Unavailable(
                "writes wait for the store, which cannot be used now; the log says why",
                retry_after_s=self._session.available.pause_s,
            )

    def last_copied(self, uid: str) -> float:
        return self._session.last_copied(uid)

    def removing(self, name: str) -> None:
        collection = self._catalog.collections.get(name)
        uid = collection.uid if collection else self._names.stored.collections.get(name)
        if uid is not None:
            note_removal(self._data, uid)

    def confirm(self, uid: str, written: Future[WriteResult]) -> Future[WriteResult]:
        return written if self.options.acknowledge == "local" else self._confirmations.of_write(uid, written)

    def directory_changed(self) -> Future[int]:
        """Upload names, aliases and keys as they are now, at once. The future resolves to the slot that has them."""
        future = self._confirmations.of_files()
        self._names_due = 0.0
        self._wake.set()
        return future

    def settings_changed(self, uid: str) -> Future[int]:
        """Upload the settings beside the log of a collection as they are now, as soon as a commit would be. The future
        resolves to the slot that has them."""
        future = self._confirmations.of_files(uid)
        if (tracked := self._session.tracked.get(uid)) is not None:  # else its first upload has them
            tracked.committed()
        self._wake.set()
        return future

    def erase(self, collection: Collection) -> None:
        """Remove what was deleted from every object of the store. No earlier moment can be restored afterwards.

        Raises Unavailable; repeat it then."""
        session = self._session
        tracked = session.tracked[collection.uid]
        with session.holding(tracked.carrying):
            self._carrier.take_live(tracked)
            with session.holding(tracked.uploading):
                session.upload_of(tracked).check_in(self._clock(), erase=True)

    # -- the thread

    def _run(self) -> None:
        until, closing = math.inf, self._session.closing
        while True:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            if closing.is_set():
                until = min(until, time.monotonic() + FLUSH_S)
            try:
                self._look()
            except Superseded as error:
                self._stop(error)
            except Exception as error:  # noqa: BLE001 - tried again
                self._session.available.failed(error)
            if self._stopped or (closing.is_set() and (self._is_done() or time.monotonic() > until)):
                return

    def _stop(self, error: Superseded) -> None:
        """Another service writes to the store: acknowledge nothing more, and have the process end."""
        self._stopped = True
        self._session.available.stop(error.message)
        self._session.closing.set()
        failures.report(error)
        self._confirmations.refuse(StorageError(error.message))

    @property
    def _is_busy(self) -> bool:
        return any(
            one.waiting_since or one.uploading.locked() for one in list(self._session.tracked.values())
        )

    def _is_done(self) -> bool:
        """Whether the store has everything; a new collection is listed only after its first upload."""
        return not self._is_busy and self._session.opened is not None and self._names.is_level(self._catalog)

    def _look(self) -> None:
        """Begin every upload that is due."""
        self._confirmations.give_up_late()
        session, now = self._session, time.monotonic()
        closing = session.closing.is_set()
        if not (session.available.may_try or closing):
            return
        if session.opened is None:
            self._names.stored = session.open(lambda *_: None, restores=False).directory
            session.available.recovered()
        self._track()
        if now >= self._names_due or closing:
            self._names_due = now + self.options.lag_s_max / 2
            self._upload_names()
        if now >= self._fence_due and not closing:
            self._fence_due = now + FENCE_EVERY_S
            self._names.require_last()
        at_once = self.options.acknowledge == "bucket" or closing
        wait_s = 0.0 if at_once else self.options.lag_s_max / 2
        for tracked in list(session.tracked.values()):
            waits = tracked.waiting_since and now >= tracked.upload_began + wait_s
            if (waits or has_new_files(tracked, now, at_end=closing)) and tracked.uploading.acquire(
                blocking=False
            ):
                self._pool.submit(self._upload, tracked)
            is_new = tracked.collection.generation != tracked.generation and not closing
            if is_new and tracked.carrying.acquire(blocking=False):
                self._pool.submit(self._carrier.carry, tracked)
        if now >= self._clear_due:
            self._clear_due = now + CLEAR_EVERY_S
            self._pool.submit(self._clear_removed)
        if self.error and not self._is_busy and not self._is_probing:
            self._is_probing = True
            self._pool.submit(self._probe)
        if now >= self._carrier.offers_due and not closing:
            self._carrier.offers_due = math.inf
            self._pool.submit(self._carrier.take_offers)

    def _track(self) -> None:
        """Follow collections that are new or were opened again, and forget those that are gone."""
        present, tracked = {one.uid: one for one in self._catalog.collections.values()}, self._session.tracked
        for uid, collection in present.items():
            if uid not in tracked or tracked[uid].collection is not collection:
                known = self._session.track(collection)
                collection.on_commit.append(known.committed)
                known.waiting_since = time.monotonic()
        for uid in tracked.keys() - present.keys():
            del tracked[uid]

    def _upload_names(self) -> None:
        waiting = self._confirmations.files()
        slot, stored = self._names.upload(self._catalog), set(self._names.stored.collections.values())
        if slot is not None and all(one.uid in stored for one in self._catalog.collections.values()):
            self._confirmations.confirmed(waiting, slot)

    # -- on threads of the pool

    def _upload(self, tracked: Tracked) -> None:
        """Upload one collection, which is locked."""
        tracked.upload_began = time.monotonic()
        since, tracked.waiting_since = tracked.waiting_since, 0.0  # a commit from here on is one more
        waiting = self._confirmations.files(tracked.collection.uid)
        try:
            upload = self._session.upload_of(tracked)
            self._session.require_present(upload.writer)
            upload.upload(self._clock())
            self._confirmations.confirmed(waiting, upload.writer.last.slot.number)
        except Superseded as error:
            self._stop(error)
        except Exception as error:  # noqa: BLE001 - tried again
            tracked.waiting_since = since or time.monotonic()
            if is_readable(tracked.collection):
                self._session.available.failed(error)
        else:
            self.uploads += 1
            self._session.available.recovered()
        finally:
            tracked.uploading.release()
            if self._confirmations.waiting:
                self._names_due = 0.0
                self._wake.set()

    def _probe(self) -> None:
        """Find out whether the store is back, if there is nothing to upload."""
        try:
            self._session.require_present()
            prove(self._session.objects)
        except Exception as error:  # noqa: BLE001 - tried again
            self._session.available.failed(error)
        else:
            self._session.available.recovered()
        finally:
            self._is_probing = False

    def _clear_removed(self) -> None:
        try:
            self._names.clear_removed()
        except NearlineError as error:
            self._session.available.failed(error)

    def _note_change(self) -> None:
        with self._counting:
            self.changes += 1
            changes = self.changes
        self.arrivals.arrived(changes)


def has_new_files(tracked: Tracked, now: float, *, at_end: bool) -> bool:
    """Whether settings of a collection have changed, if it is time to look."""
    if now < tracked.files_due and not at_end:
        return False
    tracked.files_due = now + FILES_EVERY_S
    before, tracked.files = tracked.files, changes_of(tracked.collection.folder, FILES)
    return tracked.files != before


def is_readable(collection: Collection) -> bool:
    """Whether a failure can be due to the store: the log is neither damaged nor closed, for a new name or for good."""
    try:
        collection.log.position()
    except NearlineError:
        return False
    return True
