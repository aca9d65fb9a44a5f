"""Times an open engine from inside its process. Milliseconds are wall time around the call, one by one.

Single queries are asked in turns with the other engines, a few at a time, because a machine's speed changes within a
run: engines are compared within a turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jobs.benchmark.embed.engine import Engine

WARM_UP = 50
TURN = 20  # queries that are timed in one turn
TURN_WARM_UP = 5  # and asked before them: the processors have just worked for another engine
TURN_REST_S = 0.03  # after a turn: threads that spin must be asleep before another engine has its turn
QUERIES = "queries"  # the stage that is announced before each turn
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
    """Times as they were: who makes the report sums them up. `stage` is told what comes next.

    Single queries come in lists, one for each turn.
    """
    found: dict[str, Any] = {"query_ms": await in_turns(engine, texts.queries, stage)}
    found["query_after_pause_ms"] = await in_turns(engine, texts.queries, stage, PAUSE_S)
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


async def in_turns(
    engine: Engine, queries: Sequence[str], stage: Stage, pause_s: float = 0.0
) -> list[list[float]]:
    """Milliseconds of each query, by turn. With a pause before each, an engine at rest must be woken every time."""
    turns: list[list[float]] = []
    for start in range(0, len(queries), TURN):
        stage(QUERIES)
        before = queries[-TURN_WARM_UP:] if turns else queries[:WARM_UP]
        await one_by_one(engine, before, pause_s)
        turns.append(await one_by_one(engine, queries[start : start + TURN], pause_s))
        await asyncio.sleep(TURN_REST_S)
    return turns


async def one_by_one(engine: Engine, queries: Sequence[str], pause_s: float) -> list[float]:
    taken = []
    for query in queries:
        if pause_s:
            await asyncio.sleep(pause_s)
        begun = time.perf_counter()
        await engine.query(query)
        taken.append((time.perf_counter() - begun) * 1000)
    return taken
