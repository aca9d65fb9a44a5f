"""Erasure: removes deleted and replaced content from every file of a collection, and frees its space.

Indexes hold deleted passages until a rebuild, generations kept for rollback hold them too, and the log file holds them
until it is rewritten (`indexes/log/rewriting`). Existing backups are not touched.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from indexes.base import failpoints
from indexes.base.durable import sync_file
from indexes.base.errors import NotReady, Unavailable
from indexes.base.model import Progress, now_ms
from indexes.collection.collection import Collection
from indexes.log.rewriting import Copy, remove_copies

FEW_OPERATIONS, ROUNDS_MAX = 500, 20  # left to copy while writes are blocked; rounds until then
WAIT_S_MAX, PAUSE_S = 60.0, 1.0  # for a running backup


@dataclass(frozen=True, slots=True)
class Erased:
    """The outcome of an erasure: bytes of content erased, disk space freed, and disk space still used.

    Freed bytes may be negative if writes arrived during it, or a first generation was built.
    """

    erased_bytes: int
    freed_bytes: int
    disk_bytes: int


class Erasure:
    """Erases content deleted or replaced before construction. `cancel`, from any thread, stops it at its next step.

    If `needs_rebuild`, adopt a new generation before calling `run`. No build may run at the same time.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._began_ms = now_ms()
        self._before = disk_bytes(collection.folder)
        self._cancelled = threading.Event()
        log = collection.log
        self._owed, dead = collection.on_writer(lambda: (log.owed, collection.snapshot.dead))
        self.needs_rebuild = dead > 0

    def cancel(self) -> None:
        self._cancelled.set()

    def run(self, progress: Progress) -> Erased:
        """Raises Unavailable if another program, such as a backup, reads the log for too long, DiskFull or
        StorageError; the log is then unchanged."""
        log = self._collection.log
        self._collection.forget_generations()
        failpoints.reach("erase.begin")
        progress("log", 0, 1)
        try:
            copy = Copy(log.path)
            for _ in range(ROUNDS_MAX):
                if log.follow(copy, self._on_step) <= FEW_OPERATIONS:
                    break
            sync_file(copy.path)  # sync most of it now: writes are blocked during the final sync
            failpoints.reach("erase.copied")
            self._replace(copy)
        finally:
            remove_copies(log.path)
        progress("log", 1, 1)
        left = disk_bytes(self._collection.folder)
        return Erased(self._owed.bytes, self._before - left, left)

    def _replace(self, copy: Copy) -> None:
        log, until = self._collection.log, time.monotonic() + WAIT_S_MAX
        while True:
            try:
                return self._collection.on_writer(lambda: log.replace_by(copy, self._owed, self._began_ms))
            except NotReady:
                raise
            except Unavailable:
                if time.monotonic() > until:
                    raise
            self._cancelled.wait(PAUSE_S)
            log.follow(copy, self._on_step)

    def _on_step(self) -> None:
        if self._cancelled.is_set():
            raise NotReady("the service is closing")


def disk_bytes(folder: Path) -> int:
    """Total size of all files below a folder. Files that disappear during the walk do not count."""
    total = 0
    for inside, _, names in os.walk(folder):  # which passes over folders that disappear; Path.rglob raises
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(inside, name).stat().st_size
    return total
