"""Joining rankings: pure functions of ids and scores, larger is better, nothing about requests.

Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009) sums `1 / (k + rank)` over the rankings and needs no
comparable scores. Weighted fusion sums `weight * score / largest score` of each ranking; it uses more of what the
searchers know and wants every candidate scored by both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from indexes.model import Floats, Ids


def reciprocal_rank(rankings: Sequence[Ids], k: int) -> tuple[Ids, NDArray[np.float64]]:
    """Every id of these rankings (best first, each id once) with its fused score, best first, ties by id."""
    ids, places = union(rankings)
    scores = np.zeros(len(ids))
    for at in places:
        scores[at] += 1 / (k + 1 + np.arange(len(at)))
    return by_score(ids, scores)


def weighted(
    ids: Ids, scores: Mapping[str, Floats], weights: Mapping[str, float]
) -> tuple[Ids, NDArray[np.float64]]:
    """These ids, best first by the weighted sum of scaled scores; a NaN score counts as 0."""
    total = np.zeros(len(ids))
    for name, values in scores.items():
        known = np.nan_to_num(values.astype(np.float64), nan=0.0)
        largest = known.max(initial=0.0)
        if largest > 0:
            total += weights[name] * known / largest
    return by_score(ids, total)


def union(rankings: Sequence[Ids]) -> tuple[Ids, list[NDArray[np.intp]]]:
    """Every id once, ascending, and the positions of each ranking's ids among them."""
    ids = np.unique(np.concatenate(rankings)) if rankings else np.empty(0, np.int64)
    return ids, [np.searchsorted(ids, ranking) for ranking in rankings]


def by_score(ids: Ids, scores: NDArray[np.float64]) -> tuple[Ids, NDArray[np.float64]]:
    order = np.lexsort((ids, -scores))
    return ids[order], scores[order]
