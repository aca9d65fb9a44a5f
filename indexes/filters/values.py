"""Values of metadata as arrays: texts and numbers, compared exactly and without a Python object for each.

A column of the sealed filter index holds its distinct values sorted, and bisection finds the slice that satisfies a
comparison. Building and merging accept unsorted and repeated values.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from indexes.base.arrays import changes, ends_of, ranges
from indexes.base.model import Scalar
from indexes.filters.dates import NO_DATE, YEAR_CHARS, instant_of
from indexes.filters.grammar import fits

Positions = NDArray[np.int64]
Instants = NDArray[np.int64]

CHUNK = 7  # bytes of a text that are compared at once; the eighth counts them
CHUNK_MASKS = np.array([((1 << 8 * n) - 1) << (64 - 8 * n) for n in range(CHUNK + 1)], np.uint64)
COPY_BYTES = 1 << 20  # of texts copied at a time; the index of each byte takes eight


class TextBlock:
    """Texts in UTF-8 in one block: the text at i is block[offsets[i]:offsets[i + 1]].

    UTF-8 sorts by bytes as strings sort by code points, so the order is that of Python's strings.
    """

    def __init__(self, block: NDArray[np.uint8], offsets: NDArray[np.unsignedinteger]) -> None:
        self.block = block
        self.offsets = offsets
        # Bisection reads one text after another, which memory views do about twice as fast as arrays.
        self._bytes, self._bounds = memoryview(block.data), memoryview(offsets.data)

    @staticmethod
    def of(values: Iterable[Scalar]) -> TextBlock:
        texts = list(map(TextBlock.comparable, values))
        return TextBlock(
            np.frombuffer(b"".join(texts), np.uint8),
            narrow(ends_of(np.array(list(map(len, texts)), np.int64))),
        )

    @staticmethod
    def comparable(value: Scalar) -> bytes:
        """The text in UTF-8. Lone surrogates are kept: they match themselves and do not fail a search."""
        return str(value).encode("utf-8", "surrogatepass")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: int) -> bytes:
        return bytes(self._bytes[self._bounds[at] : self._bounds[at + 1]])

    def value_at(self, at: int) -> str:
        return self[at].decode("utf-8", "surrogatepass")

    def lengths(self) -> Positions:
        offsets = self.offsets.astype(np.int64)
        return offsets[1:] - offsets[:-1]

    def slice_of(self, comparison: str, value: Scalar) -> tuple[int, int]:
        """Range of the sorted, distinct texts for which the comparison with `value` holds."""
        wanted = self.comparable(value)
        low = bisect.bisect_left(self, wanted)
        if comparison == "prefix":
            return low, bisect.bisect_right(self, wanted, low, key=lambda text: text[: len(wanted)])
        return _slice(comparison, low, low + (low < len(self) and self[low] == wanted), len(self))

    def take(self, positions: Positions) -> TextBlock:
        """The texts at these positions, in this order."""
        starts = self.offsets[:-1][positions].astype(np.int64)
        lengths = self.lengths()[positions]
        offsets = ends_of(lengths)
        block = np.empty(int(offsets[-1]), np.uint8)
        cuts = np.searchsorted(offsets, np.arange(0, max(len(block), 1), COPY_BYTES))
        for begin, end in zip(cuts, [*cuts[1:], len(positions)], strict=True):
            block[offsets[begin] : offsets[end]] = self.block[ranges(starts[begin:end], lengths[begin:end])]
        return TextBlock(block, narrow(offsets))

    def order(self) -> tuple[Positions, NDArray[np.bool_]]:
        """Positions by ascending text, and for each in this order, whether its text differs from the previous one.

        Sorts by seven bytes at a time, and then only texts that were equal so far, all in numpy. A chunk
        carries in its lowest byte how many bytes it has, so that a text sorts before its continuations, zeros included.
        """
        count = len(self)
        starts, lengths = self.offsets[:-1].astype(np.int64), self.lengths()
        padded = np.concatenate([self.block, np.zeros(8, np.uint8)])
        windows: NDArray[np.uint64] = np.ndarray(len(self.block) + 1, ">u8", padded, strides=(1,))
        order = np.arange(count)
        heads = np.zeros(count, np.int64)  # for each place in the order, the first place with an equal prefix
        active = np.arange(count)  # places not settled yet
        depth = 0
        while len(active):
            texts, groups = order[active], heads[active]
            left = np.minimum(lengths[texts] - depth, CHUNK)
            chunks = windows[starts[texts] + depth].astype(np.uint64) & CHUNK_MASKS[left]
            chunks |= left.astype(np.uint64)
            by = np.lexsort((chunks, groups))
            order[active], chunks = texts[by], chunks[by]
            fresh = changes(groups) | changes(chunks)
            heads[active] = active[fresh][np.cumsum(fresh) - 1]
            alone = fresh & np.append(fresh[1:], True)
            active = active[~alone & (chunks & np.uint64(0xFF) == CHUNK)]
            depth += CHUNK
        return order, heads == np.arange(count)

    @staticmethod
    def joined(columns: Iterable[Values]) -> TextBlock:
        """The texts of all columns of texts, concatenated."""
        parts = [column for column in columns if isinstance(column, TextBlock)]
        blocks = [part.block[int(part.offsets[0]) : int(part.offsets[-1])] for part in parts]
        lengths = [part.lengths() for part in parts]
        return TextBlock(
            np.concatenate([np.empty(0, np.uint8), *blocks]),
            narrow(ends_of(np.concatenate([np.empty(0, np.int64), *lengths]))),
        )

    def begin_with_years(self, low: int, high: int) -> NDArray[np.bool_]:
        """Which of the texts from `low` and before `high` begin with a year, four digits."""
        long = low + np.flatnonzero(np.diff(self.offsets[low : high + 1].astype(np.int64)) >= YEAR_CHARS)
        heads = self.block[self.offsets[long].astype(np.int64)[:, None] + np.arange(YEAR_CHARS)]
        found = np.zeros(high - low, bool)
        found[long - low] = ((heads >= ord("0")) & (heads <= ord("9"))).all(axis=1)
        return found

    def instants(self) -> Instants:
        """The instant of each text, or NO_DATE. Only texts with hyphens in the right places are parsed in Python."""
        found = np.full(len(self), NO_DATE)
        long = np.flatnonzero(self.lengths() >= len("2026-01-05"))
        starts = self.offsets[long].astype(np.int64)
        dated = (self.block[starts + 4] == ord("-")) & (self.block[starts + 7] == ord("-"))
        for at in long[dated].tolist():
            found[at] = instant_of(self.value_at(at))
        return found


class Numbers:
    """Integers of 64 bits and floats in one exact order: a float64 key, and the residue of rounding to it.

    A float is its own key with residue 0. An integer's key is the nearest float, and its residue, at most 512, is what
    must be added to get the integer back. Rounding keeps order, so ordering by key and then by residue is the
    order of the numbers, and equal pairs are equal numbers: 2**53 + 1 is (2.0**53, 1). Where all residues are zero,
    as in most columns, the array of residues is empty. Booleans are stored as 0 and 1, in columns of their own.
    """

    def __init__(self, keys: NDArray[np.float64], residues: NDArray[np.int16]) -> None:
        self.keys = keys
        self.residues = residues
        self._keys = memoryview(keys.data)  # see Texts

    @staticmethod
    def of(values: Iterable[Scalar]) -> Numbers:
        pairs = list(map(Numbers.comparable, values))
        keys = np.array([key for key, _ in pairs], np.float64)
        return Numbers.trimmed(keys, np.array([residue for _, residue in pairs], np.int16))

    @staticmethod
    def trimmed(keys: NDArray[np.float64], residues: NDArray[np.int16]) -> Numbers:
        """Numbers without the residues if all are zero."""
        return Numbers(keys, residues if residues.any() else residues[:0])

    @staticmethod
    def comparable(value: Scalar) -> tuple[float, int]:
        """Key and residue."""
        key = float(value) + 0.0  # there is one zero
        return key, value - int(key) if isinstance(value, int) else 0

    def __len__(self) -> int:
        return len(self.keys)

    def value_at(self, at: int) -> int | float:
        key = float(self.keys[at])
        residue = int(self.residues[at]) if len(self.residues) else 0
        whole = int(key) + residue if key.is_integer() else None
        return whole if whole is not None and fits(whole) else key  # what does not fit came as a float

    def slice_of(self, comparison: str, value: Scalar) -> tuple[int, int]:
        """Range of the sorted, distinct numbers for which the comparison with `value` holds."""
        key, residue = self.comparable(value)
        low = bisect.bisect_left(self._keys, key)
        high = bisect.bisect_right(self._keys, key, low)
        tied = self.residues[low:high] if len(self.residues) else [0] * (high - low)
        below, upto = bisect.bisect_left(tied, residue), bisect.bisect_right(tied, residue)
        return _slice(comparison, low + below, low + upto, len(self))

    def take(self, positions: Positions) -> Numbers:
        """The numbers at these positions, in this order."""
        residues = self.residues[positions] if len(self.residues) else self.residues
        return Numbers.trimmed(self.keys[positions], residues)

    def order(self) -> tuple[Positions, NDArray[np.bool_]]:
        """Positions by ascending number, and for each in this order, whether its number differs from the previous
        one."""
        if not len(self.residues):
            order = np.argsort(self.keys, kind="stable")
            return order, changes(self.keys[order])
        order = np.lexsort((self.residues, self.keys))
        return order, changes(self.keys[order]) | changes(self.residues[order])

    @staticmethod
    def joined(columns: Iterable[Values]) -> Numbers:
        """The numbers of all columns of numbers, concatenated."""
        parts = [column for column in columns if isinstance(column, Numbers)]
        residues = [part.residues if len(part.residues) else np.zeros(len(part), np.int16) for part in parts]
        return Numbers.trimmed(
            np.concatenate([np.empty(0, np.float64), *(part.keys for part in parts)]),
            np.concatenate([np.empty(0, np.int16), *residues]),
        )


Values = TextBlock | Numbers


def rank_values(values: Values) -> tuple[Positions, Positions]:
    """Position of each distinct value, in ascending order of the values, and each value's rank among them."""
    order, distinct = values.order()
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.cumsum(distinct) - 1
    return order[distinct], ranks


def _slice(comparison: str, low: int, high: int, size: int) -> tuple[int, int]:
    """Range of `size` sorted values that satisfy a comparison with a value equal to those from `low` to `high`."""
    begin = {"lt": 0, "lte": 0, "gt": high}.get(comparison, low)
    return begin, {"lt": low, "gt": size, "gte": size}.get(comparison, high)


def narrow(offsets: Positions) -> NDArray[np.unsignedinteger]:
    """Narrow offsets to four bytes each if the last, which is the largest, fits."""
    return offsets.astype(np.uint32 if offsets[-1] < 2**32 else np.uint64)
