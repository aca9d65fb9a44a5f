"""Chooses search settings for a live generation by queries: the cheapest, in time measured here, that reach a recall.

    queries -> two halves -> exact neighbours -> trials on the one half (`trials`) -> choose -> check on the other half

Runs in a process of its own (`child`), which loads the generation once more: what is tried touches no search of the
service. Nothing is written: applying the outcome is `Collection.set_search`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

from indexes.build.chosen import read_chosen
from indexes.build.measuring import FILTERED_SHARES, Counts, Truth, outlook_of, true_neighbours
from indexes.build.trials import (
    REPEATS,
    Trial,
    run_cold,
    run_filtered,
    run_hot,
    try_cold,
    try_hot,
)
from indexes.child import answer
from indexes.dense.cold import ColdSettings
from indexes.dense.probing import probes_of
from indexes.errors import InvalidInput
from indexes.model import Floats, Progress
from indexes.parts.generation import Generation, Shelf

QUERIES_MIN = 20
PROBES = 1000  # made of stored vectors, where no queries are given
CONFIDENT = 1.645  # standard errors: 95 percent on one side
MISS_MAX = 0.005  # that recall on new queries may lie below the target
TIER_SLACK = 0.01  # that one tier may lie below it, while the other makes up for it
TIER_MIN = 100  # true neighbours of a tier from which its own recall is held to that
FILTERED_QUERIES = 300
CURVE_POINTS, CURVE_FROM = 40, 0.8


class Measure(msgspec.Struct, frozen=True):
    """Recall at 10 on some queries, half the width of its 95 percent interval, and microseconds in the indexes."""

    queries: int
    recall: float
    half_width: float
    tiers: dict[str, float]
    us: float


class Point(msgspec.Struct, frozen=True):
    """One setting of the curve, on the tuning half. `codes`: about how many a query scans, on average."""

    ef: int
    probes: int
    reach: float
    rescored: int
    recall: float
    us: float
    codes: int


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome. `met`: whether settings reach the target on the tuning half; if not, these find the most.

    `margin` is what recall had to be above the target for the sake of few queries. `before` is of the settings in use
    until now, on the validation half; `filtered` recall under a made-up filter on both halves.
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
    filtered: dict[str, float]
    curve: list[Point]
    held_out: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """`queries` is a file of float32 unit vectors [n, dimensions], or empty for made-up ones."""

    collection: str
    number: int
    queries: str
    recall_target: float
    recall_floor: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Settings of both tiers together, on one half of the queries."""

    hot: Trial[int]
    cold: Trial[ColdSettings]

    @property
    def us(self) -> float:
        return self.hot.us + self.cold.us

    @property
    def found(self) -> dict[str, Counts]:
        """True neighbours found of each query, by tier."""
        return {"hot": self.hot.found, "cold": self.cold.found}


def tune(request: TuneRequest, progress: Progress) -> Tuned:
    """Raises NotFound or Damaged for the generation, InvalidInput for too few queries."""
    begun = time.monotonic()
    progress("load", 0, 1)
    generation = Generation.load(Shelf(Path(request.collection)).path(request.number))
    queries = np.load(request.queries) if request.queries else held_out(generation)
    check_number(len(queries))
    if present := read_chosen(Path(request.collection)):
        present.apply(generation)
    before_ef, before = generation.search_settings
    order = np.random.default_rng(7).permutation(len(queries))
    halves = [np.ascontiguousarray(queries[order[at::2]]) for at in (0, 1)]
    truth, other = (true_neighbours(generation, half, progress=progress) for half in halves)
    hot = try_hot(generation, truth, progress)
    for cold in try_cold(generation, truth, request.recall_target, progress):
        pairs = all_pairs(hot, cold)
        chosen, met = choose(pairs, truth, request.recall_target, request.recall_floor)
        if met:
            break
    search, filtered = cover_filters(generation, chosen.cold.setting, halves, request.recall_target, progress)
    # Both in turns, so that they compare.
    efs, searches = [chosen.hot.setting, before_ef], [search, before]
    validated = [
        Pair(hot, cold)
        for hot, cold in zip(
            run_hot(generation, efs, other, REPEATS, progress),
            run_cold(generation, searches, other, REPEATS, progress),
            strict=True,
        )
    ]
    return Tuned(
        generation=generation.number,
        seal=generation.manifest.sha256,
        recall_target=request.recall_target,
        met=met,
        margin=round(Share.of(sum_of(chosen.found), sum_of(truth.wanted)).margin, 4),
        ef=chosen.hot.setting,
        search=search,
        tuning=measured(chosen, truth),
        validation=measured(validated[0], other),
        before_ef=before_ef,
        before_search=before,
        before=measured(validated[1], other),
        filtered=filtered,
        curve=list(curve(pairs, truth, generation)),
        held_out=not request.queries,
        seconds=round(time.monotonic() - begun, 1),
    )


def check_number(queries: int) -> None:
    """Raises InvalidInput for so few queries that they say nothing of the next ones."""
    if queries < QUERIES_MIN:
        raise InvalidInput(
            f"{queries} different queries are too few; expected at least {QUERIES_MIN}", param="queries"
        )


def held_out(generation: Generation, *, seed: int = 17) -> Floats:
    """Queries made of stored vectors as those of the builder are, but of others than it measured by."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(generation.size, min(PROBES, generation.size), replace=False)
    return probes_of(generation.vectors.take(rows), seed=seed)


# --- choosing -------------------------------------------------------------------------------------------------


def all_pairs(hot: Sequence[Trial[int]], cold: Sequence[Trial[ColdSettings]]) -> list[Pair]:
    """Cheapest first."""
    return sorted((Pair(one, other) for one, other in product(hot, cold)), key=lambda pair: pair.us)


def choose(pairs: Sequence[Pair], truth: Truth, target: float, floor: float) -> tuple[Pair, bool]:
    """The cheapest pair that reaches the target, True; or, if none does, the one that finds the most, False.

    No tier may fall further below the target than TIER_SLACK, nor below the floor, if it has TIER_MIN neighbours.
    """
    least = max(floor, target - TIER_SLACK)
    wanted = truth.wanted
    held = [name for name, counts in wanted.items() if int(counts.sum()) >= TIER_MIN]
    for pair in pairs:
        found = pair.found
        if Share.of(sum_of(found), sum_of(wanted)).sure < target:
            continue
        if all(Share.of(found[name], wanted[name]).sure >= least for name in held):
            return pair, True
    return max(pairs, key=lambda pair: (int(sum_of(pair.found).sum()), -pair.us)), False


@dataclass(frozen=True, slots=True)
class Share:
    """Recall, and the standard error with which it tells that of other queries."""

    recall: float
    error: float

    @staticmethod
    def of(found: Counts, wanted: Counts) -> Share:
        """By query: what one walk misses it often misses all at once. The error is that of a ratio of two sums."""
        total = int(wanted.sum())
        if not total:
            return Share(1.0, 0.0)
        recall = int(found.sum()) / total
        spread = float(np.square(found - recall * wanted).sum())
        return Share(recall, float(np.sqrt(spread * len(found) / max(len(found) - 1, 1))) / total)

    @property
    def margin(self) -> float:
        """What recall here must be above a target, so that on other queries it is not MISS_MAX below it."""
        return max(0.0, CONFIDENT * self.error - MISS_MAX)

    @property
    def sure(self) -> float:
        return self.recall - self.margin


def sum_of(tiers: Mapping[str, Counts]) -> Counts:
    return tiers["hot"] + tiers["cold"]


def measured(pair: Pair, truth: Truth) -> Measure:
    found, wanted = pair.found, truth.wanted
    share = Share.of(sum_of(found), sum_of(wanted))
    return Measure(
        queries=len(truth.queries),
        recall=round(share.recall, 4),
        half_width=round(1.96 * share.error, 4),
        tiers={
            name: round(Share.of(found[name], counts).recall, 4)
            for name, counts in wanted.items()
            if counts.any()
        },
        us=round(pair.us, 1),
    )


def cover_filters(
    generation: Generation,
    chosen: ColdSettings,
    halves: Sequence[Floats],
    target: float,
    progress: Progress,
) -> tuple[ColdSettings, dict[str, float]]:
    """These settings with the smallest share of a filter's matches to be covered that reaches the target."""
    if not generation.manifest.cold:
        return chosen, {}
    tuning, validation = (half[:FILTERED_QUERIES] for half in halves)
    ladder = [msgspec.structs.replace(chosen, filtered_share=share) for share in FILTERED_SHARES]
    recall, setting = 0.0, ladder[-1]
    for trial, wanted in run_filtered(generation, ladder, tuning, progress):
        recall, setting = int(trial.found.sum()) / wanted, trial.setting
        if recall >= target:
            break
    [(trial, wanted)] = run_filtered(generation, [setting], validation, progress)
    return setting, {"tuning": round(recall, 4), "validation": round(int(trial.found.sum()) / wanted, 4)}


def curve(pairs: Sequence[Pair], truth: Truth, generation: Generation) -> Iterator[Point]:
    """What more time buys: settings that nothing cheaper equals, cheapest first, at most CURVE_POINTS of them."""
    front: list[tuple[Pair, float]] = []
    wanted = sum_of(truth.wanted)
    for pair in pairs:
        recall = Share.of(sum_of(pair.found), wanted).recall
        if recall >= CURVE_FROM and (not front or recall > front[-1][1]):
            front.append((pair, recall))
    spread = np.linspace(0, len(front) - 1, CURVE_POINTS).round().astype(int)
    outlook = outlook_of(generation, truth.queries) if generation.cold else None
    for pair, recall in (front[at] for at in np.unique(spread) if front):
        cold = pair.cold.setting if outlook else ColdSettings()
        yield Point(
            ef=pair.hot.setting if generation.manifest.hot else 0,
            probes=cold.probes,
            reach=cold.reach,
            rescored=cold.rescored,
            recall=round(recall, 4),
            us=round(pair.us, 1),
            codes=round(outlook.codes(cold)) if outlook else 0,
        )


if __name__ == "__main__":
    sys.exit(answer(TuneRequest, tune))
