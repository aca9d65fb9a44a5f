"""Trains the cold lists on a sample of the passages, and chooses their number and their codes by measuring on it.

    how many lists?  few are cheap to rank but long to scan. For several numbers: cluster the sample, find how many of
                     its rows must be scanned before the lists hold the true neighbours of probe queries, and
                     take the number whose ranking and scanning cost least at the size of the collection.
    which codes?     4-bit product codes of the vectors themselves, or of their residuals to the centre of the list:
                     whichever keeps more of the true neighbours among the candidates.

What was measured and left out (338,000 passages, 384 dimensions, recall@10 of .98): RaBitQ with FastScan takes 2.3
times as long, 3-dimensional sub-vectors 1.1 times and a quarter more memory, and OPQ minutes of training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import faiss
import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.dense.cold import search_ns
from indexes.dense.probing import probes_of
from indexes.model import Floats, Rows

SAMPLE_MAX = 131_072
TRIAL_ROWS = 65_536  # of the sample that different numbers of lists and codes are tried on
QUERIES = 200
K = 10
CANDIDATES = 100
TRIAL_ITERATIONS, ITERATIONS = 4, 10
VECTORS_PER_LIST_MIN = 16  # of the sample; with fewer a centre is not a mean
DIRECT, RESIDUAL = "x4fs", "x4fsr"


class Training(msgspec.Struct, frozen=True):
    """What training tried and chose: rows scanned by number of lists, candidates kept by kind of code."""

    sample: int = 0
    lists: int = 0
    codes: str = ""
    scanned_share: dict[int, float] = {}
    kept: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class Trial:
    """Probe queries in a sample, and the rows of it that are nearest to each: int64 [QUERIES, K]."""

    queries: Floats
    nearest: Rows


def training_size(cold: int) -> int:
    """Passages of a sample that is large enough to train on."""
    return min(cold, SAMPLE_MAX)


def train(sample: Floats, size: int, target: float) -> tuple[Any, Training]:
    """An empty index for `size` vectors, trained on `sample` [n, dimensions] for this recall, and how it was chosen."""
    part = np.ascontiguousarray(sample[:: -(-len(sample) // TRIAL_ROWS)])
    trial = make_trial(part)
    reaches = {lists: reach(part, trial, lists, target) for lists in candidates_for(size, len(part))}
    lists = min(reaches, key=lambda number: search_ns(number, *reaches[number], size))
    quantizer = clustered(sample, lists, ITERATIONS)
    built = {codes: trained(quantizer, part, lists, codes) for codes in (DIRECT, RESIDUAL)}
    kept = {codes: kept_share(index, part, trial) for codes, index in built.items()}
    codes = max(kept, key=lambda name: kept[name])
    chosen = built[codes]
    chosen.reset()
    rounded = {number: round(share, 4) for number, (_, share) in reaches.items()}
    return chosen, Training(
        len(sample), lists, codes, rounded, {name: round(share, 4) for name, share in kept.items()}
    )


def candidates_for(size: int, sample: int) -> list[int]:
    """Numbers of lists to try: powers of two around the square root of the size."""
    root = 1 << max(2, round(math.log2(math.sqrt(max(size, 1)))))
    tried = [number for number in (root // 2, root, 2 * root) if number * VECTORS_PER_LIST_MIN <= sample]
    return tried or [max(1, min(root, sample // VECTORS_PER_LIST_MIN))]


def make_trial(sample: Floats, *, seed: int = 3) -> Trial:
    rows = np.random.default_rng(seed).choice(len(sample), min(QUERIES, len(sample)), replace=False)
    queries = probes_of(sample[rows])
    _, nearest = faiss.knn(queries, sample, min(K, len(sample)), metric=faiss.METRIC_INNER_PRODUCT)
    return Trial(queries, nearest)


def clustered(sample: Floats, lists: int, iterations: int) -> Any:
    """The centres of so many lists, as a flat index."""
    dimensions = sample.shape[1]
    quantizer = faiss.IndexFlatIP(dimensions)
    clustering = faiss.Clustering(dimensions, lists)
    clustering.niter, clustering.seed = iterations, 7
    clustering.spherical = True
    clustering.min_points_per_centroid = 1  # a warning otherwise, on standard error
    clustering.max_points_per_centroid = len(sample)
    clustering.train(sample, quantizer)
    return quantizer


def reach(sample: Floats, trial: Trial, lists: int, target: float) -> tuple[int, float]:
    """How many lists, nearest first, hold `target` of the true neighbours, and what share of the sample they hold."""
    quantizer = clustered(sample, lists, TRIAL_ITERATIONS)
    home = quantizer.search(sample, 1)[1][:, 0]
    order = quantizer.search(trial.queries, lists)[1]
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(lists)[None, :], axis=1)
    places = np.take_along_axis(place, home[trial.nearest], axis=1)
    probes = int(np.quantile(places, target)) + 1
    sizes: NDArray[np.int64] = np.bincount(home, minlength=lists)
    return probes, float(sizes[order[:, :probes]].sum(axis=1).mean() / len(sample))


def trained(quantizer: Any, sample: Floats, lists: int, codes: str) -> Any:
    """An index over these centres with codebooks trained, holding the sample."""
    dimensions = sample.shape[1]
    factory = f"IVF{lists},PQ{codes_for(dimensions)}{codes}"
    index = faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
    index.quantizer.add(quantizer.reconstruct_n(0, lists))  # trained already: only the codebooks are left
    index.pq.cp.min_points_per_centroid = 1  # as above: a warning for each of a hundred codebooks otherwise
    index.train(sample)
    index.add(sample)
    return index


def kept_share(index: Any, sample: Floats, trial: Trial) -> float:
    """Share of the true neighbours that are among the best CANDIDATES by code, when every list is scanned."""
    wanted = min(CANDIDATES, len(sample))
    parameters = faiss.SearchParametersIVF(nprobe=index.nlist)
    _, found = index.search(trial.queries, wanted, params=parameters)
    kept = [np.isin(nearest, rows).mean() for nearest, rows in zip(trial.nearest, found, strict=True)]
    return float(np.mean(kept))


def codes_for(dimensions: int) -> int:
    """Sub-vectors of four dimensions each, or the nearest smaller size that divides the vector."""
    return next(dimensions // width for width in (4, 3, 2, 1) if dimensions % width == 0)
