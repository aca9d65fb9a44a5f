"""Which requests are let in, once their bodies have arrived: before that there is nothing to do for them.

    search   one search, a count, or one document
    heavy    what reads or answers much at once: batches, contexts, pages of documents
    watch    standing queries, for as long as their clients stay
    answer   what waits for a language model, for as long as that takes
    embed    the dialects of other servers
    write    everything else that has a body

Each class has bounds of its own, so a flood of one does not refuse another, and divides them among the access keys
that use it (`shares`). What is in no class (health, metrics, listings) is always let in. A class in which nothing is
under way takes any request. Bodies that are still arriving have bounds of their own (`Bodies`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from retrieval.embedding.bounds import overloaded
from retrieval.settings import Admission
from retrieval.shares import Shares

Load = Literal["search", "write", "embed", "heavy", "answer", "watch"]

REQUEST_WORK = 1024  # of any request, as if its body had so many bytes more
BUSY_S_KEPT = 30.0  # the pace is that of about this much busy time
BODY_BYTES_FREE = 1 << 16  # of each body that is arriving: the connection holds as much anyway
ARRIVING_RETRY_S = 1.0
CROWDED_S = 1.0


class Gates:
    """One gate for each class. Use from one event loop."""

    def __init__(self, settings: Admission, clock: Callable[[], float] = time.monotonic) -> None:
        requests_max: dict[Load, int] = {
            "search": settings.searches_max,
            "write": settings.writes_max,
            "embed": settings.embeds_max,
            "heavy": settings.heavy_max,
            "answer": settings.answers_max,
            "watch": settings.watches_max,
        }
        self.bodies = Bodies(settings.bodies_max, settings.body_bytes_max)
        self._gates = {
            load: Gate(
                load,
                requests_max=requests_max[load],
                bytes_max=settings.body_bytes_max,
                # A language model sets its own pace, and `llm.timeout_s` bounds it; a watch only waits.
                wait_s_max=math.inf if load in ("answer", "watch") else settings.wait_s_max,
                clock=clock,
            )
            for load in get_args(Load)
        }

    def under_way(self) -> Iterator[tuple[Load, int, int]]:
        """Of each class its requests that were let in and have not left, and the bytes of their bodies."""
        for load, gate in self._gates.items():
            yield load, gate.requests.total, gate.bytes.total

    def is_crowded(self, load: Load, key: str | None) -> bool:
        """Whether a request of this key was refused a moment ago: more come than can be answered."""
        return self._gates[load].is_crowded(key)

    def require_room(self, load: Load, key: str | None, body_bytes: int) -> None:
        """Raises Overloaded for a request that could not enter now: before its body is sent for nothing."""
        self._gates[load].require_room(key, body_bytes)

    def enter(self, load: Load, key: str | None, body_bytes: int) -> Entry:
        """For a request whose body is here; what has entered must leave.

        Raises Overloaded, saying when the class will be idle.
        """
        return self._gates[load].enter(key, body_bytes)

    def reload(self, settings: Admission) -> None:
        """Bound the same requests by these settings from now on."""
        fresh = Gates(settings)
        self.bodies.bound_as(fresh.bodies)
        for load, gate in fresh._gates.items():
            self._gates[load].bound_as(gate)


class Bodies:
    """Bounds the bodies that are arriving, over all classes: their number, and the bytes that have come of them.

    What a head announces counts for nothing, or a sender could hold the room of megabytes with a byte.
    """

    def __init__(self, bodies_max: int, bytes_max: int) -> None:
        self._number = Shares(bodies_max)
        self._bytes = Shares(bytes_max)

    def bound_as(self, other: Bodies) -> None:
        self._number.most, self._bytes.most = other._number.most, other._bytes.most

    @contextmanager
    def arriving(self, key: str | None) -> Iterator[Callable[[int], None]]:
        """For the time of one body. The function is told how large it has become. Both raise Overloaded."""
        if not (self._number.has_room() and self._number.allows(key)):
            raise overloaded(
                f"{self._number.total} bodies are arriving, {self._number.held(key)} of them from this key, "
                f"and at most {self._number.most} may be",
                ARRIVING_RETRY_S,
            )
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            more = size - BODY_BYTES_FREE - held
            if more <= 0:
                return
            if not (self._bytes.has_room(more) and self._bytes.allows(key, more)):
                raise overloaded(
                    f"{self._bytes.total} bytes of bodies are arriving, {self._bytes.held(key)} of them from this "
                    f"key, and at most {self._bytes.most} may be",
                    ARRIVING_RETRY_S,
                )
            self._bytes.take(key, more)
            held += more

        self._number.take(key)
        try:
            yield grow
        finally:
            self._number.give(key)
            if held:
                self._bytes.give(key, held)


@dataclass(slots=True)
class Entry:
    """One request that was let in."""

    gate: Gate
    key: str | None
    bytes: int

    @property
    def work(self) -> int:
        return self.bytes + REQUEST_WORK

    def leave(self, *, done: bool) -> None:
        """`done`: answered, not abandoned."""
        self.gate.leave(self, done=done)


class Gate:
    """Bounds the requests of one class, the bytes of their bodies, and the time until all of them are done.

    That time is foretold from the pace: the work done lately, by the time in which there was any to do.
    """

    def __init__(
        self,
        load: Load,
        *,
        requests_max: int,
        bytes_max: int,
        wait_s_max: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self.requests, self.bytes = Shares(requests_max), Shares(bytes_max)
        self._wait_s_max = wait_s_max
        self._clock = clock
        self._refused: dict[str | None, float] = {}  # when last, by key
        self._work = 0
        self._done = self._busy_s = 0.0
        self._seen = clock()

    @property
    def wait_s(self) -> float:
        """Seconds until what is under way is done; 0 while the pace is unknown."""
        return self._work * self._busy_s / self._done if self._done else 0.0

    def is_crowded(self, key: str | None) -> bool:
        return self._clock() - self._refused.get(key, -math.inf) < CROWDED_S

    def bound_as(self, other: Gate) -> None:
        self.requests.most, self.bytes.most = other.requests.most, other.bytes.most
        self._wait_s_max = other._wait_s_max

    def require_room(self, key: str | None, body_bytes: int) -> None:
        self._look()
        if self.requests.total and (full := self._full(key, body_bytes)):
            self._refused[key] = self._seen
            raise overloaded(full, self.wait_s)

    def enter(self, key: str | None, body_bytes: int) -> Entry:
        self.require_room(key, body_bytes)
        entry = Entry(self, key, body_bytes)
        self.requests.take(key)
        self.bytes.take(key, body_bytes)
        self._work += entry.work
        return entry

    def leave(self, entry: Entry, *, done: bool) -> None:
        self._look()
        self.requests.give(entry.key)
        self.bytes.give(entry.key, entry.bytes)
        self._work -= entry.work
        if done:
            self._done += entry.work

    def _full(self, key: str | None, body_bytes: int) -> str:
        """Why one more body of this size has no room; empty if it has."""
        requests, size = self.requests, self.bytes
        if not requests.has_room():
            return f"{requests.total} {self._load} requests are under way, at most {requests.most} may be"
        if not size.has_room(body_bytes):
            return (
                f"bodies of {size.total} bytes are under way in {self._load} requests and {body_bytes} more would "
                f"join them; at most {size.most} may be"
            )
        if not (requests.allows(key) and size.allows(key, body_bytes)):
            return (
                f"this key has {requests.held(key)} {self._load} requests under way, with bodies of {size.held(key)} "
                f"bytes; what is left of {requests.most} requests and {size.most} bytes is for other keys"
            )
        if (wait_s := self.wait_s * self._part_of(key)) > self._wait_s_max:
            return (
                f"the {self._load} requests under way take about {wait_s:.0f} s more, at most "
                f"{self._wait_s_max:g} s may wait"
            )
        return ""

    def _part_of(self, key: str | None) -> float:
        """Of the work under way, at most what a key has to wait for where keys take turns: as much of each other key as
        of its own."""
        own = self.bytes.held(key) + REQUEST_WORK * self.requests.held(key)
        return min(1.0, own * self.requests.keys / self._work) if self._work else 1.0

    def _look(self) -> None:
        """Bring the account of busy time up to now."""
        now = self._clock()
        if self._work:
            self._busy_s += now - self._seen
            if self._busy_s > 2 * BUSY_S_KEPT and self._done:
                self._busy_s, self._done = self._busy_s / 2, self._done / 2
        self._seen = now
