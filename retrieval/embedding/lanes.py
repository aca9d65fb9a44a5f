"""The two queues of the batcher, and which texts share the next run.

Callers add and remove on the event loop, worker threads take batches; a lock guards the queues, and is never held
while tokenising or running.

    queries first             but bulk work that has waited for BULK_WAITS_S gets a turn: it is slowed, never stopped
    queries in one run        at a time, while those that wait fit into the next: side by side, runs contend for the
                              interpreter
    one worker kept free      of bulk runs while queries come, so that a query need not wait for one to end
    bulk requests in turns    callers take turns, and so do the requests of each: one document waits for one run of
                              every other caller, not for their thousand documents
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from indexes.base.model import Floats
from retrieval.embedding.models import Kind
from retrieval.embedding.results import Embedded, Lane, Long, first_rows, joined, refuse_truncated
from retrieval.embedding.rotation import Rotation
from retrieval.embedding.tokens import Tokens

WASTE_MAX = 2  # a shared run may compute this many times its real tokens ...
WASTE_TOKENS_FREE = 64  # ... and this many more: below, a second run costs more than the padding
JOBS_LOOKED_AT = 64  # bulk requests considered for one run; bounds the time under the lock
QUERIES_LATELY_S = 1.0  # so long after a query one worker still waits for the next
BULK_WAITS_S = 0.1
CHARS_PER_TOKEN = 3  # a guess for texts not tokenised yet; exact counts take its place

RunFits = Callable[
    [int, int], bool
]  # whether a run of so many texts, padded to so many tokens, is short enough


@dataclass(eq=False, slots=True)
class Job:
    """One call: its texts, what they became, and the future its caller waits on, before it asks for the `result`.
    Mutated on the event loop only, except what tokenising fills in before the job is queued, or before its run.
    """

    texts: list[str]
    kind: Kind
    lane: Lane
    long: Long
    future: asyncio.Future[None]
    queued: list[int]  # tokens accounted for by piece, 0 once run; guessed until tokenised
    normalise: bool
    first: int = 0  # number of its first text in the caller's request
    caller: str = ""  # callers share the bulk lane evenly, however many requests each has
    ran: Callable[[float], None] | None = None  # called on the loop with the bytes of each piece that ran
    arrived: float = field(default_factory=time.monotonic)
    pieces: list[Tokens] = field(default_factory=list)  # what runs: the texts, or their windows
    windows: list[int] = field(default_factory=list)  # how many pieces each text has; empty: one each
    plan: deque[list[int]] = field(default_factory=deque)  # batches of pieces, similar lengths together
    read: int = 0  # texts tokenised so far
    reading: Iterator[Tokens] | None = None  # the windows to come of a text that is being tokenised
    tokenise_s: float = 0.0
    started: float = 0.0  # time.monotonic() of its first run; 0 before
    ended: float = 0.0  # and of the end of its last
    meanwhile: Callable[[], None] | None = None  # what its caller does while it runs
    dead: bool = False  # nobody waits any more; read by the workers without a lock
    _left: int = -1  # pieces without a vector; known after tokenising
    _vectors: Floats | None = None

    @property
    def texts_left(self) -> int:
        """Texts, or windows of them, that have no vector yet."""
        return len(self.texts) if self._left < 0 else self._left

    def put(self, piece: int, vector: Floats, now: float) -> None:
        """A piece has its vector; the last one ends the job. Without effect once nobody waits."""
        if self.future.done():
            return
        if self._vectors is None:
            self._vectors = np.empty((len(self.pieces), len(vector)), dtype=np.float32)
            self._left = len(self.pieces)
        self._vectors[piece] = vector
        self._left -= 1
        if self._left == 0:
            self.ended = now
            self.future.set_result(None)

    def bytes_of(self, piece: int) -> float:
        """Bytes of a piece; windows have an equal share of all texts."""
        if not self.in_windows:
            return len(self.texts[piece].encode())
        return sum(len(text.encode()) for text in self.texts) / len(self.pieces)

    def begins(self) -> None:
        """Have its caller do what it may."""
        if self.meanwhile is not None:
            self.meanwhile()

    @property
    def in_windows(self) -> bool:
        """Whether there is anything to join: many windows take milliseconds, so not on the event loop."""
        return len(self.pieces) > len(self.texts)

    def result(self) -> Embedded:
        """What the caller gets once the future is done. May be called from any thread."""
        assert self._vectors is not None
        lengths = [len(piece) for piece in self.pieces]
        if not self.in_windows:
            cut = [piece.truncated for piece in self.pieces]
            return Embedded(self._vectors, lengths, cut, [1] * len(lengths), **self.times())
        tokens = np.add.reduceat(lengths, first_rows(self.windows)).tolist()
        whole = joined(self._vectors, lengths, self.windows, normalise=self.normalise)
        return Embedded(whole, tokens, [False] * len(tokens), self.windows, **self.times())

    def times(self) -> dict[str, float]:
        """Seconds of each stage, by the names that Embedded has for them."""
        return {
            "tokenise_s": self.tokenise_s,
            "queue_s": max(0.0, self.started - self.arrived - self.tokenise_s),
            "run_s": max(0.0, self.ended - self.started),
        }

    def fail(self, error: BaseException) -> None:
        self.dead = True
        if not self.future.done():
            self.future.set_exception(error)


@dataclass
class Batch:
    """Pieces of one lane for one run, as (job, position) pairs, and jobs whose text cannot be run."""

    lane: Lane
    members: list[tuple[Job, int]] = field(default_factory=list)
    failed: list[tuple[Job, Exception]] = field(default_factory=list)
    tokenise_s: float = 0.0

    @property
    def tokens(self) -> list[Tokens]:
        return [job.pieces[position] for job, position in self.members]


class Tokeniser(Protocol):
    @property
    def tokens_max(self) -> int: ...
    def tokenise(self, texts: Sequence[str], kind: Kind) -> list[Tokens]: ...


class Lanes:
    """Hands out batches to `workers` threads. A single text that has no `room` runs alone."""

    def __init__(
        self,
        tokeniser: Tokeniser,
        *,
        workers: int,
        texts_max: int,
        query_room: RunFits,
        bulk_room: RunFits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokeniser = tokeniser
        self._workers = workers
        self._texts_max = texts_max
        self._query_room = query_room
        self._bulk_room = bulk_room
        self._clock = clock
        self._queries: deque[Job] = deque()
        self._bulk = Rotation[Job]()
        self._changed = threading.Condition()
        self._running: dict[Lane, int] = {"query": 0, "bulk": 0}
        self._query_seen = -QUERIES_LATELY_S  # when the last query came, by the clock
        self._bulk_turn = 0.0  # when bulk work last had, or began to wait for, its turn
        self._closed = False

    @property
    def bulk_workers(self) -> int:
        """How many workers take bulk work now."""
        lately = self._clock() - self._query_seen < QUERIES_LATELY_S
        return max(1, self._workers - lately)

    def add_query(self, job: Job) -> None:
        with self._changed:
            self._queries.append(job)
            self._query_seen = self._clock()
            self._wake_for_queries()

    def add_bulk(self, job: Job) -> None:
        with self._changed:
            if not self._bulk:
                self._bulk_turn = self._clock()
            self._bulk.append(job.caller, job)
            self._changed.notify_all()

    def remove(self, job: Job) -> None:
        """Forget a job; one that is under way, or gone, is no error."""
        with self._changed:
            if job.lane == "bulk":
                self._bulk.remove(job.caller, job)
            elif job in self._queries:
                self._queries.remove(job)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._queries.clear()
            self._bulk.clear()
            self._changed.notify_all()

    def ended(self, batch: Batch) -> None:
        """A worker has run this batch."""
        with self._changed:
            self._running[batch.lane] -= 1
            if batch.lane == "bulk":  # after a query the same worker looks for the next
                self._changed.notify()

    def next_batch(self) -> Batch | None:
        """Wait for work and take it: a batch, possibly with failures only, or None once closed."""
        while True:
            with self._changed:
                now = self._clock()
                while not (self._closed or self._queries_may_run() or self._bulk_may_run()):
                    self._changed.wait(self._until_bulk(now))
                    now = self._clock()
                if self._closed:
                    return None
                if self._bulk_comes_first(now):
                    batch = self._bulk_batch()
                    if batch.members:
                        self._running["bulk"] += 1
                        self._bulk_turn = now
                        self._wake_for_queries()
                        return batch
                    continue
                self._running["query"] += 1
                waiting = [self._queries.popleft() for _ in range(min(len(self._queries), self._texts_max))]
            batch = self._query_batch([job for job in waiting if not job.dead])
            if batch.members or batch.failed:
                return batch
            self.ended(batch)

    def batch_of(self, job: Job) -> Batch:
        """A query for the caller to run at once; it counts as seen, so a worker stays free of bulk work."""
        self._query_seen = self._clock()
        batch = Batch("query")
        begun = time.monotonic()
        if self._tokenised(job, batch):
            batch.members.append((job, 0))
        batch.tokenise_s = time.monotonic() - begun
        return batch

    # --- whose turn it is; under the lock -------------------------------------------------------------------

    def _queries_may_run(self) -> bool:
        """Otherwise the worker of the run under way takes them after it."""
        waiting = len(self._queries)
        if not waiting or not self._running["query"] or waiting > self._texts_max:
            return bool(waiting)
        return not fits([job.queued[0] for job in self._queries], self._query_room)

    def _wake_for_queries(self) -> None:
        if self._queries_may_run():
            self._changed.notify()

    def _bulk_may_run(self) -> bool:
        return bool(self._bulk) and self._running["bulk"] < self.bulk_workers

    def _bulk_comes_first(self, now: float) -> bool:
        starved = self._running["bulk"] == 0 and now - self._bulk_turn > BULK_WAITS_S
        return self._bulk_may_run() and (starved or not self._queries_may_run())

    def _until_bulk(self, now: float) -> float | None:
        """Seconds until a worker kept free for queries may take bulk work; None: somebody will wake us."""
        if not self._bulk or self._running["bulk"] == self._workers:
            return None
        return max(0.001, self._query_seen + QUERIES_LATELY_S - now)

    # --- queries --------------------------------------------------------------------------------------------

    def _query_batch(self, waiting: list[Job]) -> Batch:
        """The oldest query and those that fit beside it; the rest goes back to the front, in order."""
        batch = Batch("query")
        begun = time.monotonic()
        ready = [job for job in waiting if self._tokenised(job, batch)]
        batch.tokenise_s = time.monotonic() - begun
        lengths: list[int] = []
        rest: list[Job] = []
        for job in ready:
            if not rest and fits([*lengths, len(job.pieces[0])], self._query_room):
                lengths.append(len(job.pieces[0]))
                batch.members.append((job, 0))
            else:
                rest.append(job)
        if not (rest or self._queries):
            return batch
        with self._changed:
            if not self._closed:
                # A job that was cancelled while it was in neither queue could not be removed from one.
                self._queries.extendleft(job for job in reversed(rest) if not job.dead)
                self._wake_for_queries()
        return batch

    def _tokenised(self, job: Job, batch: Batch) -> bool:
        """Whether a query can run: an error in tokenizing it belongs to its caller alone."""
        begun = time.monotonic()
        try:
            if not job.pieces:
                job.pieces = self._tokeniser.tokenise(job.texts, job.kind)
                if job.long == "refuse":
                    refuse_truncated(job.pieces, 0, self._tokeniser.tokens_max)
                job.tokenise_s = time.monotonic() - begun
        except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
            job.pieces = []
            job.tokenise_s = time.monotonic() - begun
            batch.failed.append((job, error))
        return bool(job.pieces)

    # --- bulk requests --------------------------------------------------------------------------------------

    def _bulk_batch(self) -> Batch:
        """The next pieces of the first request, and of others that fit beside them. The first goes last."""
        batch = Batch("bulk")
        lengths: list[int] = []
        looked_at: list[Job] = []
        for _ in range(min(len(self._bulk), JOBS_LOOKED_AT)):
            job = self._bulk.popleft()
            if job.dead or not job.plan:
                continue
            together = lengths + [len(job.pieces[position]) for position in job.plan[0]]
            if not lengths or (len(together) <= self._texts_max and fits(together, self._bulk_room)):
                batch.members.extend((job, position) for position in job.plan.popleft())
                lengths = together
                if job.plan:
                    self._bulk.append(job.caller, job)
            else:
                looked_at.append(job)
        for job in reversed(looked_at):
            self._bulk.appendleft(job.caller, job)
        return batch


def fits(lengths: Sequence[int], room: RunFits) -> bool:
    """Whether texts of these lengths should share a run: short enough, and not mostly padding."""
    if len(lengths) == 1:
        return True
    longest = max(lengths)
    waste_max = WASTE_MAX * sum(lengths) + WASTE_TOKENS_FREE
    return longest * len(lengths) <= waste_max and room(len(lengths), longest)


def guessed(text: str, long: Long, tokens_max: int) -> list[int]:
    """About how many tokens each piece of a text will have."""
    tokens = len(text) // CHARS_PER_TOKEN + 2
    if long != "windows":
        return [min(tokens, tokens_max)]
    return [min(tokens - at, tokens_max) for at in range(0, tokens, tokens_max)]


def in_parts(tokens: Sequence[int], tokens_max: int) -> list[range]:
    """Texts of these lengths in runs of at most `tokens_max` tokens, or of one text: the numbers of each."""
    begins, held = [0], 0
    for at, more in enumerate(tokens):
        if at > begins[-1] and held + more > tokens_max:
            begins.append(at)
            held = 0
        held += more
    return [range(begin, end) for begin, end in zip(begins, [*begins[1:], len(tokens)])]
