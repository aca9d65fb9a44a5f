"""Skipping the cold tier within a budget of loss, beside always searching it: a skewed load, then one that shifted.

Topics are clusters of passages; their popularity is Zipf's. A query is a probe near a passage of its topic. Both
engines answer the same queries in turns; what skipping loses is counted against the other's answers.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexes.dense.probing import probes_of
from indexes.model import ColdPolicy, Floats, Rows
from jobs.benchmark.index import Nearline, rebuild, write
from jobs.benchmark.report import Report, report
from jobs.benchmark.texts import Material, overlap
from jobs.benchmark.turns import Row, Say, Worker, figures, rotate, start, turns

PASSAGES_MIN = 8  # of a topic: a probe is drawn towards others of its topic
K, DEPTH = 10, 100  # hits, and passages ranked for fusion: the service's defaults


@dataclass(frozen=True)
class Plan:
    """Counts are of queries: `load` has its hits counted before the rebuild, `learn` comes before measuring."""

    topics: int = 300
    zipf: float = 1.1
    load: int = 20_000
    learn: int = 50_000
    queries: int = 10_000
    budget: float = 0.005


class Policy(Nearline):
    """Dense search as the service asks for it, under a policy for the cold tier."""

    skips = 0

    def ask(self, query: Floats) -> list[int]:
        found = self.collection.snapshot.dense(query, DEPTH, k=K)
        self.skips += found.cold_skipped is not None
        ids: list[int] = found.ranking.ids[:K].tolist()
        return ids

    def skipped(self) -> int:
        """How many queries left the cold tier out since this was last asked."""
        skips, self.skips = self.skips, 0
        return skips

    def count_hits(self, queries: Floats) -> None:
        for query in queries:
            self.collection.hits.count(self.ask(query))
        self.collection.hits.save()


def run(material: Material, plan: Plan, scratch: Path, say: Say) -> Report:
    hot = len(material.texts) // 10
    topics = topics_of(np.array(material.vectors), plan.topics)
    vectors, rng = material.vectors, np.random.default_rng(1)
    say("building ...")
    write(scratch / "always", material.texts, material.vectors)
    rebuild(scratch / "always", hot)
    makers: dict[str, Any] = {"always": partial(Policy, scratch / "always")}
    with ExitStack() as stack:
        workers, _ = start(makers, stack, say)
        workers["always"].call("count_hits", draw(vectors, topics, plan, plan.load, rng))
    say("rebuilding by hits ...")
    rebuild(scratch / "always", hot)
    shutil.copytree(scratch / "always", scratch / "calibrated")
    policy = ColdPolicy("calibrated", budget=plan.budget)
    makers["calibrated"] = partial(Policy, scratch / "calibrated", policy)
    tables: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        say("learning ...")
        workers["calibrated"].run(list(draw(vectors, topics, plan, plan.learn, rng)))
        half = len(topics) // 2
        for title, load in (
            ("Load", topics),
            ("Load shifted to other topics", topics[half:] + topics[:half]),
        ):
            say(f"{title}: {plan.queries} queries ...")
            tables[title] = ask_both(workers, draw(vectors, load, plan, plan.queries, rng))
    settings = {**asdict(plan), "hot": hot, "k": K, "depth": DEPTH}
    notes.append(f"loss: share of the {K} best of `always` that are missing, mean of all queries.")
    return report("cold", settings, tables, notes)


def ask_both(workers: dict[str, Worker], queries: Floats) -> list[Row]:
    for worker in workers.values():
        worker.call("skipped")
    runs = rotate(workers, turns(list(queries)))
    answers = {name: [answer for run in own for answer in run.answers] for name, own in runs.items()}
    rows: list[Row] = []
    for name, own in runs.items():
        skipped = workers[name].call("skipped") / len(answers[name])
        loss = 1 - overlap(answers[name], answers["always"])
        row: Row = {"cold tier": name, "skipped": round(skipped, 4), "loss": round(loss, 5)}
        rows.append(row | figures(own, runs["always"]) | workers[name].call("memory"))
    return rows


def topics_of(vectors: Floats, topics: int) -> list[Rows]:
    """Rows of each cluster, the most popular first: their order is random."""
    clusters = faiss.Kmeans(vectors.shape[1], topics, niter=10, spherical=True, min_points_per_centroid=1)
    clusters.train(vectors)
    nearest = clusters.index.search(vectors, 1)[1][:, 0]
    members = [np.flatnonzero(nearest == topic) for topic in range(topics)]
    order = np.random.default_rng(0).permutation(topics)
    return [members[topic] for topic in order if len(members[topic]) >= PASSAGES_MIN]


def draw(vectors: Floats, topics: list[Rows], plan: Plan, count: int, rng: np.random.Generator) -> Floats:
    """Queries of topics by their popularity, in random order."""
    shares = np.arange(1, len(topics) + 1) ** -plan.zipf
    drawn = rng.choice(len(topics), count, p=shares / shares.sum())
    found = np.empty((count, vectors.shape[1]), np.float32)
    for topic in np.unique(drawn):
        at = np.flatnonzero(drawn == topic)
        rows = rng.choice(topics[topic], max(len(at), PASSAGES_MIN))
        found[at] = probes_of(vectors[rows], seed=int(rng.integers(2**31)))[: len(at)]
    return found
