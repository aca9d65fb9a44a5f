"""Stored vectors: float16, one row per passage, in memory or memory-mapped, searched and scored in compiled code.

The rows are the codes of a faiss scalar quantizer (`QT_fp16`), and a file is that index as faiss writes it:

    byte 0      zero padding, so that the rows start aligned at byte 128
    128 - h     header of the faiss index, h bytes; ends with the size of the rows
    128         float16 [rows, dimensions], little-endian, row by row

faiss reads it in place (zero copy), so exact search, rescoring and reading back need no Python loops or conversions.
float16 changes an inner product of unit vectors by about 1e-5, far below any difference in rank that matters.
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from indexes.base.arrays import top
from indexes.base.errors import Damaged
from indexes.base.masks import Bits
from indexes.base.model import Floats, Rows
from indexes.base.paging import MappedRows, faults
from indexes.base.residency import Files

Halves = NDArray[np.float16]
Found = tuple[Rows, Floats]  # rows with their scores, best first

NOTHING: Found = (np.empty(0, np.int64), np.empty(0, np.float32))

ROWS_AT = 128
SIZE_BYTES = 8
GATHERED_ROWS = 512  # rows gathered and scored per step, in a buffer per search thread


class StoredVectors:
    """Rows with exact search. Safe from any thread; a search covers rows written later only if it selects them."""

    def __init__(self, buffer: NDArray[np.uint8], rows: int, dimensions: int) -> None:
        """`buffer` holds the `preamble`, then the rows."""
        self._buffer = buffer  # kept alive: faiss only points into it
        header = preamble(rows, dimensions).lstrip(b"\0")
        start = ROWS_AT - len(header)
        reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(buffer[start:]), len(buffer) - start)
        self.index: Any = faiss.read_index(reader)
        self.rows = rows
        self.halves: Halves = buffer[ROWS_AT:].view(np.float16).reshape(rows, dimensions)
        self._mapped = MappedRows.of(buffer, ROWS_AT, 2 * dimensions)

    @staticmethod
    def allocate(rows: int, dimensions: int) -> StoredVectors:
        """Allocate this many rows in memory; write them into `halves`."""
        buffer = np.empty(ROWS_AT + rows * dimensions * 2, np.uint8)
        buffer[:ROWS_AT] = np.frombuffer(preamble(rows, dimensions), np.uint8)
        return StoredVectors(buffer, rows, dimensions)

    @staticmethod
    def create(path: Path, rows: int, dimensions: int) -> Halves:
        """A new file, memory-mapped for writing; call `flush` once filled. Not synced: the publisher does that."""
        path.write_bytes(preamble(rows, dimensions))
        if not rows:
            return np.empty((0, dimensions), np.float16)
        return np.memmap(path, np.float16, "r+", offset=ROWS_AT, shape=(rows, dimensions))

    @staticmethod
    def load(path: Path, rows: int, dimensions: int, files: Files | None = None) -> StoredVectors:
        """Map or copy a file whose checksum was verified. Raises Damaged if it is not as expected."""
        buffer = (files or Files()).raw(path)
        expected = preamble(rows, dimensions)
        if len(buffer) != ROWS_AT + rows * dimensions * 2 or buffer[:ROWS_AT].tobytes() != expected:
            raise Damaged(f"{path} does not hold {rows} vectors of {dimensions} dimensions")
        return StoredVectors(buffer, rows, dimensions)

    def save(self, path: Path) -> None:
        """Write a file for `load`. Not synced."""
        self._buffer.tofile(path)

    @property
    def bytes(self) -> int:
        return int(self.halves.nbytes)

    def take(self, rows: Rows) -> Floats:
        """These rows, float32 [len(rows), dimensions]."""
        if not len(rows):
            return np.empty((0, self.halves.shape[1]), np.float32)
        self.request(rows)
        taken: Floats = self.index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))
        return taken

    def scores(self, rows: Rows, query: Floats) -> Floats:
        """Inner products of these rows with a query, float32 [rows], as `best` has them."""
        found = np.full(len(rows), np.nan, np.float32)
        self.request(rows)
        for at in range(0, len(rows), GATHERED_ROWS):
            part = rows[at : at + GATHERED_ROWS]
            places, scores = self._gathered(part, query, len(part))
            found[at + places] = scores
        return found

    def best(self, rows: Rows, query: Floats, depth: int) -> tuple[Rows, Floats]:
        """The best `depth` of these rows by inner product with a query, with the scores, best first."""
        found: list[tuple[Rows, Floats]] = []
        before = faults() if self._mapped else 0
        self.request(rows)
        for at in range(0, len(rows), GATHERED_ROWS):
            part = rows[at : at + GATHERED_ROWS]
            places, scores = self._gathered(part, query, min(depth, len(part)))
            found.append((part[places], scores))
        if self._mapped:
            self._mapped.note_faults(before)
        if len(found) == 1:
            return found[0]
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        together, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return top(together, scores, depth)

    def request(self, rows: Rows) -> None:
        """Have the disk read these rows together, if they lie in a file and are not cached."""
        if self._mapped is not None:
            self._mapped.request(rows)

    def _gathered(self, rows: Rows, query: Floats, depth: int) -> tuple[Rows, Floats]:
        """Positions of the best `depth` of at most GATHERED_ROWS rows, with their scores.

        Rows are gathered into a contiguous buffer first, which is faster than scoring each in place.
        """
        room = _room(self.halves.shape[1])
        # Without `mode` numpy would gather into a copy first. `take` releases the GIL while pages are read.
        self.halves.take(rows, 0, out=room.halves[: len(rows)], mode="clip")
        return search_index(room.index, query, depth, first(len(rows)))

    def nearest(self, query: Floats, depth: int, selector: Any) -> tuple[Rows, Floats]:
        """Exact search: the best `depth` of the rows that a faiss selector accepts, best first."""
        if depth == 0 or not self.rows:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        return search_index(self.index, query, min(depth, self.rows), faiss.SearchParameters(sel=selector))


def search_index(index: Any, query: Floats, depth: int, parameters: Any = None) -> tuple[Rows, Floats]:
    """Search a faiss index, best first. Bypasses the Python wrapper, whose checks are slow for small searches."""
    query = np.ascontiguousarray(query, np.float32)
    if query.shape != (index.d,):
        raise ValueError(f"a query of shape {query.shape}, expected ({index.d},)")
    scores, rows = np.empty(depth, np.float32), np.empty(depth, np.int64)
    index.search_c(1, faiss.swig_ptr(query), depth, faiss.swig_ptr(scores), faiss.swig_ptr(rows), parameters)
    found = int(np.count_nonzero(rows >= 0))
    return rows[:found], scores[:found]


_rooms = threading.local()


def _room(dimensions: int) -> StoredVectors:
    """This thread's buffer for gathered rows."""
    rooms: dict[int, StoredVectors] = vars(_rooms).setdefault("by_dimensions", {})
    if dimensions not in rooms:
        rooms[dimensions] = StoredVectors.allocate(GATHERED_ROWS, dimensions)
    return rooms[dimensions]


def preamble(rows: int, dimensions: int) -> bytes:
    """The 128 bytes before the rows."""
    index = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    index.ntotal = rows
    header: bytes = faiss.serialize_index(index).tobytes()
    size = (rows * dimensions * 2).to_bytes(SIZE_BYTES, "little")
    return (header[:-SIZE_BYTES] + size).rjust(ROWS_AT, b"\0")


def search_with_one_thread() -> None:
    """Call once on each search thread: otherwise faiss wakes every core for a single query."""
    faiss.omp_set_num_threads(1)


def within(rows: range) -> Any:
    """A selector of a range of rows."""
    return faiss.IDSelectorRange(rows.start, rows.stop)


@functools.lru_cache(maxsize=GATHERED_ROWS)
def first(count: int) -> Any:
    """Parameters for searching the first `count` rows. Cached, because every search needs them."""
    return faiss.SearchParameters(sel=within(range(count)))


def among(allowed: Bits) -> Any:
    """A selector of the rows set in a packed bitmap (little-endian bits)."""
    return faiss.IDSelectorBitmap(allowed)


def merge(first: Found, second: Found, depth: int) -> Found:
    """The best `depth` of two results; ties in row order."""
    if not len(first[0]) or not len(second[0]):
        rows, scores = second if not len(first[0]) else first
        return rows[:depth], scores[:depth]
    rows, scores = np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
    return top(rows, scores, depth)
