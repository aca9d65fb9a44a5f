"""Chooses a generation's search settings: the cheapest combination for both tiers that reaches a recall target.

    queries and their true neighbors -> measure each tier separately -> combine -> cheapest pair that meets the target

The tiers' results and times are additive, so combinations are evaluated without running them. Recall is that of the
whole answer to a search for K. Time is this thread's CPU time, which other processes hardly affect: the mean of a
search for K and one for DEPTH, the depth of a hybrid search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from indexes.dense.cold import ColdSettings
from indexes.dense.forecast import Forecast
from indexes.dense.vectors import Found, search_with_one_thread
from indexes.model import Floats, Progress, Tier
from indexes.parts.generation import Generation
from indexes.parts.manifest import RecallEvidence
from indexes.rebuild.shares import Share
from indexes.rebuild.truth import (
    Counts,
    K,
    Truth,
    found_of,
    halves,
    random_filter,
    synthetic_queries,
    true_neighbours,
)

DEPTH = 100  # the default of `search.candidates` in the configuration
QUERIES = 800  # synthetic, per build: half of them to choose by, half to measure with
EFS = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 512)
PROBED_64THS = (1, 2, 4, 6, 8, 16, 32, 64)  # fractions of the lists to probe
REACHES = (0.0, 0.1, 0.16, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3, 0.32, 0.34, 0.36, 0.4, 0.5)
RESCORED = (50, 70, 100, 140, 200, 300, 400)
FILTERED_QUERIES = 300
FILTERED_SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
STEP = 0.002  # minimum gain in predicted recall between tried list settings
PREDICTED_BELOW = 0.005  # by how much a prediction of recall may be too low
TRIED_BEYOND = 3  # more expensive list settings to try: they may allow a cheaper `ef`
TIER_SLACK = 0.02  # by how much one tier may miss it if the other compensates
TIER_MIN = 100  # minimum of true neighbors in a tier for its own recall to count


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting of one tier (`ef` or ColdSettings): true neighbors found per query, and microseconds per query."""

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
        """True neighbors found per query, by cohort."""
        return {"all": self.hot.found + self.cold.found, "hot": self.hot.found, "cold": self.cold.found}


@dataclass(frozen=True, slots=True)
class Optimum:
    """`met`: `best` reaches the target; otherwise it is the pair with the highest recall. `pairs`: cheapest first."""

    best: Pair
    met: bool
    pairs: list[Pair]


@dataclass(frozen=True, slots=True)
class Measured:
    """For the manifest: settings, and recall@10 by cohort on queries they were not chosen by, with its evidence."""

    ef: int
    search: ColdSettings
    recall: dict[str, float]
    evidence: RecallEvidence | UnsetType = UNSET


def choose_settings(
    generation: Generation, target: float, floor: float, asked: Floats | None = None
) -> Measured:
    """Settings for a new generation, by real queries that were `asked`, else by synthetic ones. If none reach the
    target, those with the highest recall."""
    if not generation.size:
        return Measured(*generation.search_settings, {})
    queries = synthetic_queries(generation, QUERIES, seed=5) if asked is None else asked
    truth, other = halves(true_neighbours(generation, queries))
    best = optimise(generation, truth, target, floor).best
    ef, search = best.hot.setting, best.cold.setting
    measured = shares(retried(generation, ef, search, other), other)
    recall = {name: share.recall for name, share in measured.items()}
    if generation.manifest.cold:
        search, _ = cover_filters(generation, search, truth.queries[:FILTERED_QUERIES], target)
        recall["cold_filtered"] = filtered_recall(generation, other.queries[:FILTERED_QUERIES])(search)
    evidence = RecallEvidence(
        "synthetic queries" if asked is None else "logged queries",
        len(other.queries),
        {name: (round(share.low, 4), round(share.high, 4)) for name, share in measured.items()},
    )
    return Measured(ef, search, {name: round(value, 4) for name, value in recall.items()}, evidence)


def optimise(
    generation: Generation,
    truth: Truth,
    target: float,
    floor: float,
    *,
    shown_from: float = 1.0,
    progress: Progress = lambda *_: None,
) -> Optimum:
    """`floor` is the minimum recall of each tier. Also tries settings with predicted recall from `shown_from` on."""
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
    """Settings with predicted recall of at least `least`, cheapest first, each at least STEP above the one before."""
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
    """Measure the settings in this order; stop after one that finds everything.

    The other tier is searched before each timed search, as in real use, so that neither finds its data in the CPU
    caches because it was just searched.
    """

    def hot(query: Floats, depth: int) -> Found:
        return generation.nearest_warm(query, generation.warm_depth(depth), None, 0)

    def cold(query: Floats, depth: int) -> Found:
        return generation.nearest_cold(query, depth, None, 0)

    search, other = (hot, cold) if tier == "hot" else (cold, hot)
    queries, best = truth.queries, truth.hot if tier == "hot" else truth.cold
    trials: list[Trial] = []
    if not generation.tier_rows()[tier]:  # an empty tier finds nothing and costs nothing
        return [Trial(settings[0], np.zeros(len(queries), np.int64), 0.0)]
    for setting in settings:
        generation.tune(**{"ef" if tier == "hot" else "cold": setting})
        for query in queries:
            search(query, DEPTH)  # untimed warm-up: pages in memory-mapped files
        took, results = 0, []
        for depth, query in product((K, DEPTH), queries):
            other(query, depth)
            begun = time.thread_time_ns()
            results.append(search(query, depth))
            took += time.thread_time_ns() - begun
        us = took / (2 * len(queries)) / 1000
        found = [
            found_of(result, scores) for result, scores in zip(results, best, strict=False)
        ]  # for the K searches only
        trials.append(Trial(setting, np.array(found, np.int64), us))
        if sum(found) == sum(map(len, best)):
            break
    return trials


def retried(generation: Generation, ef: int, search: ColdSettings, truth: Truth) -> Pair:
    """These settings, measured on other queries."""
    return Pair(try_tier(generation, "hot", [ef], truth)[0], try_tier(generation, "cold", [search], truth)[0])


def choose(pairs: Sequence[Pair], truth: Truth, target: float, floor: float) -> tuple[Pair, bool]:
    """The cheapest (first) pair whose recall reaches the target by its lower bound, and True; else the one with the
    highest recall, and False.

    A tier with at least TIER_MIN true neighbors must be within TIER_SLACK of the target, and its lower bound above the
    floor, below which the build is refused. The lower bound of the slack would be too strict: a few losses in a tier
    with few neighbors would rule out what is cheaper and finds more.
    """
    held = {name for name, counts in truth.wanted.items() if counts.sum() >= TIER_MIN}
    for pair in pairs:
        found = shares(pair, truth)
        total = found.pop("all")
        if total.sure >= target and all(
            share.recall >= target - TIER_SLACK and share.sure >= floor
            for name, share in found.items()
            if name in held
        ):
            return pair, True
    return max(pairs, key=lambda pair: (int(pair.found["all"].sum()), -pair.us)), False


def cover_filters(
    generation: Generation, chosen: ColdSettings, queries: Floats, target: float
) -> tuple[ColdSettings, float]:
    """`chosen` with the smallest `filtered_share` that reaches the target, and its recall."""
    measured = filtered_recall(generation, queries)
    for share in FILTERED_SHARES:
        setting = msgspec.structs.replace(chosen, filtered_share=share)
        if (recall := measured(setting)) >= target:
            break
    return setting, recall


def filtered_recall(generation: Generation, queries: Floats) -> Callable[[ColdSettings], float]:
    """A function that measures cold recall under a random filter, for any settings."""
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


def shares(pair: Pair, truth: Truth) -> dict[str, Share]:
    """Recall of the whole answer, "all", and of each tier that holds any true neighbors."""
    found = pair.found
    return {name: Share.of(found[name], counts) for name, counts in truth.wanted.items() if counts.any()}
