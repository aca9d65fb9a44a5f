"""`nearline.json`: marks a folder as a data directory, and holds what concerns more than one collection.

    data/nearline.json          format version, aliases, a rename in progress, and whether requests need access keys
    data/nearline.copy.json     the same, written right after it: taken where the first is damaged or gone

Any process may change it, the service or a command: each change holds a lock on the folder while it reads, replaces and
syncs both files. If both are damaged, the rest of the directory still shows the collections under their own names, and
that keys are needed; aliases are lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from indexes.base import failpoints
from indexes.base.durable import (
    disk_errors,
    move_folder,
    publish,
    replace_unsynced,
    sync_folder,
    with_checksum,
)
from indexes.base.errors import Damaged, NewerFormat, NotADataDirectory, OlderFormat
from indexes.parts.unrestored import FILE as UNRESTORED
from indexes.parts.unrestored import remove_note

logger = logging.getLogger(__name__)

FORMAT = 1
MARKER, MARKER_COPY = "nearline.json", "nearline.copy.json"
LOCK = "LOCK"  # held by the process that serves the directory
DAMAGED = "nearline.json.damaged"  # the damaged bytes, kept when it was replaced
KEYS, KEYS_LOCK = "keys.json", "keys.lock"  # both are left by the first access key
SHARD_MARK = "~"  # `docs~2of8` is a shard of `docs`, which this library does not need to know
WORD = r"[a-z0-9][a-z0-9_-]{0,62}"
NAME = re.compile(rf"{WORD}({SHARD_MARK}[0-9]{{1,3}}of[0-9]{{1,3}})?(@{WORD})?")
WHOLE_NAME = rf"{WORD}(@{WORD})?"  # the pattern of those that are no shard
# Any of these makes a folder a collection, so that one that lost its log is still recognized.
PIECES = (
    *(
        "log.db",
        "log.db-wal",
        "log.mark",
        "CURRENT",
        "generations",
        "segments",
        "hits.msgpack",
        "search.json",
        "ranking.json",
        "synonyms.json",
        UNRESTORED,
    ),
    *("evaluation.json", "feedback.jsonl", "queries.jsonl"),
)


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """`renaming` is (old, new) while a collection's folder is renamed; `aliases` already use the new name.

    `locked`: every request needs a key, even if none is left. `keys_revision`: the newest published revision of the
    keys. `revision` grows with each change of the marker.
    """

    format: int
    aliases: dict[str, str]
    renaming: tuple[str, str] | None = None
    locked: bool = False
    keys_revision: int = 0
    revision: int = 0
    sha256: str = ""


def collection_folders(data: Path) -> list[Path]:
    """The folders of collections, by name, including those that lost some of their files or may not be read."""
    return [path for path in sorted(data.iterdir()) if NAME.fullmatch(path.name) and is_collection(path)]


def clear_unrestored(data: Path) -> None:
    """Remove the notes that keep collections closed: what opens them next knows better."""
    for folder in collection_folders(data) if data.is_dir() else ():
        remove_note(folder)


def is_collection(folder: Path) -> bool:
    try:
        return any((folder / piece).exists() for piece in PIECES)
    except PermissionError:  # nothing else of that name is in a data directory
        return True


def is_data_directory(folder: Path) -> bool:
    """Whether a folder has a marker, or has collections although both marker files are lost."""
    marked = any((folder / name).is_file() for name in (MARKER, MARKER_COPY))
    return marked or (folder.is_dir() and bool(collection_folders(folder)))


def prepare(folder: Path) -> dict[str, str]:
    """Read the aliases of a data directory; initialize an empty or missing folder."""
    if is_data_directory(folder):
        return read_marker(folder).aliases
    if folder.exists() and not folder.is_dir():
        raise NotADataDirectory(f"{folder} is not a folder")
    if folder.is_dir() and any(path.name != f".{MARKER}.draft" for path in folder.iterdir()):
        raise NotADataDirectory(
            f"{folder} is not empty and has no {MARKER}: it is not a nearline data directory"
        )
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in made:
            sync_folder(path.parent)
    failpoints.reach("prepare.folder_made")
    write(folder, Marker(FORMAT, {}))
    return {}


def settle(folder: Path) -> dict[str, str]:
    """Repair the marker, finish any rename that it records, then return the aliases. Requires the service's lock."""
    marker = read_marker(folder)
    if not is_whole(folder, marker):
        change_marker(folder, lambda found: found)
    if marker.renaming is not None:
        old, new = (folder / name for name in marker.renaming)
        if old.exists():
            move_folder(old, new)
        else:
            sync_folder(folder)  # the rename happened but may not be durable yet
        failpoints.reach("rename.published")
        write_aliases(folder, marker.aliases)
    return marker.aliases


def write_aliases(folder: Path, aliases: dict[str, str], *, renaming: tuple[str, str] | None = None) -> None:
    change_marker(folder, lambda found: msgspec.structs.replace(found, aliases=aliases, renaming=renaming))


def change_marker(folder: Path, change: Callable[[Marker], Marker]) -> Marker:
    """Replace the marker by the result of `change`, durably, and return it."""
    with changing(folder):
        return change_held_marker(folder, change)


def change_held_marker(folder: Path, change: Callable[[Marker], Marker]) -> Marker:
    """The same within a block of `changing`."""
    found = read_marker(folder)
    marker = change(found)
    if marker != found:
        marker = msgspec.structs.replace(marker, revision=marker.revision + 1)
    elif is_whole(folder, found):
        return found  # without room for the same once more, a service starts
    if decode_marker(folder / MARKER) is None and (content := read(folder / MARKER)):
        replace_unsynced(folder / DAMAGED, content, mode=0o600)
    write(folder, marker)
    return marker


def is_whole(folder: Path, marker: Marker) -> bool:
    """Whether both files hold this marker."""
    content = with_checksum(marker)
    return all(read(folder / name) == content for name in (MARKER, MARKER_COPY))


def read_marker(folder: Path) -> Marker:
    """Read the marker. Raises NewerFormat, and Damaged if nothing shows what the directory is."""
    copy = decode_marker(folder / MARKER_COPY)  # first, for one that is being written is newer after that
    found = decode_marker(folder / MARKER)
    if found is not None and (copy is None or copy.revision <= found.revision):
        return found
    wrong = "from an earlier time" if found else "damaged" if (folder / MARKER).is_file() else "gone"
    wrong = f"{folder / MARKER} is {wrong}"
    if copy is not None:
        logger.error("%s: its copy %s is used instead", wrong, MARKER_COPY)
        return copy
    if not collection_folders(folder) and not (folder / KEYS_LOCK).exists():
        raise Damaged(
            f"{wrong}, and beside it is neither its copy nor a collection: take another --data, or restore a backup"
        )
    logger.error(
        "%s and there is no whole copy: collections are served under their own names; aliases are lost and have to be "
        "made again (PUT /v1/aliases/NAME); it no longer says whether requests need access keys, so they do until "
        "`nearline keys open`; what it held is kept in %s",
        wrong,
        DAMAGED,
    )
    return Marker(FORMAT, {}, locked=True)


def is_locked(data: Path) -> bool:
    """Whether requests need access keys, even if none is left."""
    return read_marker(data).locked or has_keys(data)


def has_keys(data: Path) -> bool:
    return any((data / name).exists() for name in (KEYS, KEYS_LOCK))


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Hold the lock on the folder that every change of the marker, and of the access keys, requires."""
    with disk_errors(folder):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def write(folder: Path, marker: Marker) -> None:
    publish(folder / MARKER, with_checksum(marker))
    failpoints.reach("marker.written")
    publish(folder / MARKER_COPY, with_checksum(marker))


def read(path: Path) -> bytes:
    """The bytes of a file; empty if there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return b""


def decode_marker(path: Path) -> Marker | None:
    """Decode a marker file; None if it is missing or damaged. Raises OlderFormat, and NewerFormat if its checksum is
    right."""
    try:
        content = path.read_bytes()
        fields = msgspec.json.decode(content, type=dict[str, Any])
        seal, found = fields.pop("sha256", ""), fields.get("format")
        if "format_version" in fields:
            raise OlderFormat.of(path.parent)
        if hashlib.sha256(msgspec.json.encode(fields)).hexdigest() != seal:
            return None
        if not isinstance(found, int):
            return None
        if found != FORMAT:
            raise NewerFormat(
                f"a newer version of nearline wrote {path.parent}: "
                f"it has format {found}, this version reads {FORMAT}"
            )
        return msgspec.json.decode(content, type=Marker)
    except (FileNotFoundError, IsADirectoryError, msgspec.DecodeError, UnicodeDecodeError):
        return None
