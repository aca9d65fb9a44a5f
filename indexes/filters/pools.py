"""Values numbered as they come: where the growing filter index and the builder keep each value once.

A pool gives every value a code, counted up from 0. With `remembered_max` it knows only so many values at a time:
when that many are known it forgets them all, and one that comes again gets a second code. So an unbounded number of
distinct values costs their bytes in arrays and no Python objects; whoever seals compares the values themselves.

One thread adds. Any thread may read codes it got from a row that was complete before.
"""

from __future__ import annotations

import itertools
import sys
import threading
from array import array
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.filters.dates import instant_of
from indexes.filters.grammar import ORDERINGS
from indexes.filters.values import Instants, Numbers, Texts, Values, encoded, narrow, split
from indexes.model import Scalar

OBJECT_BYTES = (
    150  # of a remembered value: its Python object, its code and its place in the dictionary, about
)


class Pool(Protocol):
    """What columns need of a pool; `find` and `satisfying` only of one that forgets nothing."""

    @property
    def bytes(self) -> int: ...
    def add(self, value: Scalar) -> int:
        """The value's code."""
        ...

    def find(self, value: Scalar) -> int | None:
        """The code of a value that was added, None for any other."""
        ...

    def satisfying(self, ordering: str, bound: Scalar) -> NDArray[np.bool_]:
        """For each code, whether its value is gt, gte, lt or lte the bound, or has it as its prefix."""
        ...

    def values(self) -> Values:
        """A copy of the values, in order of codes."""
        ...


class TextPool:
    """Texts, each once: UTF-8 end to end."""

    def __init__(self, remembered_max: int = sys.maxsize) -> None:
        self._remembered_max = remembered_max
        self._codes: dict[str, int] = {}
        self._block = bytearray()
        self._offsets = array("q", [0])
        self._instants = array(
            "q"
        )  # of the first codes: as many as there were when dates were last asked for
        self._dating = threading.Lock()

    @property
    def bytes(self) -> int:
        numbers = len(self._offsets) + len(self._instants)
        return len(self._block) + 8 * numbers + OBJECT_BYTES * len(self._codes)

    def add(self, value: Scalar) -> int:
        text = str(value)
        code = self._codes.get(text)
        if code is None:
            if len(self._codes) >= self._remembered_max:
                self._codes.clear()
            self._block += encoded(text)
            self._offsets.append(len(self._block))
            # Last, so that whoever finds the code also finds the text.
            code = self._codes[text] = len(self._offsets) - 2
        return code

    def find(self, value: Scalar) -> int | None:
        return self._codes.get(str(value))

    def satisfying(self, ordering: str, bound: Scalar) -> NDArray[np.bool_]:
        holds: Callable[[Any, Any], bool] = str.startswith if ordering == "prefix" else ORDERINGS[ordering]
        codes = self._codes.copy()  # in one step: the writer may add meanwhile
        return np.fromiter((holds(text, bound) for text in codes), bool, len(codes))

    def instants(self) -> Instants:
        """For each code the instant its text means, or NO_DATE. A text is parsed once."""
        with self._dating:
            codes = self._codes.copy()
            self._instants.extend(map(instant_of, itertools.islice(codes, len(self._instants), None)))
            return np.array(self._instants, np.int64)

    def values(self) -> Texts:
        offsets = np.frombuffer(self._offsets.tobytes(), np.int64)
        return Texts(np.frombuffer(bytes(self._block), np.uint8), narrow(offsets))


class NumberPool:
    """Numbers, each once, as key and residue (see Numbers); 1, 1.0 and True share a code."""

    def __init__(self, remembered_max: int = sys.maxsize) -> None:
        self._remembered_max = remembered_max
        self._codes: dict[Scalar, int] = {}
        self._keys = array("d")
        self._residues = array("h")

    @property
    def bytes(self) -> int:
        return 10 * len(self._keys) + OBJECT_BYTES * len(self._codes)

    def add(self, value: Scalar) -> int:
        code = self._codes.get(value)
        if code is None:
            if len(self._codes) >= self._remembered_max:
                self._codes.clear()
            key, residue = split(value)
            self._residues.append(residue)
            self._keys.append(key)
            code = self._codes[value] = len(self._keys) - 1
        return code

    def find(self, value: Scalar) -> int | None:
        return self._codes.get(value)

    def satisfying(self, ordering: str, bound: Scalar) -> NDArray[np.bool_]:
        key, residue = split(bound)
        numbers = self.values()
        tied = numbers.keys == key
        below = (numbers.keys < key) | tied & (numbers.full_residues() < residue)
        equal = tied & (numbers.full_residues() == residue)
        found = {"lt": below, "lte": below | equal, "gt": ~(below | equal), "gte": ~below}[ordering]
        return np.asarray(found, bool)

    def values(self) -> Numbers:
        keys = np.frombuffer(self._keys.tobytes(), np.float64)
        residues = np.frombuffer(self._residues.tobytes(), np.int16)[: len(keys)]
        return Numbers(keys, residues if residues.any() else residues[:0])
