"""A collection's generation folders on disk, and the marker that names the live one."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from indexes.base import failpoints
from indexes.base.durable import disk_errors, publish, publish_folder
from indexes.base.errors import Conflict, Damaged, NotFound, RecallTooLow
from indexes.log.reader import LogPosition
from indexes.parts.manifest import Manifest, read_manifest

logger = logging.getLogger(__name__)

ASIDE = ".refused-"  # prefix of a generation refused for low recall


class Shelf:
    """Lists, marks, moves and deletes the generations of one collection."""

    def __init__(self, collection: Path) -> None:
        self.folder = collection / "generations"
        self._marker = collection / "CURRENT"

    def numbers(self) -> list[int]:
        """Numbers of the sealed generations, ascending. Drafts and other files are ignored."""
        if not self.folder.is_dir():
            return []
        return sorted(
            int(path.name) for path in self.folder.iterdir() if path.name.isdigit() and path.is_dir()
        )

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def current(self) -> int:
        """Number of the live generation; 0 if there is none yet."""
        try:
            return int(self._marker.read_bytes())
        except FileNotFoundError:
            return 0
        except ValueError:
            newest = max(self.numbers(), default=0)
            logger.error("%s does not name a generation; taking the newest, %d", self._marker, newest)
            return newest

    def set_current(self, number: int) -> None:
        """Durable once this returns; the marker is replaced by rename, so it always names a complete generation."""
        publish(self._marker, f"{number}\n".encode())

    def seqs(self) -> dict[int, int]:
        """The seq of each sealed generation with a readable manifest, by number."""
        return {number: manifest.seq for number, manifest in self.manifests().items()}

    def manifests(self) -> dict[int, Manifest]:
        """Readable manifests of the sealed generations, by number, ascending."""
        found = {}
        for number in self.numbers():
            try:
                found[number] = read_manifest(self.path(number))
            except (Damaged, NotFound) as error:
                logger.warning("generation %d is unusable: %s", number, error.message)
        return found

    def ahead(self, end: LogPosition) -> dict[Path, Manifest]:
        """Generations, refused ones too, that hold more than a log that ends here: they know what it lost."""
        found = {}
        for path in [*map(self.path, self.numbers()), *self.aside().values()]:
            with contextlib.suppress(Damaged, NotFound):
                manifest = read_manifest(path)
                if manifest.seq > end.seq or manifest.last_passage > end.last_passage:
                    found[path] = manifest
        return found

    def before(self, live: int, floor: float) -> int:
        """The newest generation before the live one that meets this recall floor. Raises Conflict if there is none."""
        earlier = {number: one for number, one in self.manifests().items() if number < live}
        low = {number: reason for number, one in earlier.items() if (reason := one.below(floor))}
        eligible = [number for number in earlier if number not in low]
        if not eligible:
            passed_over = "".join(f"; generation {number} has {reason}" for number, reason in low.items())
            raise Conflict(f"there is no earlier generation to roll back to{passed_over}")
        return eligible[-1]

    def require_recall(self, number: int, floor: float) -> None:
        """If a generation measured below the floor, move it aside and raise RecallTooLow. Exempts the live one."""
        low = read_manifest(self.path(number)).below(floor)
        if low and number != self.current():
            self.set_aside(number)
            raise RecallTooLow(f"generation {number} is not adopted: {low}")

    def remove(self, number: int) -> None:
        """Delete a generation. Renamed first, so its number never names a partial one."""
        removed = self.folder / f".removed-{number:06d}"
        shutil.rmtree(removed, ignore_errors=True)
        with disk_errors(removed):
            self.path(number).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def newest(self, most: int, *, first: Sequence[int]) -> dict[int, int]:
        """Generations to keep, with their seqs: those in `first` (0: none), then the newest, up to `most` in all."""
        seqs = self.seqs()
        kept = [number for number in first if number]
        kept += [number for number in reversed(seqs) if number not in kept][: max(most - len(kept), 0)]
        return {number: seqs.get(number, 0) for number in kept}

    def keep(self, kept: Collection[int], *, aside_from: int) -> None:
        """Delete every other generation, and refused ones with lower numbers than `aside_from`."""
        for number in self.numbers():
            if number not in kept:
                failpoints.reach("prune.begin")
                self.remove(number)
                failpoints.reach("prune.removed")
        self.clear_aside(before=aside_from)

    def set_aside(self, number: int) -> None:
        """Move a refused generation aside for inspection. Only the newest refused one is kept.

        It is no longer listed by number, and its number is not reused while it exists.
        """
        aside = self.folder / f"{ASIDE}{number:06d}"
        shutil.rmtree(aside, ignore_errors=True)
        failpoints.reach("refuse.begin")
        publish_folder(self.path(number), aside)
        failpoints.reach("refuse.renamed")
        self.clear_aside(before=number)
        failpoints.reach("refuse.cleared")

    def aside(self) -> dict[int, Path]:
        """Refused generations, by number."""
        found = {path.name.removeprefix(ASIDE): path for path in self.folder.glob(f"{ASIDE}*")}
        return {int(number): path for number, path in found.items() if number.isdigit()}

    def clear_aside(self, *, before: int) -> None:
        """Remove refused generations with lower numbers."""
        for number, path in self.aside().items():
            if number < before:
                shutil.rmtree(path, ignore_errors=True)

    def sweep(self, builder: int | None = None) -> None:
        """Remove leftovers of dead builders and interrupted removals; with `builder`, only that process's draft."""
        patterns = (".draft-*", ".removed-*") if builder is None else (f".draft-*-{builder}",)
        for pattern in patterns:
            for leftover in self.folder.glob(pattern):
                shutil.rmtree(leftover, ignore_errors=True)

    def scratch(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for as long as its context. If this process is killed, the next `sweep` removes it."""
        with disk_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
            return tempfile.TemporaryDirectory(prefix=".draft-scratch-", dir=self.folder)

    def next_number(self) -> int:
        return max([0, self.current(), *self.numbers(), *self.aside()]) + 1
