"""Asks the same queries under two policies and notes, query by query, what was skipped and what that lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexes.collection import Collection
from indexes.dense.skipping import ColdWatch
from indexes.errors import NearlineError
from indexes.model import TIERS, DenseResult, Floats
from indexes.parts.snapshot import Snapshot
from indexes.query import Query
from jobs.benchmark.service import percentiles

COLD = TIERS.index("cold")
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Asked:
    """One value a query, in the order they were asked.

    `lost` is recall@k against policy "always" on the same snapshot; `needed` the share of the first k of "always" that
    is cold: what a skip would have lost. `skipping` is the state after the query; milliseconds are of the dense search.
    """

    skipped: Flags
    lost: Values
    needed: Values
    skipping: Flags
    calibrated_ms: Values
    always_ms: Values

    def __len__(self) -> int:
        return len(self.lost)

    def then(self, later: Asked) -> Asked:
        return Asked(
            *(np.concatenate([getattr(self, name), getattr(later, name)]) for name in self.__slots__)
        )

    def summary(self, budget: float) -> dict[str, Any]:
        return {
            "queries": len(self),
            "skip_share": mean(self.skipped),
            "skip_share_possible": round(possible(self.needed, budget), 4),
            "loss": mean(self.lost, 6),
            "queries_that_lost": mean(self.lost > 0, 6),
            "needed_cold": mean(self.needed),
            "calibrated": times(self.calibrated_ms),
            "always": times(self.always_ms),
            "skipped_calibrated": times(self.calibrated_ms[self.skipped]),
            "skipped_always": times(self.always_ms[self.skipped]),
        }


def ask(collection: Collection, queries: Floats, k: int, depth: int) -> Asked:
    """Each query once with the collection's own policy and once with "always", in turn which of them comes first."""
    watch = watch_of(collection.snapshot)
    searches = (
        lambda query: collection.snapshot.prepare(Query(k, depth, vector=query)).dense(),
        searching_always(collection.snapshot, k, depth),
    )
    rows = []
    for number, query in enumerate(queries):
        # Whoever comes second finds the pages of the vectors in the processor's caches.
        first = number % 2
        found, took = [], []
        for search in (searches[first], searches[1 - first]):
            begun = time.perf_counter()
            found.append(search(query))
            took.append((time.perf_counter() - begun) * 1000)
        mine, always = found[first], found[1 - first]
        rows.append(
            (
                mine.cold_skipped is not None,
                loss(mine, always, k),
                float(np.mean(always.ranking.tiers[:k] == COLD)),
                watch.state().state == "skipping",
                took[first],
                took[1 - first],
            )
        )
    skipped, lost, needed, skipping, calibrated_ms, always_ms = zip(*rows)
    return Asked(
        np.array(skipped, bool),
        np.array(lost, float),
        np.array(needed, float),
        np.array(skipping, bool),
        np.array(calibrated_ms),
        np.array(always_ms),
    )


def loss(mine: DenseResult, always: DenseResult, k: int) -> float:
    """Share of the first k of `always` that `mine` lacks. A passage that scores like the last of them is as good."""
    expected = always.ranking.scores[:k]
    if not len(expected):
        return 0.0
    good = int(np.count_nonzero(mine.ranking.scores[:k] >= expected[-1]))
    return 1 - good / len(expected)


def searching_always(snapshot: Snapshot, k: int, depth: int) -> Callable[[Floats], DenseResult]:
    """The same passages under policy "always", which has nobody who decides."""
    always = replace(snapshot, watch=None)
    return lambda query: always.prepare(Query(k, depth, vector=query)).dense()


def watch_of(snapshot: Snapshot) -> ColdWatch:
    if snapshot.watch is None:
        raise NearlineError("the rebuilt collection has no cold tier")
    return snapshot.watch


def possible(needed: Values, budget: float) -> float:
    """The largest share of these queries that can skip within the budget, for one who knew what each would lose."""
    return float(np.mean(np.cumsum(np.sort(needed)) <= budget * len(needed)))


def times(milliseconds: Values) -> dict[str, float] | None:
    if not len(milliseconds):
        return None
    return {**percentiles(milliseconds.tolist()), "mean_ms": mean(milliseconds)}


def mean(values: Values | Flags, digits: int = 4) -> float:
    return round(float(np.mean(values)), digits)
