"""Times an open engine: each setting with its recall, the fastest that is good enough, two threads, inserts.

One client asks one query after the other, unless it says otherwise. Milliseconds are wall time around the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexes.model import Floats
from jobs.benchmark.index.engine import Engine, Found, Setting
from jobs.benchmark.index.material import further
from jobs.benchmark.index.truth import recall
from jobs.benchmark.service import percentiles

WARM_UP = 30
CLOSE = 1.25  # settings this much slower than the fastest may still be the fastest when they are timed again
HALVINGS = 3
INSERTS = 30
TRIES = 2000
THREADS = 2

Search = Callable[[Floats, int], Found]


@dataclass(frozen=True, slots=True)
class Bench:
    """What is asked, and what is true: `best` are the scores of the true `k` nearest rows [queries, k]."""

    vectors: Floats
    queries: Floats
    best: Floats
    k: int
    repeat: int

    def recall(self, found: Sequence[Found]) -> float:
        return recall(found, self.vectors, self.queries, self.best)


def one_pass(search: Search, queries: Floats, k: int) -> tuple[list[Found], list[float]]:
    """What `timed` gives, after a few searches that warm up."""
    for query in queries[:WARM_UP]:
        search(query, k)
    return timed(search, queries, k)


def timed(search: Search, queries: Floats, k: int) -> tuple[list[Found], list[float]]:
    """Rows found and milliseconds taken, query by query."""
    found, taken = [], []
    for query in queries:
        begun = time.perf_counter()
        rows = search(query, k)
        taken.append((time.perf_counter() - begun) * 1000)
        found.append(rows)
    return found, taken


def measure(engine: Engine, bench: Bench, passes: int) -> dict[str, Any]:
    """Recall, and the medians over `passes` of each percentile, with the setting in use."""
    times: list[dict[str, float]] = []
    found: list[Found] = []
    for _ in range(passes):
        found, taken = one_pass(engine.search, bench.queries, bench.k)
        times.append(percentiles(taken))
    return {"recall": round(bench.recall(found), 4), **medians(times)}


def sweep(engine: Engine, bench: Bench, target: float) -> dict[str, Any]:
    """Every setting once, those between them near the target, then those that may be the best again.

    `best` is the fastest that reaches the target: no engine gains by where the steps of its settings happen to lie.

    Where none does, `best` is the one of highest recall and `reached` is false.
    """
    rows: list[dict[str, Any]] = []
    for setting in engine.settings():
        engine.use(setting)
        rows.append({"setting": setting, **measure(engine, bench, 1)})
    for setting in between(rows, target):
        engine.use(setting)
        rows.append({"setting": setting, **measure(engine, bench, 1)})
    good = [row for row in rows if row["recall"] >= target]
    top = max(row["recall"] for row in rows)
    # Without a good one: the best there is, by the cheapest setting that gets it.
    candidates = good or [row for row in rows if row["recall"] == top]
    fastest = min(row["p50_ms"] for row in candidates)
    close = [row for row in candidates if row["p50_ms"] <= CLOSE * fastest]
    if bench.repeat > 1:
        for row in close:
            engine.use(row["setting"])
            row.update(measure(engine, bench, bench.repeat))
    best = min(close, key=lambda row: float(row["p50_ms"]))
    engine.use(best["setting"])
    return {"reached": bool(good), "best": best, "sweep": rows}


def between(rows: Sequence[dict[str, Any]], target: float) -> Iterator[Setting]:
    """Settings to try next: the fastest good one, a number of it moved half way to the next smaller that was tried.

    `rows` is to have the outcome of each before the next is asked for.
    """
    for name in rows[0]["setting"]:
        for _ in range(HALVINGS):
            good = [row for row in rows if row["recall"] >= target]
            if not good:
                return
            setting = min(good, key=lambda row: float(row["p50_ms"]))["setting"]
            tried = {row["setting"][name] for row in rows}
            smaller = max((value for value in tried if value < setting[name]), default=setting[name])
            if setting[name] - smaller < 2:
                break
            yield {**setting, name: (setting[name] + smaller) // 2}


def throughput(engine: Engine, queries: Floats, k: int, repeat: int) -> float:
    """Queries a second when two threads ask, each its half of the queries. Median over the passes."""

    def ask(part: Floats) -> None:
        for query in part:
            engine.search(query, k)

    rates = []
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(repeat):
            begun = time.perf_counter()
            list(pool.map(ask, np.array_split(queries, THREADS)))
            rates.append(len(queries) / (time.perf_counter() - begun))
    return round(float(np.median(rates)), 1)


def inserts(engine: Engine, bench: Bench, *, seed: int = 3) -> dict[str, Any]:
    """One vector at a time, from handing it in to the first search that finds it."""
    taken, lost = [], 0
    rows = len(bench.vectors)
    for number, vector in enumerate(further(bench.vectors, INSERTS, seed=seed)):
        begun = time.perf_counter()
        engine.insert(rows + number, vector)
        for _ in range(TRIES):
            if rows + number in engine.search(vector, bench.k):
                taken.append((time.perf_counter() - begun) * 1000)
                break
        else:
            lost += 1
    return {**(percentiles(taken) if taken else {}), "inserted": INSERTS, "not_found": lost}


def setting_text(setting: Setting) -> str:
    return " ".join(f"{name} {value}" for name, value in setting.items())


def medians(times: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(float(np.median([one[name] for one in times])), 3) for name in times[0]}
