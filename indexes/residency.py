"""Files of a generation as arrays: copied into memory while a budget lasts, mapped beyond it.

Searches read stored vectors and postings at random. The system takes the pages of a mapped file back whenever it
likes, and a search that needs them again waits for the disk. A copy belongs to the process: it stays, it counts as the
process's own memory, and unlike locking it needs no right (RLIMIT_MEMLOCK is often 8 MB).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SMALL_BYTES = 256 << 10  # a map holds a descriptor for as long as it is used, and a generation has 18 files


class Budget:
    """How many bytes of files one process holds as copies. Safe from any thread."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self._change = threading.Lock()

    def take(self, size: int, credit: int) -> bool:
        """Whether so much more fits, if `credit` bytes of what is held count as free."""
        with self._change:
            fits = self.held - credit + size <= self.bytes_max
            self.held += size if fits else 0
            return fits

    def give(self, size: int) -> None:
        with self._change:
            self.held -= size


NOTHING = Budget(0)


class Files:
    """Reads the files of one generation, and holds its part of the budget until it is garbage.

    A file that does not fit is mapped whole, and smaller ones after it may still fit: read first what searches read
    most. What the generation `replaced` by this one holds does not count, because it is about to go: until the searches
    under way have ended, the process holds both.
    """

    def __init__(self, budget: Budget = NOTHING, replaced: Files | None = None) -> None:
        self.copied = self.mapped = 0
        self._budget = budget
        self._credit = replaced.copied if replaced else 0

    def __del__(self) -> None:
        self._budget.give(self.copied)

    def raw(self, path: Path) -> NDArray[np.uint8]:
        """The bytes of a file."""
        # A plain view of the map: indexing a numpy.memmap costs several times as much.
        return np.fromfile(path, np.uint8) if self._kept(path) else np.asarray(np.memmap(path, np.uint8, "r"))

    def array(self, path: Path) -> NDArray[np.generic]:
        """The array of a .npy file, read-only."""
        mode: Literal["r"] | None = None if self._kept(path) else "r"
        array: NDArray[np.generic] = np.asarray(np.load(path, mmap_mode=mode, allow_pickle=False))
        array.setflags(write=False)
        return array

    def _kept(self, path: Path) -> bool:
        size = path.stat().st_size
        if size < SMALL_BYTES:
            return True
        fits = self._budget.take(size, self._credit)
        self.copied += size if fits else 0
        self.mapped += 0 if fits else size
        return fits
