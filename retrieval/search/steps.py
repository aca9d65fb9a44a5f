"""Runs a search whose passages may be on other machines: on a search thread while it works, on the event loop while it
waits.

The stages of a search know nothing of this. A shard that is elsewhere awaits `Away`, which hands the call to what
runs the search; shards in this process wait for nothing, so their searches take one step (`run_at_once`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Away(Generic[T]):
    """A call that is answered elsewhere. `to` tells together what can travel together."""

    def __init__(self, to: Any, call: Any) -> None:
        self.to, self.call = to, call

    def __await__(self) -> Generator[Sequence[Away[Any]], Sequence[Any], T]:
        [reply] = yield [self]
        if isinstance(reply, Exception):
            raise reply
        answer: T = reply
        return answer


class _Together:
    """Several calls at once. Their replies come in order; one that failed is an exception."""

    def __init__(self, calls: Sequence[Away[Any]]) -> None:
        self.calls = calls

    def __await__(self) -> Generator[Sequence[Away[Any]], Sequence[Any], Sequence[Any]]:
        return (yield self.calls)


async def all_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all of this, with what is answered elsewhere asked at once, and return the results in order. If one fails, the
    others end."""
    results: dict[int, T] = {}
    waiting: dict[int, Sequence[Away[Any]]] = {}

    def go_on(at: int, replies: Sequence[Any] | None) -> None:
        try:
            waiting[at] = work[at].send(replies)
        except StopIteration as ended:
            results[at] = ended.value

    try:
        for at in range(len(work)):
            go_on(at, None)
        while waiting:
            asked, waiting = waiting, {}
            replies = iter(await _Together([one for calls in asked.values() for one in calls]))
            for at, calls in asked.items():
                go_on(at, [next(replies) for _ in calls])
    finally:
        for one in work:
            one.close()
    return [results[at] for at in range(len(work))]


async def run_in_steps(
    work: Callable[[], Coroutine[Any, Any, T]],
    on_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ask: Callable[[Sequence[Away[Any]]], Awaitable[Sequence[Any]]],
) -> T:
    """Run a coroutine: `on_thread` runs each of its steps, and `ask` answers the calls that it waits for between them,
    in order, with an exception for each that failed."""
    coroutine = work()
    replies: Sequence[Any] | None = None
    try:
        while True:
            ended, value = await on_thread(partial(_advance, coroutine, replies))
            if ended:
                result: T = value
                return result
            replies = await ask(value)
    finally:
        coroutine.close()


async def run_here(step: Callable[[], T]) -> T:
    """Run a step on the event loop: for work that only asks, and adds up what is answered. A thread costs more."""
    return step()


def _advance(coroutine: Coroutine[Any, Any, Any], replies: Sequence[Any] | None) -> tuple[bool, Any]:
    """Run one step. Return whether it was the last one, and the result, or the calls that it waits for."""
    try:
        return False, coroutine.send(replies)
    except StopIteration as ended:
        return True, ended.value
