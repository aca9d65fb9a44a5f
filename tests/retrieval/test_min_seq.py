"""Waiting for a sequence number."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from indexes.base.errors import DeadlineExceeded
from jobs.serving.process import serving
from retrieval.search import pipeline
from retrieval.search.pipeline import snapshot_with, wait_for_seq
from tests.support.http import Http
from tests.support.vectors import World, fill, make_collection

WORLD = World()


def test_a_commit_wakes_those_who_wait_for_it(tmp_path: Path) -> None:
    """Each of them once its operation can be searched, and nobody looks at the clock meanwhile."""
    collection = make_collection(tmp_path / "c")

    async def story() -> None:
        first, second = (asyncio.create_task(wait_for_seq(collection, seq)) for seq in (1, 5))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        timers = [one.when() for one in loop._scheduled]  # type: ignore[attr-defined]
        assert min(timers) > loop.time() + 1  # only the end of each one's patience
        await asyncio.to_thread(fill, collection, WORLD, range(3))
        await first
        assert snapshot_with(collection, 1).seq == 3
        assert not second.done()
        await asyncio.to_thread(fill, collection, WORLD, range(3, 5))
        await second
        await wait_for_seq(collection, 5)
        assert snapshot_with(collection, 5).seq == 5

    asyncio.run(story())
    collection.close()


def test_those_who_leave_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled, or out of patience, which says where the log is."""
    monkeypatch.setattr(pipeline, "MIN_SEQ_WAIT_S", 0.01)
    collection = make_collection(tmp_path / "c")

    async def story() -> None:
        waiting = asyncio.create_task(wait_for_seq(collection, 7))
        await asyncio.sleep(0)
        assert len(collection.arrivals._waiting) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await wait_for_seq(collection, 8)
        with pytest.raises(DeadlineExceeded, match="the log is at seq 0, before min_seq=8"):
            snapshot_with(collection, 8)

    asyncio.run(story())
    assert not collection.arrivals._waiting
    fill(collection, WORLD, range(3))
    collection.close()


@pytest.mark.slow
def test_a_batch_waits_once(tmp_path: Path, model_folder: Path) -> None:
    """Its searches wait together; those whose write has not come fail, the others are answered, and an explanation says
    so. Waiting is no load: no search is degraded, and none is refused although there are fewer places than requests
    that wait."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SEARCH_STRAINED_FROM": "2",
        "NEARLINE_ADMISSION_SEARCHES_MAX": "2",
        "NEARLINE_ADMISSION_HEAVY_MAX": "1",
    }
    with serving(tmp_path / "data", environ) as server, ThreadPoolExecutor(8) as pool:
        http = Http(server.url)
        name = http.new_collection()
        http.write(name, {"id": "a", "text": "A boat."})
        path, late = f"/v1/collections/{name}/search", {"query": "boat", "min_seq": 1_000_000}
        batch = {"searches": [late, *({"query": "boat", "k": k} for k in range(1, 20)), *[late] * 20]}
        waiting = [pool.submit(Http(server.url).call, "POST", path, late) for _ in range(4)]
        explain = f"/v1/collections/{name}/explain", {**late, "document_id": "a"}
        waiting.append(pool.submit(Http(server.url).call, "POST", *explain))
        waiting.append(pool.submit(Http(server.url).call, "POST", f"{path}/batch", batch))
        time.sleep(0.3)  # all of them have arrived
        for _ in range(20):
            assert "degraded" not in http.search(name, query="boat")["receipt"]
        assert not any(one.done() for one in waiting)
        *searches, explained, answered = (one.result() for one in waiting)
        assert {one.status for one in searches} == {503}
        assert explained.body["cause"]["kind"] == "not_visible"
        kinds = ["error" in one for one in answered.body["results"]]
        assert kinds == [True, *[False] * 19, *[True] * 20]
