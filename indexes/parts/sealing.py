"""Segments in the making: full deltas get their codes, and neighbouring segments become one, beside the serving.

One thread seals and one merges, so that no merge delays a seal. Both run at low priority (Linux gives each thread its
own): searches and writes get the cores first. What is made is put in place on the writer's thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from indexes import failpoints
from indexes.courtesy import give_way
from indexes.dense.vectors import search_with_one_thread
from indexes.errors import NotReady
from indexes.parts.assembly import Assembly
from indexes.parts.delta import DeltaView
from indexes.parts.segment import Segment
from indexes.parts.visible import Visible

logger = logging.getLogger(__name__)

NICENESS = 10


class Sealing:
    """Seals and merges for one collection. What fails is logged and costs speed only: the delta serves on."""

    def __init__(
        self,
        name: str,
        assembly: Assembly,
        *,
        on_writer: Callable[[Callable[[], None]], Future[None]],
        publish: Callable[[], None],
    ) -> None:
        """`on_writer` runs a function on the writer's thread; `publish` shows searches what the assembly now holds."""
        self._name = name
        self._assembly = assembly
        self._on_writer = on_writer
        self._publish = publish
        assembly.on_full = self.seal
        self._merge_under_way = False
        self._closing = threading.Event()
        self._seals = ThreadPoolExecutor(1, f"sealing-{name}", initializer=work_quietly)
        self._merges = ThreadPoolExecutor(1, f"merging-{name}", initializer=work_quietly)

    def seal(self, view: DeltaView) -> None:
        """Make a segment of a full delta, in the background."""

        def work() -> None:
            segment = Segment.seal(view, go_on=self._go_on)
            failpoints.reach("seal.built")
            self._on_writer(lambda: self._put(view, segment)).result()

        self._submit(self._seals, "sealing a segment", work)

    def seal_full(self) -> None:
        """All full deltas that are not sealed yet."""
        for view in self._assembly.full_deltas():
            self.seal(view)

    def close(self) -> None:
        """Drop what waits, and what runs too at its next block of rows."""
        self._closing.set()
        for pool in (self._seals, self._merges):
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in (self._seals, self._merges):
            pool.shutdown(wait=True)

    def wait(self) -> None:
        """Return once nothing is queued or under way. Not for the writer's thread."""
        while True:
            for pool in (self._seals, self._merges):
                pool.submit(lambda: None).result()
            if not self._merge_under_way:
                return

    # -- on the writer's thread

    def _put(self, view: DeltaView, segment: Segment) -> None:
        if self._assembly.put(view, segment):
            self._publish()
            failpoints.reach("seal.shown")
        self._merge()

    def _merge(self) -> None:
        """Begin to merge what should be merged, one merge at a time."""
        sources = [] if self._merge_under_way else self._assembly.mergeable()
        if not sources:
            return
        self._merge_under_way = True

        def work() -> None:
            merged = None
            try:
                merged = Segment.merged(sources, go_on=self._go_on)
                failpoints.reach("merge.built")
            finally:
                self._on_writer(lambda: self._put_merged(sources, merged)).result()

        self._submit(self._merges, "merging segments", work)

    def _put_merged(self, sources: Sequence[Visible], merged: Segment | None) -> None:
        self._merge_under_way = False
        if merged is None:
            return  # it failed; the next sealed segment tries again
        if self._assembly.put_merged(sources, merged):
            self._publish()
            failpoints.reach("merge.shown")
        self._merge()

    def _go_on(self) -> None:
        """Called between two steps."""
        if self._closing.is_set():
            raise NotReady("the collection is closing")
        give_way()

    def _submit(self, pool: ThreadPoolExecutor, what: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except NotReady:
                logger.debug("%s closed while %s", self._name, what)
            except Exception:
                logger.exception("%s of %s failed", what, self._name)

        try:
            pool.submit(guarded)
        except RuntimeError:
            logger.debug("%s closed before %s", self._name, what)


def work_quietly() -> None:
    """For each of the threads: low priority, and no team of further threads in faiss."""
    search_with_one_thread()
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except OSError as error:  # a hardened container may forbid even this
        logger.debug("background threads keep their priority: %s", error)
