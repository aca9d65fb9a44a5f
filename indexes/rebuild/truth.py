"""Queries for measuring a generation, and their true neighbors by exact search."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexes.base.masks import Bits, pack_flags
from indexes.base.model import Floats, Progress
from indexes.dense.cold import RANKS
from indexes.dense.mixtures import mixtures_of
from indexes.dense.vectors import Found, among, within
from indexes.parts.generation import Generation
from indexes.parts.manifest import FILTER_SHARE

Counts = NDArray[np.int64]

K = RANKS
TIE = 3e-4  # larger than the float16 error of a score, smaller than the gap between ranks


@dataclass(frozen=True, slots=True)
class Truth:
    """Queries [n, dimensions], and the scores of each one's true neighbors in each tier, best first."""

    queries: Floats
    hot: list[Floats]
    cold: list[Floats]

    @property
    def wanted(self) -> dict[str, Counts]:
        """Number of true neighbors of each query, by cohort: "all", "hot" and "cold"."""
        hot, cold = (np.array([len(best) for best in tier], np.int64) for tier in (self.hot, self.cold))
        return {"all": hot + cold, "hot": hot, "cold": cold}


def true_neighbors(
    generation: Generation,
    queries: Floats,
    allowed: Bits | None = None,
    progress: Progress = lambda *_: None,
) -> Truth:
    """The K nearest allowed rows across both tiers, by exact search over the stored vectors. Passages that were deleted
    during the build are no neighbors: they have zeros for vectors, and no search finds them."""
    first_cold = generation.manifest.hot  # no such passage is among the cold rows
    present = np.ones(generation.size, bool)
    present[:first_cold] = generation.vectors.halves[:first_cold].any(axis=1)
    if allowed is not None:
        selector = among(allowed)
    else:
        selector = within(range(generation.size)) if present.all() else among(pack_flags(present))
    truth = Truth(queries, [], [])
    for at, query in enumerate(queries):
        progress("truth", at, len(queries))
        rows, scores = generation.vectors.nearest(query, K, selector)
        truth.hot.append(scores[rows < first_cold])
        truth.cold.append(scores[rows >= first_cold])
    return truth


def halves(truth: Truth, *, seed: int = 7) -> tuple[Truth, Truth]:
    """Two random halves: to choose settings by, and to measure them with. A single query is in both."""
    order = np.random.default_rng(seed).permutation(len(truth.queries))
    one, other = (
        Truth(
            np.ascontiguousarray(truth.queries[half]),
            [truth.hot[at] for at in half],
            [truth.cold[at] for at in half],
        )
        for half in (order[::2], order[1::2] if len(order) > 1 else order)
    )
    return one, other


def found_of(result: Found, best: Floats) -> int:
    """How many true neighbors, with scores `best`, a search returned. Rows that tie with the last count."""
    return int(np.count_nonzero(result[1][: len(best)] >= best[-1] - TIE)) if len(best) else 0


def synthetic_queries(generation: Generation, count: int, *, seed: int) -> Floats:
    """Mixtures of two stored vectors, up to `count`: half near hot rows, half near cold ones.

    This measures even a small hot tier's recall on many queries, and hot rows are the ones that users query.
    """
    rng = np.random.default_rng(seed)
    tiers = [rows for rows in generation.tier_rows().values() if len(rows)]
    picked = [
        rows.start + rng.choice(len(rows), min(count // len(tiers), len(rows)), replace=False)
        for rows in tiers
    ]
    return mixtures_of(generation.vectors.take(np.concatenate(picked)), seed=seed)


def topical_filter(generation: Generation, *, seed: int = 6) -> Bits:
    """A filter that keeps FILTER_SHARE of the cold rows, those most similar to one of them. Most queries are far from
    these rows, so it is harder to search with than a random filter."""
    cold = range(generation.manifest.hot, generation.size)
    one = np.random.default_rng(seed).integers(cold.start, cold.stop, 1)
    [vector] = generation.vectors.take(one)
    kept, _ = generation.vectors.nearest(vector, math.ceil(FILTER_SHARE * len(cold)), within(cold))
    flags = np.zeros(generation.size, bool)
    flags[kept] = True
    return pack_flags(flags)
