"""Product codes of a segment's vectors (faiss FastScan): a search scans them all and rescores the best exactly.

A scan reads little memory, sequentially, while a graph walk stalls at every hop; and no graph has to be built while
passages are written. Scan time grows with the number of vectors, so segment size is bounded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexes.base.errors import Damaged, StorageError
from indexes.base.model import Floats, Rows
from indexes.base.work import OnStep
from indexes.dense.training import codes_for
from indexes.dense.vectors import StoredVectors, search_index

SAMPLE = 1024  # vectors to train the codebooks on: 64 for each of the 16 centroids
ITERATIONS = 5
BLOCK_ROWS = 512  # encoded per step, between calls of `on_step`
RESCORED_MIN = 200
RESCORED_PER_RANK = 8


class Codes:
    """Immutable and thread-safe."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self.size = int(index.ntotal)

    @staticmethod
    def of(vectors: StoredVectors, on_step: OnStep) -> Codes:
        """Train codebooks on a sample of these vectors, then encode all of them. Needs at least 16 vectors."""
        dimensions = vectors.halves.shape[1]
        index = faiss.IndexPQFastScan(dimensions, codes_for(dimensions), 4, faiss.METRIC_INNER_PRODUCT)
        index.pq.cp.niter = ITERATIONS
        index.pq.cp.min_points_per_centroid = 1  # otherwise faiss warns on stderr for each codebook
        index.train(
            vectors.take(np.linspace(0, vectors.rows - 1, min(SAMPLE, vectors.rows)).astype(np.int64))
        )
        for start in range(0, vectors.rows, BLOCK_ROWS):
            on_step()
            index.add(vectors.take(np.arange(start, min(start + BLOCK_ROWS, vectors.rows))))
        return Codes(index)

    @staticmethod
    def load(path: Path) -> Codes:
        """Read a file that `save` wrote, and whose checksum was verified. Raises Damaged if faiss cannot parse it."""
        try:
            return Codes(faiss.read_index(str(path)))
        except RuntimeError as error:
            raise Damaged(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Write them to a file. Raises StorageError."""
        try:
            faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            raise StorageError(f"{path}: {error}") from error

    def candidates(self, query: Floats, wanted: int) -> Rows:
        """The `wanted` rows nearest to a unit vector by code, best first."""
        return search_index(self._index, query, min(wanted, self.size))[0]

    @property
    def bytes(self) -> int:
        return int(self._index.codes.size())


def rescored_for(depth: int) -> int:
    """How many candidates are rescored for an answer of `depth`."""
    return max(RESCORED_MIN, RESCORED_PER_RANK * depth)
