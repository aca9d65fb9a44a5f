"""The two queues of the batcher, and which texts share the next run.

Callers add and remove on the event loop, worker threads take batches. A lock guards the queues, and is never held while
tokenizing or running.

    queries first             but bulk work that has waited for BULK_WAITS_S gets a turn: it is slowed, never stopped
    one query run at a time   as long as the waiting queries fit into the next run: parallel runs contend for the GIL
    one worker kept free      of bulk runs while queries arrive, so that a query need not wait for one to end
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
from retrieval.embedding.results import EmbeddedTexts, Lane, Long, first_rows, join_windows, refuse_truncated
from retrieval.embedding.rotation import Rotation
from retrieval.embedding.tokens import Tokens

WASTE_MAX = 2  # a shared run may compute this many times its real tokens ...
WASTE_TOKENS_FREE = 64  # ... plus this many: up to there, a second run costs more than the padding
JOBS_LOOKED_AT = 64  # bulk requests considered for one run; bounds the time under the lock
QUERIES_LATELY_S = 1.0  # how long one worker waits for the next query
BULK_WAITS_S = 0.1
CHARS_PER_TOKEN = 3  # an estimate for texts not tokenized yet, replaced by exact counts

# Whether a run of this many texts, padded to this many tokens, is short enough.
RunFits = Callable[[int, int], bool]


@dataclass(eq=False, slots=True)
class EmbedJob:
    """One call: its texts, what they became, and the future its caller waits on before it asks for the `result`.

    Mutated on the event loop only, except for what tokenizing fills in before the job is queued or run.
    """

    texts: list[str]
    kind: Kind
    lane: Lane
    long: Long
    future: asyncio.Future[None]
    queued: list[int]  # tokens accounted for by piece, 0 once run; estimated until tokenized
    normalize: bool
    first: int = 0  # number of its first text in the caller's request
    caller: str = ""  # callers share the bulk lane evenly, however many requests each has
    ran: Callable[[float], None] | None = None  # called on the loop with the bytes of each piece that ran
    arrived: float = field(default_factory=time.monotonic)
    pieces: list[Tokens] = field(default_factory=list)  # what runs: the texts, or their windows
    windows: list[int] = field(default_factory=list)  # how many pieces each text has; empty: one each
    plan: deque[list[int]] = field(default_factory=deque)  # batches of pieces, similar lengths together
    read: int = 0  # texts tokenized so far
    reading: Iterator[Tokens] | None = None  # remaining windows of a text that is being tokenized
    tokenize_s: float = 0.0
    started: float = 0.0  # time.monotonic() of its first run; 0 before
    ended: float = 0.0  # time.monotonic() when its last run ended
    dead: bool = False  # its caller has left; read by the workers without a lock
    _left: int = -1  # pieces without a vector; known after tokenizing
    _vectors: Floats | None = None

    @property
    def texts_left(self) -> int:
        """Texts, or windows of them, that have no vector yet."""
        return len(self.texts) if self._left < 0 else self._left

    def put(self, piece: int, vector: Floats, now: float) -> None:
        """Store the vector of a piece; the last one completes the job. Has no effect once the caller has left."""
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
        """Return the bytes of a piece. Windows each have an equal share of all texts."""
        if not self.in_windows:
            return len(self.texts[piece].encode())
        return sum(len(text.encode()) for text in self.texts) / len(self.pieces)

    @property
    def in_windows(self) -> bool:
        """Whether windows must be joined. That can take milliseconds, so not on the event loop."""
        return len(self.pieces) > len(self.texts)

    def result(self) -> EmbeddedTexts:
        """Return what the caller gets once the future is done. May be called from any thread."""
        assert self._vectors is not None
        lengths = [len(piece) for piece in self.pieces]
        if not self.in_windows:
            cut = [piece.truncated for piece in self.pieces]
            return EmbeddedTexts(self._vectors, lengths, cut, [1] * len(lengths), **self.times())
        tokens = np.add.reduceat(lengths, first_rows(self.windows)).tolist()
        whole = join_windows(self._vectors, lengths, self.windows, normalize=self.normalize)
        return EmbeddedTexts(whole, tokens, [False] * len(tokens), self.windows, **self.times())

    def times(self) -> dict[str, float]:
        """Return the seconds of each stage, under the field names of Embedded."""
        return {
            "tokenize_s": self.tokenize_s,
            "queue_s": max(0.0, self.started - self.arrived - self.tokenize_s),
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
    members: list[tuple[EmbedJob, int]] = field(default_factory=list)
    failed: list[tuple[EmbedJob, Exception]] = field(default_factory=list)
    tokenize_s: float = 0.0

    @property
    def tokens(self) -> list[Tokens]:
        return [job.pieces[position] for job, position in self.members]


class TextTokenizer(Protocol):
    @property
    def tokens_max(self) -> int: ...
    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[Tokens]: ...


class Lanes:
    """Hands out batches to `workers` threads. A single text that has no room runs alone."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        workers: int,
        texts_max: int,
        query_room: RunFits,
        bulk_room: RunFits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._workers = workers
        self._texts_max = texts_max
        self._query_room = query_room
        self._bulk_room = bulk_room
        self._clock = clock
        self._queries: deque[EmbedJob] = deque()
        self._bulk = Rotation[EmbedJob]()
        self._changed = threading.Condition()
        self._running: dict[Lane, int] = {"query": 0, "bulk": 0}
        self._query_seen = -QUERIES_LATELY_S  # when the last query arrived, by the clock
        self._bulk_turn = 0.0  # when bulk work last got, or started to wait for, its turn
        self._closed = False

    @property
    def bulk_workers(self) -> int:
        lately = self._clock() - self._query_seen < QUERIES_LATELY_S
        return max(1, self._workers - lately)

    def add_query(self, job: EmbedJob) -> None:
        with self._changed:
            self._queries.append(job)
            self._query_seen = self._clock()
            self._wake_for_queries()

    def add_bulk(self, job: EmbedJob) -> None:
        with self._changed:
            if not self._bulk:
                self._bulk_turn = self._clock()
            self._bulk.append(job.caller, job)
            self._changed.notify_all()

    def remove(self, job: EmbedJob) -> None:
        """Forget a job. Does nothing for one that is running or gone."""
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

    def end_batch(self, batch: Batch) -> None:
        """Record that a worker has run this batch."""
        with self._changed:
            self._running[batch.lane] -= 1
            if batch.lane == "bulk":  # after a query run the same worker checks for the next
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
            self.end_batch(batch)

    # --- whose turn it is; under the lock -------------------------------------------------------------------

    def _queries_may_run(self) -> bool:
        """Whether a new run may take the queries. Otherwise the worker that is running queries takes them next."""
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
        """Return the seconds until a worker kept free for queries may take bulk work; None if an event will wake it."""
        if not self._bulk or self._running["bulk"] == self._workers:
            return None
        return max(0.001, self._query_seen + QUERIES_LATELY_S - now)

    # --- queries --------------------------------------------------------------------------------------------

    def _query_batch(self, waiting: list[EmbedJob]) -> Batch:
        """Batch the oldest query and those that fit with it; the rest goes back to the front, in order."""
        batch = Batch("query")
        begun = time.monotonic()
        ready = [job for job in waiting if self._tokenize_query(job, batch)]
        batch.tokenize_s = time.monotonic() - begun
        lengths: list[int] = []
        rest: list[EmbedJob] = []
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
                # A job cancelled while it was out of the queue could not be removed from it.
                self._queries.extendleft(job for job in reversed(rest) if not job.dead)
                self._wake_for_queries()
        return batch

    def _tokenize_query(self, job: EmbedJob, batch: Batch) -> bool:
        """Tokenize a query and return whether it can run. An error belongs to its caller alone."""
        begun = time.monotonic()
        try:
            if not job.pieces:
                job.pieces = self._tokenizer.tokenize(job.texts, job.kind)
                if job.long == "refuse":
                    refuse_truncated(job.pieces, 0, self._tokenizer.tokens_max)
                job.tokenize_s = time.monotonic() - begun
        except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
            job.pieces = []
            job.tokenize_s = time.monotonic() - begun
            batch.failed.append((job, error))
        return bool(job.pieces)

    # --- bulk requests --------------------------------------------------------------------------------------

    def _bulk_batch(self) -> Batch:
        """Batch the next pieces of the first request with those of others that fit. The first request then goes to the
        back."""
        batch = Batch("bulk")
        lengths: list[int] = []
        looked_at: list[EmbedJob] = []
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


def guess_tokens(text: str, long: Long, tokens_max: int) -> list[int]:
    """Estimate how many tokens each piece of a text will have."""
    tokens = len(text) // CHARS_PER_TOKEN + 2
    if long != "windows":
        return [min(tokens, tokens_max)]
    return [min(tokens - at, tokens_max) for at in range(0, tokens, tokens_max)]


def split_parts(tokens: Sequence[int], tokens_max: int) -> list[range]:
    """Split texts of these lengths into ranges of at most `tokens_max` tokens, or of one text."""
    begins, held = [0], 0
    for at, more in enumerate(tokens):
        if at > begins[-1] and held + more > tokens_max:
            begins.append(at)
            held = 0
        held += more
    return [range(begin, end) for begin, end in zip(begins, [*begins[1:], len(tokens)])]
