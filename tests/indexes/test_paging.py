"""Rows of a mapped file that the system has not cached are read from the disk together."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

from indexes.base import paging
from indexes.base.paging import MappedRows, faults
from indexes.base.residency import Budget, Files
from indexes.dense.vectors import StoredVectors

ROWS, DIMENSIONS, WANTED = 160_000, 384, 100
QUERY = np.full(DIMENSIONS, DIMENSIONS**-0.5, np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    halves = StoredVectors.create(tmp_path / "vectors.f16", ROWS, DIMENSIONS)
    some = np.random.default_rng(0).standard_normal((1000, DIMENSIONS), np.float32)
    for begin in range(0, ROWS, len(some)):
        halves[begin : begin + len(some)] = some * (1 + begin / ROWS)
    return tmp_path / "vectors.f16"


def mapped(path: Path) -> tuple[StoredVectors, MappedRows]:
    vectors = StoredVectors.load(path, ROWS, DIMENSIONS, Files())
    found = MappedRows.of(vectors._buffer, 128, 2 * DIMENSIONS)
    assert found is not None
    return vectors, found


def forgotten(path: Path, rows: MappedRows) -> None:
    """Have the system drop what it has cached of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    rows._mapped.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if rows._seem_cached(np.arange(0, ROWS, 999)):
        pytest.skip("files stay cached on this file system")


def test_rows_are_read_together(path: Path) -> None:
    """A search of rows that are not cached finds the same, and waits for few pages instead of one for most rows."""
    wanted = np.sort(np.random.default_rng(1).choice(ROWS, WANTED, replace=False))
    waited = {}
    found = {}
    for together in (False, True):
        vectors, rows = mapped(path)
        if not together:
            vectors._mapped = None
        forgotten(path, rows)
        before = faults()
        found[together] = [one.tolist() for one in vectors.best(wanted, QUERY, 10)]
        waited[together] = faults() - before
    assert found[False] == found[True]
    assert waited[False] >= 8  # the system reads megabytes around each
    assert waited[True] <= waited[False] / 8


def test_every_row_is_asked_for_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also rows that cross pages, the first and the last, and repeated ones; only if some are not cached, or one was
    waited for a moment ago."""
    _, rows = mapped(path)
    asked: list[range] = []
    cached = True

    class Mapped:
        def __len__(self) -> int:
            return path.stat().st_size

        def madvise(self, advice: int, begin: int, length: int) -> None:
            assert (advice, begin % mmap.PAGESIZE) == (mmap.MADV_WILLNEED, 0)
            assert begin + length <= len(self)
            asked.append(range(begin, begin + length))

    monkeypatch.setattr(rows, "_mapped", Mapped())
    monkeypatch.setattr(rows, "_seem_cached", lambda _: cached)
    wanted = np.array([0, 4, 5, 5, 6, 700, ROWS - 1])
    rows.request(wanted)
    assert not asked
    cached = False
    rows.request(wanted)
    bytes_of = 2 * DIMENSIONS
    for row in wanted.tolist():
        begin = 128 + row * bytes_of
        assert any(one.start <= begin and begin + bytes_of <= one.stop for one in asked)
    assert sum(map(len, asked)) <= 6 * mmap.PAGESIZE
    assert all(one.stop < other.start for one, other in itertools.pairwise(asked))
    cached = True
    asked.clear()
    rows.request(wanted)  # a moment later
    assert asked
    monkeypatch.setattr(paging, "COLD_S", -1.0)
    rows._cold_until = 0.0
    asked.clear()
    rows.request(wanted)
    rows.note_faults(faults())
    assert not asked


def test_rows_in_memory_are_not_asked_for(path: Path) -> None:
    """A copy of a file, and vectors that were never in one."""
    vectors = StoredVectors.load(path, ROWS, DIMENSIONS, Files(Budget(1 << 30)))
    assert vectors._mapped is None
    assert StoredVectors.allocate(10, DIMENSIONS)._mapped is None
    vectors.request(np.arange(10))


def test_a_look_costs_little(path: Path) -> None:
    """Next to the rows that are read after it, if they are cached."""
    vectors, rows = mapped(path)
    wanted = np.arange(0, ROWS, 100)
    vectors.best(wanted, QUERY, 10)
    rows._cold_until = 0.0
    begun = time.thread_time()
    for _ in range(1000):
        rows.request(wanted)
    assert time.thread_time() - begun < 0.2
