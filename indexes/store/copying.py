"""Copying a collection to another machine while it is written, as the log of the copy follows that of the original.

The original says what leads from one state of its log to its last commit, as it would to a store (`rows`), and how far
it has come otherwise. The copy is restored from that and then follows, until the original is given away
(`Collection.give`); then it takes what is left, and is the original.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from indexes.base.durable import publish
from indexes.base.errors import Conflict, NearlineError, message_of
from indexes.base.model import Progress
from indexes.base.moving import MOVING, Moving, write_moving
from indexes.collection.collection import Collection
from indexes.directory.backup.restoring import placing
from indexes.parts.shelf import Shelf
from indexes.store.collection_log import files_beside
from indexes.store.following import take_chosen, take_files
from indexes.store.generations import files_in, pieces_of, put_on_shelf
from indexes.store.rows import LogChange, LoggedState, RestoredLog, changes_since, reached_by, replay
from indexes.store.slots import LogExtent

logger = logging.getLogger(__name__)

LEVEL_DOCUMENTS = 2000  # the copy is opened when it lacks at most so many; the rest is replayed, in one piece
PULLS_MAX = 100


class Original(Protocol):
    """Where a collection is copied from. Its calls wait for another machine."""

    def changes(self, since: LogExtent) -> Iterator[LogChange]: ...

    def generation(self) -> tuple[int, list[tuple[str, int]], Iterator[bytes]] | None:
        """Return the number of the live generation, its files and their bytes; None if there is none."""


def changes_to_copy(collection: Collection, since: LogExtent) -> Iterator[LogChange]:
    """Yield what leads from a state of the log to its last commit. Only the last one has a state."""
    files = {name: one for name, one in files_beside(collection.folder).items() if name != MOVING}
    return changes_since(collection.log, since, files)


def generation_to_copy(collection: Collection) -> tuple[int, list[tuple[str, int]], Iterator[bytes]] | None:
    """Return the live generation as `Original.generation` does. The bytes raise NotFound if it is replaced."""
    number = collection.generation
    if not number:
        return None
    folder = collection.shelf.path(number)
    files = files_in(folder)
    return number, files, pieces_of(folder, files)


def place_copy(original: Original, data: Path, name: str, node: str, progress: Progress) -> None:
    """Put a copy of a collection that is at another node into a data directory, not far behind the original. It is
    whole and durable on return, for `Catalog.open_placed`. Progress counts documents, then pieces of the indexes.

    Raises Conflict if the original is written faster than it is copied, and what `original` raises.
    """
    with placing(data / name) as draft:
        state = copy_log(original, draft, progress)
        for file, content in state.files.items():
            publish(draft / file, content)
        write_moving(draft, Moving("copy", node))
        copy_generation(original, draft, progress)


def copy_log(original: Original, folder: Path, progress: Progress) -> LoggedState:
    log = RestoredLog(folder / "log.db")
    done = 0
    try:
        for _ in range(PULLS_MAX):
            documents, since = 0, log.state.reached if log.state else LogExtent()
            for change in original.changes(since):
                if change.restarts:
                    raise out_of_step(folder.name)
                documents += len(change.rows.documents)
                progress("documents", done + documents, 0)
                if change.state is None:
                    log.insert(change.rows)
                else:
                    log.apply([change])
            done += documents
            if documents <= LEVEL_DOCUMENTS:
                return log.finish(uuid.uuid4().hex)
    finally:
        log.close()
    raise Conflict(f"{folder.name} is written faster than it can be copied; move it when less is written")


def copy_generation(original: Original, folder: Path, progress: Progress) -> None:
    """Give a copied log the indexes of the original. Without them the copy builds its own."""
    try:
        if (found := original.generation()) is None:
            return
        number, files, pieces = found
        shelf = Shelf(folder)
        put_on_shelf(shelf, number, files, counted(pieces, sum(size for _, size in files), progress))
        shelf.set_current(number)
    except NearlineError as error:
        logger.warning("the indexes of %s will be built again: %s", folder.name, message_of(error))


def counted(pieces: Iterable[bytes], total: int, progress: Progress) -> Iterator[bytes]:
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece)
        progress("indexes", done, total)


def catch_up(original: Original, copy: Collection) -> int:
    """Bring a copy to the last commit of its original, and return how many documents that were. Raises Conflict if the
    original's log no longer has what is missing."""
    with copy.log.transaction() as db:
        since = reached_by(db)
    changes = list(original.changes(since))
    if any(one.restarts for one in changes):
        raise out_of_step(copy.name)
    state = changes[-1].state
    assert state is not None
    if state.reached != since:
        copy.replay(partial(replay, changes))
    take_files(copy, state.files)
    take_chosen(copy, state.files)
    return sum(len(one.rows.documents) for one in changes)


def out_of_step(name: str) -> Conflict:
    return Conflict(f"the log of {name} no longer has what follows the copy; move it again")
