"""Single flight: who asks for what is just being computed waits for it instead of computing it too."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Flight(Generic[T]):
    """One computation that others may wait for. Whoever leads it lands it, or it fails."""

    def __init__(self) -> None:
        self._landed: asyncio.Future[tuple[bool, T | None]] = asyncio.get_running_loop().create_future()

    def land(self, result: T | None) -> None:
        """Give the result to who waits; None if each has to compute its own."""
        if not self._landed.done():
            self._landed.set_result((True, result))

    def fail(self) -> None:
        """Unless it has landed: one of those who wait leads the next."""
        if not self._landed.done():
            self._landed.set_result((False, None))

    async def wait(self) -> tuple[bool, T | None]:
        return await asyncio.shield(self._landed)  # who leaves takes nobody along


class Flights(Generic[T]):
    """The flights under way by key. For one event loop."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, Flight[T]] = {}

    async def joined(self, key: Hashable) -> T | None:
        """What another one is computing under this key; None if nobody is, or it is of no use to others.

        A flight that fails, because its leader left or met an error, is led anew: its followers go on one by one.
        """
        while (flight := self._under_way.get(key)) is not None:
            landed, result = await flight.wait()
            if landed:
                return result
        return None

    @contextmanager
    def leading(self, key: Hashable) -> Iterator[Flight[T]]:
        """Others may wait for what is computed within."""
        flight: Flight[T] = Flight()
        self._under_way[key] = flight
        try:
            yield flight
        finally:
            if self._under_way.get(key) is flight:
                del self._under_way[key]
            flight.fail()
