"""Product codes of a segment's vectors (faiss FastScan): a search scans them all and scores the best again exactly.

A scan reads little memory, and that in order, where a walk through a graph waits at every step; and there is no graph
to build while passages are written. It takes longer the more vectors there are, so segments stay of bounded size.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from indexes.courtesy import GoOn
from indexes.dense.training import codes_for
from indexes.dense.vectors import StoredVectors, search_index
from indexes.model import Floats, Rows

SAMPLE = 1024  # vectors that the codebooks are trained on: 64 for each of the 16 centres
ITERATIONS = 5
BLOCK_ROWS = 512  # coded at once: between two blocks other threads get their turn
RESCORED_MIN = 200
RESCORED_PER_RANK = 8


class Codes:
    """Immutable, safe from any number of threads."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self.size = int(index.ntotal)

    @staticmethod
    def of(vectors: StoredVectors, go_on: GoOn) -> Codes:
        """Codebooks trained on a sample of these vectors, and the codes of them all. Needs 16 vectors or more."""
        dimensions = vectors.halves.shape[1]
        index = faiss.IndexPQFastScan(dimensions, codes_for(dimensions), 4, faiss.METRIC_INNER_PRODUCT)
        index.pq.cp.niter = ITERATIONS
        index.pq.cp.min_points_per_centroid = 1  # a warning for each codebook otherwise, on standard error
        index.train(
            vectors.take(np.linspace(0, vectors.rows - 1, min(SAMPLE, vectors.rows)).astype(np.int64))
        )
        for start in range(0, vectors.rows, BLOCK_ROWS):
            go_on()
            index.add(vectors.take(np.arange(start, min(start + BLOCK_ROWS, vectors.rows))))
        return Codes(index)

    def candidates(self, query: Floats, wanted: int) -> Rows:
        """The `wanted` rows that look nearest to a unit vector, most promising first."""
        return search_index(self._index, query, min(wanted, self.size))[0]

    @property
    def bytes(self) -> int:
        return int(self._index.codes.size())


def rescored_for(depth: int) -> int:
    """How many candidates are scored again for an answer of `depth`."""
    return max(RESCORED_MIN, RESCORED_PER_RANK * depth)
