"""The threads that search: one for as long as searches are short, others beside one that takes long."""

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

TURN_S = 0.02  # one that takes longer lets the next begin beside it


class Job(NamedTuple):
    work: Callable[[], Any]
    future: Future[Any]
    long: bool
    key: str


class SearchThreads:
    """Runs work of searches in turns: two at once contend for the interpreter, which costs both. A thread goes from one
    to the next without the event loop. Of idle ones that which ran last is taken first, because it finds its memory in
    the processor's caches. `submit`, `run` and `close` are for one event loop.

    The next work is that of the access key whose work took the least time so far: beside dear searches of one key, the
    cheap ones of another come first. A key that pauses saves nothing up (start-time fair queueing).
    """

    def __init__(
        self, threads: int, *, turn_s: float = TURN_S, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`clock` measures the work, in seconds."""
        self._turn_s = turn_s
        self._clock = clock
        self._took: dict[str, float] = {}  # seconds of work by key; one that comes again begins at `_reached`
        self._reached = 0.0  # those of the key whose work began last
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: deque[Job] = deque()
        self._turn: tuple[Job, float] | None = None  # whose it is, and since when
        self._timer: asyncio.TimerHandle | None = None  # while some wait
        self._inboxes = [SimpleQueue[Job | None]() for _ in range(threads)]
        self._idle = list(self._inboxes)  # the last one is the next
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
        """`long`: it takes a while by its nature, and neither takes a turn nor waits for one."""
        in_context = partial(copy_context().run, work)  # for what is logged there
        job = Job(in_context, Future(), long, PRINCIPAL.get().key)
        with self._lock:
            if self._closed:
                raise RuntimeError("the search threads are closed")
            self._waiting.append(job)
            self._took[job.key] = max(self._took.get(job.key, 0.0), self._reached)
        self._look()
        return job.future

    async def run(self, work: Callable[[], T], *, long: bool = False) -> T:
        """The same, awaited. Work that has begun goes on when its caller leaves, and keeps its thread until it ends."""
        loop, done = asyncio.get_running_loop(), self.submit(work, long=long)
        answer: asyncio.Future[T] = loop.create_future()
        done.add_done_callback(partial(hand_over, loop, answer))
        try:
            return await answer
        finally:
            done.cancel()
            del done, answer, work  # for the reason that `perform` gives

    def close(self) -> None:
        """Cancels what has not begun, and waits for what has."""
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
        """Begin what may begin, now and as long as some wait: a turn may be over before its work is."""
        with self._lock:
            while self._idle and (job := self._next()) is not None:
                self._idle.pop().put(job)
            waiting = bool(self._waiting)
        if waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._turn_s, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._look()

    def _next(self) -> Job | None:
        """The first one that may begin, which begins. Under the lock."""
        over = self._turn is None or time.monotonic() - self._turn[1] > self._turn_s
        while may := [job for job in self._waiting if job.long or over]:
            job = min(may, key=lambda job: self._took[job.key])  # of one key that came first
            self._waiting.remove(job)
            if job.future.set_running_or_notify_cancel():
                self._reached = max(self._reached, self._took[job.key])
                if not job.long:
                    self._turn = job, time.monotonic()
                return job
        return None

    def _work(self, inbox: SimpleQueue[Job | None]) -> None:
        search_with_one_thread()
        job = inbox.get()
        while job is not None:
            begun = self._clock()
            perform(job)
            job = self._after(job, self._clock() - begun, inbox)
            if job is None:
                job = inbox.get()

    def _after(self, ended: Job, took_s: float, inbox: SimpleQueue[Job | None]) -> Job | None:
        """What the thread that has ended a job does next; None: it is idle."""
        with self._lock:
            self._took[ended.key] += took_s
            if self._turn is not None and self._turn[0] is ended:
                self._turn = None
            job = self._next()
            if job is None:
                self._idle.append(inbox)
            return job


def perform(job: Job) -> None:
    future = job.future
    try:
        future.set_result(job.work())
    except BaseException as error:  # noqa: BLE001 - it is its caller's
        future.set_exception(error)
    finally:
        # An error refers to this frame: what the work held would otherwise wait for the garbage collector.
        del job, future


def hand_over(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], done: Future[T]) -> None:
    loop.call_soon_threadsafe(settle, answer, done)


def settle(answer: asyncio.Future[T], done: Future[T]) -> None:
    """Give the answer what has come of the work, unless its caller has left."""
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
