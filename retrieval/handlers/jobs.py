"""Rebuilds and the jobs that carry them out."""

from __future__ import annotations

import asyncio

from aiohttp import web

from retrieval.handlers.wire import answer, body, collection_of, real_name
from retrieval.keys import TASKS
from retrieval.schemas import JobStarted, Nothing, Reindex, RolledBack


async def reindex(request: web.Request) -> web.Response:
    wanted = await body(request, Reindex)
    _, collection = collection_of(request)
    job = request.app[TASKS].reindex(real_name(request), collection, wanted.hot_capacity)
    return answer(JobStarted(job.id), status=202, headers={"Location": f"/v1/jobs/{job.id}"})


async def rollback(request: web.Request) -> web.Response:
    await body(request, Nothing)
    _, collection = collection_of(request)
    request.app[TASKS].require_idle(real_name(request))
    generation = await asyncio.to_thread(collection.rollback)
    return answer(RolledBack(generation.number))


async def shown(request: web.Request) -> web.Response:
    return answer(request.app[TASKS].get(request.match_info["job"]))


async def listed(request: web.Request) -> web.Response:
    return answer({"jobs": request.app[TASKS].all()})
