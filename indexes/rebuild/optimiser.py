"""Chooses how a generation is searched: the cheapest settings of both tiers together that reach a recall.

    queries and their true neighbors -> measure each tier by itself -> combine -> the cheapest pair that reaches it

What two tiers find adds up, and so does their time: every combination is judged without being run. Recall is that of
the whole answer, of a search for K. Time is CPU time of this thread, so that other processes hardly disturb it: the
mean of a search for K and one for DEPTH, which is what a hybrid search asks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec
import numpy as np

from indexes.dense.cold import ColdSettings
from indexes.dense.forecast import Forecast
from indexes.dense.vectors import Found, search_with_one_thread
from indexes.model import Floats, Progress, Tier
from indexes.parts.generation import Generation
from indexes.rebuild.truth import (
    Counts,
    K,
    Truth,
    found_of,
    random_filter,
    synthetic_queries,
    true_neighbours,
)

DEPTH = 100  # `search.candidates` of the configuration, unless somebody changed it
QUERIES = 300  # of a build
EFS = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 512)
PROBED_64THS = (1, 2, 4, 6, 8, 16, 32, 64)  # of the lists
REACHES = (0.0, 0.1, 0.16, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3, 0.32, 0.34, 0.36, 0.4, 0.5)
RESCORED = (50, 70, 100, 140, 200, 300, 400)
FILTERED_SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
STEP = 0.002  # of predicted recall between two settings of the lists that are tried
PREDICTED_BELOW = 0.005  # that recall may be predicted too low
TRIED_BEYOND = 3  # dearer settings of the lists, that may do with less of the graph
CONFIDENT = 1.645  # standard errors: 95 percent on one side
MISS_MAX = 0.005  # that recall on new queries may lie below the target
TIER_SLACK = 0.02  # that one tier may lie below it, while the other makes up for it
TIER_MIN = 100  # true neighbors of a tier from which its own recall is held to that


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting of one tier, an `ef` or ColdSettings: true neighbors found for each query, microseconds a query."""

    setting: Any
    found: Counts
    us: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Settings of both tiers together, measured on the same queries."""

    hot: Trial
    cold: Trial

    @property
    def us(self) -> float:
        return self.hot.us + self.cold.us

    @property
    def found(self) -> dict[str, Counts]:
        """True neighbors found of each query, by cohort."""
        return {"all": self.hot.found + self.cold.found, "hot": self.hot.found, "cold": self.cold.found}


@dataclass(frozen=True, slots=True)
class Optimum:
    """`met`: whether `best` reaches the target; if not, it is what finds the most. `pairs`: all, cheapest first."""

    best: Pair
    met: bool
    pairs: list[Pair]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a build puts in its manifest: settings, and recall@10 by cohort on the queries they were chosen by."""

    ef: int
    search: ColdSettings
    recall: dict[str, float]


def choose_settings(generation: Generation, target: float, floor: float) -> Measured:
    """For a new generation, by synthetic queries. If none reach the target, the settings that find the most."""
    if not generation.size:
        return Measured(*generation.search_settings, {})
    truth = true_neighbours(generation, synthetic_queries(generation, QUERIES, seed=5))
    best = optimise(generation, truth, target, floor).best
    recall = {name: share.recall for name, share in shares(best, truth).items()}
    search: ColdSettings = best.cold.setting
    if generation.manifest.cold:
        search, recall["cold_filtered"] = cover_filters(generation, search, truth.queries, target)
    return Measured(best.hot.setting, search, {name: round(value, 4) for name, value in recall.items()})


def optimise(
    generation: Generation,
    truth: Truth,
    target: float,
    floor: float,
    *,
    shown_from: float = 1.0,
    progress: Progress = lambda *_: None,
) -> Optimum:
    """`floor` is the least recall of either tier. Also tries what is predicted to find `shown_from` or more."""
    search_with_one_thread()
    progress("hot", 0, 1)
    hot = try_tier(generation, "hot", EFS, truth)
    wanted = {name: int(counts.sum()) for name, counts in truth.wanted.items()}
    missing = target * wanted["all"] - max(int(trial.found.sum()) for trial in hot)
    needed = max(floor, target - TIER_SLACK, missing / max(wanted["cold"], 1)) - PREDICTED_BELOW
    ladder = cold_ladder(generation, truth.queries, min(needed, shown_from))
    cold: list[Trial] = []
    met = 0
    for at, setting in enumerate(ladder):
        progress("cold", at, len(ladder))
        cold += try_tier(generation, "cold", [setting], truth)
        met += choose(paired(hot, cold[-1:]), truth, target, floor)[1]
        if met > TRIED_BEYOND and shown_from == 1:
            break
    pairs = paired(hot, cold)
    return Optimum(*choose(pairs, truth, target, floor), pairs)


def paired(hot: Sequence[Trial], cold: Sequence[Trial]) -> list[Pair]:
    """Every combination, cheapest first."""
    return sorted((Pair(one, other) for one, other in product(hot, cold)), key=lambda pair: pair.us)


def cold_ladder(generation: Generation, queries: Floats, least: float) -> list[ColdSettings]:
    """Settings predicted to find `least` or more, cheapest first, each to find clearly more than the one before."""
    if generation.cold is None:
        return [generation.manifest.search]
    forecast = Forecast(generation.cold, queries)
    probes = sorted({max(1, share * forecast.lists // 64) for share in PROBED_64THS})
    grid = [ColdSettings(*one[:2], reach=one[2]) for one in product(probes, RESCORED, REACHES)]
    ladder: list[ColdSettings] = []
    found = least - STEP
    for setting in sorted(grid, key=forecast.cost_ns):
        if (predicted := forecast.recall(setting)) >= found + STEP:
            ladder.append(setting)
            found = predicted
    dearest = grid[-1]
    return [*ladder, *([dearest] if dearest not in ladder else [])]


def try_tier(generation: Generation, tier: Tier, settings: Sequence[Any], truth: Truth) -> list[Trial]:
    """Each setting in this order; those behind one that finds everything are left out.

    Before each search that is timed the other tier is searched, as in use: a walk through a graph whose vectors are
    still in the processor's caches would take half the time.
    """

    def hot(query: Floats, depth: int) -> Found:
        return generation.nearest_warm(query, generation.warm_depth(depth), None, 0)

    def cold(query: Floats, depth: int) -> Found:
        return generation.nearest_cold(query, depth, None, 0)

    search, other = (hot, cold) if tier == "hot" else (cold, hot)
    queries, best = truth.queries, truth.hot if tier == "hot" else truth.cold
    trials: list[Trial] = []
    if not generation.tier_rows()[tier]:  # finds nothing, in no time
        return [Trial(settings[0], np.zeros(len(queries), np.int64), 0.0)]
    for setting in settings:
        generation.tune(**{"ef" if tier == "hot" else "cold": setting})
        for query in queries:
            search(query, DEPTH)  # not timed: brings in pages of mapped files
        took, results = 0, []
        for depth, query in product((K, DEPTH), queries):
            other(query, depth)
            begun = time.thread_time_ns()
            results.append(search(query, depth))
            took += time.thread_time_ns() - begun
        us = took / (2 * len(queries)) / 1000
        found = [found_of(result, scores) for result, scores in zip(results, best, strict=False)]  # of K
        trials.append(Trial(setting, np.array(found, np.int64), us))
        if sum(found) == sum(map(len, best)):
            break
    return trials


def choose(pairs: Sequence[Pair], truth: Truth, target: float, floor: float) -> tuple[Pair, bool]:
    """The first, that is cheapest, pair that reaches the target, True; or if none does what finds the most, False.

    No tier may fall further below the target than TIER_SLACK, nor below the floor, if it has TIER_MIN neighbors.
    """
    held = [name for name, counts in truth.wanted.items() if counts.sum() >= TIER_MIN]
    least = {**dict.fromkeys(held, max(floor, target - TIER_SLACK)), "all": target}
    for pair in pairs:
        if all(share.sure >= least.get(name, 0) for name, share in shares(pair, truth).items()):
            return pair, True
    return max(pairs, key=lambda pair: (int(pair.found["all"].sum()), -pair.us)), False


def cover_filters(
    generation: Generation, chosen: ColdSettings, queries: Floats, target: float
) -> tuple[ColdSettings, float]:
    """These settings with the smallest share of a filter's matches to cover that reaches the target, and the recall."""
    measured = filtered_recall(generation, queries)
    for share in FILTERED_SHARES:
        setting = msgspec.structs.replace(chosen, filtered_share=share)
        if (recall := measured(setting)) >= target:
            break
    return setting, recall


def filtered_recall(generation: Generation, queries: Floats) -> Callable[[ColdSettings], float]:
    """Measures recall of cold passages under a made-up filter, with any settings."""
    allowed = random_filter(generation)
    best = true_neighbours(generation, queries, allowed).cold

    def measure(settings: ColdSettings) -> float:
        generation.tune(cold=settings)
        found = [
            found_of(generation.nearest_cold(query, K, allowed, 0), scores)
            for query, scores in zip(queries, best, strict=True)
        ]
        return sum(found) / sum(map(len, best))

    return measure


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


def shares(pair: Pair, truth: Truth) -> dict[str, Share]:
    """Of the whole answer, "all", and of each tier that has any of the true neighbors."""
    found = pair.found
    return {name: Share.of(found[name], counts) for name, counts in truth.wanted.items() if counts.any()}
