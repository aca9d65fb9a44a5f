"""Server-sent events, shared by all handlers that stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from retrieval.base.request_id import REQUEST_ID
from retrieval.context.llm import EVENT_STREAM
from retrieval.handlers.browsers import let_page_read

SENT_WITHIN_S = 60.0  # a client that reads nothing for this long counts as gone


class EventStream:
    """The body of one answer. `write` raises ConnectionError once the client has gone or stopped reading."""

    def __init__(self) -> None:
        headers = {"Content-Type": EVENT_STREAM, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        self.reply = web.StreamResponse(headers={**headers, "X-Request-Id": REQUEST_ID.get()})

    async def write(self, content: bytes) -> None:
        try:
            async with asyncio.timeout(SENT_WITHIN_S):
                await self.reply.write(content)
        except TimeoutError:
            raise ConnectionError("the client has stopped reading") from None


@asynccontextmanager
async def event_stream(request: web.Request) -> AsyncIterator[EventStream]:
    """Begin the answer and end it. An incomplete one is cut off, so that clients do not mistake it for a complete
    one."""
    stream, whole = EventStream(), False
    let_page_read(request, stream.reply)
    await stream.reply.prepare(request)
    try:
        yield stream
        await stream.reply.write_eof()
        whole = True
    except ConnectionError:
        pass  # the client has gone; the cancellation has not arrived yet
    finally:
        if not whole and request.transport is not None:
            request.transport.close()


def event(name: str, data: object, known_by: str | None = None) -> bytes:
    """Encode one event. A client that reconnects sends the `known_by` of its last event as `Last-Event-ID`."""
    numbered = b"" if known_by is None else b"id: %s\n" % known_by.encode()
    return b"%sevent: %s\ndata: %s\n\n" % (numbered, name.encode(), msgspec.json.encode(data))
