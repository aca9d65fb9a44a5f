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
import math
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from indexes.base import failpoints
from indexes.base.durable import disk_errors, with_checksum
from indexes.base.errors import Damaged, NotFound, StorageError
from indexes.base.model import Settings
from indexes.base.residency import Budget, Files
from indexes.lexical import analysis
from indexes.log.reader import LogPosition
from indexes.parts.manifest import MANIFEST, SealedFile, read_checked, seal_files, verify_files
from indexes.parts.segment import Segment

logger = logging.getLogger(__name__)

FORMAT = 1
SEGMENTS = "segments"
DRAFT, REMOVED = ".draft-", ".removed-"
NAME = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


class SegmentManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a segment covers, from passage `first` to `last`, without some that were dead at operation `seq`. Its newest
    passages may be of a later operation."""

    format: int = FORMAT
    uid: str
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

    def require_fit(self, settings: Settings, uid: str, covers: range) -> None:
        """Raise Damaged unless it fits this log, model and version, and the name of its folder."""
        if (self.fingerprint, self.dimensions, self.analysis) != described(settings) or self.uid != uid:
            raise Damaged("it was made of another log, or with another model or version")
        if self.covers != covers:
            raise Damaged(f"it covers passages {self.first} to {self.last}")


class SegmentShelf:
    """Lists, makes, loads and removes the segments of one collection. Only the writer thread publishes and removes."""

    def __init__(self, collection: Path, uid: str, settings: Settings, budget: Budget) -> None:
        """`uid` is that of the log."""
        self.folder, self._uid, self._settings, self._budget = collection / SEGMENTS, uid, settings, budget

    def path(self, covers: range) -> Path:
        return self.folder / f"{covers.start}-{covers.stop - 1}"

    def on_disk(self) -> list[range]:
        """What the segments on disk cover, in order. Of those within others, which a crash left, only the others."""
        covered: list[range] = []
        for one in sorted(segment_folders(self.folder).values(), key=lambda one: (one.start, -one.stop)):
            if not covered or one.stop > covered[-1].stop:
                covered.append(one)
        return covered

    def between(self, after: int, upto: float = math.inf) -> list[range]:
        """What those segments cover that begin after one passage and end with another at most, in order, without
        overlaps."""
        found: list[range] = []
        for one in self.on_disk():
            if one.start > (found[-1].stop - 1 if found else after) and one.stop <= upto + 1:
                found.append(one)
        return found

    def load(self, covers: range) -> Segment:
        """Verify a segment and map it. Raises NotFound, Damaged and OSError."""
        folder = self.path(covers)
        manifest = check_segment_files(folder)
        manifest.require_fit(self._settings, self._uid, covers)
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
                    uid=self._uid,
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
            logger.warning("segment %s is not kept: %s", final, error)
            self.discard(segment)

    def discard(self, segment: Segment) -> None:
        """Remove the draft of a segment that is not needed."""
        shutil.rmtree(self._draft(segment), ignore_errors=True)

    def retire(self, covered: Iterable[range]) -> None:
        """Take the names of all other segments away; `clear` then removes them."""
        for path in self._others(covered):
            if not path.name.startswith(REMOVED):
                retired = path.with_name(f"{REMOVED}{path.name}")
                shutil.rmtree(retired, ignore_errors=True)
                with logged(path):
                    path.rename(retired)

    def clear(self, prefix: str = REMOVED) -> None:
        """Remove what has no name any more, or with DRAFT what a process that ended has left."""
        for path in listed(self.folder):
            if path.name.startswith(prefix):
                with logged(path):
                    shutil.rmtree(path)

    def require_gone(self, covered: Iterable[range]) -> None:
        """Raise StorageError if there are files of other segments than these."""
        if left := self._others(covered):
            raise StorageError(f"{left[0]} cannot be removed")

    def _others(self, covered: Iterable[range]) -> list[Path]:
        kept = {self.path(one) for one in covered}
        return [one for one in listed(self.folder) if one not in kept and not one.name.startswith(DRAFT)]

    def _draft(self, segment: Segment) -> Path:
        return self.folder / f"{DRAFT}{self.path(segment.covers).name}"


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """Log an error of this block instead of raising it."""
    try:
        yield
    except OSError as error:
        logger.warning("%s cannot be removed: %s", path, error)


def described(settings: Settings) -> tuple[str, int, str]:
    return settings.fingerprint, settings.dimensions, analysis.ANALYSIS_VERSION


def segment_folders(folder: Path) -> dict[Path, range]:
    """What each segment in a folder covers, by its name."""
    found = {}
    for path in listed(folder):
        if name := NAME.fullmatch(path.name):
            found[path] = range(int(name[1]), int(name[2]) + 1)
    return found


def listed(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("%s cannot be read: %s", folder, error)
        return []


def read_segment_manifest(folder: Path) -> SegmentManifest:
    """Raises NotFound if the segment does not exist, Damaged if its manifest cannot be read."""
    return read_checked(folder, SegmentManifest, FORMAT, "segment")


def check_segment_files(folder: Path) -> SegmentManifest:
    """Verify every file of a segment. Raises as `read_segment_manifest` does, and Damaged."""
    manifest = read_segment_manifest(folder)
    verify_files(folder, manifest.files)
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
