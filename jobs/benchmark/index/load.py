"""What only Nearline is asked: searches under filters, and searches while others write."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexes.filters.grammar import Comparison
from indexes.model import Floats, Upsert
from jobs.benchmark.index.engine import Found
from jobs.benchmark.index.material import BUCKETS, Material, further, upsert
from jobs.benchmark.index.nearline import Nearline
from jobs.benchmark.index.timing import Bench, medians, one_pass, timed
from jobs.benchmark.index.truth import best_scores, recall
from jobs.benchmark.service import median, percentiles

SHARES = (0.5, 0.1, 0.01, 0.001)
BATCH = 64
VECTORS_AT_ONCE = 8192
ROUNDS = 40
PORTION = 100  # queries, between two looks at whether the writer is done


def run(engine: Nearline, folder: Path, material: Material, bench: Bench, ingest: int) -> dict[str, Any]:
    """With the settings its builder chose. Leaves `ingest` more passages in the collection."""
    engine.open(folder, bench.vectors)
    try:
        return {
            "filtered": [filtered(engine, material, bench, share) for share in SHARES],
            "while_writing": while_writing(engine, material, bench, ingest) if ingest else None,
        }
    finally:
        engine.close()


def filtered(engine: Nearline, material: Material, bench: Bench, share: float) -> dict[str, Any]:
    """Recall among the passages the filter allows, and the share of answers as full as they could be."""
    below = max(round(share * BUCKETS), 1)
    condition = Comparison("lt", "bucket", below)
    allowed = material.buckets < below
    best = best_scores(bench.vectors, bench.queries, bench.k, allowed)

    def search(query: Floats, k: int) -> Found:
        return engine.rows_of(engine.collection.snapshot.dense(query, k, condition).ranking.ids)

    times: list[dict[str, float]] = []
    found: list[Found] = []
    for _ in range(bench.repeat):
        found, taken = timed(search, bench.queries, bench.k)
        times.append(percentiles(taken))
    if any(not allowed[rows].all() for rows in found):
        raise AssertionError(f"a search under bucket < {below} returned a passage of another bucket")
    return {
        "share": share,
        "passages": int(allowed.sum()),
        "recall": round(recall(found, bench.vectors, bench.queries, best), 4),
        "full": round(float(np.mean([len(rows) == best.shape[1] for rows in found])), 4),
        **medians(times),
    }


def while_writing(engine: Nearline, material: Material, bench: Bench, count: int) -> dict[str, Any]:
    """Search latencies idle, and while a thread writes `count` passages in batches, each synced, round by round.

    Machines have slow seconds. So each round first times idle searches, on the snapshot from before anything was
    written, and the ratio is taken within the round. A round is over when what it wrote has become segments.
    """
    batches = new_documents(bench.vectors, material.texts(VECTORS_AT_ONCE), count)
    gc.freeze()  # no service holds so many: going through them would stop its searches
    before = engine.collection.snapshot
    portions = itertools.cycle(np.array_split(bench.queries, max(len(bench.queries) // PORTION, 1)))
    rounds: list[dict[str, Any]] = []
    all_busy: list[float] = []
    writing_s = 0.0
    for number in range(min(ROUNDS, len(batches))):
        _, idle = one_pass(lambda query, k: engine.search_in(before, query, k), bench.queries, bench.k)
        writer = Writing(engine, batches[number::ROUNDS])
        writer.start()
        _, busy = timed(engine.search, next(portions), bench.k)
        while writer.is_alive():
            busy += timed(engine.search, next(portions), bench.k)[1]
        writer.join()
        if writer.error is not None:
            raise writer.error
        writing_s += writer.seconds
        all_busy += busy
        rounds.append({"idle": percentiles(idle), "while_writing": percentiles(busy)})
    _, after = one_pass(engine.search, bench.queries, bench.k)
    info = engine.collection.info()
    return {
        "passages_written": count,
        "passages_per_s": round(count / writing_s, 1),
        "searches_meanwhile": len(all_busy),
        **{state: medians([one[state] for one in rounds]) for state in ("idle", "while_writing")},
        "ratio": {
            name: median(one["while_writing"][name] / one["idle"][name] for one in rounds)
            for name in ("p50_ms", "p99_ms")
        },
        "all_while_writing": percentiles(all_busy),
        "afterwards": {
            **percentiles(after),
            "segments": info.segments,
            "passages_in_delta": info.passages["delta"],
        },
        "rounds": rounds,
    }


class Writing(threading.Thread):
    """Writes, waits until that has become segments, and keeps what went wrong for whoever joins it."""

    def __init__(self, engine: Nearline, batches: Sequence[list[Upsert]]) -> None:
        super().__init__(name="writing", daemon=True)
        self._collection = engine.collection
        self._batches = batches
        self.error: BaseException | None = None
        self.seconds = 0.0  # of the writing alone

    def run(self) -> None:
        begun = time.perf_counter()
        try:
            for batch in self._batches:
                self._collection.write(batch).result()
            self.seconds = time.perf_counter() - begun
            self._collection.settle()
        except BaseException as error:  # noqa: BLE001 - raised again where the thread is joined
            self.error = error


def new_documents(vectors: Floats, texts: list[str], count: int) -> list[list[Upsert]]:
    """Made before anything is timed: elsewhere it is another process that makes them."""
    batches: list[list[Upsert]] = []
    for start in range(0, count, VECTORS_AT_ONCE):
        block = further(vectors, min(VECTORS_AT_ONCE, count - start), seed=start)
        made = [
            upsert(f"load-{start + row}", texts[row % len(texts)], vector, row % BUCKETS)
            for row, vector in enumerate(block)
        ]
        batches += [made[at : at + BATCH] for at in range(0, len(made), BATCH)]
    return batches
