"""Chooses a generation's search settings: the cheapest that reach a recall target.

    queries and their true neighbors -> the cheapest graph that finds the hot ones -> the cheapest lists that find all

The lists hold both tiers, so their recall is that of the whole answer to a search for K; the graph answers alone where
the cold tier is skipped or empty. Time is this thread's CPU time, which other processes hardly affect: the mean of a
search for K and one for DEPTH, the depth of a hybrid search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from indexes.base.model import Floats, Progress
from indexes.dense.cold import ColdIndex, ColdSettings
from indexes.dense.forecast import Forecast
from indexes.dense.vectors import Found, search_with_one_thread
from indexes.parts.generation import Generation
from indexes.parts.manifest import FILTERED, RecallEvidence
from indexes.rebuild.shares import Share
from indexes.rebuild.truth import (
    TIE,
    Counts,
    K,
    Truth,
    found_of,
    halves,
    synthetic_queries,
    topical_filter,
    true_neighbors,
)

DEPTH = 100  # the default of `search.candidates` in the configuration
REAL_MISSES = 3  # real queries miss up to this many times as much as synthetic ones
QUERIES = 800  # synthetic, per build: half of them to choose by, half to measure with
EFS = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 512)
PROBED_64THS = (1, 2, 4, 6, 8, 16, 32, 64)  # fractions of the lists to probe
REACHES = (0.0, 0.1, 0.16, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3, 0.32, 0.34, 0.36, 0.4, 0.5)
RESCORED = (50, 70, 100, 140, 200, 300, 400)
FILTERED_QUERIES = 300
STEP = 0.002  # minimum gain in predicted recall between tried list settings
PREDICTED_BELOW = 0.005  # by how much a prediction of recall may be too low
TIER_SLACK = 0.02  # by how much one tier may miss it if the other compensates
TIER_MIN = 100  # minimum of true neighbors in a tier for its own recall to count


@dataclass(frozen=True, slots=True)
class SettingsTrial:
    """Settings, the true neighbors that they found per query, by cohort, and microseconds per query.

    "hot" is what the graph found alone, "all" and "cold" what the whole search did.
    """

    ef: int
    search: ColdSettings
    found: dict[str, Counts]
    us: float


@dataclass(frozen=True, slots=True)
class Optimum:
    """`met`: `best` reaches the target; otherwise it is the trial with the highest recall. `trials`: cheapest first."""

    best: SettingsTrial
    met: bool
    trials: list[SettingsTrial]


@dataclass(frozen=True, slots=True)
class Measured:
    """For the manifest: settings, and recall@10 by cohort on queries they were not chosen by, with its evidence."""

    ef: int
    search: ColdSettings
    recall: dict[str, float]
    evidence: RecallEvidence | None


def interval_of(share: Share, *, synthetic: bool) -> tuple[float, float]:
    """The interval to state. That of synthetic queries begins lower, because real ones may be harder."""
    misses = (1 - share.low) * (REAL_MISSES if synthetic else 1)
    return round(max(1 - misses, 0.0), 4), round(share.high, 4)


def choose_settings(
    generation: Generation, target: float, floor: float, asked: Floats | None = None, source: str = ""
) -> Measured:
    """Choose settings for a new generation, by the questions in `asked`, which are from `source`, else by synthetic
    ones. If none reach the target, those with the highest recall."""
    if not generation.size:
        return Measured(*generation.search_settings, recall={}, evidence=None)
    queries = synthetic_queries(generation, QUERIES, seed=5) if asked is None else asked
    truth, other = halves(true_neighbors(generation, queries))
    best = optimize(generation, truth, target, floor).best
    ef, search = best.ef, best.search
    measured = shares(try_settings(generation, ef, search, other), other)
    recall = {name: share.recall for name, share in measured.items()}
    if generation.manifest.cold:
        recall[FILTERED] = filtered_recall(generation, search, other.queries)
    evidence = RecallEvidence(
        "synthetic queries" if asked is None else source,
        len(other.queries),
        {name: interval_of(share, synthetic=asked is None) for name, share in measured.items()},
    )
    return Measured(ef, search, {name: round(value, 4) for name, value in recall.items()}, evidence)


def optimize(
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
    graphs: list[SettingsTrial] = []
    for ef in EFS if generation.manifest.hot else EFS[:1]:
        graphs.append(try_graph(generation, ef, truth))
        if graphs[-1].found["hot"].sum() == truth.wanted["hot"].sum():
            break
    graph, met = choose(graphs, truth, target, floor, by="hot")
    if generation.cold is None:
        return Optimum(graph, met, graphs)
    ladder = cold_ladder(
        generation.cold, truth.queries, min(max(floor, target) - PREDICTED_BELOW, shown_from)
    )
    trials: list[SettingsTrial] = []
    for query in truth.queries:  # untimed: pages of memory-mapped files
        generation.cold.nearest(query, DEPTH, None, generation.cold.size, ladder[-1])
    for at, setting in enumerate(ladder):
        progress("cold", at, len(ladder))
        trials.append(try_lists(generation, graph, setting, truth))
        found_all = trials[-1].found["all"].sum() == truth.wanted["all"].sum()
        if found_all or (shown_from == 1 and choose(trials, truth, target, floor)[1]):
            break
    trials.sort(key=lambda trial: trial.us)
    return Optimum(*choose(trials, truth, target, floor), trials)


def cold_ladder(shard: ColdIndex, queries: Floats, least: float) -> list[ColdSettings]:
    """Settings with predicted recall of at least `least`, cheapest first, each at least STEP above the one before."""
    forecast = Forecast(shard, queries)
    probes = sorted({max(1, share * forecast.lists // 64) for share in PROBED_64THS})
    grid = [ColdSettings(*one[:2], reach=one[2]) for one in product(probes, RESCORED, REACHES)]
    ladder: list[ColdSettings] = []
    dearest, found = grid[-1], least - STEP
    most = forecast.recall(dearest)
    for setting in sorted(grid, key=forecast.cost_ns):
        if found > most - STEP:
            break
        if (predicted := forecast.recall(setting)) >= found + STEP:
            ladder.append(setting)
            found = predicted
    return [*ladder, *([dearest] if dearest not in ladder else [])]


def try_graph(generation: Generation, ef: int, truth: Truth) -> SettingsTrial:
    """Measure the hot tier alone."""
    generation.tune(ef=ef)
    results, us = time_searches(
        lambda query, depth: generation.nearest_warm(query, depth, None, 0), truth.queries
    )
    counts = found_in(results, truth.hot)
    both = {} if generation.manifest.cold else {"all": counts}
    return SettingsTrial(ef, generation.manifest.search, {**both, "hot": counts}, us)


def try_lists(
    generation: Generation, graph: SettingsTrial, search: ColdSettings, truth: Truth
) -> SettingsTrial:
    """Measure the search of both tiers; `graph` says what the hot tier finds alone."""
    generation.tune(cold=search)
    results, us = time_searches(lambda query, depth: generation.nearest(query, depth, None, 0), truth.queries)
    best = [np.sort(np.concatenate(both))[::-1] for both in zip(truth.hot, truth.cold, strict=True)]
    cold = found_in([only(result, generation.tier_rows()["cold"]) for result in results], truth.cold)
    cold = np.maximum(cold, found_beside(results, truth))
    found = {"all": found_in(results, best), "hot": graph.found["hot"], "cold": cold}
    return SettingsTrial(graph.ef, search, found, us)


def found_beside(results: Sequence[Found], truth: Truth) -> Counts:
    """How many true neighbors each search found in the cold tier if it found all in the hot one. Where vectors repeat
    in both tiers, a hot passage may stand for a cold one."""
    found = []
    for (_, scores), hot, cold in zip(results, truth.hot, truth.cold, strict=True):
        least = cold[-1] - TIE if len(cold) else np.inf
        good = np.count_nonzero(scores[:K] >= least) - np.count_nonzero(hot >= least)
        found.append(min(max(good, 0), len(cold)))
    return np.array(found, np.int64)


def only(found: Found, rows: range) -> Found:
    """The part of a result that lies in these rows."""
    kept = (found[0] >= rows.start) & (found[0] < rows.stop)
    return found[0][kept], found[1][kept]


def found_in(results: Sequence[Found], best: Sequence[Floats]) -> Counts:
    """How many true neighbors, with scores `best`, each search returned."""
    return np.array([found_of(*one) for one in zip(results, best, strict=True)], np.int64)


def time_searches(search: Callable[[Floats, int], Found], queries: Floats) -> tuple[list[Found], float]:
    """Results of searches for K, and microseconds per search."""
    took, results = 0, []
    for depth, query in product((K, DEPTH), queries):
        begun = time.thread_time_ns()
        results.append(search(query, depth))
        took += time.thread_time_ns() - begun
    return results[: len(queries)], took / (2 * len(queries)) / 1000


def try_settings(generation: Generation, ef: int, search: ColdSettings, truth: Truth) -> SettingsTrial:
    """Measure these settings on other queries."""
    graph = try_graph(generation, ef, truth)
    return try_lists(generation, graph, search, truth) if generation.manifest.cold else graph


def choose(
    trials: Sequence[SettingsTrial], truth: Truth, target: float, floor: float, by: str = "all"
) -> tuple[SettingsTrial, bool]:
    """Choose the cheapest (first) trial whose lower bound of recall reaches the target, and return it with True; else
    the one with the highest recall, with False. `by` is the cohort whose recall counts.

    A tier with at least TIER_MIN true neighbors must be within TIER_SLACK of the target, and its lower bound above the
    floor, below which the build is refused. The lower bound of the slack would be too strict: a few losses in a tier
    with few neighbors would rule out what is cheaper and finds more.
    """
    held = {name for name, counts in truth.wanted.items() if counts.sum() >= TIER_MIN} - {by}
    for trial in trials:
        found = shares(trial, truth)
        if (by not in found or found[by].sure >= target) and all(
            share.recall >= target - TIER_SLACK and share.sure >= floor
            for name, share in found.items()
            if name in held
        ):
            return trial, True
    return max(trials, key=lambda trial: (int(trial.found[by].sum()), -trial.us)), False


def filtered_recall(generation: Generation, settings: ColdSettings, queries: Floats) -> float:
    """Recall of cold passages under a filter."""
    queries, allowed = queries[:FILTERED_QUERIES], topical_filter(generation)
    best = true_neighbors(generation, queries, allowed).cold
    generation.tune(cold=settings)
    found = found_in([generation.nearest(query, K, allowed, 0) for query in queries], best)
    return float(found.sum() / sum(map(len, best)))


def shares(trial: SettingsTrial, truth: Truth) -> dict[str, Share]:
    """Recall by cohort: of the whole answer, "all", and of each tier that holds any true neighbors."""
    wanted = truth.wanted
    return {name: Share.of(found, wanted[name]) for name, found in trial.found.items() if wanted[name].any()}
