"""Values of metadata as arrays: texts and numbers, compared exactly and without a Python object for each.

A column of the sealed filter index holds its distinct values sorted. `lower` and `upper` then find by bisection the
slice that a comparison means. The other methods serve building and merging, where values come unsorted and repeated.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexes.arrays import changes, ends_of
from indexes.filters.dates import NO_DATE, instant_of
from indexes.model import Scalar

Positions = NDArray[np.int64]
Instants = NDArray[np.int64]

COMPARE = {"gt": np.greater, "gte": np.greater_equal, "lt": np.less, "lte": np.less_equal}
CHUNK = 7  # bytes of a text that are compared at once; the eighth counts them
CHUNK_MASKS = np.array([((1 << 8 * n) - 1) << (64 - 8 * n) for n in range(CHUNK + 1)], np.uint64)
COPY_BYTES = 1 << 20  # of texts copied at a time; the index of each byte takes eight


class Texts:
    """Texts in UTF-8 in one block: the text at i is block[offsets[i]:offsets[i + 1]].

    UTF-8 sorts by bytes as strings sort by code points, so the order is that of Python's strings.
    """

    def __init__(self, block: NDArray[np.uint8], offsets: NDArray[np.unsignedinteger]) -> None:
        self.block = block
        self.offsets = offsets
        # Bisection reads one text after another, which memory views do about twice as fast as arrays.
        self._bytes, self._bounds = memoryview(block.data), memoryview(offsets.data)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: int) -> bytes:
        return bytes(self._bytes[self._bounds[at] : self._bounds[at + 1]])

    def value_at(self, at: int) -> str:
        return self[at].decode("utf-8", "surrogatepass")

    def lower(self, value: Scalar) -> int:
        """In sorted texts: the position of the first that is not below the value."""
        return bisect.bisect_left(self, encoded(value))

    def upper(self, value: Scalar) -> int:
        """In sorted texts: the position of the first above the value."""
        return bisect.bisect_right(self, encoded(value))

    def prefixed(self, prefix: Scalar) -> tuple[int, int]:
        """In sorted texts: the slice of those that begin with the prefix."""
        start = encoded(prefix)
        return self.lower(prefix), bisect.bisect_right(self, start, key=lambda text: text[: len(start)])

    def equal(self, value: Scalar) -> tuple[int, int]:
        """In sorted, distinct texts: the slice of those equal to the value, of one or none."""
        at = self.lower(value)
        return at, at + (at < len(self) and self[at] == encoded(value))

    def lengths(self) -> Positions:
        offsets = self.offsets.astype(np.int64)
        return offsets[1:] - offsets[:-1]

    def take(self, positions: Positions) -> Texts:
        """The texts at these positions, in this order."""
        starts = self.offsets[:-1][positions].astype(np.int64)
        offsets = ends_of(self.lengths()[positions])
        block = np.empty(int(offsets[-1]), np.uint8)
        cuts = np.searchsorted(offsets, np.arange(0, max(len(block), 1), COPY_BYTES))
        for begin, end in zip(cuts, [*cuts[1:], len(positions)], strict=True):
            low, high = int(offsets[begin]), int(offsets[end])
            shift = np.repeat(starts[begin:end] - offsets[begin:end], np.diff(offsets[begin : end + 1]))
            block[low:high] = self.block[shift + np.arange(low, high)]
        return Texts(block, narrow(offsets))

    def ranked(self) -> tuple[Positions, Positions]:
        """Where each distinct text is first found, the texts ascending; and each text's place among the distinct.

        Sorts by seven bytes at a time, and then only texts that were equal so far, all in numpy. A chunk carries
        in its lowest byte how many bytes it has, so that a text sorts before its continuations, zeros included.
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
        distinct = heads == np.arange(count)
        ranks = np.empty(count, np.int64)
        ranks[order] = np.cumsum(distinct) - 1
        return order[distinct], ranks

    @staticmethod
    def joined(parts: Sequence[Texts]) -> Texts:
        """All texts of the parts, end to end."""
        blocks = [part.block[int(part.offsets[0]) : int(part.offsets[-1])] for part in parts]
        lengths = [part.lengths() for part in parts]
        return Texts(
            np.concatenate([np.empty(0, np.uint8), *blocks]),
            narrow(ends_of(np.concatenate([np.empty(0, np.int64), *lengths]))),
        )


class Numbers:
    """Integers of 64 bits and floats in one exact order: a float64 key, and what rounding to it left out.

    A float is its own key with residue 0. An integer's key is the float nearest to it, and its residue, at most 512,
    what must be added to get the integer back. Rounding keeps order, so ordering by key and then by residue is the
    order of the numbers, and equal pairs are equal numbers: 2**53 + 1 is (2.0**53, 1). Where all residues are zero,
    as in most columns, the array of residues is empty. Booleans are stored as 0 and 1, in columns of their own.
    """

    def __init__(self, keys: NDArray[np.float64], residues: NDArray[np.int16]) -> None:
        self.keys = keys
        self.residues = residues

    def __len__(self) -> int:
        return len(self.keys)

    def value_at(self, at: int) -> int | float:
        key = float(self.keys[at])
        residue = int(self.residues[at]) if len(self.residues) else 0
        return int(key) + residue if key.is_integer() else key

    def lower(self, value: Scalar) -> int:
        """In sorted numbers: the position of the first that is not below the value."""
        key, residue = split(value)
        first, tied = self._tied(key)
        return first + bisect.bisect_left(tied, residue)

    def upper(self, value: Scalar) -> int:
        """In sorted numbers: the position of the first above the value."""
        key, residue = split(value)
        first, tied = self._tied(key)
        return first + bisect.bisect_right(tied, residue)

    def equal(self, value: Scalar) -> tuple[int, int]:
        """In sorted, distinct numbers: the slice of those equal to the value, of one or none."""
        key, residue = split(value)
        first, tied = self._tied(key)
        return first + bisect.bisect_left(tied, residue), first + bisect.bisect_right(tied, residue)

    def _tied(self, key: float) -> tuple[int, list[int]]:
        """The first position with this key or a larger one, and the residues of all with this key."""
        first, end = int(np.searchsorted(self.keys, key)), int(np.searchsorted(self.keys, key, side="right"))
        return first, self.residues[first:end].tolist() if len(self.residues) else [0] * (end - first)

    def take(self, positions: Positions) -> Numbers:
        """The numbers at these positions, in this order."""
        residues = self.residues[positions] if len(self.residues) else self.residues
        return Numbers(self.keys[positions], residues if residues.any() else residues[:0])

    def ranked(self) -> tuple[Positions, Positions]:
        """Where each distinct number is found, the numbers ascending; and each one's place among the distinct."""
        if len(self.residues):
            order = np.lexsort((self.residues, self.keys))
            distinct = changes(self.keys[order]) | changes(self.residues[order])
        else:
            order = np.argsort(self.keys, kind="stable")
            distinct = changes(self.keys[order])
        ranks = np.empty(len(self), np.int64)
        ranks[order] = np.cumsum(distinct) - 1
        return order[distinct], ranks

    def full_residues(self) -> NDArray[np.int16]:
        """The residues, also where all are zero."""
        return self.residues if len(self.residues) else np.zeros(len(self), np.int16)

    @staticmethod
    def joined(parts: Sequence[Numbers]) -> Numbers:
        """All numbers of the parts, end to end."""
        exact = any(len(part.residues) for part in parts)
        residues = [part.full_residues() for part in parts] if exact else []
        return Numbers(
            np.concatenate([np.empty(0, np.float64), *(part.keys for part in parts)]),
            np.concatenate([np.empty(0, np.int16), *residues]),
        )


Values = Texts | Numbers


def joined(parts: Sequence[Values]) -> Values:
    """All values of one or more parts of one class, end to end."""
    if isinstance(parts[0], Texts):
        return Texts.joined([part for part in parts if isinstance(part, Texts)])
    return Numbers.joined([part for part in parts if isinstance(part, Numbers)])


def encoded(value: Scalar) -> bytes:
    """UTF-8. Half a surrogate pair is kept as it is: it matches itself and stops nobody's search."""
    return str(value).encode("utf-8", "surrogatepass")


def split(value: Scalar) -> tuple[float, int]:
    """Key and residue of a number (see Numbers)."""
    key = float(value) + 0.0  # there is one zero
    return key, value - int(key) if isinstance(value, int) else 0


def narrow(offsets: Positions) -> NDArray[np.unsignedinteger]:
    """In four bytes each, if the last and largest fits."""
    return offsets.astype(np.uint32 if offsets[-1] < 2**32 else np.uint64)


def instants_of(texts: Texts) -> Instants:
    """The instant of each text. Only those with hyphens in the right places cost Python's time."""
    found = np.full(len(texts), NO_DATE)
    long = np.flatnonzero(texts.lengths() >= len("2026-01-05"))
    starts = texts.offsets[long].astype(np.int64)
    dated = (texts.block[starts + 4] == ord("-")) & (texts.block[starts + 7] == ord("-"))
    for at in long[dated].tolist():
        found[at] = instant_of(texts.value_at(at))
    return found


def satisfying(instants: Instants, ordering: str, bound: int) -> NDArray[np.bool_]:
    """Which of the instants are gt, gte, lt or lte the bound. NO_DATE never is."""
    found: NDArray[np.bool_] = (instants != NO_DATE) & COMPARE[ordering](instants, bound)
    return found
