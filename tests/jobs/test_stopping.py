"""SIGTERM: what was accepted finishes within the grace, the rest is answered, and the process leaves."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from jobs.serving.process import serving
from tests.support.http import Http, Reply

SENTENCE = "A stopping service finishes what it has accepted, if that takes no longer than its grace. "


class Asking(threading.Thread):
    """A request that is under way while the test goes on."""

    def __init__(self, http: Http, path: str, body: object) -> None:
        super().__init__(daemon=True)
        self._http, self._path, self._body = http, path, body
        self.start()

    def run(self) -> None:
        self._reply = self._http.call("POST", self._path, self._body)

    @property
    def reply(self) -> Reply:
        self.join(60)
        return self._reply


def environ(model_folder: Path, grace_s: float) -> dict[str, str]:
    return {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SERVER_SHUTDOWN_GRACE_S": str(grace_s),
    }


def embedding(http: Http) -> None:
    """Returns when passages wait to be embedded."""
    until = time.monotonic() + 60
    while not http.metric("nearline_embedding_queue_tokens", lane="bulk"):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.model
@pytest.mark.parametrize("documents", [1, 8])
def test_a_write_too_large_for_the_grace(tmp_path: Path, model_folder: Path, documents: int) -> None:
    """It is answered with 503, leaves nothing behind, and can be sent again."""
    texts = [SENTENCE * (1_000_000 // documents // len(SENTENCE))] * documents
    body = {"documents": [{"id": str(at), "text": text} for at, text in enumerate(texts)]}
    settings = environ(model_folder, 0.5)
    with serving(tmp_path / "data", settings) as server:
        http = Http(server.url)
        name = http.new_collection()
        asking = Asking(http, f"/v1/collections/{name}/documents", body)
        embedding(http)
        assert server.stop() == 0
    reply = asking.reply
    assert (reply.status, reply.body["error"]["type"]) == (503, "not_ready")
    assert reply.headers["Connection"] == "close"
    assert int(reply.headers["Retry-After"]) > 0
    with serving(tmp_path / "data", settings) as server:
        http = Http(server.url)
        assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 0
        for text in texts[:1] * 2:
            http.write(name, {"id": "0", "text": text[:1000]})
        assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 1


@pytest.mark.model
def test_what_fits_the_grace(tmp_path: Path, model_folder: Path) -> None:
    """It is finished, and its client told not to use the connection again; an idle one is closed meanwhile."""
    settings = environ(model_folder, 30)
    body = {"documents": [{"id": "a", "text": SENTENCE * (60_000 // len(SENTENCE))}]}
    with serving(tmp_path / "data", settings) as server:
        http = Http(server.url)
        name = http.new_collection()
        at = urlsplit(server.url)
        with socket.create_connection((at.hostname, at.port), 30) as idle:
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 OK" in idle.recv(1 << 16)
            asking = Asking(http, f"/v1/collections/{name}/documents", body)
            embedding(http)
            os.kill(server.pid, signal.SIGTERM)
            assert idle.recv(1) == b""
            assert asking.is_alive()
        assert asking.reply.status == 200
        assert asking.reply.headers["Connection"] == "close"
        assert server.stop() == 0
    with serving(tmp_path / "data", settings) as server:
        assert Http(server.url).ok("GET", f"/v1/collections/{name}")["documents"] == 1


KINDS = ("search", "search/batch", "context", "documents", "documents/count", "explain", "reindex")


@pytest.mark.slow
@pytest.mark.model
def test_mixed_load_when_the_signal_comes(tmp_path: Path, model_folder: Path) -> None:
    """What was accepted is answered, in full or with 503; what was acknowledged is there afterwards; a job under way is
    given up; and the process leaves in time."""
    settings = environ(model_folder, 20)
    with serving(tmp_path / "data", settings) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        http.write("docs", *({"id": f"d{at}", "text": f"Document {at}. {SENTENCE}"} for at in range(200)))
        callers = [Caller(http, kind) for kind in KINDS for _ in range(2)]
        until = time.monotonic() + 60
        while not all(one.replies for one in callers):
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(server.pid, signal.SIGTERM)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 30
        for one in callers:
            one.join(30)
        statuses = {(one.kind, reply.status) for one in callers for reply in one.replies}
        assert {status for _, status in statuses} <= {200, 202, 409, 429, 503}
        assert {(kind, 202 if kind == "reindex" else 200) for kind in KINDS} <= statuses
        written = [
            document["id"]
            for one in callers
            for body, reply in zip(one.bodies, one.replies, strict=False)
            if one.kind == "documents" and reply.status == 200
            for document in body["documents"]
        ]
    with serving(tmp_path / "data", settings) as server:
        for document_id in written:
            assert Http(server.url).call("GET", f"/v1/collections/docs/documents/{document_id}").status == 200


class Caller(threading.Thread):
    """Asks one kind of request after the other, until the service no longer takes connections."""

    def __init__(self, http: Http, kind: str) -> None:
        super().__init__(daemon=True)
        self.kind, self.bodies, self.replies = kind, list[Any](), list[Reply]()
        self._http = http
        self.start()

    def run(self) -> None:
        for at in itertools.count():
            queries = [{"query": f"what is finished, {at}, {one}?", "cache": False} for one in range(20)]
            self.bodies.append(
                {
                    "search": queries[0],
                    "search/batch": {"searches": queries},
                    "context": {"query": f"what is finished, {at}?", "token_budget": 500},
                    "documents": {"documents": [{"id": f"{self.name}-{at}", "text": SENTENCE * 20}]},
                    "explain": {"query": f"what is finished, {at}?", "document_id": "d7"},
                }.get(self.kind, {})
            )
            try:
                self.replies.append(
                    self._http.call("POST", f"/v1/collections/docs/{self.kind}", self.bodies[-1])
                )
            except (
                urllib.error.URLError,
                ConnectionError,
            ):  # it listens no more, or closed what it had not read
                return


# A service, and a thread beside it that nothing can stop.
PROGRAM = """
import sys, threading, time
from pathlib import Path
from jobs.serving import service as serving
from retrieval.base.config import load_config
serving.CLOSING_S = 0.5
threading.Thread(target=time.sleep, args=(600,)).start()
environ = {"NEARLINE_SERVER_PORT": "0", "NEARLINE_SERVER_SHUTDOWN_GRACE_S": "0.5"}
serving.run(load_config(None, environ), Path(sys.argv[1]), lambda: load_config(None, environ))
"""


@pytest.mark.slow
def test_a_thread_that_cannot_be_stopped(tmp_path: Path) -> None:
    """The process leaves all the same, and its log says where every thread was."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("nearline listens on")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Timeout" in log
    assert "most recent call first" in log
