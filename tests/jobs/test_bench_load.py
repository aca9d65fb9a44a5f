"""`nearline bench load`: when its requests are due, what it counts, and a small real run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from jobs.benchmark.callers import Callers, SpanOutcome, arrivals, post
from jobs.benchmark.load import figures, recovery, windows


def outcome(*requests: tuple[float, float, int], retry_after: bool = True) -> SpanOutcome:
    """Of one second; each request by when it was due, how long it took, and its status."""
    due, took, status = (np.array(one) for one in zip(*requests))
    return SpanOutcome(1.0, due, np.zeros(len(due)), took, status, np.full(len(due), retry_after))


def test_arrivals_are_a_poisson_process() -> None:
    """Gaps are exponential: their mean is that of the rate, and so is their deviation. A seed gives the same again."""
    due = arrivals(500, 100, np.random.default_rng(1))
    gaps = np.diff(due)
    assert due.tolist() == arrivals(500, 100, np.random.default_rng(1)).tolist()
    assert 0 <= due[0] < due[-1] < 100
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 500, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 500, rel=0.02)
    assert len(arrivals(0, 100, np.random.default_rng(1))) == 0


class Clock:
    """Moves when slept by, and oversleeps once."""

    def __init__(self, *oversleeps: float) -> None:
        self.now = 100.0
        self._oversleeps = iter(oversleeps)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)  # who was told to ask sets out
        self.now += seconds + next(self._oversleeps, 0)


async def asked_of_a_stalled_server(due: Sequence[float], clock: Clock) -> SpanOutcome:
    """The server answers nothing until all requests have arrived."""
    arrived = itertools.count(1)
    everything = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if next(arrived) == len(due):
            everything.set()
        await everything.wait()
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        requests = itertools.repeat(post("/", b""))
        callers = Callers(url, requests, patience_s=20, clock=clock, sleep=clock.sleep)
        found = await callers.open(np.array(due), 10)
        callers.close()
    return found


def test_nobody_waits_for_the_answers_of_others() -> None:
    """Requests go out when they are due however long earlier ones take, and those count from when they were due."""
    found = asyncio.run(asked_of_a_stalled_server([1, 2, 4], Clock()))
    assert found.lag.tolist() == [0, 0, 0]
    assert found.took.tolist() == [3, 2, 0]
    assert found.status.tolist() == [429] * 3
    assert found.retry_after.all()


def test_what_is_sent_late_counts_from_when_it_was_due() -> None:
    """A generator that was held up sends at once what is due, says how late that was, and hides none of it."""
    found = asyncio.run(asked_of_a_stalled_server([1, 2, 4], Clock(0, 1.5)))
    assert found.lag.tolist() == [0, 1.5, 0]
    assert found.took.tolist() == [3, 2, 0]


def test_what_cannot_be_reached_is_an_error() -> None:
    """Not an exception that ends the run."""
    callers = Callers("http://127.0.0.1:1", itertools.repeat(b""), patience_s=1)
    found = asyncio.run(callers.open(np.zeros(2), 1))
    assert found.status.tolist() == [0, 0]
    assert figures(found, 1)["errors"] == 2


def test_answers_count_within_their_deadline() -> None:
    """A late one is no goodput and yet one that was let in; a refusal in time is neither; the rest are errors."""
    found = outcome(
        (0, 0.1, 200), (0, 0.3, 200), (0, 2, 200), (0, 1, 503), (0, 0.01, 429), (0, 0.1, 500), (0, 9, 0)
    )
    row = figures(found, 0.5)
    assert {name: row[name] for name in ("in time/s", "late", "refused", "no Retry-After", "errors")} == {
        "in time/s": 2, "late": 2, "refused": 1, "no Retry-After": 0, "errors": 2,
    }  # fmt: skip
    assert row["p50 ms"] == 650
    assert figures(outcome((0, 0.1, 503), retry_after=False), 0.5)["no Retry-After"] == 1


def test_the_service_has_recovered_when_a_window_is_as_fast_as_before() -> None:
    """A window with a refusal is not; one that is slow later is counted."""
    before = outcome((0.1, 0.02, 200), (0.3, 0.02, 200), (0.6, 0.02, 200), (0.8, 0.9, 200))
    assert windows(before) == [(0, 0.02), (0.25, 0.02), (0.5, 0.02), (0.75, 0.9)]
    after = outcome((0.1, 0.5, 200), (0.3, 0.01, 429), (0.6, 0.04, 200), (0.8, 0.05, 200))
    row = recovery(before, after)
    assert row["recovered after s"] == 0.5
    assert row["slower windows later"] == 1
    assert recovery(before, outcome((0.1, 1, 200)))["recovered after s"] is None
    assert recovery(outcome((0.1, 1, 429)), after)["recovered after s"] is None
