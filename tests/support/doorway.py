"""Stands between a client and a real service, over HTTP, and now and then does what busy networks and proxies do."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Literal, Self

import aiohttp
from aiohttp import web

BODY_BYTES_MAX = 64 * 1024 * 1024

Turn = Literal["pass", "busy", "too large", "cut", "cut after"]


class Doorway:
    """A context manager; `url` leads to `target`, which may be changed under way.

    Each write of documents takes the next of `turns`, and passes when none is left: `busy` answers 429 and asks to come
    back after `retry_after`, `too large` answers 413 as proxies do, `cut` breaks the connection, `cut after` lets the
    service write and loses its answer. `writes` holds what was done with each.
    """

    def __init__(self, target: str, *turns: Turn, retry_after: str = "1") -> None:
        self.target = target
        self.turns = deque(turns)
        self.writes: list[Turn] = []
        self.url = ""
        self._retry_after = retry_after
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession()
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        writing = request.method == "POST" and request.path.endswith("/documents")
        turn: Turn = self.turns.popleft() if writing and self.turns else "pass"
        if writing:
            self.writes.append(turn)
        if turn == "busy":
            error = {"error": {"type": "overloaded", "message": "much waits already"}}
            return web.json_response(error, status=429, headers={"Retry-After": self._retry_after})
        if turn == "too large":
            return web.Response(text="<html>Request Entity Too Large</html>", status=413)
        if turn == "cut":
            return self._cut(request)
        headers = {"Content-Type": "application/json"}
        url = self.target + request.path_qs
        try:
            async with self._session.request(request.method, url, data=body, headers=headers) as answer:
                content = await answer.read()
        except aiohttp.ClientError:  # the service is gone, and so are we
            return self._cut(request)
        if turn == "cut after":
            return self._cut(request)
        return web.Response(body=content, status=answer.status, content_type="application/json")

    @staticmethod
    def _cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
