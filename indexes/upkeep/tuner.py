"""Chooses search settings for a live generation by queries, in a child process: `python -m indexes.upkeep.tuner`.

    queries -> two halves -> optimize on one (`optimizer`) -> measure the old and new settings on the other

It loads its own copy of the generation, so trials do not affect the service's searches. Writes nothing:
`Collection.set_search` applies the outcome.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from indexes.base.child import Child, answer
from indexes.base.errors import Conflict, InvalidInput
from indexes.base.model import Floats, Progress, now_ms
from indexes.collection.collection import Collection
from indexes.dense.cold import ColdSettings
from indexes.dense.forecast import Forecast
from indexes.parts.generation import Generation
from indexes.parts.manifest import FILTERED, RecallEvidence
from indexes.parts.shelf import Shelf
from indexes.rebuild.chosen import TunedSettings, read_chosen
from indexes.rebuild.optimizer import (
    Optimum,
    SettingsTrial,
    filtered_recall,
    interval_of,
    optimize,
    shares,
    try_settings,
)
from indexes.rebuild.truth import Truth, halves, synthetic_queries, true_neighbors

QUERIES_MIN = 20
QUERIES = 1000  # synthetic, if none are given
CURVE_POINTS, CURVE_FROM = 40, 0.8


class Measure(msgspec.Struct, frozen=True):
    """Recall@10 on some queries, the ends of the intervals to state (`interval_of`), and microseconds per query."""

    queries: int
    recall: float
    low: float
    high: float
    tiers: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    us: float

    @staticmethod
    def of(trial: SettingsTrial, truth: Truth, *, synthetic: bool) -> Measure:
        found = shares(trial, truth)
        intervals = {name: interval_of(share, synthetic=synthetic) for name, share in found.items()}
        total = found.pop("all")
        tiers = {name: round(share.recall, 4) for name, share in found.items()}
        return Measure(
            len(truth.queries),
            round(total.recall, 4),
            *intervals["all"],
            tiers,
            intervals,
            round(trial.us, 1),
        )


class Point(msgspec.Struct, frozen=True):
    """One point of the curve, on the tuning half. `codes`: estimated mean number of codes scanned per query."""

    ef: int
    probes: int
    reach: float
    rescored: int
    recall: float
    us: float
    codes: int


class TuneOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome. `met`: the settings reach the target on the tuning half; otherwise they have the highest recall.
    `held_out`: the queries were synthetic, and with real ones recall may be as low as the `low` of `validation`.

    `margin` is by how much recall had to exceed the target because the sample of queries is small. `before` measures
    the previous settings on the validation half; `filtered` is recall of cold passages under a filter, on that half.
    """

    generation: int
    seal: str
    recall_target: float
    met: bool
    margin: float
    ef: int
    search: ColdSettings
    tuning: Measure
    validation: Measure
    before_ef: int
    before_search: ColdSettings
    before: Measure
    filtered: float | None
    curve: list[Point]
    held_out: bool
    seconds: float

    @property
    def why_unmet(self) -> str:
        """The error message if no settings reach the target."""
        return (
            f"no settings reach a recall of {self.recall_target:g} on {self.tuning.queries} queries; "
            f"the best found {self.tuning.recall:.4f}; nothing was changed"
        )

    def chosen(self) -> TunedSettings:
        """The outcome as settings for `Collection.set_search`."""
        filtered = {} if self.filtered is None else {FILTERED: self.filtered}
        return TunedSettings(
            recall_target=self.recall_target,
            generation=self.generation,
            seal=self.seal,
            ef=self.ef,
            search=self.search,
            recall={"all": self.validation.recall, **self.validation.tiers, **filtered},
            evidence=RecallEvidence(
                "synthetic queries" if self.held_out else "given queries",
                self.validation.queries,
                self.validation.intervals,
            ),
            chosen_ms=now_ms(),
        )


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """`queries` is the path of a .npy file of float32 unit vectors [n, dimensions]; empty: use synthetic queries."""

    collection: str
    number: int
    queries: str
    recall_target: float
    recall_floor: float


class TuneRun:
    """One tuning run. `run` waits for it; `cancel`, from any thread, kills the child."""

    def __init__(self, collection: Collection, recall_target: float, queries: Floats | None) -> None:
        """`queries` float32 unit vectors [n, dimensions]; None: use synthetic queries.

        Raises Conflict if there is no generation, InvalidInput for a target below the recall floor or too few queries.
        """
        check_target(collection, recall_target)
        if queries is not None:
            check_number(len(queries))
        self._collection = collection
        self._target = recall_target
        self._queries = queries
        what = f"tuning of generation {collection.snapshot.generation}"
        timeout_s = collection.options.build_timeout_s
        self._child = Child("indexes.upkeep.tuner", TuneOutcome, what=what, timeout_s=timeout_s)
        self.cancel = self._child.cancel

    def run(self, progress: Progress) -> TuneOutcome:
        """Raises like `Child.run`. Does not change how the live generation is searched."""
        with self._collection.shelf.scratch() as folder:
            path = Path(folder) / "queries.npy"
            if self._queries is not None:
                np.save(path, self._queries)
            request = TuneRequest(
                collection=str(self._collection.folder),
                number=self._collection.snapshot.generation,
                queries=str(path) if self._queries is not None else "",
                recall_target=self._target,
                recall_floor=self._collection.options.floor,
            )
            return self._child.run(request, progress)


def check_target(collection: Collection, recall_target: float) -> None:
    """Raises Conflict if there is no generation to tune or nothing in it, InvalidInput for a target below the recall
    floor."""
    number = collection.snapshot.generation
    if not number:
        raise Conflict("there is no generation to tune; nearline reindex builds one", param="collection")
    if not any(isinstance(one.part, Generation) and one.part.size for one in collection.snapshot.parts):
        raise Conflict(
            f"generation {number} is empty, so there is nothing to tune; nearline reindex builds one of all that was "
            "written",
            param="collection",
        )
    floor = collection.options.floor
    if recall_target < floor:
        raise InvalidInput(
            f"recall_target must be at least the recall floor, {floor:g}, found {recall_target:g}",
            param="recall_target",
        )


def tune(request: TuneRequest, progress: Progress) -> TuneOutcome:
    """Raises NotFound or Damaged for the generation, InvalidInput for too few queries."""
    begun = time.monotonic()
    progress("load", 0, 1)
    generation = Generation.load(Shelf(Path(request.collection)).path(request.number))
    # Not the build's seed, so that synthetic queries differ from those it measured with.
    queries = np.load(request.queries) if request.queries else synthetic_queries(generation, QUERIES, seed=17)
    check_number(len(queries))
    if present := read_chosen(Path(request.collection)):
        present.apply(generation)
    before_ef, before_search = generation.search_settings
    truth, other = halves(true_neighbors(generation, queries, progress=progress))
    target, synthetic = request.recall_target, not request.queries
    optimum = optimize(
        generation, truth, target, request.recall_floor, shown_from=CURVE_FROM, progress=progress
    )
    best = optimum.best
    progress("validation", 0, 1)
    filtered = None
    if generation.manifest.cold:
        filtered = round(filtered_recall(generation, best.search, other.queries), 4)
    chosen = try_settings(generation, best.ef, best.search, other)
    before = try_settings(generation, before_ef, before_search, other)
    return TuneOutcome(
        generation=generation.number,
        seal=generation.manifest.sha256,
        recall_target=target,
        met=optimum.met,
        margin=round(shares(best, truth)["all"].margin, 4),
        ef=best.ef,
        search=best.search,
        tuning=Measure.of(best, truth, synthetic=synthetic),
        validation=Measure.of(chosen, other, synthetic=synthetic),
        before_ef=before_ef,
        before_search=before_search,
        before=Measure.of(before, other, synthetic=synthetic),
        filtered=filtered,
        curve=curve(optimum, truth, generation),
        held_out=synthetic,
        seconds=round(time.monotonic() - begun, 1),
    )


def check_number(queries: int) -> None:
    """Raises InvalidInput for too few queries to generalize from."""
    if queries < QUERIES_MIN:
        raise InvalidInput(
            f"{queries} different queries are too few; expected at least {QUERIES_MIN}", param="queries"
        )


def curve(optimum: Optimum, truth: Truth, generation: Generation) -> list[Point]:
    """The Pareto front of recall against time, cheapest first, at most CURVE_POINTS points."""
    front: list[tuple[SettingsTrial, float]] = []
    for trial in optimum.trials:
        recall = shares(trial, truth)["all"].recall
        if recall >= max(CURVE_FROM, front[-1][1] + 1e-9 if front else 0):
            front.append((trial, recall))
    shown = np.unique(np.linspace(0, len(front) - 1, CURVE_POINTS).round().astype(int))
    forecast = Forecast(generation.cold, truth.queries) if generation.cold else None
    return [
        Point(
            ef=trial.ef if generation.manifest.hot else 0,
            probes=trial.search.probes,
            reach=trial.search.reach,
            rescored=trial.search.rescored,
            recall=round(recall, 4),
            us=round(trial.us, 1),
            codes=round(forecast.codes(trial.search)) if forecast else 0,
        )
        for trial, recall in (front[at] for at in shown if front)
    ]


if __name__ == "__main__":
    sys.exit(answer(TuneRequest, tune))
