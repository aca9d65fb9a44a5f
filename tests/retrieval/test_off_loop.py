"""What would hold up every other request is done on threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
from aiohttp import web

from retrieval.admission.gates import Gates
from retrieval.base.settings import Config
from retrieval.documents import writing
from retrieval.documents.writing import write_documents
from retrieval.handlers.state import CATALOG
from retrieval.server.app import create_app
from retrieval.wire.documents import SentDocument
from retrieval.wire.vectors import vector_of
from tests.support.vectors import DIMENSIONS, World, fill, make_collection, settings

WORLD = World()


class Listings:
    """Which threads have listed which folders, while it is watching. Python cannot take an audit hook away again."""

    def __init__(self) -> None:
        self.watching = True
        self.seen: list[tuple[int, str]] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.watching and event in ("os.listdir", "os.scandir"):
            self.seen.append((threading.get_ident(), str(arguments[0])))


Ask = Callable[..., Awaitable[Any]]


def with_service(data: Path, story: Callable[[web.Application, Ask], Awaitable[None]]) -> None:
    """A service in this process, whose loop runs on this thread; `ask` returns the body of an answer."""

    async def told() -> None:
        app = create_app(Config(), data)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as session:

            async def ask(method: str, path: str, body: object = None) -> Any:
                async with session.request(method, url + path, json=body) as reply:
                    assert reply.status < 300, await reply.text()
                    return await reply.read()

            await story(app, ask)
        await runner.cleanup()

    asyncio.run(told())


def test_folders_are_read_on_threads(tmp_path: Path) -> None:
    """For metrics, listings and the description of one collection."""

    async def story(app: web.Application, ask: Ask) -> None:
        collection = app[CATALOG].create("docs", settings())
        collection.shelf.folder.mkdir()
        listings = Listings()
        for path in ("/metrics", "/v1/collections", "/v1/collections/docs"):
            assert b"docs" in await ask("GET", path)
        listings.watching = False
        threads = [thread for thread, path in listings.seen if path.endswith("generations")]
        assert len(threads) == 3
        assert threading.get_ident() not in threads

    with_service(tmp_path / "data", story)


def test_large_answers_are_encoded_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document with its vectors, and the answers of a batch of searches."""
    encode = msgspec.json.encode
    on_loop: list[type] = []

    def watched(value: Any, **options: Any) -> bytes:
        content = encode(value, **options)
        if threading.get_ident() == loop_thread and len(content) > 1 << 19:
            on_loop.append(type(value))
        return content

    loop_thread = threading.get_ident()
    monkeypatch.setattr(msgspec.json, "encode", watched)

    async def story(app: web.Application, ask: Ask) -> None:
        collection = app[CATALOG].create("docs", settings())
        await asyncio.to_thread(lambda: collection.write([WORLD.document(1, passages=4000)]).result())
        assert len(await ask("GET", "/v1/collections/docs/documents/d1?vectors=true")) > 1 << 19
        search = {"query": WORLD.text(1, 0), "mode": "lexical", "k": 1000, "collapse": False}
        assert (
            len(await ask("POST", "/v1/collections/docs/search/batch", {"searches": [search] * 2})) > 1 << 19
        )

    with_service(tmp_path / "data", story)
    assert on_loop == []


def test_vectors_of_documents_are_checked_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is next to no text; a single one is checked where it is."""
    threads: list[int] = []

    def watched(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return vector_of(*arguments)

    monkeypatch.setattr(writing, "vector_of", watched)
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(1))
    vectors = np.random.default_rng(0).normal(size=(500, DIMENSIONS))
    sent = [
        SentDocument(id=str(number), text="a", vector=msgspec.Raw(msgspec.json.encode(vector.tolist())))
        for number, vector in enumerate(vectors)
    ]

    def written(documents: list[SentDocument]) -> set[int]:
        threads.clear()
        entry = Gates(Config().admission).enter("write", None, 0)
        asyncio.run(write_documents(collection, None, documents, Config(), entry))  # type: ignore[arg-type]
        return set(threads)

    assert threading.get_ident() not in written(sent)
    assert collection.snapshot.live == 501
    one = SentDocument(id="x", text="a", vector=sent[0].vector)
    assert written([one]) == {threading.get_ident()}
    collection.close()
