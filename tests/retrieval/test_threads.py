"""Which threads search: one, as long as searches are short."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from retrieval.access.auth import PRINCIPAL, Principal
from retrieval.search.threads import TURN_S, SearchThreads

LONG_TURN_S = 0.3  # a busy machine can stop a thread for longer than TURN_S


def running(
    threads: int, scenario: Callable[[SearchThreads], Awaitable[None]], *, turn_s: float = TURN_S
) -> None:
    async def run() -> None:
        made = SearchThreads(threads, turn_s=turn_s)
        try:
            await scenario(made)
        finally:
            made.close()

    asyncio.run(run())


class Noted:
    """Work that notes its thread, and how many ran beside each other."""

    def __init__(self) -> None:
        self.where: list[str] = []
        self.most = self._now = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.where.append(threading.current_thread().name)
        time.sleep(0.001)
        with self._lock:
            self._now -= 1


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_short_ones_take_turns_on_one_thread(threads: int) -> None:
    """However many there are, and however many threads."""
    work = Noted()

    async def scenario(made: SearchThreads) -> None:
        await asyncio.gather(*(made.run(work) for _ in range(20)))

    running(threads, scenario, turn_s=60)
    assert len(work.where) == 20
    assert work.most == 1
    assert len(set(work.where)) == 1


def test_one_that_takes_long_lets_the_next_begin() -> None:
    """On another thread; and when it ends, all take turns again."""
    gate, work = threading.Event(), Noted()

    def takes_long() -> str:
        gate.wait()
        return threading.current_thread().name

    async def scenario(made: SearchThreads) -> None:
        slow = asyncio.create_task(made.run(takes_long))
        await asyncio.sleep(0)
        await made.run(work)
        gate.set()
        assert work.where != [await slow]
        await asyncio.gather(*(made.run(work) for _ in range(5)))

    running(2, scenario, turn_s=LONG_TURN_S)
    assert len(work.where) == 6
    assert work.most == 1


def test_long_work_leaves_the_first_thread_to_others() -> None:
    """Known to be long, it neither takes a turn nor waits for one."""
    gate, work = threading.Event(), Noted()

    async def scenario(made: SearchThreads) -> None:
        slow = asyncio.create_task(made.run(gate.wait, long=True))
        await asyncio.sleep(0)
        await made.run(work)
        gate.set()
        assert await slow

    running(2, scenario)
    assert len(work.where) == 1


def test_a_search_takes_whichever_thread_is_free_first() -> None:
    """Not that which a reranker holds, where another has become free meanwhile."""
    reranker, slow, work = threading.Event(), threading.Event(), Noted()

    async def scenario(made: SearchThreads) -> None:
        reranked = asyncio.create_task(made.run(reranker.wait, long=True))
        searched = asyncio.create_task(made.run(slow.wait))
        waiting = asyncio.create_task(made.run(work))
        await asyncio.sleep(2 * TURN_S)
        assert not made.idle
        slow.set()
        await asyncio.gather(searched, waiting)
        reranker.set()
        assert await reranked

    running(2, scenario)
    assert len(work.where) == 1


def test_work_whose_caller_left_keeps_its_thread() -> None:
    """Others take another one, and its turn and thread come back once: when it ends."""
    gate, work = threading.Event(), Noted()

    async def scenario(made: SearchThreads) -> None:
        under_way = asyncio.create_task(made.run(gate.wait))
        waiting = asyncio.create_task(made.run(work))
        await asyncio.sleep(0)
        waiting.cancel()
        under_way.cancel()
        await asyncio.gather(waiting, under_way, return_exceptions=True)
        await asyncio.gather(*(made.run(work) for _ in range(10)))
        gate.set()
        await asyncio.sleep(2 * LONG_TURN_S)
        await asyncio.gather(*(made.run(work) for _ in range(10)))

    running(2, scenario, turn_s=LONG_TURN_S)
    assert len(work.where) == 20
    assert work.most == 1


def test_who_leaves_while_all_threads_work_gives_its_turn_back() -> None:
    """It had taken its turn, and waited for a thread."""
    gate, work = threading.Event(), Noted()

    async def scenario(made: SearchThreads) -> None:
        slow = asyncio.create_task(made.run(gate.wait, long=True))
        waiting = asyncio.create_task(made.run(work))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        gate.set()
        assert await slow
        await made.run(work)

    running(1, scenario)
    assert len(work.where) == 1


def test_what_it_raises_reaches_the_caller() -> None:
    """And the turn is given back."""

    def fails() -> None:
        raise ValueError("no")

    async def scenario(made: SearchThreads) -> None:
        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                await made.run(fails)
        assert await made.run(lambda: 1) == 1

    running(2, scenario)


def test_what_waits_for_a_turn_begins_although_turns_change_hands() -> None:
    """Each of two that take long lets the next begin after its own time, not only the first."""
    gates, work = [threading.Event(), threading.Event()], Noted()

    async def scenario(made: SearchThreads) -> None:
        slow = [asyncio.create_task(made.run(gate.wait)) for gate in gates]
        async with asyncio.timeout(2):
            await made.run(work)
        for gate in gates:
            gate.set()
        assert await asyncio.gather(*slow) == [True, True]

    running(3, scenario)
    assert len(work.where) == 1


def test_closing_cancels_what_has_not_begun() -> None:
    """And refuses what comes later; what is under way gets its result."""
    gate = threading.Event()

    async def scenario(made: SearchThreads) -> None:
        slow, waiting = (asyncio.create_task(made.run(gate.wait)) for _ in range(2))
        await asyncio.sleep(0)
        threading.Timer(0.05, gate.set).start()
        made.close()
        assert await slow
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(RuntimeError, match="closed"):
            await made.run(gate.wait)

    running(1, scenario)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_in_a_crowd_every_work_ends(threads: int) -> None:
    """Short, long, slow and abandoned ones at random, from many tasks: each that was not abandoned gets its own."""
    rng = random.Random(threads)

    async def one(made: SearchThreads, number: int) -> None:
        seconds = rng.choice([0, 0, 0, 0.001, 1.5 * TURN_S])

        def work() -> int:
            time.sleep(seconds)
            return number

        await asyncio.sleep(rng.random() / 5)
        found = asyncio.create_task(made.run(work, long=rng.random() < 0.2))
        if rng.random() < 0.2:
            await asyncio.sleep(rng.random() / 50)
            found.cancel()
            await asyncio.gather(found, return_exceptions=True)
        else:
            assert await found == number

    async def scenario(made: SearchThreads) -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(*(one(made, number) for number in range(300)))
        assert await made.run(lambda: 1) == 1

    running(threads, scenario)


class Large:
    """Stands for the hits of an answer."""


def test_nothing_is_held_once_work_has_failed() -> None:
    """What it had in hand is free as soon as its caller has dealt with the error, and does not wait for the garbage
    collector, which hardly ever runs while large answers are refused."""
    held: list[weakref.ref[Large]] = []

    def fails() -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise ValueError("no room")

    async def caller(made: SearchThreads) -> None:
        with contextlib.suppress(ValueError):
            await made.run(fails)

    async def scenario(made: SearchThreads) -> None:
        gc.disable()
        try:
            for _ in range(3):
                await caller(made)
            for _ in range(250):  # their thread may have been stopped
                if not any(one() for one in held):
                    break
                await asyncio.sleep(TURN_S)
            assert [one() for one in held] == [None] * 3
        finally:
            gc.enable()

    running(2, scenario)


def test_beside_dear_work_of_one_key_the_cheap_work_of_another_comes_first() -> None:
    """Keys get equal time, not equal numbers; and who pauses has saved nothing up."""
    gate, order, now = threading.Event(), list[str](), [0.0]

    def work(key: str, cost_s: float) -> None:
        order.append(key)
        now[0] += cost_s

    async def scenario(made: SearchThreads) -> None:
        def ask(key: str, cost_s: float, count: int) -> list[asyncio.Task[None]]:
            token = PRINCIPAL.set(Principal(key))
            tasks = [asyncio.create_task(made.run(partial(work, key, cost_s))) for _ in range(count)]
            PRINCIPAL.reset(token)
            return tasks

        holding = asyncio.create_task(made.run(gate.wait))
        await asyncio.sleep(0)
        tasks = [*ask("dear", 1.0, 10), *ask("cheap", 0.1, 10)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(holding, *tasks)
        assert order[:11].count("cheap") == 10
        order.clear()
        gate.clear()
        holding = asyncio.create_task(made.run(gate.wait))
        await asyncio.sleep(0)
        tasks = [*ask("cheap", 1.0, 4), *ask("dear", 1.0, 4)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(holding, *tasks)
        assert order[:4].count("cheap") in (2, 3)

    async def run() -> None:
        made = SearchThreads(1, turn_s=60, clock=lambda: now[0])
        try:
            await scenario(made)
        finally:
            made.close()

    asyncio.run(run())
