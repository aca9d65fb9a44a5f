"""Whose turn it is when only so many may work at once: fair among access keys, newest first under overload.

The next turn goes to the waiting key with the fewest requests at work, and the last free place only to a key with none.
Within a key, the oldest request is next. But if requests of the key are being refused, or callers leave before their
turn, and the oldest has waited longer than a target, serving in order would make all of them late, so the newest is
next instead. A request that has waited too long is refused, so that its caller can come back or try elsewhere (adaptive
LIFO and controlled delay: Maurer, "Fail at Scale", 2015).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from retrieval.admission.gates import CROWDED_S
from retrieval.base.settings import AdmissionSection
from retrieval.embedding.bounds import overloaded


class Flow(NamedTuple):
    """The requests of one key that share a queue. `patient` requests are served in order and wait until their
    deadlines: the searches of a batch or context, where losing one would waste the others."""

    key: str
    patient: bool = False


# Whether the current task waits until its deadline: true except in a request for one search.
PATIENT: ContextVar[bool] = ContextVar("PATIENT", default=True)


class Waiter(NamedTuple):
    since: float
    begins: asyncio.Future[None]


class Turns:
    """Grants turns in one event loop."""

    def __init__(
        self,
        places: int,
        settings: Callable[[], AdmissionSection],
        crowded: Callable[[str], bool],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`settings` is called at each turn; `clock` counts seconds, by default the loop's clock.

        `crowded` tells whether requests of a key are being refused. Clients that send the next request after each
        answer may wait long without that; served in order, all of them get their answers.
        """
        self._free = places
        self._settings = settings
        self._crowded = crowded
        self._clock = clock
        self._working: dict[Flow, int] = {}  # only flows that have requests at work
        self._missed: dict[str, float] = {}  # when a caller last left before its turn, by key
        self._waiting: dict[Flow, deque[Waiter]] = {}  # least recently served flow first

    def turn(self, flow: Flow) -> Turn:
        """Return an async context whose block runs when its turn comes.

        Raises Overloaded after `admission.queue_ms_max`, unless the flow is patient.
        """
        return Turn(self, flow)

    async def begin(self, flow: Flow) -> None:
        """Wait for a turn, which `end` gives back."""
        if not self._waiting and self._may_begin(flow):
            self._take_place(flow)
            return
        loop = asyncio.get_running_loop()
        waiter = Waiter(self._now(), loop.create_future())
        self._waiting.setdefault(flow, deque()).append(waiter)
        self._look()
        if waiter.begins.done():
            return
        end = None if flow.patient else loop.call_later(self._most_s, self._refuse, waiter)
        try:
            await waiter.begins
        except BaseException:
            if waiter.begins.cancelled() or waiter.begins.exception():
                self._leave(flow, waiter)
            else:  # its turn came as its caller left
                self.end(flow)
            raise
        finally:
            if end is not None:
                end.cancel()

    def _refuse(self, waiter: Waiter) -> None:
        if not waiter.begins.done():
            others = sum(map(len, self._waiting.values()))
            why = f"it has waited {self._most_s:g} s for its turn, and {others} others wait"
            waiter.begins.set_exception(overloaded(why, self._most_s))

    def _leave(self, flow: Flow, waiter: Waiter) -> None:
        self._missed[flow.key] = self._now()
        line = self._waiting.get(flow, deque())
        if waiter in line:
            line.remove(waiter)
            if not line:
                del self._waiting[flow]

    def end(self, flow: Flow) -> None:
        """Give the turn back and start the next request."""
        self._free += 1
        if self._working[flow] > 1:
            self._working[flow] -= 1
        else:
            del self._working[flow]
        if self._waiting:
            self._look()

    def _take_place(self, flow: Flow) -> None:
        self._free -= 1
        self._working[flow] = self._working.get(flow, 0) + 1

    def _may_begin(self, flow: Flow) -> bool:
        return self._free > 1 or (self._free == 1 and flow not in self._working)

    def _look(self) -> None:
        while (flow := self._next()) is not None:
            line = self._waiting.pop(flow)
            waiter = line.pop() if self._newest_first(flow, line[0]) else line.popleft()
            if line:
                self._waiting[flow] = line
            if not flow.patient and self._now() - waiter.since > self._most_s:
                self._refuse(waiter)  # before its timer, where the loop is late
            if not waiter.begins.done():
                waiter.begins.set_result(None)
                self._take_place(flow)

    def _newest_first(self, flow: Flow, oldest: Waiter) -> bool:
        now = self._now()
        if flow.patient or now - oldest.since <= self._settings().queue_ms_target / 1000:
            return False
        return self._crowded(flow.key) or now - self._missed.get(flow.key, -math.inf) < CROWDED_S

    @property
    def _most_s(self) -> float:
        return self._settings().queue_ms_max / 1000

    def _next(self) -> Flow | None:
        """Return the flow whose turn it is, if there is a place for it."""
        may = filter(self._may_begin, self._waiting)
        return min(may, key=lambda flow: self._working.get(flow, 0), default=None)

    def _now(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()


class Turn:
    """The async context of `Turns.turn`. A class, because every search enters one, and a generator takes twice as
    long."""

    __slots__ = ("_flow", "_turns")

    def __init__(self, turns: Turns, flow: Flow) -> None:
        self._turns = turns
        self._flow = flow

    async def __aenter__(self) -> None:
        await self._turns.begin(self._flow)

    async def __aexit__(self, *error: object) -> None:
        self._turns.end(self._flow)
