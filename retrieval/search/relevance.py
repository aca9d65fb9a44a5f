"""How likely a hit is to be relevant: logistic regression on its scores, fitted on judged collections.

    relevance = 1 / (1 + exp(-(w0 + w1 meaning + w2 words + w3 meaning_lead + w4 words_lead)))

`meaning` is the cosine, scaled from what unrelated texts reach to 1. `words` is BM25, divided by what a passage with
all words of the query could score, including words that no passage holds. A lead is the distance to the candidate in
place LEAD_OVER of that ranking (0 if there is none): passages about one subject are all similar, and only the lead
separates them. The fused score is not used: the best of no good matches still scores best.

Weights are never negative, so that a hit with higher scores is never less relevant. docs/relevance.md says what the
built-in weights were fitted on, and how far they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from indexes.parts.query import Candidates
from retrieval.search.fusion import zero_nans
from retrieval.wire.search import Evidence, EvidenceFrom

Columns = NDArray[np.float64]
Weights = tuple[float, ...]  # five: w0 to w4

LEAD_OVER = 10
EVIDENCE_HITS = 10  # the best of an answer's first hits is its evidence
READ_MIN = 0.5  # share of a query; if the model reads less of it, its cosines are no evidence
DECIMALS = 4
STEPS_MAX = 5000  # of fitting; it takes hundreds


class Calibration(msgspec.Struct, frozen=True):
    """The weights, and the relevance from which a hit is some evidence of an answer, and strong evidence."""

    weights: Weights
    some: float
    strong: float

    @property
    def bounds(self) -> EvidenceFrom:
        return EvidenceFrom(self.some, self.strong)


Calibrations = Mapping[str, Calibration]  # by mode

BUILT_IN: Calibrations = {
    "hybrid": Calibration((-3.999, 1.5951, 2.0556, 3.6592, 5.8263), 0.0959, 0.4201),
    "dense": Calibration((-4.2847, 2.6655, 0.0, 8.4874, 0.0), 0.0908, 0.3503),
    "lexical": Calibration((-3.7691, 0.0, 1.9904, 0.0, 11.1861), 0.087, 0.3988),
}


def calibrations_of(coefficients: Mapping[str, Sequence[float]]) -> Calibrations:
    """Return the built-in calibrations, overridden by a collection's own: five weights and both bounds under
    `relevance.hybrid`, `relevance.dense` or `relevance.lexical`. Raises InvalidInput."""
    own = {}
    for name, numbers in coefficients.items():
        kind, _, mode = name.partition(".")
        if kind == "relevance":
            *weights, some, strong = numbers if len(numbers) > 1 else [0.0, 0.0]
            right = mode in BUILT_IN and len(weights) == len(BUILT_IN[mode].weights)
            if not right or min(weights[1:]) < 0 or some > strong:
                raise InvalidInput(
                    f"coefficients of {name} must be w0 to w4, from w1 on at least 0, and the bounds of some and of "
                    f"strong evidence, the second not below the first, for one of "
                    f"{', '.join(f'relevance.{one}' for one in BUILT_IN)}",
                    param="coefficients",
                )
            own[mode] = Calibration(tuple(weights), some, strong)
    return {**BUILT_IN, **own}


def check_coefficients(coefficients: Mapping[str, Sequence[float]]) -> None:
    """Raise InvalidInput for coefficients that no search could use.

    Unlike this check, `calibrations_of` ignores unknown names: coefficients stored by a later version must not fail
    every search.
    """
    known = [f"relevance.{mode}" for mode in BUILT_IN]
    for name in coefficients:
        if name not in known:
            raise InvalidInput(
                f"coefficients has the unknown name {name!r}, expected one of {', '.join(known)}",
                param="coefficients",
            )
    for mode, one in calibrations_of(coefficients).items():
        if not 0 <= one.some <= one.strong <= 1:
            words = f"the bounds of evidence of relevance.{mode} must be from 0 to 1"
            raise InvalidInput(words, param="coefficients")


def calibration_for(
    calibrations: Calibrations, mode: str, share_read: float | None, *, words: bool
) -> Calibration | None:
    """Return the calibration for a search. `share_read` is how much of its query the model read, None for a client's
    own vector; `words`, whether it has words that BM25 can score.

    Where the cosines are no evidence, only words count; None if these say nothing either.
    """
    if mode != "lexical" and share_read is not None and share_read >= READ_MIN:
        return calibrations[mode]
    return calibrations["lexical"] if words and mode != "dense" else None


def features_of(candidates: Candidates, dense: Floats, lexical: Floats, floor: float) -> Columns:
    """Return the features of hits with these scores, float64 [n, 5], a column for each weight. Scores that were not
    asked for are NaN.

    `floor` is a cosine that few unrelated texts reach.
    """

    def scaled(cosine: NDArray[np.float32]) -> Columns:
        return zero_nans((cosine.astype(np.float64) - floor) / (1 - floor))

    features = np.ones((len(dense), 5))
    asked = candidates.lexical_bound or 1.0
    features[:, 1] = scaled(dense)
    features[:, 2] = zero_nans(lexical.astype(np.float64)) / asked
    features[:, 3] = features[:, 1] - scaled(lead_score(candidates.dense, candidates.dense_ranks)).sum()
    features[:, 4] = features[:, 2] - lead_score(candidates.lexical, candidates.lexical_ranks).sum() / asked
    return features


def lead_score(scores: Floats, ranks: NDArray[np.int32]) -> Floats:
    """Return the score in place LEAD_OVER of a ranking, as an array that is empty if the ranking is shorter."""
    found: Floats = scores[ranks == LEAD_OVER - 1]
    return found


def relevance_of(features: Columns, calibration: Calibration | None) -> Columns:
    """Return the relevance of each row, from 0 to 1, rounded as clients see it; NaN without a calibration."""
    if calibration is None:
        return np.full(len(features), np.nan)
    relevance: Columns = np.round(1 / (1 + np.exp(-features @ calibration.weights)), DECIMALS)
    return relevance


def evidence_of(relevance: Columns, calibration: Calibration | None) -> Evidence | None:
    """Return the evidence of the most relevant of the first hits, best first; None without a calibration."""
    if calibration is None:
        return None
    best = relevance[:EVIDENCE_HITS].max(initial=0.0)
    return "strong" if best >= calibration.strong else "some" if best >= calibration.some else "none"


# --- fitting ------------------------------------------------------------------------------------------------------


def fit(
    features: Columns, labels: ArrayLike, prior: Weights, *, strength: float = 0.1, each: ArrayLike = 1.0
) -> Weights:
    """Fit weights to the labels (1 relevant, 0 not) of hits, shrunk toward the prior weights.

    The prior counts as observations of variance 1 / `strength`, so that few labels change little. `each` weights the
    hits. Prior weights of 0 stay 0.

    Each step solves with the largest curvature that the likelihood has anywhere, so none overshoots (Boehning and
    Lindsay 1988). A weight that ends up negative is fixed at 0, and the others are fitted again.
    """
    labels_, before = np.asarray(labels, np.float64), np.array(prior)
    each_ = np.broadcast_to(np.asarray(each, np.float64), labels_.shape)
    free = np.flatnonzero(before != 0)
    while True:
        columns, weights = features[:, free], before[free]
        curvature = (columns.T * each_) @ columns / 4 + strength * np.eye(len(free))
        for _ in range(STEPS_MAX):
            chance = 1 / (1 + np.exp(-columns @ weights))
            slope = columns.T @ (each_ * (labels_ - chance)) - strength * (weights - before[free])
            step = np.linalg.solve(curvature, slope)
            weights = weights + step
            if np.abs(step).max() < 1e-6:
                break
        negative = (weights < 0) & (free > 0)
        if not negative.any():
            fitted = np.zeros(len(before))
            fitted[free] = weights
            return tuple(fitted.round(4).tolist())
        free = free[weights != weights[negative].min()]


def lowest_bound(best: ArrayLike, below_max: float) -> float:
    """Return the largest bound that at most a share `below_max` of new questions fall below.

    `best` holds, for n similar questions, the best relevance among the first hits. Split-conformal, so it holds for any
    n. Returns 0 if n is too small for any other.
    """
    sorted_ = np.sort(np.asarray(best, np.float64))
    place = int(below_max * (len(sorted_) + 1))
    return float(sorted_[place - 1]) if place else 0.0


def highest_bound(best: ArrayLike, reach_max: float) -> float:
    """Return the least bound that at most a share `reach_max` of new questions reach; likewise, and at most 1."""
    sorted_ = np.sort(np.asarray(best, np.float64))
    place = int(reach_max * (len(sorted_) + 1))
    return round(min(float(sorted_[-place]) + 10**-DECIMALS, 1.0), DECIMALS) if place else 1.0
