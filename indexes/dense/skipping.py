"""Whether a query needs the cold tier: always, never, or as what recent queries lost without it tells.

    learning   the cold tier is always searched, and each query notes what it would have lost without it
    skipping   enough was noted: a model of the expected loss was fitted to one half of the notes, and on the other half
               the threshold was chosen below which skipping loses less than the budget, at 95 percent confidence
               (risk control with a held-out set: Angelopoulos et al. 2022)
    auditing   one skip in a hundred is searched all the same. What those lost moves the upper bound of the loss; when
               that exceeds the budget, a sequential test says that the loss is not what it was, or hardly any query is
               skipped any more, skipping stops and learning begins anew (`risk`)

The loss of a query is the share of its true nearest k that are cold. Everything belongs to one generation, in memory:
another generation, or a restart, learns again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

import faiss
import numpy as np

from indexes.dense.expecting import FOUND, NUMBERS, Described, Model, Queries, describe
from indexes.dense.risk import STAKES, Evidence, Values, tally, threshold_rank
from indexes.model import ColdPolicy, Floats, Ranking

NOTES = 10_000  # queries noted before skipping begins: half to fit the model, half to choose the threshold
SPARE = 0.8  # of the budget that the threshold may use up; the rest is for what audits find by chance


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do for one query. `note`: pass what it lost, or would have lost, to `learn`."""

    search: bool
    reason: str | None = None  # of a skip
    note: bool = False
    described: Described | None = None


@dataclass(frozen=True, slots=True)
class ColdState:
    """For operators. Counts are of the queries since this generation was loaded."""

    state: Literal["always", "never", "learning", "skipping"]
    queries: int = 0
    skipped: int = 0
    proven: int = 0
    audits: int = 0
    stops: int = 0
    loss_bound: float | None = None


class ListBounds:
    """Centres of the cold lists, and how near to a query anything in a list can be."""

    def __init__(self, centres: Floats, lowest: Floats) -> None:
        """`centres` float32 [lists, dimensions], kept as they are; `lowest` [lists]: least inner product of a centre,
        made a unit vector, with the members of its list."""
        self._centres = centres
        self._lengths = np.maximum(np.linalg.norm(centres, axis=1), 1e-12).astype(np.float32)
        self._radii = np.arccos(np.clip(lowest, -1, 1))

    def similarities(self, query: Floats) -> Floats:
        """With each centre as a unit vector, float32 [lists]."""
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
        found /= self._lengths
        return found

    def best_possible(self, similarities: Floats) -> float:
        """No vector of any list can score more than this."""
        angles = np.arccos(np.clip(similarities, -1, 1)) - self._radii
        return float(np.cos(np.maximum(angles, 0)).max())


class Notes:
    """What was noted of queries, oldest first: how each looked, and what it lost. Room for NOTES."""

    def __init__(self) -> None:
        self.count = 0
        self.numbers = np.zeros((NOTES, NUMBERS))
        self.nearest = np.zeros(NOTES, np.int64)
        self.found = np.zeros((NOTES, FOUND), np.int64)
        self.losses = np.zeros(NOTES)

    def add(self, described: Described, loss: float) -> None:
        self.numbers[self.count] = described.numbers
        self.nearest[self.count] = described.nearest
        self.found[self.count] = described.found
        self.losses[self.count] = loss
        self.count += 1

    def forget_older_half(self) -> None:
        half = self.count // 2
        for column in (self.numbers, self.nearest, self.found, self.losses):
            column[: self.count - half] = column[half : self.count]
        self.count -= half

    def every_other(self, first: int) -> tuple[Queries, Values]:
        """Every second one from this on, and what they lost."""
        rows = slice(first, self.count, 2)
        return Queries(self.numbers[rows], self.nearest[rows], self.found[rows]), self.losses[rows]


class ColdWatch:
    """Decides for the queries of one generation, and learns from them. Safe from any thread.

    `bounds` may be absent where the policy is never to search the cold tier.
    """

    def __init__(self, policy: ColdPolicy, bounds: ListBounds | None, *, seed: int = 0) -> None:
        self.policy = policy
        self._bounds = bounds
        self._lock = threading.Lock()
        self._random = np.random.default_rng(seed)
        self._queries = self._skipped = self._proven = self._audits = self._stops = 0
        self._restart()

    def _restart(self) -> None:
        self._notes = Notes()
        self._calibrating = False
        self._calibrated: Calibrated | None = None
        self._evidence: Evidence | None = None

    def _stop(self) -> None:
        self._stops += 1
        self._restart()

    def decide(self, query: Floats, warm: Ranking, k: int, *, counted: bool = True) -> Decision:
        """For a query that found these passages, none of them cold. One that is not counted teaches nothing."""
        scores = warm.scores
        if self._bounds is None:
            return Decision(False, "cold policy is never")
        if len(scores) < k:
            return Decision(True)
        similarities = self._bounds.similarities(query)
        bound = self._bounds.best_possible(similarities)
        with self._lock:
            self._queries += counted
            if bound <= scores[k - 1]:
                self._proven += counted
                return Decision(False, f"proven needless: nothing cold can score above {bound:.3f}")
            described = describe(warm.ids, scores, similarities, k)
            if self._calibrated is None:
                return Decision(True, note=counted, described=described)
            expected = self._calibrated.model.loss(described)
            skip = expected <= self._calibrated.threshold
            if counted and self._evidence is not None:
                self._evidence.decided(skip)
                if self._evidence.faded:
                    self._stop()
            if not skip:
                return Decision(True)
            self._skipped += counted
            note = counted and bool(self._random.random() < self.policy.audit)
        return Decision(False, f"calibrated: expected loss {expected:.4f} of recall", note, described)

    def learn(self, decision: Decision, loss: float) -> None:
        """What a query lost for want of the cold tier, or would have: 0 to 1. Only for decisions with `note`."""
        assert decision.described is not None
        with self._lock:
            if decision.search is not (self._evidence is None):
                return  # noted before skipping began, or before it stopped
            if self._evidence is not None:
                self._audits += 1
                self._evidence.add(loss)
                if self._evidence.bound() > self.policy.budget or self._evidence.alarm:
                    self._stop()
                return
            if self._calibrating:
                return
            self._notes.add(decision.described, loss)
            if self._notes.count < NOTES:
                return
            self._calibrating = True  # nothing is noted meanwhile
        # Some hundredths of a second; only the query that completes the notes waits for it.
        found = calibrated(self._notes, SPARE * self.policy.budget)
        with self._lock:
            self._calibrating = False
            if found is None:
                self._notes.forget_older_half()  # this load needs the cold tier; look again after as many more
                return
            self._calibrated = found
            self._evidence = Evidence(found.held_out, found.skipped, self.policy.budget, found.stake)
            self._notes = Notes()

    def state(self) -> ColdState:
        if self._bounds is None:
            return ColdState("never")
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
    """A model, the expected loss up to which a query is skipped, and what that cost the held-out queries.

    `skipped` tallies the losses of those that would have been; `stake` is what bounds were bet with.
    """

    model: Model
    threshold: float
    held_out: int
    skipped: Values
    stake: float


def calibrated(notes: Notes, budget: float) -> Calibrated | None:
    """Fits a model to every other note and chooses its threshold by the rest. None where nothing can be skipped."""
    # Turn about, so that a load that drifts is in both halves alike.
    seen, lost = notes.every_other(0)
    model = Model.fitted(seen, lost)
    expected = model.losses(seen)
    # The stake that would skip most in this half: a bound holds for any that was chosen without the other.
    stake = max(STAKES, key=lambda one: threshold_rank(expected, lost, budget, one))
    rest, lost = notes.every_other(1)
    expected = model.losses(rest)
    count = threshold_rank(expected, lost, budget, stake)
    if count == 0:
        return None
    order = np.argsort(expected, kind="stable")[:count]
    return Calibrated(model, float(expected[order[-1]]), len(lost), tally(lost[order]), stake)
