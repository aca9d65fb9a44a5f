"""Chooses a generation's search settings by measuring it: the cheapest that reach the recall target.

The queries are stored vectors with noise. A query in use is not a passage: it lies further from everything than
passages lie from each other, which is where an approximate index loses recall. The noise puts the probe at a cosine
of about 0.75 from its passage, as a question from its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from indexes.cold import ColdSettings
from indexes.generation import Generation
from indexes.model import Floats

K = 10
QUERIES = 300
QUERY_COSINE = 0.75
EFS = (64, 96, 128, 192, 256, 384, 512)
RESCORED = (100, 200, 400, 800)
SCAN_ROWS = 16_384
TIE = 3e-4  # more than float16 storage moves a score, less than lies between two ranks


@dataclass(frozen=True, slots=True)
class Measured:
    """The settings chosen, and recall@10 measured with them in each tier that exists."""

    ef: int
    probes: int
    rescored: int
    recall: dict[str, float]


def choose_settings(generation: Generation, target: float) -> Measured:
    """Tries settings from cheap to dear; keeps the dearest if none reaches the target. Leaves the last one set."""
    manifest = generation.manifest
    queries = sample_queries(generation)
    recall: dict[str, float] = {}
    ef, cold = manifest.ef, ColdSettings(manifest.probes, manifest.rescored)
    if manifest.hot:
        truth = exact(generation, queries, range(manifest.hot))
        for ef in EFS:
            generation.tune(ef=ef)
            recall["hot"] = recall_of(lambda q: generation.nearest_hot(q, K, None)[1], queries, truth)
            if recall["hot"] >= target:
                break
    if manifest.cold:
        truth = exact(generation, queries, range(manifest.hot, generation.size))
        for cold in cold_ladder(generation.lists):
            generation.tune(cold=cold)
            recall["cold"] = recall_of(lambda q: generation.nearest_cold(q, K, None)[1], queries, truth)
            if recall["cold"] >= target:
                break
    return Measured(ef, cold.probes, cold.rescored, {tier: round(value, 4) for tier, value in recall.items()})


def cold_ladder(lists: int) -> list[ColdSettings]:
    """Settings in the order of their cost: a probe reads a whole list, a rescored candidate one vector."""
    shares = [share for share in (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1) if share * lists >= 1]
    pairs = [ColdSettings(int(share * lists), rescored) for share in shares for rescored in RESCORED]
    return sorted(pairs, key=lambda pair: pair.probes / lists + pair.rescored / 1600)


def sample_queries(generation: Generation, *, seed: int = 5) -> Floats:
    """Unit vectors at QUERY_COSINE from random stored ones, float32 [up to QUERIES, dimensions]."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(generation.size, min(QUERIES, generation.size), replace=False)
    vectors = generation.take(rows)
    noise = rng.standard_normal(vectors.shape).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    mixed = QUERY_COSINE * vectors + np.float32(np.sqrt(1 - QUERY_COSINE**2)) * noise
    unit: Floats = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    return unit


def exact(generation: Generation, queries: Floats, within: range) -> list[Floats]:
    """Scores of the true K nearest rows of each query among `within`, best first, by scanning block by block."""
    best = np.empty((len(queries), 0), np.float32)
    for start in range(within.start, within.stop, SCAN_ROWS):
        block = np.arange(start, min(start + SCAN_ROWS, within.stop))
        best = np.hstack([best, queries @ generation.take(block).T])
        best = -np.sort(-best, axis=1)[:, :K]
    return list(best)


def recall_of(search: Callable[[Floats], Floats], queries: Floats, truth: list[Floats]) -> float:
    """Mean share of the true K that a search returns; rows that score like the last of them are as good as it."""
    shares = []
    for query, best in zip(queries, truth, strict=True):
        good = np.count_nonzero(search(query)[: len(best)] >= best[-1] - TIE)
        shares.append(good / len(best))
    return float(np.mean(shares))
