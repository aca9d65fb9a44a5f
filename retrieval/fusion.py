"""Joining rankings: pure functions of columns, one row a candidate; larger scores are better.

Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009) sums `1 / (k + rank)` over the rankings and needs no
comparable scores. Weighted fusion sums `weight * score / largest score` of each ranking; it uses more of what the
searchers know and needs every candidate scored by both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexes import Floats, Ids

Scores = NDArray[np.float64]


def reciprocal_rank(rankings: Sequence[NDArray[np.int32]], k: int) -> Scores:
    """From each candidate's place in each ranking: from 0, below 0 where it is not in that ranking."""
    fused: Scores = np.zeros(len(rankings[0]))
    for places in rankings:
        fused += np.where(places >= 0, 1 / (k + 1 + np.abs(places)), 0.0)
    return fused


def weighted(scores: Sequence[Floats], weights: Sequence[float]) -> Scores:
    """From each searcher's scores of all candidates; NaN counts as 0."""
    fused: Scores = np.zeros(len(scores[0]))
    for one, weight in zip(scores, weights, strict=True):
        fused += weight * _scaled(one)
    return fused


def _scaled(scores: Floats) -> Scores:
    known = np.nan_to_num(scores.astype(np.float64), nan=0.0)
    largest = known.max(initial=0.0)
    return known / largest if largest > 0 else np.zeros(len(known))


def best_first(ids: Ids, scores: Scores) -> NDArray[np.intp]:
    """Positions by descending score, ties by id."""
    return np.lexsort((ids, -scores))
