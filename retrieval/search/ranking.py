"""One order of the candidates, from both scores, with the relevance of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Floats
from indexes.parts.query import Candidates
from retrieval.search.fusion import clip_to_levels, fuse_weighted, levels_of, order_by_score, reciprocal_rank
from retrieval.search.plan import EmbeddedQuery
from retrieval.search.relevance import Columns, features_of, relevance_of

DECIMALS = 6
NAMED_RELEVANCE = 0.95  # a user who says a name wants the document

Positions = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Fused:
    """Candidates with their final order: positions into them, best first. The columns hold for each candidate its
    score, its relevance (NaN if unknown) with the features behind it, the cross-encoder's score, and its boost factor.

    In a hybrid search each candidate has both of its scores. `levels` (`levels_of`) keep every order the same, however
    deep the search went: None if it was never deepened.

    `ranked` are the scores without names, of which `score_max` is the largest possible. A passage that the query names
    exactly comes first, whatever they are.
    """

    candidates: Candidates
    order: Positions
    ranked: Columns
    features: Columns
    relevance: Columns
    reranked: NDArray[np.float64] | None = None
    boosts: NDArray[np.float64] | None = None
    levels: NDArray[np.int64] | None = None
    score_max: float = 1.0

    @property
    def scores(self) -> Columns:
        if self.candidates.names is None:
            return self.ranked
        return round_scores(lift_named(self.candidates, self.ranked, self.score_max))

    @property
    def exact(self) -> NDArray[np.bool_] | None:
        """Which candidates the query names exactly."""
        return None if self.candidates.names is None else self.candidates.names == 1

    def ordered_by(self, scores: NDArray[np.float64]) -> Positions:
        """Order the candidates by other scores, within each level, those that the query names exactly first."""
        scores = lift_named(self.candidates, scores, self.score_max)
        if self.exact is not None:
            scores[self.exact] += np.ptp(scores)  # boosts may exceed what a name adds
        levels = None if self.levels is None else self.levels[self.order]
        return self.order[order_by_score(self.candidates.ids[self.order], scores[self.order], levels)]


def fuse(embedded: EmbeddedQuery, candidates: Candidates) -> Fused:
    """Rank the candidates by one score, and compute their relevance."""
    ranks = [candidates.dense_ranks, candidates.lexical_ranks]
    # What a deeper ranking adds comes after the candidates of the first page.
    levels = levels_of(ranks, embedded.page_depth) if embedded.query.steps else None
    if levels is not None and candidates.names is not None:
        levels[candidates.names > 0] = 0
    score_max = 1.0
    if embedded.plan.mode == "hybrid":
        if embedded.weight_dense is None:
            fused = reciprocal_rank(
                ranks if levels is None else clip_to_levels(levels, ranks, embedded.page_depth),
                embedded.plan.fusion.rrf_k,
            )
        else:
            fused = fuse_scores(
                embedded, embedded.weight_dense, candidates, candidates.dense, candidates.lexical
            )
        order = order_by_score(candidates.ids, lift_named(candidates, fused, 1.0), levels)
    else:
        # float16 rounds the length of a vector.
        scores = np.clip(candidates.dense, -1, 1) if embedded.plan.mode == "dense" else candidates.lexical
        fused = scores.astype(np.float64)
        order = np.arange(len(candidates))
        if candidates.names is not None:
            score_max = candidates.lexical_bound
            order = order_by_score(candidates.ids, lift_named(candidates, fused, score_max), levels)
    if embedded.examples is not None:
        order = order[~np.isin(candidates.ids[order], embedded.examples.passages)]
    features = features_of(candidates, candidates.dense, candidates.lexical, embedded.similarity_floor)
    relevance = relevance_of(features, embedded.calibration(candidates))
    if candidates.names is not None:
        relevance[candidates.names == 1] = np.maximum(relevance[candidates.names == 1], NAMED_RELEVANCE)
    return Fused(
        candidates, order, round_scores(fused), features, relevance, levels=levels, score_max=score_max
    )


def lift_named(candidates: Candidates, scores: Columns, most: float) -> Columns:
    """Lift the scores of named passages, of which `most` is the largest possible: above it if the name is exact, else
    half way to it."""
    if candidates.names is None:
        return scores
    lifted = (most + np.maximum(scores, 0)) * candidates.names
    return np.where(candidates.names > 0, lifted, scores)


def fuse_scores(
    embedded: EmbeddedQuery, weight: float, found: Candidates, dense: Floats, lexical: Floats
) -> Columns:
    floor, bound = embedded.similarity_floor, found.lexical_bound
    return fuse_weighted(dense, lexical, weight=weight, floor=floor, bound=bound)


def last_score(embedded: EmbeddedQuery, found: Candidates, dense: Floats, lexical: Floats) -> float:
    """Return what a passage with these scores, or at the ranks just past the end, would score."""
    if embedded.plan.mode != "hybrid":
        return float((dense if embedded.plan.mode == "dense" else lexical)[0])
    if embedded.weight_dense is None:
        place = np.array([embedded.query.depth], np.int32)
        return float(reciprocal_rank([place, place], embedded.plan.fusion.rrf_k)[0])
    return float(fuse_scores(embedded, embedded.weight_dense, found, dense, lexical)[0])


def round_scores(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Round as clients see them, so that `min_score` compares with what they see."""
    shown: NDArray[np.float64] = np.round(scores, DECIMALS, out=np.empty(scores.shape, np.float64))
    return shown


def none_if_nan(score: float) -> float | None:
    return None if np.isnan(score) else score
