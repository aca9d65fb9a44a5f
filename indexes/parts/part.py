"""The protocol that delta, segment and generation implement, and the search code they share.

A part holds passages in rows 0 to size-1. `allowed` is always a packed mask over rows (`masks`) of the live passages
that match the filter, or None for all rows.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.base.masks import Bits, bits_at, count_bits, rows_in
from indexes.base.model import Floats, Ids, Ranking, Rows, Tier
from indexes.dense.cold import RANKS
from indexes.dense.hot import HotGraph
from indexes.dense.vectors import NOTHING, Found, StoredVectors, among, within
from indexes.filters.filter_part import FilterPart
from indexes.lexical.bm25 import LexicalPart

WIDENING_MAX = 4096  # a wider search costs more than scanning the allowed rows


class Part(Protocol):
    """A set of passages that is searched as one unit."""

    @property
    def size(self) -> int: ...
    @property
    def newest(self) -> int:
        """No passage of the part has a larger id; 0 if there is none."""
        ...

    @property
    def vectors(self) -> StoredVectors: ...
    @property
    def lexical(self) -> LexicalPart: ...
    @property
    def filters(self) -> FilterPart: ...
    @property
    def bytes(self) -> int:
        """Memory held by the part, excluding what is counted elsewhere: files, and a delta's postings."""
        ...

    def tier_bytes(self) -> dict[Tier, int]:
        """Memory of the dense indexes, by tier."""
        ...

    def ids_of(self, rows: Rows) -> Ids: ...
    def rows_of(self, ids: Ids) -> Rows:
        """Row of each id, -1 if the part does not hold it."""
        ...

    def rows_after(self, passage_id: int) -> Rows:
        """The rows with larger ids, in the order of their ids, in time proportional to their number."""
        ...

    def tiers_of(self, rows: Rows) -> NDArray[np.int8]: ...
    def tier_rows(self) -> dict[Tier, range]:
        """The rows of each tier the part holds."""
        ...

    def nearest(
        self, query: Floats, depth: int, allowed: Bits | None, scan_max: int, ranks: int = RANKS
    ) -> Found:
        """Up to `depth` allowed rows, best first; fewer only if fewer are allowed. Scores are exact to float16.

        The first `ranks` are found with the recall that the settings were chosen for, later ones with less. With at
        most `scan_max` allowed rows, a part may scan them exactly if that is cheaper.
        """
        ...

    def nearest_warm(
        self, query: Floats, depth: int, allowed: Bits | None, scan_max: int, ranks: int = RANKS
    ) -> Found:
        """`nearest` over all rows except the cold ones."""
        ...


def scan(part: Part, query: Floats, depth: int, allowed: Bits | None) -> Found:
    """Exact search over the allowed rows of any part."""
    if allowed is not None:
        part.vectors.request(rows_in(allowed, part.size))
    selector = within(range(part.size)) if allowed is None else among(allowed)
    return part.vectors.nearest(query, depth, selector)


def search_graph(graph: HotGraph, query: Floats, depth: int, allowed: Bits | None) -> Found | None:
    """The nearest allowed rows of a graph, or None if scanning the allowed rows is cheaper.

    hnswlib's filter calls back into Python for each row, so results are filtered afterwards and the search is widened
    in proportion to the excluded share until it finds enough allowed rows.
    """
    size = graph.size
    count = size if allowed is None else count_bits(allowed)
    wanted = min(depth, count)
    if wanted == 0:
        return NOTHING
    width = widen(depth, count, size)
    while width <= WIDENING_MAX or width < 2 * depth:
        found = graph.search(query, width)
        if found is None:
            return None
        rows, scores = found
        kept = slice(None) if allowed is None else bits_at(allowed, rows)
        if len(rows[kept]) >= wanted:
            return rows[kept][:depth], scores[kept][:depth]
        width *= 3
    return None


def widen(wanted: int, count: int, size: int) -> int:
    """Search depth likely to yield `wanted` allowed rows when `count` of `size` are allowed."""
    return wanted if count == size else int(1.25 * wanted * size / count) + 8


def as_ranking(part: Part, found: Found) -> Ranking:
    rows, scores = found
    return Ranking(part.ids_of(rows), scores.astype(np.float32, copy=False), part.tiers_of(rows))
