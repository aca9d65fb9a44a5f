"""The parts a snapshot is made of: what each must answer, and the two kinds that live in memory.

A part holds passages in rows 0 to size-1. `Delta` takes new passages and is searched exactly; when it is full it
becomes a `Segment`, a sealed HNSW graph with a sealed lexical index. (The third kind is the `Generation`, on disk.)

`allowed` is everywhere a packed bitmap over rows (uint8, little-endian bits), or None for all rows: the
passages that live and that the filter lets through.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.hot import HotGraph
from indexes.lexical import GrowingLexical, LexicalPart, SealedLexical
from indexes.model import TIERS, Floats, Ids, Ranking, Rows, Tier

Bits = NDArray[np.uint8]

SEGMENT_EF = 128
WIDENING_MAX = 4096  # a graph search wider than this costs more than scanning the allowed rows


class Part(Protocol):
    """Passages that are searched together."""

    @property
    def size(self) -> int: ...
    @property
    def lexical(self) -> LexicalPart: ...
    @property
    def bytes(self) -> int:
        """Memory held by the part, mapped files left out."""
        ...

    def ids_of(self, rows: Rows) -> Ids: ...
    def rows_of(self, ids: Ids) -> Rows:
        """Row of each id, -1 where the part does not hold it."""
        ...

    def tiers_of(self, rows: Rows) -> NDArray[np.int8]: ...
    def tier_rows(self) -> dict[Tier, range]:
        """The rows of each tier the part holds."""
        ...

    def scores(self, rows: Rows, query: Floats) -> Floats:
        """Exact inner products of these rows."""
        ...

    def nearest(self, query: Floats, depth: int, allowed: Bits | None) -> tuple[Rows, Floats]:
        """Up to `depth` allowed rows with exact scores, best first; fewer only if fewer are allowed."""
        ...


class Delta:
    """The newest passages. One thread appends; `view` freezes what has been appended so far."""

    def __init__(self, capacity: int, dimensions: int) -> None:
        self.capacity = capacity
        self._vectors = np.empty((capacity, dimensions), np.float32)
        self._ids = np.empty(capacity, np.int64)
        self._lexical = GrowingLexical()
        self.size = 0

    @property
    def full(self) -> bool:
        return self.size >= self.capacity

    def append(self, passage: int, vector: Floats, text: str) -> None:
        """Add one passage; ids must ascend. Views taken before do not change."""
        self._ids[self.size] = passage
        self._vectors[self.size] = vector
        self._lexical.add(text)
        self.size += 1

    def view(self) -> DeltaView:
        return DeltaView(self._ids[: self.size], self._vectors[: self.size], self._lexical)

    def owns(self, view: DeltaView) -> bool:
        """Whether a view was taken of this delta."""
        return view.growing is self._lexical


class DeltaView:
    """The first rows of a delta, frozen. Searched exactly: at a few thousand rows that takes under a millisecond."""

    def __init__(self, ids: Ids, vectors: Floats, lexical: GrowingLexical) -> None:
        self.ids = ids
        self.vectors = vectors
        self.size = len(ids)
        self.growing = lexical
        self.lexical = lexical.view(self.size)

    @property
    def bytes(self) -> int:
        return int(self.vectors.nbytes + self.ids.nbytes)

    def ids_of(self, rows: Rows) -> Ids:
        return self.ids[rows]

    def rows_of(self, ids: Ids) -> Rows:
        return find_sorted(self.ids, ids)

    def tiers_of(self, rows: Rows) -> NDArray[np.int8]:
        return np.full(len(rows), TIERS.index("delta"), np.int8)

    def tier_rows(self) -> dict[Tier, range]:
        return {"delta": range(self.size)}

    def scores(self, rows: Rows, query: Floats) -> Floats:
        return self.vectors[rows] @ query

    def nearest(self, query: Floats, depth: int, allowed: Bits | None) -> tuple[Rows, Floats]:
        rows = np.arange(self.size) if allowed is None else rows_in(allowed, self.size)
        scores = self.vectors @ query if allowed is None else self.vectors[rows] @ query
        return top(rows, scores, depth)


class Segment:
    """A sealed delta: an HNSW graph, its vectors again in float16 for exact scores, a sealed lexical index."""

    def __init__(
        self, ids: Ids, vectors: NDArray[np.float16], graph: HotGraph, lexical: SealedLexical
    ) -> None:
        self.ids = ids
        self._vectors = vectors
        self._graph = graph
        self.lexical = lexical
        self.size = len(ids)

    @staticmethod
    def seal(view: DeltaView, *, threads: int) -> Segment:
        """Build the graph of a full delta. Takes seconds: call it away from searches and from the writer."""
        rows = np.arange(view.size)
        graph = HotGraph.build(
            [(rows, view.vectors)], view.size, view.vectors.shape[1], ef=SEGMENT_EF, threads=threads
        )
        return Segment(view.ids.copy(), view.vectors.astype(np.float16), graph, view.growing.seal(view.size))

    @property
    def bytes(self) -> int:
        return int(self._vectors.nbytes + self.ids.nbytes) + self._graph.bytes + self.lexical.bytes

    def ids_of(self, rows: Rows) -> Ids:
        return self.ids[rows]

    def rows_of(self, ids: Ids) -> Rows:
        return find_sorted(self.ids, ids)

    def tiers_of(self, rows: Rows) -> NDArray[np.int8]:
        return np.full(len(rows), TIERS.index("hot"), np.int8)

    def tier_rows(self) -> dict[Tier, range]:
        return {"hot": range(self.size)}

    def scores(self, rows: Rows, query: Floats) -> Floats:
        return self._vectors[rows].astype(np.float32) @ query

    def nearest(self, query: Floats, depth: int, allowed: Bits | None) -> tuple[Rows, Floats]:
        found = search_graph(self._graph, self.size, query, depth, allowed)
        return found if found is not None else scan(self, query, depth, allowed)


def search_graph(
    graph: HotGraph, size: int, query: Floats, depth: int, allowed: Bits | None
) -> tuple[Rows, Floats] | None:
    """The nearest allowed rows of a graph over `size` rows, or None where scanning the allowed ones is better.

    hnswlib cannot leave rows out while it walks (its filter calls back into Python), so the walk is widened by
    the share that is left out, until enough allowed rows are found.
    """
    count = size if allowed is None else count_bits(allowed, size)
    wanted = min(depth, count)
    if wanted == 0:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    width = depth if count == size else int(1.25 * depth * size / count) + 8
    while width <= WIDENING_MAX or width < 2 * depth:
        found = graph.search(query, width)
        if found is None:
            return None
        rows, scores = found
        kept = slice(None) if allowed is None else bits_at(allowed, rows)
        if len(rows[kept]) >= min(wanted, graph.size):
            return rows[kept][:depth], scores[kept][:depth]
        width *= 3
    return None


def scan(part: Part, query: Floats, depth: int, allowed: Bits | None) -> tuple[Rows, Floats]:
    """Exact search over the allowed rows of any part."""
    rows = np.arange(part.size) if allowed is None else rows_in(allowed, part.size)
    return top(rows, part.scores(rows, query), depth)


def top(rows: Rows, scores: Floats, depth: int) -> tuple[Rows, Floats]:
    """The best `depth` of these rows, best first, equal scores in row order."""
    if len(rows) > depth:
        threshold = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        kept = np.flatnonzero(scores >= threshold)
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:depth]
    return rows[order], scores[order]


def as_ranking(part: Part, rows: Rows, scores: Floats) -> Ranking:
    return Ranking(part.ids_of(rows), scores.astype(np.float32, copy=False), part.tiers_of(rows))


def find_sorted(haystack: Ids, ids: Ids) -> Rows:
    """Position of each id in an ascending array, -1 where absent."""
    if not len(haystack):
        return np.full(len(ids), -1, np.int64)
    at = np.minimum(np.searchsorted(haystack, ids), len(haystack) - 1)
    return np.where(haystack[at] == ids, at, -1).astype(np.int64)


def pack_rows(rows: Rows, size: int) -> Bits:
    """A bitmap over `size` rows with these set."""
    flags = np.zeros(size, bool)
    flags[rows] = True
    return np.packbits(flags, bitorder="little")


def rows_in(bits: Bits, size: int) -> Rows:
    return np.flatnonzero(np.unpackbits(bits, count=size, bitorder="little"))


def bits_at(bits: Bits, rows: Rows) -> NDArray[np.bool_]:
    set_: NDArray[np.bool_] = ((bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1).astype(np.bool_)
    return set_


def count_bits(bits: Bits, size: int) -> int:
    """Rows set. Bits past `size` are never set (`pack_rows`), so whole bytes can be counted."""
    return int(np.bitwise_count(bits[: (size + 7) // 8]).sum())
