"""Chooses a generation's search settings by measuring it: the cheapest that reach the recall target.

Queries are made of stored vectors (`probing`), the truth is exact search over the stored vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.dense.cold import RANKS, ColdSettings
from indexes.dense.outlook import Outlook
from indexes.dense.probing import probes_of
from indexes.dense.vectors import among, within
from indexes.masks import Bits, pack_flags
from indexes.model import Floats, Progress
from indexes.parts.generation import Generation
from indexes.parts.part import Found

Counts = NDArray[np.int64]

K = RANKS
QUERIES = 300
EFS = (32, 48, 64, 96, 128, 192, 256, 384, 512)
PROBED_64THS = (1, 2, 4, 6, 8, 16, 32, 64)  # of the lists
REACHES = (0.0, 0.1, 0.16, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3, 0.32, 0.34, 0.36, 0.4, 0.5)
RESCORED = (50, 70, 100, 140, 200, 300, 400)
OUTLOOK_QUERIES = 64
FILTER_SHARE = 0.05  # of the rows let through by the made-up filter that filtered search is measured with
FILTERED_SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
TIE = 3e-4  # more than float16 storage moves a score, less than lies between two ranks


@dataclass(frozen=True, slots=True)
class Truth:
    """Queries [n, dimensions], and for each the scores of its true neighbours in each tier, best first."""

    queries: Floats
    hot: list[Floats]
    cold: list[Floats]

    def first(self, count: int) -> Truth:
        return Truth(self.queries[:count], self.hot[:count], self.cold[:count])

    @property
    def wanted(self) -> dict[str, Counts]:
        """True neighbours of each query, by tier."""
        return {
            name: np.array([len(best) for best in tier], np.int64)
            for name, tier in (("hot", self.hot), ("cold", self.cold))
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """The settings chosen, and recall@10 measured with them in each tier that exists."""

    ef: int
    search: ColdSettings
    recall: dict[str, float]


def choose_settings(generation: Generation, target: float) -> Measured:
    """Tries settings from cheap to dear; keeps the dearest if none reaches the target. Leaves the last one set."""
    manifest = generation.manifest
    measured = Measured(manifest.ef, manifest.search, {})
    if manifest.hot:
        measured = choose_ef(generation, target)
    if manifest.cold:
        cold, recall = choose_cold(generation, target)
        measured = replace(measured, search=cold, recall={**measured.recall, **recall})
    return replace(measured, recall={name: round(value, 4) for name, value in measured.recall.items()})


def choose_ef(generation: Generation, target: float) -> Measured:
    """The narrowest walk of the hot graph that finds its share of the true neighbours.

    Of the true neighbours over both tiers: a query that has none in the hot tier loses nothing there.
    """
    queries = sample_queries(generation, range(generation.manifest.hot))
    truth = true_neighbours(generation, queries)
    for ef in EFS:
        generation.tune(ef=ef)
        recall = recall_of(lambda q: generation.nearest_warm(q, K, None, 0), queries, truth.hot)
        if recall >= target:
            break
    return Measured(ef, ColdSettings(), {"hot": recall})


def choose_cold(generation: Generation, target: float) -> tuple[ColdSettings, dict[str, float]]:
    """Probes and rescoring depth without a filter, then how much a filter's matches must be covered."""
    manifest = generation.manifest
    queries = sample_queries(generation, range(manifest.hot, generation.size))
    truth = true_neighbours(generation, queries)
    for settings in cold_ladder(outlook_of(generation, queries)):
        generation.tune(cold=settings)
        plain = recall_of(lambda q: generation.nearest_cold(q, K, None, 0), queries, truth.cold)
        if plain >= target:
            break
    allowed = random_filter(generation)
    truth = true_neighbours(generation, queries, allowed)
    for share in FILTERED_SHARES:
        settings = msgspec.structs.replace(settings, filtered_share=share)
        generation.tune(cold=settings)
        filtered = recall_of(lambda q: generation.nearest_cold(q, K, allowed, 0), queries, truth.cold)
        if filtered >= target:
            break
    return settings, {"cold": plain, "cold_filtered": filtered}


def outlook_of(generation: Generation, queries: Floats) -> Outlook:
    """By the first of these queries, for a generation that has a cold tier."""
    assert generation.cold is not None
    return Outlook(generation.cold, queries[:OUTLOOK_QUERIES])


def cold_ladder(outlook: Outlook) -> list[ColdSettings]:
    """Settings in the order of what they would cost these queries."""
    probes = sorted({max(1, share * outlook.lists // 64) for share in PROBED_64THS})
    settings = [
        ColdSettings(count, rescored, reach=reach)
        for count in probes
        for reach in REACHES
        for rescored in RESCORED
    ]
    return sorted(settings, key=outlook.cost_ns)


def sample_queries(generation: Generation, rows: range, *, seed: int = 5) -> Floats:
    """Probes from random stored vectors of these rows, float32 [up to QUERIES, dimensions]."""
    chosen = np.random.default_rng(seed).choice(len(rows), min(QUERIES, len(rows)), replace=False)
    return probes_of(generation.vectors.take(chosen + rows.start))


def random_filter(generation: Generation, *, seed: int = 6) -> Bits:
    """FILTER_SHARE of the cold rows, and no hot ones."""
    flags = np.random.default_rng(seed).random(generation.size) < FILTER_SHARE
    flags[: generation.manifest.hot] = False
    flags[-1] = True  # at least one
    return pack_flags(flags)


def true_neighbours(
    generation: Generation,
    queries: Floats,
    allowed: Bits | None = None,
    *,
    progress: Progress = lambda *_: None,
) -> Truth:
    """The K nearest of the allowed rows, by exact search over the stored vectors; one scan serves both tiers."""
    selector = within(range(generation.size)) if allowed is None else among(allowed)
    first_cold = generation.manifest.hot
    hot: list[Floats] = []
    cold: list[Floats] = []
    for at, query in enumerate(queries):
        progress("truth", at, len(queries))
        rows, scores = generation.vectors.nearest(query, K, selector)
        hot.append(scores[rows < first_cold])
        cold.append(scores[rows >= first_cold])
    return Truth(queries, hot, cold)


def recall_of(search: Callable[[Floats], Found], queries: Floats, truth: list[Floats]) -> float:
    """Share of the true neighbours that a search returns; rows that score like the last of them are as good as it."""
    found, wanted = 0, 0
    for query, best in zip(queries, truth, strict=True):
        if len(best):
            found += found_of(search(query), best)
            wanted += len(best)
    return found / wanted if wanted else 1.0


def found_of(result: Found, best: Floats) -> int:
    """How many of the true neighbours, whose scores these are, best first, a search returned."""
    return int(np.count_nonzero(result[1][: len(best)] >= best[-1] - TIE)) if len(best) else 0
