"""A proxy on loopback before a real Redis, which spoils its replies."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Fault = Literal["none", "silent", "reset", "garbage", "flipped", "cut", "slow"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
SLOW_S = 0.03


class FaultProxy:
    """`fault` may be changed at any time, from any thread; it concerns replies that come from then on."""

    def __init__(self, port: int) -> None:
        self.fault: Fault = "none"
        self.port = 0
        self.spoilt = 0  # replies
        self._behind = port
        self._random = random.Random(0)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def run(self, ready: threading.Event) -> None:
        """For a thread of its own; ends with `stop`."""
        asyncio.run(self._listen(ready))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def _listen(self, ready: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stopped.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._behind)
            asked = asyncio.create_task(self._asked(reader, behind_writer))
            await self._answered(behind_reader, writer)
            asked.cancel()
            behind_writer.close()
        writer.close()

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            fault = self.fault
            self.spoilt += fault != "none"
            if fault == "reset":
                writer.transport.abort()
                return
            if fault == "slow":
                await asyncio.sleep(SLOW_S)
            elif fault == "garbage":
                data = self._random.randbytes(len(data))
            elif fault == "flipped":
                at = self._random.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ 1 << self._random.randrange(8)]) + data[at + 1 :]
            elif fault == "cut":
                data = data[: len(data) // 2]
            if fault != "silent":
                writer.write(data)
                await writer.drain()


@contextmanager
def fault_proxy(port: int) -> Iterator[FaultProxy]:
    """Before the Redis on this port."""
    proxy, ready = FaultProxy(port), threading.Event()
    thread = threading.Thread(target=proxy.run, args=(ready,))
    thread.start()
    ready.wait()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()
