"""The two queues of the batcher, and which texts share the next run.

Callers add and remove on the event loop, one worker thread takes batches; a lock guards the queues, and is never
held while tokenising or running.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from retrieval.embedding.encoder import Floats
from retrieval.embedding.models import Kind
from retrieval.embedding.tokens import Tokens

WASTE_MAX = 2  # a shared run may compute this many times its real tokens ...
WASTE_TOKENS_FREE = 64  # ... and this many more: below, a second run costs more than the padding
JOBS_LOOKED_AT = 64  # bulk requests considered for one run; bounds the time under the lock


class Job:
    """One call: its texts, what they became, and the future its caller waits on. Mutated on the event loop only,
    except `tokens` and `plan`, which the tokenising thread fills before the job is queued.
    """

    def __init__(
        self,
        lane: Kind,
        texts: list[str],
        future: asyncio.Future[Floats],
        dimensions: int,
        tokens: int,
        arrived: float,
    ) -> None:
        self.lane: Kind = lane
        self.texts = texts
        self.future = future
        self.arrived = arrived  # time.monotonic()
        self.queued_tokens = tokens  # of texts that still wait; a guess until tokenised
        self.tokens: list[Tokens] = []
        self.plan: deque[list[int]] = deque()  # batches of positions, similar lengths together
        self.remaining = len(texts)
        self.dead = False  # nobody waits any more; read by the worker without a lock
        self._vectors: Floats = np.empty((len(texts), dimensions), dtype=np.float32)

    def put(self, position: int, vector: Floats) -> None:
        self._vectors[position] = vector
        self.remaining -= 1
        if self.remaining == 0 and not self.future.done():
            self.future.set_result(self._vectors)

    def fail(self, error: BaseException) -> None:
        self.dead = True
        if not self.future.done():
            self.future.set_exception(error)


@dataclass
class Batch:
    """Texts of one lane for one run, as (job, position) pairs, and jobs whose text could not be tokenised."""

    lane: Kind
    members: list[tuple[Job, int]] = field(default_factory=list)
    failed: list[tuple[Job, Exception]] = field(default_factory=list)

    @property
    def tokens(self) -> list[Tokens]:
        return [job.tokens[position] for job, position in self.members]


class Tokeniser(Protocol):
    def tokenise(self, texts: Sequence[str], kind: Kind) -> list[Tokens]: ...


class Lanes:
    """Queries first, then bulk requests in turn. Batches stay within the bounds given, in padded tokens and texts;
    a single text over the bound runs alone.
    """

    def __init__(
        self, tokeniser: Tokeniser, query_tokens_max: int, texts_max: int, bulk_tokens_max: int
    ) -> None:
        self._tokeniser = tokeniser
        self._query_tokens_max = query_tokens_max
        self._bulk_tokens_max = bulk_tokens_max
        self._texts_max = texts_max
        self._queries: deque[Job] = deque()
        self._bulk: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def add_query(self, job: Job) -> None:
        with self._changed:
            self._queries.append(job)
            self._changed.notify()

    def add_bulk(self, job: Job) -> None:
        with self._changed:
            self._bulk.append(job)
            self._changed.notify()

    def remove(self, job: Job) -> None:
        """Forget a job; one that is under way, or gone, is no error."""
        lane = self._queries if job.lane == "query" else self._bulk
        with self._changed:
            if job in lane:
                lane.remove(job)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._queries.clear()
            self._bulk.clear()
            self._changed.notify()

    def next_batch(self) -> Batch | None:
        """Wait for work and take it: a batch, possibly with failures only, or None once closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queries or self._bulk or self._closed)
                if self._closed:
                    return None
                if not self._queries:
                    batch = self._bulk_batch()
                    if batch.members:
                        return batch
                    continue
                waiting = [self._queries.popleft() for _ in range(min(len(self._queries), self._texts_max))]
            batch = self._query_batch([job for job in waiting if not job.dead])
            if batch.members or batch.failed:
                return batch

    def _query_batch(self, waiting: list[Job]) -> Batch:
        """The oldest query and those that fit beside it; the rest goes back to the front, in order."""
        batch = Batch("query")
        ready = self._tokenised(waiting, batch)
        lengths: list[int] = []
        rest: list[Job] = []
        for job in ready:
            if fits([*lengths, len(job.tokens[0])], self._query_tokens_max):
                lengths.append(len(job.tokens[0]))
                batch.members.append((job, 0))
            else:
                rest.append(job)
        with self._changed:
            if not self._closed:
                # Who was cancelled meanwhile could not be removed from a queue that did not hold it.
                self._queries.extendleft(job for job in reversed(rest) if not job.dead)
        return batch

    def _tokenised(self, jobs: list[Job], batch: Batch) -> Iterator[Job]:
        new = [job for job in jobs if not job.tokens]
        try:
            found = self._tokeniser.tokenise([job.texts[0] for job in new], "query") if new else []
            for job, tokens in zip(new, found, strict=True):
                job.tokens.append(tokens)
        except Exception:  # noqa: BLE001 - found out below which text it was
            for job in new:
                try:
                    job.tokens[:] = self._tokeniser.tokenise(job.texts, "query")
                except Exception as error:  # noqa: BLE001 - any error belongs to the caller whose text caused it
                    batch.failed.append((job, error))
        return (job for job in jobs if job.tokens)

    def _bulk_batch(self) -> Batch:
        """The next piece of the first request, and pieces of others that fit beside it. The first goes last."""
        batch = Batch("document")
        lengths: list[int] = []
        looked_at: list[Job] = []
        for _ in range(min(len(self._bulk), JOBS_LOOKED_AT)):
            job = self._bulk.popleft()
            if job.dead or not job.plan:
                continue
            piece = [len(job.tokens[position]) for position in job.plan[0]]
            together = lengths + piece
            if not lengths or (len(together) <= self._texts_max and fits(together, self._bulk_tokens_max)):
                batch.members.extend((job, position) for position in job.plan.popleft())
                lengths = together
                if job.plan:
                    self._bulk.append(job)
            else:
                looked_at.append(job)
        self._bulk.extendleft(reversed(looked_at))
        return batch


def fits(lengths: Sequence[int], tokens_max: int) -> bool:
    """Whether texts of these lengths should share a run: within the bound, and not mostly padding."""
    if len(lengths) == 1:
        return True
    padded = max(lengths) * len(lengths)
    return padded <= tokens_max and padded <= WASTE_MAX * sum(lengths) + WASTE_TOKENS_FREE
