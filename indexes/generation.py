"""A generation: a sealed, immutable build of all indexes of a collection up to one sequence number.

    generations/000007/
        manifest.json      format, seq, parameters, measured recall, and size and SHA-256 of every other file
        ids.npy            int64   [rows]  passage id of each row: the hot rows first, then the cold ones by list
        order.npy          uint32  [rows]  rows sorted by passage id
        vectors.npy        float16 [rows, dimensions]
        hot.hnsw           hnswlib graph of the hot rows
        cold.ivfpq         faiss lists of the cold rows (absent where there are none)
        lexical/*.npy      see SealedLexical
        filters.msgpack    see FilterIndex

`CURRENT` beside `generations/` names the live one. Nothing is parsed before its checksum was verified.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.cold import ColdSettings, ColdShard, VectorFile, rescore
from indexes.durable import publish, sha256, verify
from indexes.errors import Damaged, NotFound
from indexes.filters import FilterIndex
from indexes.hot import HotGraph
from indexes.lexical import SealedLexical, load_array
from indexes.model import TIERS, Floats, Ids, Rows, Tier
from indexes.parts import Bits, rows_in, search_graph, top

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
HOT, COLD = np.int8(TIERS.index("hot")), np.int8(TIERS.index("cold"))


class SealedFile(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation says of itself. Recalls are at 10, measured by the builder on the loaded index."""

    format_version: int = FORMAT_VERSION
    number: int
    seq: int
    last_passage: int
    fingerprint: str
    dimensions: int
    analysis: str
    hot: int
    cold: int
    ef: int
    lists: int
    probes: int
    rescored: int
    recall: dict[str, float]
    built_ms: int
    build_s: float
    versions: dict[str, str]
    files: dict[str, SealedFile]


class Generation:
    """A loaded generation: one part of a snapshot, with a hot and a cold tier. Safe from any thread."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._ids: Ids = load_array(folder / "ids.npy")  # type: ignore[assignment]
        self._order: NDArray[np.uint32] = load_array(folder / "order.npy")  # type: ignore[assignment]
        self._vectors = VectorFile(folder / "vectors.npy")
        self._hot = (
            HotGraph.load(folder / "hot.hnsw", manifest.dimensions, ef=manifest.ef) if manifest.hot else None
        )
        settings = ColdSettings(manifest.probes, manifest.rescored)
        rows = manifest.hot + manifest.cold
        self._cold = ColdShard.load(folder / "cold.ivfpq", settings, rows) if manifest.cold else None
        self.lexical = SealedLexical.load(folder / "lexical")
        self.filters = FilterIndex.load(folder / "filters.msgpack")
        self.size = rows

    @staticmethod
    def load(folder: Path) -> Generation:
        """Verify every file against the manifest, then load. Raises NotFound or Damaged; nothing is half loaded."""
        manifest = read_manifest(folder)
        for name, sealed in manifest.files.items():
            verify(folder / name, sealed.bytes, sealed.sha256)
        return Generation(folder, manifest)

    @property
    def number(self) -> int:
        return self.manifest.number

    @property
    def bytes(self) -> int:
        """Memory of the graph and the lists. The other files are memory maps, and the system's to keep or drop."""
        cold = self.manifest.files["cold.ivfpq"].bytes if self._cold else 0
        return (self._hot.bytes if self._hot else 0) + cold

    @property
    def mapped_bytes(self) -> int:
        return self._vectors.bytes + self._ids.nbytes + self._order.nbytes + self.lexical.bytes

    def ids_of(self, rows: Rows) -> Ids:
        return self._ids[rows]

    def rows_of(self, ids: Ids) -> Rows:
        if not self.size:
            return np.full(len(ids), -1, np.int64)
        at = np.searchsorted(self._ids, ids, sorter=self._order)
        rows = self._order[np.minimum(at, self.size - 1)].astype(np.int64)
        return np.where(self._ids[rows] == ids, rows, -1)

    def tiers_of(self, rows: Rows) -> NDArray[np.int8]:
        return np.where(rows < self.manifest.hot, HOT, COLD)

    def tier_rows(self) -> dict[Tier, range]:
        return {"hot": range(self.manifest.hot), "cold": range(self.manifest.hot, self.size)}

    def scores(self, rows: Rows, query: Floats) -> Floats:
        return self._vectors.scores(rows, query)

    def take(self, rows: Rows) -> Floats:
        """Stored vectors, float32 [rows, dimensions]."""
        return self._vectors.take(rows)

    def nearest(self, query: Floats, depth: int, allowed: Bits | None) -> tuple[Rows, Floats]:
        """Hot first, then cold; cold candidates scored exactly, so that the two merge by score."""
        hot_rows, hot_scores = self.nearest_hot(query, depth, allowed)
        cold_rows, cold_scores = self.nearest_cold(query, depth, allowed)
        return top(np.concatenate([hot_rows, cold_rows]), np.concatenate([hot_scores, cold_scores]), depth)

    def nearest_hot(self, query: Floats, depth: int, allowed: Bits | None) -> tuple[Rows, Floats]:
        if self._hot is None:
            return NOTHING
        hot = self.manifest.hot
        found = search_graph(self._hot, hot, query, depth, hot_bits(allowed, hot))
        return found if found is not None else self._scan(query, depth, allowed, self.tier_rows()["hot"])

    def nearest_cold(self, query: Floats, depth: int, allowed: Bits | None) -> tuple[Rows, Floats]:
        if self._cold is None:
            return NOTHING
        candidates = self._cold.candidates(query, depth, allowed)
        if len(candidates) < min(depth, self._cold.size):
            # The probed lists hold too few rows that are allowed: look at each of those.
            return self._scan(query, depth, allowed, self.tier_rows()["cold"])
        return rescore(self._vectors, candidates, query, depth)

    def _scan(self, query: Floats, depth: int, allowed: Bits | None, within: range) -> tuple[Rows, Floats]:
        rows = np.arange(self.size) if allowed is None else rows_in(allowed, self.size)
        rows = rows[(rows >= within.start) & (rows < within.stop)]
        return top(rows, self._vectors.scores(rows, query), depth)

    def tune(self, *, ef: int | None = None, cold: ColdSettings | None = None) -> None:
        """Try other search settings. Only for a generation that no search reads yet: the builder's."""
        if ef is not None and self._hot is not None:
            self._hot.set_ef(ef)
        if cold is not None and self._cold is not None:
            self._cold.settings = cold

    @property
    def lists(self) -> int:
        return self._cold.lists if self._cold else 0


NOTHING: tuple[Rows, Floats] = (np.empty(0, np.int64), np.empty(0, np.float32))


def hot_bits(allowed: Bits | None, hot: int) -> Bits | None:
    """The bitmap of the hot rows alone: what lies past them in the last byte is cleared."""
    if allowed is None:
        return None
    bits = allowed[: (hot + 7) // 8].copy()
    if hot % 8:
        bits[-1] &= (1 << (hot % 8)) - 1
    return bits


def read_manifest(folder: Path) -> Manifest:
    """Raises NotFound if there is no such generation, Damaged if its manifest cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        raise NotFound(f"no generation in {folder}")
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path}: {error}") from error
    if manifest.format_version != FORMAT_VERSION:
        raise Damaged(f"{path}: format {manifest.format_version}; this version reads {FORMAT_VERSION}")
    return manifest


def seal_files(folder: Path) -> dict[str, SealedFile]:
    """Size and SHA-256 of every file in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): SealedFile(path.stat().st_size, sha256(path)) for path in paths}


class Shelf:
    """The generations of one collection on disk, and the marker that says which is live."""

    def __init__(self, collection: Path) -> None:
        self.folder = collection / "generations"
        self._marker = collection / "CURRENT"

    def numbers(self) -> list[int]:
        """Sealed generations, oldest first. Drafts and other files are not among them."""
        if not self.folder.is_dir():
            return []
        return sorted(
            int(path.name) for path in self.folder.iterdir() if path.name.isdigit() and path.is_dir()
        )

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def current(self) -> int:
        """Number of the live generation; 0 where there is none yet."""
        try:
            return int(self._marker.read_bytes())
        except FileNotFoundError:
            return 0
        except ValueError:
            newest = max(self.numbers(), default=0)
            logger.error("%s does not name a generation; taking the newest, %d", self._marker, newest)
            return newest

    def set_current(self, number: int) -> None:
        """Durable once this returns; the marker moves by rename, so it always names a whole generation."""
        publish(self._marker, f"{number}\n".encode())

    def sweep(self) -> None:
        """Remove drafts that a dead builder left behind."""
        for draft in self.folder.glob(".draft-*"):
            shutil.rmtree(draft, ignore_errors=True)

    def next_number(self) -> int:
        return max([0, self.current(), *self.numbers()]) + 1
