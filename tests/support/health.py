"""Whether a busy service still says that it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobs.benchmark.callers import health_s


async def probed(url: str, until: Callable[[], bool]) -> list[float]:
    """How long GET /healthz takes, again and again."""
    took = []
    while not until():
        took.append(await health_s(url))
        await asyncio.sleep(0.1)
    return took
