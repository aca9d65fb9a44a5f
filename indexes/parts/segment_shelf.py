"""The segments of a collection on disk, each in a folder named by the passages that it covers.

    segments/1-4096/
        manifest.json      format, what it covers and knows, and size and SHA-256 of every other file
        ids.npy            int64   [rows]  passage id of each row, ascending
        vectors.f16        float16 [rows, dimensions], see StoredVectors
        codes.faiss        product codes of the vectors, see Codes (absent for few rows)
        lexical/*.npy      see SealedLexical
        filters/           see SealedFilters

They save work: the log has all of it. So they are not synced; what a power loss tore does not match its checksum, and
is read from the log again. The process that writes makes and removes them. Those that search map the same files, so
their pages are in memory once.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from indexes.base import failpoints
from indexes.base.durable import decode_checked, disk_errors, verify, with_checksum
from indexes.base.errors import Damaged, NotFound
from indexes.base.model import Settings
from indexes.base.residency import Budget, Files
from indexes.lexical import analysis
from indexes.log.reader import LogPosition
from indexes.parts.manifest import MANIFEST, SealedFile, seal_files
from indexes.parts.segment import Segment

logger = logging.getLogger(__name__)

FORMAT = 1
SEGMENTS = "segments"
DRAFT, REMOVED = ".draft-", ".removed-"


class SegmentManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a segment covers, from passage `first` to `last`, without some that were dead at operation `seq`."""

    format: int = FORMAT
    first: int
    last: int
    seq: int
    fingerprint: str
    dimensions: int
    analysis: str
    files: dict[str, SealedFile]
    sha256: str = ""

    @property
    def covers(self) -> range:
        return range(self.first, self.last + 1)

    def require_fit(self, settings: Settings) -> None:
        """Raise Damaged unless it fits this model and this version."""
        if (self.fingerprint, self.dimensions, self.analysis) != described(settings):
            raise Damaged("it was made with another model or version")


class SegmentShelf:
    """Lists, makes, loads and removes the segments of one collection. Only the writer thread publishes and removes."""

    def __init__(self, collection: Path, settings: Settings, budget: Budget) -> None:
        self.folder, self._settings, self._budget = collection / SEGMENTS, settings, budget

    def path(self, covers: range) -> Path:
        return self.folder / f"{covers.start}-{covers.stop - 1}"

    def on_disk(self) -> list[range]:
        """What the segments on disk cover, in order. Of those within others, which a crash left, only the others."""
        covered: list[range] = []
        for one in sorted(segment_folders(self.folder).values(), key=lambda one: (one.start, -one.stop)):
            if not covered or one.stop > covered[-1].stop:
                covered.append(one)
        return covered

    def after(self, passage: int) -> list[range]:
        """What those segments cover that begin after this passage, in order, without overlaps."""
        found: list[range] = []
        for one in self.on_disk():
            if one.start > (found[-1].stop - 1 if found else passage):
                found.append(one)
        return found

    def load(self, covers: range, *, whole: bool = True) -> Segment:
        """Map a segment, whose checksums are verified first if `whole`. Raises NotFound, Damaged and OSError."""
        folder = self.path(covers)
        manifest = check_segment_files(folder) if whole else read_segment_manifest(folder)
        manifest.require_fit(self._settings)
        return Segment.load(folder, manifest.covers, manifest.dimensions, Files(self._budget))

    def write(self, segment: Segment, seq: int) -> Segment:
        """Write a segment to a draft, and return it mapped from there. Raises OSError and StorageError."""
        draft = self._draft(segment)
        try:
            with disk_errors(draft):
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir(parents=True)
                segment.save(draft)
                fingerprint, dimensions, version = described(self._settings)
                manifest = SegmentManifest(
                    first=segment.covers.start,
                    last=segment.covers.stop - 1,
                    seq=seq,
                    fingerprint=fingerprint,
                    dimensions=dimensions,
                    analysis=version,
                    files=seal_files(draft),
                )
                (draft / MANIFEST).write_bytes(with_checksum(manifest))
            failpoints.reach("segment.written")
            return Segment.load(draft, segment.covers, dimensions, Files(self._budget))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def publish(self, segment: Segment) -> None:
        """Give the draft of a segment its name. An error is only logged: the next start reads the log instead."""
        try:
            shutil.rmtree(final := self.path(segment.covers), ignore_errors=True)
            self._draft(segment).rename(final)
            failpoints.reach("segment.published")
        except OSError as error:
            logger.warning("segment %s keeps no name: %s", final.name, error)

    def discard(self, segment: Segment) -> None:
        """Remove the draft of a segment that is not needed."""
        shutil.rmtree(self._draft(segment), ignore_errors=True)

    def keep(self, covered: Iterable[range]) -> None:
        """Remove every other segment, and what a crash left. Renamed first, so that a name is never a partial one."""
        kept = {self.path(one) for one in covered}
        for path in list(self.folder.iterdir()) if self.folder.is_dir() else []:
            if path in kept or path.name.startswith(DRAFT):
                continue
            removed = path if path.name.startswith(REMOVED) else path.with_name(f"{REMOVED}{path.name}")
            with contextlib.suppress(OSError):
                path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)

    def sweep(self) -> None:
        """Remove the drafts of a process that ended."""
        for path in self.folder.glob(f"{DRAFT}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _draft(self, segment: Segment) -> Path:
        return self.folder / f"{DRAFT}{self.path(segment.covers).name}"


def described(settings: Settings) -> tuple[str, int, str]:
    return settings.fingerprint, settings.dimensions, analysis.ANALYSIS_VERSION


def segment_folders(folder: Path) -> dict[Path, range]:
    """What each segment in a folder covers, by its name."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        first, _, last = path.name.partition("-")
        if first.isdecimal() and last.isdecimal():
            found[path] = range(int(first), int(last) + 1)
    return found


def read_segment_manifest(folder: Path) -> SegmentManifest:
    """Raises NotFound if the segment does not exist, Damaged if its manifest cannot be read."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"no segment in {folder}") from None
    return decode_checked(path, content, SegmentManifest, FORMAT)


def check_segment_files(folder: Path) -> SegmentManifest:
    """Verify every file of a segment. Raises as `read_segment_manifest` does, and Damaged."""
    manifest = read_segment_manifest(folder)
    for name, file in manifest.files.items():
        verify(folder / name, file.bytes, file.sha256)
    return manifest


def segments_ahead(collection: Path, end: LogPosition) -> dict[Path, SegmentManifest]:
    """Segments that hold more than a log that ends here: they know what it lost."""
    found = {}
    for path in segment_folders(collection / SEGMENTS):
        with contextlib.suppress(Damaged, NotFound, OSError):
            manifest = read_segment_manifest(path)
            if manifest.seq > end.seq or manifest.last > end.last_passage:
                found[path] = manifest
    return found


def require_no_segment_ahead(collection: Path, end: LogPosition) -> None:
    """Raise Damaged if a segment is ahead of its log."""
    for one in segments_ahead(collection, end).values():
        raise Damaged(
            f"{collection.name}/log.db ends at operation {end.seq}, and a segment was made at {one.seq}"
        )
