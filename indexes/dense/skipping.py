"""Whether a query needs the cold tier: always, never, or as what recent queries lost without it tells.

    learning   the cold tier is always searched, and each query notes what it would have lost without it
    skipping   enough was noted: a model of the expected loss was fitted to one half of the notes, and on the other half
               the threshold was chosen below which skipping loses less than the budget, at 95 percent confidence
               (risk control with a held-out set: Angelopoulos et al. 2022)
    auditing   one skip in a hundred is searched all the same. What those lost moves the upper bound of the loss; when
               that exceeds the budget, or a sequential test says that the loss is not what it was (betting on means:
               Waudby-Smith and Ramdas 2023), skipping stops and learning begins anew

The loss of a query is the share of its true nearest k that are cold. Everything belongs to one generation, in memory:
another generation, or a restart, learns again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from indexes.model import ColdPolicy, Floats

Values = NDArray[np.float64]
Counts = NDArray[np.int64]

NOTES = 10_000  # queries noted before skipping begins: half to fit the model, half to choose the threshold
CONFIDENCE = 0.95
SPARE = 0.8  # of the budget that the threshold may use up; the rest is for what audits find by chance
ROUNDS, RIDGE, CONVERGED = 25, 1e-3, 1e-6  # of fitting
PRIOR_QUERIES = 2.0  # what a list has lost so far counts as that of all lists until it was nearest so often
BETS = (2.0, 8.0, 30.0)  # stakes of the sequential test, each quickest for another size of change
SHARE_QUERIES = 2000  # over so many the share that skips is counted: a load may come to skip more than it did
ALARM = 100.0  # what a stake must have grown to; by chance alone it would once in so many audits at most


@dataclass(frozen=True, slots=True)
class Described:
    """What is known of a query before the cold tier is searched: some numbers, and which cold list is nearest."""

    numbers: Values
    nearest: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do for one query. `note`: pass what it lost, or would have lost, to `learn`."""

    search: bool
    reason: str | None = None  # of a skip
    note: bool = False
    described: Described | None = None


@dataclass(frozen=True, slots=True)
class ColdState:
    """For operators. Shares are of the queries since this generation was loaded."""

    state: Literal["always", "never", "learning", "skipping"]
    queries: int = 0
    skipped: int = 0
    proven: int = 0
    audits: int = 0
    stops: int = 0
    loss_bound: float | None = None


class ListBounds:
    """Centres of the cold lists, and how near to a query anything in a list can be."""

    def __init__(self, centres: Floats, lowest: Floats | None) -> None:
        """`centres` [lists, dimensions]; `lowest` [lists]: least inner product of a unit centre with its members."""
        lengths = np.linalg.norm(centres, axis=1, keepdims=True)
        self._centres = np.ascontiguousarray(centres / np.maximum(lengths, 1e-12), dtype=np.float32)
        self._radii = None if lowest is None else np.arccos(np.clip(lowest, -1, 1))

    def similarities(self, query: Floats) -> Floats:
        found = np.empty(len(self._centres), np.float32)
        query = np.ascontiguousarray(query, np.float32)
        # Not `@`: BLAS spreads so small a product over all cores and waits for them. Beside other work on the machine
        # that took 9 ms for 1,200 lists, where one core takes 0.1.
        faiss.fvec_inner_products_ny(
            faiss.swig_ptr(found),
            faiss.swig_ptr(query),
            faiss.swig_ptr(self._centres),
            len(query),
            len(found),
        )
        return found

    def best_possible(self, similarities: Floats) -> float:
        """No vector of any list can score more than this; 1 where the lists' sizes are not known."""
        if self._radii is None:
            return 1.0
        angles = np.arccos(np.clip(similarities, -1, 1)) - self._radii
        return float(np.cos(np.maximum(angles, 0)).max())


class ColdWatch:
    """Decides for the queries of one generation, and learns from them. Safe from any thread."""

    def __init__(self, policy: ColdPolicy, bounds: ListBounds, *, seed: int = 0) -> None:
        self.policy = policy
        self._bounds = bounds
        self._lock = threading.Lock()
        self._random = np.random.default_rng(seed)
        self._queries = self._skipped = self._proven = self._audits = self._stops = 0
        self._restart()

    def _restart(self) -> None:
        self._noted: list[tuple[Described, float]] = []
        self._calibrating = False
        self._model: Model | None = None
        self._threshold = -math.inf
        self._evidence: Evidence | None = None

    def decide(self, query: Floats, scores: Floats, k: int) -> Decision:
        """For a query whose best non-cold scores are these, best first."""
        mode = self.policy.mode
        if mode == "never":
            return Decision(False, "cold policy is never")
        if mode == "always" or len(scores) < k:
            return Decision(True)
        similarities = self._bounds.similarities(query)
        bound = self._bounds.best_possible(similarities)
        with self._lock:
            self._queries += 1
            if bound <= scores[k - 1]:
                self._proven += 1
                return Decision(False, f"proven needless: nothing cold can score above {bound:.3f}")
            described = describe(scores, similarities, k)
            if self._model is None:
                return Decision(True, note=True, described=described)
            expected = self._model.loss(described)
            if self._evidence is not None:
                self._evidence.decided(expected <= self._threshold)
            if expected > self._threshold:
                return Decision(True)
            self._skipped += 1
            note = bool(self._random.random() < self.policy.audit)
        return Decision(False, f"calibrated: expected loss {expected:.4f} of recall", note, described)

    def learn(self, decision: Decision, loss: float) -> None:
        """What a query lost for want of the cold tier, or would have: 0 to 1. Only for decisions with `note`."""
        assert decision.described is not None
        with self._lock:
            if self._evidence is not None:
                if decision.search:
                    return  # noted before skipping began
                self._audits += 1
                self._evidence.add(loss)
                if self._evidence.bound() > self.policy.budget or self._evidence.alarm:
                    self._stops += 1
                    self._restart()
                return
            if self._calibrating:
                return
            self._noted.append((decision.described, loss))
            if len(self._noted) < NOTES:
                return
            self._calibrating = True
            noted = self._noted
        # Some hundredths of a second; only the query that completes the notes waits for it.
        found = calibrated(noted, SPARE * self.policy.budget)
        with self._lock:
            self._calibrating = False
            if found is None:
                self._noted = noted[
                    NOTES // 2 :
                ]  # this load needs the cold tier; look again after as many more
                return
            self._model, self._threshold = found.model, found.threshold
            self._evidence = Evidence(found.held_out, found.skipped, found.lost, self.policy.budget)
            self._noted = []

    def state(self) -> ColdState:
        if self.policy.mode != "calibrated":
            return ColdState(self.policy.mode)
        with self._lock:
            return ColdState(
                "learning" if self._evidence is None else "skipping",
                self._queries,
                self._skipped,
                self._proven,
                self._audits,
                self._stops,
                None if self._evidence is None else round(self._evidence.bound(), 6),
            )


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A model, the expected loss up to which a query is skipped, and what that cost the held-out queries."""

    model: Model
    threshold: float
    held_out: int
    skipped: int
    lost: float


def calibrated(noted: Sequence[tuple[Described, float]], budget: float) -> Calibrated | None:
    """Fits a model to every other note and chooses its threshold by the rest. None where nothing can be skipped."""
    described = [one for one, _ in noted]
    losses = np.array([loss for _, loss in noted])
    # Turn about, so that a load that drifts is in both halves alike.
    model = Model.fitted(described[::2], losses[::2])
    expected, lost = model.losses(described[1::2]), losses[1::2]
    count = threshold_rank(expected, lost, budget)
    if count == 0:
        return None
    order = np.argsort(expected, kind="stable")
    threshold = float(expected[order[count - 1]])
    return Calibrated(model, threshold, len(lost), count, float(lost[order[:count]].sum()))


class Evidence:
    """What is known of the loss of skipping: the held-out queries, then the audits, the oldest fading as they come."""

    def __init__(self, held_out: int, skipped: int, lost: float, budget: float) -> None:
        self._share = skipped / held_out  # of queries that are skipped
        self._budget = budget
        self._full = self._seen = float(skipped)
        self._lost = lost
        self._stakes = np.ones(len(BETS))

    def decided(self, skipped: bool) -> None:
        """Keep count of the share that is skipped. It belongs to the load as much as the loss of a skip does."""
        self._share += (skipped - self._share) / SHARE_QUERIES

    def add(self, loss: float) -> None:
        fading = 1 - 1 / (self._full + 1)
        self._seen = fading * self._seen + 1
        self._lost = fading * self._lost + loss
        # What a skip may lose on average for all of them to use up the budget. A skip went before, so the share is
        # above zero; and no stake may go below zero, so where little is skipped it counts for little.
        growth = 1 + np.array(BETS) * (loss - self._budget / self._share)
        self._stakes = np.maximum(self._stakes, 1) * np.maximum(growth, 0)

    def bound(self) -> float:
        """Upper bound, at CONFIDENCE, of the recall that skipping costs on average over all queries."""
        return self._share * upper_mean(self._lost, self._seen)

    @property
    def alarm(self) -> bool:
        return bool(self._stakes.max() > ALARM)


class ListLosses:
    """What queries have lost so far, by the cold list nearest to them, and how often each list was nearest."""

    def __init__(self, nearest: Counts, losses: Values) -> None:
        lists = int(nearest.max()) + 1
        self._mean = float(losses.mean())
        self._queries: Values = np.bincount(nearest, minlength=lists).astype(np.float64)
        self._sums: Values = np.bincount(nearest, weights=losses, minlength=lists).astype(np.float64)

    def seen(self, nearest: Counts) -> NDArray[np.bool_]:
        """Whether any query was near these lists."""
        known = nearest < len(self._queries)
        return known & (self._queries[np.where(known, nearest, 0)] > 0)

    def features(self, nearest: Counts, losses: Values | None = None) -> Values:
        """[n, 2]: mean loss and, as a logarithm, number of queries. With `losses`, each query's own is left out."""
        at = np.minimum(nearest, len(self._queries) - 1)
        queries, sums = self._queries[at], self._sums[at]
        if losses is not None:
            queries, sums = queries - 1, sums - losses
        means = (sums + PRIOR_QUERIES * self._mean) / (queries + PRIOR_QUERIES)
        return np.stack([means, np.log1p(queries)], axis=1)


class Model:
    """Expected loss of a query: logistic regression on its standardised features, their squares and products.

    A query with a number beyond all that it was fitted to, or near a list that no query was near, is expected to lose
    everything: squares tell nothing of what lies beyond.
    """

    def __init__(
        self, lists: ListLosses, numbers: Values, mean: Values, scale: Values, weights: Values
    ) -> None:
        self._lists, self._mean, self._scale, self._weights = lists, mean, scale, weights
        self._least, self._most = numbers.min(axis=0), numbers.max(axis=0)
        count = len(mean)
        self._linear, self._products = weights[1 : 1 + count], np.zeros((count, count))
        self._products[np.triu_indices(count)] = weights[1 + count :]

    @staticmethod
    def fitted(described: Sequence[Described], losses: Values) -> Model:
        """By iteratively reweighted least squares with a ridge, which keeps separable data finite."""
        numbers, nearest = numbers_of(described), nearest_of(described)
        lists = ListLosses(nearest, losses)
        features = np.hstack([numbers, lists.features(nearest, losses)])
        mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-9
        terms = expanded((features - mean) / scale)
        weights = np.zeros(terms.shape[1])
        ridge = RIDGE * len(terms)
        for _ in range(ROUNDS):
            expected = 1 / (1 + np.exp(-np.clip(terms @ weights, -30, 30)))
            curvature = np.maximum(expected * (1 - expected), 1e-6)
            normal = (terms * curvature[:, None]).T @ terms + ridge * np.eye(terms.shape[1])
            step = np.linalg.solve(normal, terms.T @ (losses - expected) - ridge * weights)
            weights = weights + step
            if np.abs(step).max() < CONVERGED:
                break
        return Model(lists, numbers, mean, scale, weights)

    def losses(self, described: Sequence[Described]) -> Values:
        numbers, nearest = numbers_of(described), nearest_of(described)
        features = np.hstack([numbers, self._lists.features(nearest)])
        terms = expanded((features - self._mean) / self._scale)
        found = 1 / (1 + np.exp(-np.clip(terms @ self._weights, -30, 30)))
        strange = ((numbers < self._least) | (numbers > self._most)).any(axis=1)
        return np.where(strange | ~self._lists.seen(nearest), 1.0, found)

    def loss(self, described: Described) -> float:
        """The same for one query, in a quarter of the time: every search of a skipping collection asks."""
        numbers, nearest = described.numbers, np.array([described.nearest])
        if (numbers < self._least).any() or (numbers > self._most).any() or not self._lists.seen(nearest)[0]:
            return 1.0
        scaled = (np.concatenate([numbers, self._lists.features(nearest)[0]]) - self._mean) / self._scale
        value = float(self._weights[0] + (self._linear + self._products @ scaled) @ scaled)
        return 1 / (1 + math.exp(-min(max(value, -30), 30)))


def numbers_of(described: Sequence[Described]) -> Values:
    return np.array([one.numbers for one in described])


def nearest_of(described: Sequence[Described]) -> Counts:
    return np.array([one.nearest for one in described])


def describe(scores: Floats, similarities: Floats, k: int) -> Described:
    """The k-th score, its distance to the first, and how near the cold lists are: the nearest, and eight on average."""
    near = similarities if len(similarities) <= 8 else np.partition(similarities, -8)[-8:]
    kth = float(scores[k - 1])
    numbers = np.array([kth, float(scores[0]) - kth, float(near.max()), float(near.mean())])
    return Described(numbers, int(similarities.argmax()))


def expanded(features: Values) -> Values:
    """[n, features] with a constant, squares and products added."""
    first, second = np.triu_indices(features.shape[1])
    return np.hstack([np.ones((len(features), 1)), features, features[:, first] * features[:, second]])


def threshold_rank(expected: Values, lost: Values, budget: float) -> int:
    """How many of these queries, in the order of their expected loss, may be skipped within the budget."""
    order = np.argsort(expected, kind="stable")
    sums = np.cumsum(lost[order])
    # The loss is summed over skips and divided by all queries: one more skip never lowers the bound.
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if upper_mean(float(sums[middle - 1]), len(order)) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def upper_mean(total: float, count: float) -> float:
    """Upper confidence bound of the mean of `count` values between 0 and 1 that add up to `total`.

    The largest mean under which so small a sum is not too unlikely, by relative entropy (Hoeffding 1963, theorem 1).
    """
    if total >= count:
        return 1.0
    mean, allowed = total / count, math.log(1 / (1 - CONFIDENCE)) / count
    low, high = mean, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if relative_entropy(mean, middle) <= allowed:
            low = middle
        else:
            high = middle
    return high


def relative_entropy(found: float, true: float) -> float:
    """How surprising a share of `found` is where `true` is expected, in nats a value."""
    if true >= 1:
        return math.inf
    ones = found * math.log(found / true) if found > 0 else 0.0
    return ones + (1 - found) * math.log((1 - found) / (1 - true))
