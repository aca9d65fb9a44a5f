"""The writer's mutable set of parts: growth, deletions, and swapping one part for another.

Single-threaded. Copy-on-write: every step replaces values instead of changing them, so published snapshots never
change; `snapshot` freezes the current values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from indexes.base.errors import Conflict
from indexes.base.expiry import with_expiry
from indexes.base.masks import bits_at, rows_in
from indexes.base.model import IndexOptions, Rows, Settings, Terms
from indexes.base.residency import Files
from indexes.base.work import OnStep, do_nothing
from indexes.lexical.analysis import index_terms
from indexes.lexical.names import name_keys
from indexes.lexical.postings import LONG_CHARS, analyze
from indexes.log.applying import Applied
from indexes.log.reader import PassageEntry
from indexes.parts.delta import Delta, DeltaView
from indexes.parts.generation import Generation
from indexes.parts.part import Part
from indexes.parts.segment import Segment
from indexes.parts.snapshot import Snapshot
from indexes.parts.visible import Visible

READ_TOLD = 256  # passages between reports
STEP_PASSAGES, STEP_CHARS = 32, 8192  # some 5 ms; of a script without spaces, up to ten times as long

MERGE_AT = 3  # adjacent segments
MERGED_DELTAS_MAX = 16  # per merged segment: larger ones are slow to merge and to scan


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The next contents of an assembly, for `install`."""

    generation: Generation | None
    parts: list[Visible]


class Assembly:
    """Generation, segments and deltas, in this order; the last delta receives new passages.

    `on_full` is called with each full delta, to be sealed and replaced by a segment with `put`.
    """

    def __init__(self, settings: Settings, options: IndexOptions) -> None:
        self._settings = settings
        self._options = options
        self.on_full: Callable[[DeltaView], None] = lambda view: None
        self._parts: list[Visible] = []
        self._delta = self._new_delta()
        self.generation: Generation | None = None
        self.build_ends = 0  # last passage of the newest build: no segment may span it

    def snapshot(self, seq: int, content: bytes) -> Snapshot:
        return Snapshot(
            seq=seq,
            content=content,
            generation=self.generation.number if self.generation else 0,
            parts=tuple(self._parts),
            bm25=self._settings.bm25,
            exact_scan_max=self._options.exact_scan_passages_max,
            skipper=self.generation.skipper if self.generation else None,
            bounds=self.generation.bounds if self.generation else None,
        )

    # -- growth and removal

    def apply(self, applied: Sequence[Applied]) -> None:
        """Apply committed operations: add new passages, then hide the replaced or removed ones."""
        for one in applied:
            if one.upsert is not None:
                self._add(one)
        self._show_growth()
        self._hide(applied)

    def follow(
        self, entries: Iterable[PassageEntry], dead: Sequence[range], on_step: OnStep = do_nothing
    ) -> None:
        """Apply what another process committed: add these passages, then hide the removed ones. Calls `on_step` every
        few milliseconds."""
        for entry in in_steps(entries, on_step):
            if self._delta.full:
                self.rotate()
            append_entry(self._delta, entry, on_step)
        self._show_growth()
        self._parts = [hide_ranges(visible, dead) for visible in self._parts]

    def rotate(self) -> None:
        """Close the current delta; later passages go to a new one."""
        if not self._delta.size:
            return
        self._show_growth()
        self._delta = self._new_delta()
        view = self._parts[-1].part
        assert isinstance(view, DeltaView)
        self.on_full(view)

    def _add(self, applied: Applied) -> None:
        upsert = applied.upsert
        assert upsert is not None
        metadata = with_expiry(upsert.metadata, upsert.expires_ms)
        passages = range(applied.first_passage, applied.first_passage + len(upsert.passages))
        for at, (number, passage) in enumerate(zip(passages, upsert.passages, strict=True)):
            if self._delta.full:
                self.rotate()
            own = upsert.text[passage.start : passage.end]
            text = self._settings.field_weights.text_of(upsert.title, passage.heading, own)
            same = applied.dead_texts[at : at + 1] == (text,) and applied.dead_language == upsert.language
            terms = (self._terms_of(applied.dead[at], len(text)) if same else None) or passage.terms
            names = name_keys(upsert.id, upsert.title, passage.heading, at)
            self._delta.append(number, passage.vector, text, metadata, upsert.language, terms, names)

    def _terms_of(self, passage: int, chars: int) -> Terms | None:
        """The terms of a passage as its part holds them; None if analyzing a text of so many characters is faster."""
        for part in (self._delta.view(), *(visible.part for visible in self._parts)):
            if (row := int(part.rows_of(np.array([passage]))[0])) >= 0:
                return part.lexical.terms_of(row, chars)
        return None

    def _show_growth(self) -> None:
        """Replace the last part with a fresh view of the delta."""
        if not self._delta.size:
            return
        view = self._delta.view()
        last = self._parts[-1] if self._parts else None
        if last is not None and isinstance(last.part, DeltaView) and last.part.delta is self._delta:
            self._parts[-1] = last.grown(view)
        else:
            self._parts.append(Visible.whole(view))

    def _hide(self, applied: Sequence[Applied]) -> None:
        dead = [
            (passage, text, one.dead_language)
            for one in applied
            for passage, text in zip(one.dead, one.dead_texts, strict=True)
        ]
        if not dead:
            return
        ids = np.array([passage for passage, _, _ in dead], np.int64)
        for at, visible in enumerate(self._parts):
            rows = visible.part.rows_of(ids)
            counts: Counter[str] = Counter()
            for (_, text, language), row in zip(dead, rows.tolist(), strict=True):
                if row >= 0:
                    known = visible.part.lexical.terms_of(row, len(text))
                    counts.update(known.names if known else set(index_terms(text, language)))
            self._parts[at] = visible.without(rows[rows >= 0], counts)

    def _new_delta(self) -> Delta:
        return Delta(self._options.delta_passages_max, self._settings.dimensions)

    # -- exchange of parts

    def put(self, view: DeltaView, segment: Segment) -> bool:
        """Replace a delta by its segment; False if a generation has already replaced the delta."""
        for at, visible in enumerate(self._parts):
            if visible.part is view:
                self._parts[at] = replace(visible, part=segment, by_tier={"hot": visible.live})
                return True
        return False

    def segments(self) -> list[Segment]:
        return [one.part for one in self._parts if isinstance(one.part, Segment)]

    def on_disk(self) -> list[range]:
        """What the segments cover that are mapped from files."""
        return [one.covers for one in self.segments() if one.files]

    def mergeable(self) -> list[Visible]:
        """Adjacent segments that are due to be merged; empty if there are none.

        New segments are merged, a few at a time, into the one before until it is full. This keeps both the number of
        segments and the number of times a passage is copied low.
        """
        groups: list[list[Visible]] = [[]]
        for visible in self._parts:
            if not isinstance(visible.part, Segment):
                groups.append([])
            elif self._fits(groups[-1], visible):
                groups[-1].append(visible)
            else:
                groups.append([visible])
        groups = [group for group in groups if group]
        for group in groups:
            wanted = MERGE_AT if group is groups[-1] else 2  # the others will not grow any more
            if len(group) >= wanted:
                return group
        return []

    def _fits(self, group: Sequence[Visible], visible: Visible) -> bool:
        if not group:
            return True
        size = sum(one.live for one in (*group, visible))
        one_side = (ends_of(group[-1].part)[1] <= self.build_ends) == (
            ends_of(visible.part)[1] <= self.build_ends
        )
        return one_side and size <= MERGED_DELTAS_MAX * self._options.delta_passages_max

    def put_merged(self, sources: Sequence[Visible], segment: Segment) -> bool:
        """Replace several segments by one; False if a generation has already replaced any of them.

        `sources` are the parts as they were when the merge began: later deletions are hidden in the merged segment.
        """
        merged = {id(visible.part) for visible in sources}
        places = [at for at, visible in enumerate(self._parts) if id(visible.part) in merged]
        if len(places) < len(sources):
            return False
        removed = [
            before.part.ids_of(died_since(before, self._parts[at]))
            for before, at in zip(sources, places, strict=True)
        ]
        rows = segment.rows_of(np.concatenate(removed))
        counts = Counter(segment.lexical.frequencies_of(rows))
        place = [Visible.whole(segment).without(rows, counts)] if segment.size else []
        self._parts[places[0] : places[-1] + 1] = place
        return True

    def arrange(
        self, generation: Generation | None, tail: Sequence[Part], dead: Sequence[range], reached: int
    ) -> Arrangement:
        """A generation, the tail read after it up to a passage, and the current parts after that.

        `dead` are the passages removed since the generation's seq. Nothing changes until `install`. Raises Conflict if
        a part begins before that passage and ends after it.
        """
        return Arrangement(generation, [*hide_dead(generation, tail, dead), *self.after(reached)])

    def separate(self, last_passage: int) -> int:
        """The passage after which the parts in memory can follow a generation that ends with this one. It is a later
        one if the generation was built elsewhere and ends inside a part; no segment will span it."""
        if self._delta.size and ends_of(self._delta.view())[0] <= last_passage:
            self.rotate()
        for visible in self._parts:
            if not isinstance(visible.part, Generation):
                first, last = ends_of(visible.part)
                if first <= last_passage < last:
                    self.build_ends = last
                    return last
        return last_passage

    def new_files(self) -> Files:
        """File access for loading a generation that will replace the current one, and segments."""
        replaced = [one.files for one in (self.generation, *self.segments()) if one and one.files]
        return Files(self._options.resident, sum(one.copied for one in replaced))

    def install(self, arrangement: Arrangement) -> None:
        self._parts = arrangement.parts
        self.generation = arrangement.generation

    def reopen(self) -> None:
        """Let the last delta grow again, if it has room: what was read back ends with one."""
        last = self._parts[-1].part if self._parts else None
        self._delta = last.delta if isinstance(last, DeltaView) and not last.delta.full else self._new_delta()

    def after(self, last_passage: int) -> list[Visible]:
        """The parts in memory that hold later passages than this one."""
        return [visible for visible in self._parts if holds_after(visible.part, last_passage)]

    def clear(self) -> None:
        """Drop all parts."""
        self._parts, self.generation = [], None
        self._delta = Delta(0, self._settings.dimensions)

    def read_back(self, entries: Iterable[PassageEntry]) -> list[DeltaView]:
        """Deltas built from these log entries, in ascending order. Safe from any thread."""
        views: list[DeltaView] = []
        delta = self._new_delta()
        for count, entry in enumerate(in_steps(entries, lambda: self._options.read(0)), 1):
            if count % READ_TOLD == 0:
                self._options.read(READ_TOLD)
            if delta.full:
                views.append(delta.view())
                delta = self._new_delta()
            append_entry(delta, entry)
        if delta.size:
            views.append(delta.view())
        return views

    def full_deltas(self) -> list[DeltaView]:
        """Full deltas that are closed but not sealed yet."""
        views = [visible.part for visible in self._parts if isinstance(visible.part, DeltaView)]
        return [view for view in views if view.delta.full and view.delta is not self._delta]


def in_steps(entries: Iterable[PassageEntry], on_step: OnStep) -> Iterator[PassageEntry]:
    """Yield the entries, long ones with their terms, and call `on_step` every few milliseconds."""
    passages = chars = 0
    for entry in entries:
        passages, chars = passages + 1, chars + len(entry.text)
        if passages > STEP_PASSAGES or chars > STEP_CHARS:
            on_step()
            passages, chars = 1, len(entry.text)
        if len(entry.text) >= LONG_CHARS:
            entry = replace(entry, terms=analyze(entry.text, entry.language, on_step))  # noqa: PLW2901
        yield entry


def append_entry(delta: Delta, entry: PassageEntry, on_step: OnStep = do_nothing) -> None:
    names = name_keys(*entry.place)
    delta.append(
        entry.passage, entry.vector, entry.text, entry.metadata, entry.language, entry.terms, names, on_step
    )


def died_since(before: Visible, now: Visible) -> Rows:
    """Rows of one part that were live in `before` and are dead in `now`."""
    if now.alive is None:
        return np.empty(0, np.int64)
    died = ~now.alive if before.alive is None else before.alive & ~now.alive
    return rows_in(died, now.part.size)


def hide_ranges(visible: Visible, ranges: Sequence[range]) -> Visible:
    """Hide removed passages in a part, counting their terms from its own postings."""
    if not ranges:
        return visible
    rows = visible.part.rows_of(np.concatenate([np.arange(one.start, one.stop) for one in ranges]))
    rows = np.unique(rows[rows >= 0])
    if visible.alive is not None:
        rows = rows[bits_at(visible.alive, rows)]
    return visible.without(rows, Counter(visible.part.lexical.frequencies_of(rows)))


def hide_dead(generation: Generation | None, tail: Sequence[Part], dead: Sequence[range]) -> list[Visible]:
    """Return a generation and the tail read after it, without the passages that died since the generation."""
    loaded: list[Part] = [*([generation] if generation else []), *tail]
    return [hide_ranges(Visible.whole(part), dead) for part in loaded]


def holds_after(part: Part, last_passage: int) -> bool:
    """Whether an in-memory part holds passages after this one. No part spans it: a build starts a new delta."""
    if isinstance(part, Generation):
        return False
    first, last = ends_of(part)
    if first <= last_passage < last:
        raise Conflict("the generation ends inside a part; rebuild from the present state")
    return first > last_passage


def ends_of(part: Part) -> tuple[int, int]:
    """The first and the last passage of a delta or a segment."""
    first, last = part.ids_of(np.array([0, part.size - 1])).tolist()
    return first, last


def rebuild_reason(snapshot: Snapshot, options: IndexOptions) -> str | None:
    """Why a rebuild is due under the options' rules, or None."""
    _, in_segments = segment_passages(snapshot)
    # Also wait until segments hold a quarter of all other passages, so rebuild cost stays proportional to growth.
    many = max(options.segments_max * options.delta_passages_max, (snapshot.live - in_segments) // 4)
    if options.segments_max and in_segments >= many:
        return f"{in_segments} passages are in segments"
    total = snapshot.live + snapshot.dead
    if snapshot.dead > max(options.delta_passages_max // 4, options.dead_fraction_max * total):
        return f"{snapshot.dead} of {total} indexed passages are dead"
    return None


def segment_passages(snapshot: Snapshot) -> tuple[int, int]:
    """Number of segments in a snapshot, and of live passages in them."""
    segments = [visible for visible in snapshot.parts if isinstance(visible.part, Segment)]
    return len(segments), sum(visible.live for visible in segments)
