"""Requests at a given rate, whether or not the ones before were answered: what many independent callers are."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TICK_S = 0.005
HEADERS_END = b"\r\n\r\n"


@dataclass
class Outcome:
    """What became of the requests of one run. `took_s` are the times of those answered with 200."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)  # 0: not answered while the caller waited
    took_s: list[float] = field(default_factory=list)
    retry_after: set[bool] = field(default_factory=set)  # whether refusals said when to come back

    @property
    def goodput(self) -> float:
        """Requests answered with 200 in a second."""
        return self.statuses[200] / self.seconds

    def quantile_s(self, share: float) -> float:
        ordered = sorted(self.took_s)
        return ordered[int(share * (len(ordered) - 1))] if ordered else float("inf")


class Caller(asyncio.Protocol):
    """One connection, for one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._received = b""
        self._answered: asyncio.Future[int] | None = None
        self.refused_with_time = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(HEADERS_END)
        if not found:
            return
        lower = head.lower()
        length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) >= length:
            self._received = b""
            self.refused_with_time = b"\r\nretry-after:" in lower
            self._settle(int(head.split(b" ", 2)[1]))

    def connection_lost(self, error: Exception | None) -> None:
        self._settle(0)

    def _settle(self, status: int) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(status)

    async def ask(self, request: bytes, patience_s: float) -> int:
        """The status, or 0 if there is no answer in time; then the connection is closed, as impatient callers do."""
        assert self._transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(patience_s):
                status = await self._answered
        except TimeoutError:
            status = 0
        if status == 0:
            self.close()
        return status

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()


def post(path: str, body: bytes, *headers: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


class Load:
    """Callers of one service. `requests` gives each its bytes; who waits longer than `patience_s` goes."""

    def __init__(self, url: str, requests: Iterator[bytes], *, patience_s: float) -> None:
        at = urlsplit(url)
        self._host, self._port = at.hostname or "", at.port or 80
        self._requests = requests
        self._patience_s = patience_s
        self._idle: list[Caller] = []

    async def closed(self, callers: int, seconds: float) -> Outcome:
        """So many callers, each asking again when it has its answer: the peak, if they are enough."""
        outcome, until = Outcome(seconds), time.monotonic() + seconds

        async def ask() -> None:
            while time.monotonic() < until:
                await self._ask(outcome)

        await asyncio.gather(*(ask() for _ in range(callers)))
        return outcome

    async def open(self, rate: float, seconds: float) -> Outcome:
        """So many requests in a second, whatever becomes of them."""
        outcome, begun, sent = Outcome(seconds), time.monotonic(), 0
        asking: set[asyncio.Task[None]] = set()
        while (elapsed := time.monotonic() - begun) < seconds:
            for _ in range(int(elapsed * rate) - sent):
                sent += 1
                task = asyncio.create_task(self._ask(outcome))
                asking.add(task)
                task.add_done_callback(asking.discard)
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*asking)
        return outcome

    async def _ask(self, outcome: Outcome) -> None:
        begun = time.monotonic()
        try:
            caller = self._idle.pop() if self._idle else await self._connected()
            status = await caller.ask(next(self._requests), self._patience_s)
        except OSError:
            outcome.statuses[0] += 1
            return
        took_s = time.monotonic() - begun
        outcome.statuses[status if took_s <= self._patience_s else 0] += 1
        if status == 200:
            outcome.took_s.append(took_s)
        elif status in (429, 503):
            outcome.retry_after.add(caller.refused_with_time)
        if status:
            self._idle.append(caller)

    async def _connected(self) -> Caller:
        loop = asyncio.get_running_loop()
        _, caller = await loop.create_connection(Caller, self._host, self._port)
        return caller

    def close(self) -> None:
        for caller in self._idle:
            caller.close()


async def probed(url: str, until: Callable[[], bool]) -> list[float]:
    """How long GET /healthz takes, again and again."""
    at, took = urlsplit(url), []
    while not until():
        begun = time.monotonic()
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        took.append(time.monotonic() - begun)
        await asyncio.sleep(0.1)
    return took
