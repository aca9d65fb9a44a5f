"""Postings that were sorted piece by piece, on disk, and come back sorted as a whole.

A run holds postings sorted by term and row. Terms go by number; their order is that of the ranks the caller gives,
and the ranks of any two terms of a run compare as they did when the run was written. Scratch columns, run after run:

    terms        uint32  numbers of the terms of the run, in order
    counts       uint32  how many postings each of them has in the run
    rows         uint32  of each posting
    frequencies  uint16
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexes.durable import disk_errors
from indexes.lexical.scratch import Column

TERMS_AT_ONCE = 1 << 16  # term, row and frequency share a key of 64 bits, and these are left for the term

Slab = tuple[NDArray[np.uint32], NDArray[np.uint16]]


class Runs:
    """Takes runs, gives one sorted whole. `size` is the number of rows; a row is in one run only.

    Memory: about `SORTED_BYTES` times `capacity` (postings), however many there are on disk.
    """

    SORTED_BYTES = 32  # an 8-byte key of each posting, and the copies that numpy makes on the way

    def __init__(self, folder: Path, size: int, capacity: int) -> None:
        self._folder = folder
        self._size = size
        self._capacity = capacity
        self._runs: list[_Run] = []
        with disk_errors(folder):
            self._terms = Column(folder, np.uint32)
            self._counts = Column(folder, np.uint32)
            self._rows = Column(folder, np.uint32)
            self._frequencies = Column(folder, np.uint16)

    def append(
        self,
        terms: NDArray[np.uint32],
        counts: NDArray[np.uint32],
        rows: NDArray[np.uint32],
        frequencies: NDArray[np.uint16],
    ) -> None:
        """Add a run: its terms in order, how many postings each has, and these, rows ascending within a term."""
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
        """Postings of each term, by rank, over all runs. `ranks` holds the rank of each number."""
        sizes = np.zeros(len(ranks), np.int64)
        for run in self._runs:
            sizes[ranks[self._terms.read(run.terms)]] += self._counts.read(run.terms)
        return sizes

    def merged(self, ranks: NDArray[np.uint32], starts: NDArray[np.int64]) -> Iterator[Slab]:
        """All postings by rank, then row, as many at a time as fit; `starts`: where each rank's begin, and the end."""
        left = list(self._runs)
        for first, last in self._groups(starts):
            taken = [self._take(run, ranks, first, last) for run in left]
            left = [piece.rest for piece in taken]
            for window in self._windows(int(starts[last] - starts[first])):
                keys = np.concatenate([self._keys(piece, first, window) for piece in taken])
                keys.sort()
                yield (keys >> np.uint64(16)).astype(np.uint32), keys.astype(np.uint16)

    def close(self) -> None:
        """Give back the room on disk. May be called twice."""
        for column in (self._terms, self._counts, self._rows, self._frequencies):
            column.close()

    def _groups(self, starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Ranges of terms whose postings fit; a term whose own do not is a range by itself."""
        first = 0
        while first < len(starts) - 1:
            last = int(np.searchsorted(starts, starts[first] + self._capacity, side="right")) - 1
            last = min(max(last, first + 1), first + TERMS_AT_ONCE)
            yield first, last
            first = last

    def _windows(self, postings: int) -> Iterator[range]:
        """Ranges of rows so narrow that their postings fit: one term has at most one in each row."""
        step = self._size if postings <= self._capacity else self._capacity
        return (range(low, low + step) for low in range(0, self._size, step))

    def _take(self, run: _Run, ranks: NDArray[np.uint32], first: int, last: int) -> _Piece:
        """What a run, whose next term has the rank `first` or a higher one, holds of ranks below `last`."""
        ahead = run.terms[: last - first]
        found = ranks[self._terms.read(ahead)]
        found = found[: np.searchsorted(found, last)]
        counts = self._counts.read(ahead[: len(found)])
        total = int(counts.sum(dtype=np.int64))
        rest = _Run(run.terms[len(found) :], run.postings[total:])
        return _Piece(found, counts, run.postings[:total], rest)

    def _keys(self, piece: _Piece, first: int, window: range) -> NDArray[np.uint64]:
        """Term, row and frequency of each posting, in one number that sorts as they do."""
        rows = self._rows.read(piece.postings)
        keys = np.repeat((piece.ranks - np.uint32(first)).astype(np.uint64), piece.counts)
        keys <<= np.uint64(32)
        keys |= rows
        keys <<= np.uint64(16)
        keys |= self._frequencies.read(piece.postings)
        return keys if len(window) >= self._size else keys[(rows >= window.start) & (rows < window.stop)]


@dataclass(frozen=True, slots=True)
class _Run:
    """Where a run, or what is left of it, lies in the columns."""

    terms: range
    postings: range


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one group takes of a run: terms by rank, how many postings each has, where they lie; and what is left."""

    ranks: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    postings: range
    rest: _Run
