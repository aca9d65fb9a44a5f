"""The cold shard (faiss): IVF lists of 4-bit product-quantised residuals, at about 60 bytes of memory a passage.

The codes only choose candidates. Every candidate is scored again from the stored vectors (`VectorFile`), so its
score is exact and comparable with the hot tier's. FastScan codes (Andre et al. 2015) are read with SIMD shuffles
and their codebooks train in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from indexes.errors import Damaged
from indexes.model import Floats, Rows

TRAINING_VECTORS_PER_LIST = 64
COLD_PASSAGES_MIN = 256  # fewer cannot train a quantiser and are not worth one
OVERSAMPLING = 4  # candidates scored again for each place in the ranking, where the settings ask for fewer
SHARE_MIN = 0.01  # of the rows a filter allows; below it, probes are not widened further
FILE_BYTES_MAX = 1 << 36


@dataclass(frozen=True, slots=True)
class ColdSettings:
    """How a query searches: lists probed, and at least how many candidates are scored again."""

    probes: int
    rescored: int


class ColdShard:
    """Searches the passages of the cold tier. Immutable and safe from any number of threads.

    Row numbers are those of the generation's vector file; the cold rows follow the hot ones.
    """

    def __init__(self, index: faiss.IndexIVF, settings: ColdSettings, rows: int) -> None:
        self._index = index
        self.settings = settings
        self.size = int(index.ntotal)
        self._rows = rows

    @staticmethod
    def train(sample: Floats, size: int, *, seed: int = 7) -> faiss.IndexIVF:
        """An empty index for `size` vectors, trained on `sample` [n, dimensions]."""
        dimensions = sample.shape[1]
        lists = lists_for(size)
        index = faiss.index_factory(
            dimensions, f"IVF{lists},PQ{codes_for(dimensions)}x4fsr", faiss.METRIC_INNER_PRODUCT
        )
        index.cp.seed = seed
        index.train(np.ascontiguousarray(sample))
        return index

    @staticmethod
    def load(path: Path, settings: ColdSettings, rows: int) -> ColdShard:
        """Read a file whose checksum was verified, for a generation of `rows` in all.

        Raises Damaged if faiss cannot parse it all the same.
        """
        faiss.set_deserialization_vector_byte_limit(FILE_BYTES_MAX)
        try:
            return ColdShard(faiss.read_index(str(path)), settings, rows)
        except RuntimeError as error:
            raise Damaged(f"{path}: {error}") from error

    def candidates(self, query: Floats, depth: int, allowed: NDArray[np.uint8] | None) -> Rows:
        """Rows of the most promising candidates, by quantised score, unsorted.

        `allowed` is a packed bitmap over all rows of the generation (little-endian bits), or None for all of them.
        The fewer are allowed, the further out the nearest ones lie, so more lists are probed.
        """
        wanted = min(self.size, max(self.settings.rescored, OVERSAMPLING * depth))
        selector = None if allowed is None else faiss.IDSelectorBitmap(allowed)
        # Enough lists to hold what is wanted, with some to spare for uneven ones.
        probes = max(self.settings.probes, math.ceil(1.5 * wanted * self.lists / self.size))
        if allowed is not None:
            share = max(int(np.bitwise_count(allowed).sum()) / self._rows, SHARE_MIN)
            probes = math.ceil(probes / math.sqrt(min(share, 1)))
        parameters = faiss.SearchParametersIVF(nprobe=min(probes, self.lists), sel=selector)
        _, rows = self._index.search(query[None, :], wanted, params=parameters)
        found: Rows = rows[0][rows[0] >= 0]
        return found

    @property
    def lists(self) -> int:
        return int(self._index.nlist)


class VectorFile:
    """Stored vectors of a generation: float16 [rows, dimensions], memory-mapped, cold rows ordered by list.

    float16 moves an inner product of unit vectors by about 1e-5, far below any difference in rank that matters.
    """

    def __init__(self, path: Path) -> None:
        # A plain view of the map: indexing a numpy.memmap costs several times as much.
        self._values: NDArray[np.float16] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bytes(self) -> int:
        return int(self._values.nbytes)

    def take(self, rows: Rows) -> Floats:
        return self._values[rows].astype(np.float32)

    def scores(self, rows: Rows, query: Floats) -> Floats:
        """Inner products of these rows with a query, float32 [rows]. Reads in row order, as the disk likes it."""
        order = np.argsort(rows)
        scores = np.empty(len(rows), np.float32)
        scores[order] = self.take(rows[order]) @ query
        return scores


def rescore(vectors: VectorFile, rows: Rows, query: Floats, depth: int) -> tuple[Rows, Floats]:
    """The best `depth` of these rows by exact score, best first."""
    scores = vectors.scores(rows, query)
    order = np.lexsort((rows, -scores))[:depth]
    return rows[order], scores[order]


def lists_for(size: int) -> int:
    """About twice the square root, as a power of two: short lists keep one probe cheap."""
    return 1 << max(2, round(math.log2(2 * math.sqrt(max(size, 1)))))


def codes_for(dimensions: int) -> int:
    """Sub-vectors of four dimensions each, or the nearest smaller size that divides the vector."""
    return next(dimensions // width for width in (4, 3, 2, 1) if dimensions % width == 0)
