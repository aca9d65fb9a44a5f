"""Hits that differ: maximal marginal relevance (Carbonell and Goldstein 1998). Each next one is the best by

    mmr * relevance - (1 - mmr) * similarity to the most similar of those before it

where relevance is the score on a scale from 0, the last of the candidates, to 1, the first, and similarity the cosine.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Floats
from retrieval.search.executor import Execution
from retrieval.search.option_checks import MMR_CANDIDATES
from retrieval.search.plan import Plan
from retrieval.search.stages import Fused, Positions


def diversified(plan: Plan, fused: Fused, execution: Execution) -> Fused:
    """The first candidates in an order that trades their scores against what those before them say already."""
    mmr = plan.request.mmr
    if mmr is None:
        return fused
    first = fused.order[: max(MMR_CANDIDATES, plan.k)]
    moved = marginal_relevance(execution.vectors(fused.candidates.ids[first]), fused.scores[first], mmr)
    return replace(fused, order=np.concatenate([first[moved], fused.order[len(first) :]]))


def marginal_relevance(vectors: Floats, scores: NDArray[np.float64], mmr: float) -> Positions:
    """The order, as positions among them. `vectors` are unit vectors, float32 [candidates, dimensions]; zeros resemble
    nothing. Of equals the first comes first."""
    span = np.ptp(scores) if len(scores) else 0.0
    relevance = mmr * ((scores - scores.min()) / span if span > 0 else np.ones(len(scores)))
    alike = (1 - mmr) * (vectors @ vectors.T)
    nearest = np.full(len(scores), -np.inf)
    left = relevance.copy()
    order = np.empty(len(scores), np.intp)
    for place in range(len(scores)):
        best = int(np.argmax(left))
        order[place] = best
        np.maximum(nearest, alike[best], out=nearest)
        relevance[best] = -np.inf
        np.subtract(relevance, nearest, out=left)
    return order
