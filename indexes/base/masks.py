"""Packed masks of the rows of a part that a search may return: uint8, little-endian bits, as faiss expects.

Bits past the last row are always zero, so whole bytes can be counted and combined.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Rows

Bits = NDArray[np.uint8]
Flags = NDArray[np.bool_]


def pack_flags(flags: Flags) -> Bits:
    """The mask for one boolean per row."""
    return np.packbits(flags, bitorder="little")


def flags_of(bits: Bits, size: int) -> Flags:
    """One boolean per row."""
    return np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)


def rows_in(bits: Bits, size: int) -> Rows:
    """The set rows, ascending."""
    return np.flatnonzero(flags_of(bits, size))


def bits_at(bits: Bits, rows: Rows) -> Flags:
    """Whether each of these rows is set."""
    set_: Flags = ((bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1).astype(np.bool_)
    return set_


def count_bits(bits: Bits) -> int:
    """Number of set rows."""
    words = len(bits) // 8 * 8  # eight bytes at a time: a search may count several masks
    counted = np.bitwise_count(bits[:words].view(np.uint64)).sum(dtype=np.int64)
    return int(counted + np.bitwise_count(bits[words:]).sum(dtype=np.int64))


def first_bits(bits: Bits, size: int) -> Bits:
    """The mask of only the first `size` rows."""
    first = bits[: (size + 7) // 8].copy()
    if size % 8:
        first[-1] &= (1 << (size % 8)) - 1
    return first


def clear_rows(bits: Bits, rows: Rows) -> None:
    """Unset these rows, in place."""
    np.bitwise_and.at(bits, rows >> 3, ~(np.uint8(1) << (rows & 7).astype(np.uint8)))
