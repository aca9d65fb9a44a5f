"""Conversions between roaring bitmaps, rows and packed bits lose and add nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyroaring import BitMap

from indexes.filters.bitmaps import CONTAINER_ROWS, LISTED_MAX, bitmap_of, from_bits, rows_of, to_bits

SIZE = 5 * CONTAINER_ROWS + 13


def plain_bits(rows: NDArray[np.int64], size: int) -> bytes:
    flags = np.zeros(size, bool)
    flags[rows] = True
    return np.packbits(flags, bitorder="little").tobytes()


def assert_all_ways_agree(bitmap: BitMap, size: int) -> None:
    rows = np.array(sorted(bitmap), np.int64)
    bits = to_bits(bitmap, size)
    assert bits.tobytes() == plain_bits(rows, size)
    assert from_bits(bits) == bitmap
    assert rows_of(bitmap).tolist() == rows.tolist()
    twice = np.random.default_rng(0).permutation(np.concatenate([rows, rows[: len(rows) // 2]]))
    assert bitmap_of(twice.astype(np.uint32), size) == bitmap


PIECES = st.lists(
    st.tuples(
        st.integers(0, SIZE - 1),  # first row
        st.sampled_from(
            [1, 3, LISTED_MAX, LISTED_MAX + 1, CONTAINER_ROWS, 3 * CONTAINER_ROWS]
        ),  # up to how far
        st.sampled_from([1, 2, 15, 1000]),  # every so many-th
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(PIECES, st.booleans(), st.booleans())
def test_bitmaps_of_every_container_agree(pieces: list[tuple[int, int, int]], flip: bool, runs: bool) -> None:
    """Lists, bits and runs, dense and sparse, with empty containers between, and the last one cut."""
    bitmap = BitMap()
    for first, length, step in pieces:
        bitmap |= BitMap(range(first, min(first + length, SIZE), step))
    if flip:
        bitmap = bitmap.flip(0, SIZE)
    if runs:
        bitmap.run_optimize()
    assert_all_ways_agree(bitmap, SIZE)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 65, LISTED_MAX, CONTAINER_ROWS, CONTAINER_ROWS + 1])
def test_bitmaps_of_every_size_agree(size: int) -> None:
    """None, one, every other and all of the rows, at sizes beside the borders of bytes and containers."""
    for step in (0, size, 2, 1):
        assert_all_ways_agree(BitMap(range(0, size, step)) if step else BitMap(), size)
