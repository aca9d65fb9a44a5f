"""Packed masks over the rows of a part: which rows a search may return. uint8, little-endian bits, as faiss reads them.

Bits past the last row are never set, so whole bytes can be counted and combined.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from indexes.model import Rows

Bits = NDArray[np.uint8]
Flags = NDArray[np.bool_]


def pack_flags(flags: Flags) -> Bits:
    """The mask of one boolean a row."""
    return np.packbits(flags, bitorder="little")


def flags_of(bits: Bits, size: int) -> Flags:
    """One boolean a row."""
    return np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)


def rows_in(bits: Bits, size: int) -> Rows:
    """The rows set, ascending."""
    return np.flatnonzero(flags_of(bits, size))


def bits_at(bits: Bits, rows: Rows) -> Flags:
    """Whether each of these rows is set."""
    set_: Flags = ((bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1).astype(np.bool_)
    return set_


def count_bits(bits: Bits) -> int:
    """Number of rows set."""
    words = len(bits) // 8 * 8  # eight bytes at once: a search may count several masks
    counted = np.bitwise_count(bits[:words].view(np.uint64)).sum(dtype=np.int64)
    return int(counted + np.bitwise_count(bits[words:]).sum(dtype=np.int64))


def first_bits(bits: Bits, size: int) -> Bits:
    """The mask of the first `size` rows alone."""
    first = bits[: (size + 7) // 8].copy()
    if size % 8:
        first[-1] &= (1 << (size % 8)) - 1
    return first


def clear_rows(bits: Bits, rows: Rows) -> None:
    """Unset these rows, in place."""
    np.bitwise_and.at(bits, rows >> 3, ~(np.uint8(1) << (rows & 7).astype(np.uint8)))
