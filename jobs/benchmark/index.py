"""The index library beside others, on the same vectors: dense search at two depths, and BM25 at several sizes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from indexes.build.rebuild import Rebuild
from indexes.collection import Collection
from indexes.errors import NearlineError
from indexes.model import ColdPolicy, Floats, NewPassage, Settings, Tuning, Upsert
from jobs.benchmark import peers
from jobs.benchmark.report import Report, Row
from jobs.benchmark.service import start
from jobs.benchmark.texts import Material, Say, best_scores, recall
from jobs.benchmark.turns import TURN, Engine, Worker, figures, p50_ratio, rate_ratio, rotate
from retrieval.embedding.encoder import available_threads

BUILD_TIMEOUT_S = 7200
BATCH = 1000
TRIED = 100  # queries that settings are chosen by
RANK_BM25_MAX = 20_000  # it scores every passage in Python
VECTORS: dict[str, Any] = {
    "hnswlib": peers.Hnswlib,
    "faiss": peers.FaissHnsw,
    "usearch": peers.Usearch,
    "qdrant-edge": peers.QdrantEdge,
    "lancedb": peers.Lancedb,
}
WORDS: dict[str, Any] = {"tantivy": peers.Tantivy, "bm25s": peers.Bm25s, "rank-bm25": peers.RankBm25}


@dataclass(frozen=True)
class Plan:
    """`target`: the cheapest setting of a peer that reaches this recall is compared; ours are as the build chose them.
    `sizes` are those of BM25."""

    passages: int = 300_000
    sizes: Sequence[int] = ()
    depth: Sequence[int] = (10, 100)
    queries: int = 1000
    target: float = 0.98
    peers: bool = False


class Nearline(Engine):
    """A collection in a folder, searched as the service searches it. Rows are passage ids, which begin at 1."""

    def __init__(self, collection: Path, cold: ColdPolicy | None = None) -> None:
        self._folder, self._cold = collection, cold or ColdPolicy("always")

    def open(self) -> None:
        self.collection = Collection(self._folder, Tuning(cold=self._cold))
        tiers = self.collection.info().passages.items()
        self.what = "snapshot of a collection: " + ", ".join(
            f"{count:,} {tier}" for tier, count in tiers if count
        )
        for file in self._folder.rglob("*"):  # what it maps
            if file.is_file():
                file.read_bytes()

    def ask(self, query: Any) -> list[int]:
        """Nearest to a vector, or best for a text."""
        wanted, k = query
        snapshot = self.collection.snapshot
        found = snapshot.lexical(wanted, k) if isinstance(wanted, str) else snapshot.dense(wanted, k).ranking
        rows: list[int] = (found.ids - 1).tolist()
        return rows

    def close(self) -> None:
        if hasattr(self, "collection"):
            self.collection.close()


def write(folder: Path, texts: Sequence[str], vectors: Floats) -> None:
    """A collection with one passage for each text, in order, and no generation."""
    settings = Settings(dimensions=vectors.shape[1], fingerprint="bench", model="bench", hot_capacity=0)
    # One delta for everything: it is never searched, so it needs no segments.
    collection = Collection.create(
        folder, settings, Tuning(delta_passages_max=len(texts) + 1, segments_max=0)
    )
    try:
        for start_row in range(0, len(texts), BATCH):
            rows = range(start_row, min(start_row + BATCH, len(texts)))
            passages = [(NewPassage(0, len(texts[row]), 0, np.array(vectors[row])),) for row in rows]
            documents = [Upsert(str(row), texts[row], "", {}, one) for row, one in zip(rows, passages)]
            collection.write(documents).result()
    finally:
        collection.close()


def rebuild(folder: Path, hot: int) -> None:
    """Build a generation with so many passages hot and make it the live one."""
    collection = Collection(folder, Tuning(build_threads=available_threads()))
    try:
        build = Rebuild(collection.begin_build(hot), timeout_s=BUILD_TIMEOUT_S)
        collection.adopt(build.run(lambda *_: None))
    finally:
        collection.close()


def dense(material: Material, plan: Plan, scratch: Path, say: Say) -> Report:
    """All hot, all cold, a tenth hot; and the peers."""
    count = len(material.texts)
    say(f"writing {count:,} passages ...")
    write(scratch / "log", material.texts, material.vectors)
    makers: dict[str, Any] = {}
    for name, hot in (("all cold", 0), ("a tenth hot", count // 10), ("all hot", count)):
        say(f"building {name} ...")
        shutil.copytree(scratch / "log", scratch / name)
        rebuild(scratch / name, hot)
        makers[f"nearline, {name}"] = partial(Nearline, scratch / name)
    if plan.peers:
        makers |= {name: partial(peer, material.folder) for name, peer in VECTORS.items()}
    vectors = np.array(material.query_vectors[TRIED : TRIED + plan.queries])
    rounds = max(len(vectors) // TURN, 1)
    tables: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        for k in plan.depth:
            settings = choose(workers, material, k, plan.target, say)
            say(f"depth {k}: {rounds} turns of {TURN} queries ...")
            queries = [
                [(vector, k) for vector in vectors[at * TURN : (at + 1) * TURN]] for at in range(rounds)
            ]
            rows = compare(workers, queries)
            best = best_scores(material.vectors, vectors[: rounds * TURN], k)
            for row, (name, answers) in zip(rows, answers_of(workers, queries).items()):
                row |= {
                    "recall": recall(answers, material.vectors, vectors[: rounds * TURN], best),
                    "setting": settings.get(name, ""),
                    "index": workers[name].what,
                }
            tables[f"{k} nearest of {count:,}"] = rows
    shown = {"passages": count, "queries": rounds * TURN, "turn": TURN, "target": plan.target}
    notes.append(
        f"Settings of the peers: the first to reach a recall of {plan.target}, or else the last there is."
    )
    return Report(bench="index", settings=shown, tables=tables, notes=[*notes, *NOTES])


NOTES = [
    "p50 / first: times as long as the first row, median over turns. 2 threads: queries a second over those of one.",
    "bytes: what the process grew by, without mapped files, for each passage.",
]


def choose(workers: dict[str, Worker], material: Material, k: int, target: float, say: Say) -> dict[str, str]:
    """Let each peer search depth `k` with its cheapest setting that reaches the target."""
    vectors = np.array(material.query_vectors[:TRIED])
    best = best_scores(material.vectors, vectors, k)
    chosen = {}
    for name, worker in workers.items():
        if name not in VECTORS:
            worker.run([(vector, k) for vector in vectors])
            continue
        for setting in worker.ask("tried"):
            worker.ask("choose", k, setting)
            chosen[name] = " ".join(map(str, setting))
            if (
                recall(
                    worker.run([(vector, k) for vector in vectors]).answers, material.vectors, vectors, best
                )
                >= target
            ):
                break
        say(f"depth {k}: {name} with {chosen[name]}")
    return chosen


def compare(workers: dict[str, Worker], queries: Sequence[Sequence[Any]]) -> list[Row]:
    """A row for each engine: one thread and two, in turns, and memory. The first engine is what others are held to."""
    single = rotate(workers, len(queries), lambda name, number: queries[number])
    double = rotate(workers, len(queries), lambda name, number: queries[number], lambda name: 2)
    base = next(iter(workers))
    return [
        {
            "engine": name,
            "recall": None,
            **figures(single[name]),
            "p50 / first": p50_ratio(single[name], single[base]),
            "2 threads": rate_ratio(double[name], single[name]),
            "opened s": round(worker.opened_s, 1),
            "grown MiB": worker.grown_bytes >> 20,
            "mapped MiB": worker.memory()["mapped"] >> 20,
        }
        for name, worker in workers.items()
    ]


def answers_of(workers: dict[str, Worker], queries: Sequence[Sequence[Any]]) -> dict[str, list[list[int]]]:
    return {
        name: [answer for turn in queries for answer in worker.run(turn).answers]
        for name, worker in workers.items()
    }


def bm25(material: Material, plan: Plan, scratch: Path, say: Say) -> Report:
    """Ours and the peers on the first passages of the material, every size in the same turns."""
    makers: dict[str, Any] = {}
    for size in plan.sizes:
        say(f"building {size:,} passages ...")
        folder = scratch / str(size)
        # Nothing here searches vectors: short ones, all cold, are the quickest to build.
        vectors = np.random.default_rng(0).standard_normal((size, 8), np.float32)
        write(folder, material.texts[:size], vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
        rebuild(folder, 0)
        makers[f"nearline {size:,}"] = partial(Nearline, folder)
    if plan.peers:
        for size in plan.sizes:
            for name, peer in WORDS.items():
                if name != "rank-bm25" or size <= RANK_BM25_MAX:
                    makers[f"{name} {size:,}"] = partial(peer, material.folder, size)
    rounds = max(min(plan.queries, len(material.queries)) // TURN, 1)
    tables: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        if not workers:
            raise NearlineError("; ".join(notes))
        for k in plan.depth:
            say(f"depth {k}: {rounds} turns of {TURN} queries ...")
            texts = [material.queries[at * TURN : (at + 1) * TURN] for at in range(rounds)]
            tables[f"{k} best by BM25"] = compare(workers, [[(text, k) for text in turn] for turn in texts])
    shown = {"sizes": ", ".join(map(str, plan.sizes)), "queries": rounds * TURN, "turn": TURN}
    return Report(bench="bm25", settings=shown, tables=tables, notes=[*notes, *NOTES[:1]])
