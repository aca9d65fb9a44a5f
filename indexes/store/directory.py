"""What concerns all collections of a data directory: in the store, and what the directory remembers of the store.

    directory/<slot>          in the store, a log of its own: names, aliases and access keys after each change of them
    data/store.json           on the disk: the epoch that this directory holds, and collections that were deleted

The epoch tells whether any other service has written since. If none has, the newest writes of this directory belong to
what the store holds.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from indexes.base.durable import decode_checked, disk_errors, publish, with_checksum
from indexes.directory.marker import KEYS, change_held_marker, changing, read_marker
from indexes.store.objects import without_slash

FORMAT = 1
RECORD = "store.json"
DIRECTORY = "directory"
COLLECTIONS = "collections"


class Directory(msgspec.Struct, frozen=True):
    """The uids of the collections by name, their aliases, and the file of the access keys, empty if there is none.
    `removed` says when collections were deleted, in milliseconds since 1970, by uid."""

    format: int = FORMAT
    collections: dict[str, str] = {}
    aliases: dict[str, str] = {}
    keys: bytes = b""
    keys_revision: int = 0
    locked: bool = False
    removed: dict[str, int] = {}

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()


class Record(msgspec.Struct, frozen=True):
    """The `epoch` that this directory holds with its `token`; `taking` is the token of the next one, which it was about
    to take. `restoring`: names and keys are not restored yet. `replica`: it follows the store and does not write to it.
    `removed` are the uids of deleted collections, noted before they go."""

    format: int = FORMAT
    url: str = ""
    epoch: int = 0
    token: str = ""
    taking: str = ""
    restoring: bool = False
    replica: bool = False
    removed: list[str] = []
    sha256: str = ""


def read_record(data: Path) -> Record | None:
    path = data / RECORD
    if not path.exists():
        return None
    with disk_errors(path):
        record = decode_checked(path, path.read_bytes(), Record, FORMAT)
    return msgspec.structs.replace(record, url=without_slash(record.url))


def write_record(data: Path, record: Record) -> None:
    publish(data / RECORD, with_checksum(record))


def note_removal(data: Path, uid: str) -> None:
    """Remember, durably, that a collection is about to be deleted: it must not be restored."""
    record = read_record(data)
    if record is not None:
        write_record(data, msgspec.structs.replace(record, removed=[*record.removed, uid]))


def describe_directory(data: Path, collections: dict[str, str], before: Directory, now_ms: int) -> Directory:
    """The directory as it is on the disk, with these collections. What `before` had and is gone was removed now."""
    with changing(data):
        marker = read_marker(data)
        keys = (data / KEYS).read_bytes() if (data / KEYS).is_file() else b""
    removed = {**before.removed, **dict.fromkeys(before.collections.values(), now_ms)}
    present = set(collections.values())
    return Directory(
        collections=dict(sorted(collections.items())),
        aliases=dict(sorted(marker.aliases.items())),
        keys=keys,
        keys_revision=marker.keys_revision,
        locked=marker.locked,
        removed={uid: before.removed.get(uid, at) for uid, at in removed.items() if uid not in present},
    )


def restore_directory(data: Path, directory: Directory) -> None:
    """Write aliases and access keys into a directory that has just been made. One that needed keys needs them again,
    whatever happens in between; without any, those that are there stay."""
    with changing(data):
        change_held_marker(
            data,
            lambda found: msgspec.structs.replace(
                found,
                aliases=directory.aliases,
                locked=found.locked or directory.locked or bool(directory.keys),
                keys_revision=directory.keys_revision if directory.keys else found.keys_revision,
            ),
        )
        if directory.keys:
            publish(data / KEYS, directory.keys, mode=0o600)
