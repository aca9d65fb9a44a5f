"""Jobs of collections in several shards: one job in each shard, known together by one id until the service ends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import msgspec
from aiohttp import web

from indexes.base.errors import Conflict, NearlineError, NotFound
from indexes.base.model import now_ms
from retrieval.access.auth import PRINCIPAL
from retrieval.base.cancellation import gather_or_cancel
from retrieval.cluster.asking import few_at_a_time, read, send
from retrieval.cluster.collections import tell_all
from retrieval.cluster.documents import path_of
from retrieval.cluster.moves import MOVES
from retrieval.cluster.nodes import LOOK_S, Nodes
from retrieval.cluster.running import keep_running, remember
from retrieval.cluster.targets import nodes_of, sharded_of
from retrieval.handlers import jobs as whole
from retrieval.handlers.wire import answer, body
from retrieval.wire.collections import (
    JobBody,
    JobList,
    JobProgress,
    JobStarted,
    JobStatus,
    Nothing,
    Reindex,
    RolledBack,
    Tune,
)

# The first of these that a shard's job has is that of all; the last one needs all.
ORDER: tuple[JobStatus, ...] = ("running", "queued", "failed", "refused", "succeeded")
assert set(ORDER) == set(get_args(JobStatus))
PERCENT = 100


SHARD_JOBS = web.AppKey["dict[str, ShardJobs]"]("SHARD_JOBS")  # by id, the newest last


@dataclass(frozen=True, slots=True)
class ShardJobs:
    """The jobs of the shards of a collection, by its full name: the shard's name, and the job's id at its node. `last`
    is what is known of them, by shard: a node forgets its jobs when it is restarted."""

    collection: str
    jobs: Sequence[tuple[str, str]]
    last: dict[str, JobBody]

    @property
    def ended(self) -> bool:
        return all(one.finished_ms is not None for one in self.last.values())


async def reindex(request: web.Request) -> web.Response:
    wanted, of = await body(request, Reindex), sharded_of(request).of
    capacity = {} if wanted.hot_capacity is None else {"hot_capacity": -(-wanted.hot_capacity // of)}
    return await start(request, "reindex", capacity)


async def tune(request: web.Request) -> web.Response:
    await body(request, Tune)
    return await start(request, "tune", None)


async def rollback(request: web.Request) -> web.Response:
    """Roll back all shards, if each has an earlier generation."""
    await body(request, Nothing)
    nodes, sharded = nodes_of(request), sharded_of(request)
    names = [sharded.shard(number) for number in range(sharded.of)]
    found = await few_at_a_time(partial(read, nodes, one, path_of(one)) for one in names)
    for name, one in zip(names, found, strict=True):
        if len(one["generations"]) < 2:
            raise Conflict(f"shard {name} has no earlier generation to roll back to")
    rolled = await tell_all(request, "POST", "rollback", {})
    return answer(RolledBack(max(one["generation"] for one in rolled)))


async def erase(request: web.Request) -> web.Response:
    await body(request, Nothing)
    return await start(request, "erase", {})


async def start(request: web.Request, kind: str, options: dict[str, int] | None) -> web.Response:
    sharded = sharded_of(request)
    started = await tell_all(request, "POST", kind, options)
    jobs = [(sharded.shard(number), str(one["job"])) for number, one in enumerate(started)]
    job_id, begun = uuid.uuid4().hex, now_ms()
    last = {shard: JobBody(one, kind, shard, "queued", JobProgress(), begun) for shard, one in jobs}
    known = ShardJobs(sharded.name, jobs, last)
    remember(request.app[SHARD_JOBS], job_id, known)
    keep_running(request.app, keep_looking(request.app, nodes_of(request), job_id))
    return answer(JobStarted(job_id), status=202, headers={"Location": f"/v1/jobs/{job_id}"})


async def show(request: web.Request) -> web.Response:
    if (move := request.app[MOVES].get(request.match_info["job"])) is not None:
        PRINCIPAL.get().require_service()
        return answer(move)
    known = request.app[SHARD_JOBS].get(request.match_info["job"])
    if known is None or not PRINCIPAL.get().sees(known.collection, {}):
        return await whole.show(request)
    return answer(whole.as_called(await joined(nodes_of(request), request.match_info["job"], known)))


async def list_jobs(request: web.Request) -> web.Response:
    """List the jobs of this service, those of collections in shards, and moves of shards, newest first."""
    app, caller = request.app, PRINCIPAL.get()
    seen = [(one, known) for one, known in app[SHARD_JOBS].items() if caller.sees(known.collection, {})]
    found = await gather_or_cancel(joined(nodes_of(request), *one) for one in seen)
    jobs = [*whole.visible(app), *map(whole.as_called, found)]
    jobs += [] if caller.collections or caller.tenant else app[MOVES].values()
    return answer(JobList(sorted(jobs, key=lambda job: job.created_ms, reverse=True)))


async def keep_looking(app: web.Application, nodes: Nodes, job_id: str) -> None:
    """Learn how the jobs end, also if no client asks."""
    while (known := app[SHARD_JOBS].get(job_id)) is not None and not known.ended:
        await asyncio.sleep(LOOK_S)
        await look(nodes, known)


async def look(nodes: Nodes, known: ShardJobs) -> list[JobBody]:
    """Ask for those that are not known to have ended. What a node that does not answer said last still stands."""

    async def look_at(shard: str, job: str) -> JobBody:
        last = known.last[shard]
        if last.finished_ms is not None:
            return last
        try:
            found = msgspec.convert(
                await send(nodes, nodes.writer_of(shard), "GET", f"/v1/jobs/{job}"), JobBody
            )
        except NotFound:
            why = "its node was restarted, or the shard was moved, while it ran"
            found = msgspec.structs.replace(last, status="failed", finished_ms=now_ms(), error=why)
        except NearlineError as error:
            return msgspec.structs.replace(last, error=error.message)
        known.last[shard] = found
        return found

    return await gather_or_cancel(look_at(*one) for one in known.jobs)


async def joined(nodes: Nodes, job_id: str, known: ShardJobs) -> JobBody:
    """Put the jobs of all shards together."""
    found = await look(nodes, known)
    status = next(one for one in ORDER if any(job.status == one for job in found))
    errors = [
        f"shard {name}: {job.error}" for (name, _), job in zip(known.jobs, found, strict=True) if job.error
    ]
    done = [
        job.progress.done / job.progress.total if job.progress.total else job.status == "succeeded"
        for job in found
    ]
    under_way = next((job for job in found if job.status == "running"), found[0])
    finished = [job.finished_ms for job in found if job.finished_ms is not None]
    return JobBody(
        id=job_id,
        kind=found[0].kind,
        collection=known.collection,
        status=status,
        progress=JobProgress(under_way.progress.stage, round(PERCENT * sum(done) / len(done)), PERCENT),
        created_ms=min(job.created_ms for job in found),
        finished_ms=max(finished) if len(finished) == len(found) else None,
        result=join_results(known, found) if status == "succeeded" else {},
        error="; ".join(errors) or None,
    )


def join_results(known: ShardJobs, found: Sequence[JobBody]) -> dict[str, Any]:
    results = [job.result for job in found]
    if found[0].kind == "tune":  # each shard has settings of its own
        return {"shards": {name: one for (name, _), one in zip(known.jobs, results, strict=True)}}
    return add_results(results)


def add_results(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up the results of all shards: sums of what is counted, the longest time, the lowest recall."""
    total = dict(results[0])
    for key, first in results[0].items():
        values = [one[key] for one in results]
        if key == "recall":
            total[key] = {tier: min(one.get(tier, 1.0) for one in values) for tier in first}
        elif key in {"generation", "seq", "build_s"}:
            total[key] = max(values)
        elif isinstance(first, int | float) and not isinstance(first, bool):
            total[key] = sum(values)
    return {**total, "recall_evidence": None} if "recall_evidence" in total else total
