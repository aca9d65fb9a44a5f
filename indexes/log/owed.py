"""What was deleted or overwritten, and may still lie in some file of its collection."""

from __future__ import annotations

import msgspec

OWED = "owed"  # where the log keeps it, in `meta`


class Owed(msgspec.Struct, frozen=True):
    """How much content waits to be erased, and since when: the time at which the oldest of it went. None: nothing."""

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
        """What is left when all that was owed at `began_ms` is erased."""
        left = self.bytes - erased.bytes
        return Owed(left, began_ms) if left > 0 else Owed()
