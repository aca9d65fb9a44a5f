"""Rebuilds, tunings and erasures, and the jobs that run them."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from indexes.base.errors import TooLarge
from indexes.base.model import Floats
from indexes.store.uploading import Uploader
from indexes.upkeep.tuner import check_number
from retrieval.access.auth import PRINCIPAL
from retrieval.handlers import evaluation
from retrieval.handlers.state import CATALOG, CONFIG, EMBEDDERS, FEEDBACK, PIPELINE, QUERY_LOG, STORE, TASKS
from retrieval.handlers.wire import answer, body, collection_of
from retrieval.upkeep.tasks import unknown_job
from retrieval.wire.collections import JobBody, JobList, JobStarted, Nothing, Reindex, RolledBack, Tune

QUERIES_MAX = 10_000  # per tuning; more only make it take longer


async def reindex(request: web.Request) -> web.Response:
    wanted = await body(request, Reindex)
    _, collection = collection_of(request)
    job = request.app[TASKS].reindex(collection.name, collection, wanted.hot_capacity)
    return answer(JobStarted(job.id), status=202, headers={"Location": f"/v1/jobs/{job.id}"})


async def tune(request: web.Request) -> web.Response:
    wanted = await body(request, Tune)
    _, collection = collection_of(request)
    texts = (
        None
        if wanted.queries is None
        else check_queries(wanted.queries, request.app[CONFIG].limits.query_chars_max)
    )

    async def vectors() -> Floats:
        return await (await request.app[EMBEDDERS].of(collection)).queries(texts or [])

    job = request.app[TASKS].tune(
        collection.name,
        collection,
        wanted.recall_target,
        None if texts is None else vectors,
        apply=wanted.apply,
    )
    return answer(JobStarted(job.id), status=202, headers={"Location": f"/v1/jobs/{job.id}"})


def check_queries(queries: list[str], chars_max: int) -> list[str]:
    """Return the distinct queries. Raises TooLarge, and InvalidInput if there are too few to generalize from."""
    if len(queries) > QUERIES_MAX:
        raise TooLarge(
            f"{len(queries)} queries are too many; at most {QUERIES_MAX} are allowed", param="queries"
        )
    texts = list(dict.fromkeys(stripped for text in queries if (stripped := text.strip())))
    check_number(len(texts))
    for text in texts:
        if len(text) > chars_max:
            raise TooLarge(
                f"a query has {len(text)} characters, at most {chars_max} are allowed", param="queries"
            )
    return texts


async def erase(request: web.Request) -> web.Response:
    await body(request, Nothing)
    _, collection = collection_of(request)
    app = request.app

    async def forget() -> None:
        # Any logged query may quote deleted text, so all of the collection's queries go.
        await app[QUERY_LOG].forget(collection)
        await app[FEEDBACK].on_thread(app[FEEDBACK].forget, collection)
        await asyncio.to_thread(evaluation.forget, collection)
        app[PIPELINE].forget_answers()
        app[EMBEDDERS].cache.clear()
        if isinstance(store := app[STORE], Uploader):
            await asyncio.to_thread(store.erase, collection)

    job = app[TASKS].erase(collection.name, collection, forget)
    return answer(JobStarted(job.id), status=202, headers={"Location": f"/v1/jobs/{job.id}"})


async def rollback(request: web.Request) -> web.Response:
    await body(request, Nothing)
    _, collection = collection_of(request)
    with request.app[TASKS].reserved(collection.name):
        generation = await asyncio.to_thread(collection.rollback)
    return answer(RolledBack(generation.number))


async def show(request: web.Request) -> web.Response:
    """Return one job. Raises NotFound, also for a job of a collection that the caller may not see."""
    job_id = request.match_info["job"]
    job = request.app[TASKS].get(job_id)
    if not may_see(request.app, job):
        raise unknown_job(job_id)
    return answer(as_called(job))


async def list_jobs(request: web.Request) -> web.Response:
    return answer(JobList(visible(request.app)))


def visible(app: web.Application) -> list[JobBody]:
    """The jobs that the caller may see, newest first."""
    return [as_called(job) for job in app[TASKS].all() if may_see(app, job)]


def with_others(request: web.Request, content: bytes) -> web.Response:
    """Answer with the jobs of this service and those that another one has listed."""
    others = msgspec.json.decode(content, type=JobList).jobs
    together = sorted([*visible(request.app), *others], key=lambda job: job.created_ms, reverse=True)
    return answer(JobList(together))


def may_see(app: web.Application, job: JobBody) -> bool:
    return PRINCIPAL.get().sees(job.collection, app[CATALOG].aliases)


def as_called(job: JobBody) -> JobBody:
    """Return the job with the collection's name as its caller knows it."""
    caller = PRINCIPAL.get()
    error = None if job.error is None else caller.hide_tenant(job.error)
    return msgspec.structs.replace(job, collection=caller.own(job.collection), error=error)
