"""Aliases that move while a request is under way."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from indexes.collection.collection import Collection
from retrieval.base.settings import Config
from retrieval.handlers.state import CATALOG, TASKS
from retrieval.server.app import create_app
from tests.support.vectors import World, fill, settings

WORLD = World()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/d1", None),
        ("POST", "/delete", {"ids": ["d1"]}),
        ("POST", "/delete", {"filter": {"type": "eq", "key": "number", "value": 1}}),
        ("PATCH", "/d1", {"metadata": {"seen": True}}),
    ],
)
def test_a_write_stays_with_the_collection_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any
) -> None:
    """What is written through an alias, and the rebuild that is due after it, are those of one collection."""
    looked_at: list[tuple[str, Collection]] = []

    async def story() -> None:
        app = create_app(Config(), tmp_path / "data")
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        monkeypatch.setattr(
            app[TASKS], "reindex_if_due", lambda name, collection: looked_at.append((name, collection))
        )
        catalog = app[CATALOG]
        first, second = (catalog.create(name, settings()) for name in ("first", "second"))
        await asyncio.to_thread(fill, first, WORLD, range(3))
        catalog.set_alias("live", "first")
        gate = threading.Event()
        held = first._writer.call(gate.wait)
        while not held.running():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/collections/live/documents{path}"
        async with aiohttp.ClientSession() as session:
            writing = asyncio.create_task(session.request(method, url, json=body))
            while first._writer._queue.empty():  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
            catalog.set_alias("live", "second")
            gate.set()
            assert (await writing).status == 200
        held.result()
        assert looked_at == [("first", first)]
        assert (first.snapshot.seq, second.snapshot.seq) == (4, 0)
        await runner.cleanup()

    asyncio.run(story())
