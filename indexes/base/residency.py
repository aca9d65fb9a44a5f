"""Loads a generation's files as arrays: copied into memory within a budget, memory-mapped beyond it.

Searches read stored vectors and postings at random. The OS may evict the pages of a mapped file at any time, and a
search that needs them again waits for the disk. A copy stays, counts as the process's own memory and, unlike
`mlock`, needs no privilege (RLIMIT_MEMLOCK is often 8 MB).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SMALL_BYTES = 256 << 10  # always copied: each map holds a descriptor, and a generation has 18 files


class Budget:
    """Bounds the bytes of files that one process holds as copies. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self._change = threading.Lock()

    def take(self, size: int, credit: int) -> bool:
        """Reserve `size` bytes if they fit, counting `credit` of the held bytes as free. Returns whether they did."""
        with self._change:
            fits = self.held - credit + size <= self.bytes_max
            self.held += size if fits else 0
            return fits

    def give(self, size: int) -> None:
        with self._change:
            self.held -= size


NOTHING = Budget(0)


class Files:
    """Reads the files of one generation or segment, and holds its share of the budget until it is garbage-collected.

    A file that does not fit is mapped entirely, and smaller ones after it may still fit: load the most-read files
    first. The bytes of `credit` do not count, because what holds them is about to be dropped; until running searches
    end, the process holds both.
    """

    def __init__(self, budget: Budget = NOTHING, credit: int = 0) -> None:
        self.copied = self.mapped = 0
        self._budget = budget
        self._credit = credit

    def __del__(self) -> None:
        self._budget.give(self.copied)

    def raw(self, path: Path) -> NDArray[np.uint8]:
        """The bytes of a file."""
        # A plain array over the map: indexing a numpy.memmap is several times slower.
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
