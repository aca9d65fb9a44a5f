"""The manifest of a generation: a checksummed JSON file that describes the build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from indexes.base.durable import decode_checked, sha256, verify
from indexes.base.errors import Damaged, NotFound
from indexes.base.model import ColdPolicy, IndexOptions
from indexes.dense.cold import ColdSettings
from indexes.dense.training import Training
from indexes.lexical import analysis

FORMAT = 1
M = TypeVar("M", bound=msgspec.Struct)
MANIFEST = "manifest.json"
FILTERED = "cold_filtered"  # the recall with a filter that keeps FILTER_SHARE of the cold passages
FILTER_SHARE = 0.05
# Of so many cold passages, such a filter keeps no more than a search scans.
SCANNED = round(IndexOptions().exact_scan_passages_max / FILTER_SHARE)


class SealedFile(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Moves(msgspec.Struct, frozen=True):
    """What a rebuild moved: hot passages by why they are hot, and how many passages changed tier."""

    hot_by_hits: int = 0
    hot_by_age: int = 0
    to_hot: int = 0
    to_cold: int = 0


class RecallEvidence(msgspec.Struct, frozen=True):
    """The evidence for measured recalls: the kind and number of queries, and a 95 percent interval for each recall."""

    source: str
    queries: int
    intervals: dict[str, tuple[float, float]]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a generation.

    Recalls are recall@10, measured by the builder on the loaded index; `evidence` is None where it is empty.
    `peak_bytes` is the builder's memory by stage.
    """

    format: int = FORMAT
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
    evidence: RecallEvidence | None = None
    built_ms: int
    build_s: float
    peak_bytes: dict[str, int]
    versions: dict[str, str]
    files: dict[str, SealedFile]
    sha256: str = ""

    def outcome(self) -> dict[str, Any]:
        """What those who asked for the build are told."""
        return {
            "generation": self.number,
            "seq": self.seq,
            "hot": self.hot,
            "cold": self.cold,
            "moves": self.moves,
            "recall": self.recall,
            "recall_evidence": self.evidence,
            "build_s": self.build_s,
        }

    def walked(self, policy: ColdPolicy) -> bool:
        """Whether searches may walk the graph of the hot tier: nothing is cold, or the cold tier may be skipped. `auto`
        skips nothing where the graph is larger than the lists: the index would take more than twice the memory."""
        if self.hot and self.cold and policy.mode == "auto":
            return self.files["hot.hnsw"].bytes <= self.files["cold.ivf"].bytes
        return bool(self.hot) and (not self.cold or policy.mode != "always")

    def require_fit(self, fingerprint: str) -> None:
        """Raise Damaged unless it fits this model and this version."""
        if self.fingerprint != fingerprint:
            raise Damaged("it was built with another model")
        if self.analysis != analysis.ANALYSIS_VERSION:
            raise Damaged(
                f"it has text analysis {self.analysis}; this version needs {analysis.ANALYSIS_VERSION}"
            )

    def below(self, floor: float) -> str | None:
        """A description of every cohort whose recall is below this, beyond chance where the interval is known; None if
        there is none. What a search of few passages finds with the filter of the measurement does not count: it scans
        all that such a filter keeps."""
        intervals = self.evidence.intervals if self.evidence else {}
        counted = {
            name: value for name, value in self.recall.items() if name != FILTERED or self.cold > SCANNED
        }
        highest = counted | {name: high for name, (_, high) in intervals.items() if name in counted}
        low = [
            f"recall@10 {name} {self.recall[name]:.4f}" for name, value in highest.items() if value < floor
        ]
        return f"{', '.join(low)}, below the floor of {floor:g}" if low else None


def read_manifest(folder: Path) -> Manifest:
    """Raises NotFound if the generation does not exist, Damaged if its manifest cannot be read."""
    return read_checked(folder, Manifest, FORMAT, "generation")


def read_checked(folder: Path, kind: type[M], known: int, what: str) -> M:
    """Read the manifest of a folder. Raises as `read_manifest` does; `what` is what should be in the folder."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"no {what} in {folder}") from None
    return decode_checked(path, content, kind, known)


def verify_files(folder: Path, files: Mapping[str, SealedFile]) -> None:
    """Raise Damaged unless every file is as its manifest says."""
    for name, file in files.items():
        verify(folder / name, file.bytes, file.sha256)


def seal_files(folder: Path) -> dict[str, SealedFile]:
    """Size and SHA-256 of every file in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): SealedFile(path.stat().st_size, sha256(path)) for path in paths}
