"""Clients that leave or run out of time, and large writes beside reads: with the real model and a real service."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from jobs.serving.process import ServerProcess, serving
from retrieval.admission.gates import Gates
from retrieval.base.settings import Config, ModelsSection
from retrieval.documents import writing
from retrieval.documents.writing import NewDocument
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.results import Observer
from tests.support.http import Http

SENTENCE = "Who has left is not waited for, and nothing more is done in vain. "


@pytest.mark.model
@pytest.mark.parametrize("half", [False, True])
def test_a_writer_that_leaves(http: Http, half: bool) -> None:
    """What would be embedded for another minute leaves the queue; also that of a client that only stops sending, which
    cannot be told from one that has left."""
    name = http.new_collection()
    document = {"id": "a", "text": SENTENCE * (4_000_000 // len(SENTENCE))}
    at = urlsplit(http.url)
    connection = HTTPConnection(str(at.hostname), at.port)
    connection.request(
        "POST",
        f"/v1/collections/{name}/documents",
        json.dumps({"documents": [document]}),
        {"Content-Type": "application/json"},
    )
    wait_for_queue(http, full=True)
    if half:
        connection.sock.shutdown(socket.SHUT_WR)
        assert connection.sock.recv(1) == b""
    connection.close()
    wait_for_queue(http, full=False)
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 0


def wait_for_queue(http: Http, *, full: bool) -> None:
    until = time.monotonic() + 30
    while (http.metric("nearline_embedding_queue_tokens", lane="bulk") > 0) != full:
        assert time.monotonic() < until
        time.sleep(0.005)


DEAD, WORKERS = 8, 2
C = "/v1/collections/docs"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    """A service that is asked by clients which are gone before it reads their requests."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with serving(tmp_path_factory.mktemp("left") / "data", environ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        http.write("docs", *({"id": str(at), "text": f"Refund {at} is paid late."} for at in range(50)))
        yield server


@pytest.mark.model
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{C}/search/batch", {"searches": [{"query": f"late refund {at}"} for at in range(50)]}),
        (f"{C}/context", {"queries": [f"late refund {at}" for at in range(16)], "token_budget": 500}),
        (f"{C}/explain", {"query": "late refunds", "document_id": "7"}),
        (f"{C}/answer", {"query": "late refunds"}),
        (f"{C}/documents", {"documents": [{"id": f"new{at}", "text": SENTENCE} for at in range(50)]}),
        ("/v1/vector_stores/docs/search", {"query": [f"late refund {at}" for at in range(16)]}),
        ("/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": [SENTENCE] * 200}),
        ("/api/embed", {"model": "all-MiniLM-L6-v2", "input": [SENTENCE] * 200}),
        ("/embed", {"inputs": [SENTENCE] * 200}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_nothing_is_computed_for_the_dead(left: ServerProcess, path: str, body: dict[str, Any]) -> None:
    """Of many requests whose clients have gone, each worker has begun one at most before that is known; nothing is
    written. (A single query of an idle service waits in no queue: it is embedded at once.)"""
    http, at = Http(left.url), urlsplit(left.url)
    before, seq = runs(http), http.ok("GET", C)["seq"]
    sent = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    os.kill(left.pid, signal.SIGSTOP)
    try:
        for _ in range(DEAD):
            with socket.create_connection((str(at.hostname), at.port)) as connection:
                connection.sendall(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
    finally:
        os.kill(left.pid, signal.SIGCONT)
    while http.metric("nearline_embedding_queue_tokens"):
        time.sleep(0.01)
    assert http.ok("GET", "/healthz")
    assert runs(http) - before <= WORKERS
    assert http.ok("GET", C)["seq"] == seq


def runs(http: Http) -> float:
    """Of the embedding model, so far."""
    return http.metric("nearline_embedding_run_seconds_count")


@pytest.mark.model
def test_the_deadline_of_a_context(http: Http) -> None:
    """It holds for putting long passages together, too."""
    name, draw = http.new_collection(), np.random.default_rng(1)
    for at in range(0, 40, 10):
        documents = [
            {
                "id": str(number),
                "text": f"Number {number}. " + SENTENCE * (250_000 // len(SENTENCE)),
                "vector": draw.normal(size=384).tolist(),
            }
            for number in range(at, at + 10)
        ]
        http.write(name, *documents)
    wanted = {"query": "who left?", "token_budget": 100_000, "min_similarity": -1}
    took_ms = []
    for _ in range(3):
        begun = time.monotonic()
        http.ok("POST", f"/v1/collections/{name}/context", {**wanted, "deadline_ms": 60_000})
        took_ms.append(1000 * (time.monotonic() - begun))
    late = {**wanted, "deadline_ms": int(min(took_ms) / 3)}
    reply = http.call("POST", f"/v1/collections/{name}/context", late)
    assert (reply.status, reply.body["error"]["type"]) == (503, "deadline_exceeded")


@pytest.mark.slow
@pytest.mark.model
def test_large_writes_leave_the_threads_of_reads_alone(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many documents are being cut, what else needs a thread gets one."""
    cut, release = writing.chunk, threading.Event()

    def slow(*arguments: Any) -> Any:
        assert release.wait(60)
        return cut(*arguments)

    monkeypatch.setattr(writing, "chunk", slow)
    config = Config(models=ModelsSection(folder=str(model_folder.parent), default=model_folder.name))
    document = NewDocument(id="a", text=SENTENCE * 100)
    entry = Gates(config.admission).enter("write", None, 0)

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        embedders = Embedders(config, lambda name: Observer())
        embedder = await embedders.get(model_folder.name)
        writes = [
            asyncio.create_task(writing.embed([document], embedder, config, embedders.cutting, entry))
            for _ in range(8)
        ]
        await asyncio.sleep(0.05)
        try:
            async with asyncio.timeout(20):
                assert await asyncio.to_thread(int, "7") == 7
        finally:
            release.set()
        assert {len(upserts[0].passages) for upserts in await asyncio.gather(*writes)} == {
            len(cut(document, embedder, config))
        }
        await embedders.close()

    asyncio.run(scenario())
