"""A replica: a data directory that follows a store which another service writes to, and serves searches.

It asks the store again and again for the next slot of each log, and writes what it finds into a log of its own, with
the same numbers: at the same operation it gives the same hits with the same scores as the writer. It takes the writer's
generations from the store, and builds its own only if it cannot use one of them. It embeds queries, never documents.

A collection is restored as a whole if it is new here, or has fallen behind the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from indexes.base import failures
from indexes.base.arrivals import Arrivals
from indexes.base.durable import FolderLock, disk_errors, sync_folder
from indexes.base.errors import (
    Conflict,
    Damaged,
    NearlineError,
    NotFound,
    NotReady,
    RecallTooLow,
    StorageError,
    Unavailable,
    message_of,
)
from indexes.base.model import Progress, Replication, now_ms
from indexes.base.moving import MOVING, parse_moving
from indexes.base.structs import learn_structs
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.directory.marker import LOCK, clear_unrestored, prepare
from indexes.parts.learned import ALIASES, RANKING, SYNONYMS, VECTOR_STORE
from indexes.parts.unrestored import note_unrestored
from indexes.rebuild.chosen import FILE as CHOSEN
from indexes.rebuild.chosen import TunedSettings
from indexes.store.collection_log import ERASED, CollectionLog
from indexes.store.directory import (
    DIRECTORY,
    NAMES,
    Directory,
    Record,
    note_put,
    read_put,
    read_record,
    restore_directory,
    write_record,
)
from indexes.store.generations import GENERATIONS, generation_in
from indexes.store.objects import Objects
from indexes.store.opening import OnDisk, collections_on, directory_at, keep_beside, restore_collection
from indexes.store.restoring import NEWEST
from indexes.store.rows import LogChange, reached_by, replay
from indexes.store.session import PRESENT_S
from indexes.store.slots import LogExtent, Read, SlotLog, newest_epoch, read_epoch

logger = logging.getLogger(__name__)

FOLLOWED_TOGETHER = 8  # collections
TAKE_AGAIN_S = 5.0
TOLD_POLL_S = 5.0  # how often the store is asked at least, while the writer tells what is new


class OutOfStep(StorageError):
    """What is here no longer continues what the store has: a new start restores it."""


@dataclass(frozen=True, slots=True)
class FollowState:
    """How far this machine is behind the store with a collection: the last operation there, how many of them are not
    here, and how many seconds ago this machine last had everything."""

    seq: int
    behind: int
    age_s: float


@dataclass(slots=True)
class FollowedLog:
    """A collection that is followed: `last` is the slot up to which this machine has everything. `files` are those of
    the last state, and `taken` of the last one whose generation and search settings this machine has. A generation that
    it could not use is `refused`; one that it could not get is tried again at `take_at`. `erased_ms`: when it was
    learned, by this machine's clock, that the writer has erased what was deleted; 0 if it never has."""

    uid: str
    log: CollectionLog
    last: Read
    level_at: float
    files: dict[str, bytes]
    taken: dict[str, bytes] | None = None
    is_taking: bool = False
    take_at: float = 0.0
    erased_ms: int = 0
    refused: bytes | None = None
    sure_until: float = 0.0  # that the store still has `last`


class Follower(Replication):
    """Follows a store. In this order: give it to the catalog in its options, call `open` once the directory is locked,
    `start`, `close`."""

    def __init__(self, objects: Objects, url: str, data: Path, poll_s: float, writer: str = "") -> None:
        """`writer` names the service that writes to callers; "" if only the store knows it."""
        self._objects, self._url, self._data, self._poll_s = objects, url, data, poll_s
        self.error = ""
        """Why the store cannot be used; "" if it can."""
        self.uploads = 0
        self._writer, self._names_writer = writer or "another service", not writer
        self.is_told = False  # by the writer, of everything that is new
        self._wake = threading.Event()
        self._began = time.monotonic()
        self._names = SlotLog(objects, DIRECTORY)
        self._names_read, self._names_content = 0, b""
        self.names = Arrivals(0)  # of slots of names and keys, once they are taken over
        self._followed: dict[str, FollowedLog] = {}  # by name
        self._is_level = False
        self._epoch, self._present_until = 0, 0.0
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(FOLLOWED_TOGETHER, "follow")
        self._takes = ThreadPoolExecutor(1, "take")
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    # -- what collections and callers ask

    def require_up(self) -> None:
        if threading.current_thread() is not self._thread:
            raise Conflict(f"this service is a replica; writes go to {self._writer}")

    def builds(self, uid: str) -> bool:
        one = self._of(uid)
        return one is not None and one.refused is not None and one.refused == one.files.get(GENERATIONS)

    def age_s(self, uid: str) -> float | None:
        one = self._of(uid)
        return time.monotonic() - (self._began if one is None else one.level_at)

    def erased_ms(self, uid: str) -> int:
        one = self._of(uid)
        return one.erased_ms if one is not None and one.taken == one.files else 0

    def _of(self, uid: str) -> FollowedLog | None:
        return next((one for one in list(self._followed.values()) if one.uid == uid), None)

    def state_of(self, collection: Collection) -> FollowState:
        followed, here = self._of(collection.uid), collection.log.newest_seq
        level_at = self._began if followed is None else followed.level_at
        seq = here if followed is None else followed.last.slot.reached.operations
        return FollowState(seq, max(seq - here, 0), time.monotonic() - level_at)

    @property
    def epoch(self) -> int:
        """The newest epoch that this machine has seen: the service that has it is the one that writes."""
        return self._epoch

    @property
    def oldest_s(self) -> float:
        """The greatest age of a collection."""
        return max((time.monotonic() - one.level_at for one in list(self._followed.values())), default=0.0)

    # -- opening

    def open(self, progress: Progress) -> None:
        """Bring the directory up to date before any collection is open; as it is, if the store is away. Raises Conflict
        for a directory that has written to a store, or has collections that are not of this one."""
        record = read_record(self._data)
        on_disk = collections_on(self._data)
        if record is None and on_disk:
            raise Conflict(f"{self._data} has collections of its own: a replica needs an empty directory")
        if record is not None and not (record.replica and record.url == self._url):
            raise Conflict(
                f"{self._data} has written to a store, or followed another one: a replica needs its own"
            )
        learn_structs()
        write_record(self._data, Record(url=self._url, replica=True))
        prepare(self._data)
        try:
            self._level(on_disk, progress)
        except (Unavailable, NotFound) as error:  # or what was mounted there is not
            if not on_disk:
                raise
            self._note(message_of(error))

    def _level(self, on_disk: list[OnDisk], progress: Progress) -> None:
        directory = self._read_directory()
        clear_unrestored(self._data)
        restore_directory(self._data, directory)
        present = {one.name: one for one in on_disk}
        for one in on_disk:
            if directory.collections.get(one.name) != one.uid:
                self._remove(one.name)
                del present[one.name]
        for name, uid in directory.collections.items():
            here = present.get(name)
            self._begin(name, uid, here.reached if here else None, progress)
        self._note_names()
        self._is_level = True

    def _resume(self) -> None:
        """Go on, once the store is back after a start without it, if what is open continues what it has."""
        directory = self._read_directory()
        for name, one in self._catalog.collections.items():
            log = CollectionLog(self._objects, one.uid)
            with one.log.transaction() as db:
                last = slot_of(log, reached_by(db)) if directory.collections.get(name) == one.uid else None
            if last is None:
                raise OutOfStep(
                    f"{name} is too far behind the store, or gone from it; a restart brings it up to date"
                )
            self._followed[name] = follow_from(one.uid, log, last)
        self._take(directory)
        self._note_names()
        self._is_level = True

    def _note_names(self) -> None:
        """Remember up to where this machine has names and keys, so that it can be promoted."""
        note_put(self._data, NAMES, self._names_read, self._names_content)

    def _read_directory(self) -> Directory:
        """The newest one. Raises NotFound if no service has written to the store yet."""
        self._epoch, newest = newest_epoch(self._objects)
        if newest is None:
            raise NotFound(f"the store {self._url} is empty: start the service that writes to it first")
        if self._names_writer:
            self._writer = f"the service on {newest.by.partition(':')[0]}"  # callers need no paths
        last = self._names.last().slot
        self._names_read, self._names_content = last.number, last.reached.content
        return directory_at(self._names, NEWEST)

    def _begin(self, name: str, uid: str, here: LogExtent | None, progress: Progress) -> None:
        """Follow a collection from where it is, or restore it; if it is damaged in the store, note that."""
        log = CollectionLog(self._objects, uid)
        try:
            last = None if here is None else slot_of(log, here)
            if last is None:
                logger.info("restoring %s from the store", name)
                state = restore_collection(log, self._data, name, progress)
                last = slot_of(log, state.reached)
            if last is None:
                raise Unavailable(f"{name} is written faster than it could be restored; try again")
            self._followed[name] = follow_from(uid, log, last)
        except (Damaged, NotFound) as error:
            note_unrestored(self._data / name, error.message)

    def _remove(self, name: str) -> None:
        folder = self._data / name
        with disk_errors(folder):
            folder.rename(gone := self._data / f".removed-{name}-{uuid.uuid4().hex}")
        shutil.rmtree(gone, ignore_errors=True)

    # -- following

    def start(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._thread.start()

    def hear(self, *, is_told: bool) -> None:
        """Whether the writer tells of what is new; if so, there may be something now."""
        self.is_told = is_told
        self._wake.set()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown(wait=True)
        self._takes.shutdown(wait=True, cancel_futures=True)

    def _run(self) -> None:
        while True:
            self._wake.wait(max(self._poll_s, TOLD_POLL_S) if self.is_told else self._poll_s)
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                self._require_present()
                if not self._is_level:
                    self._resume()
                self._follow_directory()
                under_way = [self._pool.submit(self._follow, *item) for item in self._followed.items()]
                wait(under_way)
                self._begin_takes()  # of those that went well, too
                for one in under_way:
                    one.result()
            except OutOfStep as error:
                failures.report(error)
                return
            except Exception as error:
                if not isinstance(error, NearlineError):
                    logger.exception("following the store failed")
                self._note(message_of(error))
            else:
                self._note("")

    def _require_present(self) -> None:
        """Raise Unavailable if the store has lost what it held: that there is no next slot would say nothing."""
        if not self._is_level or time.monotonic() < self._present_until:
            return
        try:
            read_epoch(self._objects, self._epoch)
        except NotFound:
            raise Unavailable(f"the store {self._url} has lost what it held, or is another one now") from None
        self._present_until = time.monotonic() + PRESENT_S

    def _note(self, error: str) -> None:
        if error and not self.error:
            logger.error("the store is not followed for now: %s", error)
        self.error = error

    def _follow_directory(self) -> None:
        changed = None
        while True:
            try:
                slot = self._names.read(self._names_read + 1).slot
            except NotFound:
                break
            self._names_read = slot.number
            changed = slot
        if changed is not None:
            self._take(self._read_directory())
            self._note_names()
        self.names.arrived(self._names_read)

    def _take(self, directory: Directory) -> None:
        """Bring collections, aliases and keys to what a directory says. An alias moves before its target goes."""
        catalog, wanted = self._catalog, directory.collections
        names = {uid: name for name, uid in wanted.items()}
        gone = [name for name, one in self._followed.items() if one.uid not in names]
        gone += [name for name in catalog.quarantined if name not in self._followed and name not in wanted]
        for name in gone:
            if name in wanted:
                self._delete(name)
        while free := [
            name for name in self._moved(names) if names[self._followed[name].uid] not in self._followed
        ]:
            followed = self._followed.pop(free[0])
            catalog.rename(free[0], names[followed.uid])
            self._followed[names[followed.uid]] = followed
        for name in self._moved(names):  # two have exchanged their names
            self._delete(name)
        for name, uid in wanted.items():
            if name not in self._followed:
                self._begin(name, uid, None, lambda *_: None)
                catalog.open_placed(name)
        for alias, name in directory.aliases.items():
            if catalog.aliases.get(alias) != name:
                catalog.set_alias(alias, name)
        for alias in catalog.aliases.keys() - directory.aliases.keys():
            catalog.remove_alias(alias)
        for name in gone:
            if name not in wanted:
                self._delete(name)
        restore_directory(self._data, directory)

    def _moved(self, names: dict[str, str]) -> list[str]:
        """The collections that have another name in the store."""
        return [name for name, one in self._followed.items() if names.get(one.uid, name) != name]

    def _delete(self, name: str) -> None:
        for alias in [alias for alias, target in self._catalog.aliases.items() if target == name]:
            self._catalog.remove_alias(alias)
        self._followed.pop(name, None)
        self._catalog.delete(name)

    def _follow(self, name: str, followed: FollowedLog) -> None:
        """Bring one collection up to date."""
        collection = self._catalog.collections.get(name)
        if collection is None:
            return  # quarantined: it comes back when its files do
        together: list[LogChange] = []
        for read in followed.log.slots.following(followed.last):
            if not read.slot.payload:
                together = []
            else:
                together.append(msgspec.msgpack.decode(read.slot.payload, type=LogChange))
                if not read.slot.whole:
                    continue
                self._replay(collection, followed, together)
                together = []
            followed.last = read
        if time.monotonic() >= followed.sure_until:
            followed.sure_until = time.monotonic() + PRESENT_S
            if is_overtaken(followed):
                self._restore_again(name, followed)
        followed.level_at = time.monotonic()

    def _restore_again(self, name: str, followed: FollowedLog) -> None:
        """Take a collection from the store as a whole, while the present one is searched."""
        logger.warning("%s is restored from the store, which has dropped what comes next", name)
        fresh = f".removed-{name}-{uuid.uuid4().hex}"  # a start removes it
        try:
            state = restore_collection(followed.log, self._data, fresh, lambda *_: None)
            last = slot_of(followed.log, state.reached)
            if last is None:
                raise Unavailable(f"{name} is written faster than it could be restored; try again")

            def place() -> None:
                keep_beside(self._data / name, self._data / fresh)
                with disk_errors(self._data):
                    (self._data / name).rename(before := self._data / f".removed-{name}-{uuid.uuid4().hex}")
                    (self._data / fresh).rename(self._data / name)
                    sync_folder(self._data)
                shutil.rmtree(before, ignore_errors=True)

            self._catalog.exchange(name, place)
        finally:
            shutil.rmtree(self._data / fresh, ignore_errors=True)
        self._followed[name] = follow_from(followed.uid, followed.log, last)

    def _replay(self, collection: Collection, followed: FollowedLog, changes: list[LogChange]) -> None:
        if any(change.restarts for change in changes):
            raise OutOfStep(f"{collection.name} was uploaded again from the start; a restart restores it")
        if any(change.rows.documents or change.operations for change in changes):
            collection.replay(partial(replay, changes))
        state = changes[-1].state
        if state is not None and state.files != followed.files:
            take_files(collection, state.files)
            collection.follow_move(parse_moving(state.files.get(MOVING)))
            if state.files.get(ERASED) != followed.files.get(ERASED):
                followed.erased_ms = collection.options.now_ms()
            followed.files = state.files

    def _begin_takes(self) -> None:
        for name, one in self._followed.items():
            due = one.taken != one.files and not one.is_taking and time.monotonic() >= one.take_at
            if due and name in self._catalog.collections:
                one.is_taking = True
                self._takes.submit(self._take_generation, self._catalog.collections[name], one)

    def _take_generation(self, collection: Collection, followed: FollowedLog) -> None:
        """Adopt the generation that is live where the collection is written, and its search settings. If it cannot be
        used, this machine builds its own."""
        files, live = followed.files, generation_in(followed.files)
        try:
            if live is not None and not live.is_of(collection.shelf.path(collection.generation)):
                number = collection.take_number(live.number)
                followed.log.generations.fetch(live, collection.shelf, number, self._on_piece)
                collection.adopt(number)
            take_chosen(collection, files)
            followed.taken = files
        except (Damaged, NotFound, RecallTooLow) as error:
            logger.warning("the generation of %s cannot be used: %s", collection.name, error.message)
            followed.taken, followed.refused = files, files[GENERATIONS]
        except Exception as error:  # noqa: BLE001 - tried again
            logger.info("the generation of %s is taken later: %s", collection.name, message_of(error))
            followed.take_at = time.monotonic() + TAKE_AGAIN_S
        finally:
            followed.is_taking = False

    def _on_piece(self, stage: str, done: int, total: int) -> None:
        if self._closing.is_set():
            raise NotReady("the service is closing")


def is_overtaken(followed: FollowedLog) -> bool:
    """Whether the store has dropped slots that this machine has not read, as an erasure does."""
    log, number = followed.log, followed.last.slot.number
    return not log.slots.holds(number) and log.last(log.newest_checkpoint()).slot.number > number


def follow_from(uid: str, log: CollectionLog, last: Read) -> FollowedLog:
    files = log.files_at(last, log.newest_checkpoint()) or {}
    # It may have been erased while this machine did not follow.
    return FollowedLog(uid, log, last, time.monotonic(), files, erased_ms=now_ms() if ERASED in files else 0)


def take_chosen(collection: Collection, files: dict[str, bytes]) -> None:
    """Search with the settings that were chosen where the collection is written, if they are for this generation."""
    if (content := files.get(CHOSEN)) is None:
        return
    chosen = msgspec.json.decode(content, type=TunedSettings)
    if chosen != collection.chosen and collection.generation:
        with contextlib.suppress(Conflict):
            collection.set_search(chosen)


def take_files(collection: Collection, files: dict[str, bytes]) -> None:
    """Take over the settings beside a log, but for those of a generation."""
    collection.ranking.take(files.get(RANKING))
    collection.synonyms.take(files.get(SYNONYMS))
    collection.aliases.take(files.get(ALIASES))
    collection.vector_store.take(files.get(VECTOR_STORE))


def slot_of(log: CollectionLog, reached: LogExtent) -> Read | None:
    """The first slot that makes this state; None if it is before the newest checkpoint, or of another history."""
    checkpoint = log.newest_checkpoint()
    try:
        first = log.slots.read(checkpoint.slot if checkpoint else 1)
    except NotFound:
        return None
    for read in chain([first], log.slots.following(first)):
        if read.slot.whole and read.slot.reached == reached:
            return read
        if read.slot.reached.operations > reached.operations:
            break
    return None


def promote(data: Path, objects: Objects, url: str) -> None:
    """Let the next service that serves a replica's directory write to the store.

    It takes over when it starts: the writer until now, if it still lives, stops. Raises Locked while a service uses the
    directory, and Conflict for any other directory.
    """
    record = read_record(data)
    if record is not None and record.url == url and not record.replica:
        raise Conflict(f"{data} is no replica: it writes to {url} when it is served without --replica")
    if record is None or record.url != url:
        raise Conflict(f"{data} is no replica of {url}")
    with contextlib.closing(FolderLock(data / LOCK)):
        number, newest = newest_epoch(objects)
        if newest is None:
            raise Damaged(f"the store {url} is empty")
        write_record(
            data,
            Record(url=url, epoch=number, token=newest.token, restoring=NAMES not in read_put(data).known),
        )
