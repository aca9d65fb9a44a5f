"""Restoring a collection's log from a store, as it is there or as it was at a moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from pyroaring import BitMap64

from indexes.base.durable import publish
from indexes.base.errors import Damaged, NotFound, Unavailable
from indexes.base.model import Progress
from indexes.store.checkpoints import StoredCheckpoint
from indexes.store.collection_log import FILES, CollectionLog
from indexes.store.reading import in_order
from indexes.store.rows import LogChange, LoggedState, RestoredLog
from indexes.store.slots import NOTHING, Read, name_of, require_successor


@dataclass(frozen=True, slots=True)
class Until:
    """How far to restore: the last state not after this operation, and not after this time in milliseconds."""

    seq: int = 1 << 62
    at_ms: int = 1 << 62

    def includes(self, at_ms: int, operations: int) -> bool:
        return at_ms <= self.at_ms and operations <= self.seq


NEWEST = Until()


def restore_log(
    held: CollectionLog, folder: Path, until: Until, progress: Progress, uid: str | None = None
) -> LoggedState:
    """Write the log, with its settings beside it, into an empty folder; whole and durable on return. Progress counts
    documents.

    Raises NotFound if the store has no state that early, Damaged if objects are missing or damaged, Unavailable if the
    writer of the store removed some while they were read.
    """
    checkpoint = checkpoint_before(held, until)
    log = RestoredLog(folder / "log.db")
    try:
        done = 0
        if checkpoint is not None:
            live = BitMap64.deserialize(checkpoint.live)
            for rows in in_order(partial(held.checkpoints.rows, live=live), checkpoint.parts):
                log.insert(rows)
                done += len(rows.documents)
                progress("documents", done, len(live))
            log.set_state(checkpoint.state, checkpoint.last_ms)
        for changes in changes_after(held, checkpoint, until):
            log.apply(changes)
            done += sum(len(change.rows.documents) for change in changes)
            progress("documents", done, done)
        if log.state is None:
            raise NotFound("the store holds no state of the collection that is so early")
        state = log.finish(uid)
    except NotFound as error:
        if log.state is None:
            raise
        raise Unavailable(
            f"an object was removed while it was to be read ({error.message}); try again"
        ) from error
    finally:
        log.close()
    for name, content in state.files.items():
        if name in FILES:
            publish(folder / name, content)
    return state


def checkpoint_before(held: CollectionLog, until: Until) -> StoredCheckpoint | None:
    """The newest checkpoint that is not too late."""
    for moment in reversed(held.checkpoints.moments()):
        checkpoint = held.checkpoints.read(moment)
        if until.includes(checkpoint.last_ms, checkpoint.state.reached.operations):
            return checkpoint
    return None


def changes_after(
    held: CollectionLog, checkpoint: StoredCheckpoint | None, until: Until
) -> Iterator[list[LogChange]]:
    """The changes after a checkpoint, those that lead to one state together."""
    folder = held.slots.folder
    first = checkpoint.slot if checkpoint else 0
    names = held.objects.names(folder, after=name_of(first) if first else "")
    last = (
        Read(msgspec.structs.replace(NOTHING.slot, number=first), checkpoint.digest)
        if checkpoint
        else NOTHING
    )
    together: list[LogChange] = []
    for read in in_order(held.slots.read, map(int, names)):
        if read.slot.number != last.slot.number + 1:
            if checkpoint is None and not last.slot.number and until != NEWEST:
                raise NotFound("the store holds no state of the collection that is so early")
            raise Damaged(f"{folder}/{name_of(last.slot.number + 1)} in the store is missing")
        require_successor(folder, last, read)
        last = read
        if not read.slot.payload:
            together = []
            continue
        if not until.includes(read.slot.at_ms, read.slot.reached.operations if read.slot.whole else 0):
            return
        together.append(msgspec.msgpack.decode(read.slot.payload, type=LogChange))
        if read.slot.whole:
            yield together
            together = []
