"""Decides whether a query searches the cold tier: always, never, or only where the hot tier may not answer it.

    margin     the score of the k-th passage found in the other tiers, minus half the mean score of the nearest cold
               centroids: of the statistics tried on real questions and clustered loads, this one separated best
    loss       the share of a query's true nearest k that are cold
    rule       skip the cold tier if the margin exceeds a threshold: the lowest one for which noted queries prove, at 95
               percent confidence, a mean loss within the budget (risk control: Angelopoulos et al. 2022)
    auditing   a share of the skips search the cold tier anyway and discard the results. If the upper bound on the loss
               they show exceeds the budget, or too few queries skip for it to pay off, learning starts over

While it learns, the policy `auto` observes a share of the queries: they search the hot tier first and the lists after
it, and the others the lists alone; it follows a rule only if that saves time. `calibrated` observes all queries, and
follows any rule.

A query is judged where it is searched, which may be another process; one `ColdSkipper` gives it the threshold and
learns from what comes back. Its state belongs to one generation, and lives in memory: a new generation or a restart
learns from scratch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Literal

import faiss
import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.model import ColdPolicy, Floats, Ranking, Spared, Sparing

Values = NDArray[np.float64]

NOTES = 5000  # queries observed before the threshold is chosen
CONFIDENCE = 0.95
TILT = 0.7  # of the Chernoff bound: near optimal for a few thousand queries and a budget of a few thousandths
SPARE = 0.8  # share of the budget that the threshold may use; the rest is slack for noise in the audits
NEAR, NEAR_WEIGHT = 8, 0.5  # number of nearest centroids in the margin, and the weight of their mean score
SHARE_QUERIES = 2000  # window of the exponential moving average of the skip rate
PAYS = 0.9  # of the time that a rule saves, what the searches of the hot tier may take
SHARE_MIN = 0.05  # lowest skip rate that pays for the decisions. Below half of it, skipping stops
NEVER = "cold policy is never"


class Verdict(msgspec.Struct, frozen=True):
    """Whether a query searches the cold tier, why not, and what to tell the ColdSkipper; None: nothing."""

    search: bool
    reason: str | None = None
    spared: Spared | None = None


class ColdState(msgspec.Struct, frozen=True):
    """Status for operators. Counts start when this generation is loaded.

    `proven`: queries for which no cold passage could score high enough. `audits`: skips searched anyway, to measure
    what skipping loses. `stops`: times that skipping stopped because it lost too much or too few queries skipped.
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


def judge(sparing: Sparing, bounds: ListBounds | None, query: Floats, warm: Ranking, k: int) -> Verdict:
    """Judge a query that found these non-cold passages. Without bounds of the lists it searches them, unless it never
    does."""
    if sparing.never:
        return Verdict(search=False, reason=NEVER)
    if bounds is None or len(warm) < k:
        return Verdict(search=True)
    similarities = bounds.similarities(query)
    bound, kth = bounds.best_possible(similarities), float(warm.scores[k - 1])
    margin = kth - NEAR_WEIGHT * mean_of_best(similarities)
    if bound <= kth:
        reason = f"proven needless: nothing cold can score above {bound:.3f}"
        return Verdict(False, reason, Spared(sparing, "proven", margin))
    if margin > sparing.threshold:
        reason = f"calibrated: margin {margin:.3f} above {sparing.threshold:.3f}"
        return Verdict(False, reason, Spared(sparing, "skipped", margin))
    return Verdict(search=True, spared=Spared(sparing, "searched", margin))


class ColdSkipper:
    """Gives the queries of one generation their threshold, and learns from what they did. Thread-safe."""

    def __init__(self, policy: ColdPolicy, generation: int = 0, *, seed: int = 0) -> None:
        self.policy = policy
        self._generation = generation
        self._lock = threading.Lock()
        self._random = np.random.default_rng(seed)
        self._queries = self._skipped = self._proven = self._audits = self._stops = 0
        self._notes: list[Spared] = []
        self._rule: Rule | None = None

    def sparing(self, *, counted: bool = True) -> Sparing | None:
        """How the next query may spare the cold tier; None: it searches the lists alone. If not `counted`, nothing is
        to be learned from it."""
        if self.policy.mode == "never":
            return Sparing(self._generation, never=True)
        with self._lock:
            rule = self._rule
            learning = self.policy.observed if self.policy.mode == "auto" else 1.0
            observed = counted and self._random.random() < (learning if rule is None else self.policy.audit)
            if rule is not None:
                return Sparing(self._generation, rule.threshold, observed=observed)
        return Sparing(self._generation, observed=True) if observed else None

    def learn(self, spared: Spared) -> None:
        """Learn from a counted query, unless it was judged by another rule than the present one."""
        with self._lock:
            rule = self._rule
            if spared.by.generation != self._generation or spared.by.threshold != (
                math.inf if rule is None else rule.threshold
            ):
                return
            self._queries += 1
            self._skipped += spared.outcome == "skipped"
            self._proven += spared.outcome == "proven"
            if spared.outcome == "proven":
                return
            if rule is None:
                self._note(spared)
                return
            rule.count(spared.outcome == "skipped")
            loses = False
            if spared.outcome == "skipped" and spared.loss is not None:
                self._audits += 1
                rule.audit(spared.loss)
                loses = rule.bound() > self.policy.budget
            if loses or rule.share < SHARE_MIN / 2:
                self._stops += 1
                self._rule = None

    def _note(self, spared: Spared) -> None:
        if spared.loss is None:
            return
        self._notes.append(spared)
        if len(self._notes) < NOTES:
            return
        rule = Rule.chosen(
            np.array([(one.margin, one.loss) for one in self._notes]), SPARE * self.policy.budget
        )
        if rule is not None and (self.policy.mode == "calibrated" or pays(self._notes, rule.share)):
            self._rule = rule
        self._notes.clear()

    def state(self) -> ColdState:
        if self.policy.mode == "never":
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


def pays(notes: Sequence[Spared], share: float) -> bool:
    """Whether skipping the lists for this share of such queries saves more than the search before it takes."""
    first_s, lists_s = (
        float(np.mean([getattr(one, name) for one in notes])) for name in ("first_s", "lists_s")
    )
    return first_s < PAYS * share * lists_s


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
