"""Single flight: a caller that asks for something already being computed waits for it instead of computing it too."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Flight(Generic[T]):
    """One computation that others may wait for. Its leader lands it, or it fails."""

    def __init__(self) -> None:
        self._landed: asyncio.Future[tuple[bool, T | None]] = asyncio.get_running_loop().create_future()

    def land(self, result: T | None) -> None:
        """Give the result to those who wait; None if each has to compute its own."""
        if not self._landed.done():
            self._landed.set_result((True, result))

    def fail(self) -> None:
        """End the flight without a result unless it has landed. One of those who wait then leads the next one."""
        if not self._landed.done():
            self._landed.set_result((False, None))

    async def wait(self) -> tuple[bool, T | None]:
        return await asyncio.shield(self._landed)  # one caller's cancellation does not cancel the others


class Flights(Generic[T]):
    """The flights in progress by key. For one event loop."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, Flight[T]] = {}

    async def join(self, key: Hashable) -> T | None:
        """Wait for the result being computed under this key; None if there is none, or it cannot be shared.

        If a flight fails, because its leader left or met an error, a follower leads the next one, one at a time.
        """
        while (flight := self._under_way.get(key)) is not None:
            landed, result = await flight.wait()
            if landed:
                return result
        return None

    @contextmanager
    def lead(self, key: Hashable) -> Iterator[Flight[T]]:
        """Let others wait for what is computed within the block."""
        flight: Flight[T] = Flight()
        self._under_way[key] = flight
        try:
            yield flight
        finally:
            if self._under_way.get(key) is flight:
                del self._under_way[key]
            flight.fail()
