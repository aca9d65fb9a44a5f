"""The data directory: its collections, their aliases, and the lock that admits one writing process.

data/nearline.json      aliases and any rename in progress, see `marker`
data/LOCK               held while a process serves
data/<collection>/      one folder per collection; those of a tenant are called NAME@TENANT
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from indexes.base import failpoints, failures
from indexes.base.durable import FolderLock, disk_errors, sync_folder
from indexes.base.errors import (
    Conflict,
    InvalidInput,
    Locked,
    NearlineError,
    NewerFormat,
    NotFound,
    NotReady,
    Quarantined,
    StorageError,
    Unavailable,
    message_of,
)
from indexes.base.model import NO_REPLICATION, IndexOptions, Progress, Settings
from indexes.collection.collection import DRAFT_PREFIX, Collection
from indexes.directory.marker import (
    LOCK,
    NAME,
    clear_unrestored,
    collection_folders,
    prepare,
    read_marker,
    settle,
    write_aliases,
)
from indexes.log.pinned import require_readable
from indexes.parts.unrestored import is_unrestored
from indexes.rebuild.foretelling import require_empty_room

logger = logging.getLogger(__name__)

NAME_RULE = (
    "1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or digit (after it, if it is divided among machines, a "
    "shard as in ~2of8; if it is a tenant's, @ and the tenant)"
)

NAME_CHARS_SHOWN = 100  # of one that cannot be a name


class Catalog:
    """An open data directory with all its collections. Thread-safe. Call `close`.

    A collection that cannot be opened, or whose log turns out to be damaged later, is quarantined: it keeps its name
    and files, can be deleted, and raises Quarantined for everything else. So does one that is predicted to need more
    memory than there is. The others keep serving.
    """

    def __init__(
        self,
        folder: Path,
        options: IndexOptions,
        progress: Progress = lambda name, done, total: None,
        before_opening: Callable[[], object] = lambda: None,
    ) -> None:
        """Open the folder, initializing it if it is missing or empty. `progress` is told each collection before it is
        opened, and the end; it may raise to end the opening. `before_opening` is called once the folder is locked, and
        may restore collections.

        Raises NotADataDirectory for a folder with other contents, NewerFormat if it or a collection's log is from a
        newer version, Locked if another process serves it, Damaged if nothing tells what the folder was, and DiskFull
        or StorageError if the storage itself fails.
        """
        self.folder = folder
        self._options = options
        self._change = threading.Lock()
        self._collections: dict[str, Collection] = {}
        self._unopened: dict[str, str] = {}
        self._sound_files: set[str] = set()  # quarantined only for lack of memory
        self._renaming: tuple[str, str] | None = None
        self._closing = False
        prepare(folder)
        self._lock = FolderLock(folder / LOCK)
        try:
            settle(folder)
            if options.replication is NO_REPLICATION:  # of a store that was used before
                clear_unrestored(folder)
            before_opening()
            self._aliases = read_marker(folder).aliases
            for leftover in (*folder.glob(".removed-*"), *folder.glob(f"{DRAFT_PREFIX}*")):
                shutil.rmtree(leftover, ignore_errors=True)
            found = collection_folders(folder)
            for done, path in enumerate(found):
                progress(path.name, done, len(found))
                self._open(path)
            progress("", len(found), len(found))
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> None:
        started = time.perf_counter()
        try:
            self._collections[path.name] = collection = Collection(path, self._options)
            seconds, held = time.perf_counter() - started, collection.snapshot
            size = sum(visible.part.bytes for visible in held.parts)
            logger.info(
                "opened %s in %.2f s: %d passages, %d bytes in memory", path.name, seconds, held.live, size
            )
        except NewerFormat:
            raise
        except Exception as error:
            failures.require_none()  # a failed sync affects the whole process
            expected, before = isinstance(error, (NearlineError, OSError)), self._unopened.get(path.name)
            reason = message_of(error) if expected else f"{type(error).__name__}: {error}"
            self._unopened[path.name] = reason
            if isinstance(error, Unavailable):
                self._sound_files.add(path.name)
            if not isinstance(error, Quarantined) and reason != before:  # the log has already logged that
                logger.error("collection %s is quarantined: %s", path.name, reason, exc_info=not expected)

    def close(self) -> None:
        """Close every collection and release the lock, even if closing one fails; then raise that error."""
        self._closing = True  # before waiting for a retry, which looks at it
        with self._change, contextlib.ExitStack() as steps:
            steps.callback(self._lock.close)
            for collection in self._collections.values():
                steps.callback(collection.close)

    def keep_locked(self) -> None:
        """Make the lock's file again if somebody removed it. If another process has locked a new one by now, this one
        fails as after a failed sync: two of them would write to one log."""
        with self._change:
            if self._closing or self._lock.stands(self.folder / LOCK):
                return
            try:
                renewed = FolderLock(self.folder / LOCK)
            except Locked as error:
                failures.report(StorageError(error.message))
            except NearlineError as error:
                logger.warning("the lock of the data directory was removed: %s", error.message)
            else:
                logger.warning("the lock of the data directory was removed, and is made again")
                self._lock.close()
                self._lock = renewed

    @property
    def collections(self) -> dict[str, Collection]:
        """Collections that are serving, by their own names."""
        return {name: one for name, one in dict(self._collections).items() if one.log.damage is None}

    @property
    def quarantined(self) -> dict[str, str]:
        """The reason for each quarantine, by the collection's own name."""
        damaged = {name: one.log.damage for name, one in dict(self._collections).items() if one.log.damage}
        return {**self._unopened, **damaged}

    def holds(self, name: str) -> bool:
        """Whether this is the name of a collection, quarantined or not, or an alias."""
        return name in self._collections or name in self._aliases or name in self._unopened

    @property
    def aliases(self) -> dict[str, str]:
        return dict(self._aliases)

    def get(self, name: str) -> Collection:
        """The collection with this name or alias. Raises NotFound, Quarantined, or NotReady during a rename."""
        own_name = self._aliases.get(name, name)
        if self._renaming and own_name in self._renaming:
            raise NotReady(f"collection {name!r} is being renamed", retry_after_s=1, param="collection")
        return self._sound(own_name, called=name)

    def _sound(self, name: str, *, called: str = "") -> Collection:
        """`called` is the name that was asked for, if it may be an alias."""
        collection = self._collections.get(name)
        if reason := collection.log.damage if collection else self._unopened.get(name):
            if name in self._sound_files:
                advice = (
                    "nothing is wrong with its files: it is opened at the next start that finds room for it"
                )
            elif is_unrestored(self.folder / name):
                advice = "`nearline restore --at` gets an earlier moment of it into another directory"
            else:
                advice = (
                    "`nearline verify` lists what is wrong with it. It serves again once its files read well; if they "
                    "do not, restore it from a backup under another name, then delete this one"
                )
            raise Quarantined(
                f"collection {called or name!r} is quarantined: {reason}; {advice}", param="collection"
            )
        if collection is None:
            raise self._absent(name)
        return collection

    def _absent(self, name: str) -> NotFound:
        if (target := self._aliases.get(name)) is not None:
            message = f"{name!r} is an alias; the own name of its collection is {target!r}"
            return NotFound(message, param="collection")
        return NotFound(f"no collection {name!r}", param="collection")

    def retry(self, name: str) -> bool:
        """Reopen a quarantined collection if all of its log can be read now. Returns whether it serves again.

        A collection that had no room stays quarantined.
        """
        if name in self._sound_files or name not in self.quarantined:
            return False
        try:
            require_readable(self.folder / name / "log.db", lambda: self._closing)
        except (NearlineError, OSError, apsw.Error) as error:
            logger.debug("collection %s stays quarantined: %s", name, error)
            return False
        with self._change:
            reason = self.quarantined.get(name)
            if reason is None or self._closing:
                return False
            self._unopened[name] = reason
            if (collection := self._collections.pop(name, None)) is not None:
                collection.close()
            with contextlib.suppress(NewerFormat):
                self._open(self.folder / name)
            if name not in self._collections:
                return False
            del self._unopened[name]
            return True

    def create(self, name: str, settings: Settings) -> Collection:
        self._options.replication.require_up()
        check_name(name)
        with self._change:
            if name in self._collections or name in self._unopened or name in self._aliases:
                raise Conflict(f"the name {name!r} is taken", param="name")
            require_empty_room(settings.dimensions, self._options)
            collection = Collection.create(self.folder / name, settings, self._options)
            failpoints.reach("create.opened")
            self._collections[name] = collection
            return collection

    def open_placed(self, name: str) -> None:
        """Open a collection whose folder was placed in the directory while it was served."""
        with self._change:
            if name not in self._collections:
                self._unopened.pop(name, None)
                self._open(self.folder / name)

    def exchange(self, name: str, place: Callable[[], None]) -> None:
        """Close a collection, have `place` put another folder in its place, and open that. Searches fail with NotReady
        in between."""
        with self._change:
            if (collection := self._collections.get(name)) is not None:
                collection.close()
            try:
                place()
            finally:
                self._collections.pop(name, None)
                self._open(self.folder / name)

    def delete(self, name: str) -> None:
        """Delete a collection and its files, quarantined or not. Raises Conflict if an alias names it, and StorageError
        if its folder cannot be renamed: it is kept then."""
        self._options.replication.require_up()
        with self._change:
            collection = self._collections.get(name)
            if collection is None and name not in self._unopened:
                raise self._absent(name)
            if aliases := [alias for alias, target in self._aliases.items() if target == name]:
                raise Conflict(f"alias {aliases[0]!r} names the collection {name!r}", param="collection")
            self._options.replication.removing(name)
            self._collections.pop(name, None)
            self._unopened.pop(name, None)
            self._sound_files.discard(name)
            if collection is not None:
                collection.close()
            # Rename first, so a crash halfway through leaves no partial collection to open.
            removed = self.folder / f".removed-{name}-{uuid.uuid4().hex}"
            failpoints.reach("delete.closed")
            try:
                with disk_errors(path := self.folder / name):
                    path.rename(removed)
            except NearlineError:
                self._open(path)
                raise
            failpoints.reach("delete.renamed")
            with disk_errors(removed):
                sync_folder(self.folder)
            failpoints.reach("delete.synced")
            shutil.rmtree(removed, ignore_errors=True)
            if removed.exists():
                logger.warning("%s is left of a deleted collection; the next start removes it", removed)
            failpoints.reach("delete.removed")

    def rename(self, name: str, new_name: str) -> Collection:
        """Rename a collection and retarget its aliases. Returns it, reopened under the new name.

        Atomic and durable: once the marker is published, the next opening finishes the rename after a crash. Searches
        fail with NotReady until the collection is open again.
        """
        self._options.replication.require_up()
        check_name(new_name)
        with self._change:
            collection = self._sound(name)
            if (
                new_name in self._collections
                or new_name in self._aliases
                or (self.folder / new_name).exists()
            ):
                raise Conflict(f"the name {new_name!r} is taken", param="name")
            for alias in (alias for alias, to in self._aliases.items() if to == name):
                require_one_tenant(alias, new_name, "name")
            before = self._aliases
            aliases = {alias: new_name if to == name else to for alias, to in before.items()}
            failpoints.reach("rename.begin")
            write_aliases(self.folder, aliases, renaming=(name, new_name))
            self._renaming, self._aliases = (name, new_name), aliases
            try:
                collection.close()
                failpoints.reach("rename.closed")
                settle(self.folder)
                renamed = Collection(self.folder / new_name, self._options)
            except BaseException:
                self._collections = self._without(name)
                with contextlib.suppress(NearlineError):
                    self._open_again(name, new_name, before)
                raise
            else:
                self._collections = {**self._without(name), new_name: renamed}
            finally:
                self._renaming = None
            return renamed

    def _without(self, name: str) -> dict[str, Collection]:
        return {known: one for known, one in self._collections.items() if known != name}

    def _open_again(self, name: str, new_name: str, aliases: dict[str, str]) -> None:
        """After a rename that failed, serve the collection by the name that its folder has."""
        if (self.folder / new_name).exists():
            self._open(self.folder / new_name)
            return
        self._aliases = aliases
        self._open(self.folder / name)
        write_aliases(self.folder, aliases)

    @contextlib.contextmanager
    def names_at_rest(self) -> Iterator[bool]:
        """Let no names be changed within the block; false if one is being changed now."""
        at_rest = self._change.acquire(blocking=False)
        try:
            yield at_rest
        finally:
            if at_rest:
                self._change.release()

    def wait_for_changes(self) -> None:
        """Wait until a change of the names that is under way has ended: a collection has no usable name until then."""
        with self._change:
            pass

    def set_alias(self, alias: str, name: str) -> None:
        """Point an alias at a collection of its tenant, atomically and durably, replacing any previous target."""
        self._options.replication.require_up()
        check_name(alias, "alias")
        require_one_tenant(alias, name, "alias")
        with self._change:
            if alias in self._collections:
                raise Conflict(f"{alias!r} is a collection", param="alias")
            self._sound(name)
            aliases = {**self._aliases, alias: name}
            failpoints.reach("alias.begin")
            write_aliases(self.folder, aliases)
            failpoints.reach("alias.written")
            self._aliases = aliases

    def remove_alias(self, alias: str) -> None:
        self._options.replication.require_up()
        with self._change:
            if alias not in self._aliases:
                raise NotFound(f"no alias {alias!r}", param="alias")
            aliases = {name: target for name, target in self._aliases.items() if name != alias}
            write_aliases(self.folder, aliases)
            self._aliases = aliases


def tenant_of(name: str) -> str:
    """Return the tenant of a collection or alias, "" for none."""
    return name.partition("@")[2]


def require_one_tenant(alias: str, name: str, param: str) -> None:
    """Raise Conflict for an alias that would tell one tenant of another, and that neither could use."""
    if tenant_of(alias) != tenant_of(name):
        raise Conflict(f"alias {alias!r} and collection {name!r} are not of one tenant", param=param)


def check_name(name: str, param: str = "name") -> None:
    """Raises InvalidInput with the rule of names, and `param` as the field at fault."""
    if not NAME.fullmatch(name):
        raise InvalidInput(f"{name[:NAME_CHARS_SHOWN]!r} cannot be a name; expected {NAME_RULE}", param=param)
