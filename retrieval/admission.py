"""Which requests are let in: decided from their headers, before their bodies are read.

    search   one search, a count, or one document
    heavy    what reads or answers much at once: batches, contexts, pages of documents
    watch    standing queries, for as long as their clients stay
    answer   what waits for a language model, for as long as that takes
    embed    the dialects of other servers
    write    everything else that has a body

Each class has bounds of its own, so a flood of one does not refuse another. What is in no class (health, metrics,
listings) is always let in. A class in which nothing is under way takes any request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from retrieval.embedding.bounds import overloaded
from retrieval.settings import Admission

Load = Literal["search", "write", "embed", "heavy", "answer", "watch"]

REQUEST_WORK = 1024  # of any request, as if its body had so many bytes more
BUSY_S_KEPT = 30.0  # the pace is that of about this much busy time


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
            yield load, gate.requests, gate.bytes

    def enter(self, load: Load, body_bytes: int) -> Entry:
        """Raises Overloaded, saying when the class will be idle. What has entered must leave."""
        return self._gates[load].enter(body_bytes)

    def reload(self, settings: Admission) -> None:
        """Bound the same requests by these settings from now on."""
        for load, fresh in Gates(settings)._gates.items():
            self._gates[load].bound_as(fresh)


@dataclass(slots=True)
class Entry:
    """One request that was let in. `bytes` are those its body may have, and once it has arrived those it has."""

    gate: Gate
    bytes: int
    work: int = 0  # 0 until the body has arrived
    left: bool = False

    def arrived(self, body_bytes: int) -> None:
        """The body is here: from now on the request is work. A slow sender says nothing about our pace."""
        if not self.left:  # the rest of a refused body may arrive after its answer
            self.gate.begin(self, body_bytes)

    def leave(self, *, done: bool) -> None:
        """`done`: answered, not abandoned."""
        self.left = True
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
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._wait_s_max = wait_s_max
        self._clock = clock
        self.requests = self.bytes = self._work = 0
        self._done = self._busy_s = 0.0
        self._seen = clock()

    @property
    def wait_s(self) -> float:
        """Seconds until what is under way is done; 0 while the pace is unknown."""
        return self._work * self._busy_s / self._done if self._done else 0.0

    def bound_as(self, other: Gate) -> None:
        self._requests_max, self._bytes_max = other._requests_max, other._bytes_max
        self._wait_s_max = other._wait_s_max

    def enter(self, body_bytes: int) -> Entry:
        self._look()
        if self.requests and (full := self._full(body_bytes)):
            raise overloaded(full, self.wait_s)
        self.requests += 1
        self.bytes += body_bytes
        return Entry(self, body_bytes)

    def begin(self, entry: Entry, body_bytes: int) -> None:
        self._look()
        self.bytes += body_bytes - entry.bytes
        entry.bytes, entry.work = body_bytes, body_bytes + REQUEST_WORK
        self._work += entry.work

    def leave(self, entry: Entry, *, done: bool) -> None:
        self._look()
        self.requests -= 1
        self.bytes -= entry.bytes
        self._work -= entry.work
        if done:
            self._done += entry.work

    def _full(self, body_bytes: int) -> str:
        """Why one more body of this size has no room; empty if it has."""
        if self.requests >= self._requests_max:
            return f"{self.requests} {self._load} requests are under way, at most {self._requests_max} may be"
        if self.bytes + body_bytes > self._bytes_max:
            return (
                f"bodies of {self.bytes} bytes are under way in {self._load} requests and {body_bytes} more would "
                f"join them; at most {self._bytes_max} may be"
            )
        if self.wait_s > self._wait_s_max:
            return (
                f"the {self._load} requests under way take about {self.wait_s:.0f} s more, at most "
                f"{self._wait_s_max:g} s may wait"
            )
        return ""

    def _look(self) -> None:
        """Bring the account of busy time up to now."""
        now = self._clock()
        if self._work:
            self._busy_s += now - self._seen
            if self._busy_s > 2 * BUSY_S_KEPT and self._done:
                self._busy_s, self._done = self._busy_s / 2, self._done / 2
        self._seen = now
