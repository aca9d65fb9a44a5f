"""Which requests are let in, once their bodies have arrived: before that there is nothing to do for them.

    search   one search, a count, or one document
    heavy    what reads or answers much at once: batches, contexts, pages of documents
    watch    standing queries, for as long as their clients stay
    answer   what waits for a language model, for as long as that takes
    embed    the dialects of other servers
    write    documents and files that are embedded
    change   everything else that has a body: collections, feedback, deletions, which never wait for an embedding

Each class has bounds of its own, so a flood of one does not refuse another, and divides them among the access keys
that use it (`shares`). What is in no class (health, metrics, listings) is always let in. A class in which nothing is
under way takes any request. Bodies that are still arriving have bounds of their own (`Bodies`). Bodies of more than
`SMALL_BYTES` leave a part of each bound to smaller ones, which pass them on their way through the encoder
(`embedding.lanes`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from indexes.base.errors import Overloaded
from retrieval.admission.shares import Shares
from retrieval.admission.workload import Task, Workload
from retrieval.base.settings import Admission
from retrieval.embedding.bounds import overloaded

Load = Literal["search", "write", "change", "embed", "heavy", "answer", "watch"]

REQUEST_WORK = 1024  # of any request, as if its body had so many bytes more
BODY_BYTES_FREE = 1 << 16  # of each body that is arriving: the connection holds as much anyway
ARRIVING_RETRY_S = 1.0
CROWDED_S = 1.0
SMALL_BYTES = 16_384  # of a body that may use the last of its class's places and bytes:
SMALL_SHARE = 0.25  # of them
# Their requests are short, or take as long as they take: a language model sets its own pace, and a watch only waits.
UNTIMED: frozenset[Load] = frozenset({"change", "answer", "watch"})


class Gates:
    """One gate for each class. Use from one event loop."""

    def __init__(self, settings: Admission, clock: Callable[[], float] = time.monotonic) -> None:
        self.text_pace: Callable[[], float] = lambda: 0.0  # bytes that are embedded in a second; 0: unknown
        requests_max: dict[Load, int] = {
            "search": settings.searches_max,
            "write": settings.writes_max,
            "change": settings.changes_max,
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
                wait_s_max=math.inf if load in UNTIMED else settings.wait_s_max,
                clock=clock,
                pace=self._text_pace if load == "write" else None,
            )
            for load in get_args(Load)
        }

    def _text_pace(self) -> float:
        return self.text_pace()

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
        """Admit a request whose body is here. Each entry must leave.

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
        """Hold room while a body arrives. The yielded function is told its size so far. Both raise Overloaded."""
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
            alone = self._bytes.total == held  # one body may be as large as server.body_bytes_max
            if not alone and not (self._bytes.has_room(more) and self._bytes.allows(key, more)):
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


@dataclass(slots=True, eq=False)
class Entry:
    """One request that was let in."""

    gate: Gate
    key: str | None
    bytes: int
    task: Task

    def leave(self, *, done: bool) -> None:
        """`done`: answered, not abandoned."""
        self.gate.leave(self, done=done)

    def expect(self, size: int) -> None:
        """What is left of the request is to embed so many bytes of text; before, its body counted."""
        self.task.expect(size)

    def advance(self, share: float) -> None:
        """So much of what was expected is done, from 0 to 1."""
        self.task.advance(share)


class Gate:
    """Bounds the requests of one class, the bytes of their bodies, and the time by which they would delay one more."""

    def __init__(
        self,
        load: Load,
        *,
        requests_max: int,
        bytes_max: int,
        wait_s_max: float,
        clock: Callable[[], float] = time.monotonic,
        pace: Callable[[], float] | None = None,
    ) -> None:
        self._load = load
        self.requests, self.bytes = Shares(requests_max), Shares(bytes_max)
        self._wait_s_max = wait_s_max
        self._clock = clock
        self._refused: dict[str | None, float] = {}  # when last, by key
        self._workload = Workload(clock, pace)

    @property
    def wait_s(self) -> float:
        """Seconds until what is under way is done; 0 while the pace is unknown."""
        return self._workload.wait_s

    def is_crowded(self, key: str | None) -> bool:
        return self._clock() - self._refused.get(key, -math.inf) < CROWDED_S

    def bound_as(self, other: Gate) -> None:
        self.requests.most, self.bytes.most = other.requests.most, other.bytes.most
        self._wait_s_max = other._wait_s_max

    def require_room(self, key: str | None, body_bytes: int) -> None:
        if self.requests.total and (full := self._full(key, body_bytes)):
            self._refused[key] = self._clock()
            raise full

    def enter(self, key: str | None, body_bytes: int) -> Entry:
        self.require_room(key, body_bytes)
        self.requests.take(key)
        self.bytes.take(key, body_bytes)
        return Entry(self, key, body_bytes, self._workload.begin(body_bytes + REQUEST_WORK, key or ""))

    def leave(self, entry: Entry, *, done: bool) -> None:
        self.requests.give(entry.key)
        self.bytes.give(entry.key, entry.bytes)
        self._workload.end(entry.task, done=done)

    def _full(self, key: str | None, body_bytes: int) -> Overloaded | None:
        """Why one more body of this size has no room, and when it may have; None if it has."""
        requests, size = self.requests, self.bytes
        spared = 0.0 if body_bytes <= SMALL_BYTES else SMALL_SHARE
        requests_max, bytes_max = (math.ceil(one.most * (1 - spared)) for one in (requests, size))
        if requests.total >= requests_max:
            return overloaded(
                f"{requests.total} {self._load} requests are under way, at most {requests_max} may be",
                self.wait_s,
            )
        if size.total + body_bytes > bytes_max:
            return overloaded(
                f"bodies of {size.total} bytes are under way in {self._load} requests and {body_bytes} more would "
                f"join them; at most {bytes_max} may be",
                self.wait_s,
            )
        if not (requests.allows(key) and size.allows(key, body_bytes)):
            return overloaded(
                f"this key has {requests.held(key)} {self._load} requests under way, with bodies of {size.held(key)} "
                f"bytes; what is left of {requests.most} requests and {size.most} bytes is for other keys",
                self.wait_s,
            )
        delay_s = self._workload.delay_s(body_bytes + REQUEST_WORK, key or "")
        if delay_s > self._wait_s_max:
            return overloaded(
                f"the {self._load} requests under way would delay this one by about {delay_s:.0f} s, at most "
                f"{self._wait_s_max:g} s are allowed",
                delay_s - self._wait_s_max,
            )
        return None
