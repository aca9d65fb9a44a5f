"""Divides a bounded number of places, or bytes, among access keys.

A key may hold at most three times what it leaves free. Alone, it gets three quarters of the total; of n keys that want
more than there is, each gets 3/(3n + 1). A new key finds room at once, without anything being taken from the others
(the dynamic thresholds by which switches share their buffers: Choudhury and Hahne, 1998).
"""

from __future__ import annotations

TIMES_FREE = 3


class Shares:
    """Use from one event loop. The key None stands for all callers of a service without keys; it may take
    everything."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: dict[str | None, int] = {}  # only keys that hold any

    @property
    def keys(self) -> int:
        """How many keys hold any."""
        return len(self._held)

    def held(self, key: str | None) -> int:
        return self._held.get(key, 0)

    def has_room(self, size: int = 1) -> bool:
        """Whether `size` more fits at all."""
        return self.total + size <= self.most

    def allows(self, key: str | None, size: int = 1) -> bool:
        """Whether `size` more is within the key's share. A key that holds nothing may take whatever room there is."""
        held, free = self.held(key), self.most - self.total - size
        return key is None or not held or held + size <= TIMES_FREE * free

    def take(self, key: str | None, size: int = 1) -> None:
        """Take `size` without checking for room: callers check first."""
        self._set(key, size)

    def give(self, key: str | None, size: int = 1) -> None:
        self._set(key, -size)

    def _set(self, key: str | None, more: int) -> None:
        self.total += more
        if held := self.held(key) + more:
            self._held[key] = held
        else:
            self._held.pop(key, None)
