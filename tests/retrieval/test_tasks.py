"""Jobs: one rebuild at a time, what became of it, and patience after failures."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from indexes.base.errors import Conflict, NotFound
from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from retrieval.upkeep.tasks import Tasks
from retrieval.wire.collections import JobBody
from tests.support.manifests import change_manifests
from tests.support.vectors import World, delete, fill, make_collection

WORLD = World()


def with_tasks(folder: Path, story: Callable[[Tasks, Collection, list[JobBody]], Awaitable[None]]) -> None:
    """Run a story with a small collection that wants a rebuild."""
    options = IndexOptions(delta_passages_max=64, segments_max=1)
    collection = make_collection(folder / "c", options=options)
    fill(collection, WORLD, range(200))
    collection.settle()

    async def told() -> None:
        finished: list[JobBody] = []
        tasks = Tasks(finished.append)
        try:
            await story(tasks, collection, finished)
        finally:
            await tasks.close()

    asyncio.run(told())
    collection.close()


async def ended(tasks: Tasks, job: JobBody) -> JobBody:
    while job.status in ("queued", "running"):  # noqa: ASYNC110 - as a client would: jobs are polled
        await asyncio.sleep(0.02)
    return tasks.get(job.id)


def test_a_rebuild_succeeds_and_is_remembered(tmp_path: Path) -> None:
    """Status, progress and outcome stay readable; a second job for the same collection has to wait its turn."""

    async def story(tasks: Tasks, collection: Collection, finished: list[JobBody]) -> None:
        job = tasks.reindex("c", collection)
        with pytest.raises(Conflict):
            tasks.reindex("c", collection)
        done = await ended(tasks, job)
        assert (done.status, done.error, done.result["generation"]) == ("succeeded", None, 1)
        assert done.finished_ms is not None
        assert finished == [done]
        assert tasks.all() == [done]
        with pytest.raises(NotFound):
            tasks.get("another")

    with_tasks(tmp_path, story)


def test_an_erasure_waits_behind_a_rebuild(tmp_path: Path) -> None:
    """Asked for beside one it takes its turn; a second one is refused until the first is over."""

    async def story(tasks: Tasks, collection: Collection, finished: list[JobBody]) -> None:
        await asyncio.to_thread(delete, collection, range(50))
        owed = collection.log.owed.bytes
        rebuild, erasure = tasks.reindex("c", collection), tasks.erase("c", collection)
        with pytest.raises(Conflict, match="an erase of 'c' is under way"):
            tasks.erase("c", collection)
        done = await ended(tasks, erasure)
        assert (rebuild.status, done.status, done.result["erased_bytes"]) == ("succeeded", "succeeded", owed)
        assert collection.info().owed_bytes == 0
        tasks.erase_if_due("c", collection, 0)
        assert len(tasks.all()) == 2

    with_tasks(tmp_path, story)


def test_rebuilds_start_by_themselves_when_due(tmp_path: Path) -> None:
    """Full segments start one; right after it none is due."""

    async def story(tasks: Tasks, collection: Collection, finished: list[JobBody]) -> None:
        tasks.reindex_if_due("c", collection)
        tasks.reindex_if_due("c", collection)
        assert len(tasks.all()) == 1
        await ended(tasks, tasks.all()[0])
        tasks.reindex_if_due("c", collection)
        assert len(tasks.all()) == 1

    with_tasks(tmp_path, story)


def test_after_a_failure_it_is_not_tried_at_every_write(tmp_path: Path) -> None:
    """A failed rebuild pauses the next one by itself; one by hand is still taken, and leaves no generation behind."""

    async def story(tasks: Tasks, collection: Collection, finished: list[JobBody]) -> None:
        real = collection.shelf.set_current

        def fail(number: int) -> None:
            raise OSError(28, "No space left on device")

        collection.shelf.set_current = fail  # type: ignore[method-assign]
        tasks.reindex_if_due("c", collection)
        assert (await ended(tasks, tasks.all()[0])).status == "failed"
        tasks.reindex_if_due("c", collection)
        assert len(tasks.all()) == 1
        assert collection.shelf.numbers() == []
        collection.shelf.set_current = real  # type: ignore[method-assign]
        assert (await ended(tasks, tasks.reindex("c", collection))).status == "succeeded"

    with_tasks(tmp_path, story)


@pytest.mark.slow
def test_closing_ends_what_is_being_built(tmp_path: Path) -> None:
    """The child is ended, the job says so, nothing of it is live or left on disk."""

    async def story(tasks: Tasks, collection: Collection, finished: list[JobBody]) -> None:
        await asyncio.to_thread(fill, collection, WORLD, range(200, 4000))
        job = tasks.reindex("c", collection)
        while job.progress.stage == "waiting":  # noqa: ASYNC110 - until the child has said its first word
            await asyncio.sleep(0.005)
        await tasks.close()
        assert (job.status, job.error) == ("failed", "build of generation 1 was cancelled")
        assert collection.snapshot.generation == 0
        assert collection.shelf.numbers() == []

    with_tasks(tmp_path, story)


def test_a_build_that_dies_is_a_failed_job(tmp_path: Path) -> None:
    """When the log is not readable for the child, the job fails with the reason, and the service goes on."""

    async def story(tasks: Tasks, collection: Collection, finished: list[JobBody]) -> None:
        shutil.move(collection.folder, collection.folder.with_name("elsewhere"))
        job = await ended(tasks, tasks.reindex("c", collection))
        shutil.rmtree(collection.folder, ignore_errors=True)
        shutil.move(collection.folder.with_name("elsewhere"), collection.folder)
        assert job.status == "failed"
        assert "build of generation 1 failed" in (job.error or "")
        assert len(collection.snapshot.dense(WORLD.queries(1)[0], 5).ranking) == 5

    with_tasks(tmp_path, story)


@pytest.mark.slow
def test_what_a_rebuild_is_about_to_replace_is_not_sealed_first(tmp_path: Path) -> None:
    """The passages of a generation that is of no use become segments only if the rebuild fails."""
    options = IndexOptions(delta_passages_max=64, segments_max=0)
    collection = make_collection(tmp_path / "c", options=options)
    fill(collection, WORLD, range(200))

    async def story() -> None:
        tasks = Tasks(lambda job: None)
        assert (await ended(tasks, tasks.reindex("c", collection))).status == "succeeded"
        collection.close()
        change_manifests(collection.folder, analysis="another")
        reopened = Collection(collection.folder, options)
        reopened.settle()
        assert reopened.info().segments == 0
        query = WORLD.queries(1)[0]
        before = reopened.snapshot.dense(query, 5).ranking.ids.tolist()
        real = reopened.shelf.set_current

        def fail(number: int) -> None:
            raise OSError(28, "No space left on device")

        reopened.shelf.set_current = fail  # type: ignore[method-assign]
        tasks.reindex_if_due("c", reopened)
        assert (await ended(tasks, tasks.all()[0])).status == "failed"
        await asyncio.to_thread(reopened.settle)
        assert reopened.info().segments > 0
        assert reopened.snapshot.dense(query, 5).ranking.ids.tolist() == before
        reopened.shelf.set_current = real  # type: ignore[method-assign]
        assert (await ended(tasks, tasks.reindex("c", reopened))).status == "succeeded"
        assert reopened.info().segments == 0
        assert reopened.snapshot.dense(query, 5).ranking.ids.tolist() == before
        await tasks.close()
        reopened.close()

    asyncio.run(story())


@pytest.mark.slow
def test_a_job_leaves_the_shared_threads_alone(tmp_path: Path) -> None:
    """However long a rebuild takes, what else needs a thread gets one meanwhile."""

    async def story(tasks: Tasks, collection: Collection, finished: list[JobBody]) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await asyncio.to_thread(fill, collection, WORLD, range(200, 4000))
        job = tasks.reindex("c", collection)
        while job.progress.stage == "waiting":  # noqa: ASYNC110 - until the child has said its first word
            await asyncio.sleep(0.005)
        assert await asyncio.to_thread(int, "7") == 7
        assert job.progress.stage != "adopt"  # the child is still at work

    with_tasks(tmp_path, story)
