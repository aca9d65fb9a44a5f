"""Building a generation from a store, on a machine that serves nothing: the writer adopts it.

The machine needs room for the collection's log and its indexes. Nothing of it remains there; what a killed build has
left is removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from indexes.base.errors import Conflict, NotFound
from indexes.base.model import IndexOptions, Progress, now_ms
from indexes.collection.collection import Collection
from indexes.parts.manifest import Manifest, read_manifest
from indexes.rebuild.builder import Rebuild
from indexes.store.collection_log import CollectionLog
from indexes.store.directory import DIRECTORY
from indexes.store.generations import generation_in
from indexes.store.objects import Objects
from indexes.store.offers import OfferAnswer, Offers
from indexes.store.opening import directory_at
from indexes.store.restoring import NEWEST, restore_log
from indexes.store.slots import SlotLog

ASK_EVERY_S = 1.0
FOLDER = "nearline-build-"


class UpToDate(Conflict):
    """The live generation has every operation already."""


@dataclass(frozen=True, slots=True)
class Built:
    """A generation that was built, and the number of its offer."""

    manifest: Manifest
    offer: int


def build_from(
    objects: Objects,
    name: str,
    folder: Path,
    options: IndexOptions,
    hot_capacity: int | None,
    progress: Progress,
) -> Built:
    """Restore a collection's log into a new folder, build a generation of it there, upload it, and offer it.

    `name` may be an alias. Raises NotFound for an unknown one, UpToDate if there is nothing new to build, Damaged,
    Unavailable, and what `Rebuild.run` raises.
    """
    directory = directory_at(SlotLog(objects, DIRECTORY), NEWEST)
    uid = directory.collections.get(directory.aliases.get(name, name))
    if uid is None:
        raise NotFound(f"the store has no collection {name!r}", param="collection")
    held = CollectionLog(objects, uid)
    checkpoint = held.newest_checkpoint()
    last = held.last(checkpoint)
    live, operations = generation_in(held.files_at(last, checkpoint) or {}), last.slot.reached.operations
    if (live.seq if live else 0) == operations:
        raise UpToDate(f"the live generation has all {operations} operations of {name} already")
    folder.mkdir()
    restore_log(held, folder, NEWEST, progress)
    collection = Collection(folder, options)
    try:
        number = Rebuild(collection.begin_build(hot_capacity), timeout_s=options.build_timeout_s).run(
            progress
        )
    finally:
        collection.close()
    path = collection.shelf.path(number)
    stored = held.generations.put(path, now_ms())
    return Built(read_manifest(path), Offers(objects).make(uid, stored))


def await_answer(objects: Objects, offer: int, timeout_s: float) -> OfferAnswer | None:
    """Wait until the writer has answered an offer; None if it has not in time."""
    offers, until = Offers(objects), time.monotonic() + timeout_s
    while (answer := offers.answer_to(offer)) is None and time.monotonic() < until:
        time.sleep(ASK_EVERY_S)
    return answer


@contextlib.contextmanager
def build_folder() -> Iterator[Path]:
    """A new folder for temporary files (in TMPDIR), removed at the end. Those of builds that were killed are removed
    first: a build holds the lock on its own."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{FOLDER}*"):
        with (
            contextlib.suppress(OSError),
            hold(left),
        ):  # it may be that of a build under way, or of another user
            shutil.rmtree(left)
    draft = Path(tempfile.mkdtemp(prefix=f".{FOLDER}"))
    with hold(draft):
        folder = draft.rename(
            parent / draft.name.removeprefix(".")
        )  # locked before a build beside it can see it
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a folder. Raises BlockingIOError if it is locked."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)
