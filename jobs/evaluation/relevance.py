"""Measures how reliable the relevance of hits is on judged questions, and fits a calibration to them.

Dropping the relevant hits of a judged question makes an unanswerable one. The remaining passages are those most like an
answer, so this is harder than an unrelated question. Passages without a judgment count as not relevant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jobs.evaluation.asking import Asker
from jobs.evaluation.report import Bin, Reliability, Score
from jobs.sources.judgments import Judgment, TextQuery
from retrieval.search.relevance import (
    EVIDENCE_HITS,
    Calibration,
    Columns,
    fit,
    highest_bound,
    lowest_bound,
    relevance_of,
)
from retrieval.wire.search import EvidenceFrom

BINS = 10
LOST_MAX = 0.1  # share of questions with an answer among their first hits that may have no evidence
FALSE_MAX = 0.1  # share of questions without one that may have strong evidence


@dataclass(frozen=True, slots=True)
class JudgedHits:
    """The hits of one question, best first: the features of `search.relevance` [n, 5], the relevance that was shown
    [n], and labels [n], 1 if relevant, else 0. The service judges the evidence by `bounds`, and its model reads the
    share `share_read` of the question."""

    features: Columns
    relevance: Columns
    labels: Columns
    bounds: EvidenceFrom
    share_read: float = 1.0

    @property
    def best(self) -> float:
        return float(self.relevance.max(initial=0.0))

    def first(self, *, answerable: bool) -> JudgedHits:
        """The first hits; if not `answerable`, after dropping the relevant ones."""
        kept = np.flatnonzero(self.labels == 0 if not answerable else self.labels >= 0)[:EVIDENCE_HITS]
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

    It requests twice as many hits as count, so that enough remain without the relevant ones. Questions whose hits have
    no relevance are left out.
    """
    relevant = {(one.query, one.document) for one in judgments if one.grade > 0}
    found: list[JudgedHits] = []
    asked: dict[str, Any] = {"k": 2 * EVIDENCE_HITS, "mode": "hybrid", "explain": True, **search}
    async for query, answer in asker.answers("relevance", queries, **asked):
        hits, receipt = answer["hits"], answer["receipt"]
        if (bounds := receipt["evidence_from"]) is None:
            continue
        features = [[1.0, *hit["evidence"].values()] for hit in hits]
        found.append(
            JudgedHits(
                np.array(features, np.float64).reshape(-1, 5),
                np.array([hit["relevance"] for hit in hits], np.float64),
                np.array([(query.id, hit["document_id"]) in relevant for hit in hits], np.float64),
                EvidenceFrom(**bounds),
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
        lost=Score.mean([one.best < one.bounds.some for one in answered]) if answered else None,
        false=Score.mean([one.best >= one.bounds.strong for one in emptied]),
        strong=Score.mean([one.best >= one.bounds.strong for one in answered]) if answered else None,
        bins=bins,
    )


def fit_calibration(questions: Sequence[JudgedHits], prior: Calibration) -> Calibration:
    """Fit a calibration to these questions; with few, it stays close to the prior. Of similar questions with an answer
    among their first hits, at most LOST_MAX have no evidence by it; of those without one, at most FALSE_MAX strong
    evidence."""
    halves = [one.first(answerable=kind) for one in questions for kind in (True, False)]
    weights = fit(
        np.concatenate([one.features for one in halves]),
        np.concatenate([one.labels for one in halves]),
        prior.weights,
    )
    fitted = Calibration(weights, 0.0, 1.0)
    best = np.array([relevance_of(one.features, fitted).max(initial=0.0) for one in halves])
    answered = np.array([one.labels.any() for one in halves])
    some = lowest_bound(best[answered], LOST_MAX)
    return Calibration(weights, some, max(highest_bound(best[~answered], FALSE_MAX), some))
