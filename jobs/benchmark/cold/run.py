"""Runs the experiment: fill, ask, rebuild, calibrate, measure, shift the load, measure again; once for each seed.

load       queries on a first generation, whose hot tier is the newest passages; their hits are counted
rebuild    places the most-hit passages in the hot tier, as `indexes.build.placement` has it
calibrate  more queries of the same load, until skipping begins
measured   more queries of the same load: skips, loss, latency, beside policy "always"
shifted    the topics that hardly anybody asked for become the popular ones
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexes.collection import Collection
from indexes.dense.skipping import NOTES
from indexes.errors import InvalidInput
from indexes.log.reader import LogReader
from indexes.model import ColdPolicy, Floats, Tuning
from indexes.query import Query
from jobs.benchmark.cold.asking import ask, watch_of
from jobs.benchmark.cold.findings import findings, series, verdict
from jobs.benchmark.cold.load import load_of
from jobs.benchmark.index.nearline import rebuild
from jobs.benchmark.machine import machine, versions

Say = Callable[[str], None]
SEEDS_APART = 1000  # more than there are phases: no two phases of two seeds share a draw


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts are of queries, for each seed. `learn` bounds how many are asked before skipping has to have begun."""

    seeds: int = 3
    topics: int = 300
    zipf: float = 1.1
    load: int = 20_000
    learn: int = 5 * NOTES
    queries: int = 10_000
    shifted: int = 10_000
    hot_capacity: int | None = None
    budget: float = 0.005
    audit: float = 0.01
    k: int = 10
    depth: int = 100
    recall_target: float = 0.99
    build_threads: int = 1


def run(collection: Path, plan: Plan, scratch: Path, say: Say) -> dict[str, Any]:
    """The report on a closed collection with its passages in the log. `scratch` is a folder for copies of it."""
    vectors = vectors_of(collection)
    hot = len(vectors) // 10 if plan.hot_capacity is None else plan.hot_capacity
    say("building the first generation ...")
    rebuild(collection, hot, plan.recall_target, plan.build_threads, say)
    seeds = []
    for seed in range(plan.seeds):
        copy = scratch / "copy"
        try:
            shutil.copytree(collection, copy)
            seeds.append(run_seed(copy, vectors, hot, plan, seed, say))
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    return {
        "machine": machine(),
        "versions": versions(),
        "settings": {
            **asdict(plan),
            "hot_capacity": hot,
            "passages": len(vectors),
            "dimensions": vectors.shape[1],
            "loss_against": "policy always, same snapshot, same settings",
            "clients": 1,
        },
        "seeds": seeds,
        **verdict(seeds, plan.budget),
    }


def run_seed(collection: Path, vectors: Floats, hot: int, plan: Plan, seed: int, say: Say) -> dict[str, Any]:
    load = load_of(vectors, plan.topics, plan.zipf, seed=seed)
    first = seed * SEEDS_APART
    # Searches run on one thread, as in the service; the threads of the clustering must not stay and spin.
    faiss.omp_set_num_threads(1)
    say(f"seed {seed}: {len(load.members)} topics; counting hits ...")
    count_hits(collection, load.queries(plan.load, seed=first + 1), plan)
    say(f"seed {seed}: rebuilding ...")
    built = rebuild(collection, hot, plan.recall_target, plan.build_threads, say)
    policy = ColdPolicy("calibrated", budget=plan.budget, audit=plan.audit)
    opened = Collection(collection, Tuning(recall_target=plan.recall_target, cold=policy))
    try:
        say(f"seed {seed}: calibrating ...")
        learned = calibrate(opened, load.queries(plan.learn, seed=first + 2), plan)
        say(f"seed {seed}: measuring ...")
        before = ask(opened, load.queries(plan.queries, seed=first + 3), plan.k, plan.depth)
        at_shift = asdict(watch_of(opened.snapshot).state())
        say(f"seed {seed}: measuring after the shift ...")
        after = ask(opened, load.shifted().queries(plan.shifted, seed=first + 4), plan.k, plan.depth)
        end = asdict(watch_of(opened.snapshot).state())
    finally:
        opened.close()
    manifest = built["manifest"]
    return {
        "seed": seed,
        "topics": len(load.members),
        "hot_by_hits": manifest["moves"]["hot_by_hits"],
        "built_recall": manifest["recall"],
        "queries_to_calibrate": learned,
        **findings(before, after, plan.budget),
        "state_at_shift": at_shift,
        "state_at_end": end,
        "series": series(before, after),
    }


def count_hits(collection: Path, queries: Floats, plan: Plan) -> None:
    """Search as the service does, and let the collection count what it returned. Closing saves the counts."""
    opened = Collection(collection, Tuning(cold=ColdPolicy("always")))
    try:
        snapshot = opened.snapshot
        for query in queries:
            found = snapshot.prepare(Query(plan.k, plan.depth, vector=query)).dense()
            opened.hits.count(found.ranking.ids[: plan.k].tolist())
    finally:
        opened.close()


def calibrate(collection: Collection, queries: Floats, plan: Plan) -> int | None:
    """Search until skipping begins: how many queries that took, or None if these were not enough."""
    snapshot = collection.snapshot
    watch = watch_of(snapshot)
    for number, query in enumerate(queries, 1):
        snapshot.prepare(Query(plan.k, plan.depth, vector=query)).dense()
        if watch.state().state == "skipping":
            return number
    return None


def vectors_of(collection: Path) -> Floats:
    """Vectors of all live passages, float32 [passages, dimensions], in the order of their ids."""
    log = LogReader(collection / "log.db")
    try:
        blocks = [block for _, block in log.vectors(0, log.position().last_passage)]
    finally:
        log.close()
    if not blocks:
        raise InvalidInput("there are no passages", param="corpus")
    return np.concatenate(blocks)
