"""Jobs beside the serving: rebuilds, one at a time, with their progress and outcome kept for whoever asks."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from indexes.build.rebuild import Rebuild
from indexes.collection import Collection
from indexes.errors import Conflict, NearlineError, NotFound, NotReady
from retrieval.schemas import JobBody, JobProgress

logger = logging.getLogger(__name__)

JOBS_KEPT = 1000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
Finished = Callable[[JobBody], None]


class Tasks:
    """Starts jobs and remembers the last JOBS_KEPT. For the event loop; `close` ends what still runs."""

    def __init__(self, on_finish: Finished) -> None:
        self._jobs: OrderedDict[str, JobBody] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._rebuilds: dict[str, Rebuild] = {}
        self._building = asyncio.Lock()
        self._failures: dict[str, int] = {}
        self._pause_until: dict[str, float] = {}
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
        """Queue a rebuild. Raises Conflict while one of the same collection is queued or running."""
        if self.busy(name):
            raise Conflict(f"a reindex of {name!r} is under way already", param="collection")
        job = JobBody(
            id=uuid.uuid4().hex,
            kind="reindex",
            collection=name,
            status="queued",
            progress=JobProgress(),
            created_ms=now_ms(),
        )
        self._jobs[job.id] = job
        while len(self._jobs) > JOBS_KEPT:
            self._jobs.popitem(last=False)
        self._running[job.id] = asyncio.create_task(self._run(job, collection, hot_capacity))
        return job

    def reindex_if_due(self, name: str, collection: Collection) -> None:
        """Start a rebuild by the collection's own rules. Cheap: called after every write."""
        if self.busy(name) or time.monotonic() < self._pause_until.get(name, 0):
            return
        reason = collection.wants_rebuild()
        if reason is not None:
            logger.info("rebuilding %s by itself: %s", name, reason)
            self.reindex(name, collection)

    def busy(self, name: str) -> bool:
        return any(self._jobs[job_id].collection == name for job_id in self._running if job_id in self._jobs)

    async def _run(self, job: JobBody, collection: Collection, hot_capacity: int | None) -> None:
        try:
            async with self._building:
                job.status = "running"
                job.result = await self._rebuild(job, collection, hot_capacity)
            job.status = "succeeded"
        except NearlineError as error:
            job.status, job.error = "failed", error.message
        except Exception as error:
            logger.exception("job %s failed", job.id)
            job.status, job.error = "failed", f"{type(error).__name__}: {error}"
        finally:
            job.finished_ms = now_ms()
            self._note(job.collection, failed=job.status != "succeeded")
            self._running.pop(job.id, None)
            self._rebuilds.pop(job.id, None)
            self._on_finish(job)

    def _note(self, name: str, *, failed: bool) -> None:
        """After a failure, wait ever longer before a rebuild starts by itself again: it costs as much each time."""
        self._failures[name] = self._failures.get(name, 0) + 1 if failed else 0
        pause_s = min(FIRST_PAUSE_S * 2 ** (self._failures[name] - 1), LONGEST_PAUSE_S) if failed else 0
        self._pause_until[name] = time.monotonic() + pause_s

    async def _rebuild(
        self, job: JobBody, collection: Collection, hot_capacity: int | None
    ) -> dict[str, Any]:
        def progress(stage: str, done: int, total: int) -> None:
            job.progress = JobProgress(stage, done, total)

        self._require_open()
        request = await asyncio.to_thread(collection.begin_build, hot_capacity)
        self._require_open()
        rebuild = Rebuild(request, timeout_s=collection.tuning.build_timeout_s)
        self._rebuilds[job.id] = rebuild
        number = await asyncio.to_thread(rebuild.run, progress)
        progress("adopt", 0, 1)
        try:
            generation = await asyncio.to_thread(collection.adopt, number)
        except BaseException:
            await asyncio.to_thread(collection.discard, number)
            raise
        progress("adopt", 1, 1)
        manifest = generation.manifest
        return {
            "generation": manifest.number,
            "seq": manifest.seq,
            "hot": manifest.hot,
            "cold": manifest.cold,
            "moves": manifest.moves,
            "recall": manifest.recall,
            "build_s": manifest.build_s,
        }

    async def close(self) -> None:
        """End what is being built; let a generation that is being adopted take its place."""
        self._closing = True
        for rebuild in list(self._rebuilds.values()):
            rebuild.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _require_open(self) -> None:
        if self._closing:
            raise NotReady("the service is closing")

    def require_idle(self, name: str) -> None:
        if self.busy(name):
            raise NotReady(f"a reindex of {name!r} is under way", retry_after_s=5, param="collection")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
