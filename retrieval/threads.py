"""The threads that search: one for as long as searches are short, others beside one that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from indexes import search_with_one_thread

T = TypeVar("T")

TURN_S = 0.02  # one that takes longer lets the next begin beside it


class SearchThreads:
    """Runs work of searches in turns: two at once contend for the interpreter, which costs both, and the thread that
    ran last finds its memory in the processor's caches. For one event loop.
    """

    def __init__(self, threads: int) -> None:
        pool = partial(ThreadPoolExecutor, initializer=search_with_one_thread)
        self.first: Executor = pool(1, "search")
        self._others: Executor = pool(threads - 1, "search-beside") if threads > 1 else self.first
        self._turns = asyncio.Semaphore(1)
        self._busy = False  # the first thread

    async def run(self, work: Callable[[], T], *, long: bool = False) -> T:
        """`long`: it takes a while by its nature, and leaves the first thread to others."""
        if long:
            return await self._run(self._others, work)
        await self._turns.acquire()
        loop = asyncio.get_running_loop()
        over = loop.call_later(TURN_S, self._turns.release)
        alone, self._busy = not self._busy, True
        try:
            return await self._run(self.first if alone else self._others, work)
        finally:
            if alone:
                self._busy = False
            if over.when() > loop.time():  # else it releases by itself, or has
                over.cancel()
                self._turns.release()

    async def _run(self, pool: Executor, work: Callable[[], T]) -> T:
        context = copy_context()  # for what is logged there
        return await asyncio.get_running_loop().run_in_executor(pool, lambda: context.run(work))

    def close(self) -> None:
        for pool in (self.first, self._others):
            pool.shutdown(wait=True, cancel_futures=True)
