"""A server with OpenAI's API of chats that says what it is told to, and fails as it is told to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Reply = Callable[["FakeModel", web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeModel:
    """Change `reply` to change what it does. `asked` has the bodies it got, `headers` their headers; `left` is set when
    a client goes away before the end."""

    url: str = ""
    reply: Reply | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)


def chunk(content: str | None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


async def begun(request: web.Request, content_type: str = "text/event-stream") -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": content_type})
    await stream.prepare(request)
    return stream


def says(*pieces: str, finish: str | None = "stop", done: bool = True, wait_s: float = 0) -> Reply:
    """An answer in these pieces, `wait_s` between them."""

    async def reply(model: FakeModel, request: web.Request) -> web.StreamResponse:
        stream = await begun(request)
        try:
            for piece in pieces:
                await stream.write(chunk(piece))
                await asyncio.sleep(wait_s)
        except (asyncio.CancelledError, ConnectionError):
            model.left.set()
            raise
        if finish:
            await stream.write(chunk(None, finish))
        if done:
            await stream.write(b"data: [DONE]\n\n")
        return stream

    return reply


def sends(*parts: bytes, status: int = 200, content_type: str = "text/event-stream", **headers: str) -> Reply:
    """These bytes, whatever they are."""

    async def reply(model: FakeModel, request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=b"".join(parts), status=status, headers={"Content-Type": content_type, **headers}
        )

    return reply


async def hangs(model: FakeModel, request: web.Request) -> web.StreamResponse:
    """Takes the request and says nothing."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        model.left.set()
        raise
    return web.Response()


@contextmanager
def fake_model() -> Iterator[FakeModel]:
    """It runs on a thread of its own for the duration of a with-block."""
    model, loop = FakeModel(), asyncio.new_event_loop()

    async def chat(request: web.Request) -> web.StreamResponse:
        model.asked.append(await request.json())
        model.headers.append(dict(request.headers))
        assert model.reply is not None
        return await model.reply(model, request)

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        model.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield model
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def events_of(body: bytes) -> Sequence[tuple[str, Any]]:
    """The server-sent events of a stream: name and data."""
    found = []
    for block in body.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields["event"], json.loads(fields["data"])))
    return found
