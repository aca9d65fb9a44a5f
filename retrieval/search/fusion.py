"""Joining rankings: pure functions of columns with one row per candidate. Larger scores are better.

Weighted fusion adds both scores, each on a scale that does not depend on the other candidates: the cosine from what
unrelated texts reach to 1, and BM25 as a share of the most that the query's words could score. Reciprocal rank fusion
(Cormack, Clarke and Buettcher 2009) sums `1 / (k + rank)` and uses no scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Floats, Ids

Scores = NDArray[np.float64]
Places = NDArray[np.int32]  # in a ranking, from 0; negative if it does not hold the candidate

DEEPER = 4  # factor from one round's depth to the next, if a search needs more candidates


def reciprocal_rank(rankings: Sequence[Places], k: int) -> Scores:
    """Fuse rankings by each candidate's places in them."""
    fused: Scores = np.zeros(len(rankings[0]))
    for places in rankings:
        fused += np.where(places >= 0, 1 / (k + 1 + np.abs(places)), 0.0)
    return fused


def fuse_weighted(dense: Floats, lexical: Floats, *, weight: float, floor: float, bound: float) -> Scores:
    """Add `weight` of the scaled cosine and the rest of the scaled BM25 score; NaN counts as 0.

    `floor` is a cosine that few unrelated texts reach, `bound` the BM25 score of a passage with everything that was
    asked for.
    """
    by_meaning = zero_nans((dense.astype(np.float64) - floor) / (1 - floor))
    by_words = zero_nans(lexical.astype(np.float64)) / (bound or 1.0)
    fused: Scores = weight * by_meaning + (1 - weight) * by_words
    return fused


def zero_nans(scores: Scores) -> Scores:
    """Replace NaN by 0 in place."""
    scores[np.isnan(scores)] = 0.0
    return scores


def order_by_score(ids: Ids, scores: Scores, levels: NDArray[np.int64] | None = None) -> NDArray[np.intp]:
    """Return positions by descending score, ties by id. With `levels`, all of one level come before those of the
    next."""
    return np.lexsort((ids, -scores) if levels is None else (ids, -scores, levels))


def levels_of(rankings: Sequence[Places], depth: int) -> NDArray[np.int64]:
    """Return how often rankings of this depth must be deepened (times DEEPER) until they hold each candidate.

    An order by level first is the same, as far as it goes, however deep the rankings are.
    """
    least = np.min([np.where(places >= 0, places, np.iinfo(np.int32).max) for places in rankings], axis=0)
    bounds = [depth]
    while len(least) and bounds[-1] <= least.max() and bounds[-1] < np.iinfo(np.int32).max:
        bounds.append(bounds[-1] * DEEPER)
    levels: NDArray[np.int64] = np.searchsorted(bounds, least, side="right")
    return levels


def clip_to_levels(levels: NDArray[np.int64], rankings: Sequence[Places], depth: int) -> list[Places]:
    """Return the places without those beyond the depth of a candidate's level."""
    bounds = depth * DEEPER**levels
    return [np.where(places < bounds, places, -1).astype(np.int32) for places in rankings]
