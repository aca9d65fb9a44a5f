"""A store in this process: least recently used goes first, bounded by bytes rather than entries.

Counting entries would treat a thousand answers of ten kilobytes like a thousand of one hundred bytes; bytes are what
the machine runs out of.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from retrieval.cache.store import StoreCounts

ENTRY_OVERHEAD_BYTES: Final = 320
"""What CPython adds to one entry: two bytes headers (66), the tuple (64), the expiry float (24), and the node
and hash slots of an OrderedDict (about 150). Rounded up, because the bound is a promise."""

ENTRY_SHARE_MAX: Final = 8
"""No entry takes more than one part in this many, or one big answer would evict all the others."""


class _Entry(NamedTuple):
    value: bytes
    expires_s: float


class MemoryStore:
    """Holds at most `bytes_max` bytes of keys, values and overhead. Every operation is O(1), a put amortized.

    `clock` is monotonic and counts seconds. Not thread-safe: all calls come from one event loop.
    """

    def __init__(self, bytes_max: int, clock: Callable[[], float]) -> None:
        if bytes_max < 0:
            raise ValueError(f"bytes_max must not be negative, got {bytes_max}")
        self.counts = StoreCounts()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # least recently used first

    async def get(self, key: bytes) -> bytes | None:
        entry = self._entries.get(key)
        if entry is not None and self._clock() >= entry.expires_s:
            self._forget(key)
            entry = None
        if entry is None:
            self.counts.misses += 1
            return None
        self._entries.move_to_end(key)
        self.counts.hits += 1
        return entry.value

    async def put(self, key: bytes, value: bytes, ttl_s: int) -> None:
        # The old value is outdated even if the new one turns out to be too big to cache.
        self._forget(key)
        if ttl_s < 1:
            return
        size = entry_bytes(key, value)
        if size * ENTRY_SHARE_MAX > self._bytes_max:
            self.counts.dropped += 1
            return
        while self._bytes + size > self._bytes_max:
            oldest = next(iter(self._entries))
            self._forget(oldest)
            self.counts.evicted += 1
        self._entries[key] = _Entry(value, self._clock() + ttl_s)
        self._bytes += size

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    async def close(self) -> None:
        self.clear()
        self._bytes_max = 0  # a late put must not fill it again

    @property
    def health(self) -> str:
        return f"ok: {len(self._entries)} entries, {self._bytes} of {self._bytes_max} bytes"

    @property
    def up(self) -> bool:
        return True

    @property
    def bytes_used(self) -> int:
        """Keys, values and overhead held, never above `bytes_max`. Expired entries count until a get finds them."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def _forget(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry_bytes(key, entry.value)


def entry_bytes(key: bytes, value: bytes) -> int:
    """Return what one entry counts toward the bound."""
    return len(key) + len(value) + ENTRY_OVERHEAD_BYTES
