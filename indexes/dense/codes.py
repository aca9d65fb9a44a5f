"""Product codes of a segment's vectors (faiss FastScan): a search scans them all and scores the best again exactly.

For as many vectors as a segment holds, scanning codes is quicker than walking a graph and finds more: it reads little
memory, and that in order. Making codes costs a small part of what building a graph does, and disturbs the searches
beside it less. Above some 100,000 vectors a graph or lists would win.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

from indexes.dense.training import codes_for
from indexes.dense.vectors import StoredVectors
from indexes.model import Floats, Rows

SAMPLE = 1024  # vectors that the codebooks are trained on: 64 for each of the 16 centres; more find no more
ITERATIONS = 5
BLOCK_ROWS = 512  # coded at once: between two blocks other threads get their turn
CANDIDATES_MIN = 200
OVERSAMPLING = 8  # candidates scored again for each place in the ranking


class Codes:
    """Immutable, safe from any number of threads."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self.size = int(index.ntotal)

    @staticmethod
    def of(vectors: StoredVectors, go_on: Callable[[], None]) -> Codes:
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
        query = np.ascontiguousarray(query, np.float32)
        wanted = min(wanted, self.size)
        scores, rows = np.empty(wanted, np.float32), np.empty(wanted, np.int64)
        self._index.search_c(1, faiss.swig_ptr(query), wanted, faiss.swig_ptr(scores), faiss.swig_ptr(rows))
        found: Rows = rows[rows >= 0]
        return found

    @property
    def bytes(self) -> int:
        return int(self._index.codes.size())


def candidates_of(depth: int) -> int:
    """How many candidates are scored again for an answer of `depth`."""
    return max(CANDIDATES_MIN, OVERSAMPLING * depth)
