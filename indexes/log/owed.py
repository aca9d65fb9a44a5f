"""Content that was deleted or replaced but whose bytes may remain in the collection's files until erased."""

from __future__ import annotations

import msgspec

OWED = "owed"  # its key in the log's `meta` table


class Owed(msgspec.Struct, frozen=True):
    """How many bytes await erasure, and when the oldest were removed (`since_ms` None: nothing is owed)."""

    bytes: int = 0
    since_ms: int | None = None

    @staticmethod
    def read(stored: str) -> Owed:
        return msgspec.json.decode(stored, type=Owed)

    @property
    def stored(self) -> str:
        return msgspec.json.encode(self).decode()

    def plus(self, size: int, now_ms: int) -> Owed:
        return Owed(self.bytes + size, now_ms if self.since_ms is None else self.since_ms)

    def less(self, erased: Owed, began_ms: int) -> Owed:
        """What remains after erasing everything owed at `began_ms`."""
        left = self.bytes - erased.bytes
        return Owed(left, began_ms) if left > 0 else Owed()
