"""The index library against others on the same texts and vectors: dense search, BM25, and cold-tier skipping.

The load for skipping is drawn from topics: clusters of passages with a Zipf popularity distribution. A query is a
synthetic vector near a passage of its topic; the loss is measured against always searching the cold tier.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexes.base.model import ColdPolicy, Floats, IndexOptions, NewPassage, Rows, Settings, Upsert
from indexes.collection.collection import Collection
from indexes.dense.mixtures import mixtures_of
from indexes.parts.manifest import read_manifest
from indexes.parts.query import Query
from indexes.parts.shelf import Shelf
from indexes.rebuild.builder import Rebuild
from jobs.benchmark import peers as others
from jobs.benchmark.report import BenchResults, Row, Say
from jobs.benchmark.texts import Material, batches, best_scores, overlap, recall
from jobs.benchmark.turns import Engine, Worker, figures, rate, ratio, rotate, start, turns
from retrieval.base.settings import Config
from retrieval.embedding.encoder import available_threads

BUILD_TIMEOUT_S = 7200
BATCH = 1000
TARGET = 0.98  # recall that settings must reach
TRIED = 100  # queries used to choose settings of peers
ASKED = 800  # and those of sizes that are compared
THREAD_ROUNDS = 5  # over all queries, on one thread and on two: single turns are too short for threads
RANK_BM25_MAX = 20_000  # passages; it scores every one in Python
VECTORS = {
    "hnswlib": others.hnswlib,
    "faiss": others.faiss,
    "usearch": others.usearch,
    "qdrant-edge": others.qdrant_edge,
    "lancedb": others.lancedb,
}
PASSAGES_MIN = 8  # per topic: queries are mixtures of its passages
K, DEPTH = 10, 100  # hits, and passages ranked for fusion: the service's defaults
BUDGET = 0.005  # recall that skipping may lose
TOPICS = 300  # clusters
HOT = 0.03  # of the passages: their graph is no larger than the lists
HITS = 0.2  # per passage: queries whose hits decide which passages the rebuild keeps hot
WORDS = {"tantivy": others.tantivy, "bm25s": others.bm25s, "rank-bm25": others.rank_bm25}


class Nearline(Engine):
    """A collection in a folder, searched through its snapshot. Passage ids start at 1, rows at 0."""

    def __init__(self, collection: Path, cold: ColdPolicy | None = None) -> None:
        self._folder, self._cold = collection, cold or ColdPolicy("always")

    def open(self) -> None:
        self.collection = Collection(self._folder, IndexOptions(cold=self._cold))

    def ask(self, query: Any) -> list[int]:
        """Dense search for a vector, lexical search for a text."""
        wanted, k = query
        snapshot = self.collection.snapshot
        found = snapshot.lexical(wanted, k) if isinstance(wanted, str) else snapshot.dense(wanted, k).ranking
        rows: list[int] = (found.ids - 1).tolist()
        return rows

    def close(self) -> None:
        self.collection.close()


def write(folder: Path, texts: Sequence[str], vectors: Floats) -> None:
    """Create a collection with one passage per text, in order, and no generation."""
    settings = Settings(dimensions=vectors.shape[1], fingerprint="bench", model="bench")
    # Everything in one delta: it is never searched, so it needs no segments.
    options = IndexOptions(delta_passages_max=len(texts) + 1, segments_max=0)
    with closing(Collection.create(folder, settings, options)) as collection:
        for rows in batches(len(texts), BATCH):
            passages = [NewPassage(0, len(texts[row]), 0, np.array(vectors[row])) for row in rows]
            documents = [Upsert(str(row), texts[row], "", {}, (one,)) for row, one in zip(rows, passages)]
            collection.write(documents).result()


def rebuild(folder: Path, hot: int, asked: Floats | None = None) -> None:
    """Build a generation with `hot` hot passages and make it live; its settings are chosen for TARGET by the queries in
    `asked`, or else as in a service."""
    options = IndexOptions(build_threads=available_threads())
    if asked is not None:
        options = replace(options, recall_target=TARGET)
    with closing(Collection(folder, options)) as collection:
        questions = None if asked is None else ("queries", asked)
        build = Rebuild(collection.begin_build(hot), timeout_s=BUILD_TIMEOUT_S, questions=questions)
        collection.adopt(build.run(lambda *_: None))


def dense(
    material: Material, scratch: Path, say: Say, *, depth: Sequence[int], queries: int, peers: bool
) -> BenchResults:
    """Compare all cold, a tenth hot and all hot with peers at their cheapest setting that reaches the target recall."""
    count = len(material.texts)
    say(f"writing {count:,} passages ...")
    write(scratch / "log", material.texts, material.vectors)
    makers: dict[str, Any] = {}
    for name, hot in (("all cold", 0), ("a tenth hot", count // 10), ("all hot", count)):
        say(f"building {name} ...")
        shutil.copytree(scratch / "log", scratch / name)
        rebuild(scratch / name, hot)
        makers[f"nearline, {name}"] = partial(Nearline, scratch / name)
    if peers:
        makers |= {name: partial(others.VectorIndex, material.folder, peer) for name, peer in VECTORS.items()}
    tried, vectors = np.split(material.query_vectors[: TRIED + queries], [TRIED])
    tables: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        for k in depth:
            chosen = choose(workers, material, tried, k)
            say(f"depth {k}: {len(vectors)} queries ...")
            best = best_scores(material.vectors, vectors, k)
            tables[f"{k} nearest of {count:,}"] = [
                row
                | {"ef": chosen.get(row["engine"]), "recall": recall(found, material.vectors, vectors, best)}
                for row, found in compare(workers, [(vector, k) for vector in vectors])
            ]
    notes.append(f"ef of a peer: the smallest to reach recall {TARGET}, or else {others.EFS[-1]}.")
    return BenchResults(tables, [*notes, others.NOTE])


def scale(
    material: Material, scratch: Path, say: Say, *, sizes: Sequence[int], depth: Sequence[int], queries: int
) -> BenchResults:
    """Measure dense search of prefixes of the material, with all sizes in the same turns.

    The queries that are not measured choose the settings of each size.
    """
    asked = material.query_vectors[queries : queries + ASKED]
    makers: dict[str, Any] = {}
    facts: dict[str, Row] = {}
    for size in sizes:
        name, folder = f"{size:,} passages", scratch / str(size)
        say(f"building {size:,} passages ...")
        write(folder, material.texts[:size], material.vectors[:size])
        rebuild(folder, min(Config().index.hot_capacity, size // 10), asked if len(asked) else None)
        makers[name], facts[name] = partial(Nearline, folder), facts_of(folder)
    vectors = material.query_vectors[:queries]
    tables: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        for k in depth:
            say(f"depth {k}: {len(vectors)} queries ...")
            best = {
                name: best_scores(material.vectors[:size], vectors, k)
                for name, size in zip(makers, sizes, strict=True)
            }
            tables[f"{k} nearest"] = [
                row
                | {"recall": recall(found, material.vectors, vectors, best[row["engine"]])}
                | facts[row["engine"]]
                for row, found in compare(workers, [(vector, k) for vector in vectors])
            ]
    notes.append(
        f"lists, probes: chosen by the rebuild, for recall {TARGET} on {len(asked)} other queries; a query scans at "
        "least so many lists."
    )
    return BenchResults(tables, notes)


def facts_of(folder: Path) -> Row:
    """What the live generation of a collection says of itself."""
    shelf = Shelf(folder)
    manifest = read_manifest(shelf.path(shelf.current()))
    return {
        "lists": manifest.training.lists,
        "probes": manifest.search.probes,
        "build s": round(manifest.build_s),
    }


def choose(workers: dict[str, Worker], material: Material, vectors: Floats, k: int) -> dict[str, int]:
    """Set each peer to its smallest `ef` that reaches the target recall at depth `k`; returns them by name."""
    best = best_scores(material.vectors, vectors, k)
    chosen = {}
    for name in VECTORS.keys() & workers.keys():
        for ef in others.EFS:
            workers[name].call("choose", k, ef)
            chosen[name] = ef
            answers = workers[name].run([(vector, k) for vector in vectors]).answers
            if recall(answers, material.vectors, vectors, best) >= TARGET:
                break
    return chosen


def compare(workers: dict[str, Worker], queries: Sequence[Any]) -> Iterator[tuple[Row, list[list[int]]]]:
    """Each engine's row, relative to the first engine, with its answers to all queries."""
    once = rotate(workers, [queries])  # also warms up
    runs = rotate(workers, turns(queries))
    one, two = (rotate(workers, [queries] * THREAD_ROUNDS, clients=dict.fromkeys(workers, n)) for n in (1, 2))
    for name, worker in workers.items():
        row: Row = {"engine": name, **figures(runs[name], runs[next(iter(workers))])}
        row |= {"2 threads": ratio(two[name], one[name], rate), **worker.call("memory")}
        yield row, once[name][0].answers


def bm25(
    material: Material, scratch: Path, say: Say, *, sizes: Sequence[int], depth: Sequence[int], queries: int,
    peers: bool,
) -> BenchResults:  # fmt: skip
    """Compare BM25 with the peers' on prefixes of the material, with all sizes in the same turns."""
    makers: dict[str, Any] = {}
    for size in sizes:
        say(f"building {size:,} passages ...")
        # Vectors are not searched here, so use short ones, which build fastest.
        vectors = np.repeat(np.eye(8, dtype=np.float32), -(-size // 8), axis=0)[:size]
        write(scratch / str(size), material.texts[:size], vectors)
        rebuild(scratch / str(size), 0)
        makers[f"nearline {size:,}"] = partial(Nearline, scratch / str(size))
        for name, peer in WORDS.items() if peers else ():
            if name != "rank-bm25" or size <= RANK_BM25_MAX:
                makers[f"{name} {size:,}"] = partial(others.Bm25Index, material.folder, peer, size)
    tables: dict[str, list[Row]] = {}
    texts = material.queries[:queries]
    with ExitStack() as stack:
        workers, notes = start(makers, stack, say)
        for k in depth:
            say(f"depth {k}: {len(texts)} queries ...")
            ours: dict[str, list[list[int]]] = {}  # answers by size
            tables[f"{k} best by BM25"] = [
                row | {"recall": overlap(found, ours.setdefault(row["engine"].split()[-1], found))}
                for row, found in compare(workers, [(text, k) for text in texts])
            ]
    notes.append(
        "recall: share of our rows; others of equal score count as misses. tantivy has its own k1 and b."
    )
    return BenchResults(tables, [*notes, others.NOTE])


class Policy(Nearline):
    """Dense search with the service's depths, under a cold-tier policy."""

    skips = 0

    def ask(self, query: Floats) -> list[int]:
        snapshot = self.collection.snapshot
        found = snapshot.prepare(snapshot.with_cold_policy(Query(K, DEPTH, vector=query))).dense()
        if found.spared is not None and snapshot.skipper is not None:
            snapshot.skipper.learn(found.spared)
        self.skips += found.cold_skipped is not None
        ids: list[int] = found.ranking.ids[:K].tolist()
        return ids

    def skipped(self) -> int:
        """How many queries skipped the cold tier since the last call."""
        skips, self.skips = self.skips, 0
        return skips


def cold(
    material: Material, scratch: Path, say: Say, *, zipf: float, learn: int, queries: int
) -> BenchResults:
    """Measure `queries` queries after a warm-up of `learn`, then again with popular and unpopular topics swapped."""
    hot = int(HOT * len(material.texts))
    topics = topics_of(np.array(material.vectors))
    drawn = partial(draw, material.vectors, zipf=zipf, rng=np.random.default_rng(1))
    say("building ...")
    write(scratch / "always", material.texts, material.vectors)
    rebuild(scratch / "always", hot)
    count_hits(scratch / "always", drawn(topics, int(HITS * len(material.texts))))
    say("rebuilding by hits ...")
    rebuild(scratch / "always", hot)
    policies = {
        "always": ColdPolicy("always"),
        "auto": ColdPolicy("auto", BUDGET),
        "calibrated": ColdPolicy("calibrated", BUDGET),
    }
    tables: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        for name in list(policies)[1:]:
            shutil.copytree(scratch / "always", scratch / name)
        makers = {name: partial(Policy, scratch / name, policy) for name, policy in policies.items()}
        workers, notes = start(makers, stack, say)
        say("learning ...")
        for name in list(policies)[1:]:
            workers[name].run(list(drawn(topics, learn)))
        half = len(topics) // 2
        for title, load in ("Load", topics), ("Shifted load", topics[half:] + topics[:half]):
            say(f"{title}: {queries} queries ...")
            tables[title] = ask_all(workers, drawn(load, queries))
    notes.append(
        f"loss: share of the {K} best of `always` that are missing, mean of all queries. Budget: {BUDGET}."
    )
    return BenchResults(tables, notes)


def count_hits(folder: Path, queries: Floats) -> None:
    with closing(Policy(folder)) as engine:
        engine.open()
        for query in queries:
            engine.collection.hits.count(engine.ask(query))
        engine.collection.hits.save()


def ask_all(workers: dict[str, Worker], queries: Floats) -> list[Row]:
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


def topics_of(vectors: Floats) -> list[Rows]:
    """Rows of each cluster, most popular first; popularity is assigned at random."""
    clusters = faiss.Kmeans(vectors.shape[1], TOPICS, niter=10, spherical=True, min_points_per_centroid=1)
    clusters.train(vectors)
    nearest = clusters.index.search(vectors, 1)[1][:, 0]
    members = [np.flatnonzero(nearest == topic) for topic in range(TOPICS)]
    order = np.random.default_rng(0).permutation(TOPICS)
    return [members[topic] for topic in order if len(members[topic]) >= PASSAGES_MIN]


def draw(vectors: Floats, topics: list[Rows], count: int, *, zipf: float, rng: np.random.Generator) -> Floats:
    """Queries with topics drawn by popularity, in random order."""
    shares = np.arange(1, len(topics) + 1) ** -zipf
    drawn = rng.choice(len(topics), count, p=shares / shares.sum())
    found = np.empty((count, vectors.shape[1]), np.float32)
    for topic in np.unique(drawn):
        at = np.flatnonzero(drawn == topic)
        rows = rng.choice(topics[topic], max(len(at), PASSAGES_MIN))
        found[at] = mixtures_of(vectors[rows], seed=int(rng.integers(2**31)))[: len(at)]
    return found
