"""Asks the disk for rows of a mapped file together, before they are read.

Of rows that the system has not cached, each would be a page fault of its own: the disk is waited for row by row, and
reads as much around each as its read-ahead says (128 KB by default, often megabytes). Told of all of them first, it
reads only their pages, many at a time. Telling it of rows that are cached costs as much as reading them, so a few are
looked at first.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Rows

PAGE = mmap.PAGESIZE
LOOKED_AT = 4  # rows of a request
COLD_S = 1.0  # for which all requests are passed on, once rows were not cached
_mincore = ctypes.CDLL(None).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class MappedRows:
    """The rows of an array that lies in a mapped file, each of `row_bytes` from `start` on."""

    def __init__(self, mapped: mmap.mmap, address: int, start: int, row_bytes: int) -> None:
        self._mapped, self._address = mapped, address
        self._start, self._row_bytes = start, row_bytes
        self._cold_until = 0.0

    @staticmethod
    def of(buffer: NDArray[np.uint8], start: int, row_bytes: int) -> MappedRows | None:
        """None for an array in memory."""
        base: Any = buffer
        while isinstance(base, np.ndarray):
            base = base.base
        address = int(buffer.__array_interface__["data"][0])
        return MappedRows(base, address, start, row_bytes) if isinstance(base, mmap.mmap) else None

    def request(self, rows: Rows) -> None:
        """Ask for these rows, unless they seem to be cached."""
        if len(rows) < 2 or (time.monotonic() > self._cold_until and self._seem_cached(rows)):
            return
        self._cold_until = time.monotonic() + COLD_S
        begins, ends = self._pages(rows)
        pages = np.unique(np.concatenate([begins, ends]))
        breaks = np.flatnonzero(np.diff(pages) > 1)
        firsts, lasts = pages[np.r_[0, breaks + 1]], pages[np.r_[breaks, len(pages) - 1]]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            begin, end = first * PAGE, min((last + 1) * PAGE, len(self._mapped))
            self._mapped.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def note_faults(self, before: int) -> None:
        """Pass all requests on for a while, if this thread waited for the disk since it counted so many `faults`."""
        if faults() > before:
            self._cold_until = time.monotonic() + COLD_S

    def _pages(self, rows: Rows) -> tuple[Rows, Rows]:
        """The first and the last page of each row."""
        begins = self._start + rows.astype(np.int64) * self._row_bytes
        return begins // PAGE, (begins + self._row_bytes - 1) // PAGE

    def _seem_cached(self, rows: Rows) -> bool:
        cached = ctypes.create_string_buffer(1)
        for row in rows[:: -(-len(rows) // LOOKED_AT)].tolist():
            page = (self._start + row * self._row_bytes) // PAGE
            if _mincore(self._address + page * PAGE, 1, cached) == 0 and not cached.raw[0] & 1:
                return False
        return True


def faults() -> int:
    """How often this thread has waited for the disk to read a mapped page."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
