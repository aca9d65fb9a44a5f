"""Tries search settings on a loaded generation: what each finds of the true neighbours, and how long it takes here.

Each tier is tried by itself, because what two tiers find adds up, and so do their times. A coarse look at the whole
grid of the cold tier says in which order to go; settings are then tried on all queries, in turns, several times over,
so that what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from indexes.build.measuring import (
    Counts,
    K,
    Truth,
    cold_ladder,
    found_of,
    outlook_of,
    random_filter,
    true_neighbours,
)
from indexes.dense.cold import ColdSettings
from indexes.model import Floats, Progress
from indexes.parts.generation import Generation
from indexes.parts.part import Found

S = TypeVar("S")

TRIED_EFS = (10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 384, 512)
COARSE_QUERIES = 200
REPEATS, TIMED_QUERIES = 3, 300  # the first look at a setting is on all queries, the others on so many
NEAR = 1.15  # settings that take so much longer than another that finds as much are not tried again
COARSE_ERROR = 0.03  # that recall on the first queries may lie below that on all
AT_ONCE = 24  # settings tried on all queries, before asking whether one of them will do
OUTLIER = 5  # times the median: a query that took longer met something else


@dataclass(frozen=True, slots=True)
class Trial(Generic[S]):
    """One setting of one tier: true neighbours found for each query, and microseconds a query."""

    setting: S
    found: Counts
    us: float


def try_hot(generation: Generation, truth: Truth, progress: Progress) -> list[Trial[int]]:
    """Every width of the graph's walk. One that means nothing where there is no graph."""
    present, _ = generation.search_settings
    if not generation.manifest.hot:
        return nothing([present], truth)
    return run_hot(generation, sorted({present, *TRIED_EFS}), truth, REPEATS, progress)


def try_cold(
    generation: Generation, truth: Truth, target: float, progress: Progress
) -> Iterator[list[Trial[ColdSettings]]]:
    """Lists and candidates: first those worth showing and the quickest that may reach the target, then ever more.

    Each list holds those before it. One setting that means nothing where there are no lists.
    """
    _, present = generation.search_settings
    if not generation.manifest.cold:
        yield nothing([present], truth)
        return
    some = truth.first(COARSE_QUERIES)
    ladder = [present, *cold_ladder(outlook_of(generation, some.queries))]
    coarse = sorted(run_cold(generation, ladder, some, 1, progress), key=lambda trial: trial.us)
    wanted = max(int(some.wanted["cold"].sum()), 1)
    hopeful = [one.setting for one in coarse if int(one.found.sum()) / wanted >= target - COARSE_ERROR]
    shown = worth_it(coarse)
    chosen = [present, *(one.setting for one in shown[:: len(shown) // AT_ONCE + 1]), *hopeful[:AT_ONCE]]
    trials: list[Trial[ColdSettings]] = []
    while chosen:
        trials = [*trials, *run_cold(generation, list(dict.fromkeys(chosen)), truth, REPEATS, progress)]
        yield trials
        tried = {one.setting for one in trials}
        chosen = [one for one in hopeful if one not in tried][:AT_ONCE]


def run_hot(
    generation: Generation, efs: Sequence[int], truth: Truth, repeats: int, progress: Progress
) -> list[Trial[int]]:
    if not generation.manifest.hot:
        return nothing(efs, truth)
    return run(
        efs,
        lambda ef: generation.tune(ef=ef),
        lambda query: generation.nearest_warm(query, K, None, 0),
        truth.queries,
        truth.hot,
        repeats,
        lambda done, total: progress("hot", done, total),
    )


def run_cold(
    generation: Generation, settings: Sequence[ColdSettings], truth: Truth, repeats: int, progress: Progress
) -> list[Trial[ColdSettings]]:
    if not generation.manifest.cold:
        return nothing(settings, truth)
    return run(
        settings,
        lambda cold: generation.tune(cold=cold),
        lambda query: generation.nearest_cold(query, K, None, 0),
        truth.queries,
        truth.cold,
        repeats,
        lambda done, total: progress("cold", done, total),
    )


def nothing(settings: Sequence[S], truth: Truth) -> list[Trial[S]]:
    """Of a tier that does not exist: it finds nothing, in no time."""
    return [Trial(one, np.zeros(len(truth.queries), np.int64), 0.0) for one in settings]


def run_filtered(
    generation: Generation, settings: Sequence[ColdSettings], queries: Floats, progress: Progress
) -> Iterator[tuple[Trial[ColdSettings], int]]:
    """Each setting, as it is asked for, under a made-up filter; with the number of true neighbours there are."""
    allowed = random_filter(generation)
    best = true_neighbours(generation, queries, allowed, progress=progress).cold
    for setting in settings:
        [trial] = run(
            [setting],
            lambda cold: generation.tune(cold=cold),
            lambda query: generation.nearest_cold(query, K, allowed, 0),
            queries,
            best,
            1,
            lambda done, total: progress("filtered", done, total),
        )
        yield trial, sum(len(one) for one in best)


def run(
    settings: Sequence[S],
    tune: Callable[[S], None],
    search: Callable[[Floats], Found],
    queries: Floats,
    best: Sequence[Floats],
    repeats: int,
    progress: Callable[[int, int], None],
) -> list[Trial[S]]:
    """All settings in turns. The time of a query is the median over the repeats, that of a setting their mean.

    A query that was interrupted counts as OUTLIER times the median.
    """
    timed = min(TIMED_QUERIES, len(queries))
    took = np.zeros((len(settings), repeats, timed))
    found = np.zeros((len(settings), len(queries)), np.int64)
    for repeat in range(repeats):
        for at, setting in enumerate(settings):
            progress(repeat * len(settings) + at, repeats * len(settings))
            tune(setting)
            for number, query in enumerate(queries[:timed] if repeat else queries):
                begun = time.perf_counter_ns()
                result = search(query)
                if number < timed:
                    took[at, repeat, number] = time.perf_counter_ns() - begun
                if repeat == 0:
                    found[at, number] = found_of(result, best[number])
    usual = np.median(took, axis=1)
    us = np.minimum(usual, OUTLIER * np.median(usual, axis=1, keepdims=True)).mean(axis=1) / 1000
    return [Trial(setting, found[at], float(us[at])) for at, setting in enumerate(settings)]


def worth_it(trials: Sequence[Trial[S]]) -> list[Trial[S]]:
    """Those that no other beats clearly: as much found, and clearly quicker."""
    sums = np.array([int(trial.found.sum()) for trial in trials])
    times = np.array([trial.us for trial in trials])
    return [
        trial
        for trial, total in zip(trials, sums, strict=True)
        if not np.any((sums >= total) & (times * NEAR < trial.us))
    ]
