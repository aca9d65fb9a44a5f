"""External sort of postings: sorted runs on disk, merged into one sorted whole.

A run holds postings sorted by term and row. Terms are numbers, ordered by the ranks that the caller passes; the
relative order of any two terms in a run must stay as it was when the run was written. Scratch columns, run after run:

    terms        uint32  term numbers of the run, in order
    counts       uint32  number of postings of each in the run
    rows         uint32  per posting
    frequencies  uint16  per posting
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexes.base.durable import disk_errors
from indexes.lexical.scratch import IntegerFile

TERMS_AT_ONCE = 1 << 16  # a 64-bit key packs term, row and frequency, which leaves 16 bits for the term

Slab = tuple[NDArray[np.uint32], NDArray[np.uint16]]


class Runs:
    """Collects runs and merges them. `size` is the number of rows; each row is in only one run.

    Memory: about `SORTED_BYTES` times `capacity` (postings), regardless of how many are on disk.
    """

    SORTED_BYTES = 32  # per posting: an 8-byte key and numpy's temporary copies

    def __init__(self, folder: Path, size: int, capacity: int) -> None:
        self._folder = folder
        self._size = size
        self._capacity = capacity
        self._runs: list[_Run] = []
        with disk_errors(folder):
            self._terms = IntegerFile(folder, np.uint32)
            self._counts = IntegerFile(folder, np.uint32)
            self._rows = IntegerFile(folder, np.uint32)
            self._frequencies = IntegerFile(folder, np.uint16)

    def append(
        self,
        terms: NDArray[np.uint32],
        counts: NDArray[np.uint32],
        rows: NDArray[np.uint32],
        frequencies: NDArray[np.uint16],
    ) -> None:
        """Add a run: its terms in order, the number of postings of each, and the postings, rows ascending per term."""
        at = _Run(
            range(self._terms.size, self._terms.size + len(terms)),
            range(self._rows.size, self._rows.size + len(rows)),
        )
        with disk_errors(self._folder):
            self._terms.append(terms)
            self._counts.append(counts)
            self._rows.append(rows)
            self._frequencies.append(frequencies)
        self._runs.append(at)

    def sizes(self, ranks: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Number of postings per term over all runs, by rank. `ranks` maps term number to rank."""
        sizes = np.zeros(len(ranks), np.int64)
        for run in self._runs:
            sizes[ranks[self._terms.read(run.terms)]] += self._counts.read(run.terms)
        return sizes

    def merged(self, ranks: NDArray[np.uint32], starts: NDArray[np.int64]) -> Iterator[Slab]:
        """All postings by rank, then row, in slabs that fit memory; `starts` are the ranks' offsets, with the end."""
        left = list(self._runs)
        for first, last in self._groups(starts):
            taken = [self._take(run, ranks, first, last) for run in left]
            left = [piece.rest for piece in taken]
            for window in self._windows(int(starts[last] - starts[first])):
                keys = np.concatenate([self._keys(piece, first, window) for piece in taken])
                keys.sort()
                yield (keys >> np.uint64(16)).astype(np.uint32), keys.astype(np.uint16)

    def close(self) -> None:
        """Free the disk space. Idempotent."""
        for column in (self._terms, self._counts, self._rows, self._frequencies):
            column.close()

    def _groups(self, starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Ranges of terms whose postings fit in memory; a term with too many is a range by itself."""
        first = 0
        while first < len(starts) - 1:
            last = int(np.searchsorted(starts, starts[first] + self._capacity, side="right")) - 1
            last = min(max(last, first + 1), first + TERMS_AT_ONCE)
            yield first, last
            first = last

    def _windows(self, postings: int) -> Iterator[range]:
        """Ranges of rows narrow enough for their postings to fit: a term has at most one posting per row."""
        step = self._size if postings <= self._capacity else self._capacity
        return (range(low, low + step) for low in range(0, self._size, step))

    def _take(self, run: _Run, ranks: NDArray[np.uint32], first: int, last: int) -> _Piece:
        """Split off a run's postings of ranks below `last`; its next term must have rank `first` or higher."""
        ahead = run.terms[: last - first]
        found = ranks[self._terms.read(ahead)]
        found = found[: np.searchsorted(found, last)]
        counts = self._counts.read(ahead[: len(found)])
        total = int(counts.sum(dtype=np.int64))
        rest = _Run(run.terms[len(found) :], run.postings[total:])
        return _Piece(found, counts, run.postings[:total], rest)

    def _keys(self, piece: _Piece, first: int, window: range) -> NDArray[np.uint64]:
        """One sort key per posting: term, row and frequency packed into 64 bits."""
        rows = self._rows.read(piece.postings)
        keys = np.repeat((piece.ranks - np.uint32(first)).astype(np.uint64), piece.counts)
        keys <<= np.uint64(32)
        keys |= rows
        keys <<= np.uint64(16)
        keys |= self._frequencies.read(piece.postings)
        return keys if len(window) >= self._size else keys[(rows >= window.start) & (rows < window.stop)]


@dataclass(frozen=True, slots=True)
class _Run:
    """Position in the columns of a run, or of its remainder."""

    terms: range
    postings: range


@dataclass(frozen=True, slots=True)
class _Piece:
    """One group's share of a run: term ranks, postings per term, and their position; and the rest of the run."""

    ranks: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    postings: range
    rest: _Run
