"""The threads that search: one for as long as searches are short, others beside one that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from indexes import search_with_one_thread

T = TypeVar("T")

TURN_S = 0.02  # one that takes longer lets the next begin beside it


class SearchThreads:
    """Runs work of searches in turns: two at once contend for the interpreter, which costs both. The thread that ran
    last is taken first, because it finds its memory in the processor's caches. For one event loop.
    """

    def __init__(self, threads: int) -> None:
        self._threads = [
            ThreadPoolExecutor(1, f"search-{number}", search_with_one_thread) for number in range(threads)
        ]
        self._idle = list(self._threads)  # the last one is the next
        self._free = asyncio.Semaphore(threads)  # as many as are idle
        self._turns = asyncio.Semaphore(1)

    @property
    def next(self) -> Executor | None:
        """The idle thread that the next work will run on."""
        return self._idle[-1] if self._idle else None

    async def run(self, work: Callable[[], T], *, long: bool = False) -> T:
        """`long`: it takes a while by its nature, and neither takes a turn nor waits for one.

        Work that has begun goes on when its caller leaves, and keeps its thread until it ends.
        """
        if not long:
            await self._turns.acquire()
        try:
            await self._free.acquire()
        except asyncio.CancelledError:
            if not long:
                self._turns.release()
            raise
        loop, thread = asyncio.get_running_loop(), self._idle.pop()
        answer: asyncio.Future[T] = loop.create_future()

        def turn_over() -> None:
            if not timer.cancelled():
                timer.cancel()
                self._turns.release()

        def ended(done: Future[T]) -> None:
            self._idle.append(thread)
            self._free.release()
            turn_over()
            if done.cancelled():
                answer.cancel()
            elif answer.done():  # its caller has left
                return
            elif (error := done.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(done.result())

        timer = loop.call_later(TURN_S, turn_over)
        if long:
            timer.cancel()
        # The context is for what is logged there.
        thread.submit(copy_context().run, work).add_done_callback(
            lambda done: loop.call_soon_threadsafe(ended, done)
        )
        return await answer

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)
