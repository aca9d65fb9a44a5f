"""Opening a store for a data directory: who may write to it, and what each of them has that the other lacks.

| directory | store | what happens |
|---|---|---|
| holds the newest epoch | anything | the store gets what it lacks; what the directory lost is restored |
| the same, but was set back to an earlier state | anything | brought up to date |
| one that the store no longer has | was set back to an epoch on which this one built | the store gets what it lacks |
| new | empty | the store gets everything |
| has collections, but never had this store | not empty | refused |
| has nothing, but perhaps keys | not empty | everything is restored; an older writer that still lives is fenced off |
| held an older epoch | of the same path and machine, and nothing is only here | brought up to date |
| held an older epoch | otherwise | refused: another service has taken over; the error says what is only here |

A fence goes into every log before anything is compared, so nothing can change in between.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import socket
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from indexes.base.durable import disk_errors, publish, remove, sync_folder
from indexes.base.errors import (
    Conflict,
    Damaged,
    InvalidInput,
    NearlineError,
    NotFound,
    Unavailable,
    message_of,
)
from indexes.base.model import Progress, now_ms
from indexes.base.structs import learn_structs
from indexes.directory.backup.backup import choose
from indexes.directory.backup.restoring import placing, restore_aliases, take
from indexes.directory.catalog import check_name
from indexes.directory.marker import (
    change_marker,
    clear_unrestored,
    collection_folders,
    is_data_directory,
    prepare,
    read_marker,
)
from indexes.log.pinned import pin
from indexes.parts.shelf import Shelf
from indexes.parts.unrestored import is_unrestored, note_unrestored
from indexes.store.checkpoints import StoredCheckpoint
from indexes.store.collection_log import FILES, CollectionLog, settings_in
from indexes.store.directory import (
    COMPLETES,
    DIRECTORY,
    EPOCHS,
    NAMES,
    RECORD,
    REMOVED,
    Directory,
    Put,
    Record,
    forget,
    hash_of,
    note_put,
    read_put,
    read_record,
    remember,
    restore_directory,
    restore_keys,
    write_record,
)
from indexes.store.generations import restore_generation
from indexes.store.objects import Objects, prove
from indexes.store.restoring import NEWEST, Until, restore_log
from indexes.store.rows import LoggedState, reached_by
from indexes.store.slots import (
    EPOCHS_KEPT,
    NOTHING,
    Epoch,
    LogExtent,
    Read,
    Slot,
    SlotLog,
    SlotWriter,
    Superseded,
    newest_epoch,
    newest_tokens,
    read_epoch,
    take_epoch,
)

logger = logging.getLogger(__name__)

FENCED_TOGETHER = 16  # collections: each takes some requests
KEPT_BESIDE = ("feedback.jsonl", "queries.jsonl", "hits.msgpack", "evaluation.json")  # not in a store


@dataclass(slots=True)
class OpenStore:
    """A store that this process may write to, with the writers of the collections that it held, by uid, and why there
    is none of some: the ends of their logs are damaged."""

    objects: Objects
    url: str
    epoch: int
    token: str
    names: SlotWriter
    directory: Directory
    writers: dict[str, LogWriter] = field(default_factory=dict)
    damaged: dict[str, Damaged] = field(default_factory=dict)

    def require_present(self) -> None:
        """Raise Unavailable if the store no longer has what this directory began with: its folder is not mounted, or it
        was emptied. What would be put there could not be restored."""
        try:
            is_there = read_epoch(self.objects, self.epoch).token == self.token
        except NotFound:
            is_there = False
        if not is_there:
            raise Unavailable(f"the store {self.url} has lost what it held, or is another one now")

    def writer_of(self, uid: str) -> LogWriter:
        """The writer of a collection, begun if the store does not have it."""
        if uid not in self.writers:
            self.writers[uid] = fence_log(CollectionLog(self.objects, uid), self.epoch)
        return self.writers[uid]


@dataclass(frozen=True, slots=True)
class LogWriter:
    held: CollectionLog
    slots: SlotWriter
    checkpoint: StoredCheckpoint | None


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A collection on the disk; `reached` is None if its log cannot be read."""

    name: str
    uid: str
    reached: LogExtent | None


def open_store(
    objects: Objects, url: str, data: Path, progress: Progress, *, restores: bool = True
) -> OpenStore:
    """Take the store for this directory, which the caller has locked, and level both. `progress` is told the
    collection, and documents done and in all. Without `restores` collections may be open, and none is restored.

    Raises Conflict if this directory must not write to the store, or the store cannot be used; Damaged, Unavailable.
    """
    on_disk = collections_on(data)
    record, number = claim(objects, url, data, on_disk)
    clear_unrestored(data)
    names = fence_slots(SlotLog(objects, DIRECTORY), number, NOTHING)
    slot, directory = named_at(names.log, NEWEST)
    opened = OpenStore(objects, url, number, record.taking, names, directory)
    learn_structs()
    fence_logs(opened)
    put, stored = read_put(data), names.last.slot.reached.content
    completes = COMPLETES in put.known
    lacks = not completes and (put.lacks(NAMES, stored, slot) or is_behind(data, directory))
    is_older = record.restoring or lacks
    takes_all = record.restoring
    if is_older:
        if not restores:
            raise Conflict("the store has names that this directory lacks", param="store.url")
        logger.warning("the names and settings of %s are taken from the store", data)
        write_record(data, msgspec.structs.replace(record, restoring=True))
        prepare(data)
        follow_names(data, on_disk, directory)
        restore_directory(data, directory)
        on_disk = collections_on(data)
    restore_keys(data, directory)
    on_disk = without_copies(data, on_disk, directory)
    listed = set(directory.collections.values())
    removed = [uid for uid in record.removed if uid in listed]
    remember(data, REMOVED, *record.removed, *directory.removed)
    record = msgspec.structs.replace(
        record, epoch=number, token=record.taking, taking="", restoring=is_older, removed=removed
    )
    write_record(data, record)
    level(opened, data, on_disk, record, progress, restores=restores)
    level_settings(opened, data, on_disk, put, takes=restores and not completes, anyway=takes_all)
    if is_older or completes or NAMES not in put.known:
        note_put(data, NAMES, slot, stored)
    forget(data, COMPLETES)
    if is_older:
        write_record(data, msgspec.structs.replace(record, restoring=False))
    return opened


def claim(objects: Objects, url: str, data: Path, on_disk: list[OnDisk]) -> tuple[Record, int]:
    """Take the next epoch, if this directory may. Returns its record, with the token as `taking`, and the epoch."""
    prove(objects)
    record, (number, newest) = read_record(data), newest_epoch(objects)
    put = read_put(data)
    if record is not None and record.url != url and newest and newest.token in {record.token, record.taking}:
        record = msgspec.structs.replace(record, url=url)  # the same store at another place
    if record is None or record.url != url:
        record = Record(url=url)  # another store keeps what it has
    if record.replica:
        raise Conflict(
            f"{data} is a replica of the store: serve it with --replica, or let it write with `nearline promote`"
        )
    by = f"{socket.gethostname()}:{data.resolve()}"
    if newest is None and record.token:
        raise Unavailable(
            f"the store {url} is empty, although this directory has filled it. If what it held is lost for good, "
            f"remove {RECORD} from the data directory: the next start fills it again"
        )
    if newest is None:
        logger.warning("the store %s is empty: a new one begins there", url)
    is_set_back = newest is not None and number < record.epoch and newest.token in put.remembered(EPOCHS)
    if is_set_back:
        logger.warning("the store %s is from an earlier time, and gets what it lacks", url)
        remember(data, COMPLETES)
        record = msgspec.structs.replace(record, removed=[*record.removed, *put.remembered(REMOVED)])
    elif newest is not None and newest.token not in {record.token, record.taking}:
        lacking = [one for one in (only_on(objects, held, record) for held in on_disk) if one]
        aliases = read_marker(data).aliases if is_data_directory(data) else {}
        is_earlier = number < record.epoch
        if lacking or ((on_disk or aliases) and (is_earlier or newest.by != by)):
            raise Conflict(refusal(lacking, record, newest, is_earlier), param="store.url")
        logger.warning("%s is empty or from an earlier time: restoring from %s", data, url)
        record = msgspec.structs.replace(record, restoring=True)
    token, taking = newest.token if newest else "", secrets.token_hex(16)
    known = put.remembered(EPOCHS) or newest_tokens(objects)
    number = max(number, record.epoch)
    record = msgspec.structs.replace(record, epoch=number, token=token, taking=taking)
    write_record(data, record)
    remember(data, EPOCHS, *known, *filter(None, [token]), taking)
    if not take_epoch(objects, number + 1, taking, by, now_ms()):
        raise Conflict("another service has just taken over the store", param="store.url")
    return record, number + 1


def collections_on(data: Path) -> list[OnDisk]:
    found = []
    for folder in collection_folders(data) if data.is_dir() else ():
        if is_unrestored(folder) and not (folder / "log.db").exists():
            continue
        try:
            with pin(folder / "log.db") as log:
                found.append(OnDisk(folder.name, log.state().uid, reached_by(log.db)))
        except (NearlineError, OSError) as error:
            logger.warning("%s cannot be compared with the store: %s", folder.name, message_of(error))
            found.append(OnDisk(folder.name, "", None))
    return found


def refusal(lacking: list[str], record: Record, newest: Epoch, is_earlier: bool) -> str:
    """Why a directory must not write to a store, and what only it has."""
    when = datetime.fromtimestamp(newest.at_ms / 1000, UTC).isoformat(timespec="seconds")
    if not record.token:
        why = f"the store belongs to another data directory ({newest.by}, since {when})"
    elif is_earlier:
        why = f"the store is from an earlier time ({newest.by}, {when}) than any that this directory knows"
    else:
        why = f"another service has taken over the store: {newest.by}, at {when}"
    only = "; only here are " + ", ".join(lacking) if lacking else ", and it has everything that is here"
    return f"{why}{only}. An empty data directory gets all that the store has; or choose another store.url"


def only_on(objects: Objects, held: OnDisk, record: Record) -> str:
    """Which operations of a collection on the disk are not in the store; "" if it has all. Those that came there after
    this directory was copied may be in it, and nothing proves it."""
    if held.reached is None:
        return f"{held.name} (cannot be read)"
    log = CollectionLog(objects, held.uid)
    last = log.last(log.newest_checkpoint()).slot
    here = held.reached.operations
    if not last.number:
        return f"{held.name} (all of it)"
    known = min(shared_until(last, record.epoch), here)
    if here <= known:
        return ""
    doubt = ", for all that the store tells" if here <= last.reached.operations else ""
    return f"{held.name} (operations {known + 1} to {here}{doubt})"


def shared_until(last: Slot, epoch: int) -> int:
    """The last operation that a store has from the holder of an epoch, or from before it."""
    later = [operations for taken, operations in last.epochs if taken > epoch]
    if len(later) == EPOCHS_KEPT:  # the first of them may be long forgotten
        return 0
    return later[0] if later else last.reached.operations


# -- fences


def fence_logs(opened: OpenStore) -> None:
    def fence(uid: str) -> LogWriter | Damaged:
        try:
            return fence_log(CollectionLog(opened.objects, uid), opened.epoch)
        except Damaged as error:
            return error

    uids = list(opened.directory.collections.values())
    with ThreadPoolExecutor(FENCED_TOGETHER, "store-fence") as pool:
        for uid, fenced in zip(uids, pool.map(fence, uids), strict=True):
            if isinstance(fenced, Damaged):
                opened.damaged[uid] = fenced
            else:
                opened.writers[uid] = fenced


def fence_log(held: CollectionLog, epoch: int) -> LogWriter:
    checkpoint = held.newest_checkpoint()
    last = held.last(checkpoint)
    return LogWriter(held, fence_slots(held.slots, epoch, last), checkpoint)


def fence_slots(slots: SlotLog, epoch: int, last: Read) -> SlotWriter:
    """Put a fence after the last slot. Raises Superseded if there is one of a later epoch."""
    while True:
        for found in slots.following(last) if last.slot.number else [slots.last()]:
            last = found
        if last.slot.epoch > epoch:
            raise Superseded(f"another service has taken over the store (epoch {last.slot.epoch})")
        writer = SlotWriter(slots, epoch, last)
        if writer.fence(now_ms()):
            return writer


# -- leveling


def level(
    opened: OpenStore,
    data: Path,
    on_disk: list[OnDisk],
    record: Record,
    progress: Progress,
    *,
    restores: bool,
) -> None:
    """Restore what the store has and the disk lacks. A collection that is damaged there is noted, and stays closed."""
    unreadable = {one.name for one in on_disk if one.reached is None}
    found = {one.uid: one for one in on_disk if one.reached is not None}
    for name, uid in opened.directory.collections.items():
        here = found.get(uid)
        if name in unreadable or (uid in record.removed and here is None):
            continue
        try:
            if lacks_some(opened, uid, here):
                if not restores:
                    raise Conflict(
                        f"the store has operations of {name} that this directory lacks", param="store.url"
                    )
                restore_collection(opened.writers[uid].held, data, here.name if here else name, progress)
        except (Damaged, NotFound) as error:
            if not restores:
                raise
            note_unrestored(data / (here.name if here else name), error.message)


def is_behind(data: Path, directory: Directory) -> bool:
    """Whether the marker of a directory was set back to before what the store has of it."""
    return is_data_directory(data) and read_marker(data).revision < directory.revision


def without_copies(data: Path, on_disk: list[OnDisk], directory: Directory) -> list[OnDisk]:
    """Leave out, and keep closed, an older folder of a renamed collection that was put back beside the newer one: both
    would go on in one log of the store."""
    names, kept = {uid: name for name, uid in directory.collections.items()}, dict[str, OnDisk]()
    unreadable = {one.name for one in on_disk if one.reached is None}

    def rank(one: OnDisk) -> tuple[bool, int]:
        return names.get(one.uid) == one.name, one.reached.operations if one.reached else 0

    for one in on_disk:
        kept[one.uid] = max(kept.get(one.uid, one), one, key=rank)
    found = []
    for one in on_disk:
        named = names.get(one.uid, one.name)
        other = named if named != one.name and named in unreadable else kept[one.uid].name
        if one.reached is None or other == one.name:
            found.append(one)
        else:
            reason = f"the folder {other} is the same collection, and one of them is a copy: move that away"
            logger.error("%s stays closed: %s", one.name, reason)
            note_unrestored(data / one.name, reason)
    return found


def follow_names(data: Path, on_disk: list[OnDisk], directory: Directory) -> None:
    """Give the collections of an earlier time the names that they have in the store, and remove those that were deleted
    since. What has no name if this process ends within it is restored by the next one."""
    names, named = {uid: name for name, uid in directory.collections.items()}, []
    for one in on_disk:
        name = names.get(one.uid, "" if one.uid in directory.removed else one.name)
        if name != one.name:
            logger.warning("%s is %s in the store", one.name, name or "deleted")
            aside = data / f".removed-{one.name}-{uuid.uuid4().hex}"
            with disk_errors(data):
                (data / one.name).rename(aside)
            named += [(aside, data / name)] if name else []
    with disk_errors(data):
        for aside, folder in named:
            if not folder.exists():
                aside.rename(folder)
        sync_folder(data)


def level_settings(
    opened: OpenStore,
    data: Path,
    on_disk: list[OnDisk],
    put: Put,
    *,
    takes: bool,
    anyway: bool,
) -> None:
    """Take the settings of collections that the store has and this directory never put there, or `anyway` all; and note
    what it has, if that was not known."""
    restored = {uid: name for name, uid in opened.directory.collections.items() if (data / name).exists()}
    present = restored | {one.uid: one.name for one in on_disk}
    uids = [uid for uid in opened.writers if uid in present]

    def stored_settings(uid: str) -> tuple[int, dict[str, bytes]] | None:
        writer = opened.writers[uid]
        try:
            slot, files = writer.held.numbered_files_at(writer.slots.last, writer.checkpoint)
        except (Damaged, NotFound) as error:
            logger.warning("the settings of %s in the store cannot be read: %s", present[uid], error.message)
            return None
        return slot, settings_in(files)

    with ThreadPoolExecutor(FENCED_TOGETHER, "store-settings") as pool:
        for uid, found in zip(uids, pool.map(stored_settings, uids), strict=True):
            if found is None:
                continue
            slot, stored = found
            is_taken = takes and (anyway or put.lacks(uid, hash_of(stored), slot))
            if is_taken:
                take_settings(data / present[uid], stored)
            if is_taken or COMPLETES in put.known or NAMES not in put.known:
                note_put(data, uid, slot, hash_of(stored))


def take_settings(folder: Path, stored: dict[str, bytes]) -> None:
    """Replace the settings beside a log by those that the store has."""
    for name in FILES:
        if name in stored:
            publish(folder / name, stored[name])
        else:
            remove(folder / name)


def lacks_some(opened: OpenStore, uid: str, here: OnDisk | None) -> bool:
    """Whether a store has operations of a collection that the disk lacks. Raises Damaged if nothing tells."""
    if uid in opened.damaged:
        raise opened.damaged[uid]
    there = opened.writers[uid].slots.last.slot.reached
    if here is None or here.reached is None:
        return True
    if here.reached != there and here.reached.operations == there.operations:
        raise Conflict(
            f"{here.name} and the store have the same {there.operations} operations, and different documents",
            param="store.url",
        )
    return here.reached.operations < there.operations


def restore_collection(
    held: CollectionLog,
    data: Path,
    name: str,
    progress: Progress,
    until: Until = NEWEST,
    uid: str | None = None,
) -> LoggedState:
    """Place a collection, whole and durable, or put it into the place of one that is behind."""
    folder = data / name
    with placing(folder) as draft:

        def tell(_: str, done: int, total: int) -> None:
            progress(name, done, total)

        state = restore_log(held, draft, until, tell, uid)
        restore_generation(held.generations, state.files, draft, tell)
        if folder.exists():
            keep_beside(folder, draft)
            with disk_errors(folder):
                folder.rename(data / f".removed-{name}-{uuid.uuid4().hex}")
    return state


def keep_beside(folder: Path, restored: Path) -> None:
    """Copy what no store has to a folder that takes the place of another."""
    for kept in KEPT_BESIDE:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(folder / kept, restored / kept)


# -- restoring by hand


@dataclass(frozen=True, slots=True)
class RestoredFromStore:
    """A collection that was restored, with its last operation, its live generation or 0, the aliases restored with it,
    and those that are `taken` by something else."""

    name: str
    uid: str
    seq: int
    documents: int
    generation: int
    aliases: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)


def restore_from(
    objects: Objects,
    data: Path,
    names: Sequence[str],
    *,
    new_name: str | None,
    until: Until,
    progress: Progress,
) -> list[RestoredFromStore]:
    """Add collections, as they were at a moment, to a data directory that no service uses; all if no names are given.
    The store stays as it is, and each collection gets a new uid, like one that is restored from a backup.

    Raises NotFound for an unknown name, or a collection that the store does not have so early; Conflict for a name that
    is taken: nothing was placed then. Raises Damaged if some could not be restored; the others are.
    """
    kept = SlotLog(objects, DIRECTORY)
    if not kept.last_number() and newest_epoch(objects)[1] is None:
        raise NotFound("no service has written to this store: is the URL right, and the folder mounted?")
    directory = directory_at(kept, until, damaged=True)
    chosen = {
        name: directory.collections[name]
        for name in choose(list(directory.collections), names, directory.aliases)
    }
    if until.seq < NEWEST.seq and len(chosen) != 1:
        raise InvalidInput("an operation is one of a single collection; name it, or give a time", param="at")
    if new_name is not None:
        check_name(new_name)
        if len(chosen) != 1:
            raise InvalidInput(
                f"a new name is for one collection, and {len(chosen)} are chosen", param="collection"
            )
        [uid] = chosen.values()
        chosen = {new_name: uid}
    with contextlib.closing(take(data, chosen)):
        if directory.locked or directory.keys:
            change_marker(data, lambda found: msgspec.structs.replace(found, locked=True))
        made, failed = [], []
        for name, of_store in chosen.items():
            new_uid = uuid.uuid4().hex
            held = CollectionLog(objects, of_store)
            try:
                state = restore_collection(held, data, name, progress, until, new_uid)
            except Damaged as error:
                failed.append(f"{name}: {error.message}")
                continue
            with pin(data / name / "log.db") as log:
                documents, live = log.state().documents, Shelf(data / name).current()
                made.append(RestoredFromStore(name, new_uid, state.reached.operations, documents, live))
        restored = {one.name: one.uid for one in made}
        named = restore_aliases(data, {} if new_name is not None else directory.aliases, restored)
    if failed:
        raise Damaged(f"{'; '.join(failed)}; restored: {', '.join(sorted(restored)) or 'nothing'}")
    return [replace(one, aliases=named[one.name][0], taken=named[one.name][1]) for one in made]


def directory_at(names: SlotLog, until: Until, *, damaged: bool = False) -> Directory:
    return named_at(names, until, damaged=damaged)[1]


def named_at(names: SlotLog, until: Until, *, damaged: bool = False) -> tuple[int, Directory]:
    """The names of collections, and what else concerns all, at a moment, and the number of their slot, 0 if there is
    none. With `damaged`, what is damaged is passed over for what was there before. Raises NotFound, Damaged."""
    number = names.last_number()
    while number > 0:
        try:
            slot = names.read(number).slot
        except Damaged as error:
            if not damaged:
                raise
            logger.warning("%s: what was there before is read", error.message)
        else:
            if slot.payload and slot.at_ms <= until.at_ms:
                return number, msgspec.msgpack.decode(slot.payload, type=Directory)
        number -= 1
    if until == NEWEST:
        return 0, Directory()  # no collection was ever made
    raise NotFound("the store holds nothing that is so early")
