"""Restores collections from a backup into a data directory, each one atomically.

Every checksum is verified before anything is placed, and again during the copy. A restored collection gets a new uid,
even under its old name: cursors and query samples belong to one collection, and two that diverge after the same seq
must not be mistaken for each other. Backups hold no access keys: if the directory needed them, the restored one is
locked until a key is made.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Collection as Names
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from indexes.base.durable import FolderLock, disk_errors, publish_folder, verify
from indexes.base.errors import Conflict, Damaged, InvalidInput, NotFound
from indexes.base.model import Progress
from indexes.collection.collection import DRAFT_PREFIX
from indexes.directory.backup.backup import (
    CollectionBackup,
    choose,
    collections_in,
    copy_file,
    read_backup,
    require_data_directory,
)
from indexes.directory.catalog import check_name
from indexes.directory.marker import (
    KEYS,
    LOCK,
    change_marker,
    is_data_directory,
    is_locked,
    prepare,
    settle,
    write_aliases,
)
from indexes.log.log import Log, make_mark
from indexes.log.pinned import PinnedLog, begin
from indexes.log.reader import LogPosition, require_format
from indexes.log.sqlite import checkpoint, connect, sqlite_errors
from indexes.parts.ahead import ahead_of, require_none_ahead
from indexes.parts.shelf import Shelf


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored collection. `aliases` are those restored with it, and `taken` those that name something else."""

    name: str
    uid: str
    seq: int
    documents: int
    passages: int
    generation: int
    aliases: list[str]
    taken: list[str]


def restore(
    folder: Path, data: Path, names: Sequence[str] = (), *, new_name: str | None = None, progress: Progress
) -> list[Restored]:
    """Place the collections with these names or aliases, or all, into `data`, which is created if missing.

    Raises Damaged if any file differs from the backup's manifest, Conflict if a name is taken, Locked if a service
    uses the directory, DiskFull or StorageError; nothing is placed then. Aliases that are already taken are left
    unchanged. `new_name` renames a single collection and skips its aliases.
    """
    backup = read_backup(folder)
    known = {one.name: one for one in backup.collections}
    chosen = {name: known[name] for name in choose(list(known), names, backup.aliases)}
    if new_name is not None:
        check_name(new_name)
        if len(chosen) != 1:
            raise InvalidInput(
                f"a new name is for one collection, and {len(chosen)} are chosen", param="collection"
            )
        [one] = chosen.values()
        chosen = {new_name: one}
    with contextlib.ExitStack() as held:
        if is_data_directory(data):  # check names and lock before hours of reading, if possible
            held.enter_context(contextlib.closing(take(data, chosen)))
            check_files(folder, chosen.values(), progress)
        else:
            check_files(folder, chosen.values(), progress)
            held.enter_context(contextlib.closing(take(data, chosen)))
        if backup.locked is True:  # before anything can be served
            change_marker(data, lambda found: msgspec.structs.replace(found, locked=True))
        uids = place_all(folder, chosen, data, progress)
        named = restore_aliases(data, {} if new_name is not None else backup.aliases, chosen)
    return [
        Restored(
            name,
            uids[name],
            one.seq,
            one.documents,
            one.passages,
            one.generation,
            *named[name],
        )
        for name, one in chosen.items()
    ]


def about_keys(data: Path) -> str:
    """A note on how a restore changes access to the data directory; "" if it does not."""
    if is_locked(data) and not (data / KEYS).exists():
        return (
            f"{data} is locked: access keys were needed where this comes from, and they are not restored. Every "
            f"request is refused until `nearline keys create --data {data}` makes a key, or "
            f"`nearline keys open --data {data}` opens it to everyone"
        )
    return ""


def take(data: Path, names: Names[str]) -> FolderLock:
    """Lock a data directory and check that these names are free. Creates the directory if missing."""
    prepare(data)
    lock = FolderLock(data / LOCK)
    try:
        aliases = settle(data)
        for name in names:
            if (data / name).exists() or name in aliases:
                raise Conflict(f"the name {name!r} is taken in {data}", param="collection")
    except BaseException:
        lock.close()
        raise
    return lock


def check_files(folder: Path, collections: Names[CollectionBackup], progress: Progress) -> None:
    """Raises Damaged for the first file that is missing or differs."""
    total, done = sum(one.bytes for one in collections), 0
    for one in collections:
        for name, sealed in one.files.items():
            progress("verify", done, total)
            path = folder / one.name / name
            with disk_errors(path):
                verify(path, sealed.bytes, sealed.sha256)
            done += sealed.bytes


def place_all(
    folder: Path, chosen: Mapping[str, CollectionBackup], data: Path, progress: Progress
) -> dict[str, str]:
    """Place collections, or none of them; returns their new uids by name."""
    uids: dict[str, str] = {}
    try:
        for name, one in chosen.items():
            uids[name] = place(folder / one.name, one, data / name, progress)
    except BaseException:
        for name in uids:
            removed = data / f".removed-{name}"  # which the next service removes if this process ends first
            (data / name).rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
        raise
    return uids


def place(source: Path, one: CollectionBackup, target: Path, progress: Progress) -> str:
    """Copy a collection under its final name; returns its new uid."""
    done = 0

    def on_block(size: int) -> None:
        nonlocal done
        done += size
        progress("place", done, one.bytes)

    with placing(target) as draft:
        for name, sealed in one.files.items():
            try:
                copied = copy_file(source / name, draft / name, on_block)
            except FileNotFoundError:
                raise Damaged(f"{source / name} is missing") from None
            if copied != sealed:
                raise Damaged(f"{source / name} changed while it was read")
        return renew_uid(draft / "log.db")


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a collection: why its log is known to lack writes, the last operation that it has, and the
    generations that are ahead of it."""

    reason: str
    seq: int
    documents: int
    removed: list[int]


@contextlib.contextmanager
def placing(target: Path) -> Iterator[Path]:
    """A draft for a collection's files, which gets the name `target` at the end of the block. The catalog removes
    leftover drafts on opening."""
    draft = target.with_name(f"{DRAFT_PREFIX}{target.name}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with disk_errors(draft):
            draft.mkdir(parents=True)
        yield draft
        publish_folder(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def survey(data: Path, name: str) -> Remains:
    """What `accept` would leave. No service may use `data`. Raises Damaged if the log is not well-formed, and Conflict
    if nothing is known to be missing."""
    require_collection(data, name)
    with contextlib.closing(FolderLock(data / LOCK)):
        return remains(data / name / "log.db")


def accept(data: Path, name: str) -> Remains:
    """Accept a collection's log as complete, although writes are known to be missing. No service may use `data`.

    Generations and segments that are ahead of it are removed. It gets a new uid, because others may remember operations
    that this log never had. Raises like `survey`.
    """
    require_collection(data, name)
    with contextlib.closing(FolderLock(data / LOCK)):
        path = data / name / "log.db"
        found = remains(path)
        renew_uid(path)
        with contextlib.closing(Log(path)) as log:
            end = log.position()
        for folder in ahead_of(data / name, end):
            shutil.rmtree(folder)
        return found


def require_collection(data: Path, name: str) -> None:
    require_data_directory(data)
    if name not in collections_in(data):
        raise NotFound(f"no collection {name!r}", param="collection")


def remains(path: Path) -> Remains:
    reason = reason_to_quarantine(path)
    if not reason:
        raise Conflict(
            f"{path.parent.name} is whole: nothing of it is known to be missing", param="collection"
        )
    with sqlite_errors(path), contextlib.closing(begin(path)) as db:
        if (found := str(db.execute("PRAGMA integrity_check(1)").get)) != "ok":
            raise Damaged(f"{path.parent.name}/log.db is damaged: {found}")
        state = PinnedLog(path, db).state()
    ahead = Shelf(path.parent).ahead(LogPosition(state.seq, state.last_passage))
    return Remains(reason, state.seq, state.documents, [one.number for one in ahead.values()])


def reason_to_quarantine(path: Path) -> str:
    """Why a service would quarantine the collection because of its log; "" if it would not."""
    try:
        with contextlib.closing(Log(path)) as log:
            require_none_ahead(path.parent, log.position())
    except Damaged as error:
        return error.message
    return ""


def renew_uid(path: Path) -> str:
    """Write a new uid into a log that is not open elsewhere."""
    uid = uuid.uuid4().hex
    db = connect(path)
    try:
        with sqlite_errors(path, db):
            require_format(dict(db.execute("SELECT key, value FROM meta")), path)
            db.execute("UPDATE meta SET value = ? WHERE key = 'uid'", (uid,))
        checkpoint(db, path)  # closing would checkpoint too, but hides a failed sync
        make_mark(path, db)
    finally:
        db.close()
    return uid


def restore_aliases(
    data: Path, aliases: dict[str, str], placed: Names[str]
) -> dict[str, tuple[list[str], list[str]]]:
    """Restore the aliases of the placed collections where they are free. Returns for each collection those that were
    restored, and those that name something else."""
    present = prepare(data)
    free = {
        alias: name
        for alias, name in aliases.items()
        if name in placed and alias not in present and not (data / alias).exists()
    }
    if free:
        write_aliases(data, {**present, **free})
    kept = {alias: name for alias, name in aliases.items() if alias not in free}
    return {name: (names_for(name, free), names_for(name, kept)) for name in placed}


def names_for(name: str, aliases: Mapping[str, str]) -> list[str]:
    return sorted(alias for alias, target in aliases.items() if target == name)
