"""Hostile paths, parameters, names and bodies on every route of the router: never our fault, never outside of data."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from jobs.serving.process import ServerProcess, log_of, serving
from retrieval.server.examples import DOCUMENTS
from retrieval.server.openapi import PARAMETER, path_of
from tests.support.http import Http
from tests.support.memory import peak_bytes
from tests.support.operations import Operation, form, operations

CEILING = 1_000_000_000
# As they stand in a path or a query string.
ENCODED = [
    *("..", ".", "%2e%2e", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e%2fkeys.json", "%2fetc%2fpasswd", "..%5c..%5cx"),
    *("%00", "docs%00", "%252e%252e%252f", "%ff", "%ed%a0%80", "%e2%80%ae", "%0d%0aX-Evil:%201", "docs@acme", "-1"),
    *("a" * 3000, "9" * 300, "NaN", "1e999", "true", "%25", "%zz", "~", "*", "{collection}", ".keys.json", "log.db"),
]  # fmt: skip
NAMES = [
    *("..", "../up", "../../up", "/etc/up", "docs/../../up", "a\0b", "a/b", "\\..\\up", "%2e%2e%2fup", "..%00", ".up"),
    *("docs@acme", "con", "a" * 300, "\u202eup", "\ufeffup", "up\n", "-up", "~/up", "nearline.json", "keys.json"),
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "data"


@pytest.fixture(scope="module")
def attacked(data: Path, model_folder: Path) -> Iterator[ServerProcess]:
    """Nothing that it is sent leaves a traceback, or a file outside of its data."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SERVER_MEMORY_BYTES_MAX": str(CEILING),
    }
    with serving(data, environ) as server:
        before = beside(data)
        yield server
        assert beside(data) == before
        assert peak_bytes(server.pid) < CEILING
    assert "Traceback" not in log_of(data).read_text()


def beside(data: Path) -> set[str]:
    """All there is above the data directory, and below it what is in no collection."""
    own = re.compile(r"data/([a-z0-9][a-z0-9_-]{0,62}(@[\w-]+)?|openai\.files)(/.*)?")
    names = (str(path.relative_to(data.parent)) for path in data.parent.rglob("*"))
    return {name for name in names if not own.fullmatch(name)}


class Wire:
    """Requests exactly as written, over one connection; each is answered in JSON, below 500."""

    def __init__(self, server: ServerProcess) -> None:
        self._connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        self.took_s: list[float] = []

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> int:
        started = time.monotonic()
        chunked = "Transfer-Encoding" in (headers or {})
        self._connection.request(method, path, body, dict(headers or {}), encode_chunked=chunked)
        reply = self._connection.getresponse()
        content = reply.read()
        self.took_s.append(time.monotonic() - started)
        told = (
            method,
            path[:200],
            body[:200] if isinstance(body, bytes) else body,
            reply.status,
            content[:500],
        )
        assert reply.status < 500, told
        assert reply.status < 400 or reply.headers.get_content_type() == "application/json", told
        return reply.status

    def check_pace(self) -> None:
        """At most a second each; the machine has pauses of its own."""
        assert sorted(self.took_s)[int(0.999 * (len(self.took_s) - 1))] < 1


@pytest.fixture
def wire(attacked: ServerProcess) -> Iterator[Wire]:
    http = Http(attacked.url)
    http.call("POST", "/v1/collections", {"name": "docs"})
    http.call("POST", "/v1/collections/docs/documents", {"documents": DOCUMENTS})
    found = Wire(attacked)
    yield found
    found.check_pace()
    assert http.ok("GET", "/healthz") == {"status": "ok"}


def one_of_each_route() -> Iterator[Operation]:
    """Without jobs, which take a process each."""
    found = {(one.route.method, one.route.path): one for one in operations()}
    for one in found.values():
        if not one.route.path.endswith(("/reindex", "/tune", "/erase")):
            yield one


@pytest.mark.slow
def test_no_path_is_our_fault(wire: Wire) -> None:
    """Each parameter in each path and each query string."""
    asked = 0
    for one in one_of_each_route():
        raw, headers = one.sent()
        for value in ENCODED:
            for name in PARAMETER.findall(path_of(one.route)):
                wire.ask(one.route.method, one.path({name: value}), raw, headers)
                asked += 1
            for name in one.route.parameters:
                wire.ask(one.route.method, f"{one.path()}?{name}={value}", raw, headers)
                asked += 1
    assert asked > 1000


def test_no_framing_is_our_fault(wire: Wire) -> None:
    """Bodies whose keys stand twice, that come in chunks of a byte, and bombs; the same where no body is wanted."""
    bomb = gzip.compress(b" " * 50_000_000)
    jsons = {"Content-Type": "application/json"}
    statuses = []
    for one in one_of_each_route():
        raw, headers = one.sent()
        method, path, raw = one.route.method, one.path(), raw or b"{}"
        twice = raw[:-1] + b"," + raw[1:] if len(raw) > 2 else b'{"a": 1, "a": 1}'
        chunks = (raw[at : at + 1] for at in range(len(raw)))
        for sent, more in (
            (twice, {}),
            (chunks, {"Transfer-Encoding": "chunked"}),
            (bomb, {"Content-Encoding": "gzip"}),
            (bomb, {"Content-Encoding": "deflate, br"}),
            (b"\xef\xbb\xbf" + raw, {}),
            (raw.decode().encode("utf-16"), {}),
            (raw, {"Content-Type": "multipart/form-data; boundary=" + "x" * 70}),
            (b"[" * 200_000, {}),
        ):
            statuses.append(wire.ask(method, path, sent, {**jsons, **headers, **more}))
    assert {200, 201, 400, 404, 415} <= {*statuses}


def test_no_name_leads_out_of_the_data(wire: Wire, attacked: ServerProcess) -> None:
    """Of collections, aliases, tenants, stores, keys, models, documents and uploaded files."""
    for name in NAMES:
        for method, path, body in (
            ("POST", "/v1/collections", {"name": name}),
            ("POST", "/v1/collections", {"name": "x", "model": name}),
            ("POST", "/v1/collections/docs/rename", {"name": name}),
            ("PUT", "/v1/aliases/help", {"collection": name}),
            ("POST", "/v1/vector_stores", {"name": name, "metadata": {name: name}}),
            ("POST", "/v1/keys", {"scopes": ["search"], "name": name, "tenant": name, "collections": [name]}),
            (
                "POST",
                "/v1/collections/docs/documents",
                {"documents": [{"id": name, "text": name, "title": name}]},
            ),
            ("POST", "/v1/vector_stores/docs/files", {"file_id": name}),
            ("POST", "/v1/embeddings", {"model": name, "input": name}),
            ("POST", "/api/show", {"model": name}),
        ):
            sent = json.dumps(body).encode()
            status = wire.ask(method, path, sent, {"Content-Type": "application/json"})
            if path in ("/v1/collections", "/v1/collections/docs/rename") and "model" not in body:
                assert name in ("con", "docs@acme") or status == 422, name
        for fields in (
            {"file": "x", "filename": name, "purpose": "assistants"},
            {"file": "x", "purpose": name},
        ):
            sent = form(fields)
            wire.ask("POST", "/v1/files", sent, {"Content-Type": "multipart/form-data; boundary=edge"})
