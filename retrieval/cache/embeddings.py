"""Vectors of query texts: the same question asked twice is embedded once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

TEXT_CHARS_MAX: Final = 2048
"""Longer texts are not kept: pages are hardly asked twice, and a bound by number needs small entries."""


class EmbeddingCache:
    """The `entries_max` most recently used vectors, by model fingerprint and exact text. 0 keeps nothing.

    Synchronous and never raises after construction. Not thread-safe: for the event loop. Memory is at most
    about `entries_max` x (4 bytes a dimension + 4 bytes a character of text + 500 bytes). `hits` and `misses`
    count the gets.
    """

    def __init__(self, entries_max: int) -> None:
        if entries_max < 0:
            raise ValueError(f"entries_max must not be negative, got {entries_max}")
        self.hits = 0
        self.misses = 0
        self._entries_max = entries_max
        self._vectors: OrderedDict[tuple[str, str], Vector] = OrderedDict()  # least recently used first

    def get(self, fingerprint: str, text: str) -> Vector | None:
        """The vector put for this model and text, read-only, or None."""
        key = (fingerprint, text)
        vector = self._vectors.get(key)
        if vector is None:
            self.misses += 1
            return None
        self._vectors.move_to_end(key)
        self.hits += 1
        return vector

    def put(self, fingerprint: str, text: str, vector: Vector) -> Vector:
        """Keep a copy of the vector; returns it, read-only, so that first and later askers hold the same."""
        kept = _frozen(vector)
        if len(text) > TEXT_CHARS_MAX or self._entries_max == 0:
            return kept
        key = (fingerprint, text)
        self._vectors[key] = kept
        self._vectors.move_to_end(key)
        if len(self._vectors) > self._entries_max:
            self._vectors.popitem(last=False)
        return kept

    def clear(self) -> None:
        self._vectors.clear()

    def __len__(self) -> int:
        return len(self._vectors)


def _frozen(vector: Vector) -> Vector:
    # Over immutable bytes, and not with setflags: an array that owns its memory can be made writeable again
    # by anybody.
    single = np.asarray(vector, dtype=np.float32)
    return np.frombuffer(single.tobytes(), dtype=np.float32).reshape(single.shape)
