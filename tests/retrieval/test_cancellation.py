"""Work on a thread whose caller goes, or runs out of time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from indexes.base.errors import DeadlineExceeded
from indexes.base.work import OnStep
from retrieval.base.cancellation import gather_or_cancel, run_abandonable


class Steps:
    """Work without an end of its own."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, on_step: OnStep) -> None:
        try:
            while True:
                self.begun.set()
                on_step()
                threading.Event().wait(0.001)
        finally:
            self.ended.set()


def test_work_ends_with_its_caller() -> None:
    """A cancelled caller's thread is free again at the next step."""
    steps = Steps()

    async def scenario() -> None:
        task = asyncio.create_task(run_abandonable(steps))
        await asyncio.to_thread(steps.begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(steps.ended.wait, 10)

    asyncio.run(scenario())


def test_work_ends_at_the_deadline() -> None:
    """The caller reads that its deadline has passed, and the thread stops."""
    steps = Steps()

    async def scenario() -> None:
        with pytest.raises(DeadlineExceeded):
            await run_abandonable(steps, deadline=asyncio.get_running_loop().time() + 0.05)
        assert await asyncio.to_thread(steps.ended.wait, 10)

    asyncio.run(scenario())


def test_results_and_errors_come_through() -> None:
    """As from any thread."""

    def fail(on_step: OnStep) -> None:
        raise ValueError("ours")

    assert asyncio.run(run_abandonable(lambda on_step: 7)) == 7
    with pytest.raises(ValueError, match="ours"):
        asyncio.run(run_abandonable(fail))


@pytest.mark.parametrize("fails", [True, False])
def test_when_one_of_several_fails_or_the_caller_leaves_the_others_end(fails: bool) -> None:
    """They have ended when the error is raised: what they use may be closed then."""
    ended = []

    async def endless(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise DeadlineExceeded("too late")

    async def story() -> None:
        work = [endless("a"), fail(), endless("b")] if fails else [endless("a"), endless("b")]
        asking = asyncio.ensure_future(gather_or_cancel(work))
        await asyncio.sleep(0.01)
        if not fails:
            asking.cancel()
        with pytest.raises(DeadlineExceeded if fails else asyncio.CancelledError):
            await asking
        assert ended == ["a", "b"]

    asyncio.run(story())
