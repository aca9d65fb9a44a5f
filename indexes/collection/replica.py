"""A collection that another process writes, opened to be searched: it follows the log and the files beside it.

The log says what was written, in order, whether the replica was opened just now, fell behind, or is one commit late:
`catch_up` reads it from where the snapshot ends. No transaction stays open, which would stop the writer's checkpoints.
The process that writes has verified the live generation, so only its manifest is verified here.

Single-threaded, except that searches may read `snapshot` on any thread. What is new on disk is loaded on a background
thread; `catch_up` installs it.
"""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from indexes.base.errors import Conflict, Damaged
from indexes.base.model import IndexOptions
from indexes.base.serial import SerialWork
from indexes.base.work import OnStep, do_nothing
from indexes.collection.view import CollectionView, HitCounter, covered_by, end_of
from indexes.log.reader import SCAN_ROWS, LogPosition, LogReader
from indexes.parts.assembly import Arrangement, hide_dead
from indexes.parts.generation import Generation
from indexes.parts.manifest import read_manifest
from indexes.parts.sealing import work_quietly
from indexes.parts.visible import Visible
from indexes.rebuild.chosen import read_chosen

logger = logging.getLogger(__name__)

START = LogPosition(0, 0)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded, up to the passage `covered`, which the replica itself may not have reached yet. If it is
    `whole`, it has what was read back after that, up to a position; if not, the replica's own deltas after it stay."""

    generation: Generation | None
    parts: list[Visible]
    position: LogPosition
    covered: int
    whole: bool


class Replica(CollectionView):
    """An open replica. Its owner sets `documents`: counting them would take a scan of the log. Call `close`."""

    def __init__(self, folder: Path, options: IndexOptions, hits: HitCounter) -> None:
        """Open the log and what is on disk, and catch up. Raises StorageError if it cannot be read."""
        super().__init__(folder, options, LogReader(folder / "log.db", options.now_ms))
        self.hits, self.documents = hits, 0
        self._inode = inode_of(self.log.path)
        self._loads = SerialWork(f"loading-{folder.name}", work_quietly)
        self._loading: Future[Loaded] | None = None
        self._position, self._content = START, b""
        self._is_told = False  # that there may be something new on disk
        try:
            self._restart(self._load(whole=True))
            self.catch_up()
        except BaseException:
            self.close()
            raise

    def is_current(self) -> bool:
        """Whether the log is still the file that was opened: erasing replaces it."""
        return inode_of(self.log.path) == self._inode

    @property
    def ready(self) -> bool:
        """Whether what was loaded is ready to be installed."""
        return self._loading is not None and self._loading.done()

    def catch_up(self, on_step: OnStep = do_nothing) -> None:
        """Bring the snapshot to the last commit, install what was loaded, and begin to load what `look` was called for.

        Raises Damaged if the log no longer has what was written since the snapshot; open another replica then.
        """
        self._take_loaded()
        self._load_new()
        # Much is read in blocks, each a transaction of its own. What died before the last of them is in `dead`.
        end = self.log.position().last_passage
        if end - self._position.last_passage > SCAN_ROWS:
            self._assembly.follow(self.log.entries(self._position.last_passage, end), [], on_step)
            self._position = LogPosition(self._position.seq, end)
        changes = self.log.changes(self._position)
        if changes is None:
            raise Damaged(f"the log of {self.name} has forgotten what was written after {self._position.seq}")
        self._assembly.follow(changes.entries, changes.dead, on_step)
        self._position, self._content = changes.position, changes.content
        self._publish()

    def look(self) -> None:
        """Have the next `catch_up` load what is new on disk. The process that writes says when there may be something:
        looking takes time, and searches wait for `catch_up`."""
        self._is_told = True

    def _load_new(self) -> None:
        if not self._is_told or self._loading is not None:
            return
        self._is_told = False
        loaded = self._assembly.generation
        on_disk = self.segments.between(end_of(loaded)[0])
        current = loaded.number if loaded else 0
        if self.shelf.current() != current or on_disk != self._assembly.on_disk():
            self._loading = self._loads.submit(self._load)

    @property
    def _covered(self) -> int:
        """The last passage in what was loaded."""
        return covered_by(self._assembly.generation, self._assembly.segments())

    def tune(self) -> None:
        """Read the search settings of the live generation again."""
        self.chosen = read_chosen(self.folder)
        if self.chosen is not None and self._assembly.generation is not None:
            self.chosen.apply(self._assembly.generation)

    def close(self) -> None:
        """Stop the background threads and close the log."""
        with contextlib.ExitStack() as steps:  # runs in reverse order, and continues past a failing step
            steps.callback(self._release)
            steps.callback(self.log.close)
            steps.callback(setattr, self, "_loading", None)  # what was loaded is mapped, too
            steps.callback(self._loads.close)

    def _load(self, *, whole: bool = False) -> Loaded:
        """Load the live generation and the segments after it. If `whole`, or if they cover less than what was loaded
        before, also read back what is after them; else the deltas have that."""
        generation = self._load_generation(self.shelf.current())
        known = {one.covers: one for one in self._assembly.segments()}
        position = self.log.position()
        segments = self._load_segments(generation, position.last_passage, known)
        covered = covered_by(generation, segments)
        whole = whole or covered < self._covered
        tail, dead = self._read_after(generation, segments, position.last_passage if whole else covered)
        return Loaded(generation, hide_dead(generation, tail, dead), position, covered, whole)

    def _load_generation(self, number: int) -> Generation | None:
        """Load a generation, unless it is the one that is searched."""
        loaded = self._assembly.generation
        if not number or (loaded is not None and loaded.number == number):
            return loaded if number else None
        folder = self.shelf.path(number)
        manifest = read_manifest(folder)
        manifest.require_fit(self.settings.fingerprint)
        generation = Generation(folder, manifest, self._assembly.new_files())
        generation.spare_cold(self.options.cold)
        if self.chosen is not None:
            self.chosen.apply(generation)
        return generation

    def _restart(self, loaded: Loaded) -> None:
        """Replace what is searched by what was loaded. Raises Conflict if a delta spans its end."""
        deltas = [] if loaded.whole else self._assembly.after(loaded.covered)
        self._assembly.install(Arrangement(loaded.generation, [*loaded.parts, *deltas]))
        self._assembly.reopen()
        if loaded.whole:
            self._position = loaded.position
        else:  # what died since the earlier of both is not hidden everywhere
            seq = min(loaded.position.seq, self._position.seq)
            self._position = LogPosition(seq, max(self._position.last_passage, loaded.covered))

    def _take_loaded(self) -> None:
        if self._loading is None or not self._loading.done():
            return
        loading, self._loading = self._loading, None
        try:
            loaded = loading.result()
            if self.log.remembers(loaded.position):
                self._restart(loaded)
            else:  # a rebuild ended while it was loaded
                self.look()
        except Conflict:  # a delta spans its end: the writer began a new one elsewhere, as for a rebuild
            self._loading = self._loads.submit(partial(self._load, whole=True))
        except Exception as error:  # noqa: BLE001 - what was loaded before keeps serving
            logger.warning("%s keeps its older indexes: %s", self.name, error)

    def _publish(self) -> None:
        self._snapshot = self._assembly.snapshot(self._position.seq, self._content)


def inode_of(path: Path) -> int:
    return path.stat().st_ino
