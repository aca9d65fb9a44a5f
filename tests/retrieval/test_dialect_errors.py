"""Errors in the shape of the dialect whose path was asked: one table checked as such, then over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from indexes.base import errors as tree
from indexes.base.errors import NearlineError
from retrieval.embedding.results import TooLong
from retrieval.handlers.error_shapes import EmptyInput, ModelNotFound, dialect_of, response
from retrieval.server.middlewares import errors_as_json
from tests.support.http import Http, Reply

OPENAI, OLLAMA, TEI = "/v1/embeddings", "/api/embed", "/embed"
COHERE, JINA = "/v2/rerank", "/v1/rerank"
DIALECTS = [OPENAI, OLLAMA, TEI, COHERE, JINA]


def shaped(path: str, body: Any) -> bool:
    """Whether an error's body has the shape of the dialect that `path` belongs to."""
    match path:
        case "/v1/embeddings":
            return set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
        case "/v2/rerank":
            return set(body) == {"message"} and isinstance(body["message"], str)
        case "/v1/rerank":
            return set(body) == {"detail", "message"} and isinstance(body["detail"], str)
        case "/api/embed":
            return set(body) == {"error"} and isinstance(body["error"], str)
        case _:
            return set(body) == {"error", "error_type"} and isinstance(body["error"], str)


ERRORS: list[tuple[NearlineError, int, int, int]] = [
    (tree.InvalidInput("x", param="k"), 400, 400, 422),
    (EmptyInput("x"), 400, 400, 400),
    (TooLong("x", 256), 400, 400, 422),
    (tree.TooLarge("x", param="input"), 400, 400, 413),
    (tree.TooLarge("x", param="body"), 413, 413, 413),
    (ModelNotFound("m", []), 404, 404, 424),
    (tree.NotFound("x"), 404, 404, 404),
    (tree.Overloaded("x", retry_after_s=0.25), 429, 503, 429),
    (tree.DeadlineExceeded("x"), 503, 503, 503),
    (tree.NotReady("x"), 503, 503, 503),
    (tree.Damaged("x"), 500, 500, 424),
    (tree.Quarantined("x"), 503, 503, 503),
    (tree.DiskFull("x"), 507, 507, 424),
    (NearlineError("x"), 500, 500, 424),
]


@pytest.mark.parametrize(("error", "openai", "ollama", "tei"), ERRORS, ids=lambda e: type(e).__name__)
def test_statuses(error: NearlineError, openai: int, ollama: int, tei: int) -> None:
    """Each dialect has its own statuses, and every body its shape."""
    for path, status in zip(DIALECTS, (openai, ollama, tei, openai, openai)):
        answer = response(path, error)
        assert answer.status == status
        assert isinstance(answer.body, bytes)
        assert shaped(path, msgspec.json.decode(answer.body))


def test_the_words_that_clients_look_for() -> None:
    """Types, codes and sentences that clients and gateways compare with."""

    def body(path: str, error: NearlineError) -> Any:
        answer = response(path, error)
        assert isinstance(answer.body, bytes)
        return msgspec.json.decode(answer.body)

    busy = tree.Overloaded("x")
    assert body(OPENAI, busy)["error"]["type"] == "rate_limit_error"
    assert body(OPENAI, busy)["error"]["code"] == "rate_limit_exceeded"
    assert body(OPENAI, tree.NotReady("x"))["error"]["type"] == "server_error"
    assert body(TEI, busy) == {"error": "Model is overloaded", "error_type": "Overloaded"}
    assert body(TEI, EmptyInput("x"))["error_type"] == "Empty"
    assert body(TEI, tree.NotReady("x"))["error_type"] == "Unhealthy"
    assert body(TEI, tree.Damaged("x"))["error_type"] == "Backend"
    assert body(OLLAMA, ModelNotFound("m", ["n"])) == {"error": "model 'm' not found"}


def test_when_to_try_again() -> None:
    """Whole seconds for everybody, and milliseconds, which OpenAI's client reads first."""
    for path in DIALECTS:
        headers = response(path, tree.Overloaded("x", retry_after_s=2.25)).headers
        assert (headers["Retry-After"], headers["retry-after-ms"]) == ("3", "2250")
        assert "Retry-After" not in response(path, tree.InvalidInput("x")).headers


@pytest.mark.parametrize(
    "path", ["/v1/collections", "/v1/filesx", "/v1/embeddingsx", "/embedding", "/apix", "/nothing"]
)
def test_other_paths_are_ours(path: str) -> None:
    """A path that only begins alike belongs to no dialect."""
    assert dialect_of(path) is None


@pytest.mark.parametrize("path", DIALECTS)
def test_an_unexpected_error(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """A bug is told in the dialect's shape, without its details, which are in the log."""

    async def broken(request: web.Request) -> web.Response:
        raise ZeroDivisionError("secret")

    async def ask() -> Reply:
        app = web.Application(middlewares=[errors_as_json])
        app.router.add_post(path, broken)
        async with TestClient(TestServer(app)) as client:
            answer = await client.post(path)
            return Reply(answer.status, await answer.json(), {})

    with caplog.at_level(logging.ERROR):
        reply = asyncio.run(ask())
    assert reply.status == (424 if path == TEI else 500)
    assert shaped(path, reply.body)
    assert "secret" not in json.dumps(reply.body)
    assert "ZeroDivisionError: secret" in caplog.text


BROKEN = [
    b"{",
    b"not json",
    b'{"input": "\xff"}',
    b'{"inputs": "\xff"}',
    b'{"input": "\\ud800"}',
    b"\x1f\x8b\x08",
]
DEEP = [b"[" * 100_000, b'{"options": ' + b"[" * 100_000, b'{"input": ["x", [' + b"[" * 100_000]


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("raw", [*BROKEN, *DEEP], ids=lambda raw: raw[:20].decode("latin-1"))
def test_malformed_bodies(http: Http, path: str, raw: bytes) -> None:
    """Broken JSON, bad Unicode and endless nesting are the client's error, in the dialect's shape."""
    reply = http.call("POST", path, raw=raw)
    assert reply.status in ((400, 422) if path == TEI else (400,)), reply
    assert shaped(path, reply.body)


def test_what_is_no_json_is_400(http: Http) -> None:
    """Also in TEI's dialect, where well-formed but wrong is 422."""
    for path in DIALECTS:
        assert http.call("POST", path, raw=b"{").status == 400


@pytest.mark.parametrize("path", DIALECTS)
def test_wrong_types_and_missing_fields(http: Http, path: str) -> None:
    """JSON that does not fit is refused in the dialect's shape."""
    bodies: list[object] = [[], 5, {}, {"model": 5, "input": 5, "inputs": 5}]
    for body in bodies:
        reply = http.call("POST", path, body)
        assert reply.status == (422 if path == TEI else 400), reply
        assert shaped(path, reply.body)


@pytest.mark.parametrize("path", DIALECTS)
def test_paths_and_methods_that_are_not_there(http: Http, path: str) -> None:
    """Below a dialect's paths even 404 and 405 have its shape, and 405 names the methods."""
    reply = http.call("POST", f"{path}/nothing", {})
    assert reply.status == 404
    assert shaped(path, reply.body)
    reply = http.call("DELETE", path)
    assert (reply.status, reply.headers["Allow"]) == (405, "POST")
    assert shaped(path, reply.body)


@pytest.mark.parametrize("path", ["/predict", "/embed_sparse", "/tokenize"])
def test_what_tei_serves_and_nearline_does_not(http: Http, path: str) -> None:
    """404 in TEI's shape."""
    reply = http.call("POST", path, {"query": "q", "texts": ["a"]})
    assert reply.status == 404
    assert shaped(TEI, reply.body)


def test_vectors_of_tokens(http: Http) -> None:
    """A known model that cannot give them is 424 in TEI, and the answer says why."""
    reply = http.call("POST", "/embed_all", {"inputs": "a"})
    assert (reply.status, reply.body["error_type"]) == (424, "Backend")
    assert "pool inside their graphs" in reply.body["error"]


@pytest.mark.parametrize("path", DIALECTS)
def test_a_body_over_the_limit(http: Http, path: str) -> None:
    """34 MB are 413 in the dialect's shape."""
    reply = http.call("POST", path, raw=json.dumps({"input": "y" * 34_000_000}).encode())
    assert reply.status == 413
    assert shaped(path, reply.body)


def test_garbage_leaves_the_service_whole(http: Http) -> None:
    """A connection that is dropped in the middle of a body harms nobody."""
    at = urlsplit(http.url)
    for path in DIALECTS:
        with socket.create_connection((at.hostname, at.port), timeout=10) as connection:
            connection.sendall(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{{".encode()
            )
    assert http.call("GET", "/health").status == 200
