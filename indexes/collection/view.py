"""What a search reads of a collection, in the process that writes it (`Collection`) or in another one (`Replica`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

import numpy as np

from indexes.base.errors import Damaged, NotFound
from indexes.base.model import Floats, Ids, IndexOptions, StoredDocument, StoredPassage
from indexes.base.work import OnStep, do_nothing
from indexes.dense.exact import nearest
from indexes.filters.grammar import Filter
from indexes.log.reader import LogReader
from indexes.parts.assembly import Assembly
from indexes.parts.generation import Generation
from indexes.parts.learned import (
    ALIASES,
    RANKING,
    SYNONYMS,
    VECTOR_STORE,
    AliasSettings,
    RankingSettings,
    SettingsFile,
    SynonymSettings,
    VectorStoreSettings,
)
from indexes.parts.part import Part
from indexes.parts.segment import Segment
from indexes.parts.segment_shelf import SegmentShelf
from indexes.parts.shelf import Shelf
from indexes.parts.snapshot import Snapshot
from indexes.rebuild.chosen import read_chosen

logger = logging.getLogger(__name__)

NONE_KNOWN: Mapping[range, Segment] = {}


class HitCounter(Protocol):
    """Counts passages that searches return."""

    def count(self, passages: Iterable[int]) -> None: ...


class CollectionView:
    """An open log and the snapshot that searches read. Reading is safe from any thread."""

    log: LogReader
    documents: int
    hits: HitCounter
    _snapshot: Snapshot

    def __init__(self, folder: Path, options: IndexOptions, log: LogReader) -> None:
        self.options, self.folder, self.name = options, folder, folder.name  # its own name, not an alias
        self.log = log
        self.settings, self.uid = log.settings, log.uid
        self.shelf = Shelf(folder)
        self.segments = SegmentShelf(folder, log.uid, log.settings, options.resident)
        self.chosen = read_chosen(folder)
        self.ranking = SettingsFile(folder / RANKING, RankingSettings)
        self.synonyms = SettingsFile(folder / SYNONYMS, SynonymSettings)
        self.aliases = SettingsFile(folder / ALIASES, AliasSettings)
        self.vector_store = SettingsFile(folder / VECTOR_STORE, VectorStoreSettings)
        self._assembly = Assembly(log.settings, options)

    @property
    def snapshot(self) -> Snapshot:
        """The latest snapshot without what has expired; a new search reads this one."""
        return self._snapshot.unexpired(self.options.now_ms)

    def _release(self) -> None:
        """Drop the indexes now: they may be in a reference cycle that was frozen (`gc.freeze`) when serving began."""
        self._assembly.clear()
        if hasattr(self, "_snapshot"):  # not if opening it has failed
            self._snapshot = replace(self._snapshot, parts=(), skipper=None, bounds=None)

    @property
    def generation(self) -> int:
        """The number of the live generation; 0 if there is none."""
        return self._snapshot.generation

    def moved_since(self, snapshot: Snapshot) -> bool:
        """Whether a log read may reflect a later commit than the snapshot does."""
        return self.log.position().seq != snapshot.seq

    def _load_segments(
        self, generation: Generation | None, upto: int, known: Mapping[range, Segment] = NONE_KNOWN
    ) -> list[Segment]:
        """Map the segments on disk that begin after a generation, up to a passage, in order; those in `known` are
        loaded. A damaged one is left out, and all if the log cannot tell what died since the generation."""
        after, seq = end_of(generation)
        on_disk = self.segments.between(after, upto)
        if on_disk and seq < self.log.forgotten():
            return []
        found = []
        for covers in on_disk:
            try:
                found.append(known.get(covers) or self.segments.load(covers))
            except (Damaged, NotFound, OSError) as error:
                # In another process the writer may just have removed it.
                path = self.segments.path(covers)
                level = logging.WARNING if path.is_dir() else logging.DEBUG
                logger.log(level, "segment %s of %s is read from the log: %s", path.name, self.name, error)
        return found

    def _read_after(
        self, generation: Generation | None, segments: Sequence[Segment], upto: int
    ) -> tuple[list[Part], list[range]]:
        """The segments after a generation, and deltas read back from the log of what is in none, in order; and the
        passages that died since the generation."""
        gaps = gaps_of(generation, segments, upto)
        parts: list[Part] = []
        for gap, segment in zip_longest(gaps, segments):
            parts += self._assembly.read_back(self.log.entries(*gap))
            parts += [] if segment is None else [segment]
        if generation is not None:
            return parts, self._dead_since(generation)
        return parts, self.log.dead_since(0) if segments else []

    def _dead_since(self, generation: Generation) -> list[range]:
        """The passages that died since a generation was begun. If the log was restored and does not know all operations
        since then, those of the generation are the ones that the log does not hold."""
        seq, end = generation.manifest.seq, generation.manifest.last_passage
        dead = self.log.dead_since(seq)
        if seq < self.log.forgotten():
            dead += ranges_of(np.setdiff1d(generation.ids(), self.log.passage_ids(end), assume_unique=True))
        return dead

    def passages(self, ids: Sequence[int]) -> dict[int, StoredPassage]:
        """The passages among these that are live in the log. Deleted ones are absent even if an index returned them."""
        return self.log.passages(ids)

    def document(self, document_id: str) -> StoredDocument:
        found = self.log.document(document_id)
        if found is None:
            raise NotFound(f"no document {document_id!r}", param="id")
        return found

    def exact(
        self, queries: Floats, k: int, condition: Filter | None = None, on_step: OnStep = do_nothing
    ) -> list[tuple[Ids, Floats]]:
        """Exact search over the log's float32 vectors: the `k` best ids and scores for each query [n, dimensions].

        Scans every live vector once for all queries: for evaluation, not serving. `on_step` is called between blocks.
        """
        allowed = self.snapshot.allowed(condition)
        return nearest(self.log.vectors(0, self.log.position().last_passage), queries, k, allowed, on_step)


def ranges_of(ids: Ids) -> list[range]:
    """Ascending ids as ranges without gaps."""
    cuts = np.flatnonzero(np.diff(ids) > 1) + 1
    return [range(int(some[0]), int(some[-1]) + 1) for some in np.split(ids, cuts) if len(some)]


def end_of(generation: Generation | None) -> tuple[int, int]:
    """The last passage and the last operation of a generation, 0 if there is none."""
    return (generation.manifest.last_passage, generation.manifest.seq) if generation else (0, 0)


def covered_by(generation: Generation | None, segments: Sequence[Segment]) -> int:
    """The last passage in a generation and the segments after it; 0 if there are none."""
    return segments[-1].covers.stop - 1 if segments else end_of(generation)[0]


def gaps_of(generation: Generation | None, segments: Sequence[Segment], upto: int) -> list[tuple[int, int]]:
    """What is in neither a generation nor segments, as passages (after, up to): before each segment, and after all."""
    ends = [end_of(generation)[0], *(one.covers.stop - 1 for one in segments)]
    starts = [*(one.covers.start - 1 for one in segments), max(upto, ends[-1])]
    return list(zip(ends, starts, strict=True))
