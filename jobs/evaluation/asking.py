"""Sends queries to a service one after the other, at a bounded rate, and records their latencies.

Every search bypasses the caches of answers and of query vectors, so latencies are what a new query costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from indexes.base.model import Progress
from jobs.ingestion.rate_limiter import RateLimiter
from jobs.sources.judgments import TextQuery
from nearline import JSON, AsyncClient


@dataclass(slots=True)
class Asker:
    """A client of one collection; `k` is the number of neighbors counted for recall."""

    client: AsyncClient
    collection: str
    k: int = 10
    progress: Progress = lambda *_: None
    pace: RateLimiter = field(default_factory=lambda: RateLimiter(0))
    cold_skipped: int = 0  # dense searches without a filter that skipped the cold tier
    _times: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    async def answers(
        self, stage: str, queries: Sequence[TextQuery], *, kind: str = "", **search: Any
    ) -> AsyncIterator[tuple[TextQuery, JSON]]:
        """Yield each query with its answer, in which nothing is collapsed: judgments and exact rankings count copies.
        Latencies are recorded under `kind`, if one is given."""
        for at, query in enumerate(queries):
            self.progress(stage, at, len(queries))
            await self.pace()
            options = {"cache": False, "collapse": False, **search}
            answer = await self.client.search(self.collection, query=query.text, **options)
            timings: Mapping[str, Any] = answer["timings_ms"]
            for name, ms in timings.items() if kind else ():
                self._times[kind][name].append(ms)
            self.cold_skipped += kind == "dense" and answer["receipt"]["cold_skipped"] is not None
            yield query, answer

    async def share(self, condition: JSON, passages: int) -> float:
        """The share of the collection's passages that match a filter, counted by the service."""
        await self.pace()
        counted = await self.client.count(self.collection, filter=condition)
        return float(counted["passages"] / max(passages, 1))

    def latency_ms(self) -> dict[str, dict[str, dict[str, float]]]:
        """Percentiles of each stage that took any time, by kind of search."""
        return {
            kind: {
                stage: {f"p{q}": round(float(np.percentile(times, q)), 3) for q in (50, 95, 99)}
                for stage, times in stages.items()
                if any(times)
            }
            for kind, stages in self._times.items()
        }
