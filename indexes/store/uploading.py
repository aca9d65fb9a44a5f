"""Carries what is written on this machine into a store, in the background, and says how far it has come.

One thread looks after all collections, and a few others upload. The upload of a commit begins half of `lag_s_max`
after it was made, together with those that came meanwhile. If writes are acknowledged only when the store has them
(`acknowledge = "bucket"`), it is uploaded at once, and what is committed during an upload goes with the next one.

If the store cannot be used, everything waits and is tried again; nothing is lost from the disk. If another service has
taken over the store, this process stops: what it would go on to acknowledge could not be kept.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from indexes.base import failures
from indexes.base.arrivals import Arrivals
from indexes.base.errors import (
    Conflict,
    Damaged,
    NearlineError,
    NotFound,
    NotReady,
    RecallTooLow,
    Unavailable,
    message_of,
)
from indexes.base.model import Progress, Replication, WriteResult, now_ms
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.store.checkpoints import DAY_MS
from indexes.store.collection_log import CollectionLog, CollectionUpload, changes_of_files
from indexes.store.directory import Directory, describe_directory, note_removal, read_record
from indexes.store.objects import Objects, prove
from indexes.store.offers import Offer, Offers
from indexes.store.opening import OpenStore, open_store
from indexes.store.slots import LogExtent, Superseded

logger = logging.getLogger(__name__)

T = TypeVar("T")

UPLOADS_TOGETHER = 4
LOOK_S = 0.1  # how often the thread looks for what is due
FILES_EVERY_S = 5.0  # how often it looks for settings that have changed
CLEAR_EVERY_S = 3600.0
OFFERS_EVERY_S = 10.0
RETRY_S = (0.5, 15.0)  # the first pause after a failure, and the longest
FLUSH_S = 4.0  # at the end; the service has little more
PRESENT_S = 1.0  # how often a bucket is asked whether it is still the one that was opened; a folder each time
CONFIRM_S = 15.0  # how long a write waits for the store


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


@dataclass(slots=True)
class Tracked:
    """A collection whose commits are uploaded. `waiting_since`: when the oldest commit that is not in the store was
    made, by the monotonic clock; 0 if all are. `files`: when the settings beside its log were changed. `generation`:
    which live one was last compared with that in the store."""

    collection: Collection
    waiting_since: float = 0.0
    files_due: float = 0.0
    files: tuple[int, ...] = ()
    generation: int = 0
    uploading: threading.Lock = field(default_factory=threading.Lock)  # changes
    carrying: threading.Lock = field(default_factory=threading.Lock)  # a generation


@dataclass(frozen=True, slots=True)
class Confirming:
    """A write that waits for the store, until a time of the monotonic clock."""

    result: WriteResult
    future: Future[WriteResult]
    until: float


class Uploader(Replication):
    """Keeps a store up to date with the collections of a catalog. Thread-safe.

    In this order: give it to the catalog in its options, call `open` once the directory is locked, `start`, `close`.
    """

    def __init__(
        self, objects: Objects, options: StoreOptions, data: Path, clock: Callable[[], int] = now_ms
    ) -> None:
        self.options, self._objects, self._data, self._clock = options, objects, data, clock
        self.error = ""
        """Why the store cannot be used; "" if it can."""
        self.uploads = 0
        self.changes, self.arrivals = 0, Arrivals(0)
        """How many slots this process has put into the store, and waits for more."""
        self._lock, self._beginning = threading.RLock(), threading.Lock()
        self._tracked: dict[str, Tracked] = {}  # by uid
        self._uploads: dict[str, CollectionUpload] = {}  # by uid; also of collections that are gone
        self._stopped = False
        self._wake, self._closing = threading.Event(), threading.Event()
        self._failed_since, self._retry_at, self._pause_s = 0.0, 0.0, RETRY_S[0]
        self._opened: OpenStore | None = None
        self._directory = Directory()
        self._directory_due = self._clear_due = self._present_until = 0.0
        self._cleared: set[str] = set()
        self._offers: Offers | None = None
        self._offers_due = 0.0
        self._is_probing = False
        self._confirming: dict[str, list[Confirming]] = {}  # by uid
        self._naming: list[tuple[Future[None], float]] = []
        self._pool = ThreadPoolExecutor(UPLOADS_TOGETHER, "store")
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def open(self, progress: Progress) -> None:
        """Open the store, before any collection is open, and restore what the directory lacks. If the store cannot be
        reached and the directory had it before, go on without it until it can. Raises like `open_store`."""
        try:
            self._take(progress, restores=True)
        except Unavailable as error:
            record = read_record(self._data)
            if record is None or not record.token or record.url != self.options.url or record.restoring:
                raise
            self._fail(error)

    def _take(self, progress: Progress, *, restores: bool) -> None:
        self._opened = open_store(self._objects, self.options.url, self._data, progress, restores=restores)
        self._directory = self._opened.directory

    def start(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._track()
        self._thread.start()

    def close(self) -> None:
        """Upload what is left, for at most FLUSH_S, and stop."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_S + 1)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- what callers ask

    def state_of(self, collection: Collection) -> UploadState:
        tracked = self._tracked.get(collection.uid)
        is_listed = collection.uid in self._directory.collections.values()  # else it would not be restored
        seq = int(self.last_copied(collection.uid)) if is_listed else 0
        since = tracked.waiting_since if tracked else 0.0
        return UploadState(
            seq, max(collection.log.newest_seq - seq, 0), time.monotonic() - since if since else 0.0
        )

    @property
    def lag_s(self) -> float:
        """For how long the oldest commit waits that is not in the store."""
        waiting = [one.waiting_since for one in list(self._tracked.values()) if one.waiting_since]
        return time.monotonic() - min(waiting) if waiting else 0.0

    def require_up(self) -> None:
        if self.options.acknowledge == "bucket" and self.error:
            raise Unavailable(
                "writes wait for the store, which cannot be used now; the log says why",
                retry_after_s=self._pause_s,
            )

    def last_copied(self, uid: str) -> float:
        if uid in self._uploads:
            return self._uploads[uid].seq
        if self._opened is not None and uid in self._opened.writers:
            return self._opened.writers[uid].slots.last.slot.reached.operations
        return 0

    def removing(self, name: str) -> None:
        collection = self._catalog.collections.get(name)
        uid = collection.uid if collection else self._directory.collections.get(name)
        if uid is not None:
            note_removal(self._data, uid)

    def confirm(self, uid: str, written: Future[WriteResult]) -> Future[WriteResult]:
        if self.options.acknowledge == "local":
            return written
        confirmed: Future[WriteResult] = Future()

        def on_written(done: Future[WriteResult]) -> None:
            if done.cancelled():
                confirmed.cancel()
            elif error := done.exception():
                resolve(confirmed, error)
            else:
                self._await_store(uid, Confirming(done.result(), confirmed, time.monotonic() + CONFIRM_S))

        def on_confirmed(done: Future[WriteResult]) -> None:
            if done.cancelled():
                written.cancel()

        confirmed.add_done_callback(on_confirmed)
        written.add_done_callback(on_written)
        return confirmed

    def _await_store(self, uid: str, write: Confirming) -> None:
        with self._lock:
            if self.last_copied(uid) < write.result.seq and not self._stopped:
                self._confirming.setdefault(uid, []).append(write)
                self._wake.set()
                return
        resolve(write.future, Unavailable(self.error) if self._stopped else write.result)

    def directory_changed(self) -> Future[None]:
        """Call after a change of names, aliases or keys; the future resolves when the store has it. It is done at once
        if changes are acknowledged when they are on the disk."""
        done: Future[None] = Future()
        if self.options.acknowledge == "local":
            done.set_result(None)
            return done
        with self._lock:
            self._naming.append((done, time.monotonic() + CONFIRM_S))
        self._directory_due = 0.0
        self._wake.set()
        return done

    def erase(self, collection: Collection) -> None:
        """Remove what was deleted from every object of the store. No earlier moment can be restored afterwards.

        Raises Unavailable; repeat it then."""
        tracked = self._tracked[collection.uid]
        with self._holding(tracked.carrying):
            self._take_generation(tracked)
            with self._holding(tracked.uploading):
                self._upload_of(tracked).check_in(self._clock(), erase=True)

    @contextlib.contextmanager
    def _holding(self, lock: threading.Lock) -> Iterator[None]:
        while not lock.acquire(timeout=LOOK_S):
            self._require_open()
        try:
            yield
        finally:
            lock.release()

    # -- the thread

    def _run(self) -> None:
        until = math.inf
        while True:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            if self._closing.is_set():
                until = min(until, time.monotonic() + FLUSH_S)
            try:
                self._look()
            except Superseded as error:
                self._stop(error)
            except Exception as error:  # noqa: BLE001 - tried again
                self._fail(error)
            if self._stopped or (self._closing.is_set() and (self._is_done() or time.monotonic() > until)):
                return

    def _stop(self, error: Superseded) -> None:
        """Another service writes to the store: acknowledge nothing more, and have the process end."""
        self.error, self._stopped = error.message, True
        failures.report(error)
        with self._lock:
            waiting = [one.future for some in self._confirming.values() for one in some]
            naming = [future for future, _ in self._naming]
            self._confirming, self._naming = {}, []
        for write in waiting:
            resolve(write, error)
        for future in naming:
            resolve(future, error)

    def _is_done(self) -> bool:
        """Whether the store has everything; a new collection is listed only after its first upload."""
        busy = any(one.waiting_since or one.uploading.locked() for one in list(self._tracked.values()))
        return not busy and self._opened is not None and self._described() == self._directory

    def _look(self) -> None:
        """Begin every upload that is due."""
        self._give_up_late()
        now = time.monotonic()
        if now < self._retry_at and not self._closing.is_set():
            return
        if self._opened is None:
            self._take(lambda *_: None, restores=False)
            self._recover()
        self._track()
        if now >= self._directory_due or self._closing.is_set():
            self._directory_due = now + self.options.lag_s_max / 2
            self._upload_directory()
        at_once = self.options.acknowledge == "bucket" or self._closing.is_set()
        wait_s = 0.0 if at_once else self.options.lag_s_max / 2
        for tracked in list(self._tracked.values()):
            waits = tracked.waiting_since and now >= tracked.waiting_since + wait_s
            if (waits or self._has_new_files(tracked, now)) and tracked.uploading.acquire(blocking=False):
                self._pool.submit(self._work, tracked)
            is_new = tracked.collection.generation != tracked.generation and not self._closing.is_set()
            if is_new and tracked.carrying.acquire(blocking=False):
                self._pool.submit(self._carry, tracked)
        if now >= self._clear_due:
            self._clear_due = now + CLEAR_EVERY_S
            self._pool.submit(self._clear_removed)
        busy = any(one.waiting_since or one.uploading.locked() for one in self._tracked.values())
        if self.error and not busy and not self._is_probing:
            self._is_probing = True
            self._pool.submit(self._probe)
        if now >= self._offers_due and not self._closing.is_set():
            self._offers_due = math.inf
            self._pool.submit(self._take_offers)

    def _has_new_files(self, tracked: Tracked, now: float) -> bool:
        if now < tracked.files_due:
            return False
        tracked.files_due = now + FILES_EVERY_S
        before, tracked.files = tracked.files, changes_of_files(tracked.collection.folder)
        return tracked.files != before

    def _track(self) -> None:
        """Follow collections that are new or were opened again, and forget those that are gone."""
        present = {one.uid: one for one in self._catalog.collections.values()}
        for uid, collection in present.items():
            known = self._tracked.get(uid)
            if known is None:
                known = self._tracked[uid] = Tracked(collection)
            elif known.collection is collection:
                continue
            known.collection = collection
            if uid in self._uploads:
                self._uploads[uid].log = collection.log
            collection.on_commit.append(partial(self._committed, known))
            known.waiting_since = time.monotonic()
        for uid in [uid for uid in self._tracked if uid not in present]:
            del self._tracked[uid]

    def _committed(self, tracked: Tracked, seq: int) -> None:
        """On the thread that writes to the collection."""
        tracked.waiting_since = tracked.waiting_since or time.monotonic()

    def _require_present(self) -> None:
        if self._opened is not None and time.monotonic() >= self._present_until:
            self._opened.require_present()
            cheap = self.options.url.startswith("file:")
            self._present_until = time.monotonic() + (0.0 if cheap else PRESENT_S)

    def _upload_of(self, tracked: Tracked) -> CollectionUpload:
        if self._opened is None:
            raise Unavailable(f"the store cannot be used yet: {self.error}")
        uid = tracked.collection.uid
        with self._beginning:  # changes and a generation are uploaded on two threads
            if uid not in self._uploads:
                writer = self._opened.writer_of(uid)
                self._uploads[uid] = CollectionUpload(
                    writer.held,
                    writer.slots,
                    tracked.collection.log,
                    writer.checkpoint,
                    keep_ms=int(self.options.keep_days * DAY_MS),
                    on_upload=partial(self._confirm, uid),
                    on_append=self._note_change,
                )
        return self._uploads[uid]

    def _work(self, tracked: Tracked) -> None:
        """Upload one collection, on a thread of the pool."""
        began, tracked.waiting_since = tracked.waiting_since, 0.0  # a commit from here on is one more
        try:
            upload = self._upload_of(tracked)
            self._require_present()
            upload.upload(self._clock())
        except Superseded as error:
            self._stop(error)
        except Exception as error:  # noqa: BLE001 - tried again
            tracked.waiting_since = began or time.monotonic()
            if is_readable(tracked.collection):
                self._fail(error)
        else:
            self.uploads += 1
            self._recover()
        finally:
            tracked.uploading.release()
            if self._confirming or self._naming:
                self._directory_due = 0.0
                self._wake.set()

    def _probe(self) -> None:
        """Find out whether the store is back, if there is nothing to upload."""
        try:
            self._require_present()
            prove(self._objects)
        except Exception as error:  # noqa: BLE001 - tried again
            self._fail(error)
        else:
            self._recover()
        finally:
            self._is_probing = False

    def _carry(self, tracked: Tracked) -> None:
        """Upload the live generation of a collection, on a thread of the pool."""
        try:
            self._take_generation(tracked)
        except (NotFound, NotReady):
            logger.debug("the generation of %s was replaced, or the service closes", tracked.collection.name)
        except Damaged as error:
            tracked.generation = tracked.collection.generation
            logger.warning("the indexes of %s are not stored: %s", tracked.collection.name, error.message)
        except Exception as error:  # noqa: BLE001 - tried again
            self._fail(error)
        finally:
            tracked.carrying.release()

    def _take_generation(self, tracked: Tracked) -> None:
        upload, number = self._upload_of(tracked), tracked.collection.generation
        self._require_present()
        if number and upload.take_generation(
            tracked.collection.shelf.path(number), self._clock(), self._require_open
        ):
            tracked.waiting_since = tracked.waiting_since or time.monotonic()
        tracked.generation = number

    def _take_offers(self) -> None:
        """Adopt what other machines have built, on a thread of the pool."""
        try:
            self._offers = offers = self._offers or Offers(self._objects)
            while (offer := offers.next()) is not None:
                refusal = self._adopt(offer)
                if refusal:
                    CollectionLog(self._objects, offer.uid).generations.remove(offer.generation)
                tracked = self._tracked.get(offer.uid)
                offers.answer(refusal, tracked.generation if tracked else 0)
        except NotReady:
            return
        except Exception as error:  # noqa: BLE001 - tried again
            logger.info("what other machines have built is looked at later: %s", message_of(error))
        finally:
            self._offers_due = time.monotonic() + OFFERS_EVERY_S

    def _adopt(self, offer: Offer) -> str:
        """Adopt a generation that another machine has built. Returns why not, once the store says which one is live."""
        tracked, stored = self._tracked.get(offer.uid), offer.generation
        if tracked is None:
            return "the collection is not served"
        try:
            with self._holding(tracked.carrying):
                collection, upload = tracked.collection, self._upload_of(tracked)
                if upload.generation != stored:  # or it was adopted before the store went away
                    if collection.live_seq >= stored.seq:
                        return f"a generation as new is live already, of operation {collection.live_seq}"
                    number = collection.take_number(stored.number)
                    upload.held.generations.fetch(
                        stored, collection.shelf, number, lambda *_: self._require_open()
                    )
                    collection.adopt(number)
                    upload.generation, tracked.generation = stored, number
                    logger.info("adopted generation %d of %s, built elsewhere", number, collection.name)
                tracked.waiting_since = tracked.waiting_since or time.monotonic()
                while upload.stored_generation != stored:
                    self._require_open()
                    if self._tracked.get(offer.uid) is not tracked:
                        return "the collection was deleted"
                    time.sleep(LOOK_S)
        except (Damaged, NotFound, RecallTooLow, Conflict) as error:
            logger.warning("a generation built elsewhere is not adopted: %s", error.message)
            return error.message
        return ""

    def _require_open(self) -> None:
        if self._closing.is_set() or self._stopped:
            raise NotReady("the service is closing")

    def _confirm(self, uid: str, seq: int) -> None:
        with self._lock:
            waiting = self._confirming.pop(uid, [])
            if later := [one for one in waiting if one.result.seq > seq]:
                self._confirming[uid] = later
        for one in waiting:
            if one.result.seq <= seq:
                resolve(one.future, one.result)

    def _give_up_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [one for waiting in self._confirming.values() for one in waiting if one.until < now]
            kept = {
                uid: [one for one in waiting if one.until >= now] for uid, waiting in self._confirming.items()
            }
            self._confirming = {uid: waiting for uid, waiting in kept.items() if waiting}
            names_late = [future for future, until in self._naming if until < now]
            self._naming = [one for one in self._naming if one[1] >= now]
        error = Unavailable("done here, but not yet in the store; the log says why")
        for one in late:
            resolve(one.future, error)
        for future in names_late:
            resolve(future, error)

    def _note_change(self) -> None:
        with self._lock:
            self.changes += 1
            changes = self.changes
        self.arrivals.arrived(changes)

    def _upload_directory(self) -> None:
        assert self._opened is not None
        with self._lock:
            naming, self._naming = self._naming, []
        try:
            names = self._opened.names
            if (now := self._described()) != self._directory:
                self._require_present()
                names.settle()
                reached = LogExtent(names.last.slot.reached.operations + 1, content=now.digest)
                names.append(msgspec.msgpack.encode(now), reached, self._clock())
                self._directory = now
                self._note_change()
                self._recover()
        except BaseException:
            with self._lock:
                self._naming += naming
            raise
        stored = set(self._directory.collections.values())
        if any(one.uid not in stored for one in self._catalog.collections.values()):
            with self._lock:
                self._naming += naming
            return
        for future, _ in naming:
            resolve(future, None)

    def _described(self) -> Directory:
        """The directory as it is. A collection that cannot be opened stays as it was, and one of which the store has
        nothing yet comes later."""
        before = self._directory
        closed = set(self._catalog.quarantined) & set(before.collections)
        collections = {name: before.collections[name] for name in closed}
        for name, one in self._catalog.collections.items():
            writer = self._opened.writers.get(one.uid) if self._opened else None
            if writer is not None and writer.slots.last.slot.reached.content:
                collections[name] = one.uid
        found = describe_directory(self._data, collections, before, self._clock())
        removed = {uid: at_ms for uid, at_ms in found.removed.items() if uid not in self._cleared}
        return msgspec.structs.replace(found, removed=removed)

    def _clear_removed(self) -> None:
        """Remove collections from the store that were deleted `keep_days` ago."""
        before_ms = self._clock() - self.options.keep_days * DAY_MS
        try:
            for uid, at_ms in self._directory.removed.items():
                if at_ms <= before_ms and uid not in self._cleared:
                    self._objects.remove(CollectionLog(self._objects, uid).objects_held())
                    self._cleared.add(uid)
        except NearlineError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, (NearlineError, OSError)):
            message = message_of(error)
        else:
            message = repr(error)
            logger.error("what follows is a bug", exc_info=error)
        if not self.error:
            logger.error("the store gets nothing for now: %s", message)
            self._failed_since, self._pause_s = time.monotonic(), RETRY_S[0]
        elif time.monotonic() >= self._retry_at:
            self._pause_s = min(2 * self._pause_s, RETRY_S[1])
        self.error = message
        self._retry_at = time.monotonic() + self._pause_s

    def _recover(self) -> None:
        if self._stopped:
            return
        if self.error:
            logger.info("the store can be used again after %.0f s", time.monotonic() - self._failed_since)
        self.error, self._retry_at = "", 0.0


def is_readable(collection: Collection) -> bool:
    """Whether a failure can be due to the store: the log is neither damaged nor closed, for a new name or for good."""
    try:
        collection.log.position()
    except NearlineError:
        return False
    return True


def resolve(future: Future[T], outcome: T | BaseException) -> None:
    with contextlib.suppress(InvalidStateError):  # its caller has left
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
