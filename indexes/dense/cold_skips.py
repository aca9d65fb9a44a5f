"""Decides whether a query searches the cold tier: always, never, or calibrated on recent queries.

    learning   always search the cold tier, and record each query's margin and what it would have lost without it
    skipping   skip the cold tier if a query's margin exceeds a threshold: the lowest one for which the recorded
               queries prove, at 95 percent confidence, a mean loss within the budget (risk control: Angelopoulos et
               al. 2022)
    auditing   search the cold tier for a share of the skips and discard the results. If the upper bound on the loss
               they show exceeds the budget, or too few queries skip for it to pay off, learning starts over

A query's loss is the share of its true nearest k that are cold. Its margin is the score of the k-th passage found so
far, minus half the mean score of the nearest cold centroids: of the statistics tried on real questions and clustered
loads, this one separated best. The state belongs to one generation and lives in memory: a new generation or a restart
learns from scratch.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from indexes.base.model import ColdPolicy, Floats, Ranking

Values = NDArray[np.float64]

NOTES = 5000  # queries recorded before the threshold is chosen
CONFIDENCE = 0.95
TILT = 0.7  # of the Chernoff bound: near optimal for a few thousand queries and a budget of a few thousandths
SPARE = 0.8  # share of the budget that the threshold may use; the rest is slack for noise in the audits
NEAR, NEAR_WEIGHT = 8, 0.5  # number of nearest centroids in the margin, and the weight of their mean score
SHARE_QUERIES = 2000  # window of the exponential moving average of the skip rate
SHARE_MIN = 0.05  # lowest skip rate that pays for the decisions. Below half of it, skipping stops


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do for one query. `note`: pass its actual or potential loss to `learn`."""

    search: bool
    reason: str | None = None  # for a skip
    note: bool = False
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class ColdState:
    """Status for operators. Counts start when this generation is loaded.

    `proven`: queries for which no cold passage could score high enough. `audits`: skips searched anyway, to measure
    what skipping loses. `stops`: times that skipping stopped because it lost too much.
    """

    state: Literal["always", "never", "learning", "skipping"]
    queries: int = 0
    skipped: int = 0
    proven: int = 0
    audits: int = 0
    stops: int = 0
    loss_bound: float | None = None


class ListBounds:
    """Centroids of the cold lists, and an upper bound on the score of any cold member."""

    def __init__(self, centroids: Floats, lowest: Floats) -> None:
        """`centroids` float32 [lists, dimensions], not copied; `lowest` [lists] is the minimum inner product of each
        unit centroid with the cold members of its list."""
        self._centroids = centroids
        self._lengths = np.maximum(np.linalg.norm(centroids, axis=1), 1e-12).astype(np.float32)
        self._radii = np.arccos(np.clip(lowest, -1, 1))

    def similarities(self, query: Floats) -> Floats:
        """Inner products with the normalized centroids, float32 [lists]."""
        found = np.empty(len(self._centroids), np.float32)
        query = np.ascontiguousarray(query, np.float32)
        # Not `@`: BLAS spreads even this small product over all cores and waits for them. On a busy machine that took
        # 9 ms for 1,200 lists; one core takes 0.1 ms.
        faiss.fvec_inner_products_ny(
            faiss.swig_ptr(found),
            faiss.swig_ptr(query),
            faiss.swig_ptr(self._centroids),
            len(query),
            len(found),
        )
        found /= self._lengths
        return found

    def best_possible(self, similarities: Floats) -> float:
        """Upper bound on the score of any cold vector in any list."""
        angles = np.arccos(np.clip(similarities, -1, 1)) - self._radii
        return math.cos(max(float(angles.min()), 0.0))


class ColdSkipper:
    """Decides for the queries of one generation, and learns from them. Thread-safe.

    `bounds` None: never search the cold tier.
    """

    def __init__(self, policy: ColdPolicy, bounds: ListBounds | None, *, seed: int = 0) -> None:
        self.policy = policy
        self._bounds = bounds
        self._lock = threading.Lock()
        self._random = np.random.default_rng(seed)
        self._queries = self._skipped = self._proven = self._audits = self._stops = 0
        self._notes: list[tuple[float, float]] = []  # margin and loss
        self._rule: Rule | None = None

    def decide(self, query: Floats, warm: Ranking, k: int, *, counted: bool = True) -> Decision:
        """Decide for a query that found these non-cold passages. If not `counted`, nothing is learned from it."""
        if self._bounds is None:
            return Decision(False, "cold policy is never")
        if len(warm) < k:
            return Decision(True)
        similarities = self._bounds.similarities(query)
        bound, kth = self._bounds.best_possible(similarities), float(warm.scores[k - 1])
        margin = kth - NEAR_WEIGHT * mean_of_best(similarities)
        with self._lock:
            self._queries += counted
            if bound <= kth:
                self._proven += counted
                return Decision(False, f"proven needless: nothing cold can score above {bound:.3f}")
            rule = self._rule
            if rule is None:
                return Decision(True, note=counted, margin=margin)
            skip = margin > rule.threshold
            if counted:
                rule.count(skip)
                if rule.share < SHARE_MIN / 2:
                    self._stop()
            if not skip:
                return Decision(True)
            self._skipped += counted
            note = counted and bool(self._random.random() < self.policy.audit)
        reason = f"calibrated: margin {margin:.3f} above {rule.threshold:.3f}"
        return Decision(False, reason, note, margin)

    def learn(self, decision: Decision, loss: float) -> None:
        """Record the recall, 0 to 1, that a query lost or would have lost without the cold tier. Requires `note`."""
        with self._lock:
            if decision.search is not (self._rule is None):
                return  # decided before the state changed
            if self._rule is not None:
                self._audits += 1
                self._rule.audit(loss)
                if self._rule.bound() > self.policy.budget:
                    self._stop()
                return
            self._notes.append((decision.margin, loss))
            if len(self._notes) == NOTES:
                self._rule = Rule.chosen(np.array(self._notes), SPARE * self.policy.budget)
                self._notes.clear()

    def _stop(self) -> None:
        self._stops += 1
        self._rule = None

    def state(self) -> ColdState:
        if self._bounds is None:
            return ColdState("never")
        with self._lock:
            return ColdState(
                "skipping" if self._rule else "learning",
                self._queries,
                self._skipped,
                self._proven,
                self._audits,
                self._stops,
                round(self._rule.bound(), 6) if self._rule else None,
            )


class Rule:
    """A margin threshold, and the evidence on what skipping by it loses."""

    def __init__(self, threshold: float, share: float, skips: int, lost: float) -> None:
        """`share` of the queries skip; `lost` is the total loss of `skips` observed skips."""
        self.threshold = threshold
        self.share = share
        self._skips, self._lost = skips, lost

    @staticmethod
    def chosen(notes: Values, budget: float) -> Rule | None:
        """The rule that skips most within the budget, given (margin, loss) notes [n, 2]. None if too few can skip."""
        margins, losses = notes[np.argsort(-notes[:, 0])].T
        # Queries that search lose nothing, and skipping more never lowers the bound.
        allowed = upper_mean(np.cumsum(losses), len(notes)) <= budget
        # The first margin that may not skip is the threshold, so that equal margins search too. If all may skip, it is
        # the smallest margin: a query below everything recorded must search.
        threshold = float(margins[min(np.count_nonzero(allowed), len(notes) - 1)])
        skips = int(np.count_nonzero(margins > threshold))
        if skips < SHARE_MIN * len(notes):
            return None
        return Rule(threshold, skips / len(notes), skips, float(losses[:skips].sum()))

    def count(self, skipped: bool) -> None:
        self.share += (skipped - self.share) / SHARE_QUERIES

    def audit(self, loss: float) -> None:
        """Record the loss of a skip. Older losses decay exponentially, so that a change shows."""
        self._lost += loss - self._lost / self._skips

    def bound(self) -> float:
        """Upper bound, at CONFIDENCE, on the mean recall that skipping costs over all queries."""
        return self.share * float(upper_mean(np.float64(self._lost), self._skips))


def mean_of_best(similarities: Floats) -> float:
    nearest = similarities if len(similarities) <= NEAR else np.partition(similarities, -NEAR)[-NEAR:]
    return float(nearest.mean())


def upper_mean(lost: NDArray[np.float64] | np.float64, queries: int) -> NDArray[np.float64] | np.float64:
    """Upper bound, at CONFIDENCE, on the mean loss of `queries` queries, each 0 to 1, that lost `lost` in total.

    Chernoff bound: E[exp(-t * loss)] is at most 1 - mean * (1 - exp(-t)), so by Markov's inequality exp(-t * lost)
    exceeds (1 - mean * (1 - exp(-t))) ** queries / (1 - CONFIDENCE) with probability at most 1 - CONFIDENCE.
    """
    return np.minimum(np.expm1((math.log(1 - CONFIDENCE) - TILT * lost) / queries) / math.expm1(-TILT), 1.0)
