"""Backups: full copies of collections, each at one sequence number, taken while the service runs or is stopped.

    FOLDER/backup.json                     each collection's seq and counts, each file's size and SHA-256, and the
                                           checksum of backup.json itself
    FOLDER/<collection>/log.db             a copy at one commit, without a write-ahead log
    FOLDER/<collection>/hits.msgpack       as in a data directory; omitted without indexes
    FOLDER/<collection>/search.json        as in a data directory, if the collection was tuned
    FOLDER/<collection>/ranking.json       as in a data directory, if the collection has ranking settings of its own
    FOLDER/<collection>/synonyms.json      the same for synonyms
    FOLDER/<collection>/vector_store.json  the same for what OpenAI's interface keeps of a vector store
    FOLDER/<collection>/CURRENT            as in a data directory, but with at most one generation; omitted without
    FOLDER/<collection>/generations/000007/    indexes, or if there was none

Guarantees
- The folder gets its name once everything in it is synced. A killed backup leaves only a draft.
- The log holds every operation after the seq of its generation: a restored collection needs no rebuild.
- The data directory is only read, and the copies share no disk blocks with it.

See `restoring` for the way back.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from indexes.base.durable import (
    READ_BYTES,
    decode_checked,
    disk_errors,
    publish_folder,
    sha256,
    with_checksum,
)
from indexes.base.errors import (
    Conflict,
    Damaged,
    InvalidInput,
    Locked,
    NearlineError,
    NotADataDirectory,
    NotFound,
    Unavailable,
)
from indexes.base.model import Progress
from indexes.directory.marker import (
    MARKER,
    NAME,
    collection_folders,
    is_data_directory,
    is_locked,
    read_marker,
)
from indexes.log.pinned import LogState, pin
from indexes.parts.learned import RANKING, SYNONYMS, VECTOR_STORE
from indexes.parts.manifest import MANIFEST as GENERATION_MANIFEST
from indexes.parts.manifest import Manifest, SealedFile, read_manifest
from indexes.parts.shelf import Shelf
from indexes.rebuild.chosen import FILE as CHOSEN

logger = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "backup.json"
GENERATIONS_TRIED = 10
HITS = "hits.msgpack"
FILE = re.compile(
    r"log\.db|CURRENT|hits\.msgpack|search\.json|(ranking|synonyms|vector_store)\.json|generations/[0-9]+(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+"
)


class CollectionBackup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One collection as of operation `seq`. Generation 0: the backup holds none."""

    name: str
    uid: str
    model: str
    seq: int
    documents: int
    passages: int
    generation: int
    files: dict[str, SealedFile]

    @property
    def bytes(self) -> int:
        return sum(sealed.bytes for sealed in self.files.values())


class Backup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `backup.json`. `created` is UTC; `aliases` are those of collections in the backup.

    `locked`: the data directory needed access keys, which no backup holds.
    """

    format: int
    nearline_version: str
    created: str
    aliases: dict[str, str]
    collections: list[CollectionBackup]
    locked: bool
    sha256: str = ""


def back_up(
    data: Path, target: Path, names: Sequence[str] = (), *, indexes: bool = True, progress: Progress
) -> Backup:
    """Copy the collections with these names or aliases, or all, into the new folder `target`.

    `progress` gets the stage, bytes done and total bytes, starting over for each stage of each collection.
    Raises Conflict if the target exists, NotFound for an unknown collection, DiskFull, StorageError. The draft is
    removed on any error, including one raised by `progress`.
    """
    aliases = aliases_of(data)
    chosen = [(data / name) for name in choose(collections_in(data), names, aliases)]
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(data)):
        raise InvalidInput(f"{target} is inside the data directory", param="to")
    with drafting(target) as draft:
        made = []
        for folder in chosen:
            try:
                made.append(back_up_collection(folder, draft / folder.name, indexes, progress))
            except NearlineError:
                if names or folder.is_dir():
                    raise
                logger.warning("%s was deleted during the backup and is not in it", folder.name)
                shutil.rmtree(draft / folder.name)
        held = {one.name for one in made}
        backup = Backup(
            format=FORMAT,
            nearline_version=version("nearline"),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            aliases={alias: name for alias, name in aliases.items() if name in held},
            collections=made,
            locked=is_locked(data),
        )
        with disk_errors(draft):
            (draft / MANIFEST).write_bytes(with_checksum(backup))
        publish_folder(draft, target)
    return backup


@contextlib.contextmanager
def drafting(target: Path) -> Iterator[Path]:
    """An empty, locked folder beside `target`, removed if the block raises."""
    draft = target.with_name(f".{target.name}.draft")
    with disk_errors(draft):
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(exist_ok=True)
        held = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(f"another backup to {target} is under way") from None
        try:
            if target.exists():
                raise Conflict(f"{target} exists already", param="to")
            for leftover in draft.iterdir():  # from a killed backup
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            yield draft
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    finally:
        os.close(held)


# --- one collection -----------------------------------------------------------------------------------------


def back_up_collection(source: Path, target: Path, indexes: bool, progress: Progress) -> CollectionBackup:
    """Copy the generation, then the log, so that the log is newer and can be checked to cover the generation's seq."""
    with disk_errors(target):
        target.mkdir()
    shelf, copies = Shelf(source), Shelf(target)
    unusable: set[int] = set()
    for _ in range(GENERATIONS_TRIED):
        live = shelf.current()
        manifest = copy_generation(shelf, copies, unusable, progress) if indexes else None
        if manifest is None and indexes and shelf.current() != live:
            continue  # replaced before it could be copied
        progress("log", 0, 0)
        with pin(source / "log.db") as log:
            state = log.state()
            if manifest is None or state.covers(manifest.seq):
                log.copy_to(target / "log.db", progress)
                break
        # Two swaps during the copy dropped the history it needs; or the log was copied here from elsewhere.
        unusable.add(manifest.number)
        shutil.rmtree(copies.folder)
    else:
        raise Unavailable(
            f"{source.name}: generations are replaced faster than one can be copied; try again, or without indexes"
        )
    if manifest is not None:
        copies.set_current(manifest.number)
    if indexes:
        with contextlib.suppress(FileNotFoundError):  # optional: hints for the next rebuild
            copy_file(source / HITS, target / HITS)
    for name in (CHOSEN, RANKING, SYNONYMS, VECTOR_STORE):
        with contextlib.suppress(FileNotFoundError):  # there only if something was tuned, learned or set
            copy_file(source / name, target / name)
    return describe_collection(source.name, state, manifest, seal(target, progress))


def describe_collection(
    name: str, state: LogState, manifest: Manifest | None, files: dict[str, SealedFile]
) -> CollectionBackup:
    return CollectionBackup(
        name=name,
        uid=state.uid,
        model=state.settings.model,
        seq=state.seq,
        documents=state.documents,
        passages=state.passages,
        generation=manifest.number if manifest else 0,
        files=files,
    )


def copy_generation(shelf: Shelf, copies: Shelf, unusable: set[int], progress: Progress) -> Manifest | None:
    """Copy the live generation, or else the newest intact one before it. None if there is none, or it was deleted."""
    live = shelf.current()
    for number in [live, *(number for number in reversed(shelf.numbers()) if number < live)]:
        if number in unusable or not number:
            continue
        source = shelf.path(number)
        try:
            return copy_verified(source, copies.path(number), progress)
        except (Damaged, NotFound, FileNotFoundError) as error:
            shutil.rmtree(copies.path(number), ignore_errors=True)
            unusable.add(number)
            if source.is_dir():
                logger.warning("generation %d is not in the backup: %s", number, error)
    return None


def copy_verified(source: Path, target: Path, progress: Progress) -> Manifest:
    """Copy a generation. Raises Damaged if the bytes differ from its manifest, NotFound if it is missing or deleted."""
    with disk_errors(target):
        target.mkdir(parents=True)
    copy_file(source / GENERATION_MANIFEST, target / GENERATION_MANIFEST)
    manifest = read_manifest(target)
    total, done = sum(sealed.bytes for sealed in manifest.files.values()), 0

    def on_block(size: int) -> None:
        nonlocal done
        done += size
        progress("generation", done, total)

    for name, sealed in manifest.files.items():
        if copy_file(source / name, target / name, on_block) != sealed:
            raise Damaged(f"{source / name} is damaged: it differs from what its manifest says")
    return manifest


def copy_file(source: Path, target: Path, on_block: Callable[[int], None] = lambda _: None) -> SealedFile:
    """Copy a file's bytes (no reflinks); returns the size and SHA-256 of what was read. Not synced.

    `on_block` gets the size of each block written. Raises FileNotFoundError if the source is missing.
    """
    digest, done = hashlib.sha256(), 0
    with source.open("rb") as reader, disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as writer:  # whose end writes the rest
            while True:
                with disk_errors(source):
                    block = reader.read(READ_BYTES)
                if not block:
                    break
                writer.write(block)
                digest.update(block)
                done += len(block)
                on_block(len(block))
    return SealedFile(done, digest.hexdigest())


def seal(folder: Path, progress: Progress) -> dict[str, SealedFile]:
    """Size and SHA-256 of every file, read back from the copy."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    total, done = sum(path.stat().st_size for path in paths), 0
    files = {}
    for path in paths:
        progress("checksums", done, total)
        with disk_errors(path):
            sealed = SealedFile(path.stat().st_size, sha256(path))
        files[path.relative_to(folder).as_posix()] = sealed
        done += sealed.bytes
    return files


# --- lookups ------------------------------------------------------------------------------------------------


def require_data_directory(data: Path) -> None:
    """Raises NotADataDirectory."""
    if not is_data_directory(data):
        raise NotADataDirectory(f"{data} is not a nearline data directory: it has no {MARKER}")


def aliases_of(data: Path) -> dict[str, str]:
    """The aliases. Raises NotADataDirectory if it is not one."""
    require_data_directory(data)
    return read_marker(data).aliases


def collections_in(data: Path) -> list[str]:
    return [path.name for path in collection_folders(data)]


def choose(known: Sequence[str], names: Sequence[str], aliases: dict[str, str]) -> list[str]:
    """The known collections with these names or aliases, without duplicates; all if no names are given."""
    wanted = [aliases.get(name, name) for name in names]
    for name in wanted:
        if name not in known:
            raise NotFound(
                f"no collection {name!r}; there are: {', '.join(known) or 'none'}", param="collection"
            )
    return list(dict.fromkeys(wanted)) if names else list(known)


def read_backup(folder: Path) -> Backup:
    """Read `backup.json`. Raises NotFound if there is none, Damaged if it is invalid or its checksum differs."""
    path = folder / MANIFEST
    if not path.is_file():
        raise NotFound(f"{folder} holds no backup: it has no {MANIFEST}")
    with disk_errors(path):
        content = path.read_bytes()
    backup = decode_checked(path, content, Backup, FORMAT)
    for one in backup.collections:
        if not NAME.fullmatch(one.name) or not all(FILE.fullmatch(name) for name in one.files):
            raise Damaged(f"{path} names files that no backup has")
    return backup
