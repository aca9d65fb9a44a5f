"""What runs in a service of a cluster beside its requests, and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")

JOBS_KEPT = 100
RUNNING = web.AppKey["set[asyncio.Task[None]]"]("RUNNING")


def keep_running(app: web.Application, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run this, and return it, so that its caller may wait for it and leave."""
    task = asyncio.create_task(work)
    app[RUNNING].add(task)
    task.add_done_callback(app[RUNNING].discard)
    return task


async def end_all(app: web.Application) -> None:
    for task in app[RUNNING]:
        task.cancel()
    await asyncio.gather(*app[RUNNING], return_exceptions=True)


def remember(jobs: dict[str, T], job_id: str, job: T) -> None:
    """Keep a job under its id, and forget the oldest of more than JOBS_KEPT."""
    jobs[job_id] = job
    while len(jobs) > JOBS_KEPT:
        jobs.pop(next(iter(jobs)))
