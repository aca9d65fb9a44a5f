"""The dense half of a build: hot graph, cold lists and stored vectors, in one pass over the log.

    sample -> train the lists -> one pass: hot into the graph, all into lists and into a spool of float16 rows
           -> number the cold rows by list -> copy the spool in that order

Memory: the graph (about 1.7 KB per hot passage at 384 dimensions), the codes (about 60 bytes per passage, up to
twice that while lists grow), a few numbers per passage, and the training sample; never all vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexes.base.arrays import find_sorted
from indexes.base.model import Floats, Ids, Progress, Rows
from indexes.dense.cold import rows_in_list
from indexes.dense.hot import HotGraph
from indexes.dense.training import Training, train, training_size
from indexes.dense.vectors import Halves, StoredVectors
from indexes.log.reader import LogReader
from indexes.parts.generation import LOWEST
from indexes.rebuild.placement import Placement

FIRST_EF = 128
COPIED_ROWS = 8192


@dataclass(frozen=True, slots=True)
class DenseRows:
    """Passage id of each row, hot rows first; the number of hot rows; how the lists were trained."""

    ids: Ids
    hot: int
    training: Training


def write_dense(
    draft: Path,
    log: LogReader,
    placement: Placement,
    *,
    last_passage: int,
    recall_target: float,
    threads: int,
    progress: Progress,
) -> DenseRows:
    """Write graph, lists, vectors and ids into the draft folder of a generation."""
    dimensions, hot, cold = log.settings.dimensions, placement.hot, placement.cold
    index, training = None, Training()
    if len(cold):
        index, training = train_lists(log, np.concatenate([hot, cold]), recall_target, progress)
    spool_path = draft / "spool.f16"
    spool = StoredVectors.create(spool_path, len(hot) + len(cold), dimensions)
    blocks = spool_vectors(log, placement, last_passage, index, spool, progress)
    graph = HotGraph.build(blocks, len(hot), dimensions, ef=FIRST_EF, threads=threads)
    if len(hot):
        graph.save(draft / "hot.hnsw")
    del graph
    order = np.arange(len(hot))
    if index is not None:
        numbered, starts = number_by_list(index, len(hot))
        order = np.concatenate([order, numbered])
        faiss.write_index(index, str(draft / "cold.ivf"))
    ids = np.concatenate([hot, cold])[order]
    np.save(draft / "ids.npy", ids)
    np.save(draft / "order.npy", np.argsort(ids, kind="stable").astype(np.uint32))
    copy_ordered(spool, order, StoredVectors.create(draft / "vectors.f16", len(ids), dimensions), progress)
    spool_path.unlink()
    if index is not None:
        rows = StoredVectors.load(draft / "vectors.f16", len(ids), dimensions)
        np.save(draft / LOWEST, lowest_of_lists(index, rows, starts))
    return DenseRows(ids, len(hot), training)


def train_lists(
    log: LogReader, ids: Ids, recall_target: float, progress: Progress, *, seed: int = 11
) -> tuple[Any, Training]:
    """An empty index for these passages, trained on a random sample of them."""
    progress("train", 0, 1)
    chosen = np.random.default_rng(seed).choice(ids, training_size(len(ids)), replace=False)
    trained = train(log.vectors_of(np.sort(chosen).tolist()), len(ids), recall_target)
    progress("train", 1, 1)
    return trained


def spool_vectors(
    log: LogReader, placement: Placement, last_passage: int, index: Any, spool: Halves, progress: Progress
) -> Iterator[tuple[Rows, Floats]]:
    """Read all vectors once: yield (rows, vectors) of hot ones, and add all to the lists and to the spool, whose rows
    are the hot, then the cold passages, each by id.

    A passage deleted during the build leaves zeros in the spool and is in no dense index.
    """
    hot, cold = placement.hot, placement.cold
    done = 0
    for block_ids, vectors in log.vectors(0, last_passage):
        progress("dense", done, len(spool))
        done += len(block_ids)
        for tier, first in ((hot, 0), (cold, len(hot))):
            at = find_sorted(tier, block_ids)
            if not (held := at >= 0).any():
                continue
            rows, found = first + at[held], np.ascontiguousarray(vectors[held])
            spool[rows] = found
            if index is not None:
                index.add_with_ids(found, rows)
            if tier is hot:
                yield rows, found


def number_by_list(index: Any, first_cold: int) -> tuple[Rows, Rows]:
    """Renumber the cold rows consecutively from `first_cold`, list by list, in place.

    Returns their previous numbers in the new order, and the first of each list, then the end: int64 [lists + 1].
    """
    before, starts = [], [first_cold]
    for number in range(index.nlist):
        rows = rows_in_list(index, number)
        cold = rows >= first_cold
        before.append(rows[cold])
        starts.append(starts[-1] + len(before[-1]))
        rows[cold] = np.arange(starts[-2], starts[-1])
    return np.concatenate(before), np.array(starts)


def lowest_of_lists(index: Any, rows: StoredVectors, starts: Rows) -> Floats:
    """Inner product of each list's normalized centroid with its farthest cold member; 1 for a list without one."""
    centroids = index.quantizer.reconstruct_n(0, index.nlist)
    centroids /= np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
    lowest = np.ones(index.nlist, np.float32)
    for number in np.flatnonzero(np.diff(starts)):
        for at in range(starts[number], starts[number + 1], COPIED_ROWS):
            block = rows.take(np.arange(at, min(at + COPIED_ROWS, starts[number + 1])))
            lowest[number] = min(lowest[number], float((block @ centroids[number]).min()))
    return lowest


def copy_ordered(spool: Halves, order: Rows, into: Halves, progress: Progress) -> None:
    """Write the spooled rows in their final order."""
    for start in range(0, len(order), COPIED_ROWS):
        progress("vectors", start, len(order))
        rows = order[start : start + COPIED_ROWS]
        into[start : start + len(rows)] = spool[rows]
    if isinstance(into, np.memmap):
        into.flush()
