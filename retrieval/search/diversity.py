"""Diversity: maximal marginal relevance (Carbonell and Goldstein 1998). Each next hit is the one that maximizes

    mmr * relevance - (1 - mmr) * similarity to the most similar hit before it

where relevance is the score scaled from 0 (the last candidate) to 1 (the first), and similarity is the cosine.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Floats
from retrieval.search.option_checks import MMR_CANDIDATES
from retrieval.search.plan import Plan
from retrieval.search.ranking import Fused, Positions
from retrieval.search.shard import Searchable, What


async def diversify(plan: Plan, fused: Fused, shard: Searchable) -> Fused:
    """Reorder the first candidates so that each trades its score against how much the ones before it already say."""
    mmr = plan.request.mmr
    if mmr is None:
        return fused
    first = fused.order[: max(MMR_CANDIDATES, plan.k)]
    if fused.levels is not None:
        first = first[fused.levels[first] == 0]
    found = await shard.fetch(fused.candidates.ids[first].tolist(), What(vectors=True))
    assert found.vectors is not None
    moved = marginal_relevance(found.vectors, fused.ranked[first], mmr)
    if fused.exact is not None:
        moved = moved[np.argsort(~fused.exact[first[moved]], kind="stable")]
    return replace(fused, order=np.concatenate([first[moved], fused.order[len(first) :]]))


def marginal_relevance(vectors: Floats, scores: NDArray[np.float64], mmr: float) -> Positions:
    """Return the order as positions into `scores`. Among equals the first comes first.

    `vectors` are unit vectors, float32 [candidates, dimensions]; zero vectors are similar to nothing.
    """
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
