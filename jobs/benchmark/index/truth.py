"""What a search should have found, and how much of it one did find."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexes.model import Floats

BLOCK_ROWS = 16_384
TIE = (
    3e-4  # passages whose scores lie closer than this are equally good: float16 storage moves a score as far
)


def best_scores(vectors: Floats, queries: Floats, k: int, allowed: NDArray[np.bool_] | None = None) -> Floats:
    """Inner products of the true `k` nearest rows of each query, best first, by comparing every row.

    Shape [queries, k], or fewer columns where fewer rows are `allowed`.
    """
    best = np.empty((len(queries), 0), np.float32)
    for start in range(0, len(vectors), BLOCK_ROWS):
        block = vectors[start : start + BLOCK_ROWS]
        if allowed is not None:
            block = block[allowed[start : start + BLOCK_ROWS]]
        both = np.hstack([best, queries @ block.T])
        kept = min(k, both.shape[1])
        best = np.partition(both, both.shape[1] - kept, axis=1)[:, -kept:] if kept else both
    ordered: Floats = -np.sort(-best, axis=1)
    return ordered


def recall(
    found: Sequence[Sequence[int] | NDArray[np.int64]], vectors: Floats, queries: Floats, best: Floats
) -> float:
    """Mean share of the true nearest rows that were found: `found` are rows, one sequence a query.

    The rows are scored here, whatever score their index gave them. A row that scores like the last of the true ones
    counts as one of them, and a row that was returned twice counts once.
    """
    if not best.shape[1]:
        return 1.0
    shares = []
    for rows, query, true in zip(found, queries, best, strict=True):
        scores = vectors[np.unique(np.asarray(rows, np.int64))] @ query
        good = int(np.count_nonzero(scores >= true[-1] - TIE))
        shares.append(min(good, len(true)) / len(true))
    return float(np.mean(shares))
