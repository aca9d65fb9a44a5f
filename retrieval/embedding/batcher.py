"""Many callers, one encoder: texts that wait at the same moment share a run.

    embed_query      -> query lane --.
                                      >- worker thread: pick a batch, run it, hand the vectors back to the loop
    embed_documents  -> bulk lane  --'
      (tokenised in a thread of its own)

- An idle encoder starts at once; there is no window to wait for. What arrives during a run shares the next one.
- Queries overtake documents. Bulk runs are bounded tightly, because a query waits for the one under way.
- Requests in the bulk lane take turns, so one document is not stuck behind a thousand; small ones share runs.
- A caller that is cancelled, or whose deadline passes, leaves the queue: nothing is computed for the dead.
- A run that fails is repeated text by text, so that only the text at fault fails.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol

import numpy as np

from indexes.errors import DeadlineExceeded, NotReady, Overloaded
from retrieval.embedding.encoder import Floats, by_length
from retrieval.embedding.lanes import Batch, Job, Lanes
from retrieval.embedding.models import Kind
from retrieval.embedding.tokens import Tokens

logger = logging.getLogger(__name__)

CHARS_PER_TOKEN = 3  # a guess for texts not tokenised yet; exact counts take its place
TOKENISED_AT_ONCE = 64  # texts of a bulk request; a cancelled one stops after these
TOKENS_PER_S_FIRST = 5000.0  # assumed speed before the first run was measured
RETRY_AFTER_S = (1.0, 60.0)  # the least and the most a refused caller is asked to wait


class Runner(Protocol):
    """What the batcher needs of an Encoder."""

    @property
    def dimensions(self) -> int: ...
    @property
    def tokens_max(self) -> int: ...
    def tokenise(self, texts: Sequence[str], kind: Kind) -> list[Tokens]: ...
    def run(self, batch: Sequence[Tokens]) -> Floats: ...


class Observer(Protocol):
    """Hears what happens, always on the event loop's thread; should return at once."""

    def ran(
        self, lane: Kind, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        """One run ended. `wait_s`: from the arrival of its oldest text to its start."""

    def queued(self, lane: Kind, tokens: int) -> None:
        """Tokens that wait in a lane now."""

    def left(self, lane: Kind, texts: int, reason: Literal["cancelled", "deadline", "refused"]) -> None:
        """Texts that will not be embedded."""


class Silent:
    """An observer that does not listen."""

    def ran(
        self, lane: Kind, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        pass

    def queued(self, lane: Kind, tokens: int) -> None:
        pass

    def left(self, lane: Kind, texts: int, reason: Literal["cancelled", "deadline", "refused"]) -> None:
        pass


class Batcher:
    """Shared runs of one encoder. Use from one event loop: `start`, then embed from any task, then `close`.

    `queue_tokens_max` bounds each lane by itself, so that a flood of documents never refuses a query. A single
    request larger than that is admitted when its lane is empty: it could never be embedded otherwise.
    """

    def __init__(
        self,
        encoder: Runner,
        *,
        batch_tokens_max: int,
        batch_texts_max: int,
        queue_tokens_max: int,
        bulk_batch_tokens_max: int,
        observe: Observer | None = None,
    ) -> None:
        self._encoder = encoder
        self._batch_texts_max = batch_texts_max
        self._bulk_batch_tokens_max = bulk_batch_tokens_max
        self._queue_tokens_max = queue_tokens_max
        self._observe: Observer = observe or Silent()
        self._lanes = Lanes(encoder, batch_tokens_max, batch_texts_max, bulk_batch_tokens_max)
        self._queued: dict[Kind, int] = {"query": 0, "document": 0}
        self._jobs: set[Job] = set()
        self._tokens_per_s = TOKENS_PER_S_FIRST
        self._running = False

    async def start(self) -> None:
        """Start the worker threads. The loop that calls this is the one that all callers must be on."""
        self._loop = asyncio.get_running_loop()
        self._tokenisers = ThreadPoolExecutor(1, thread_name_prefix="tokenise")
        self._worker = threading.Thread(target=self._work, name="embed", daemon=True)
        self._running = True
        self._worker.start()

    async def close(self) -> None:
        """Refuse what waits with NotReady, let the run under way end, stop the threads. Can be called twice."""
        if not self._running:
            return
        self._running = False
        self._lanes.close()
        for job in list(self._jobs):
            job.fail(NotReady("the encoder is closing"))
        self._tokenisers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._worker.join)

    async def embed_query(self, text: str, deadline: float | None = None) -> Floats:
        """Vector [dimensions] of a query. `deadline` in the loop's time (`loop.time()`).

        Raises Overloaded when the query lane is full, DeadlineExceeded when the deadline passes first.
        """
        job = self._admit("query", [text])
        self._lanes.add_query(job)
        vectors = await self._answer(job, deadline)
        vector: Floats = vectors[0]
        return vector

    async def embed_documents(self, texts: Sequence[str]) -> Floats:
        """Vectors [texts, dimensions] of documents, in order. Raises Overloaded when the bulk lane is full.

        If a text cannot be embedded the whole call fails with its error; other callers are not touched.
        """
        if not texts:
            return np.empty((0, self._encoder.dimensions), dtype=np.float32)
        job = self._admit("document", list(texts))
        tokenising = self._loop.run_in_executor(self._tokenisers, self._tokenise, job)
        tokenising.add_done_callback(lambda future: self._tokenised(job, future))
        return await self._answer(job, None)

    def _admit(self, lane: Kind, texts: list[str]) -> Job:
        if not self._running:
            raise NotReady("the encoder is closed")
        tokens = sum(min(self._encoder.tokens_max, len(text) // CHARS_PER_TOKEN + 2) for text in texts)
        queued = self._queued[lane]
        if queued and queued + tokens > self._queue_tokens_max:
            self._observe.left(lane, len(texts), "refused")
            wait_s = min(max(queued / self._tokens_per_s, RETRY_AFTER_S[0]), RETRY_AFTER_S[1])
            raise Overloaded(
                f"{queued} tokens already wait to be embedded, at most {self._queue_tokens_max} may",
                retry_after_s=wait_s,
            )
        job = Job(lane, texts, self._loop.create_future(), self._encoder.dimensions, tokens, time.monotonic())
        self._jobs.add(job)
        self._waiting(lane, tokens)
        return job

    async def _answer(self, job: Job, deadline: float | None) -> Floats:
        try:
            async with asyncio.timeout_at(deadline):
                return await job.future
        except TimeoutError as error:
            self._observe.left(job.lane, job.remaining, "deadline")
            raise DeadlineExceeded("the deadline passed before the text was embedded") from error
        except asyncio.CancelledError:
            self._observe.left(job.lane, job.remaining, "cancelled")
            raise
        finally:
            job.dead = True
            self._jobs.discard(job)
            self._lanes.remove(job)
            self._waiting(job.lane, -job.queued_tokens)
            job.queued_tokens = 0

    def _waiting(self, lane: Kind, change: int) -> None:
        self._queued[lane] += change
        if change:
            self._observe.queued(lane, self._queued[lane])

    # -- bulk requests: tokenised in their own thread, planned by length, then queued --------------------------------

    def _tokenise(self, job: Job) -> None:
        for at in range(0, len(job.texts), TOKENISED_AT_ONCE):
            if job.dead:
                return
            job.tokens.extend(self._encoder.tokenise(job.texts[at : at + TOKENISED_AT_ONCE], job.lane))
        lengths = [len(tokens) for tokens in job.tokens]
        job.plan.extend(by_length(lengths, self._bulk_batch_tokens_max, self._batch_texts_max))

    def _tokenised(self, job: Job, outcome: asyncio.Future[None]) -> None:
        if outcome.cancelled() or job.dead:
            return
        if (error := outcome.exception()) is not None:
            job.fail(error)
            return
        exact = sum(map(len, job.tokens))
        self._waiting(job.lane, exact - job.queued_tokens)
        job.queued_tokens = exact
        self._lanes.add_bulk(job)

    # -- the worker thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (batch := self._lanes.next_batch()) is not None:
            started = time.monotonic()
            outcome = self._run(batch.tokens) if batch.members else []
            self._hand_over(batch, outcome, started, time.monotonic() - started)

    def _run(self, tokens: list[Tokens]) -> Floats | list[Floats | Exception]:
        """Vectors of a batch; after a failure the outcome of each text by itself."""
        try:
            return self._encoder.run(tokens)
        except Exception as error:  # noqa: BLE001 - any error belongs to the caller whose text caused it
            if len(tokens) == 1:
                return [error]
            logger.warning("a shared run failed, its %d texts are repeated singly: %s", len(tokens), error)
            return [self._run_one(each) for each in tokens]

    def _run_one(self, tokens: Tokens) -> Floats | Exception:
        try:
            vector: Floats = self._encoder.run([tokens])[0]
            return vector
        except Exception as error:  # noqa: BLE001 - as above
            return error

    def _hand_over(
        self, batch: Batch, outcome: Floats | list[Floats | Exception], started: float, run_s: float
    ) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, batch, outcome, started, run_s)
        except RuntimeError:  # the loop was closed without `close`: nobody is left to answer
            self._lanes.close()

    def _settle(
        self, batch: Batch, outcome: Floats | list[Floats | Exception], started: float, run_s: float
    ) -> None:
        """On the loop: give each caller its vectors, and tell the observer."""
        for job, error in batch.failed:
            job.fail(error)
        if not batch.members:
            return
        lengths = [len(tokens) for tokens in batch.tokens]
        for (job, position), vector, length in zip(batch.members, outcome, lengths):
            self._release(job, length)
            if isinstance(vector, Exception):
                job.fail(vector)
            else:
                job.put(position, vector)
        if run_s > 0:
            self._tokens_per_s += 0.2 * (sum(lengths) / run_s - self._tokens_per_s)
        self._observe.ran(
            batch.lane,
            texts=len(lengths),
            tokens=sum(lengths),
            padded_tokens=max(lengths) * len(lengths),
            wait_s=max(0.0, started - min(job.arrived for job, _ in batch.members)),
            run_s=run_s,
        )

    def _release(self, job: Job, length: int) -> None:
        """A text's tokens no longer wait. A query's were guessed, and all of the guess goes back."""
        tokens = job.queued_tokens if job.lane == "query" else min(length, job.queued_tokens)
        job.queued_tokens -= tokens
        self._waiting(job.lane, -tokens)
