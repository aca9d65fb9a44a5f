"""Chooses a generation's search settings by measuring it: the cheapest that reach the recall target.

The queries are stored vectors with noise (`probing`), the truth is exact search over the stored vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from indexes.cold import ColdSettings
from indexes.generation import Generation
from indexes.masks import Bits, pack_flags
from indexes.model import Floats
from indexes.parts import Found
from indexes.probing import probes_of
from indexes.vectors import among, within

K = 10
QUERIES = 300
EFS = (32, 48, 64, 96, 128, 192, 256, 384, 512)
PROBED_SHARES = (1 / 64, 1 / 32, 1 / 24, 1 / 16, 1 / 12, 1 / 8, 1 / 6, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)
RESCORED = (50, 100, 150, 200, 300, 400, 800)
FILTER_SHARE = 0.05  # of the rows let through by the made-up filter that filtered search is measured with
FILTERED_SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
TIE = 3e-4  # more than float16 storage moves a score, less than lies between two ranks

CODES_PER_CANDIDATE = 70  # as many codes are scanned in the time it takes to score one candidate again


@dataclass(frozen=True, slots=True)
class Measured:
    """The settings chosen, and recall@10 measured with them in each tier that exists."""

    ef: int
    search: ColdSettings
    recall: dict[str, float]


def choose_settings(generation: Generation, target: float) -> Measured:
    """Tries settings from cheap to dear; keeps the dearest if none reaches the target. Leaves the last one set."""
    manifest = generation.manifest
    queries = sample_queries(generation)
    measured = Measured(manifest.ef, manifest.search, {})
    if manifest.hot:
        measured = choose_ef(generation, queries, target)
    if manifest.cold:
        cold, recall = choose_cold(generation, queries, target)
        measured = replace(measured, search=cold, recall={**measured.recall, **recall})
    return replace(measured, recall={name: round(value, 4) for name, value in measured.recall.items()})


def choose_ef(generation: Generation, queries: Floats, target: float) -> Measured:
    truth = exact(generation, queries, within(range(generation.manifest.hot)))
    for ef in EFS:
        generation.tune(ef=ef)
        recall = recall_of(lambda q: generation.nearest_hot(q, K, None, 0), queries, truth)
        if recall >= target:
            break
    return Measured(ef, ColdSettings(), {"hot": recall})


def choose_cold(
    generation: Generation, queries: Floats, target: float
) -> tuple[ColdSettings, dict[str, float]]:
    """Probes and rescoring depth without a filter, then how much a filter's matches must be covered."""
    manifest = generation.manifest
    truth = exact(generation, queries, within(range(manifest.hot, generation.size)))
    for settings in cold_ladder(generation.lists, manifest.cold):
        generation.tune(cold=settings)
        plain = recall_of(lambda q: generation.nearest_cold(q, K, None, 0), queries, truth)
        if plain >= target:
            break
    allowed = random_filter(generation)
    truth = exact(generation, queries, among(allowed))
    for share in FILTERED_SHARES:
        settings = msgspec.structs.replace(settings, filtered_share=share)
        generation.tune(cold=settings)
        filtered = recall_of(lambda q: generation.nearest_cold(q, K, allowed, 0), queries, truth)
        if filtered >= target:
            break
    return settings, {"cold": plain, "cold_filtered": filtered}


def cold_ladder(lists: int, size: int) -> list[ColdSettings]:
    """Settings in the order of their cost: a probe reads the codes of a list, a rescored candidate one vector."""
    probes = sorted({max(1, round(share * lists)) for share in PROBED_SHARES})
    pairs = [ColdSettings(count, rescored) for count in probes for rescored in RESCORED]
    return sorted(pairs, key=lambda pair: pair.probes / lists * size / CODES_PER_CANDIDATE + pair.rescored)


def sample_queries(generation: Generation, *, seed: int = 5) -> Floats:
    """Probes from random stored vectors, float32 [up to QUERIES, dimensions]."""
    rows = np.random.default_rng(seed).choice(generation.size, min(QUERIES, generation.size), replace=False)
    return probes_of(generation.vectors.take(rows))


def random_filter(generation: Generation, *, seed: int = 6) -> Bits:
    """FILTER_SHARE of the cold rows, and no hot ones."""
    flags = np.random.default_rng(seed).random(generation.size) < FILTER_SHARE
    flags[: generation.manifest.hot] = False
    flags[-1] = True  # at least one
    return pack_flags(flags)


def exact(generation: Generation, queries: Floats, selector: object) -> list[Floats]:
    """Scores of the true K nearest of the selected rows, best first, for each query."""
    return [generation.vectors.nearest(query, K, selector)[1] for query in queries]


def recall_of(search: Callable[[Floats], Found], queries: Floats, truth: list[Floats]) -> float:
    """Mean share of the true K that a search returns; rows that score like the last of them are as good as it."""
    shares = []
    for query, best in zip(queries, truth, strict=True):
        good = np.count_nonzero(search(query)[1][: len(best)] >= best[-1] - TIE)
        shares.append(good / len(best))
    return float(np.mean(shares))
