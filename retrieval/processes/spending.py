"""Whose search is next in a search process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Keyed(Protocol):
    @property
    def key(self) -> str: ...


K = TypeVar("K", bound=Keyed)


class Spending:
    """What the searches of each access key have spent, to search for the one that has spent least: cheap searches of
    one key come before dear ones of another. A key that pauses earns no credit (start-time fair queueing)."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}  # seconds, by key; a returning key starts at `_reached`
        self._reached = 0.0  # what the key had spent whose search began last

    def arrive(self, key: str) -> None:
        self._spent[key] = max(self._spent.get(key, 0.0), self._reached)

    def next(self, waiting: Iterable[K]) -> K:
        """Return the search to begin now: the oldest of the key that has spent least."""
        search = min(waiting, key=lambda one: self._spent[one.key])
        self._reached = max(self._reached, self._spent[search.key])
        return search

    def add(self, key: str, seconds: float) -> None:
        self._spent[key] += seconds
