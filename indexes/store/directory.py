"""What concerns all collections of a data directory: in the store, and what the directory remembers of the store.

    directory/<slot>          in the store, a log of its own: names, aliases and access keys after each change of them
    data/store.json           on the disk: the epoch that this directory holds, and collections that were deleted
    data/store.put.json       hashes of the names, keys and settings that it has put into the store

The epoch tells whether any other service has written since. If none has, the newest writes of this directory belong to
what the store holds; unless it was set back to an earlier state: then the store has names, keys or settings in later
slots than those of which it knows.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from indexes.base.durable import decode_checked, disk_errors, publish, with_checksum
from indexes.base.errors import Damaged
from indexes.directory.marker import (
    KEYS,
    Marker,
    change_held_marker,
    changing,
    is_data_directory,
    read_marker,
)
from indexes.store.objects import without_slash

logger = logging.getLogger(__name__)

FORMAT = 1
RECORD = "store.json"
DIRECTORY = "directory"
PUT = "store.put.json"
COLLECTIONS = "collections"
NAMES, EPOCHS, REMOVED, COMPLETES = "names", "epochs", "removed", "completes"  # in the place of a uid
REMEMBERED = 1000  # epochs, and deleted collections


_noting = threading.Lock()


class Directory(msgspec.Struct, frozen=True):
    """The uids of the collections by name, their aliases, and the file of the access keys, empty if there is none.
    `removed` says when collections were deleted, in milliseconds since 1970, by uid; `revision` is the marker's."""

    format: int = FORMAT
    collections: dict[str, str] = {}
    aliases: dict[str, str] = {}
    keys: bytes = b""
    keys_revision: int = 0
    locked: bool = False
    removed: dict[str, int] = {}
    revision: int = 0

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


class Put(msgspec.Struct, frozen=True):
    """What a directory knows of the store: by NAMES of names and keys, by the uid of a collection of its settings. Each
    has hashes of what is in the store and of what may have come there since, and the number of the last slot for it.
    By EPOCHS it has the tokens of those on which this directory has built, by REMOVED the uids of deleted collections
    that the store has unlisted. COMPLETES is there while it completes a store that was set back."""

    format: int = FORMAT
    known: dict[str, tuple[int, list[str]]] = {}
    sha256: str = ""

    def lacks(self, what: str, stored: bytes, slot: int) -> bool:
        """Whether the store has something else in a later slot. False if nothing was ever noted."""
        known_slot, hashes = self.known.get(what, (0, [hash_of({}).hex()]))
        return NAMES in self.known and stored.hex() not in hashes and slot > known_slot

    def remembered(self, what: str) -> list[str]:
        return self.known.get(what, (0, []))[1]


def read_put(data: Path) -> Put:
    """Nothing is known to a directory that has not put anything into a store yet."""
    path = data / PUT
    try:
        return decode_checked(path, path.read_bytes(), Put, FORMAT)
    except FileNotFoundError:
        return Put()
    except Damaged as error:
        logger.warning("it is not known whether the directory was set back: %s", error.message)
        return Put()


def note_put(data: Path, what: str, slot: int, *hashes: bytes) -> None:
    """Remember, durably, hashes of what the store has and of what is about to be put there, by this slot."""
    with _noting:
        _note(data, what, slot, [one.hex() for one in hashes])


def remember(data: Path, what: str, *values: str) -> None:
    """Add, durably, to the EPOCHS or REMOVED that the directory knows."""
    with _noting:
        _note(data, what, 0, [*read_put(data).remembered(what), *values])


def forget(data: Path, what: str) -> None:
    with _noting:
        if what in (known := read_put(data).known):
            publish(
                data / PUT,
                with_checksum(Put(known={name: one for name, one in known.items() if name != what})),
            )


def _note(data: Path, what: str, slot: int, values: list[str]) -> None:
    before = read_put(data).known
    now = before | {what: (slot, list(dict.fromkeys(values))[-REMEMBERED:])}
    if now != before:
        publish(data / PUT, with_checksum(Put(known=now)))


def hash_of(settings: Mapping[str, bytes]) -> bytes:
    """The hash of the settings of a collection, given by the names of their files."""
    return hashlib.sha256(msgspec.msgpack.encode(sorted(settings.items()))).digest()


def note_removal(data: Path, uid: str) -> None:
    """Remember, durably, that a collection is about to be deleted: it must not be restored."""
    record = read_record(data)
    if record is not None:
        write_record(data, msgspec.structs.replace(record, removed=[*record.removed, uid]))


def describe_directory(data: Path, collections: dict[str, str], before: Directory, now_ms: int) -> Directory:
    """The directory as it is on the disk, with these collections. What `before` had and is gone was removed now. Keys
    from an earlier time, which no service takes, are not put in the place of newer ones."""
    with changing(data):
        marker = read_marker(data)
        keys = (data / KEYS).read_bytes() if (data / KEYS).is_file() else b""
        if marker.locked and is_older(keys, marker) and before.keys_revision >= marker.keys_revision:
            keys = before.keys
    removed = {**before.removed, **dict.fromkeys(before.collections.values(), now_ms)}
    present = set(collections.values())
    return Directory(
        collections=dict(sorted(collections.items())),
        aliases=dict(sorted(marker.aliases.items())),
        keys=keys,
        keys_revision=marker.keys_revision,
        locked=marker.locked,
        revision=marker.revision,
        removed={uid: before.removed.get(uid, at) for uid, at in removed.items() if uid not in present},
    )


def is_older(keys: bytes, marker: Marker) -> bool:
    """Whether a file of access keys is from before the newest one that the marker knows, or is no such file."""
    try:
        return msgspec.json.decode(keys, type=Revised).revision < marker.keys_revision
    except msgspec.DecodeError:
        return marker.keys_revision > 0


class Revised(msgspec.Struct):
    revision: int = 0


def restore_keys(data: Path, directory: Directory) -> None:
    """Put the newest access keys in the place of a lost or an older file, if the store has them."""
    if not is_data_directory(data):
        return
    with changing(data):
        marker, path = read_marker(data), data / KEYS
        keys = path.read_bytes() if path.is_file() else b""
        has_newest = directory.keys and directory.keys_revision == marker.keys_revision
        if marker.locked and has_newest and is_older(keys, marker):
            logger.warning("%s is restored from the store", path)
            publish(path, directory.keys, mode=0o600)


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
                revision=max(found.revision, directory.revision),
            ),
        )
        if directory.keys:
            publish(data / KEYS, directory.keys, mode=0o600)
