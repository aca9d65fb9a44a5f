"""Array helpers shared by several indexes: lookups in sorted arrays, offsets, top-k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Floats, Ids, Rows


def ends_of(sizes: NDArray[np.integer] | NDArray[np.bool_]) -> NDArray[np.int64]:
    """Offsets (exclusive prefix sums) of concatenated items, followed by their total: int64 [len(sizes) + 1]."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The concatenated ranges of consecutive numbers with these starts and sizes."""
    ends = ends_of(sizes)
    return np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])


def changes(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Whether each value differs from the previous one; True for the first."""
    differs = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return differs


def find_sorted(haystack: Ids, ids: Ids) -> Rows:
    """Position of each id in an ascending array, -1 if absent."""
    if not len(haystack):
        return np.full(len(ids), -1, np.int64)
    at = np.minimum(np.searchsorted(haystack, ids), len(haystack) - 1)
    return np.where(haystack[at] == ids, at, -1).astype(np.int64)


def top(
    rows: Rows, scores: Floats, depth: int, ids_of: Callable[[Rows], Ids] | None = None
) -> tuple[Rows, Floats]:
    """The best `depth` of these rows, best first. Ties are in the order of their ids, in row order without `ids_of`."""
    if len(rows) > depth > 0:
        threshold = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        above, tied = np.flatnonzero(scores > threshold), np.flatnonzero(scores == threshold)
        lacking = depth - len(above)
        if len(tied) > lacking:
            order = rows[tied] if ids_of is None else ids_of(rows[tied])
            tied = tied[np.argpartition(order, lacking - 1)[:lacking]]
        kept = np.concatenate([above, tied])
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows if ids_of is None else ids_of(rows), -scores))[:depth]
    return rows[order], scores[order]
