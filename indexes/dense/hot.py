"""A sealed HNSW graph (hnswlib): fast and nearly exact, about 1.7 KB of memory per passage at 384 dimensions.

hnswlib does not allow adding during searches, so a graph is built completely, then only searched. Labels are row
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import hnswlib
import numpy as np

from indexes.base.model import Floats, Rows

M = 16
EF_CONSTRUCTION = 200
# hnswlib's error message when a search reaches fewer rows than requested; it has no specific exception type for this.
TOO_FEW = "Cannot return the results in a contiguous 2D array"


class HotGraph:
    """Searches a graph of `size` unit vectors. Thread-safe."""

    def __init__(self, index: hnswlib.Index, ef: int) -> None:
        self._index = index
        self._index.set_num_threads(1)
        self.size = int(index.get_current_count())
        self.set_ef(ef)

    @staticmethod
    def build(
        blocks: Iterable[tuple[Rows, Floats]],
        size: int,
        dimensions: int,
        *,
        ef: int,
        threads: int,
    ) -> HotGraph:
        """Build from blocks of (rows, unit vectors), `size` in total. hnswlib releases the GIL while it adds."""
        index = hnswlib.Index(space="ip", dim=dimensions)
        index.init_index(max_elements=max(size, 1), M=M, ef_construction=EF_CONSTRUCTION, random_seed=100)
        for rows, vectors in blocks:
            index.add_items(vectors, rows, num_threads=threads)
        return HotGraph(index, ef)

    @staticmethod
    def load(path: Path, dimensions: int, *, ef: int) -> HotGraph:
        """Load a file whose checksum was verified: hnswlib does no checks and may crash on a damaged file."""
        index = hnswlib.Index(space="ip", dim=dimensions)
        index.load_index(str(path))
        return HotGraph(index, ef)

    def save(self, path: Path) -> None:
        """Write the graph. hnswlib neither syncs nor reports a full disk: the caller syncs and checks the size."""
        self._index.save_index(str(path))

    def set_ef(self, ef: int) -> None:
        self.ef = ef
        self._index.set_ef(ef)

    def search(self, query: Floats, depth: int) -> tuple[Rows, Floats] | None:
        """Up to `depth` rows with their inner products, best first. hnswlib raises ef to `depth` if it is lower.

        None if the search cannot reach that many, as in a disconnected graph. Any other hnswlib error is raised:
        falling back to a scan would hide it behind slow searches.
        """
        depth = min(depth, self.size)
        if depth == 0:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        try:
            labels, distances = self._index.knn_query(query[None, :], k=depth)
        except RuntimeError as error:
            if TOO_FEW not in str(error):
                raise
            return None
        return labels[0].astype(np.int64), np.float32(1) - distances[0]

    @property
    def bytes(self) -> int:
        """Size of the graph as hnswlib would write it, which approximates its memory."""
        return int(self._index.index_file_size())
