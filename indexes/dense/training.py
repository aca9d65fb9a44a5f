"""Trains the cold lists on a sample of the passages; chooses the number of lists and the code type by measurement.

    how many lists?  few are cheap to rank but slow to scan. For several numbers: cluster the sample, find the reach
                     at which probe queries' lists hold their true neighbors, and take the number with the lowest
                     ranking and scanning cost at the size of the collection.
    which codes?     4-bit product codes of the vectors themselves, or of their residuals to the list's centroid:
                     whichever keeps more of the true neighbors among the candidates.

Measured and rejected (338,000 passages, 384 dimensions, recall@10 of .98): RaBitQ with FastScan takes 2.3 times as
long, 3-dimensional sub-vectors 1.1 times as long and a quarter more memory, and OPQ minutes of training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import faiss
import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Floats, Rows
from indexes.dense.cold import RANKS, middle
from indexes.dense.forecast import search_ns
from indexes.dense.mixtures import mixtures_of

SAMPLE_MAX = 131_072
TRIAL_ROWS = 65_536  # subsample on which numbers of lists and code types are tried
QUERIES = 200
K = RANKS
CANDIDATES = 100
TRIAL_ITERATIONS, ITERATIONS = 4, 10
VECTORS_PER_LIST_MIN = 16  # of the sample; fewer do not make a meaningful centroid
DIRECT, RESIDUAL = "x4fs", "x4fsr"


class Training(msgspec.Struct, frozen=True):
    """What training tried and chose: share scanned by number of lists, share kept by code type."""

    sample: int = 0
    lists: int = 0
    codes: str = ""
    scanned_share: dict[int, float] = {}
    kept: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class Probes:
    """Probe queries, and for each its nearest sample rows, best first, and their scores: [QUERIES, K]."""

    queries: Floats
    nearest: Rows
    scores: Floats


def training_size(cold: int) -> int:
    """How many passages to sample for training."""
    return min(cold, SAMPLE_MAX)


def train(sample: Floats, size: int, target: float) -> tuple[Any, Training]:
    """An empty index for `size` vectors, trained on `sample` [n, dimensions] for this recall, with the choices made."""
    part = np.ascontiguousarray(sample[:: -(-len(sample) // TRIAL_ROWS)])
    trial = make_probes(part)
    scanned = {lists: scan_of(part, trial, lists, target) for lists in candidates_for(size, len(part))}

    def cost(number: int) -> float:
        probes, share = scanned[number]
        return search_ns(number, probes, share * size)

    lists = min(scanned, key=cost)
    quantizer = cluster(sample, lists, ITERATIONS)
    built = {codes: train_index(quantizer, part, lists, codes) for codes in (DIRECT, RESIDUAL)}
    kept = {codes: kept_share(index, part, trial) for codes, index in built.items()}
    codes = max(kept, key=lambda name: kept[name])
    chosen = built[codes]
    chosen.reset()
    rounded = {number: round(share, 4) for number, (_, share) in scanned.items()}
    return chosen, Training(
        len(sample), lists, codes, rounded, {name: round(share, 4) for name, share in kept.items()}
    )


def candidates_for(size: int, sample: int) -> list[int]:
    """Numbers of lists to try: powers of two around the square root of the size."""
    root = 1 << max(2, round(math.log2(math.sqrt(max(size, 1)))))
    tried = [number for number in (root // 2, root, 2 * root) if number * VECTORS_PER_LIST_MIN <= sample]
    return tried or [max(1, min(root, sample // VECTORS_PER_LIST_MIN))]


def make_probes(sample: Floats, *, seed: int = 3) -> Probes:
    rows = np.random.default_rng(seed).choice(len(sample), min(QUERIES, len(sample)), replace=False)
    queries = mixtures_of(sample[rows])
    scores, nearest = faiss.knn(queries, sample, min(K, len(sample)), metric=faiss.METRIC_INNER_PRODUCT)
    return Probes(queries, nearest, scores)


def cluster(sample: Floats, lists: int, iterations: int) -> Any:
    """The centroids of `lists` lists, as a flat index."""
    dimensions = sample.shape[1]
    quantizer = faiss.IndexFlatIP(dimensions)
    clustering = faiss.Clustering(dimensions, lists)
    clustering.niter, clustering.seed = iterations, 7
    clustering.spherical = True
    clustering.min_points_per_centroid = 1  # otherwise faiss warns on stderr
    clustering.max_points_per_centroid = len(sample)
    clustering.train(sample, quantizer)
    return quantizer


def scan_of(sample: Floats, trial: Probes, lists: int, target: float) -> tuple[float, float]:
    """Mean lists probed, and the mean share of the sample in them, to find `target` of the true neighbors.

    Probes as the shard does: every list whose centroid is within some reach, see `ColdSettings`.
    """
    quantizer = cluster(sample, lists, TRIAL_ITERATIONS)
    home = quantizer.search(sample, 1)[1][:, 0]
    similarities, order = quantizer.search(trial.queries, lists)
    by_list = np.empty_like(similarities)
    np.put_along_axis(by_list, order, similarities, axis=1)
    start = middle(similarities[:, :1], trial.scores[:, -1:])
    reach = np.quantile(start - np.take_along_axis(by_list, home[trial.nearest], axis=1), target)
    near = np.maximum((similarities >= start - reach).sum(axis=1), 1)
    sizes: NDArray[np.int64] = np.bincount(home, minlength=lists)
    scanned = np.take_along_axis(np.cumsum(sizes[order], axis=1), near[:, None] - 1, axis=1)
    return float(near.mean()), float(scanned.mean() / len(sample))


def train_index(quantizer: Any, sample: Floats, lists: int, codes: str) -> Any:
    """An index over these centroids with trained codebooks, holding the sample."""
    dimensions = sample.shape[1]
    factory = f"IVF{lists},PQ{codes_for(dimensions)}{codes}"
    index = faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
    index.quantizer.add(quantizer.reconstruct_n(0, lists))  # already trained: only the codebooks remain
    index.pq.cp.min_points_per_centroid = 1  # as above: one warning for each of a hundred codebooks
    index.train(sample)
    index.add(sample)
    return index


def kept_share(index: Any, sample: Floats, trial: Probes) -> float:
    """Share of the true neighbors that are among the best CANDIDATES by code when every list is scanned."""
    wanted = min(CANDIDATES, len(sample))
    parameters = faiss.SearchParametersIVF(nprobe=index.nlist)
    _, found = index.search(trial.queries, wanted, params=parameters)
    kept = [np.isin(nearest, rows).mean() for nearest, rows in zip(trial.nearest, found, strict=True)]
    return float(np.mean(kept))


def codes_for(dimensions: int) -> int:
    """Number of sub-vectors: of four dimensions each, or the largest smaller size that divides the vector."""
    return next(dimensions // width for width in (4, 3, 2, 1) if dimensions % width == 0)
