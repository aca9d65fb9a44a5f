"""The services of one machine: a state machine that compares orders with what it sees, and says what to do.

What runs goes on without a controller. A service that died is started again after a pause that grows; one that does not
answer is killed, since what it acknowledged is on the disk. A writer is started only by orders that are `fresh`: later
the controller may have given its node to another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from jobs.cluster.plan import OrderedService, Orders, ServiceReport, State

BEGINNING_S = 60.0  # for a process to answer for the first time; it does so before it opens anything
HUNG_S = 15.0  # without an answer
ENDING_S = 40.0  # from SIGTERM on; the service takes up to 30
PAUSE_S, PAUSE_S_MAX = 1.0, 60.0  # before a service is started again, doubled each time
STEADY_S = 60.0  # a service that was ready for so long begins with the shortest pause again


class Seen(msgspec.Struct, frozen=True):
    """What is on the machine of a node: a directory, and perhaps a process. `answer` is what the process says, None if
    nothing."""

    runs: bool
    writes: bool
    answer: Literal["ready", "starting"] | None = None
    why: str = ""


class StartService(msgspec.Struct, frozen=True):
    node: str
    service: OrderedService
    nodes: dict[str, list[str]]


class TellService(msgspec.Struct, frozen=True):
    """Give a running service new URLs of nodes."""

    node: str
    service: OrderedService
    nodes: dict[str, list[str]]


class EndService(msgspec.Struct, frozen=True):
    """Send SIGTERM, or SIGKILL."""

    node: str
    kill: bool


class PutAside(msgspec.Struct, frozen=True):
    """Move away the directory of a node that this machine has no longer."""

    node: str


Action = StartService | TellService | EndService | PutAside


@dataclass(slots=True)
class Watched:
    """A service. `heard_at` is when it last answered, `ready_at` since when it is ready, `start_at` when it may be
    started again, `ending_at` when it was told to end, `told` which URLs of nodes it knows."""

    heard_at: float
    ready_at: float | None = None
    failures: int = 0
    start_at: float = float("-inf")
    ending_at: float | None = None
    ran: bool = False
    told: dict[str, list[str]] | None = None
    last: ServiceReport = field(default_factory=lambda: ServiceReport("down", writes=False))

    def note(self, seen: Seen, now: float) -> None:
        """Note what a process says that runs."""
        if not self.ran:
            self.ran, self.heard_at = True, now
        if seen.answer is not None:
            self.heard_at = now
        if seen.answer != "ready":
            self.ready_at = None
        elif self.ready_at is None:
            self.ready_at = now
        elif now - self.ready_at > STEADY_S:
            self.failures = 0

    def note_end(self, now: float) -> None:
        """Note that no process runs. One that was not told to end has failed."""
        if self.ran and self.ending_at is None:
            self.start_at = now + min(PAUSE_S * 2**self.failures, PAUSE_S_MAX)
            self.failures += 1
        self.ran, self.ending_at, self.ready_at = False, None, None

    def must_be_killed(self, now: float) -> bool:
        if self.ending_at is not None:
            return now - self.ending_at > ENDING_S
        return now - self.heard_at > HUNG_S

    def state(self, seen: Seen | None) -> State:
        if seen is None or not seen.runs:
            return "down"
        if self.ending_at is not None:
            return "ending"
        return "ready" if seen.answer == "ready" else "starting"


class Agent:
    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}

    def step(
        self, orders: Orders | None, seen: Mapping[str, Seen], now: float, *, fresh: bool
    ) -> list[Action]:
        """Say what to do now. Without `orders`, which are the last ones, nothing is known yet."""
        actions = []
        for name in sorted({*self._watched, *seen, *(orders.services if orders else ())}):
            known, there = self._watched.setdefault(name, Watched(now)), seen.get(name)
            if there is not None and there.runs:
                known.note(there, now)
                action = self._correct(name, known, there, orders, now)
            else:
                known.note_end(now)
                action = self._revive(name, known, there, orders, now, fresh=fresh)
            known.last = ServiceReport(
                known.state(there), there is not None and there.writes, there.why if there else ""
            )
            if action is not None:
                actions.append(action)
        return actions

    def reports(self) -> dict[str, ServiceReport]:
        return {name: one.last for name, one in self._watched.items()}

    def _correct(
        self, name: str, known: Watched, there: Seen, orders: Orders | None, now: float
    ) -> Action | None:
        """Say what to do with a process that runs."""
        if known.must_be_killed(now):
            return EndService(name, kill=True)
        if orders is None or known.ending_at is not None:
            return None
        wanted = None if orders.stop else orders.services.get(name)
        if wanted is None or (wanted.writes != there.writes and wanted.may_start):
            known.ending_at = now
            return EndService(name, kill=False)
        if there.answer is not None and known.told != orders.nodes:  # before that, SIGHUP would end it
            known.told = orders.nodes
            return TellService(name, wanted, orders.nodes)
        return None

    def _revive(
        self, name: str, known: Watched, there: Seen | None, orders: Orders | None, now: float, *, fresh: bool
    ) -> Action | None:
        """Start what should run and does not, and put aside what this machine has no longer."""
        if orders is None or orders.stop:
            return None
        wanted = orders.services.get(name)
        if wanted is None:
            if there is None:
                del self._watched[name]
            return None if there is None else PutAside(name)
        if wanted.may_start and (fresh or not wanted.writes) and now >= known.start_at:
            known.ran, known.heard_at, known.told = True, now + BEGINNING_S - HUNG_S, orders.nodes
            return StartService(name, wanted, orders.nodes)
        return None
