"""Measures how reliable the relevance of hits is on judged questions, and fits a calibration to them.

Dropping the relevant hits of a judged question makes an unanswerable one. The remaining passages are those most like an
answer, so this is harder than an unrelated question. Passages without a judgment count as not relevant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.evaluation.asking import Asker
from jobs.evaluation.report import Bin, Reliability, Score
from jobs.sources.judgments import Judgment, TextQuery
from retrieval.search.relevance import SUPPORT_HITS, Calibration, Columns, fit, relevance_of, support_from

BINS = 10
LOST_MAX = 0.1  # share of questions with an answer among their first hits that may be called unsupported


@dataclass(frozen=True, slots=True)
class JudgedHits:
    """The hits of one question, best first: the features of `search.relevance` [n, 5], the relevance that was shown
    [n], and labels [n], 1 if relevant, else 0. `support` is the relevance from which the service calls this answer
    supported, `share_read` the share of the question that its model reads."""

    features: Columns
    relevance: Columns
    labels: Columns
    support: float
    share_read: float = 1.0

    def first(self, *, answerable: bool) -> JudgedHits:
        """The first hits; if not `answerable`, after dropping the relevant ones."""
        kept = np.flatnonzero(self.labels == 0 if not answerable else self.labels >= 0)[:SUPPORT_HITS]
        return replace(
            self,
            features=self.features[kept],
            relevance=self.relevance[kept],
            labels=self.labels[kept],
        )


async def judged_hits(
    asker: Asker, queries: Sequence[TextQuery], judgments: Sequence[Judgment], **search: object
) -> list[JudgedHits]:
    """Search each question in hybrid mode with these further options, and judge its hits.

    It requests twice as many hits as count, so that enough remain without the relevant ones.
    """
    relevant = {(one.query, one.document) for one in judgments if one.grade > 0}
    found: list[JudgedHits] = []
    asked: dict[str, Any] = {"k": 2 * SUPPORT_HITS, "mode": "hybrid", "explain": True, **search}
    async for query, answer in asker.answers("relevance", queries, **asked):
        hits, receipt = answer["hits"], answer["receipt"]
        features = [[1.0, *hit["evidence"].values()] for hit in hits]
        found.append(
            JudgedHits(
                np.array(features, np.float64).reshape(-1, 5),
                np.array([hit.get("relevance", 0.0) for hit in hits], np.float64),
                np.array([(query.id, hit["document_id"]) in relevant for hit in hits], np.float64),
                receipt["support_from"],
                receipt["share_read"],
            )
        )
    return found


def reliability(questions: Sequence[JudgedHits]) -> Reliability:
    """Measure reliability over at least one question. Each counts twice: as it is, and without an answer."""
    as_is, emptied = ([one.first(answerable=kind) for one in questions] for kind in (True, False))
    relevance = np.concatenate([one.relevance for one in as_is + emptied])
    labels = np.concatenate([one.labels for one in as_is + emptied])
    place = np.minimum((relevance * BINS).astype(int), BINS - 1)
    bins = [
        Bin(
            since=at / BINS,
            hits=int(here.sum()),
            relevance=round(float(relevance[here].mean()), 4),
            relevant=round(float(labels[here].mean()), 4),
        )
        for at in range(BINS)
        if (here := place == at).any()
    ]
    error = sum(one.hits * abs(one.relevance - one.relevant) for one in bins) / max(len(labels), 1)
    answered = [one for one in as_is if one.labels.any()]
    return Reliability(
        calibration_error=round(error, 4),
        lost=Score.mean(~is_supported(answered)) if answered else None,
        false=Score.mean(is_supported(emptied)),
        bins=bins,
    )


def fit_calibration(questions: Sequence[JudgedHits], prior: Calibration) -> Calibration:
    """Fit a calibration to these questions; with few, it stays close to the prior. Of similar questions with an answer
    among their first hits, its support threshold loses at most LOST_MAX."""
    halves = [one.first(answerable=kind) for one in questions for kind in (True, False)]
    weights = fit(
        np.concatenate([one.features for one in halves]),
        np.concatenate([one.labels for one in halves]),
        prior.weights,
    )
    answered = [relevance_of(one.features, Calibration(weights, 0.0)) for one in halves if one.labels.any()]
    return Calibration(weights, support_from([one.max() for one in answered], LOST_MAX))


def is_supported(questions: Sequence[JudgedHits]) -> NDArray[np.bool_]:
    """Whether the service would call each answer supported."""
    return np.array([one.relevance.max(initial=0.0) >= one.support for one in questions], np.bool_)
