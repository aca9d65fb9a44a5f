"""Segments of the hot tier: sealed deltas, and several of them merged into one. Immutable, in memory.

A segment holds an HNSW graph, its vectors again in float16 (for filters and exact scores), and sealed lexical and
filter indexes. Sealing and merging take seconds: call them away from searches and from the writer. Between two steps
they call `go_on`, which may raise to end them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from indexes.arrays import find_sorted
from indexes.dense.hot import HotGraph
from indexes.dense.vectors import StoredVectors
from indexes.filters.columns import SealedFilters
from indexes.lexical.building import merge_sealed
from indexes.lexical.postings import SealedLexical
from indexes.masks import Bits, count_bits
from indexes.model import TIERS, Floats, Ids, Rows, Tier
from indexes.parts.delta import DeltaView
from indexes.parts.part import NOTHING, Found, scan, search_graph
from indexes.parts.snapshot import Visible

SEGMENT_EF = 64  # a small graph finds its nearest with half the width that a large one needs
SEGMENT_EF_CONSTRUCTION = 100  # half of a generation's: a segment lives for minutes and is small
BLOCK_ROWS = 512  # added to a graph at once: between two blocks other threads get their turn

GoOn = Callable[[], None]


def always() -> None:
    """Nobody wants to stop the work."""


class Segment:
    """A sealed part in memory. Safe from any thread."""

    def __init__(
        self,
        ids: Ids,
        vectors: StoredVectors,
        graph: HotGraph,
        lexical: SealedLexical,
        filters: SealedFilters,
    ) -> None:
        self.size = len(ids)
        self.ids = ids
        self.vectors = vectors
        self.graph = graph
        self.lexical = lexical
        self.filters = filters

    @staticmethod
    def seal(view: DeltaView, *, threads: int, go_on: GoOn = always) -> Segment:
        """The passages of a full delta, row by row."""
        vectors = copy_rows([(view.vectors, np.arange(view.size))], view.vectors.halves.shape[1])
        return Segment(
            view.ids.copy(),
            vectors,
            build_graph(vectors, threads, go_on),
            view.growing_lexical.seal(view.size, go_on),
            view.growing_filters.seal(view.size),
        )

    @staticmethod
    def merged(sources: Sequence[Visible], *, threads: int, go_on: GoOn = always) -> Segment:
        """One segment of the rows that live in several, in the order given, which is that of their ids."""
        segments = [visible.part for visible in sources if isinstance(visible.part, Segment)]
        kept = [visible.alive_flags() for visible in sources]
        pairs = list(zip(segments, kept, strict=True))
        vectors = copy_rows(
            [(segment.vectors, np.flatnonzero(flags)) for segment, flags in pairs],
            segments[0].vectors.halves.shape[1],
        )
        return Segment(
            np.concatenate([segment.ids[flags] for segment, flags in pairs]),
            vectors,
            build_graph(vectors, threads, go_on),
            merge_sealed([(segment.lexical, flags) for segment, flags in pairs]),
            SealedFilters.merged([(segment.filters, flags) for segment, flags in pairs]),
        )

    @property
    def bytes(self) -> int:
        held = self.vectors.bytes + self.ids.nbytes + self.graph.bytes
        return int(held + self.lexical.bytes + self.filters.bytes)

    def tier_bytes(self) -> dict[Tier, int]:
        return {"hot": self.vectors.bytes + self.graph.bytes}

    def ids_of(self, rows: Rows) -> Ids:
        return self.ids[rows]

    def rows_of(self, ids: Ids) -> Rows:
        return find_sorted(self.ids, ids)

    def tiers_of(self, rows: Rows) -> NDArray[np.int8]:
        return np.full(len(rows), TIERS.index("hot"), np.int8)

    def tier_rows(self) -> dict[Tier, range]:
        return {"hot": range(self.size)}

    def nearest(self, query: Floats, depth: int, allowed: Bits | None, scan_max: int) -> Found:
        if allowed is not None and count_bits(allowed) <= min(scan_max, self.size // 2):
            return scan(self, query, depth, allowed)
        found = search_graph(self.graph, query, depth, allowed)
        return found if found is not None else scan(self, query, depth, allowed)

    def nearest_warm(self, query: Floats, depth: int, allowed: Bits | None, scan_max: int) -> Found:
        return self.nearest(query, depth, allowed, scan_max)

    def nearest_cold(self, query: Floats, depth: int, allowed: Bits | None, scan_max: int) -> Found:
        return NOTHING


def copy_rows(sources: Sequence[tuple[StoredVectors, Rows]], dimensions: int) -> StoredVectors:
    """Chosen rows of several stores, end to end, in a store of their own."""
    copied = StoredVectors.allocate(sum(len(rows) for _, rows in sources), dimensions)
    at = 0
    for source, rows in sources:
        copied.halves[at : at + len(rows)] = source.halves[rows]
        at += len(rows)
    return copied


def build_graph(vectors: StoredVectors, threads: int, go_on: GoOn) -> HotGraph:
    def blocks() -> Iterator[tuple[Rows, Floats]]:
        for start in range(0, vectors.rows, BLOCK_ROWS):
            go_on()
            rows = np.arange(start, min(start + BLOCK_ROWS, vectors.rows))
            yield rows, vectors.take(rows)

    return HotGraph.build(
        blocks(),
        vectors.rows,
        vectors.halves.shape[1],
        ef=SEGMENT_EF,
        ef_construction=SEGMENT_EF_CONSTRUCTION,
        threads=threads,
    )
