"""Learns from judged queries how a collection's hybrid search should fuse its two rankings, and whether that is a gain.

1. Every way to fuse them (CHOICES) and the current one are run through the service: nDCG@10 of each query.
2. The best choice on one half of the queries is scored on the other half, over several random splits. This gives each
   query's gain over the current fusion, from choices that did not depend on that query.
3. The best choice on all queries is adopted only if the lower bound of the mean gain is above 0.

Given random judgments of real collections, 3.5 to 4 of 100 runs adopt something. With tenths instead of halves, it was
5 to 10 in simulation: the choices hardly differ then, and the gains of all queries depend on the same luck.

Clicks and judgments are about documents that users were shown, so one that was never shown counts as not relevant. That
favors the current fusion.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from indexes.base.errors import InvalidInput
from indexes.rebuild.shares import Z
from jobs.evaluation.asking import Asker
from jobs.evaluation.rankings import NDCG, score_queries
from jobs.evaluation.relevance import JudgedHits, fit_calibration, judged_hits
from jobs.sources.judgments import Judgment, TextQuery
from nearline import JSON
from retrieval.search.relevance import READ_MIN, Calibration, relevance_of

JUDGED_MIN = 20  # queries with a relevant document; fewer predict nothing
DIVISIONS = 10

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to fuse the rankings. `weight_dense` None: by rank."""

    method: Literal["rrf", "weighted"]
    weight_dense: float | None = None

    @property
    def fusion(self) -> JSON:
        """The choice as a search's `fusion`."""
        if self.weight_dense is None:
            return {"method": self.method}
        weights = {"dense": self.weight_dense, "lexical": 1 - self.weight_dense}
        return {"method": self.method, "weights": weights}


CHOICES = (Choice("rrf"), *(Choice("weighted", at / 10) for at in range(11)))


@dataclass(frozen=True, slots=True)
class Learned:
    """The `best` choice on all judged queries, with its nDCG@10 and the current one. `gain` is the mean held-out gain
    of a choice made in the same way, with its 95 percent interval; `grid` has the nDCG@10 of each choice."""

    queries: int
    best: Choice
    ndcg: float
    ndcg_in_force: float
    gain: float
    gain_low: float
    gain_high: float
    grid: list[JSON]

    @property
    def helps(self) -> bool:
        return self.gain_low > 0

    def settings(self) -> JSON:
        """The best choice as a collection's ranking settings."""
        evidence = {name: getattr(self, name) for name in ("queries", "gain", "gain_low", "gain_high")}
        return {**asdict(self.best), **evidence}


def usable_queries(
    queries: Sequence[TextQuery], judgments: Sequence[Judgment], sample: int, seed: int = 0
) -> list[TextQuery]:
    """At most `sample` of the queries with a relevant document; on the others, every choice scores the same."""
    relevant = {one.query for one in judgments if one.grade > 0}
    asked = [query for query in queries if query.id in relevant]
    return random.Random(seed).sample(asked, min(sample, len(asked)))


async def learn(asker: Asker, queries: Sequence[TextQuery], judgments: Sequence[Judgment]) -> Learned:
    """Learn from at least JUDGED_MIN queries, each with a relevant document. Raises InvalidInput if no relevant one is
    found."""

    async def ndcg(stage: str, **search: Any) -> list[float]:
        asked = {"k": 10, "mode": "hybrid", **search}
        return (await score_queries(asker, stage, queries, judgments, NDCG, **asked))["ndcg@10"]

    in_force = np.array(await ndcg("as it is"))
    table = np.array([await ndcg(f"choice {at}", fusion=one.fusion) for at, one in enumerate(CHOICES, 1)])
    if not table.any() and not in_force.any():
        raise InvalidInput(
            "no search found any document that is judged relevant: are their ids those of this collection?",
            param="qrels",
        )
    means = table.mean(axis=1)
    gain, low, high = mean_interval(held_out_gains(table, in_force))
    best = int(np.argmax(means))
    return Learned(
        queries=len(queries),
        best=CHOICES[best],
        ndcg=round(float(means[best]), 4),
        ndcg_in_force=round(float(in_force.mean()), 4),
        gain=gain,
        gain_low=low,
        gain_high=high,
        grid=[
            {**asdict(one), "ndcg@10": round(float(mean), 4)}
            for one, mean in zip(CHOICES, means, strict=True)
        ],
    )


async def learn_reranking(
    asker: Asker, queries: Sequence[TextQuery], judgments: Sequence[Judgment], fusion: JSON | None = None
) -> JSON:
    """How much the reranker gains in nDCG@10 within its budget, over searches without it, with the 95 percent interval.
    `fusion` is a search's; None for the current one. Raises ServiceError where there is none."""
    search = {"k": 10, "mode": "hybrid", **({"fusion": fusion} if fusion else {})}
    plain, reranked = [
        (await score_queries(asker, stage, queries, judgments, NDCG, **search, rerank=rerank))["ndcg@10"]
        for stage, rerank in (("not reranked", False), ("reranked", True))
    ]
    gain, low, high = mean_interval(np.array(reranked) - np.array(plain))
    return {"ndcg@10": round(float(np.mean(reranked)), 4), "gain": gain, "gain_low": low, "gain_high": high}


def held_out_gains(table: Values, in_force: Values, seed: int = 0) -> Values:
    """Each query's gain by choices made without it: `table` is [choices, n], `in_force` and the result are [n]."""
    chance, count = np.random.default_rng(seed), len(in_force)
    gains = np.zeros(count)
    for _ in range(DIVISIONS):
        half = chance.permutation(count) % 2
        for held_out in (half == 0, half == 1):
            best = int(np.argmax(table[:, ~held_out].mean(axis=1)))
            gains[held_out] += (table[best] - in_force)[held_out] / DIVISIONS
    return gains


@dataclass(frozen=True, slots=True)
class LearnedRelevance:
    """A calibration fitted on all judged queries. `gain` is the mean held-out gain in log loss per hit of one fitted in
    the same way, with its 95 percent interval. `queries` counts those that the model reads."""

    queries: int
    calibration: Calibration
    gain: float
    gain_low: float
    gain_high: float

    @property
    def coefficients(self) -> list[float]:
        """The coefficients as a collection's ranking stores them."""
        return [*self.calibration.weights, self.calibration.some, self.calibration.strong]


async def learn_relevance(
    asker: Asker,
    queries: Sequence[TextQuery],
    judgments: Sequence[Judgment],
    prior: Calibration,
    fusion: JSON | None = None,
) -> LearnedRelevance | None:
    """Learn a calibration of hybrid search's relevance and compare it with the current one, as `learn` does. `fusion`
    is a search's; None for the current one.

    Queries that the model hardly reads are left out, because the service judges their hits by words alone. None if
    fewer than JUDGED_MIN remain.
    """
    search = {"fusion": fusion} if fusion else {}
    found = await judged_hits(asker, queries, judgments, **search)
    questions = [one for one in found if one.share_read >= READ_MIN]
    if len(questions) < JUDGED_MIN:
        return None
    chance, gains = np.random.default_rng(0), np.zeros(len(questions))
    for _ in range(DIVISIONS):
        half = chance.permutation(len(questions)) % 2
        for held_out in (0, 1):
            fitted = fit_calibration([one for one, own in zip(questions, half) if own != held_out], prior)
            for at in np.flatnonzero(half == held_out):
                gains[at] += (log_loss(questions[at], prior) - log_loss(questions[at], fitted)) / DIVISIONS
    return LearnedRelevance(len(questions), fit_calibration(questions, prior), *mean_interval(gains))


def log_loss(question: JudgedHits, calibration: Calibration) -> float:
    """Mean log loss over the first hits, with the relevant ones and without them."""
    losses = [0.0]
    for one in (question.first(answerable=kind) for kind in (True, False)):
        likely = np.clip(relevance_of(one.features, calibration), 1e-4, 1 - 1e-4)
        losses += (-np.log(np.where(one.labels > 0, likely, 1 - likely))).tolist()
    return sum(losses) / max(len(losses) - 1, 1)


def mean_interval(values: Values) -> tuple[float, float, float]:
    """The mean of paired differences with its 95 percent interval by Student's t. The quantile uses two terms of Fisher
    and Cornish's expansion, and is off by less than .5 percent from 20 values on."""
    freedom = len(values) - 1
    half = (Z + (Z**3 + Z) / (4 * freedom)) * values.std(ddof=1) / math.sqrt(len(values))
    mean = values.mean()
    return round(float(mean), 4), round(float(mean - half), 4), round(float(mean + half), 4)


def from_feedback(feedback: Sequence[JSON]) -> tuple[list[TextQuery], list[Judgment]]:
    """Queries, by text, and judgments from users' feedback, oldest first.

    Of several grades, the last one counts. Without grades, a document is relevant if it was opened for this query at
    least as often as it was skipped for one below it.
    """
    grades: dict[tuple[str, str], int] = {}
    opened: Counter[tuple[str, str]] = Counter()
    passed: Counter[tuple[str, str]] = Counter()
    for one in feedback:
        about = one["query"], one["document_id"]
        if one["grade"] is not None:
            grades[about] = one["grade"]
        else:
            opened[about] += 1
            passed.update((one["query"], above) for above in one["passed"])
    clicked = {about: int(times >= passed[about]) for about, times in opened.items()}
    judgments = [Judgment(*about, grade) for about, grade in {**clicked, **grades}.items()]
    return [TextQuery(text, text) for text in sorted({one.query for one in judgments})], judgments
