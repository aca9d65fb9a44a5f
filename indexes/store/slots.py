"""The numbered objects of a log in a store, and the rule by which one writer at a time appends to it.

    PREFIX/00000000000000000001     slot 1, and so on without gaps; each created once, never replaced
    epoch/0000000001                who took this epoch, see `take_epoch`

A writer holds an epoch, a number that only it has. It begins by putting an empty slot, the fence, after the last one of
the log that it has compared with its own. From then on an older writer that still lives finds the slot taken that it
wants to create, sees another epoch in it, and stops before it acknowledges what that slot would have held. (wal3 and
SlateDB fence writers in this way.)

A create whose answer was lost looks like a conflict with another writer: the slot is read back, and its epoch and bytes
tell. A writer appends one slot at a time, and tries the same bytes until it knows.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import msgspec

from indexes.base.errors import Damaged, NewerFormat, NotFound, StorageError
from indexes.store.objects import Objects
from indexes.store.reading import in_order

FORMAT = 1
DIGEST_BYTES = 32
EPOCHS_KEPT = 64  # in each slot: an older directory than that is refused
EPOCH_FOLDER = "epoch"
TOKENS_READ = 100  # of epochs, by a directory that knows none


class Superseded(StorageError):
    """Another writer has taken over: nothing more may be acknowledged here."""

    later = ""


class LogExtent(msgspec.Struct, frozen=True):
    """How far a log has come: the last operation, document and passage that it has numbered, and a hash of what it
    holds (`ContentHash.short`)."""

    operations: int = 0
    documents: int = 0
    passages: int = 0
    content: bytes = b""


class Slot(msgspec.Struct, frozen=True):
    """One slot. `previous` is the digest of the slot before it. `epochs` are pairs: an epoch, and the last operation of
    the log when it began. `reached` is the last state that the slots up to here make; one that is not `whole` is
    continued by the next slot. The fence of an epoch has no payload, and ends what was not continued."""

    format: int
    number: int
    epoch: int
    previous: bytes
    epochs: list[tuple[int, int]]
    reached: LogExtent
    at_ms: int
    whole: bool
    payload: bytes = b""


class Read(msgspec.Struct, frozen=True):
    """A slot, with the digest of its bytes."""

    slot: Slot
    digest: bytes


NOTHING = Read(Slot(FORMAT, 0, 0, b"", [], LogExtent(), 0, whole=True), b"")


def name_of(number: int) -> str:
    return f"{number:020}"


def seal(document: msgspec.Struct) -> bytes:
    """The bytes of an object: the SHA-256 of the rest, and a struct as msgpack."""
    body = msgspec.msgpack.encode(document)
    return hashlib.sha256(body).digest() + body


T = TypeVar("T", bound=msgspec.Struct)


def unseal(name: str, content: bytes, kind: type[T]) -> T:
    """Raises Damaged, and NewerFormat for an object of a later format."""
    digest, body = content[:DIGEST_BYTES], memoryview(content)[DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise Damaged(f"{name} in the store is damaged: its checksum differs")
    try:
        if (found := msgspec.msgpack.decode(body, type=Versioned).format) != FORMAT:
            raise NewerFormat(f"{name} in the store has format {found}, this version reads {FORMAT}")
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Damaged(f"{name} in the store cannot be read: {error}") from error


class Versioned(msgspec.Struct):
    format: int


class SlotLog:
    """Reads the slots in a folder of a store."""

    def __init__(self, objects: Objects, folder: str) -> None:
        self.objects, self.folder = objects, folder

    def read(self, number: int) -> Read:
        """Raises NotFound, and Damaged."""
        name = f"{self.folder}/{name_of(number)}"
        content = self.objects.read(name)
        slot = unseal(name, content, Slot)
        if slot.number != number:
            raise Damaged(f"{name} in the store holds slot {slot.number}")
        return Read(slot, content[:DIGEST_BYTES])

    def holds(self, number: int) -> bool:
        """Whether a slot is there, without reading it."""
        return self.objects.exists(f"{self.folder}/{name_of(number)}")

    def following(self, last: Read) -> Iterator[Read]:
        """The slots after one, as long as there are any. Raises Damaged if they do not continue it."""
        while True:
            try:
                found = self.read(last.slot.number + 1)
            except NotFound:
                return
            require_successor(self.folder, last, found)
            yield (last := found)

    def last_number(self, known: int = 0) -> int:
        """The number of the last slot, 0 if there is none. Slots up to `known` may be gone."""
        names = self.objects.names(self.folder, after=name_of(known) if known else "")
        return int(names[-1]) if names else known

    def last(self, known: int = 0) -> Read:
        """The last slot, NOTHING if there is none."""
        number = self.last_number(known)
        return self.read(number) if number else NOTHING


def require_successor(folder: str, last: Read, found: Read) -> None:
    if last.slot.number and (found.slot.previous != last.digest or found.slot.epoch < last.slot.epoch):
        raise Damaged(
            f"{folder}/{name_of(found.slot.number)} in the store does not continue the slot before it"
        )


class SlotWriter:
    """Appends to a log after `last`. One thread at a time."""

    def __init__(self, log: SlotLog, epoch: int, last: Read) -> None:
        self.log, self.epoch, self.last = log, epoch, last
        self._pending: Slot | None = None  # may be in the store already

    def fence(self, now_ms: int) -> bool:
        """Begin to write. False if somebody has appended meanwhile: compare again, with a later `last`."""
        last = self.last.slot
        epochs = [*last.epochs, (self.epoch, last.reached.operations)][-EPOCHS_KEPT:]
        at_ms = max(now_ms, last.at_ms)
        number, digest = last.number + 1, self.last.digest
        return self._put(Slot(FORMAT, number, self.epoch, digest, epochs, last.reached, at_ms, whole=True))

    def append(self, payload: bytes, reached: LogExtent, at_ms: int, *, whole: bool = True) -> None:
        """Append a slot; durable on return. If this raises Unavailable it may be there or come later: `settle` brings
        it there, and so does the next call. Raises Superseded."""
        self.settle()
        last = self.last.slot
        number, digest = last.number + 1, self.last.digest
        slot = Slot(FORMAT, number, self.epoch, digest, last.epochs, reached, at_ms, whole, payload)
        self._pending = slot
        self.settle()

    def is_there(self) -> bool:
        """Whether the store still has the last slot."""
        try:
            return (
                not self.last.slot.number or self.log.read(self.last.slot.number).digest == self.last.digest
            )
        except (NotFound, Damaged):
            return False

    def require_last(self) -> None:
        """Raise Superseded if another writer has appended; its fence is enough."""
        self.settle()
        with contextlib.suppress(NotFound):
            raise self._superseded(self.log.read(self.last.slot.number + 1).slot)

    def settle(self) -> None:
        """Finish what an earlier call began."""
        if (slot := self._pending) is None:
            return
        if not self._put(slot):
            raise self._superseded(self.log.read(slot.number).slot)
        self._pending = None

    def _superseded(self, found: Slot) -> Superseded:
        known = self.last.slot.reached.operations
        return Superseded(
            f"another service has taken over {self.log.folder} in the store (epoch {found.epoch}, this one has "
            f"{self.epoch}); if this one has operations after {known}, they are not in the store"
        )

    def _put(self, slot: Slot) -> bool:
        content = seal(slot)
        name = f"{self.log.folder}/{name_of(slot.number)}"
        if not self.log.objects.create(name, content) and self.log.objects.read(name) != content:
            return False
        self.last = Read(slot, content[:DIGEST_BYTES])
        return True


class Epoch(msgspec.Struct, frozen=True):
    """Who took an epoch: a random token, a description for people, and when, in milliseconds since 1970."""

    format: int
    token: str
    by: str
    at_ms: int


def newest_epoch(objects: Objects) -> tuple[int, Epoch | None]:
    """The number of the newest epoch and who took it; (0, None) if there is none."""
    names = objects.names(EPOCH_FOLDER)
    if not names:
        return 0, None
    return int(names[-1]), unseal(names[-1], objects.read(f"{EPOCH_FOLDER}/{names[-1]}"), Epoch)


def newest_tokens(objects: Objects) -> list[str]:
    """The tokens of the newest epochs, ascending."""
    names = objects.names(EPOCH_FOLDER)[-TOKENS_READ:]
    return [epoch.token for epoch in in_order(partial(read_epoch, objects), map(int, names))]


def read_epoch(objects: Objects, number: int) -> Epoch:
    """Raises NotFound."""
    name = f"{EPOCH_FOLDER}/{number:010}"
    return unseal(name, objects.read(name), Epoch)


def take_epoch(objects: Objects, number: int, token: str, by: str, now_ms: int) -> bool:
    """Take an epoch. False if another service has taken it."""
    content = seal(Epoch(FORMAT, token, by, now_ms))
    name = f"{EPOCH_FOLDER}/{number:010}"
    return objects.create(name, content) or objects.read(name) == content
