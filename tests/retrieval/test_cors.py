"""Calls from pages of other origins: what a browser asks before them, and what it wants to see in the answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from indexes.base.errors import InvalidInput
from jobs.serving.process import ServerProcess, serving
from retrieval.base.config import load_config
from retrieval.base.settings import Config, ServerSection
from retrieval.handlers.state import CONFIG
from retrieval.server.middlewares import cross_origin, errors_as_json
from retrieval.server.openapi import Route
from retrieval.server.routes import ROUTES
from tests.support.http import Http, Reply

ORIGIN, OTHER = "https://app.example.com", "http://localhost:5173"
ASKED = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}

READABLE = {"access-control-allow-origin": ORIGIN, "access-control-expose-headers": "*"}


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SERVER_CORS_ORIGINS": json.dumps([ORIGIN, OTHER]),
        "NEARLINE_SERVER_BODY_BYTES_MAX": "2000000",
        "NEARLINE_LIMITS_DOCUMENT_BYTES_MAX": "1000000",
    }
    with serving(tmp_path_factory.mktemp("cors") / "data", environ) as server:
        yield server


@pytest.fixture
def http_open(open_service: ServerProcess) -> Http:
    return Http(open_service.url)


def granted(reply: Reply) -> dict[str, str]:
    """What the answer lets the page do."""
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return {name: value for name, value in headers.items() if name.startswith("access-control-")}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_preflight_of_every_route(http_open: Http, route: Route) -> None:
    """It is answered with what was asked for, without a body."""
    asked = {**ASKED, "Origin": ORIGIN, "Access-Control-Request-Method": route.method}
    reply = http_open.call("OPTIONS", re.sub(r"{[^}]*}", "x", route.path), headers=asked)
    assert (reply.status, reply.body) == (204, None)
    assert granted(reply) == {
        "access-control-allow-origin": ORIGIN,
        "access-control-allow-methods": route.method,
        "access-control-allow-headers": "authorization,content-type",
        "access-control-max-age": "7200",
        "access-control-expose-headers": "*",
    }
    assert reply.headers["Vary"] == "Origin"


@pytest.mark.parametrize("origin", [ORIGIN, OTHER])
def test_answers_may_be_read(http_open: Http, origin: str) -> None:
    """The page's own origin is named, and every header of the answer is open to it."""
    body = {"model": "all-MiniLM-L6-v2", "input": "x"}
    reply = http_open.call("POST", "/v1/embeddings", body, headers={"Origin": origin})
    assert reply.status == 200
    assert granted(reply) == READABLE | {"access-control-allow-origin": origin}
    assert reply.headers["Vary"] == "Origin"
    assert reply.headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("method", "path", "raw", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("GET", "/v1/collections/nothing", None, 404),
        ("DELETE", "/v1/embeddings", None, 405),
        ("OPTIONS", "/v1/embeddings", None, 405),  # no preflight: it asks for no method
        ("POST", "/v1/embeddings", b"{", 400),
        ("POST", "/embed", b"{}", 422),
        ("POST", "/v1/collections", b"x" * 2_000_001, 413),
    ],
)
def test_errors_may_be_read(http_open: Http, method: str, path: str, raw: bytes | None, status: int) -> None:
    """Otherwise a page would only learn that its call failed."""
    reply = http_open.call(method, path, raw=raw, headers={"Origin": ORIGIN})
    assert reply.status == status
    assert granted(reply) == READABLE
    assert reply.headers["Vary"] == "Origin"


@pytest.mark.parametrize(
    "origin", ["https://evil.example.com", "http://app.example.com", f"{ORIGIN}:8443", "null"]
)
def test_other_origins(http_open: Http, origin: str) -> None:
    """They are refused, and caches learn that the answer is not for everybody."""
    for method in ("OPTIONS", "GET"):
        reply = http_open.call(method, "/v1/collections", headers={**ASKED, "Origin": origin})
        assert reply.status == 403
        assert granted(reply) == {}
        assert reply.headers["Vary"] == "Origin"


def test_nothing_without_configuration(http: Http) -> None:
    """By default only the service's own pages may call, and answers do not vary."""
    for method in ("OPTIONS", "GET"):
        reply = http.call(method, "/v1/collections", headers={**ASKED, "Origin": ORIGIN})
        assert reply.status == 403
        assert granted(reply) == {}
        assert "Vary" not in reply.headers


def test_a_read_that_names_no_origin(http_open: Http) -> None:
    """Any page could have sent it, so it is refused; a page that is allowed fetches with its Origin."""
    sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert http_open.call("GET", "/v1/collections", headers=sent).status == 403
    fetched = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": ORIGIN}
    assert http_open.call("GET", "/v1/collections", headers=fetched).status == 200


def test_any_origin() -> None:
    """`*` lets all in, also a page without an origin of its own."""

    async def ask() -> list[Reply]:
        app = web.Application(middlewares=[cross_origin, errors_as_json])
        app[CONFIG] = Config(server=ServerSection(cors_origins=["*"]))
        async with TestClient(TestServer(app)) as client:
            calls = [client.get("/", headers={"Origin": origin}) for origin in (ORIGIN, "null")]
            calls.append(client.options("/", headers={"Origin": "null", **ASKED}))
            return [Reply(answer.status, None, answer.headers) for answer in await asyncio.gather(*calls)]

    replies = asyncio.run(ask())
    assert [reply.status for reply in replies] == [404, 404, 204]
    for reply in replies:
        assert granted(reply)["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "wrong",
    [f"{ORIGIN}/", f"{ORIGIN}/page", "app.example.com", "https://App.example.com", "https://*.a.com", "", 5],
)
def test_origins_that_no_browser_sends(tmp_path: Path, wrong: object) -> None:
    """They could never match: refused at the start, naming the key."""
    path = tmp_path / "nearline.toml"
    path.write_text(f"[server]\ncors_origins = {json.dumps([wrong])}\n")
    for source, environ in [(path, {}), (None, {"NEARLINE_SERVER_CORS_ORIGINS": json.dumps([wrong])})]:
        with pytest.raises(
            InvalidInput, match="cors_origins: expected a list of origins without a path"
        ) as caught:
            load_config(source, environ)
        assert caught.value.param == "server.cors_origins"
