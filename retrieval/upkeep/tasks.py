"""Background jobs, one at a time: rebuilds, tunings, erasures. Keeps their progress and outcome."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import copy_context
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal, ParamSpec, Protocol, TypeVar

import msgspec

from indexes.base.errors import Conflict, NearlineError, NotFound, NotReady, RecallTooLow
from indexes.base.model import Floats, now_ms
from indexes.collection.collection import Collection
from indexes.rebuild.builder import Rebuild
from indexes.upkeep.erasing import Erasure
from indexes.upkeep.tuner import TuneRun, check_target
from retrieval.upkeep.expiring import delete_expired
from retrieval.wire.collections import JobBody, JobProgress, RebuildDue
from retrieval.wire.errors import without_folders

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

JOBS_KEPT = 1000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
LOOK_EVERY_S = 2.0  # for jobs that become due without a write
Finished = Callable[[JobBody], None]
Work = Callable[[JobBody], Awaitable[None]]  # sets the job's result
Queries = Callable[[], Awaitable[Floats]]
AskedVectors = Callable[[Collection], Awaitable[tuple[str, Floats] | None]]
Forget = Callable[[], Awaitable[object]]


class Cancellable(Protocol):
    """Work that a job waits for and a closing service cancels: a child process, or texts being embedded."""

    def cancel(self) -> object: ...


@dataclass(frozen=True, slots=True)
class RebuildFailures:
    """How many rebuilds in a row have failed, and until when none starts automatically. `until_s` is monotonic."""

    job: JobBody
    attempts: int
    pause_s: float
    until_s: float


def unknown_job(job_id: str) -> NotFound:
    """Return the error for an unknown job. A job that the caller may not see gets the same message."""
    return NotFound(f"no job {job_id!r}; only the last {JOBS_KEPT} since startup are kept", param="job")


class Tasks:
    """Starts jobs and remembers the last JOBS_KEPT. Use it on the event loop; `close` cancels running work."""

    def __init__(
        self,
        on_finish: Finished,
        folders: tuple[Path, ...] = (),
        asked: AskedVectors | None = None,
        released: Callable[[str], AbstractAsyncContextManager[None]] = lambda name: nullcontext(),
    ) -> None:
        """`folders` are shown to clients by their last name only. `asked` returns vectors of a collection's logged
        queries for rebuilds to measure with, or None for too few. Inside `released` no other process has the
        collection of this name open."""
        self._jobs: OrderedDict[str, JobBody] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._children: dict[str, Cancellable] = {}
        self._reserved: set[str] = set()
        self._building = asyncio.Lock()
        # Jobs wait for hours; on shared threads they would leave fewer for reads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="job")
        self._failures: dict[str, RebuildFailures] = {}
        self._folders = folders
        self._asked = asked
        self._released = released
        self._closing = False
        self._on_finish = on_finish

    def get(self, job_id: str) -> JobBody:
        job = self._jobs.get(job_id)
        if job is None:
            raise unknown_job(job_id)
        return job

    def knows(self, job_id: str) -> bool:
        return job_id in self._jobs

    def all(self) -> list[JobBody]:
        """Return all jobs, newest first."""
        return list(reversed(self._jobs.values()))

    def reindex(self, name: str, collection: Collection, hot_capacity: int | None = None) -> JobBody:
        """Queue a rebuild. Raises Conflict while a job of this collection is queued or running."""
        return self._start("reindex", name, lambda job: self._rebuild(job, collection, hot_capacity))

    def tune(
        self,
        name: str,
        collection: Collection,
        recall_target: float,
        queries: Queries | None = None,
        *,
        apply: bool = True,
    ) -> JobBody:
        """Queue a tuning of search settings with these queries or synthetic ones; `apply` activates the result.
        Raises Conflict as `reindex` does, or if there is no generation; InvalidInput for a target below the floor."""
        check_target(collection, recall_target)
        return self._start(
            "tune", name, lambda job: self._tune(job, collection, recall_target, queries, apply)
        )

    def erase(self, name: str, collection: Collection, forget: Forget | None = None) -> JobBody:
        """Queue the erasure of deleted and overwritten data; `forget` erases it elsewhere. It waits for a rebuild or
        tuning in progress. Raises Conflict while another erasure is queued or running."""
        return self._start("erase", name, lambda job: self._erase(job, collection, forget))

    def erase_if_due(self, name: str, collection: Collection, after_s: float) -> None:
        """Start an erasure if the oldest data to erase was deleted at least `after_s` ago, or, on a replica, has been
        erased where it is written. Cheap."""
        since_ms = collection.log.owed.since_ms
        if since_ms is None or self._must_wait(name):
            return
        elsewhere_ms = collection.options.replication.erased_ms(collection.uid)
        if now_ms() < since_ms + 1000 * after_s and elsewhere_ms < since_ms:
            return
        logger.info("erasing deleted data of %s automatically", name)
        self.erase(name, collection)

    def reindex_if_due(self, name: str, collection: Collection) -> None:
        """Start a rebuild if the collection's own rules call for one. Cheap: called after every write."""
        if self._must_wait(name):
            return
        reason = collection.wants_rebuild()
        if reason is not None:
            logger.info("rebuilding %s automatically: %s", name, reason)
            self.reindex(name, collection)

    def _must_wait(self, name: str) -> bool:
        """Whether nothing may start automatically now, because a job is running or failed recently."""
        failure = self._failures.get(name)
        return (
            self.busy(name)
            or name in self._reserved
            or (failure is not None and time.monotonic() < failure.until_s)
        )

    async def keep_up(
        self, collections: Callable[[], Mapping[str, Collection]], erase_after_s: float
    ) -> None:
        """Start rebuilds that are due without a write, mainly after an upgrade, and due erasures, until cancelled.

        One at a time: the next is not queued while a job runs, because a queued job prevents renaming and deleting
        its collection.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for name, collection in sorted(collections().items()):
                if self._running:
                    break
                self.reindex_if_due(name, collection)
                self.erase_if_due(name, collection, erase_after_s)

    def rebuild_due(self, name: str, collection: Collection) -> RebuildDue | None:
        """Return what a listing shows about a rebuild that will start, or has started, automatically."""
        reason = collection.wants_rebuild()
        if reason is None:
            return None
        reason = without_folders(reason, self._folders)
        failure = self._failures.get(name)
        if failure is None:
            return RebuildDue(reason)
        next_ms = now_ms() + round((failure.until_s - time.monotonic()) * 1000)
        return RebuildDue(reason, failure.attempts, failure.job.error, next_ms)

    def forget(self, name: str) -> None:
        """Forget a collection name that no longer exists."""
        self._failures.pop(name, None)

    def busy(self, name: str) -> bool:
        return bool(self._running_jobs(name))

    @contextlib.contextmanager
    def reserved(self, name: str) -> Iterator[None]:
        """Start no job for a collection inside this block. Raises Conflict naming the one that is queued or running,
        and inside another such block."""
        if jobs := self._running_jobs(name):
            raise under_way(jobs[0])
        self._require_free(name)
        self._reserved.add(name)
        try:
            yield
        finally:
            self._reserved.discard(name)

    def _require_free(self, name: str) -> None:
        if name in self._reserved:
            raise Conflict(f"{name!r} is being renamed, deleted or rolled back", param="collection")

    def under_way(self) -> dict[str, str]:
        """Return a job that is queued or running for each collection that has one, by its name."""
        jobs = (self._jobs[job_id] for job_id in self._running if job_id in self._jobs)
        return {job.collection: job.id for job in jobs}

    def _running_jobs(self, name: str) -> list[JobBody]:
        """Return the jobs that are queued or running for a collection."""
        jobs = (self._jobs[job_id] for job_id in self._running if job_id in self._jobs)
        return [job for job in jobs if job.collection == name]

    def _start(self, kind: Literal["reindex", "tune", "erase"], name: str, work: Work) -> JobBody:
        self._require_free(name)
        # Jobs run one at a time. An erasure queues behind a rebuild, so that its caller need not ask again.
        others = [one for one in self._running_jobs(name) if kind != "erase" or one.kind == "erase"]
        if others:
            raise under_way(others[0])
        job = JobBody(
            id=uuid.uuid4().hex,
            kind=kind,
            collection=name,
            status="queued",
            progress=JobProgress(),
            created_ms=now_ms(),
        )
        self._jobs[job.id] = job
        while len(self._jobs) > JOBS_KEPT:
            self._jobs.popitem(last=False)
        self._running[job.id] = asyncio.create_task(self._run(job, work))
        return job

    async def _run(self, job: JobBody, work: Work) -> None:
        try:
            async with self._building:
                job.status = "running"
                await work(job)
            job.status = "succeeded"
            seconds = (now_ms() - job.created_ms) / 1000
            result = msgspec.json.encode(job.result).decode()
            logger.info("%s of %s succeeded after %.1f s: %s", job.kind, job.collection, seconds, result)
        except RecallTooLow as error:
            job.status, job.error = "refused", error.message
            logger.warning("%s of %s refused: %s", job.kind, job.collection, error.message)
        except NearlineError as error:
            job.status, job.error = "failed", error.message
            logger.warning("%s of %s failed: %s", job.kind, job.collection, error.message)
        except Exception as error:
            logger.exception("job %s failed", job.id)
            job.status, job.error = "failed", f"{type(error).__name__}: {error}"
        finally:
            job.finished_ms = now_ms()
            if job.error is not None:
                job.error = without_folders(job.error, self._folders)
            if job.kind in ("reindex", "erase"):
                self._note(job)
            self._running.pop(job.id, None)
            self._children.pop(job.id, None)
            self._on_finish(job)

    def _note(self, job: JobBody) -> None:
        """After a failure, back off before anything starts automatically again: every attempt costs as much."""
        if job.status == "succeeded":
            self._failures.pop(job.collection, None)
            return
        before = self._failures.get(job.collection)
        attempts, pause_s = 1, FIRST_PAUSE_S
        if before:
            attempts, pause_s = before.attempts + 1, min(2 * before.pause_s, LONGEST_PAUSE_S)
        self._failures[job.collection] = RebuildFailures(job, attempts, pause_s, time.monotonic() + pause_s)

    async def _rebuild(self, job: JobBody, collection: Collection, hot_capacity: int | None) -> None:
        try:
            await self._rebuild_and_adopt(job, collection, hot_capacity)
        except BaseException:
            with contextlib.suppress(NearlineError):  # report why the rebuild failed, not this
                await self._waiting(collection.rebuild_failed)
            raise

    async def _rebuild_and_adopt(
        self, job: JobBody, collection: Collection, hot_capacity: int | None
    ) -> None:
        progress = progress_of(job)
        self._require_open()
        request = await self._waiting(collection.begin_build, hot_capacity)
        self._require_open()
        questions = await self._embed(job, partial(self._asked, collection)) if self._asked else None
        self._require_open()
        rebuild = Rebuild(request, timeout_s=collection.options.build_timeout_s, questions=questions)
        self._children[job.id] = rebuild
        number = await self._waiting(rebuild.run, progress)
        progress("adopt", 0, 1)
        try:
            generation = await self._waiting(collection.adopt, number)
        except BaseException:
            await self._waiting(collection.discard, number)
            raise
        progress("adopt", 1, 1)
        job.result = generation.manifest.outcome()

    async def _erase(self, job: JobBody, collection: Collection, forget: Forget | None) -> None:
        self._require_open()
        # A request reaches only the service that writes. A replica erases when it is due, and deletes nothing itself.
        if forget is not None:
            await delete_expired(collection)
        erasure = await self._waiting(Erasure, collection)
        if erasure.needs_rebuild:
            await self._rebuild(job, collection, None)
        self._require_open()
        self._children[job.id] = erasure
        async with self._released(collection.name):
            erased = await self._waiting(erasure.run, progress_of(job))
        if forget is not None:
            await forget()
        job.result = asdict(erased)

    async def _tune(
        self,
        job: JobBody,
        collection: Collection,
        recall_target: float,
        queries: Queries | None,
        apply: bool,
    ) -> None:
        self._require_open()
        progress = progress_of(job)
        progress("embed", 0, 1)
        vectors = None if queries is None else await self._embed(job, queries)
        self._require_open()
        tuner = TuneRun(collection, recall_target, vectors)
        self._children[job.id] = tuner
        tuned = await self._waiting(tuner.run, progress)
        # The cold policy learns by itself; its state is reported so that the times can be judged.
        cold = (await self._waiting(collection.info)).cold
        job.result = {**msgspec.to_builtins(tuned), "cold_policy": cold, "applied": False}
        if not tuned.met:
            raise RecallTooLow(tuned.why_unmet)
        if apply:
            await self._waiting(collection.set_search, tuned.chosen())
            job.result["applied"] = True

    async def _embed(self, job: JobBody, queries: Callable[[], Awaitable[T]]) -> T:
        embedding = asyncio.ensure_future(queries())
        self._children[job.id] = embedding
        try:
            return await embedding
        except asyncio.CancelledError:
            self._require_open()
            raise

    async def close(self) -> None:
        """Cancel builds in progress; let a generation that is being adopted finish."""
        self._closing = True
        for child in list(self._children.values()):
            child.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._thread.shutdown()

    async def _waiting(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on the job thread and return its result."""
        call = partial(copy_context().run, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _require_open(self) -> None:
        if self._closing:
            raise NotReady("the service is closing")


def progress_of(job: JobBody) -> Callable[[str, int, int], None]:
    def progress(stage: str, done: int, total: int) -> None:
        job.progress = JobProgress(stage, done, total)

    return progress


def under_way(job: JobBody) -> Conflict:
    article = "an" if job.kind == "erase" else "a"
    return Conflict(
        f"{article} {job.kind} of {job.collection!r} is under way: job {job.id}",
        param="collection",
        job=job.id,
    )
