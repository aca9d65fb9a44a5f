"""The index library beside others, on the same vectors: dense search at two depths, and BM25 at several sizes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
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
from jobs.benchmark.turns import Engine, Row, Say, Worker, figures, rate_ratio, rotate, start, turns
from retrieval.embedding.encoder import available_threads

BUILD_TIMEOUT_S = 7200
BATCH = 1000
TRIED = 100  # queries that settings are chosen by
THREAD_ROUNDS = 5  # of all queries, on one thread and on two: single turns are too short for threads
RANK_BM25_MAX = 20_000  # it scores every passage in Python
VECTORS = {
    "hnswlib": peers.hnswlib,
    "faiss": peers.faiss,
    "usearch": peers.usearch,
    "qdrant-edge": peers.qdrant_edge,
    "lancedb": peers.lancedb,
}
TWO = "2 threads: how many times as many queries a second as on one, median over rounds of all queries."
WORDS = {"tantivy": peers.tantivy, "bm25s": peers.bm25s, "rank-bm25": peers.rank_bm25}


@dataclass(frozen=True)
class Plan:
    """`target`: a peer's cheapest setting of this recall is compared; ours are as the build chose. `sizes`: of BM25."""

    sizes: Sequence[int] = ()
    depth: Sequence[int] = (10, 100)
    queries: int = 1000
    target: float = 0.98
    peers: bool = False


class Nearline(Engine):
    """A collection in a folder, searched through its snapshot. Passage ids begin at 1, rows at 0."""

    def __init__(self, collection: Path, cold: ColdPolicy | None = None) -> None:
        self._folder, self._cold = collection, cold or ColdPolicy("always")

    def open(self) -> None:
        self.collection = Collection(self._folder, Tuning(cold=self._cold))

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
    tuning = Tuning(delta_passages_max=len(texts) + 1, segments_max=0)
    with closing(Collection.create(folder, settings, tuning)) as collection:
        for begin in range(0, len(texts), BATCH):
            rows = range(begin, min(begin + BATCH, len(texts)))
            passages = [NewPassage(0, len(texts[row]), 0, np.array(vectors[row])) for row in rows]
            documents = [Upsert(str(row), texts[row], "", {}, (one,)) for row, one in zip(rows, passages)]
            collection.write(documents).result()


def rebuild(folder: Path, hot: int) -> None:
    """Build a generation with so many passages hot and make it the live one."""
    with closing(Collection(folder, Tuning(build_threads=available_threads()))) as collection:
        build = Rebuild(collection.begin_build(hot), timeout_s=BUILD_TIMEOUT_S)
        collection.adopt(build.run(lambda *_: None))


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
        makers |= {name: partial(peers.VectorIndex, material.folder, peer) for name, peer in VECTORS.items()}
    tried, vectors = np.split(material.query_vectors[: TRIED + plan.queries], [TRIED])
    tables: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        for k in plan.depth:
            chosen = choose(workers, material, tried, k, plan.target)
            say(f"depth {k}: {len(vectors)} queries ...")
            best = best_scores(material.vectors, vectors, k)
            tables[f"{k} nearest of {count:,}"] = [
                {
                    **row,
                    "ef": chosen.get(row["engine"]),
                    "recall": recall(found, material.vectors, vectors, best),
                }
                for row, found in compare(workers, [(vector, k) for vector in vectors])
            ]
    facts = {"passages": count, "queries": len(vectors), "target": plan.target}
    notes.append(f"ef of a peer: the smallest to reach recall {plan.target}, or else {peers.EFS[-1]}.")
    return report("index", facts, tables, [*notes, peers.NOTE, TWO])


def choose(
    workers: dict[str, Worker], material: Material, vectors: Floats, k: int, target: float
) -> dict[str, int]:
    """Let each peer search depth `k` with its smallest `ef` that reaches the target."""
    best = best_scores(material.vectors, vectors, k)
    chosen = {}
    for name in VECTORS.keys() & workers.keys():
        for ef in peers.EFS:
            workers[name].call("choose", k, ef)
            chosen[name] = ef
            answers = workers[name].run([(vector, k) for vector in vectors]).answers
            if recall(answers, material.vectors, vectors, best) >= target:
                break
    return chosen


def compare(workers: dict[str, Worker], queries: Sequence[Any]) -> Iterator[tuple[Row, list[list[int]]]]:
    """A row for each engine, against the first one, and its answers to all queries."""
    once = rotate(workers, [queries])  # also warms up
    runs = rotate(workers, turns(queries))
    one, two = (rotate(workers, [queries] * THREAD_ROUNDS, clients=dict.fromkeys(workers, n)) for n in (1, 2))
    for name, worker in workers.items():
        row: Row = {"engine": name, **figures(runs[name], runs[next(iter(workers))])}
        row |= {"2 threads": rate_ratio(two[name], one[name]), **worker.call("memory")}
        yield row | {"opened s": round(worker.opened_s, 1)}, once[name][0].answers


def bm25(material: Material, plan: Plan, scratch: Path, say: Say) -> Report:
    """Ours and the peers on the first passages of the material, every size in the same turns."""
    makers: dict[str, Any] = {}
    for size in plan.sizes:
        say(f"building {size:,} passages ...")
        # Nothing here searches vectors: short ones are the quickest to build.
        vectors = np.repeat(np.eye(8, dtype=np.float32), -(-size // 8), axis=0)[:size]
        write(scratch / str(size), material.texts[:size], vectors)
        rebuild(scratch / str(size), 0)
        makers[f"nearline {size:,}"] = partial(Nearline, scratch / str(size))
        for name, peer in WORDS.items() if plan.peers else ():
            if name != "rank-bm25" or size <= RANK_BM25_MAX:
                makers[f"{name} {size:,}"] = partial(peers.Bm25Index, material.folder, peer, size)
    tables: dict[str, list[Row]] = {}
    texts = material.queries[: plan.queries]
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        for k in plan.depth:
            say(f"depth {k}: {len(texts)} queries ...")
            ours: dict[str, list[list[int]]] = {}  # answers by size
            tables[f"{k} best by BM25"] = [
                {**row, "recall": overlap(found, ours.setdefault(row["engine"].split()[-1], found))}
                for row, found in compare(workers, [(text, k) for text in texts])
            ]
    notes.append("recall: share of our rows, which are exact; engines keep other ones of equal score.")
    facts = {"sizes": plan.sizes, "queries": len(texts)}
    return report("bm25", facts, tables, [*notes, peers.NOTE, TWO])
