"""A generation: a sealed, immutable build of all indexes of a collection up to one sequence number.

    generations/000007/
        manifest.json      format, seq, parameters, measured recall, and size and SHA-256 of every other file
        ids.npy            int64   [rows]  passage id of each row: hot rows first, then cold rows grouped by list
        order.npy          uint32  [rows]  rows sorted by passage id
        vectors.f16        float16 [rows, dimensions], see StoredVectors
        hot.hnsw           hnswlib graph of the hot rows (absent if there are none)
        cold.ivf           faiss lists of all rows (absent if none is cold)
        lowest.npy         float32 [lists] inner product of each list's centroid with its farthest cold member
        lexical/*.npy      see SealedLexical
        filters/           see SealedFilters

`CURRENT` beside `generations/` names the live one; `.refused-000008` was refused adoption and is kept for inspection.
No file is parsed before its checksum is verified.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexes.base.masks import Bits, count_bits, first_bits
from indexes.base.model import TIERS, ColdPolicy, Floats, Ids, Rows, Tier
from indexes.base.residency import Files
from indexes.dense.cold import RANKS, ColdIndex, ColdSettings
from indexes.dense.cold_skips import ColdSkipper, ListBounds
from indexes.dense.hot import HotGraph
from indexes.dense.vectors import NOTHING, Found, StoredVectors, among, within
from indexes.filters.columns import SealedFilters
from indexes.lexical.postings import SealedLexical
from indexes.parts.manifest import Manifest, read_manifest, verify_files
from indexes.parts.part import scan, search_graph

COLD_FILE, LOWEST = "cold.ivf", "lowest.npy"
HOT, COLD = np.int8(TIERS.index("hot")), np.int8(TIERS.index("cold"))


class Generation:
    """A loaded generation: one part of a snapshot, with a hot and a cold tier. Safe from any thread."""

    def __init__(self, folder: Path, manifest: Manifest, files: Files | None = None) -> None:
        self.folder = folder
        self.manifest = manifest
        self.size = rows = manifest.hot + manifest.cold
        self.files = files = files or Files()
        # Load order is priority for resident memory: every search reads ids; dense searches read vectors at random.
        self._ids: Ids = files.array(folder / "ids.npy")  # type: ignore[assignment]
        self._order: NDArray[np.uint32] = files.array(folder / "order.npy")  # type: ignore[assignment]
        self.vectors = StoredVectors.load(folder / "vectors.f16", rows, manifest.dimensions, files)
        self._ef = manifest.ef
        self._graph: HotGraph | None = None
        self._loading = threading.Lock()
        self._used_at = time.monotonic()  # when the graph or the lists were last searched
        self._cold_settings = manifest.search
        self._cold = self._load_cold() if manifest.cold else None
        self.lists = self._cold.lists if self._cold else 0
        self.skipper: ColdSkipper | None = None
        self.bounds: ListBounds | None = None
        self.lexical = SealedLexical.load(folder / "lexical", files)
        self.filters = SealedFilters.load(folder / "filters", files)

    @staticmethod
    def load(folder: Path, files: Files | None = None) -> Generation:
        """Verify every file against the manifest, then load. Raises NotFound or Damaged, before loading anything."""
        manifest = read_manifest(folder)
        verify_files(folder, manifest.files)
        return Generation(folder, manifest, files)

    @property
    def number(self) -> int:
        return self.manifest.number

    @property
    def bytes(self) -> int:
        """Memory of the filters, and of the graph and the lists if they are loaded. `files` counts what is copied and
        what is memory-mapped."""
        return sum(self.tier_bytes().values()) + self.filters.bytes

    def tier_bytes(self) -> dict[Tier, int]:
        cold = self.manifest.files[COLD_FILE].bytes if self._cold else 0
        return {"hot": self._graph.bytes if self._graph else 0, "cold": cold}

    @property
    def newest(self) -> int:
        return int(self._ids[self._order[-1]]) if self.size else 0

    def ids(self) -> Ids:
        """The ids of all passages, ascending."""
        return self._ids[self._order]

    def ids_of(self, rows: Rows) -> Ids:
        return self._ids[rows]

    def rows_of(self, ids: Ids) -> Rows:
        if not self.size:
            return np.full(len(ids), -1, np.int64)
        at = np.searchsorted(self._ids, ids, sorter=self._order)
        rows = self._order[np.minimum(at, self.size - 1)].astype(np.int64)
        return np.where(self._ids[rows] == ids, rows, -1)

    def rows_after(self, passage_id: int) -> Rows:
        first = np.searchsorted(self._ids, passage_id, "right", sorter=self._order) if self.size else 0
        return self._order[first:].astype(np.int64)

    def tiers_of(self, rows: Rows) -> NDArray[np.int8]:
        return np.where(rows < self.manifest.hot, HOT, COLD)

    def tier_rows(self) -> dict[Tier, range]:
        return {"hot": range(self.manifest.hot), "cold": range(self.manifest.hot, self.size)}

    def nearest(
        self, query: Floats, depth: int, allowed: Bits | None, scan_max: int, ranks: int = RANKS
    ) -> Found:
        """Search the lists, which hold both tiers; the graph if nothing is cold."""
        count = self.size if allowed is None else count_bits(allowed)
        if allowed is not None and count <= scan_max:
            return scan(self, query, depth, allowed)
        if not self.manifest.cold:
            return self.nearest_warm(query, depth, allowed, scan_max)
        cold = self.cold
        if cold is None:
            return scan(self, query, depth, allowed)
        found = cold.nearest(query, depth, allowed, min(count, cold.size), ranks=ranks)
        # If the probed lists hold too few allowed rows, scan all of those.
        return found if len(found[0]) == min(depth, count) else scan(self, query, depth, allowed)

    def nearest_warm(
        self, query: Floats, depth: int, allowed: Bits | None, scan_max: int, ranks: int = RANKS
    ) -> Found:
        hot = self.manifest.hot
        bits = None if allowed is None else first_bits(allowed, hot)
        count = hot if bits is None else count_bits(bits)
        if not count:
            return NOTHING
        if bits is None or count > min(scan_max, hot // 2):
            graph = self.hot_graph()
            found = None if graph is None else search_graph(graph, query, depth, bits)
            if found is not None:
                return found
        return self.vectors.nearest(query, depth, within(range(hot)) if bits is None else among(bits))

    def hot_graph(self) -> HotGraph | None:
        """The graph of the hot tier, read from its file when it is first needed: most generations need none. None if
        the file is gone, because newer generations have taken the place of this one."""
        path = self.folder / "hot.hnsw"
        with self._loading:
            self._used_at = time.monotonic()
            if self._graph is None:
                try:
                    self._graph = HotGraph.load(path, self.manifest.dimensions, ef=self._ef)
                except RuntimeError:  # of hnswlib, whatever the reason
                    if path.exists():
                        raise
            return self._graph

    @property
    def cold(self) -> ColdIndex | None:
        """The lists, read from their file again if they have left memory. None if nothing is cold, or the file is gone,
        because newer generations have taken the place of this one."""
        with self._loading:
            self._used_at = time.monotonic()
            if self._cold is None and self.manifest.cold and (self.folder / COLD_FILE).exists():
                self._cold = self._load_cold()
            return self._cold

    def _load_cold(self) -> ColdIndex:
        return ColdIndex.load(self.folder / COLD_FILE, self.vectors, self._cold_settings)

    def rest(self, idle_s: float) -> bool:
        """Let the graph and the lists leave memory, with what BM25 keeps, if no search has used them for so long. They
        are read again when one does. Returns whether they left."""
        with self._loading:
            loaded = self._graph is not None or self._cold is not None
            if not loaded or time.monotonic() - self._used_at < idle_s:
                return False
            self._graph = self._cold = None
        self.lexical.forget()
        return True

    def spare_cold(self, policy: ColdPolicy) -> None:
        """Let queries spare the cold tier by a policy. Loads the graph if all searches walk it, and the bounds of the
        lists."""
        self.skipper = self.bounds = None
        walked = self.manifest.walked(policy)
        if walked and policy.mode != "auto":
            self.hot_graph()
        if not self.manifest.cold or policy.mode == "always" or (policy.mode == "auto" and not walked):
            return
        self.skipper = ColdSkipper(policy, self.number)
        if policy.mode != "never":
            self.bounds = self.list_bounds()

    def list_bounds(self) -> ListBounds:
        """Bounds of the lists, which there must be."""
        cold = self.cold
        assert cold is not None
        lowest = np.asarray(self.files.array(self.folder / LOWEST), np.float32)
        return ListBounds(cold.centroids().copy(), lowest)  # which stay when the lists leave memory

    def tune(self, *, ef: int | None = None, cold: ColdSettings | None = None) -> None:
        """Change the search settings. A search in progress may use the old ones, or a mix of old and new per tier."""
        if ef is not None:
            with self._loading:
                self._ef = ef
                if self._graph is not None:
                    self._graph.set_ef(ef)
        if cold is not None:
            with self._loading:
                self._cold_settings = cold
                if self._cold is not None:
                    self._cold.settings = cold

    @property
    def search_settings(self) -> tuple[int, ColdSettings]:
        """Current `ef` of the graph and settings of the lists; those of a missing tier are meaningless."""
        return self._ef, self._cold_settings
