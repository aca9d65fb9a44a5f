"""Which requests are admitted, once their bodies have arrived: before that there is nothing to do for them.

    search   one search, a count, or one document
    heavy    reads or answers a lot at once: batches, contexts, pages of documents
    watch    standing queries, as long as their clients stay
    answer   waits for a language model, however long that takes
    embed    the dialects of other servers
    write    documents and files that are embedded
    change   everything else with a body: collections, feedback, deletions, which never wait for an embedding

Each class has its own bounds, so that a flood of one does not refuse another, and divides them among the access keys
that use it (`shares`). Requests in no class (health, metrics, listings) are always admitted. A class with no requests
in progress admits any request. Bodies that are still arriving have their own bounds (`Bodies`). Bodies larger than
`SMALL_BYTES` leave a part of each bound to smaller ones, which overtake them in the encoder (`embedding.lanes`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from indexes.base.errors import Overloaded
from retrieval.admission.shares import Shares
from retrieval.admission.workload import Task, Workload
from retrieval.base.settings import AdmissionSection
from retrieval.embedding.bounds import overloaded
from retrieval.wire.vectors import mentions_vectors

Load = Literal["search", "write", "change", "embed", "heavy", "answer", "watch"]

REQUEST_WORK = 1024  # fixed cost of a request, in bytes of body
BODY_BYTES_FREE = 1 << 16  # not counted of an arriving body: the connection buffers as much anyway
ARRIVING_RETRY_S = 1.0
CROWDED_S = 1.0
SMALL_BYTES = 16_384  # only bodies up to this size may use ...
SMALL_SHARE = 0.25  # ... the last part of a class's places and bytes
# Not bounded by time: changes are short, a language model sets its own pace, and a watch only waits.
UNTIMED: frozenset[Load] = frozenset({"change", "answer", "watch"})


class Gates:
    """One gate for each class. Use from one event loop."""

    def __init__(self, settings: AdmissionSection, clock: Callable[[], float] = time.monotonic) -> None:
        self.text_pace: Callable[[], float] = lambda: 0.0  # bytes embedded per second; 0 while unknown
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
        """Yield the admitted requests in progress of each class, and the bytes of their bodies."""
        for load, gate in self._gates.items():
            yield load, gate.requests.total, gate.bytes.total

    def is_crowded(self, load: Load, key: str | None) -> bool:
        """Whether a request of this key was refused a moment ago: more arrive than can be answered."""
        return self._gates[load].is_crowded(key)

    def require_room(self, load: Load, key: str | None, body_bytes: int) -> None:
        """Raise Overloaded for a request that could not enter now, before its body is sent in vain."""
        self._gates[load].require_room(key, body_bytes)

    def enter(
        self, load: Load, key: str | None, body_bytes: int, body: Iterable[bytes] = ()
    ) -> AdmittedRequest:
        """Admit a request whose `body` has arrived, in these pieces. Each admitted request must `leave`.

        Until the documents of a write are known, its body counts as text to embed, and as nothing if it mentions
        vectors.
        Raises Overloaded, saying when the class is expected to be idle.
        """
        entry = self._gates[load].enter(key, body_bytes)
        if load == "write" and mentions_vectors(body):
            entry.expect(0)
        return entry

    def reload(self, settings: AdmissionSection) -> None:
        """Apply these settings from now on, to the requests in progress too."""
        fresh = Gates(settings)
        self.bodies.bound_as(fresh.bodies)
        for load, gate in fresh._gates.items():
            self._gates[load].bound_as(gate)


class Bodies:
    """Bounds the bodies that are arriving, over all classes: their number, and the bytes received so far.

    The announced length does not count, or a sender could reserve megabytes with a single byte.
    """

    def __init__(self, bodies_max: int, bytes_max: int) -> None:
        self._number = Shares(bodies_max)
        self._bytes = Shares(bytes_max)

    def bound_as(self, other: Bodies) -> None:
        self._number.most, self._bytes.most = other._number.most, other._bytes.most

    @contextmanager
    def arriving(self, key: str | None) -> Iterator[Callable[[int], None]]:
        """Hold room while a body arrives. Call the yielded function with its size so far. Both raise Overloaded."""
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
class AdmittedRequest:
    gate: Gate
    key: str | None
    bytes: int
    task: Task

    def leave(self, *, done: bool) -> None:
        """End it. `done` if it was answered, false if it was abandoned."""
        self.gate.leave(self, done=done)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Hold no place in this block, in which the request only waits. Its body still counts. Afterwards it has its
        place again, even if all are taken by then."""
        self.gate.requests.give(self.key)
        try:
            yield
        finally:
            self.gate.requests.take(self.key)

    def expect(self, size: int) -> None:
        """Replace the estimate of the remaining work, at first the size of the body, by the bytes of text to embed."""
        self.task.expect(size)

    def advance(self, share: float) -> None:
        """Report that this share of the expected work is done, from 0 to 1."""
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
        self._refused: dict[str | None, float] = {}  # time of the last refusal, by key
        self._workload = Workload(clock, pace)

    @property
    def wait_s(self) -> float:
        """Seconds until the requests in progress are done; 0 while the pace is unknown."""
        return self._workload.wait_s

    def is_crowded(self, key: str | None) -> bool:
        return self._clock() - self._refused.get(key, -math.inf) < CROWDED_S

    def bound_as(self, other: Gate) -> None:
        self.requests.most, self.bytes.most = other.requests.most, other.bytes.most
        self._wait_s_max = other._wait_s_max

    def require_room(self, key: str | None, body_bytes: int) -> None:
        # No variable may hold the error, which holds the frames: in a flood such cycles take a sixth of the time.
        try:
            self._require_room(key, body_bytes)
        except Overloaded:
            self._refused[key] = self._clock()
            raise

    def enter(self, key: str | None, body_bytes: int) -> AdmittedRequest:
        self.require_room(key, body_bytes)
        self.requests.take(key)
        self.bytes.take(key, body_bytes)
        return AdmittedRequest(
            self, key, body_bytes, self._workload.begin(body_bytes + REQUEST_WORK, key or "")
        )

    def leave(self, entry: AdmittedRequest, *, done: bool) -> None:
        self.requests.give(entry.key)
        self.bytes.give(entry.key, entry.bytes)
        self._workload.end(entry.task, done=done)

    def _require_room(self, key: str | None, body_bytes: int) -> None:
        requests, size = self.requests, self.bytes
        if not requests.total:
            return
        spared = 0.0 if body_bytes <= SMALL_BYTES else SMALL_SHARE
        requests_max, bytes_max = (math.ceil(one.most * (1 - spared)) for one in (requests, size))
        if requests.total >= requests_max:
            raise overloaded(
                f"{requests.total} {self._load} requests are under way, at most {requests_max} may be",
                self.wait_s,
            )
        if size.total + body_bytes > bytes_max:
            raise overloaded(
                f"bodies of {size.total} bytes are under way in {self._load} requests and {body_bytes} more would "
                f"join them; at most {bytes_max} may be",
                self.wait_s,
            )
        if not (requests.allows(key) and size.allows(key, body_bytes)):
            raise overloaded(
                f"this key has {requests.held(key)} {self._load} requests under way, with bodies of {size.held(key)} "
                f"bytes; what is left of {requests.most} requests and {size.most} bytes is for other keys",
                self.wait_s,
            )
        delay_s = self._workload.delay_s(body_bytes + REQUEST_WORK, key or "")
        if delay_s > self._wait_s_max:
            raise overloaded(
                f"the {self._load} requests under way would delay this one by about {delay_s:.0f} s, at most "
                f"{self._wait_s_max:g} s are allowed",
                delay_s - self._wait_s_max,
            )
