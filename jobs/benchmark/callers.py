"""Independent callers of one service: they send requests at given times, whether or not earlier ones were answered.

Latency counts from when a request was due, not from when it was sent: a stall also delays the requests due during it,
and leaving those out ("coordinated omission") would hide it.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Timing = tuple[float, float, float, int, bool]  # due, lag, took, status, retry_after

HEADERS_END = b"\r\n\r\n"
REFUSALS = (429, 503)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def arrivals(rate: float, seconds: float, rng: np.random.Generator) -> Numbers:
    """Arrival times of a Poisson process, ascending from 0. Given their number, they are uniform."""
    return np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds)))


@dataclass(frozen=True, slots=True)
class Reply:
    status: int  # 0: the connection broke, or the caller hung up
    retry_after: bool = False
    body: bytes = b""


@dataclass(frozen=True)
class SpanOutcome:
    """The outcomes of the requests due in a span of `seconds`; arrays by request, all times in seconds."""

    seconds: float
    due: Numbers  # since the start of the span
    lag: Numbers  # from due to sent: how late the callers were, not the service
    took: Numbers  # from when it was due to its answer
    status: NDArray[np.int64]  # 0: no answer
    retry_after: NDArray[np.bool_]

    @classmethod
    def of(cls, asked: list[Timing], seconds: float) -> SpanOutcome:
        due, lag, took, status, retry_after = np.array(asked, np.float64).reshape(-1, 5).T
        return cls(seconds, due, lag, took, status.astype(np.int64), retry_after.astype(bool))

    def between(self, begin: float, end: float) -> SpanOutcome:
        """Only the requests that were due in a part of the span."""
        part = (self.due >= begin) & (self.due < end)
        of = (self.lag[part], self.took[part], self.status[part], self.retry_after[part])
        return SpanOutcome(end - begin, self.due[part] - begin, *of)

    @property
    def statuses(self) -> Counter[int]:
        return Counter(self.status.tolist())

    def goodput(self, deadline_s: float = float("inf")) -> float:
        """Requests a second that were answered with 200 within their deadline."""
        return float(((self.status == 200) & (self.took <= deadline_s)).sum()) / self.seconds

    def late(self, deadline_s: float) -> NDArray[np.bool_]:
        """Which requests were answered after their deadline, with any status."""
        return (self.status > 0) & (self.took > deadline_s)

    def refused(self, deadline_s: float = float("inf")) -> NDArray[np.bool_]:
        """Which requests were told within the deadline to retry later."""
        return np.isin(self.status, REFUSALS) & (self.took <= deadline_s)

    def admitted_s(self, deadline_s: float = float("inf")) -> Numbers:
        """Latencies of the admitted requests: answered with 200, or late."""
        return np.compress((self.status == 200) | self.late(deadline_s), self.took)


def quantile(values: Numbers, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("inf")


class Callers:
    """Callers over a pool of kept connections, which grows as needed. Use from one event loop; `close` it."""

    def __init__(
        self,
        url: str,
        requests: Iterator[bytes],
        *,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """`requests` yields the bytes of each request; a caller hangs up after `patience_s`."""
        self._url, self._requests, self._patience_s = url, requests, patience_s
        self._clock, self._sleep = clock, sleep
        self._idle: list[tuple[StreamReader, StreamWriter]] = []

    async def closed(self, callers: int, seconds: float) -> SpanOutcome:
        """Run a closed loop: each caller asks again once it has its answer. With enough callers this finds the peak."""
        begun = self._clock()
        asked: list[Timing] = []

        async def ask() -> None:
            while (now := self._clock() - begun) < seconds:
                asked.append(await self._asked(now, begun))

        await asyncio.gather(*(ask() for _ in range(callers)))
        return SpanOutcome.of(asked, seconds)

    async def open(self, due: Numbers, seconds: float) -> SpanOutcome:
        """Send a request at each time in `due`, ascending. Returns when all are answered."""
        begun = self._clock()
        tasks = []
        for at in due.tolist():
            # Sleep even when late, so that answers are read between two requests.
            await self._sleep(max(0.0, begun + at - self._clock()))
            tasks.append(asyncio.create_task(self._asked(at, begun)))
        return SpanOutcome.of(await asyncio.gather(*tasks), seconds)

    async def _asked(self, due: float, begun: float) -> Timing:
        lag = self._clock() - begun - due
        reply = await self.ask(next(self._requests))  # its body is not kept
        return due, lag, self._clock() - begun - due, reply.status, reply.retry_after

    async def ask(self, request: bytes) -> Reply:
        """Send one request over a kept connection and return the reply. Never raises; status 0 if there is none."""
        try:
            reader, writer = await self._connected()
        except OSError:
            return Reply(0)
        try:
            async with asyncio.timeout(self._patience_s):
                reply, kept = await exchange(reader, writer, request)
        except (TimeoutError, EOFError, OSError):
            reply, kept = Reply(0), False
        if kept:
            self._idle.append((reader, writer))
        else:
            writer.transport.abort()  # as impatient callers do
        return reply

    async def _connected(self) -> tuple[StreamReader, StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not (reader.at_eof() or writer.transport.is_closing()):
                return reader, writer
        return await connect(self._url)

    def close(self) -> None:
        for _, writer in self._idle:
            writer.transport.abort()


async def connect(url: str) -> tuple[StreamReader, StreamWriter]:
    at = urlsplit(url)
    return await asyncio.open_connection(at.hostname, at.port)


async def exchange(reader: StreamReader, writer: StreamWriter, request: bytes) -> tuple[Reply, bool]:
    """The reply, and whether the connection stays open. Just enough HTTP, because callers share the service's cores."""
    writer.write(request)
    head = (await reader.readuntil(HEADERS_END)).lower()
    body = await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
    reply = Reply(int(head.split(b" ", 2)[1]), b"\r\nretry-after:" in head, body)
    return reply, b"\r\nconnection: close" not in head


def post(path: str, body: bytes, *headers: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def health_s(url: str) -> float:
    """How long GET /healthz takes on a new connection. Raises OSError if it fails."""
    begun = time.monotonic()
    reader, writer = await connect(url)
    reply, _ = await exchange(reader, writer, HEALTH)
    writer.close()
    if reply.status != 200:
        raise ConnectionError(f"GET /healthz was answered {reply.status}")
    return time.monotonic() - begun
