"""The log of one collection in a store, and the writer that carries what its log on the disk has there.

collections/<uid>/log/<slot>             a group of commits each: what was written, and what died
collections/<uid>/checkpoint, /part      see `checkpoints`
collections/<uid>/generation             see `generations`
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from indexes.base.moving import MOVING
from indexes.base.work import do_nothing
from indexes.log.reader import LogReader
from indexes.parts.learned import ALIASES, RANKING, SYNONYMS, VECTOR_STORE
from indexes.rebuild.chosen import FILE as CHOSEN
from indexes.store.checkpoints import (
    CHECKPOINTS,
    LIVE_MIN,
    PARTS,
    StoredCheckpoint,
    StoredCheckpoints,
    StoredPart,
    kept_moments,
    live_documents,
)
from indexes.store.directory import COLLECTIONS, hash_of
from indexes.store.generations import GENERATIONS, StoredGeneration, StoredGenerations, generation_in
from indexes.store.objects import Objects
from indexes.store.rows import LogChange, changes_since, last_change, reached_by, read_rows
from indexes.store.slots import FORMAT, Read, SlotLog, SlotWriter, name_of

SLOTS_BETWEEN = 256  # checkpoints: so many small objects are read at most to restore
ERASED = "erased"  # among the files of a state: when the last erasure was begun, so that replicas follow it
FILES = (CHOSEN, RANKING, SYNONYMS, ALIASES, VECTOR_STORE, MOVING)


class CollectionLog:
    """What a store holds of a collection."""

    def __init__(self, objects: Objects, uid: str) -> None:
        self.objects, self.folder = objects, f"{COLLECTIONS}/{uid}"
        self.slots = SlotLog(objects, f"{self.folder}/log")
        self.checkpoints = StoredCheckpoints(objects, self.folder)
        self.generations = StoredGenerations(objects, self.folder)

    def newest_checkpoint(self) -> StoredCheckpoint | None:
        moments = self.checkpoints.moments()
        return self.checkpoints.read(moments[-1]) if moments else None

    def last(self, checkpoint: StoredCheckpoint | None) -> Read:
        return self.slots.last(checkpoint.slot if checkpoint else 0)

    def files_at(self, last: Read, checkpoint: StoredCheckpoint | None) -> dict[str, bytes] | None:
        """The files of the last state up to a slot; None if there is none."""
        return self.numbered_files_at(last, checkpoint)[1]

    def numbered_files_at(
        self, last: Read, checkpoint: StoredCheckpoint | None
    ) -> tuple[int, dict[str, bytes] | None]:
        """The same, with the number of the slot that has them."""
        for number in range(last.slot.number, checkpoint.slot if checkpoint else 0, -1):
            payload = self.slots.read(number).slot.payload
            if payload and (state := msgspec.msgpack.decode(payload, type=LogChange).state) is not None:
                return number, state.files
        return (checkpoint.slot, checkpoint.state.files) if checkpoint else (0, None)

    def objects_held(self) -> Iterator[str]:
        """Every object of the collection."""
        for room in ("log", CHECKPOINTS, PARTS, GENERATIONS):
            folder = f"{self.folder}/{room}"
            yield from (f"{folder}/{name}" for name in self.objects.names(folder))


class CollectionUpload:
    """Appends to a collection's log in a store. One thread at a time."""

    def __init__(
        self,
        held: CollectionLog,
        writer: SlotWriter,
        log: LogReader,
        checkpoint: StoredCheckpoint | None,
        *,
        keep_ms: int,
        on_upload: Callable[[int], None] = lambda seq: None,
        on_append: Callable[[], None] = do_nothing,
        on_settings: Callable[[int, bytes, bytes], None] = lambda slot, before, now: None,
    ) -> None:
        """`on_upload` is called with the last operation that the store has after each upload, `on_append` after each
        slot, and `on_settings` before one with other settings, with its number and the hashes of those in the store and
        of these."""
        self.log, self.held, self.writer, self._keep_ms = log, held, writer, keep_ms
        self._on_upload, self._on_append = on_upload, on_append
        self._checkpoint = checkpoint
        self._oldest = checkpoint.oldest_slot if checkpoint else 1
        self._files = held.files_at(writer.last, checkpoint)  # as they are in the store
        self._erasure = {name: one for name, one in (self._files or {}).items() if name == ERASED}
        self.generation = self.stored_generation
        """The live generation, if it is in the store; the next state names it."""
        self._cleared = self.generation  # the live one when others were removed
        self._on_settings = on_settings
        self._parts_of: dict[str, set[str]] = {}  # of checkpoints, by name

    @property
    def seq(self) -> int:
        """The last operation that is in the store."""
        return self.writer.last.slot.reached.operations

    def has(self, seq: int) -> bool:
        """Whether the store has an operation, and the settings beside the log as they are now."""
        return self.seq >= seq and self._files == self._files_now()

    def upload(self, now_ms: int) -> int:
        """Bring the store up to the last commit; returns the last operation there. After Unavailable, call it again.
        Raises Superseded."""
        self._upload_changes()
        last = self._checkpoint.slot if self._checkpoint else 0
        if self.writer.last.slot.number - last >= SLOTS_BETWEEN:
            self.check_in(now_ms)
        self._clear_generations(now_ms)
        return self.seq

    def _upload_changes(self) -> None:
        self.writer.settle()
        files = self._files_now()
        for change in changes_since(self.log, self.writer.last.slot.reached, files):
            state, before = change.state, self.writer.last.slot.reached
            if state is None or state.reached != before or files != self._files:
                self._append(change)
        self._on_upload(self.seq)

    @property
    def stored_generation(self) -> StoredGeneration | None:
        """The one that the last state in the store names."""
        return generation_in(self._files or {})

    def _files_now(self) -> dict[str, bytes]:
        files = files_beside(self.log.path.parent)
        if self.generation is not None:
            files[GENERATIONS] = msgspec.msgpack.encode(self.generation)
        return files | self._erasure

    def take_generation(self, folder: Path, now_ms: int, on_piece: Callable[[], None] = do_nothing) -> bool:
        """Upload the live generation, unless the store has it, for the next `upload` to say so. Returns whether it did.
        It takes long, so another thread may upload changes. Raises NotFound if it was replaced."""
        if self.generation is not None and self.generation.is_of(folder):
            return False
        self.generation = self.held.generations.put(folder, now_ms, on_piece)
        return True

    def _clear_generations(self, now_ms: int, *, only_live: bool = False) -> None:
        live = self.stored_generation
        if only_live or live != self._cleared:
            self.held.generations.clear(live, now_ms, only_this=only_live)
            self._cleared = live

    def _append(self, change: LogChange) -> None:
        last, state = self.writer.last.slot, change.state
        at_ms = change.operations[-1][1] if change.operations else last.at_ms
        reached = state.reached if state else last.reached
        if state and (now := settings_in(state.files)) != (before := settings_in(self._files)):
            self._on_settings(last.number + 1, hash_of(before), hash_of(now))
        self.writer.append(msgspec.msgpack.encode(change), reached, at_ms, whole=state is not None)
        if state:
            self._files = state.files
        self._on_append()

    def check_in(self, now_ms: int, *, erase: bool = False) -> None:
        """Make a checkpoint, and remove what no kept one needs. With `erase`, no object holds a deleted text then, and
        no earlier moment can be restored. Raises like `upload`."""
        if erase:
            self._erasure = {ERASED: str(now_ms).encode()}
        self._upload_changes()
        end = self.writer.last.slot.reached.documents
        known = self._checkpoint.parts if self._checkpoint else []
        parts: list[StoredPart] = []
        for part in self.held.checkpoints.make_parts(self.log, known, end, 1.0 if erase else LIVE_MIN):
            parts.append(part)
            self._upload_changes()  # callers that wait for the store do not wait for all parts
        # Before the rows, or a copy might have lost its mark here and not be complete yet.
        files = self._files_now()
        with self.log.transaction() as db:  # at one commit: parts, rows and change together make its state
            reached = self.writer.last.slot.reached
            change = last_change(db, reached, reached.documents, files)
            rows = read_rows(db, end, reached_by(db).documents)
            live = live_documents(db)
        state = change.state
        assert state is not None
        if change.operations or state.files != self._files:
            self._append(change)
        if rows.documents:
            parts.append(self.held.checkpoints.put_part(end, state.reached.documents, rows))
        last = self.writer.last
        self._checkpoint = made = StoredCheckpoint(
            FORMAT,
            slot=last.slot.number,
            digest=last.digest,
            last_ms=last.slot.at_ms,
            at_ms=now_ms,
            state=state,
            live=live.serialize(),
            parts=parts,
            oldest_slot=self._oldest,
        )
        self.held.checkpoints.put(made)
        self._parts_of[made.name] = {part.name for part in parts}
        self._clear(now_ms, only_this=erase)
        if erase:
            self._clear_generations(now_ms, only_live=True)

    def _clear(self, now_ms: int, *, only_this: bool) -> None:
        """Remove checkpoints that need not be kept, and slots and parts that no kept one needs."""
        assert self._checkpoint is not None
        held, folder = self.held.checkpoints, self.held.folder
        moments = held.moments()
        since_ms = now_ms - self._keep_ms
        kept = [moments[-1]] if only_this else kept_moments(moments, since_ms)
        for one in kept:
            if one.name not in self._parts_of:
                self._parts_of[one.name] = {part.name for part in held.read(one).parts}
        self._parts_of = {one.name: self._parts_of[one.name] for one in kept}
        gone = [one.name for one in moments if one not in kept]
        needed = set[str]().union(*self._parts_of.values())
        unneeded = [name for name in self.held.objects.names(f"{folder}/{PARTS}") if name not in needed]
        reaches_back = only_this or kept[-1].at_ms <= since_ms
        first = min(one.slot for one in kept) if reaches_back else self._oldest
        remove = self.held.objects.remove
        remove(f"{folder}/{CHECKPOINTS}/{name}" for name in gone)
        remove(f"{folder}/{PARTS}/{name}" for name in unneeded)
        remove(f"{folder}/log/{name_of(number)}" for number in range(self._oldest, first))
        self._oldest = first


def settings_in(files: dict[str, bytes] | None) -> dict[str, bytes]:
    """The settings among the files of a state."""
    return {name: content for name, content in (files or {}).items() if name in FILES}


def changes_of(folder: Path, names: Sequence[str]) -> tuple[object, ...]:
    """What changes whenever one of these files is replaced; None for those that are not there."""
    return tuple(change_of(folder / name) for name in names)


def change_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def files_beside(folder: Path) -> dict[str, bytes]:
    """The settings that lie beside a log."""
    found = {}
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            found[name] = (folder / name).read_bytes()
    return found
