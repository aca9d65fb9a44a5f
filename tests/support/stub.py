"""A server that answers as it is told, for what a real service does not do on demand."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web


@dataclass(frozen=True)
class Reply:
    """`cut` breaks the connection instead. A `body` of bytes is sent as it is."""

    body: Any = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    cut: bool = False


class Stub:
    """A context manager: each request gets the next of `replies`, the last one again and again; `seen` holds method,
    path, headers and body of each."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = deque(replies or [Reply()])
        self.seen: list[tuple[str, str, Mapping[str, str], Any]] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.body_exists else None
        self.seen.append((request.method, request.path_qs, request.headers, body))
        reply = self.replies.popleft() if len(self.replies) > 1 else self.replies[0]
        await asyncio.sleep(reply.after_s)
        if reply.cut:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(reply.body, bytes):
            return web.Response(body=reply.body, status=reply.status, headers=reply.headers)
        return web.json_response(reply.body, status=reply.status, headers=reply.headers)
