"""Background sealing and merging: full deltas become segments, and adjacent segments are merged, as files.

One thread seals and another merges, so a merge never delays a seal. Both run at low priority (on Linux, priority is
per thread), so searches and writes get the cores first. Results are installed on the writer thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from indexes.base import failpoints
from indexes.base.errors import NearlineError, NotReady
from indexes.base.priority import step_aside
from indexes.base.serial import SerialWork
from indexes.dense.vectors import search_with_one_thread
from indexes.parts.assembly import Assembly
from indexes.parts.delta import DeltaView
from indexes.parts.segment import Segment
from indexes.parts.segment_shelf import SegmentShelf
from indexes.parts.visible import Visible

logger = logging.getLogger(__name__)


class Sealing:
    """Seals and merges for one collection. A failure is logged and costs only speed: the delta keeps serving. A segment
    that cannot be written to disk serves from memory."""

    def __init__(
        self,
        name: str,
        assembly: Assembly,
        shelf: SegmentShelf,
        *,
        on_writer: Callable[[Callable[[], None]], Future[None]],
        publish: Callable[[], None],
        seq: Callable[[], int],
    ) -> None:
        """`on_writer` runs a function on the writer thread; `publish` publishes the assembly's current parts; `seq` is
        the last operation of the published ones."""
        self._name = name
        self._assembly = assembly
        self._shelf = shelf
        self._seq = seq
        self.on_files: list[Callable[[], None]] = []  # called when other segments are on disk
        self._on_writer = on_writer
        self._publish = publish
        assembly.on_full = self.seal
        self._merge_under_way = False
        self._closing = threading.Event()
        self._seals = SerialWork(f"sealing-{name}", work_quietly)
        self._merges = SerialWork(f"merging-{name}", work_quietly)

    def seal(self, view: DeltaView) -> None:
        """Seal a full delta into a segment, in the background."""
        seq = self._seq()

        def work() -> None:
            segment = self._write(Segment.seal(view, on_step=self._on_step), seq)
            failpoints.reach("seal.built")
            self._on_writer(lambda: self._put(view, segment)).result()

        self._submit(self._seals, "sealing a segment", work)

    def seal_full(self) -> None:
        """Seal every full delta that is not sealed yet."""
        for view in self._assembly.full_deltas():
            self.seal(view)

    def close(self) -> None:
        """Cancel queued work, and running work at its next block of rows; wait for the threads to end."""
        self._closing.set()
        for work in (self._seals, self._merges):
            work.stop()
        for work in (self._seals, self._merges):
            work.close()

    def wait(self) -> None:
        """Wait until nothing is queued or running. Do not call on the writer thread."""
        while True:
            for work in (self._seals, self._merges):
                work.submit(lambda: None).result()
            if not self._merge_under_way:
                return

    # -- on the writer thread

    def _put(self, view: DeltaView, segment: Segment) -> None:
        if self._assembly.put(view, segment):
            self._show(segment)
            failpoints.reach("seal.shown")
        else:
            self._shelf.discard(segment)
        self._merge()

    def _show(self, segment: Segment) -> None:
        """Publish the parts, and then the segment's files."""
        self._publish()
        if segment.files is not None:
            self._shelf.publish(segment)
        self.keep_files()

    def keep_files(self) -> None:
        """Remove the files of the segments that are not searched any more, and tell of it. Called on the writer thread,
        which only renames: deleting takes longer."""
        self._shelf.retire(self._assembly.on_disk())
        self._submit(self._merges, "removing segments", self._shelf.clear)
        for listener in self.on_files:
            listener()

    def _merge(self) -> None:
        """Start the next due merge, one at a time."""
        sources = [] if self._merge_under_way else self._assembly.mergeable()
        if not sources:
            return
        self._merge_under_way = True
        seq = self._seq()

        def work() -> None:
            merged = None
            try:
                merged = self._write(Segment.merged(sources, on_step=self._on_step), seq)
                failpoints.reach("merge.built")
            finally:
                self._on_writer(lambda: self._put_merged(sources, merged)).result()

        self._submit(self._merges, "merging segments", work)

    def _put_merged(self, sources: Sequence[Visible], merged: Segment | None) -> None:
        self._merge_under_way = False
        if merged is None:
            return  # the merge failed; the next sealed segment retries
        if self._assembly.put_merged(sources, merged):
            self._show(merged)
            failpoints.reach("merge.shown")
        else:
            self._shelf.discard(merged)
        self._merge()

    def _write(self, segment: Segment, seq: int) -> Segment:
        """Write a segment to disk, and map it from there."""
        if not segment.size:
            return segment
        try:
            return self._shelf.write(segment, seq)
        except (NearlineError, OSError) as error:
            logger.warning("a segment of %s stays in memory: %s", self._name, error)
            return segment

    def _on_step(self) -> None:
        """Called between steps: stop when closing."""
        if self._closing.is_set():
            raise NotReady("the collection is closing")

    def _submit(self, queue: SerialWork, what: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except NotReady:
                logger.debug("%s closed while %s", self._name, what)
            except Exception:
                logger.exception("%s of %s failed", what, self._name)

        try:
            queue.submit(guarded)
        except RuntimeError:
            logger.debug("%s closed before %s", self._name, what)
        except NearlineError as error:
            logger.error("%s of %s failed: %s", what, self._name, error.message)


def work_quietly() -> None:
    """Thread initializer: low priority, and no extra OpenMP threads in faiss."""
    search_with_one_thread()
    step_aside()
