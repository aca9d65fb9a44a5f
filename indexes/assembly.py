"""The parts of a collection as its writer keeps them: what grows, what is hidden, what takes another's place.

Belongs to one thread. It never changes what a snapshot holds: every step puts new values where old ones were, and
`snapshot` freezes the present ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from indexes.analysis import terms
from indexes.errors import Conflict
from indexes.filters import FilterIndex
from indexes.generation import Generation
from indexes.log import Applied
from indexes.log_reader import Entry, searchable_text
from indexes.model import Settings, Tuning
from indexes.parts import Delta, DeltaView, Part, Segment
from indexes.snapshot import Snapshot, Visible

OnFull = Callable[[DeltaView], None]


@dataclass(frozen=True, slots=True)
class Tail:
    """Passages read back from the log: parts of a snapshot, and their filters."""

    parts: list[DeltaView]
    filters: FilterIndex


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What an assembly is to hold from now on."""

    generation: Generation | None
    parts: list[Visible]
    filters: FilterIndex


class Assembly:
    """Generation, segments and deltas, in this order, with a delta that takes what comes next.

    `on_full` is called with each full delta, so that somebody may seal it and `put` the segment in its place.
    """

    def __init__(self, settings: Settings, tuning: Tuning, on_full: OnFull) -> None:
        self._settings = settings
        self._tuning = tuning
        self._on_full = on_full
        self._parts: list[Visible] = []
        self._recent_filters = FilterIndex()
        self._delta = self._new_delta()
        self.generation: Generation | None = None

    def snapshot(self, seq: int) -> Snapshot:
        sealed = (self.generation.filters,) if self.generation else ()
        return Snapshot(
            seq=seq,
            generation=self.generation.number if self.generation else 0,
            parts=tuple(self._parts),
            filters=(*sealed, self._recent_filters),
            bm25=self._settings.bm25,
            exact_scan_max=self._tuning.exact_scan_passages_max,
        )

    # -- growth and removal

    def apply(self, applied: Sequence[Applied]) -> None:
        """Take committed operations in: new passages first, then what they replaced or removed."""
        for one in applied:
            if one.upsert is not None:
                self._add(one)
        self._show_growth()
        self._hide(applied)

    def rotate(self) -> None:
        """End the delta here: later passages go to a new one."""
        if not self._delta.size:
            return
        self._show_growth()
        full = self._delta.full
        self._delta = self._new_delta()
        if full:
            view = self._parts[-1].part
            assert isinstance(view, DeltaView)
            self._on_full(view)

    def _add(self, applied: Applied) -> None:
        upsert = applied.upsert
        assert upsert is not None
        passages = range(applied.first_passage, applied.first_passage + len(upsert.passages))
        for number, passage in zip(passages, upsert.passages, strict=True):
            if self._delta.full:
                self.rotate()
            text = searchable_text(upsert.title, upsert.text[passage.start : passage.end])
            self._delta.append(number, passage.vector, text)
        self._recent_filters.add(passages, upsert.metadata)

    def _show_growth(self) -> None:
        """Let the last part be a fresh view of the delta."""
        if not self._delta.size:
            return
        view = self._delta.view()
        last = self._parts[-1] if self._parts else None
        if last is not None and isinstance(last.part, DeltaView) and self._delta.owns(last.part):
            self._parts[-1] = last.grown(view)
        else:
            self._parts.append(Visible.whole(view))

    def _hide(self, applied: Sequence[Applied]) -> None:
        dead = [
            (passage, text) for one in applied for passage, text in zip(one.dead, one.dead_texts, strict=True)
        ]
        if not dead:
            return
        ids = np.array([passage for passage, _ in dead], np.int64)
        for at, visible in enumerate(self._parts):
            rows = visible.part.rows_of(ids)
            counts: Counter[str] = Counter()
            for (_, text), row in zip(dead, rows, strict=True):
                if row >= 0:
                    counts.update(set(terms(text)))
            self._parts[at] = visible.without(rows[rows >= 0], counts)

    def _new_delta(self) -> Delta:
        return Delta(self._tuning.delta_passages_max, self._settings.dimensions)

    # -- exchange of parts

    def put(self, view: DeltaView, segment: Segment) -> bool:
        """A segment in the place of its delta; False if a generation has taken that place meanwhile."""
        for at, visible in enumerate(self._parts):
            if visible.part is view:
                self._parts[at] = replace(visible, part=segment, by_tier={"hot": visible.live})
                return True
        return False

    def arrange(self, generation: Generation | None, tail: Tail, dead: Sequence[range]) -> Arrangement:
        """A generation, the passages read back behind it, and the present parts that are newer than both.

        `dead` are the passages removed since the generation's seq. Nothing changes until it is installed.
        """
        last = generation.manifest.last_passage if generation else 0
        newer = [visible for visible in self._parts if holds_after(visible.part, last)]
        loaded: list[Part] = [*([generation] if generation else []), *tail.parts]
        parts = [*(hide_ranges(Visible.whole(part), dead) for part in loaded), *newer]
        return Arrangement(generation, parts, tail.filters.joined(self._recent_filters, above=last))

    def install(self, arrangement: Arrangement) -> None:
        self._parts = arrangement.parts
        self._recent_filters = arrangement.filters
        self.generation = arrangement.generation

    def read_back(self, entries: Iterable[Entry]) -> Tail:
        """Parts of these passages, ascending, as if they had just been written. Any thread may call this."""
        tail = Tail([], FilterIndex())
        delta = self._new_delta()
        for entry in entries:
            if delta.full:
                tail.parts.append(delta.view())
                delta = self._new_delta()
            delta.append(entry.passage, entry.vector, entry.text)
            tail.filters.add(range(entry.passage, entry.passage + 1), entry.metadata)
        if delta.size:
            tail.parts.append(delta.view())
        return tail

    def full_deltas(self) -> list[DeltaView]:
        """Closed deltas that nobody has sealed yet."""
        views = [visible.part for visible in self._parts if isinstance(visible.part, DeltaView)]
        return [
            view
            for view in views
            if view.size >= self._tuning.delta_passages_max and not self._delta.owns(view)
        ]


def hide_ranges(visible: Visible, ranges: Sequence[range]) -> Visible:
    """Hide removed passages in a part that was just loaded, with their terms counted from its own postings."""
    if not ranges:
        return visible
    rows = visible.part.rows_of(np.concatenate([np.arange(one.start, one.stop) for one in ranges]))
    rows = np.unique(rows[rows >= 0])
    return visible.without(rows, Counter(visible.part.lexical.frequencies_of(rows)))


def holds_after(part: Part, last_passage: int) -> bool:
    """Whether a part in memory holds passages after this one. No part lies on both sides: builds begin a new delta."""
    if isinstance(part, Generation):
        return False
    first, last = part.ids_of(np.array([0, part.size - 1]))
    if first <= last_passage < last:
        raise Conflict("the generation ends inside a part; rebuild from the present state")
    return bool(first > last_passage)


def segment_passages(snapshot: Snapshot) -> tuple[int, int]:
    """Number of segments of a snapshot, and of live passages in them."""
    segments = [visible for visible in snapshot.parts if isinstance(visible.part, Segment)]
    return len(segments), sum(visible.live for visible in segments)
