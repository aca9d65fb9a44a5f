"""What answers say about themselves along the way: time by stage, tiers left out; and the service's cache counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from jobs.evaluation.report import CacheRate, Cold, Percentiles
from retrieval.client import JSON

CACHES = {"answers": "nearline_result_cache_total", "query vectors": "nearline_embedding_cache_total"}
REASONS_MAX = 5


class Observations:
    """Collects answers by the kind of search."""

    def __init__(self) -> None:
        self._stages: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._dense = 0
        self._reasons: Counter[str] = Counter()

    def add(self, kind: str, answer: JSON) -> None:
        for stage, ms in answer["timings_ms"].items():
            self._stages[kind][stage].append(ms)
        if kind == "dense":
            self._dense += 1
            if reason := answer["receipt"]["cold_skipped"]:
                self._reasons[reason] += 1

    def latency_ms(self) -> dict[str, dict[str, Percentiles]]:
        """Percentiles of each stage that took any time, by kind of search."""
        return {
            kind: {stage: percentiles(times) for stage, times in stages.items() if any(times)}
            for kind, stages in self._stages.items()
        }

    def cold(self) -> Cold:
        skipped = sum(self._reasons.values())
        share = skipped / self._dense if self._dense else 0.0
        return Cold(self._dense, skipped, share, dict(self._reasons.most_common(REASONS_MAX)))


def percentiles(times: Sequence[float]) -> Percentiles:
    return {f"p{q}": round(float(np.percentile(times, q)), 3) for q in (50, 95, 99)} if times else {}


def cache_rates(before: str, after: str) -> dict[str, CacheRate]:
    """From two readings of /metrics: the lookups of users, since an evaluation goes past the caches."""
    rates = {}
    for name, metric in CACHES.items():
        start, end = lookups(before, metric), lookups(after, metric)
        meanwhile = {outcome: end[outcome] - start[outcome] for outcome in end}
        rates[name] = CacheRate(rate(end), rate(meanwhile))
    return rates


def lookups(text: str, metric: str) -> dict[str, float]:
    counts = {"hit": 0.0, "miss": 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == metric and sample.labels.get("outcome") in counts:
                counts[sample.labels["outcome"]] += sample.value
    return counts


def rate(counts: dict[str, float]) -> float | None:
    total = sum(counts.values())
    return counts["hit"] / total if total > 0 else None
