"""Independent callers of one service: requests at given times, whether or not the ones before were answered.

Latency counts from when a request was due, not from when it was sent: a stall also delays those that would have come
during it, and leaving them out ("coordinated omission") would hide it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

HEADERS_END = b"\r\n\r\n"
REFUSALS = (429, 503)


def arrivals(rate: float, seconds: float, rng: np.random.Generator) -> Numbers:
    """Times of a Poisson process, ascending from 0: given their number, they are uniform."""
    return np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds)))


@dataclass(frozen=True, slots=True)
class Reply:
    status: int  # 0: the connection broke, or the caller went away
    retry_after: bool = False
    body: bytes = b""


@dataclass(frozen=True)
class Outcome:
    """What became of the requests that were due in a span of `seconds`; arrays by request, all times in seconds."""

    seconds: float
    due: Numbers  # since the begin of the span
    lag: Numbers  # until its caller was told to ask: how late we were, not the service
    took: Numbers  # from when it was due to its answer
    status: NDArray[np.int64]  # 0: no answer
    retry_after: NDArray[np.bool_]

    def between(self, begin: float, end: float) -> Outcome:
        """Only those that were due in a part of the span."""
        part = (self.due >= begin) & (self.due < end)
        of = (self.lag[part], self.took[part], self.status[part], self.retry_after[part])
        return Outcome(end - begin, self.due[part] - begin, *of)

    @property
    def statuses(self) -> Counter[int]:
        return Counter(self.status.tolist())

    def goodput(self, deadline_s: float = float("inf")) -> float:
        """Requests a second that were answered with 200 within their deadline."""
        return float(((self.status == 200) & (self.took <= deadline_s)).sum()) / self.seconds

    def late(self, deadline_s: float) -> NDArray[np.bool_]:
        """Which were answered after their deadline, with whatever status."""
        found: NDArray[np.bool_] = (self.status > 0) & (self.took > deadline_s)
        return found

    def refused(self, deadline_s: float = float("inf")) -> NDArray[np.bool_]:
        """Which were told to come back, while there was time."""
        found: NDArray[np.bool_] = np.isin(self.status, REFUSALS) & (self.took <= deadline_s)
        return found

    def admitted_s(self, deadline_s: float = float("inf")) -> Numbers:
        """How long those took that were let in: answered with 200, or late."""
        found: Numbers = self.took[(self.status == 200) | self.late(deadline_s)]
        return found


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
        """`requests` gives each its bytes; whoever waits longer than `patience_s` hangs up."""
        at = urlsplit(url)
        self._host, self._port = at.hostname or "", at.port or 80
        self._requests = requests
        self._patience_s = patience_s
        self._clock = clock
        self._sleep = sleep
        self._idle: list[Caller] = []

    async def closed(self, callers: int, seconds: float) -> Outcome:
        """So many callers, each asking again when it has its answer: the peak, if they are enough."""
        begun = self._clock()
        asked: list[_Asked] = []

        async def ask() -> None:
            while (now := self._clock() - begun) < seconds:
                asked.append(one := _Asked(now))
                await self._ask(one, begun)

        await asyncio.gather(*(ask() for _ in range(callers)))
        return _outcome(asked, seconds)

    async def open(self, due: Numbers, seconds: float) -> Outcome:
        """A request at each time of `due`, ascending. Returns when all have their answer."""
        begun = self._clock()
        asked = [_Asked(at) for at in due.tolist()]
        tasks: set[asyncio.Task[None]] = set()
        for one in asked:
            # Also when we are late: the answers that came meanwhile are taken between two requests.
            await self._sleep(max(0.0, begun + one.due - self._clock()))
            task = asyncio.create_task(self._ask(one, begun))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        return _outcome(asked, seconds)

    async def _ask(self, one: _Asked, begun: float) -> None:
        one.lag = self._clock() - begun - one.due
        reply = await self.ask(next(self._requests))
        one.status, one.retry_after = reply.status, reply.retry_after  # bodies are not kept
        one.took = self._clock() - begun - one.due

    async def ask(self, request: bytes) -> Reply:
        """The reply to one request, over a kept connection. Never raises; status 0 if there is none."""
        try:
            caller = await self._connected()
        except OSError:
            return Reply(0)
        reply = await caller.ask(request, self._patience_s)
        self._idle.append(caller)
        return reply

    async def _connected(self) -> Caller:
        while self._idle:
            if (caller := self._idle.pop()).open:
                return caller
        _, caller = await asyncio.get_running_loop().create_connection(Caller, self._host, self._port)
        return caller

    def close(self) -> None:
        for caller in self._idle:
            caller.hang_up()


@dataclass(slots=True)
class _Asked:
    due: float
    lag: float = 0.0
    took: float = 0.0
    status: int = 0
    retry_after: bool = False


def _outcome(asked: list[_Asked], seconds: float) -> Outcome:
    return Outcome(
        seconds,
        np.array([one.due for one in asked]),
        np.array([one.lag for one in asked]),
        np.array([one.took for one in asked]),
        np.array([one.status for one in asked], np.int64),
        np.array([one.retry_after for one in asked], bool),
    )


class Caller(asyncio.Protocol):
    """One connection, for one request at a time: just enough HTTP, for it shares the cores with the service."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport
        self._received = b""
        self._answered: asyncio.Future[Reply] | None = None
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport, self.open = transport, True

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(HEADERS_END)
        if not found:
            return
        head = head.lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._received = b""
            if b"\r\nconnection: close" in head:
                self.hang_up()
            self._settle(Reply(int(head.split(b" ", 2)[1]), b"\r\nretry-after:" in head, body))

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._settle(Reply(0))

    def _settle(self, reply: Reply) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(reply)

    async def ask(self, request: bytes, patience_s: float) -> Reply:
        """Status 0 if there is no answer in time; then the connection is closed, as impatient callers do."""
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(patience_s):
                return await self._answered
        except TimeoutError:
            self.hang_up()
            return Reply(0)

    def hang_up(self) -> None:
        self.open = False
        self._transport.abort()


def post(path: str, body: bytes, *headers: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def health_s(url: str) -> float:
    """How long GET /healthz takes on a new connection. Raises OSError if it fails."""
    at, begun = urlsplit(url), time.monotonic()
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"GET /healthz was answered {answer[:20]!r}")
    return time.monotonic() - begun
