"""The index library beside others, on the same vectors: dense search at two depths, and BM25 at several sizes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from indexes.build.rebuild import Rebuild
from indexes.collection import Collection
from indexes.model import ColdPolicy, Floats, NewPassage, Settings, Tuning, Upsert
from jobs.benchmark import peers
from jobs.benchmark.report import Report, report
from jobs.benchmark.texts import Material, best_scores, overlap, recall
from jobs.benchmark.turns import (
    Engine,
    Row,
    Say,
    Worker,
    figures,
    rate_ratio,
    read_whole,
    rotate,
    start,
    turns,
)
from retrieval.embedding.encoder import available_threads

BUILD_TIMEOUT_S = 7200
BATCH = 1000
TRIED = 100  # queries that settings are chosen by
THREAD_ROUNDS = 5  # of all queries, on one thread and on two: single turns are too short for threads
RANK_BM25_MAX = 20_000  # it scores every passage in Python
VECTORS: Mapping[str, Any] = {
    "hnswlib": peers.Hnswlib,
    "faiss": peers.FaissHnsw,
    "usearch": peers.Usearch,
    "qdrant-edge": peers.QdrantEdge,
    "lancedb": peers.Lancedb,
}
TWO = "2 threads: how many times as many queries a second as on one, median over rounds of all queries."
WORDS: Mapping[str, Any] = {"tantivy": peers.Tantivy, "bm25s": peers.Bm25s, "rank-bm25": peers.RankBm25}


@dataclass(frozen=True)
class Plan:
    """`target`: a peer's cheapest setting of this recall is compared; ours are as the build chose. `sizes`: of BM25."""

    sizes: Sequence[int] = ()
    depth: Sequence[int] = (10, 100)
    queries: int = 1000
    target: float = 0.98
    peers: bool = False


class Nearline(Engine):
    """A collection in a folder, searched through its snapshot. Rows are passage ids, which begin at 1."""

    def __init__(self, collection: Path, cold: ColdPolicy | None = None) -> None:
        self._folder, self._cold = collection, cold or ColdPolicy("always")

    def open(self) -> None:
        self.collection = Collection(self._folder, Tuning(cold=self._cold))
        tiers = self.collection.info().passages.items()
        self.what = "a collection: " + ", ".join(f"{count:,} {tier}" for tier, count in tiers if count)
        read_whole(self._folder)

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
    settings = Settings(dimensions=vectors.shape[1], fingerprint="bench", model="bench")
    # One delta for everything: it is never searched, so it needs no segments.
    collection = Collection.create(
        folder, settings, Tuning(delta_passages_max=len(texts) + 1, segments_max=0)
    )
    try:
        for begin in range(0, len(texts), BATCH):
            rows = range(begin, min(begin + BATCH, len(texts)))
            passages = [NewPassage(0, len(texts[row]), 0, np.array(vectors[row])) for row in rows]
            documents = [Upsert(str(row), texts[row], "", {}, (one,)) for row, one in zip(rows, passages)]
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
    """All cold, a tenth hot, all hot; and the peers."""
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
    tried, vectors = np.split(material.query_vectors[: TRIED + plan.queries], [TRIED])
    tables: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        for k in plan.depth:
            settings = dict(choose(workers, material, tried, k, plan.target))
            say(f"depth {k}: {len(vectors)} queries ...")
            rows, answers = compare(workers, [(vector, k) for vector in vectors])
            best = best_scores(material.vectors, vectors, k)
            for row, found in zip(rows, answers):
                row["recall"] = recall(found, material.vectors, vectors, best)
                row["setting"] = settings.get(row["engine"])
            tables[f"{k} nearest of {count:,}"] = rows
    facts = {"passages": count, "queries": len(vectors), "target": plan.target}
    notes.append(f"Setting of a peer: the first to reach recall {plan.target}, or else the last there is.")
    return report("index", facts, tables, [*notes, TWO])


def choose(
    workers: dict[str, Worker], material: Material, vectors: Floats, k: int, target: float
) -> Iterator[tuple[str, str]]:
    """Let each peer search depth `k` with its cheapest setting that reaches the target; yields name and setting."""
    best = best_scores(material.vectors, vectors, k)
    queries = [(vector, k) for vector in vectors]
    for name, worker in workers.items():
        for setting in VECTORS[name].settings if name in VECTORS else ():
            worker.call("choose", k, setting)
            if recall(worker.run(queries).answers, material.vectors, vectors, best) >= target:
                break
        if name in VECTORS:
            yield name, " ".join(map(str, setting))


def compare(workers: dict[str, Worker], queries: Sequence[Any]) -> tuple[list[Row], list[list[list[int]]]]:
    """A row for each engine, against the first one, and its answers to all queries."""
    once = rotate(workers, [queries])  # also warms up
    runs = rotate(workers, turns(queries, len(queries)))
    one, two = (
        rotate(workers, [queries] * THREAD_ROUNDS, clients=dict.fromkeys(workers, count)) for count in (1, 2)
    )
    base = runs[next(iter(workers))]
    rows: list[Row] = []
    for name, worker in workers.items():
        row: Row = {"engine": name, "recall": None, **figures(runs[name], base)}
        row |= {"2 threads": rate_ratio(two[name], one[name]), **worker.call("memory")}
        rows.append(row | {"opened s": round(worker.opened_s, 1), "how": worker.what})
    return rows, [once[name][0].answers for name in workers]


def bm25(material: Material, plan: Plan, scratch: Path, say: Say) -> Report:
    """Ours and the peers on the first passages of the material, every size in the same turns."""
    makers: dict[str, Any] = {}
    for size in plan.sizes:
        say(f"building {size:,} passages ...")
        # Nothing here searches vectors: short ones, all cold, are the quickest to build.
        vectors = np.random.default_rng(0).standard_normal((size, 8), np.float32)
        write(
            scratch / str(size),
            material.texts[:size],
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        )
        rebuild(scratch / str(size), 0)
        makers[f"nearline {size:,}"] = partial(Nearline, scratch / str(size))
        for name, peer in WORDS.items() if plan.peers else ():
            if name != "rank-bm25" or size <= RANK_BM25_MAX:
                makers[f"{name} {size:,}"] = partial(peer, material.folder, size)
    tables: dict[str, list[Row]] = {}
    texts = material.queries[: plan.queries]
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        for k in plan.depth:
            say(f"depth {k}: {len(texts)} queries ...")
            rows, answers = compare(workers, [(text, k) for text in texts])
            ours: dict[str, list[list[int]]] = {}
            for row, found in zip(rows, answers):
                size = row["engine"].split()[-1]
                row["recall"] = overlap(found, ours.setdefault(size, found))
            tables[f"{k} best by BM25"] = rows
    settings = {"sizes": plan.sizes, "queries": len(texts)}
    notes.append(
        "recall: share of our rows, which are exact, but for ties, of which each engine keeps others."
    )
    return report("bm25", settings, tables, [*notes, TWO])
