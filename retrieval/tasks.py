"""Jobs beside the serving: rebuilds and tunings, one at a time, their progress and outcome kept for whoever asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from indexes.build.rebuild import Rebuild
from indexes.build.tuner import Tuner, check_target, chosen_from, why_unmet
from indexes.collection import Collection
from indexes.errors import Conflict, NearlineError, NotFound, NotReady, RecallTooLow
from indexes.model import Floats
from retrieval.errors import without_folders
from retrieval.job_schemas import JobBody, JobProgress
from retrieval.schemas import RebuildDue

logger = logging.getLogger(__name__)

JOBS_KEPT = 1000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
LOOK_EVERY_S = 2.0  # for rebuilds that are due while nobody writes
Finished = Callable[[JobBody], None]
Work = Callable[[JobBody], Awaitable[None]]  # puts what it made into the job's result
Queries = Callable[[], Awaitable[Floats]]


class Child(Protocol):
    """What a job waits for and a closing service ends: a process of its own, or texts being embedded."""

    def cancel(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed rebuild, the last of so many in a row, and how long none starts by itself. `until_s` is monotonic."""

    job: JobBody
    attempts: int
    pause_s: float
    until_s: float


class Tasks:
    """Starts jobs and remembers the last JOBS_KEPT. For the event loop; `close` ends what still runs."""

    def __init__(self, on_finish: Finished, folders: tuple[Path, ...] = ()) -> None:
        """`folders` are told to clients by their last names."""
        self._jobs: OrderedDict[str, JobBody] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._children: dict[str, Child] = {}
        self._building = asyncio.Lock()
        self._failures: dict[str, Failure] = {}
        self._folders = folders
        self._closing = False
        self._on_finish = on_finish

    def get(self, job_id: str) -> JobBody:
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFound(f"no job {job_id!r}; the last {JOBS_KEPT} since the start are known", param="job")
        return job

    def all(self) -> list[JobBody]:
        """Newest first."""
        return list(reversed(self._jobs.values()))

    def reindex(self, name: str, collection: Collection, hot_capacity: int | None = None) -> JobBody:
        """Queue a rebuild. Raises Conflict while a job of the same collection is queued or running."""
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
        """Queue a choice of search settings, by these queries or by made-up ones; `apply` puts them to use.

        Raises Conflict as `reindex` does, or if there is no generation; InvalidInput for a target below the floor.
        """
        check_target(collection, recall_target)
        return self._start(
            "tune", name, lambda job: self._tune(job, collection, recall_target, queries, apply)
        )

    def reindex_if_due(self, name: str, collection: Collection) -> None:
        """Start a rebuild by the collection's own rules. Cheap: called after every write."""
        failure = self._failures.get(name)
        if self.busy(name) or (failure and time.monotonic() < failure.until_s):
            return
        reason = collection.wants_rebuild()
        if reason is not None:
            logger.info("rebuilding %s by itself: %s", name, reason)
            self.reindex(name, collection)

    async def keep_rebuilt(self, collections: Callable[[], Mapping[str, Collection]]) -> None:
        """Start what is due without a write, above all after an upgrade: one rebuild after the other, until cancelled.

        The next one is not even queued while a job runs: a queued one would keep its collection from being renamed or
        deleted.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for name, collection in sorted(collections().items()):
                if self._running:
                    break
                self.reindex_if_due(name, collection)

    def rebuild_due(self, name: str, collection: Collection) -> RebuildDue | None:
        """What a listing says of a rebuild that starts by itself, or has started."""
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
        """No collection has this name any more."""
        self._failures.pop(name, None)

    def busy(self, name: str) -> bool:
        return self._running_kind(name) is not None

    def require_idle(self, name: str) -> None:
        if kind := self._running_kind(name):
            raise Conflict(f"a {kind} of {name!r} is under way", param="collection")

    def _running_kind(self, name: str) -> str | None:
        """What is queued or running for a collection."""
        jobs = (self._jobs[job_id] for job_id in self._running if job_id in self._jobs)
        return next((job.kind for job in jobs if job.collection == name), None)

    def _start(self, kind: Literal["reindex", "tune"], name: str, work: Work) -> JobBody:
        if other := self._running_kind(name):
            raise Conflict(f"a {other} of {name!r} is under way already", param="collection")
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
            if job.kind == "reindex":
                self._note(job)
            self._running.pop(job.id, None)
            self._children.pop(job.id, None)
            self._on_finish(job)

    def _note(self, job: JobBody) -> None:
        """After a failure, wait ever longer before a rebuild starts by itself again: it costs as much each time."""
        if job.status == "succeeded":
            self._failures.pop(job.collection, None)
            return
        before = self._failures.get(job.collection)
        attempts, pause_s = 1, FIRST_PAUSE_S
        if before:
            attempts, pause_s = before.attempts + 1, min(2 * before.pause_s, LONGEST_PAUSE_S)
        self._failures[job.collection] = Failure(job, attempts, pause_s, time.monotonic() + pause_s)

    async def _rebuild(self, job: JobBody, collection: Collection, hot_capacity: int | None) -> None:
        try:
            await self._rebuilt(job, collection, hot_capacity)
        except BaseException:
            with contextlib.suppress(NearlineError):  # why the rebuild failed is what matters
                await asyncio.to_thread(collection.rebuild_failed)
            raise

    async def _rebuilt(self, job: JobBody, collection: Collection, hot_capacity: int | None) -> None:
        progress = progress_of(job)
        self._require_open()
        request = await asyncio.to_thread(collection.begin_build, hot_capacity)
        self._require_open()
        rebuild = Rebuild(request, timeout_s=collection.tuning.build_timeout_s)
        self._children[job.id] = rebuild
        number = await asyncio.to_thread(rebuild.run, progress)
        progress("adopt", 0, 1)
        try:
            generation = await asyncio.to_thread(collection.adopt, number)
        except BaseException:
            await asyncio.to_thread(collection.discard, number)
            raise
        progress("adopt", 1, 1)
        manifest = generation.manifest
        job.result = {
            "generation": manifest.number,
            "seq": manifest.seq,
            "hot": manifest.hot,
            "cold": manifest.cold,
            "moves": manifest.moves,
            "recall": manifest.recall,
            "build_s": manifest.build_s,
        }

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
        vectors = None if queries is None else await self._embedded(job, queries)
        self._require_open()
        tuner = Tuner(collection, recall_target, vectors)
        self._children[job.id] = tuner
        tuned = await asyncio.to_thread(tuner.run, progress)
        # What the cold policy does is its own to learn: reported, so that the times can be judged.
        cold = (await asyncio.to_thread(collection.info)).cold
        job.result = {**msgspec.to_builtins(tuned), "cold_policy": cold, "applied": False}
        if not tuned.met:
            raise RecallTooLow(why_unmet(tuned))
        if apply:
            await asyncio.to_thread(collection.set_search, chosen_from(tuned))
            job.result["applied"] = True

    async def _embedded(self, job: JobBody, queries: Queries) -> Floats:
        embedding = asyncio.ensure_future(queries())
        self._children[job.id] = embedding
        try:
            return await embedding
        except asyncio.CancelledError:
            self._require_open()
            raise

    async def close(self) -> None:
        """End what is being built; let a generation that is being adopted take its place."""
        self._closing = True
        for child in list(self._children.values()):
            child.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _require_open(self) -> None:
        if self._closing:
            raise NotReady("the service is closing")


def progress_of(job: JobBody) -> Callable[[str, int, int], None]:
    def progress(stage: str, done: int, total: int) -> None:
        job.progress = JobProgress(stage, done, total)

    return progress


def now_ms() -> int:
    return time.time_ns() // 1_000_000
