"""The threads that search: one at a time while searches are short, more in parallel when one takes long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from indexes.dense.vectors import search_with_one_thread
from retrieval.access.auth import PRINCIPAL

T = TypeVar("T")

TURN_S = 0.02  # when a search takes longer, the next one starts in parallel


class SearchJob(NamedTuple):
    work: Callable[[], Any]
    future: Future[Any]
    long: bool
    key: str


class SearchThreads:
    """Runs the work of searches in turns, because two at once contend for the GIL, which slows down both.

    A thread goes from one job to the next without the event loop. Of the idle threads, the one that ran last is used
    first, because its memory is in the CPU's caches. Call `submit`, `run` and `close` from one event loop.

    The next job belongs to the access key whose jobs have used the least time so far, so cheap searches of one key run
    before expensive ones of another. A key that pauses earns no credit (start-time fair queueing).
    """

    def __init__(
        self, threads: int, *, turn_s: float = TURN_S, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`clock` measures the work, in seconds."""
        self._turn_s = turn_s
        self._clock = clock
        self._took: dict[str, float] = {}  # seconds of work by key; a returning key starts at `_reached`
        self._reached = 0.0  # the `_took` of the key whose work began last
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: deque[SearchJob] = deque()
        self._turn: tuple[SearchJob, float] | None = None  # the job whose turn it is, and since when
        self._timer: asyncio.TimerHandle | None = None  # set while jobs wait
        self._inboxes = [SimpleQueue[SearchJob | None]() for _ in range(threads)]
        self._idle = list(self._inboxes)  # the last one is used next
        self._threads = [
            threading.Thread(target=self._work, args=(inbox,), name=f"search-{number}", daemon=True)
            for number, inbox in enumerate(self._inboxes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def idle(self) -> bool:
        """Whether a thread has nothing to do."""
        return bool(self._idle)

    def submit(self, work: Callable[[], T], *, long: bool = False) -> Future[T]:
        """Queue work for a thread. `long` work takes a while by nature, so it neither takes a turn nor waits for
        one."""
        in_context = partial(copy_context().run, work)  # so that its log lines name the request
        job = SearchJob(in_context, Future(), long, PRINCIPAL.get().key)
        with self._lock:
            if self._closed:
                raise RuntimeError("the search threads are closed")
            self._waiting.append(job)
            self._took[job.key] = max(self._took.get(job.key, 0.0), self._reached)
        self._look()
        return job.future

    async def run(self, work: Callable[[], T], *, long: bool = False) -> T:
        """Submit work and await it. If the caller leaves, work that has begun keeps its thread until it ends."""
        loop, done = asyncio.get_running_loop(), self.submit(work, long=long)
        answer: asyncio.Future[T] = loop.create_future()
        done.add_done_callback(partial(hand_over, loop, answer))
        try:
            return await answer
        finally:
            done.cancel()
            del done, answer, work  # for the reason that `perform` gives

    def close(self) -> None:
        """Cancel jobs that have not begun, and wait for those that have."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            job.future.cancel()
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        """Start what may start, and check again while jobs wait: a turn can expire before its job ends."""
        with self._lock:
            while self._idle and (job := self._next()) is not None:
                self._idle.pop().put(job)
            waiting = bool(self._waiting)
        if waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._turn_s, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._look()

    def _next(self) -> SearchJob | None:
        """Start and return the next job that may begin. Call under the lock."""
        over = self._turn is None or time.monotonic() - self._turn[1] > self._turn_s
        while may := [job for job in self._waiting if job.long or over]:
            job = min(may, key=lambda job: self._took[job.key])  # first come, first served within a key
            self._waiting.remove(job)
            if job.future.set_running_or_notify_cancel():
                self._reached = max(self._reached, self._took[job.key])
                if not job.long:
                    self._turn = job, time.monotonic()
                return job
        return None

    def _work(self, inbox: SimpleQueue[SearchJob | None]) -> None:
        search_with_one_thread()
        job = inbox.get()
        while job is not None:
            begun = self._clock()
            perform(job)
            job = self._after(job, self._clock() - begun, inbox)
            if job is None:
                job = inbox.get()

    def _after(
        self, ended: SearchJob, took_s: float, inbox: SimpleQueue[SearchJob | None]
    ) -> SearchJob | None:
        """Account for an ended job and return what its thread does next; None if it becomes idle."""
        with self._lock:
            self._took[ended.key] += took_s
            if self._turn is not None and self._turn[0] is ended:
                self._turn = None
            job = self._next()
            if job is None:
                self._idle.append(inbox)
            return job


def perform(job: SearchJob) -> None:
    future = job.future
    try:
        future.set_result(job.work())
    except BaseException as error:  # noqa: BLE001 - it belongs to the caller
        future.set_exception(error)
    finally:
        # An error refers to this frame, so the work's objects would otherwise wait for the garbage collector.
        del job, future


def hand_over(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], done: Future[T]) -> None:
    loop.call_soon_threadsafe(settle, answer, done)


def settle(answer: asyncio.Future[T], done: Future[T]) -> None:
    """Resolve the answer with the outcome of the work, unless its caller has left."""
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
