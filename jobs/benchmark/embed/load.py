"""Queries of a running service while it takes in documents: how long do they wait?

The same clients ask alone, while documents are written into a collection, and while passages are embedded in bulk.
Both streams keep two requests under way. The collection is an ordinary one: its writes are synced and indexed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from typing import Any

from jobs.benchmark.embed.engine import REQUESTS_AT_ONCE
from jobs.benchmark.embed.over_http import OverHttp
from jobs.benchmark.embed.timing import Stage, Texts

COLLECTION = "ingest"
STREAM_TEXTS = 50  # of one request; its acknowledgement is what the stream's speed is counted by
ROUNDS = 4  # of all queries: in one round the hundredth part, of which p99 speaks, would be a few answers

Send = Callable[[list[str]], Awaitable[object]]


async def under_load(engine: OverHttp, texts: Texts, stage: Stage) -> dict[str, Any]:
    """Times as they were, of all clients at once and of one alone, by what runs beside them."""
    stage("load")
    passages = [text for group in zip(*texts.passages.values(), strict=False) for text in group]
    await engine.post("/v1/collections", {"name": COLLECTION})
    numbers = count()

    async def write(part: list[str]) -> object:
        documents = [{"id": str(next(numbers)), "text": text} for text in part]
        return await engine.post(f"/v1/collections/{COLLECTION}/documents", {"documents": documents})

    async def embed(part: list[str]) -> object:
        body = {"input": part, "encoding_format": "base64", "input_type": "document"}
        return await engine.post("/v1/embeddings", {"model": engine.model, **body})

    found = {"alone": await asked(engine, texts)}
    for name, send in (("writing", write), ("embedding", embed)):
        async with streaming(send, passages) as done:
            begun, before = time.perf_counter(), done.passages
            found[name] = await asked(engine, texts)
            await done.more()
            rate = (done.passages - before) / (time.perf_counter() - begun)
            found[name]["passages_per_s"] = rate
    return found


async def asked(engine: OverHttp, texts: Texts) -> dict[str, Any]:
    one = await engine.crowd(texts.queries, 1)
    return {"clients": await engine.crowd(texts.queries * ROUNDS, texts.clients), "one_client": one}


class Done:
    """What a stream got acknowledged."""

    def __init__(self) -> None:
        self.passages = 0
        self._more = asyncio.Event()

    def took(self, passages: int) -> None:
        self.passages += passages
        self._more.set()

    async def more(self) -> None:
        """Wait for the next acknowledgement: rates are taken from one to another, however few there are."""
        self._more.clear()
        await self._more.wait()


@contextlib.asynccontextmanager
async def streaming(send: Send, passages: Sequence[str]) -> AsyncIterator[Done]:
    """Sends passages over and over while the block runs, from before it begins. Raises what a sender met."""
    done, stopped = Done(), asyncio.Event()
    starts = count(0, STREAM_TEXTS)

    async def sender() -> None:
        while not stopped.is_set():
            at = next(starts)
            part = [passages[number % len(passages)] for number in range(at, at + STREAM_TEXTS)]
            await send(part)
            done.took(len(part))

    async with asyncio.TaskGroup() as group:
        for _ in range(REQUESTS_AT_ONCE):
            group.create_task(sender())
        try:
            await done.more()
            yield done
        finally:
            stopped.set()
