"""A collection that another process writes, opened to be searched: it follows the log and the generations.

The log says what was written, in order, whether the replica was opened just now, fell behind, or is one commit late:
`catch_up` reads it from where the snapshot ends. No transaction stays open, which would stop the writer's checkpoints.
The process that writes has verified the live generation, so only the manifest is verified here.

Single-threaded, except that searches may read `snapshot` on any thread. Segments are sealed and generations loaded on
background threads; `catch_up` installs what they made.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from indexes.base.errors import Damaged, NotReady
from indexes.base.model import IndexOptions
from indexes.base.work import OnStep, do_nothing
from indexes.collection.view import CollectionView, HitCounter
from indexes.log.reader import SCAN_ROWS, LogPosition, LogReader, PassageEntry
from indexes.parts.delta import DeltaView
from indexes.parts.generation import Generation
from indexes.parts.manifest import read_manifest
from indexes.parts.sealing import Sealing, work_quietly
from indexes.rebuild.chosen import read_chosen

logger = logging.getLogger(__name__)

START = LogPosition(0, 0)
STEP_PASSAGES = 128  # some 20 ms
Loaded = tuple[Generation, list[DeltaView], LogPosition]


class Replica(CollectionView):
    """An open replica. Its owner sets `documents`: counting them would take a scan of the log. Call `close`."""

    def __init__(self, folder: Path, options: IndexOptions, hits: HitCounter) -> None:
        """Open the log and the live generation, and catch up. Raises StorageError if either cannot be read."""
        super().__init__(folder, options, LogReader(folder / "log.db", options.now_ms))
        self.hits, self.documents = hits, 0
        self._inode = inode_of(self.log.path)
        self._closed = False
        self._steps: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._sealing = Sealing(folder.name, self._assembly, on_writer=self._later, publish=self._publish)
        self._loads = ThreadPoolExecutor(1, f"loading-{folder.name}", initializer=work_quietly)
        self._loading: Future[Loaded] | None = None
        self._position, self._content = START, b""
        try:
            if number := self.shelf.current():
                self._restart(*self._load(number))
            self.catch_up()
        except BaseException:
            self.close()
            raise

    def is_current(self) -> bool:
        """Whether the log is still the file that was opened: erasing replaces it."""
        return inode_of(self.log.path) == self._inode

    @property
    def ready(self) -> bool:
        """Whether a segment or a generation is ready to be installed."""
        return not self._steps.empty() or (self._loading is not None and self._loading.done())

    def catch_up(self, on_step: OnStep = do_nothing) -> None:
        """Bring the snapshot to the last commit, and install the segments and the generation that are ready.

        Raises Damaged if the log no longer has what was written since the snapshot; open another replica then.
        """
        self._take_steps()
        self._take_generation()
        # Much is read in blocks, each a transaction of its own. What died before the last of them is in `dead`.
        end = self.log.position().last_passage
        if end - self._position.last_passage > SCAN_ROWS:
            self._assembly.follow(in_steps(self.log.entries(self._position.last_passage, end), on_step), [])
            self._position = LogPosition(self._position.seq, end)
        changes = self.log.changes(self._position)
        if changes is None:
            raise Damaged(f"the log of {self.name} has forgotten what was written after {self._position.seq}")
        self._assembly.follow(in_steps(changes.entries, on_step), changes.dead)
        self._position, self._content = changes.position, changes.content
        self._publish()

    def load_generation(self) -> None:
        """Begin to load the live generation, if it is not the one that is searched."""
        number = self.shelf.current()
        if self._loading is None and number and number != self.generation:
            self._loading = self._loads.submit(self._load, number)

    def tune(self) -> None:
        """Read the search settings of the live generation again."""
        self.chosen = read_chosen(self.folder)
        if self.chosen is not None and self._assembly.generation is not None:
            self.chosen.apply(self._assembly.generation)

    def close(self) -> None:
        """Stop the background threads and close the log."""
        self._closed = True
        self._take_steps()
        with contextlib.ExitStack() as steps:  # runs in reverse order, and continues past a failing step
            steps.callback(self._assembly.clear)
            steps.callback(self.log.close)
            steps.callback(self._loads.shutdown, cancel_futures=True)
            steps.callback(self._sealing.close)

    def _load(self, number: int) -> Loaded:
        """Load a generation, and read back what was written after it."""
        folder = self.shelf.path(number)
        manifest = read_manifest(folder)
        manifest.require_fit(self.settings.fingerprint, self.log.forgotten())
        generation = Generation(folder, manifest, self._assembly.new_files())
        generation.skip_cold(self.options.cold)
        if self.chosen is not None:
            self.chosen.apply(generation)
        last = self.log.position().last_passage
        tail = self._assembly.read_back(self.log.entries(manifest.last_passage, last))
        return generation, tail, LogPosition(manifest.seq, max(last, manifest.last_passage))

    def _restart(self, generation: Generation, tail: list[DeltaView], position: LogPosition) -> None:
        self._assembly.restart(generation, tail)
        self._position = position
        self._sealing.seal_full()

    def _take_generation(self) -> None:
        if self._loading is None or not self._loading.done():
            return
        loading, self._loading = self._loading, None
        try:
            self._restart(*loading.result())
        except Exception as error:  # noqa: BLE001 - the older generation keeps serving
            logger.warning("%s keeps its older generation: %s", self.name, error)

    def _later(self, step: Callable[[], Any]) -> Future[Any]:
        """Queue a step of a background thread for the thread that catches up."""
        future: Future[Any] = Future()
        self._steps.put((step, future))
        if self._closed:
            self._take_steps()
        return future

    def _take_steps(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                step, future = self._steps.get_nowait()
                try:
                    if self._closed:
                        raise NotReady("the replica is closed")
                    future.set_result(step())
                except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits
                    future.set_exception(error)

    def _publish(self) -> None:
        self._snapshot = self._assembly.snapshot(self._position.seq, self._content)


def in_steps(entries: Iterable[PassageEntry], on_step: OnStep) -> Iterator[PassageEntry]:
    for at, entry in enumerate(entries, 1):
        if at % STEP_PASSAGES == 0:
            on_step()
        yield entry


def inode_of(path: Path) -> int:
    return path.stat().st_ino
