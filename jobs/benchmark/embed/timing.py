"""Times an open engine from inside its process. Milliseconds are wall time around the call, one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jobs.benchmark.embed.engine import Engine

WARM_UP = 50
WARM_UP_PASSAGES = 32
PAUSE_S = 0.003

Stage = Callable[[str], None]


class Texts(msgspec.Struct):
    """What is embedded for time. `passages` by the name of where they come from."""

    queries: list[str]
    passages: dict[str, list[str]]
    clients: int


class Lists(msgspec.Struct):
    """What is embedded to judge the vectors: some texts of every kind, and collections with queries by name."""

    checks: list[str]
    documents: dict[str, list[str]]
    queries: dict[str, list[str]]


async def measure(engine: Engine, texts: Texts, stage: Stage) -> dict[str, Any]:
    """Times as they were: who makes the report sums them up. `stage` is told what comes next."""
    stage("queries")
    found: dict[str, Any] = {"query_ms": await one_by_one(engine, texts.queries)}
    found["query_after_pause_ms"] = await one_by_one(engine, texts.queries, PAUSE_S)
    stage("crowd")
    await engine.crowd(texts.queries[: 2 * texts.clients], texts.clients)
    found["crowd"] = await engine.crowd(texts.queries, texts.clients)
    stage("bulk")
    found["bulk_s"] = {}
    found["bulk_sorted_s"] = {}
    for name, passages in texts.passages.items():
        await engine.documents(passages[:WARM_UP_PASSAGES])
        begun = time.perf_counter()
        await engine.documents(passages)
        found["bulk_s"][name] = time.perf_counter() - begun
        begun = time.perf_counter()
        if await engine.documents_sorted(passages) is not None:
            found["bulk_sorted_s"][name] = time.perf_counter() - begun
    return found


async def one_by_one(engine: Engine, queries: Sequence[str], pause_s: float = 0.0) -> list[float]:
    """Milliseconds of each query. With a pause before each, an engine at rest must be woken every time."""
    for query in queries[:WARM_UP]:
        await engine.query(query)
    taken = []
    for query in queries:
        if pause_s:
            await asyncio.sleep(pause_s)
        begun = time.perf_counter()
        await engine.query(query)
        taken.append((time.perf_counter() - begun) * 1000)
    return taken
