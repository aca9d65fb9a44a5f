"""How much one answer may still hold."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from indexes.errors import TooLarge
from indexes.model import StoredPassage

HIT_BYTES = 256  # of its numbers and names


class Room:
    """Bytes for the hits of one answer: those of a search, or of all searches of a batch. Use from any thread."""

    def __init__(
        self, bytes_max: int, *, param: str = "k", hold: Callable[[int], None] = lambda size: None
    ) -> None:
        """`hold` is told what is taken, and may refuse it for want of memory."""
        self._bytes_max = bytes_max
        self._param = param
        self._hold = hold
        self._lock = threading.Lock()
        self.taken = 0

    def take(self, size: int) -> None:
        """Raises TooLarge, naming what to ask less of, or what `hold` raises, and takes nothing then."""
        with self._lock:
            if self.taken + size <= self._bytes_max:
                self._hold(size)
                self.taken += size
                return
        raise TooLarge(
            f"the hits would hold more than {self._bytes_max} bytes together; ask for fewer with a smaller k"
            + (", or in several requests" if self._param != "k" else ""),
            param=self._param,
        )


def size_of(passage: StoredPassage) -> int:
    """About how many bytes a hit of this passage takes as JSON."""
    metadata = len(msgspec.json.encode(passage.metadata)) if passage.metadata else 0
    return HIT_BYTES + len(passage.text) + len(passage.title) + len(passage.heading) + metadata
