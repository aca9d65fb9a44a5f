"""The generations of a collection on disk, and the marker that names the live one."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from indexes import failpoints
from indexes.durable import disk_errors, publish, publish_folder
from indexes.errors import Conflict, Damaged, NotFound, RecallTooLow
from indexes.parts.manifest import Manifest, read_manifest

logger = logging.getLogger(__name__)

ASIDE = ".refused-"  # before the number of a generation that measured too low to be adopted


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
