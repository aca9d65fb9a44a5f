"""A disk that keeps what was synced and loses what was not: below SQLite as a VFS, below the publisher as a `Disk`.

Every call goes to the real file system too, so the process under test works as always. Beside it the platter
remembers what would survive: a file's bytes as of its last sync, a folder's names as of the folder's last sync.
`lose` writes down a state in which a power loss could leave the folder:

- of the writes to a database or its WAL since the last sync, any subset, in any order, the last one cut at a sector;
- of a file that was never synced, nothing, a beginning, or all of it; of one synced before, the bytes synced;
- of the names made or removed since a folder was synced, any; but a folder never has two names, or none, after it
  was renamed: file systems journal that as one change.

A sync can be made to fail. What it should have kept is then forgotten for good, as a kernel forgets pages it could
not write: a second sync succeeds and keeps nothing of them.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import apsw

from indexes.base import durable
from indexes.base.durable import Disk

SECTOR_BYTES = 512
JOURNALS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
Keeping = Literal["nothing", "everything", "something"]
HABITS: tuple[Keeping, ...] = ("nothing", "everything", "something", "something")


@dataclass
class File:
    """One inode. `synced` None: never. `pending`: (offset, bytes) written, or a length cut to, since then."""

    descriptor: int  # stays open, so that the number of the inode is not given to another file
    synced: bytes | None = None
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)
    forgotten: bool = False

    def sync(self) -> None:
        if not self.forgotten:
            self.synced = self.content()
        self.pending.clear()

    def fail(self) -> None:
        self.pending.clear()
        self.forgotten = True

    def content(self) -> bytes:
        size = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, size, 0)


@dataclass
class Database(File):
    """A file that SQLite writes: what was written since the last sync is known write by write."""

    def sync(self) -> None:
        self.synced = applied(self.synced or b"", self.pending)
        self.pending.clear()

    def fail(self) -> None:
        self.pending.clear()


def applied(content: bytes, changes: list[tuple[int, bytes] | int]) -> bytes:
    result = bytearray(content)
    for change in changes:
        if isinstance(change, int):
            result[change:] = b"\0" * max(change - len(result), 0)
            continue
        offset, data = change
        result.extend(b"\0" * (offset - len(result)))
        result[offset : offset + len(data)] = data
    return bytes(result)


class Platter:
    """Everything below `root`. What is there already is safe. Calls may come from any thread.

    Let the block `installed` begin before a collection is opened, and end after it is closed.
    `on_step(n)` is called before the nth change or sync, and may call `lose`; `fails(n)`: whether the nth sync fails.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps = 0
        self.syncs = 0
        self.on_step: Callable[[int], None] = lambda step: None
        self.fails: Callable[[int], bool] = lambda sync: False
        self._lock = threading.RLock()
        self._files: dict[int, File] = {}
        self._folders: dict[int, dict[str, int]] = {}
        self._folder_descriptors: dict[int, int] = {}
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            self.remember(folder)
        for file in self._files.values():
            file.sync()

    @contextmanager
    def installed(self) -> Iterator[None]:
        vfs = LossyVFS(self)
        before, durable.disk = durable.disk, LossyDisk(self)
        try:
            yield
        finally:
            durable.disk = before
            vfs.unregister()
            for descriptor in (
                *self._folder_descriptors.values(),
                *(f.descriptor for f in self._files.values()),
            ):
                os.close(descriptor)

    # -- what happens

    @contextmanager
    def step(self) -> Iterator[None]:
        with self._lock:
            self.steps += 1
            self.on_step(self.steps)
            yield

    def file(self, path: Path, kind: type[File] = File) -> File:
        number = path.stat().st_ino
        known = self._files.get(number)
        if known is None or (kind is Database and not isinstance(known, Database)):
            synced = known.synced if known else None
            descriptor = known.descriptor if known else os.open(path, os.O_RDONLY)
            known = self._files[number] = kind(descriptor, synced)
        return known

    def sync(self, path: Path) -> None:
        """Raises OSError where it was made to fail."""
        with self.step():
            self.syncs += 1
            fails = self.fails(self.syncs)
            if path.is_dir():
                if not fails:
                    self.remember(path)
            elif fails:
                self.file(path).fail()
            else:
                self.file(path).sync()
            if fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    def remember(self, folder: Path) -> None:
        """The names in the folder are safe now."""
        names: dict[str, int] = {}
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # another thread removes it
                number = self._number_of_folder(path) if path.is_dir() else self._number_of_file(path)
                names[path.name] = number
        self._folders[self._number_of_folder(folder)] = names

    def _number_of_file(self, path: Path) -> int:
        return os.fstat(self.file(path).descriptor).st_ino

    def _number_of_folder(self, folder: Path) -> int:
        number = folder.stat().st_ino
        if number not in self._folder_descriptors:
            self._folder_descriptors[number] = os.open(folder, os.O_RDONLY)
            self._folders[number] = {}
        return number

    # -- what is left of it

    def lose(self, target: Path, rng: random.Random, keeping: Keeping | None = None) -> None:
        """Write what a power loss at this moment may leave into the folder `target`, which must not exist.

        `keeping` says what becomes of that which was not synced; by default that is random too.
        """
        with self._lock:
            how: Keeping = rng.choice(HABITS) if keeping is None else keeping
            self._write_folder(self.root.stat().st_ino, self.root, target, rng, how)

    def _write_folder(
        self, number: int, present: Path | None, target: Path, rng: random.Random, keeping: Keeping
    ) -> None:
        target.mkdir()
        safe = self._folders.get(number, {})
        here = there_now(present) if present else {}
        renamed: dict[int, bool] = {}  # whether the renaming of a folder is kept
        for name in sorted({*safe, *here}):
            path, now = here.get(name, (None, None))
            then = safe.get(name)
            keep = now == then or chosen(rng, keeping)
            moved = now if now in safe.values() else then
            if moved in self._folder_descriptors and now != then:
                keep = renamed.setdefault(moved, keep)
            kept = now if keep else then
            if kept is None:
                continue
            path = path if kept == now else None
            if kept in self._folder_descriptors or (path and path.is_dir()):
                self._write_folder(kept, path, target / name, rng, keeping)
            elif kept in self._files:
                (target / name).write_bytes(remains(self._files[kept], rng, keeping))
            elif path and path.is_file():
                with suppress(FileNotFoundError):
                    (target / name).write_bytes(beginning(path.read_bytes(), rng, keeping))


def there_now(folder: Path) -> dict[str, tuple[Path, int]]:
    """The entries of a folder with their numbers, without those that another thread removes."""
    found: dict[str, tuple[Path, int]] = {}
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                found[path.name] = path, path.stat().st_ino
    return found


def chosen(rng: random.Random, keeping: Keeping) -> bool:
    return keeping == "everything" or (keeping == "something" and rng.random() < 0.5)


def remains(file: File, rng: random.Random, keeping: Keeping) -> bytes:
    """Bytes a file may hold after the loss."""
    if not isinstance(file, Database):
        if file.synced is not None:
            return file.synced
        return b"" if file.forgotten else beginning(file.content(), rng, keeping)
    changes = [change for change in file.pending if chosen(rng, keeping)]
    if keeping == "something":
        rng.shuffle(changes)
        changes = [*changes[:-1], *(torn(change, rng) for change in changes[-1:])]
    return applied(file.synced or b"", changes)


def torn(change: tuple[int, bytes] | int, rng: random.Random) -> tuple[int, bytes] | int:
    """The part of a write up to a sector's end somewhere inside."""
    if isinstance(change, int):
        return change
    offset, data = change
    ends = range(SECTOR_BYTES - offset % SECTOR_BYTES, len(data), SECTOR_BYTES)
    return (offset, data[: rng.choice(ends)]) if ends else change


def beginning(content: bytes, rng: random.Random, keeping: Keeping) -> bytes:
    if keeping == "something":
        return content[: rng.randrange(len(content) // SECTOR_BYTES + 1) * SECTOR_BYTES]
    return content if keeping == "everything" else b""


class LossyDisk(Disk):
    """The publisher's calls, on a platter."""

    def __init__(self, platter: Platter) -> None:
        self._platter = platter

    def write(self, file: BinaryIO, content: bytes) -> None:
        with self._platter.step():
            super().write(file, content)

    def sync(self, descriptor: int, path: Path) -> None:
        self._platter.sync(path)

    def replace(self, draft: Path, path: Path) -> None:
        with self._platter.step():
            super().replace(draft, path)

    def rename(self, draft: Path, final: Path) -> None:
        with self._platter.step():
            super().rename(draft, final)


class LossyVFS(apsw.VFS):
    """SQLite's calls, on a platter. Every connection opened while it exists uses it."""

    def __init__(self, platter: Platter) -> None:
        self._platter = platter
        super().__init__("lossy", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return LossyFile(self._platter, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self._platter.step():
            super().xDelete(filename, syncdir)
            if syncdir:
                self._platter.remember(Path(filename).parent)


class LossyFile(apsw.VFSFile):
    def __init__(self, platter: Platter, name: Any, flags: list[int]) -> None:
        self._platter = platter
        self._path: Path | None = None
        super().__init__("unix", name, flags)
        if name is not None:
            self._path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name)
        # SQLite's own file layer syncs the folder with the first sync of a journal it made.
        self._folder_too = bool(flags[0] & JOURNALS and flags[0] & apsw.SQLITE_OPEN_CREATE)

    def excepthook(self, *error: object) -> bool:
        """SQLite keeps some errors to itself. apsw would print them."""
        return True

    def xWrite(self, data: Any, offset: int) -> None:
        with self._platter.step():
            super().xWrite(data, offset)
            if self._path is not None:
                self._platter.file(self._path, Database).pending.append((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        with self._platter.step():
            super().xTruncate(newsize)
            if self._path is not None:
                self._platter.file(self._path, Database).pending.append(newsize)

    def xSync(self, flags: int) -> None:
        if self._path is None:
            return
        self._platter.file(self._path, Database)
        try:
            self._platter.sync(self._path)
        except OSError:
            error = apsw.IOError("the sync was made to fail")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]
            raise error from None
        if self._folder_too:
            self._platter.remember(self._path.parent)
            self._folder_too = False
