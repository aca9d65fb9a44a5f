"""The cold index (faiss): IVF lists of 4-bit product-quantized codes, about 60 bytes of memory per passage.

The codes only select candidates. Every candidate is rescored from the stored vectors, so its score is exact and
comparable with the hot tier's. FastScan codes (Andre et al. 2015) are read with SIMD shuffles, and their codebooks
train in seconds. Cold rows are ordered by list, so a query's candidates lie close together in the memory-mapped file.

The lists hold the codes of all rows of a generation, the hot ones too, so one scan answers a query that the hot graph
alone does not.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import faiss
import msgspec
import numpy as np

from indexes.base.errors import Damaged
from indexes.base.masks import Bits, rows_in
from indexes.base.model import Floats, Rows
from indexes.dense.vectors import NOTHING, Found, StoredVectors, among, merge

COLD_PASSAGES_MIN = 256  # fewer cannot train a quantizer and are not worth one
OVERSAMPLING = 4  # minimum of rescored candidates per requested rank
RANKS_OVERSAMPLING = 5  # and per rank that matters
MORE_LISTS = 0.125  # power of the ranks that matter, over RANKS, by which more lists are always scanned
RANKS = 10  # settings are tuned for recall at this rank
FEW_LEFT_OUT = 0.9  # from this allowed share on, as after deletions, a search works like one without a filter
FILTERED_REACH_MIN = 0.1  # with a filter: a query's nearest allowed rows may lie far from it, in many lists
WIDE_SHARE = 0.5  # from this allowed share on, scan the nearest lists and filter while scanning
SAMPLED = 256  # rows that tell how far rows lie from their centroids, as a query sees them
MISSED_MAX = 0.5  # rows of the answer that may be expected in the lists that a filtered search leaves out
FILE_BYTES_MAX = 1 << 36


class ColdSettings(msgspec.Struct, frozen=True):
    """Search settings: `probes` lists are always probed, `reach` controls further ones, and `rescored` candidates are
    rescored from each scan.

    `reach`: a further list is probed if its centroid's score exceeds the mean of the nearest centroid's and the last
    relevant passage's, minus this: the RANKS-th best, or a later one in a search for more, so that it reaches further.
    """

    probes: int = 0
    rescored: int = 0
    filtered_share: float = 1.0  # unused; the checksums of manifests cover it
    reach: float = 0.0


def horizon_of(nearest: float, scores: Floats, rank: int, reach: float) -> float:
    """The score that a further list's centroid must exceed. `nearest` is the nearest centroid's score; `scores` are
    those of the passages found, best first, and the one at `rank` is the last relevant one."""
    if len(scores) < rank:
        return -math.inf
    return float(middle(nearest, scores[rank - 1])) - reach


def middle(nearest: Any, last: Any) -> Any:
    """Midpoint of the scores of the nearest centroid and the last relevant passage; `reach` is measured from it.

    For one query, or for several as arrays.
    """
    return (nearest + last) / 2


class ColdIndex:
    """Searches all rows of a generation, by their numbers in its vectors. Thread-safe; only `settings` may change."""

    def __init__(self, index: Any, vectors: StoredVectors, settings: ColdSettings) -> None:
        self._index = index
        self._vectors = vectors
        self.settings = settings
        self.size = int(index.ntotal)
        self._sizes, self._list_of = list_sizes(index), np.zeros(vectors.rows, np.uint16)
        for number in range(self.lists):
            self._list_of[rows_in_list(index, number)] = number
        self._centroids = self.centroids()

    @functools.cached_property
    def _residuals(self) -> Floats:
        """How a sample of rows differ from their centroids, float32 [SAMPLED, dimensions]."""
        rows = np.sort(np.random.default_rng(0).integers(self.size, size=SAMPLED))
        self._vectors.request(rows)
        differing: Floats = (
            self._vectors.halves[rows].astype(np.float32) - self._centroids[self._list_of[rows]]
        )
        return differing

    @staticmethod
    def load(path: Path, vectors: StoredVectors, settings: ColdSettings) -> ColdIndex:
        """Read a file whose checksum was verified. Raises Damaged if faiss still cannot parse it."""
        faiss.set_deserialization_vector_byte_limit(FILE_BYTES_MAX)
        try:
            return ColdIndex(faiss.read_index(str(path)), vectors, settings)
        except RuntimeError as error:
            raise Damaged(f"{path}: {error}") from error

    @property
    def lists(self) -> int:
        return int(self._index.nlist)

    def centroids(self) -> Floats:
        """The lists' centroids, float32 [lists, dimensions]: a view of the index, valid while this shard lives."""
        flat = faiss.downcast_index(self._index.quantizer)
        centroids: Floats = faiss.rev_swig_ptr(flat.get_xb(), self.lists * flat.d).reshape(self.lists, flat.d)
        return centroids

    def list_sizes(self) -> Rows:
        """Rows in each list, int64 [lists]."""
        return self._sizes

    def lists_of(self, rows: Rows) -> Rows:
        """The list that holds each of these rows."""
        return self._list_of[rows].astype(np.int64)

    def nearest(
        self,
        query: Floats,
        depth: int,
        allowed: Bits | None,
        count: int,
        settings: ColdSettings | None = None,
        ranks: int = RANKS,
    ) -> Found:
        """Up to `depth` of the `count` allowed rows, with exact scores, best first. May find fewer than exist.

        Scans the lists nearest to the query, then any further ones that may hold better rows. Most queries find their
        neighbors in a few lists, but some need half of all lists. Comparing the scores of the answer and of the nearest
        centroid with those of the unvisited centroids tells the two kinds apart. With a filter, an answer that lies far
        off has lists left that are hardly further: `_worth` counts them.

        `settings` overrides the shard's own. They are for recall at RANKS; a search whose first `ranks` matter instead
        reads more.
        """
        depth = min(depth, count)
        if depth == 0:
            return NOTHING
        settings = settings or self.settings  # read once: another thread may change them
        share = count / self.size
        wanted = candidates_of(settings, depth, count, ranks, far=share < WIDE_SHARE)
        similarities = self._centroids @ query
        order, held = np.argsort(-similarities), self._sizes
        if allowed is not None and share < WIDE_SHARE:
            held = self._allowed_by_list(allowed)
            order = order[held[order] > 0]
        first = self.first_lists(settings, wanted, share) * (max(ranks, RANKS) / RANKS) ** MORE_LISTS
        first = min(math.ceil(first), len(order))

        def scan(lists: Rows, wanted: int) -> Found:
            rows = self._scan_lists(query, wanted, lists, similarities, allowed)
            return self._vectors.best(rows, query, depth)

        found = scan(order[:first], wanted)
        nearest, reach = float(similarities[order[0]]), settings.reach
        if share < FEW_LEFT_OUT and len(found[0]):
            # The nearest lists may hold little that is allowed: measure from the one that holds the best found row.
            nearest = float(similarities[self._list_of[found[0][0]]])
            reach = max(reach, FILTERED_REACH_MIN)
        rank = min(depth, max(ranks, RANKS))
        horizon = horizon_of(nearest, found[1], rank, reach)
        near = int(np.count_nonzero(similarities[order] > horizon))
        if near > first:
            found = merge(found, scan(order[first:near], wanted), depth)
        if share < FEW_LEFT_OUT and len(found[1]) >= rank:
            scanned = max(first, near)
            near = self._worth(query, float(found[1][rank - 1]), similarities[order], held[order])
            if near > scanned:
                wanted = min(2 * candidates_of(settings, depth, count, ranks, far=True), count)
                found = merge(found, scan(order[scanned:near], wanted), depth)
        return found

    def _worth(self, query: Floats, last: float, similarities: Floats, held: Rows) -> int:
        """How many of the lists to scan for rows that score more than `last`: those after them are expected to hold at
        most MISSED_MAX such rows, if the scores of the rows `held` in each differ from its centroid's as those of a
        sample do, normally distributed. `similarities` are the centroids' scores, best first."""
        differing = self._residuals @ query
        beyond = (last - similarities - differing.mean()) / max(float(differing.std()), 1e-6)
        expected = held * np.exp(-(np.maximum(beyond, 0.0) ** 2) / 2) / 2  # a bound of the normal tail
        return int(np.count_nonzero(np.cumsum(expected[::-1])[::-1] > MISSED_MAX))

    def first_lists(self, settings: ColdSettings, wanted: int, share: float) -> int:
        """How many lists a search for `wanted` candidates always scans, if this share of the rows is allowed."""
        # Enough to hold the wanted candidates, with a margin for uneven lists; more with a filter, because the nearest
        # allowed rows lie further out.
        fewest = 1.5 * wanted * self.lists / (share * self.size)
        return min(math.ceil(max(settings.probes, fewest) / math.sqrt(share)), self.lists)

    def _scan_lists(
        self, query: Floats, wanted: int, lists: Rows, similarities: Floats, allowed: Bits | None
    ) -> Rows:
        """The `wanted` best allowed rows in these lists, by code. `similarities` are those of all lists."""
        similarities = similarities[lists]
        codes, rows = np.empty(wanted, np.float32), np.empty(wanted, np.int64)
        parameters = (
            scan_parameters(len(lists))
            if allowed is None
            else faiss.SearchParametersIVF(nprobe=len(lists), sel=among(allowed))
        )
        query, lists = np.ascontiguousarray(query, np.float32), np.ascontiguousarray(lists)
        # The Python wrapper does not accept parameters here, so call the C++ method with raw pointers.
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
        found: Rows = rows[rows >= 0]
        return found

    def _allowed_by_list(self, allowed: Bits) -> Rows:
        return np.bincount(self._list_of[rows_in(allowed, self._vectors.rows)], minlength=self.lists)


def candidates_of(
    settings: ColdSettings, depth: int, count: int, ranks: int = RANKS, *, far: bool = False
) -> int:
    """How many of `count` rows each scan rescores for an answer of `depth` whose first `ranks` matter. `far`: they may
    lie far from the query, where scores differ little and codes are less informative."""
    relevant = max(settings.rescored, RANKS_OVERSAMPLING * ranks)
    return min(count, max(2 * relevant if far else relevant, OVERSAMPLING * depth))


@functools.lru_cache(maxsize=1024)
def scan_parameters(probes: int) -> Any:
    """Parameters for scanning this many lists. Cached, because every unfiltered search needs them."""
    return faiss.SearchParametersIVF(nprobe=probes)


def list_sizes(index: Any) -> Rows:
    """Rows in each list of an index, int64 [lists]."""
    return np.array([index.invlists.list_size(number) for number in range(index.nlist)], np.int64)


def rows_in_list(index: Any, number: int) -> Rows:
    """The rows in one list of an index, int64: a view, valid while the index lives and nothing is added."""
    size = index.invlists.list_size(number)
    if not size:
        return np.empty(0, np.int64)
    rows: Rows = faiss.rev_swig_ptr(index.invlists.get_ids(number), size)
    return rows
