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

Columns = NDArray[np.float64]
Weights = tuple[float, ...]  # five: w0 to w4

LEAD_OVER = 10
SUPPORT_HITS = 10  # an answer is supported if one of its first SUPPORT_HITS hits is relevant enough
READ_MIN = 0.5  # share of a query; if the model reads less of it, its cosines are no evidence
DECIMALS = 4
STEPS_MAX = 5000  # of fitting; it takes hundreds


class Calibration(msgspec.Struct, frozen=True):
    """The weights, and the relevance from which a hit supports an answer."""

    weights: Weights
    support: float


Calibrations = Mapping[str, Calibration]  # by mode

BUILT_IN: Calibrations = {
    "hybrid": Calibration((-3.999, 1.5951, 2.0556, 3.6592, 5.8263), 0.0959),
    "dense": Calibration((-4.2847, 2.6655, 0.0, 8.4874, 0.0), 0.0908),
    "lexical": Calibration((-3.7691, 0.0, 1.9904, 0.0, 11.1861), 0.087),
}


def calibrations_of(coefficients: Mapping[str, Sequence[float]]) -> Calibrations:
    """Return the built-in calibrations, overridden by a collection's own: five weights and the support under
    `relevance.hybrid`, `relevance.dense` or `relevance.lexical`. Raises InvalidInput."""
    own = {}
    for name, numbers in coefficients.items():
        kind, _, mode = name.partition(".")
        if kind == "relevance":
            *weights, support = numbers or [0.0]
            if mode not in BUILT_IN or len(weights) != len(BUILT_IN[mode].weights) or min(weights[1:]) < 0:
                raise InvalidInput(
                    f"coefficients of {name} must be w0 to w4, from w1 on at least 0, and the support, for one of "
                    f"{', '.join(f'relevance.{one}' for one in BUILT_IN)}",
                    param="coefficients",
                )
            own[mode] = Calibration(tuple(weights), support)
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
    calibrations_of(coefficients)


def calibration_for(calibrations: Calibrations, mode: str, share_read: float | None) -> Calibration | None:
    """Return the calibration for a search. `share_read` is how much of its query the model read, None for a client's
    own vector.

    Where the cosines are no evidence, only words count. Dense search has no words, so it then has no calibration: None.
    """
    if mode == "dense" and share_read is None:
        return None
    read = mode != "lexical" and share_read is not None and share_read >= READ_MIN
    return calibrations[mode if read else "lexical"]


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


def is_supported(relevance: Columns, calibration: Calibration | None) -> bool | None:
    """Whether one of the first hits, best first, is relevant enough; None without a calibration."""
    if calibration is None:
        return None
    return bool((relevance[:SUPPORT_HITS] >= calibration.support).any())


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


def support_from(best: ArrayLike, lost_max: float) -> float:
    """Return the largest threshold that at most a share `lost_max` of new answerable questions fall below.

    `best` holds, for n similar questions with known answers, the best relevance among the first hits. Split-conformal,
    so the bound holds for any n. Returns 0, which calls everything supported, if n is too small for any other.
    """
    sorted_ = np.sort(np.asarray(best, np.float64))
    place = int(lost_max * (len(sorted_) + 1))
    return float(sorted_[place - 1]) if place else 0.0
