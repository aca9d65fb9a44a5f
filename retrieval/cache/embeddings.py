"""Vectors of query texts: a question asked twice is embedded once."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retrieval.cache.store import Store, key_of
from retrieval.wire.vectors import FLOAT32

Vector = NDArray[np.float32]

TEXT_CHARS_MAX: Final = 2048
"""Longer texts are not cached: whole pages are rarely asked twice."""
ENTRY_OVERHEAD_BYTES: Final = 500
"""The array, its bytes, the key and the node of the OrderedDict."""


class EmbeddingCache:
    """The most recently used vectors in at most `bytes_max`, by model fingerprint and exact text. 0 caches nothing.

    Synchronous, and never raises after construction. Not thread-safe: for the event loop. `hits` and `misses` count
    gets, `evicted` counts vectors dropped for newer ones, `joined` callers that waited for the same text being embedded
    for another.
    """

    def __init__(self, bytes_max: int) -> None:
        if bytes_max < 0:
            raise ValueError(f"bytes_max must not be negative, got {bytes_max}")
        self.hits = 0
        self.misses = 0
        self.evicted = 0
        self.joined = 0
        self.bytes = 0
        self._bytes_max = bytes_max
        self._vectors: OrderedDict[tuple[str, str], Vector] = OrderedDict()  # least recently used first

    def get(self, fingerprint: str, text: str) -> Vector | None:
        """Return the vector put for this model and text, read-only, or None."""
        key = (fingerprint, text)
        vector = self._vectors.get(key)
        if vector is None:
            self.misses += 1
            return None
        self._vectors.move_to_end(key)
        self.hits += 1
        return vector

    def put(self, fingerprint: str, text: str, vector: Vector) -> Vector:
        """Cache a copy of the vector and return it, read-only, so that first and later callers hold the same one."""
        kept, key = _freeze(vector), (fingerprint, text)
        if len(text) > TEXT_CHARS_MAX or entry_bytes(text, kept) > self._bytes_max:
            return kept
        if (before := self._vectors.pop(key, None)) is not None:
            self.bytes -= entry_bytes(text, before)
        self._vectors[key] = kept
        self.bytes += entry_bytes(text, kept)
        while self.bytes > self._bytes_max:
            (_, oldest), vector_ = self._vectors.popitem(last=False)
            self.bytes -= entry_bytes(oldest, vector_)
            self.evicted += 1
        return kept

    def clear(self) -> None:
        self._vectors.clear()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._vectors)


def entry_bytes(text: str, vector: Vector) -> int:
    """Estimate the memory of one entry: up to 4 bytes per character, and ENTRY_OVERHEAD_BYTES for its objects."""
    return vector.nbytes + sys.getsizeof(text) + ENTRY_OVERHEAD_BYTES


class SharedVectors:
    """Query vectors in a store that several services share, for texts that this process has not embedded yet.

    Keyed by fingerprint, by the graph that computed them (`variant`: graphs of one model differ a little), and by exact
    text. Never raises, as its store never does. `hits` and `misses` count gets.
    """

    def __init__(self, store: Store, *, ttl_s: int) -> None:
        self.hits = 0
        self.misses = 0
        self._store = store
        self.ttl_s = ttl_s

    async def get(self, fingerprint: str, variant: str, text: str, *, dimensions: int) -> Vector | None:
        """Return the vector put for this model and text, read-only, or None. One of another length counts as none."""
        stored = await self._store.get(_shared_key(fingerprint, variant, text))
        if stored is None or len(stored) != 4 * dimensions:
            self.misses += 1
            return None
        self.hits += 1
        return np.frombuffer(stored, FLOAT32)

    async def put(self, fingerprint: str, variant: str, text: str, vector: Vector) -> None:
        """Store a vector. Returns before it can be found."""
        key = _shared_key(fingerprint, variant, text)
        await self._store.put(key, vector.astype(FLOAT32).tobytes(), self.ttl_s)


def _shared_key(fingerprint: str, variant: str, text: str) -> bytes:
    return key_of(b"nearline-vector1", fingerprint, variant, text)


def _freeze(vector: Vector) -> Vector:
    # Over immutable bytes, not with setflags: an array that owns its memory can be made writeable again.
    single = np.asarray(vector, dtype=np.float32)
    return np.frombuffer(single.tobytes(), dtype=np.float32).reshape(single.shape)
