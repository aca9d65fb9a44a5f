"""A generation: a sealed, immutable build of all indexes of a collection up to one sequence number.

    generations/000007/
        manifest.json      format, seq, parameters, measured recall, and size and SHA-256 of every other file
        ids.npy            int64   [rows]  passage id of each row: the hot rows first, then the cold ones by list
        order.npy          uint32  [rows]  rows sorted by passage id
        vectors.f16        float16 [rows, dimensions], see StoredVectors
        hot.hnsw           hnswlib graph of the hot rows
        cold.ivf           faiss lists of the cold rows (absent where there are none)
        lowest.npy         float32 [lists] inner product of each list's centre with its farthest member
        lexical/*.npy      see SealedLexical
        filters/           see SealedFilters

`CURRENT` beside `generations/` names the live one; `.refused-000008` is one that was not adopted, for whoever wants to
know why. Nothing is parsed before its checksum was verified.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes import failpoints
from indexes.dense.cold import RANKS, ColdSettings, ColdShard
from indexes.dense.cold_skips import ColdSkipper, ListBounds
from indexes.dense.hot import HotGraph
from indexes.dense.training import Training
from indexes.dense.vectors import NOTHING, Found, StoredVectors, among, both, merge, within
from indexes.durable import disk_errors, format_of, publish, publish_folder, sha256, verify, with_checksum
from indexes.errors import Conflict, Damaged, NotFound, RecallTooLow
from indexes.filters.columns import SealedFilters
from indexes.lexical.postings import SealedLexical
from indexes.masks import Bits, count_bits, first_bits
from indexes.model import TIERS, ColdPolicy, Floats, Ids, Rows, Tier
from indexes.parts.part import search_graph
from indexes.residency import Files

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
LOWEST = "lowest.npy"
WARM_SHARES = 3  # times its share of the passages is what a tier may have of an answer without a second look
ASIDE = ".refused-"  # before the number of a generation that measured too low to be adopted
HOT, COLD = np.int8(TIERS.index("hot")), np.int8(TIERS.index("cold"))


class SealedFile(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Moves(msgspec.Struct, frozen=True):
    """What a rebuild moved: hot passages by the reason they are hot, and how many changed their tier."""

    hot_by_hits: int = 0
    hot_by_age: int = 0
    to_hot: int = 0
    to_cold: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation says of itself.

    Recalls are at 10, measured by the builder on the loaded index; `peak_bytes` is the builder's own memory by stage.
    """

    format_version: int = FORMAT_VERSION
    number: int
    seq: int
    last_passage: int
    fingerprint: str
    dimensions: int
    analysis: str
    hot: int
    cold: int
    moves: Moves
    ef: int
    training: Training
    search: ColdSettings
    recall: dict[str, float]
    built_ms: int
    build_s: float
    peak_bytes: dict[str, int]
    versions: dict[str, str]
    files: dict[str, SealedFile]
    sha256: str = ""

    def below(self, floor: float) -> str | None:
        """Every cohort that measured under this recall, in words; None if there is none."""
        low = [f"recall@10 {name} {value:.4f}" for name, value in self.recall.items() if value < floor]
        return f"{', '.join(low)}, below the floor of {floor:g}" if low else None


class Generation:
    """A loaded generation: one part of a snapshot, with a hot and a cold tier. Safe from any thread."""

    def __init__(self, folder: Path, manifest: Manifest, files: Files | None = None) -> None:
        self.folder = folder
        self.manifest = manifest
        self.size = rows = manifest.hot + manifest.cold
        self.files = files = files or Files()
        # In the order in which they get memory: every search reads ids, dense ones gather vectors at random.
        self._ids: Ids = files.array(folder / "ids.npy")  # type: ignore[assignment]
        self._order: NDArray[np.uint32] = files.array(folder / "order.npy")  # type: ignore[assignment]
        self.vectors = StoredVectors.load(folder / "vectors.f16", rows, manifest.dimensions, files)
        self._hot = (
            HotGraph.load(folder / "hot.hnsw", manifest.dimensions, ef=manifest.ef) if manifest.hot else None
        )
        self._cold = (
            ColdShard.load(folder / "cold.ivf", self.vectors, manifest.hot, manifest.search)
            if manifest.cold
            else None
        )
        self.watch: ColdSkipper | None = None
        self.lexical = SealedLexical.load(folder / "lexical", files)
        self.filters = SealedFilters.load(folder / "filters", files)

    @staticmethod
    def load(folder: Path, files: Files | None = None) -> Generation:
        """Verify every file against the manifest, then load. Raises NotFound or Damaged; nothing is half loaded."""
        manifest = read_manifest(folder)
        for name, file in manifest.files.items():
            verify(folder / name, file.bytes, file.sha256)
        return Generation(folder, manifest, files)

    @property
    def number(self) -> int:
        return self.manifest.number

    @property
    def bytes(self) -> int:
        """Memory of the graph and the lists. `files` tells how much of the others is copied, and how much mapped."""
        return sum(self.tier_bytes().values()) + self.filters.bytes

    def tier_bytes(self) -> dict[Tier, int]:
        cold = self.manifest.files["cold.ivf"].bytes if self._cold else 0
        return {"hot": self._hot.bytes if self._hot else 0, "cold": cold}

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

    def nearest(self, query: Floats, depth: int, allowed: Bits | None, scan_max: int) -> Found:
        """Hot first, then cold. Both score exactly, so that the two merge by score."""
        if allowed is not None and count_bits(allowed) <= scan_max:
            return self.vectors.nearest(query, depth, among(allowed))
        expected = self.warm_depth(depth)
        hot = self.nearest_warm(query, expected, allowed, scan_max)
        cold = self.nearest_cold(query, depth, allowed, scan_max)
        found = merge(hot, cold, depth)
        if len(hot[0]) == expected < depth and (len(found[0]) < depth or hot[1][-1] >= found[1][-1]):
            # All of the hot ones are in the answer, so there may be more of them.
            found = merge(self.nearest_warm(query, depth, allowed, scan_max), cold, depth)
        return found

    def warm_depth(self, depth: int) -> int:
        """How deep to look in the hot tier for an answer of this depth, if the cold tier is searched as well.

        The walk of a graph takes time by its depth, and a hot tenth seldom has more than a tenth of the answer.
        """
        return min(depth, RANKS + WARM_SHARES * depth * self.manifest.hot // max(self.size, 1))

    def nearest_warm(self, query: Floats, depth: int, allowed: Bits | None, scan_max: int) -> Found:
        if self._hot is None:
            return NOTHING
        hot = self.manifest.hot
        bits = None if allowed is None else first_bits(allowed, hot)
        count = hot if bits is None else count_bits(bits)
        if not count:
            return NOTHING
        if bits is None or count > min(scan_max, hot // 2):
            found = search_graph(self._hot, query, depth, bits)
            if found is not None:
                return found
        return self._scan(query, depth, bits, self.tier_rows()["hot"])

    def nearest_cold(self, query: Floats, depth: int, allowed: Bits | None, scan_max: int) -> Found:
        if self._cold is None:
            return NOTHING
        cold = self.tier_rows()["cold"]
        count = self._cold.size if allowed is None else self._cold.count(allowed)
        if not count:
            return NOTHING
        if allowed is not None and count <= scan_max:
            return self._scan(query, depth, allowed, cold)
        found = self._cold.nearest(query, depth, allowed, count)
        if len(found[0]) < min(depth, count):
            # The probed lists hold too few rows that are allowed: look at each of those.
            return self._scan(query, depth, allowed, cold)
        return found

    def _scan(self, query: Floats, depth: int, allowed: Bits | None, rows: range) -> Found:
        selector = within(rows) if allowed is None else both(within(rows), among(allowed))
        return self.vectors.nearest(query, depth, selector)

    def watch_cold(self, policy: ColdPolicy) -> None:
        """Let a policy decide from now on which queries need the cold tier; `always` needs nobody who decides."""
        if self._cold is None or policy.mode == "always":
            self.watch = None
        elif policy.mode == "never":
            self.watch = ColdSkipper(policy, None)
        else:
            lowest = np.asarray(self.files.array(self.folder / LOWEST), np.float32)
            self.watch = ColdSkipper(policy, ListBounds(self._cold.centres(), lowest))

    def tune(self, *, ef: int | None = None, cold: ColdSettings | None = None) -> None:
        """Search with other settings. A search under way may still use the old ones, or one tier of it each."""
        if ef is not None and self._hot is not None:
            self._hot.set_ef(ef)
        if cold is not None and self._cold is not None:
            self._cold.settings = cold

    @property
    def search_settings(self) -> tuple[int, ColdSettings]:
        """Of the graph and of the lists, as they are now; those of a tier that does not exist mean nothing."""
        return (
            self._hot.ef if self._hot else self.manifest.ef,
            self._cold.settings if self._cold else self.manifest.search,
        )

    @property
    def cold(self) -> ColdShard | None:
        """The cold tier, for whoever measures it."""
        return self._cold

    @property
    def lists(self) -> int:
        return self._cold.lists if self._cold else 0


def read_manifest(folder: Path) -> Manifest:
    """Raises NotFound if there is no such generation, Damaged if its manifest cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        raise NotFound(f"no generation in {folder}")
    try:
        content = path.read_bytes()
        if (found := format_of(content)) != FORMAT_VERSION:
            raise Damaged(f"{path}: format {found}; this version reads {FORMAT_VERSION}")
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path}: {error}") from error
    if content != with_checksum(manifest):
        raise Damaged(f"{path} is damaged: its checksum differs")
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

    def seqs(self) -> dict[int, int]:
        """The seq of each sealed generation whose manifest can be read, by number."""
        return {number: manifest.seq for number, manifest in self.manifests().items()}

    def manifests(self) -> dict[int, Manifest]:
        """Those of the sealed generations that can be read, by number, oldest first."""
        found = {}
        for number in self.numbers():
            try:
                found[number] = read_manifest(self.path(number))
            except (Damaged, NotFound) as error:
                logger.warning("generation %d is of no use: %s", number, error.message)
        return found

    def before(self, live: int, floor: float) -> int:
        """The newest generation before the live one that measured this recall. Raises Conflict if there is none."""
        earlier = {number: one for number, one in self.manifests().items() if number < live}
        low = {number: reason for number, one in earlier.items() if (reason := one.below(floor))}
        whole = [number for number in earlier if number not in low]
        if not whole:
            passed_over = "".join(f"; generation {number} has {reason}" for number, reason in low.items())
            raise Conflict(f"there is no earlier generation to roll back to{passed_over}")
        return whole[-1]

    def require_recall(self, number: int, floor: float) -> None:
        """Set a generation aside that measures less, and raise RecallTooLow. The live one is not asked."""
        low = read_manifest(self.path(number)).below(floor)
        if low and number != self.current():
            self.set_aside(number)
            raise RecallTooLow(f"generation {number} is not adopted: {low}")

    def remove(self, number: int) -> None:
        """Delete a generation. Renamed first, so that nobody finds half of one under its name."""
        removed = self.folder / f".removed-{number:06d}"
        shutil.rmtree(removed, ignore_errors=True)
        with disk_errors(removed):
            self.path(number).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def newest(self, most: int, *, first: Sequence[int]) -> dict[int, int]:
        """Which generations to keep, with the seq of each: the `first` (0: none), and the newest up to `most`."""
        seqs = self.seqs()
        kept = [number for number in first if number]
        kept += [number for number in reversed(seqs) if number not in kept][: max(most - len(kept), 0)]
        return {number: seqs.get(number, 0) for number in kept}

    def keep(self, kept: Collection[int], *, aside_from: int) -> None:
        """Delete every other generation, and what was set aside before this number."""
        for number in self.numbers():
            if number not in kept:
                failpoints.reach("prune.begin")
                self.remove(number)
                failpoints.reach("prune.removed")
        self.clear_aside(before=aside_from)

    def set_aside(self, number: int) -> None:
        """Take a generation's name away and keep its files, for whoever wants to know why. Only the newest is kept.

        Nobody finds it by number any more; its number is not given again while it is there.
        """
        aside = self.folder / f"{ASIDE}{number:06d}"
        shutil.rmtree(aside, ignore_errors=True)
        failpoints.reach("refuse.begin")
        publish_folder(self.path(number), aside)
        failpoints.reach("refuse.renamed")
        self.clear_aside(before=number)
        failpoints.reach("refuse.cleared")

    def aside(self) -> dict[int, Path]:
        """What was set aside, by number."""
        found = {path.name.removeprefix(ASIDE): path for path in self.folder.glob(f"{ASIDE}*")}
        return {int(number): path for number, path in found.items() if number.isdigit()}

    def clear_aside(self, *, before: int) -> None:
        """Remove what was set aside before this number."""
        for number, path in self.aside().items():
            if number < before:
                shutil.rmtree(path, ignore_errors=True)

    def sweep(self, builder: int | None = None) -> None:
        """Remove what dead builders, and deaths while removing, left behind; or the draft of one process alone."""
        patterns = (".draft-*", ".removed-*") if builder is None else (f".draft-*-{builder}",)
        for pattern in patterns:
            for leftover in self.folder.glob(pattern):
                shutil.rmtree(leftover, ignore_errors=True)

    def next_number(self) -> int:
        return max([0, self.current(), *self.numbers(), *self.aside()]) + 1
