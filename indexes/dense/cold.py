"""The cold shard (faiss): IVF lists of 4-bit product-quantised codes, at about 60 bytes of memory a passage.

The codes only choose candidates. Every candidate is scored again from the stored vectors, so its score is exact and
comparable with the hot tier's. FastScan codes (Andre et al. 2015) are read with SIMD shuffles and their codebooks
train in seconds. Rows are ordered by list, so the candidates of a query lie close together in the mapped file.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import faiss
import msgspec
import numpy as np

from indexes.arrays import ends_of, top
from indexes.dense.vectors import StoredVectors, among
from indexes.errors import Damaged
from indexes.masks import Bits, count_bits, first_bits, flags_of
from indexes.model import Floats, Rows
from indexes.parts.part import NOTHING, Found

COLD_PASSAGES_MIN = 256  # fewer cannot train a quantiser and are not worth one
OVERSAMPLING = 4  # candidates scored again for each place in the ranking, where the settings ask for fewer
WIDE_SHARE = 0.5  # of the rows allowed; from here on a filter is applied while all near lists are scanned
FILE_BYTES_MAX = 1 << 36


# What a search costs, in nanoseconds on one thread at 384 dimensions with AVX512; only the proportions matter.
RANK_A_LIST_NS, PROBE_A_LIST_NS, SCAN_A_CODE_NS, RESCORE_NS = 40, 1200, 2.2, 500


class ColdSettings(msgspec.Struct, frozen=True):
    """How a query searches: lists probed, and at least how many candidates are scored again.

    `filtered_share` is for filters: how much of what a filter allows must lie in the probed lists.
    """

    probes: int = 0
    rescored: int = 0
    filtered_share: float = 1.0


class ColdShard:
    """Searches the passages of the cold tier. Immutable and safe from any number of threads.

    Row numbers are those of the generation's vectors; the cold rows follow the hot ones, ordered by list.
    """

    def __init__(self, index: Any, vectors: StoredVectors, first_row: int, settings: ColdSettings) -> None:
        self._index = index
        self._vectors = vectors
        self._first_row = first_row
        self.settings = settings
        self.size = int(index.ntotal)
        self._starts = first_row + list_starts(index)
        self._refined = refined(index, vectors)

    @staticmethod
    def load(path: Path, vectors: StoredVectors, first_row: int, settings: ColdSettings) -> ColdShard:
        """Read a file whose checksum was verified. Raises Damaged if faiss cannot parse it all the same."""
        faiss.set_deserialization_vector_byte_limit(FILE_BYTES_MAX)
        try:
            return ColdShard(faiss.read_index(str(path)), vectors, first_row, settings)
        except RuntimeError as error:
            raise Damaged(f"{path}: {error}") from error

    @property
    def lists(self) -> int:
        return int(self._index.nlist)

    def centres(self) -> Floats:
        """Of the lists, float32 [lists, dimensions]: a view of the index's own, as long as this shard is there."""
        flat = faiss.downcast_index(self._index.quantizer)
        centres: Floats = faiss.rev_swig_ptr(flat.get_xb(), self.lists * flat.d).reshape(self.lists, flat.d)
        return centres

    def count(self, allowed: Bits) -> int:
        """Cold rows among the allowed ones."""
        return count_bits(allowed) - count_bits(first_bits(allowed, self._first_row))

    def nearest(self, query: Floats, depth: int, allowed: Bits | None, count: int) -> Found:
        """Up to `depth` of the `count` allowed rows, with exact scores, best first. May find fewer than there are."""
        depth = min(depth, count)
        if depth == 0:
            return NOTHING
        wanted = min(count, max(self.settings.rescored, OVERSAMPLING * depth))
        if allowed is None or count >= WIDE_SHARE * self.size:
            return self._nearest_lists(query, depth, wanted, allowed, count / self.size)
        return self._nearest_allowed(query, depth, wanted, allowed, count)

    def _nearest_lists(
        self, query: Floats, depth: int, wanted: int, allowed: Bits | None, share: float
    ) -> Found:
        """Scan the lists nearest to the query: candidates by code, then by vector, in one call."""
        # Enough lists to hold what is wanted, with some to spare for uneven ones; more where rows are left out,
        # because the nearest ones that stay lie further out.
        fewest = 1.5 * wanted * self.lists / (share * self.size)
        probes = math.ceil(max(self.settings.probes, fewest) / math.sqrt(share))
        probes = min(probes, self.lists)
        parameters = (
            unfiltered(probes, wanted / depth)
            if allowed is None
            else refining(probes, wanted / depth, among(allowed))
        )
        scores, rows = self._refined.search(query[None, :], depth, params=parameters)
        found = int(np.count_nonzero(rows[0] >= 0))
        return rows[0, :found], scores[0, :found]

    def _nearest_allowed(self, query: Floats, depth: int, wanted: int, allowed: Bits, count: int) -> Found:
        """Scan lists in the order of their nearness until they hold enough of the allowed rows; skip empty ones.

        What a filter lets through may lie anywhere, also far from the query, so a fixed number of lists would
        find too little of it.
        """
        similarities, lists = self._index.quantizer.search(query[None, :], self.lists)
        held = self._allowed_by_list(allowed)[lists[0]]
        enough = max(self.settings.filtered_share * count, 1.5 * wanted)
        probed = int(np.searchsorted(np.cumsum(held), min(enough, count))) + 1
        chosen = np.flatnonzero(held[:probed])
        rows = self._scan_lists(query, wanted, lists[0, chosen], similarities[0, chosen], allowed)
        scores = self._vectors.scores(rows, query)
        return top(rows, scores, depth)

    def _scan_lists(
        self, query: Floats, wanted: int, lists: Rows, similarities: Floats, allowed: Bits
    ) -> Rows:
        """The most promising of the allowed rows in these lists, by code, unsorted."""
        codes, rows = np.empty((1, wanted), np.float32), np.empty((1, wanted), np.int64)
        parameters = faiss.SearchParametersIVF(nprobe=len(lists), sel=among(allowed))
        query, lists = np.ascontiguousarray(query), np.ascontiguousarray(lists)
        similarities = np.ascontiguousarray(similarities)
        # The wrapper of faiss takes no parameters here, so this is the call below it. It gets bare pointers.
        self._index.search_preassigned_c(
            1,
            faiss.swig_ptr(query),
            wanted,
            faiss.swig_ptr(lists),
            faiss.swig_ptr(similarities),
            faiss.swig_ptr(codes),
            faiss.swig_ptr(rows),
            False,
            parameters,
        )
        found: Rows = rows[0][rows[0] >= 0]
        return found

    def _allowed_by_list(self, allowed: Bits) -> Rows:
        flags = flags_of(allowed, self._vectors.rows)
        return np.diff(ends_of(flags)[self._starts])


def refining(probes: int, factor: float, selector: Any) -> Any:
    """Parameters of a search of so many lists that scores `factor` times its depth again."""
    lists = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
    return faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=lists)


@functools.lru_cache(maxsize=64)
def unfiltered(probes: int, factor: float) -> Any:
    """The same without a selector. Kept, because every search without a filter asks for the same."""
    return refining(probes, factor, None)


def search_ns(lists: int, probes: int, share: float, size: int, rescored: int = 0) -> float:
    """About how long a search takes that scans `share` of `size` codes in `probes` of `lists` lists."""
    scanning = PROBE_A_LIST_NS * probes + SCAN_A_CODE_NS * share * size
    return RANK_A_LIST_NS * lists + scanning + RESCORE_NS * rescored


def refined(index: Any, vectors: StoredVectors) -> Any:
    """Index and vectors as one search. faiss wants both to hold the same rows; here the lists hold the cold ones."""
    held = index.ntotal
    index.ntotal = vectors.rows
    both = faiss.IndexRefine(index, vectors.index)
    index.ntotal = held
    return both


def list_starts(index: Any) -> Rows:
    """Position of the first row of each list, and at the end the number of rows: int64 [lists + 1]."""
    sizes = [index.invlists.list_size(number) for number in range(index.nlist)]
    return ends_of(np.array(sizes, np.int64))
