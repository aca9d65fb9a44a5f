"""Whose turn it is where only so many may work at one time: fair among access keys, the newest first under overload.

Of the keys that wait, the one with the fewest at work is next, and the last free place is for one that has none. Of its
requests the oldest is next. But while more come than are let in, or some leave before their turn, and the oldest has
waited for longer than a target, serving in order would make all of them late, and the newest is next instead. What has
waited too long is refused, so that its caller can come back or try elsewhere (adaptive LIFO and controlled delay:
Maurer, "Fail at Scale", 2015).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from retrieval.admission.gates import CROWDED_S
from retrieval.base.settings import Admission
from retrieval.embedding.bounds import overloaded


class Flow(NamedTuple):
    """`patient`: in order, and until their deadlines, as the searches of a batch or context: without one of them, the
    others were for nothing."""

    key: str
    patient: bool = False


# Whether the present task waits until its deadline: for all but a request for one search. Nothing has to pass it on.
PATIENT: ContextVar[bool] = ContextVar("PATIENT", default=True)


class Waiter(NamedTuple):
    since: float
    begins: asyncio.Future[None]


class Turns:
    """For one event loop."""

    def __init__(
        self,
        places: int,
        settings: Callable[[], Admission],
        crowded: Callable[[str], bool],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`settings` are asked at each turn; `clock` counts in seconds, by default the loop's.

        `crowded`: whether more requests of a key come than are let in. Clients that ask again when they have their
        answers may have to wait without that, and in order all of them are served.
        """
        self._free = places
        self._settings = settings
        self._crowded = crowded
        self._clock = clock
        self._working: dict[Flow, int] = {}  # how many, of the flows that have any
        self._missed: dict[str, float] = {}  # when a caller left last before its turn, by key
        self._waiting: dict[Flow, deque[Waiter]] = {}  # the flow that had a turn last is the last one

    def turn(self, flow: Flow) -> Turn:
        """An async context whose block runs when its turn comes. Raises Overloaded for one that has waited for
        `admission.queue_ms_max`, unless it is patient."""
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
        """Let the next one begin."""
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
        """Begin what may."""
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
        """The flow whose turn it is, if there is a place for it."""
        may = filter(self._may_begin, self._waiting)
        return min(may, key=lambda flow: self._working.get(flow, 0), default=None)

    def _now(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()


class Turn:
    """The async context of `Turns.turn`. Every search passes it, and a generator would take twice as long."""

    __slots__ = ("_flow", "_turns")

    def __init__(self, turns: Turns, flow: Flow) -> None:
        self._turns = turns
        self._flow = flow

    async def __aenter__(self) -> None:
        await self._turns.begin(self._flow)

    async def __aexit__(self, *error: object) -> None:
        self._turns.end(self._flow)
