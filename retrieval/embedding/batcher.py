"""Many callers, one encoder: texts that wait at the same moment share a run.

    embed, one text    -> query lane --.
                                        >- workers: pick a batch, run it, hand the vectors back to the loop
    embed, many texts  -> bulk lane  --'
      (tokenized in a thread of its own)

- An idle encoder starts at once; there is no batching window. What arrives during a run shares the next one.
- The cost model keeps every run short, because a query may have to wait for it to end.
- A caller that is cancelled, or whose deadline passes, leaves the queue: nothing is computed for it.
- A run that fails is repeated text by text, so that only the text at fault fails.
- Queues are bounded in tokens, the query lane also in predicted time. A refused caller is told when they will be empty.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import numpy as np

from indexes.base.errors import DeadlineExceeded, NotReady, TooLarge
from indexes.base.model import Floats
from indexes.base.priority import step_aside
from retrieval.embedding.bounds import TOO_LATE, Bounds, LargeRequests
from retrieval.embedding.costs import CostModel, TextLoad
from retrieval.embedding.encoder import by_length
from retrieval.embedding.lanes import Batch, EmbedJob, Lanes, TextTokenizer, guess_tokens, split_parts
from retrieval.embedding.models import Kind
from retrieval.embedding.results import (
    EmbeddedTexts,
    Lane,
    Long,
    Observer,
    Outcome,
    outcome_of,
    refuse_truncated,
)
from retrieval.embedding.tokens import Tokens

QUERY_CHARS_MAX = 1024  # a single text up to here goes to the query lane
# Texts of a bulk request, and windows of a text, between two chances for other requests or for a cancellation.
TOKENIZED_AT_ONCE, WINDOWS_AT_ONCE = 16, 64
PART_TOKENS_MAX = 16_384  # of a large request, queued at a time; enough for sorting by length to pay off


class Runner(TextTokenizer, Protocol):
    """What the batcher needs from an Encoder."""

    @property
    def dimensions(self) -> int: ...
    @property
    def normalizes(self) -> bool: ...
    def windows(self, text: str, kind: Kind) -> Iterator[Tokens]: ...
    def run(self, batch: Sequence[Tokens]) -> Floats: ...


class Batcher:
    """Shared runs of one encoder. Use from one event loop: `start`, then embed from any task, then `close`.

        workers              how many runs go in parallel
        query_run_s          predicted time of one run at most; a single text that takes longer runs alone
        bulk_run_s           the same for bulk runs
        query_wait_s_max     a query is refused when those before it take longer
        large_wait_s_max     a large request is refused when others delay it for longer
        in_background        runs give way to the searches of other processes
        queue_tokens_max     bounds each lane separately, so that a flood of documents never refuses a query

    The last quarter of the bulk queue is for small requests. A large request is split into parts of at most a quarter
    of it, each queued when the one before has run. Only its first part counts against the bound: once that is admitted,
    the rest follows. Large requests take turns.
    """

    def __init__(
        self,
        encoder: Runner,
        *,
        workers: int,
        query_run_s: float,
        bulk_run_s: float,
        batch_texts_max: int,
        queue_tokens_max: int,
        query_wait_s_max: float = float("inf"),
        large_wait_s_max: float = float("inf"),
        in_background: bool = False,
        costs: CostModel | None = None,
        observe: Observer | None = None,
    ) -> None:
        self._encoder = encoder
        self._in_background = in_background
        self._workers = workers
        self._bulk_run_s = bulk_run_s
        self._batch_texts_max = batch_texts_max
        self._queue_tokens_max = queue_tokens_max
        self._bounds = Bounds(queue_tokens_max, query_wait_s_max)
        self._large = LargeRequests(self._seconds_of, large_wait_s_max)
        self._part_tokens_max = min(PART_TOKENS_MAX, max(1, queue_tokens_max // 4))
        self._observe: Observer = observe or Observer()
        self.costs = costs or CostModel()
        self._lanes = Lanes(
            encoder, workers=workers, texts_max=batch_texts_max,
            query_room=lambda texts, longest: self.costs.seconds(texts, longest) <= query_run_s,
            bulk_room=self._bulk_room,
        )  # fmt: skip
        self._queued: dict[Lane, TextLoad] = {"query": TextLoad(), "bulk": TextLoad()}
        self._jobs: set[EmbedJob] = set()
        self.bulk_ended = 0.0  # time.monotonic() when the last bulk run ended
        self._running = False

    async def start(self) -> None:
        """Start the worker threads. All callers must be on the loop that calls this."""
        self._loop = asyncio.get_running_loop()
        self._tokenizer_pool = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._threads = [
            threading.Thread(target=self._work, name=f"embed-{number}", daemon=True)
            for number in range(self._workers)
        ]
        self._running = True
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        """Refuse waiting requests with NotReady, let the current runs end, and stop the threads. Can be called
        twice."""
        if not self._running:
            return
        self._running = False
        self._lanes.close()
        for job in list(self._jobs):
            job.fail(NotReady("the encoder is closing"))
        self._tokenizer_pool.shutdown(wait=False, cancel_futures=True)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    async def embed(
        self,
        texts: Sequence[str],
        kind: Kind,
        *,
        lane: Lane | None = None,
        long: Long = "cut",
        deadline: float | None = None,
        caller: str = "",
        progress: Callable[[float], None] | None = None,
    ) -> EmbeddedTexts:
        """Return the vectors of the texts, in order, with what was read of each.

        kind        whose prefix the texts get
        lane        by default a single text of moderate length is a query and anything else is bulk, as are windows;
                    several texts cannot be a query
        long        how to treat a text longer than the model reads: `cut` drops its end, `windows` reads it in pieces
                    and averages them, `refuse` raises TooLong naming the text
        deadline    in the loop's time (`loop.time()`)
        caller      whose share of the bulk lane this uses
        progress    for bulk requests: called on the loop after each run, with the share of the bytes that is done

        Raises Overloaded when the lane is full or cannot meet the deadline, DeadlineExceeded when that passes, TooLarge
        for more windows than the queue can hold, and the error of a text that cannot be embedded, to this caller alone.
        """
        if not texts:
            return EmbeddedTexts(np.empty((0, self._encoder.dimensions), dtype=np.float32), [], [], [])
        single = len(texts) == 1 and len(texts[0]) <= QUERY_CHARS_MAX and long != "windows"
        chosen: Lane = lane or ("query" if single else "bulk")
        if chosen == "query" and len(texts) > 1:
            raise ValueError("the query lane takes one text at a time")

        size, done = max(1, sum(len(text.encode()) for text in texts)), 0.0

        async def embed_part(part: range) -> EmbeddedTexts:
            some = [texts[at] for at in part]
            job = self._admit(chosen, some, kind, long, deadline, first=part.start)
            job.caller = caller
            if progress is not None:
                job.ran = ran
            return await self._embed(job, deadline)

        def ran(more: float) -> None:
            nonlocal done
            done += more
            assert progress is not None
            progress(min(1.0, done / size))

        if chosen == "bulk" and long != "windows":
            guesses = [sum(guess_tokens(text, long, self._encoder.tokens_max)) for text in texts]
            parts = split_parts(guesses, self._part_tokens_max)
            if len(parts) > 1:
                return await self._large.embed(parts, guesses, embed_part, deadline, caller)
        return await embed_part(range(len(texts)))

    async def _embed(self, job: EmbedJob, deadline: float | None) -> EmbeddedTexts:
        try:
            await self._answer(job, deadline)
        except DeadlineExceeded:
            self._observe.left(job.lane, job.texts_left, "deadline")
            raise
        except asyncio.CancelledError:
            self._observe.left(job.lane, job.texts_left, "cancelled")
            raise
        finally:
            self._leave(job)
        return await asyncio.to_thread(job.result) if job.in_windows else job.result()

    # --- the queue's account --------------------------------------------------------------------------------

    def _admit(
        self, lane: Lane, texts: list[str], kind: Kind, long: Long, deadline: float | None, *, first: int
    ) -> EmbedJob:
        if not self._running:
            raise NotReady("the encoder is closed")
        guesses = [piece for text in texts for piece in guess_tokens(text, long, self._encoder.tokens_max)]
        tokens, queued = sum(guesses), self._queued[lane]
        if long == "windows" and tokens > self._queue_tokens_max:
            raise TooLarge(
                f"about {tokens} tokens to read in windows, one request may hold {self._queue_tokens_max}"
            )
        left_s = None if deadline is None else deadline - self._loop.time()
        more = tokens if first == 0 else 0
        if refusal := self._bounds.refusal(
            lane, queued=queued.tokens, more=more, wait_s=self._seconds_of(self._queued[lane]), left_s=left_s
        ):
            self._observe.left(lane, len(texts), "refused")
            raise refusal
        future, normalize = self._loop.create_future(), self._encoder.normalizes
        job = EmbedJob(texts, kind, lane, long, future, guesses, normalize, first)
        self._jobs.add(job)
        for length in guesses:
            queued.add(length)
        self._observe.queued(lane, queued.tokens)
        return job

    def _seconds_of(self, load: TextLoad) -> float:
        return self.costs.seconds_of(load) / self._workers

    @property
    def bytes_per_s(self) -> float:
        """About how fast text of documents is embedded, by the cost of recent runs."""
        return self._lanes.bulk_workers * self.costs.bytes_per_s

    def _release(self, job: EmbedJob, positions: Sequence[int]) -> None:
        """Take these pieces off the queue's account."""
        load = self._queued[job.lane]
        for position in positions:
            if job.queued[position]:
                load.add(job.queued[position], -1)
                job.queued[position] = 0

    def _leave(self, job: EmbedJob) -> None:
        """Take a job off the queue and its account, whatever its outcome."""
        job.dead = True
        self._jobs.discard(job)
        if job.texts_left:
            self._lanes.remove(job)
            self._release(job, range(len(job.queued)))
            self._observe.queued(job.lane, self._queued[job.lane].tokens)

    async def _answer(self, job: EmbedJob, deadline: float | None) -> None:
        """Queue a job, and wait until all of it has run."""
        try:
            async with asyncio.timeout_at(deadline):
                if job.lane == "query":
                    self._lanes.add_query(job)
                else:
                    self._read_on(job)
                await job.future
        except TimeoutError as error:
            raise DeadlineExceeded(TOO_LATE) from error

    # --- bulk requests: tokenized in their own thread, planned by length, then queued -----------------------

    def _read_on(self, job: EmbedJob) -> None:
        """Tokenize the next texts of a job, then let other jobs have their turn."""
        reading = self._loop.run_in_executor(self._tokenizer_pool, self._tokenize_some, job)
        reading.add_done_callback(lambda outcome: self._after_tokenizing(job, outcome))

    def _tokenize_some(self, job: EmbedJob) -> None:
        begun = time.monotonic()
        if job.dead:
            return
        if job.long == "windows":
            if job.reading is None:
                job.reading = self._encoder.windows(job.texts[job.read], job.kind)
                job.windows.append(0)
            some = list(islice(job.reading, WINDOWS_AT_ONCE))
            job.pieces.extend(some)
            job.windows[-1] += len(some)
            if len(some) < WINDOWS_AT_ONCE:
                job.reading = None
                job.read += 1
        else:
            found = self._encoder.tokenize(job.texts[job.read : job.read + TOKENIZED_AT_ONCE], job.kind)
            if job.long == "refuse":
                refuse_truncated(found, job.first + job.read, self._encoder.tokens_max)
            job.pieces.extend(found)
            job.read += len(found)
        if job.read == len(job.texts):
            lengths = [len(tokens) for tokens in job.pieces]
            job.plan.extend(by_length(lengths, self._bulk_room, self._batch_texts_max))
        job.tokenize_s += time.monotonic() - begun

    def _bulk_room(self, texts: int, longest: int) -> bool:
        return self.costs.seconds(texts, longest) <= self._bulk_run_s

    def _after_tokenizing(self, job: EmbedJob, outcome: asyncio.Future[None]) -> None:
        if outcome.cancelled() or job.dead:
            return
        if (error := outcome.exception()) is not None:
            job.fail(error)
            return
        if job.read < len(job.texts):
            self._read_on(job)
            return
        self._release(job, range(len(job.queued)))
        job.queued = [len(tokens) for tokens in job.pieces]
        for length in job.queued:
            self._queued[job.lane].add(length)
        self._observe.tokenized(job.lane, len(job.texts), job.tokenize_s)
        self._observe.queued(job.lane, self._queued[job.lane].tokens)
        self._lanes.add_bulk(job)

    # --- the workers ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        if self._in_background:
            step_aside()
        while (batch := self._lanes.next_batch()) is not None:
            started = time.monotonic()
            try:
                found = self._outcome(batch)
            finally:
                self._lanes.end_batch(batch)
            self._hand_over(batch, found, started, time.monotonic())

    def _outcome(self, batch: Batch) -> Outcome:
        return outcome_of(self._encoder.run, batch.tokens) if batch.members else []

    def _hand_over(self, batch: Batch, found: Outcome, started: float, ended: float) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, batch, found, started, ended)
        except RuntimeError:  # the loop was closed without `close`: there is no caller left to answer
            self._lanes.close()

    def _settle(self, batch: Batch, found: Outcome, started: float, ended: float) -> None:
        """On the loop: give each caller its vectors. Statistics are updated after the callers have run."""
        for job, error in batch.failed:
            job.fail(error)
        for (job, position), vector in zip(batch.members, found):
            job.started = job.started or started
            self._release(job, (position,))
            if isinstance(vector, Exception):
                job.fail(vector)
            else:
                job.put(position, vector, ended)
            if job.ran is not None:
                job.ran(job.bytes_of(position))
        self._loop.call_soon(self._account, batch, found, started, ended)

    def _account(self, batch: Batch, found: Outcome, started: float, ended: float) -> None:
        if batch.lane == "query":
            self._observe.tokenized("query", len(batch.members) + len(batch.failed), batch.tokenize_s)
        if batch.members:
            lengths = [len(tokens) for tokens in batch.tokens]
            arrived = min(job.arrived for job, _ in batch.members)
            if isinstance(found, np.ndarray):
                self.costs.learn(len(lengths), max(lengths), ended - started)
            if batch.lane == "bulk":
                self.bulk_ended = ended
                self.costs.read(sum(job.bytes_of(position) for job, position in batch.members), sum(lengths))
            self._observe.queued(batch.lane, self._queued[batch.lane].tokens)
            self._observe.ran(
                batch.lane,
                texts=len(lengths),
                tokens=sum(lengths),
                padded_tokens=max(lengths) * len(lengths),
                wait_s=max(0.0, started - arrived),
                run_s=ended - started,
            )
