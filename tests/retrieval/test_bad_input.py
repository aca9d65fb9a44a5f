"""Whatever a client sends: a clear error with status and field, and nothing half written."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from indexes.base.errors import InvalidInput
from jobs.serving.process import serving
from retrieval.access.key_file import check_key
from retrieval.handlers.error_shapes import dialect_of
from retrieval.server.openapi import path_of
from retrieval.server.routes import ROUTES
from tests.support.guarded import key
from tests.support.http import Http
from tests.support.operations import form


@pytest.fixture(scope="module")
def name(service: object) -> str:
    http = Http(service.url)  # type: ignore[attr-defined]
    collection = http.new_collection()
    http.write(collection, {"id": "one", "text": "the only document", "metadata": {"kind": "x"}})
    return collection


EQ_NOBODY = {"type": "eq", "key": "nobody", "value": 1}
SEARCHES: list[tuple[object, int, str | None]] = [
    ({}, 422, "query"),
    ({"query": ""}, 422, "query"),
    ({"query": "  \n "}, 422, "query"),
    ({"query": 5}, 422, "query"),
    ({"query": "x" * 10_000}, 413, "query"),
    ({"query": "x", "k": 0}, 422, "k"),
    ({"query": "x", "k": -3}, 422, "k"),
    ({"query": "x", "k": 1_000_000}, 422, "k"),
    ({"query": "x", "k": 2.5}, 422, "k"),
    ({"query": "x", "k": "ten"}, 422, "k"),
    ({"query": "x", "qury": "y"}, 422, "qury"),
    ({"query": "x", "mode": "magic"}, 422, "mode"),
    ({"vector": [1.0] * 384, "mode": "lexical"}, 422, "query"),
    ({"vector": [1.0] * 383}, 422, "vector"),
    ({"vector": []}, 422, "vector"),
    ({"vector": [0.0] * 384}, 422, "vector"),
    ({"vector": ["a"]}, 422, "vector[0]"),
    ({"query": "x", "filter": EQ_NOBODY}, 422, "filter"),
    ({"query": "x", "filter": {"type": "eq", "key": "kind"}}, 422, "filter"),
    ({"query": "x", "filter": "kind = x"}, 422, "filter"),
    ({"query": "x", "fusion": {"method": "best"}}, 422, "fusion.method"),
    ({"query": "x", "fusion": {"weights": {"dense": -1}}}, 422, "fusion.weights.dense"),
    ({"query": "x", "fusion": {"weights": {"dense": 0, "lexical": 0}}}, 422, "fusion.weights"),
    (
        {"query": "x", "fusion": {"method": "weighted", "weights": {"dense": 1e308}}},
        422,
        "fusion.weights.dense",
    ),
    ({"query": "x", "fusion": {"weights": {"lexical": 1e7}}}, 422, "fusion.weights.lexical"),
    ({"query": "x", "fusion": {"method": "weighted", "k": 10}}, 422, "fusion.k"),
    ({"query": "x", "fusion": {"method": "rrf", "weights": {"dense": 1}}}, 422, "fusion.weights"),
    ({"query": "x", "fusion": {"k": 10, "weights": {"dense": 1}}}, 422, "fusion.k"),
    ({"query": "x", "mode": "dense", "fusion": {}}, 422, "fusion"),
    ({"query": "x", "mode": "lexical", "fusion": {"method": "rrf"}}, 422, "fusion"),
    ({"vector": [1.0] * 384, "fusion": {"method": "rrf"}}, 422, "fusion"),
    ({"query": "x", "vector": [1.0] * 384, "mode": "lexical"}, 422, "vector"),
    ({"query": "x", "like": ["one"], "mode": "lexical"}, 422, "like"),
    ({"query": "x", "operators": True, "mode": "dense"}, 422, "operators"),
    ({"like": ["x"], "operators": True}, 422, "operators"),
    ({"query": "x", "deadline_ms": 0}, 422, "deadline_ms"),
    ({"query": "x", "exact": True, "mode": "hybrid"}, 422, "exact"),
    ({"query": "x", "filter": {"type": "eq", "key": "kind", "value": 2**70}}, 422, "filter.value"),
    ({"query": "x", "filter": {"type": "exists", "key": "nobody"}}, 422, "filter"),
    ({"query": "x", "filter": {"type": "not", "filter": EQ_NOBODY}}, 422, "filter.filter"),
    ({"query": "x", "filter": {"kind": "x"}}, 422, "filter"),
    ({"query": "x", "filter": {"type": "gt", "key": "kind", "value": 5}}, 422, "filter"),
    ({"query": "x", "top_k": 5}, 422, "top_k"),
    ([], 422, None),
    ("text", 422, None),
]


@pytest.mark.parametrize(("body", "status", "param"), SEARCHES, ids=lambda value: str(value)[:40])
def test_bad_searches(http: Http, name: str, body: object, status: int, param: str | None) -> None:
    """Each is refused with its status, naming the field."""
    reply = http.call("POST", f"/v1/collections/{name}/search", body)
    assert reply.status == status, reply
    assert reply.body["error"].get("param") == param
    assert reply.body["error"]["message"]


GOOD = {"id": "good", "text": "good text"}
WRITES: list[tuple[object, int, str | None]] = [
    ({}, 422, "documents"),
    ({"documents": []}, 422, "documents"),
    ({"documents": [GOOD, {"id": "b"}]}, 422, "documents[1].text"),
    ({"documents": [GOOD, {"id": "b", "text": ""}]}, 422, "documents[1].text"),
    ({"documents": [GOOD, {"id": "b", "text": " \n\t "}]}, 422, "documents[1].text"),
    ({"documents": [GOOD, {"id": "", "text": "b"}]}, 422, "documents[1].id"),
    ({"documents": [GOOD, {"id": "x" * 600, "text": "b"}]}, 413, "documents[1].id"),
    ({"documents": [GOOD, {"id": "b", "text": "b", "body": "c"}]}, 422, "documents[1].body"),
    ({"documents": [GOOD, {"id": "b", "text": "nul \0 inside"}]}, 422, "documents[1].text"),
    ({"documents": [GOOD, {"id": "new\nline", "text": "b"}]}, 422, "documents[1].id"),
    (
        {"documents": [GOOD, {"id": "b", "text": "b", "metadata": {"big": 2**63}}]},
        422,
        "documents[1].metadata.big",
    ),
    (
        {"documents": [GOOD, {"id": "b", "text": "b", "metadata": {"a": {"big": [1, -(2**64)]}}}]},
        422,
        "documents[1].metadata.a.big",
    ),
    (
        {"documents": [GOOD, {"id": "b", "text": "b", "metadata": {"a": {"list": [{"b": 2**63}]}}}]},
        422,
        "documents[1].metadata.a.list.b",
    ),
    (
        {"documents": [GOOD, {"id": "b", "text": "b", "metadata": {"a": {"nul \0 key": 1}}}]},
        422,
        "documents[1].metadata.a.nul \0 key",
    ),
    (
        {"documents": [GOOD, {"id": "b", "text": "b", "metadata": {"tags": ["a", "b\0"]}}]},
        422,
        "documents[1].metadata.tags",
    ),
    ({"documents": [GOOD, {"id": "b", "text": "b", "metadata": None}]}, 422, "documents[1].metadata"),
    ({"documents": [GOOD, {"id": 1.5, "text": "b"}]}, 422, "documents[1].id"),
    ({"documents": [GOOD, {"id": True, "text": "b"}]}, 422, "documents[1].id"),
    ({"documents": [GOOD, {"id": 2**63, "text": "b"}]}, 422, "documents[1].id"),
    ({"documents": [GOOD, {"id": 7, "text": "b"}, {"id": "7", "text": "b"}]}, 422, "documents[2].id"),
    (
        {"documents": [GOOD, {"id": "b", "text": "b", "metadata": {"x": "y" * 20_000}}]},
        413,
        "documents[1].metadata",
    ),
    (
        {"documents": [GOOD, {"id": "b", "text": "b", "metadata": {"n": [0] * 4097}}]},
        413,
        "documents[1].metadata",
    ),
    ({"documents": [GOOD, {"id": "b", "text": "b", "vector": [1.0, 2.0]}]}, 422, "documents[1].vector"),
    ({"documents": [GOOD, GOOD]}, 422, "documents[1].id"),
    ({"documents": [GOOD, {"id": "b", "text": "b" * 17_000_000}]}, 413, "documents[1].text"),
    ({"documents": [{"id": str(n), "text": "t"} for n in range(10_000)]}, 413, "documents"),
]


@pytest.mark.parametrize(("body", "status", "param"), WRITES, ids=lambda value: str(value)[:40])
def test_bad_writes_keep_nothing(http: Http, name: str, body: object, status: int, param: str | None) -> None:
    """Each is refused naming the field, and the good document in the same request is not written."""
    reply = http.call("POST", f"/v1/collections/{name}/documents", body)
    assert reply.status == status, reply
    assert reply.body["error"].get("param") == param
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 1
    assert http.call("GET", f"/v1/collections/{name}/documents/good").status == 404


@pytest.mark.parametrize("depth", [33, 300, 900, 950, 970, 980, 985, 990, 995, 1000, 1100, 100_000])
def test_deeply_nested_metadata_is_refused(http: Http, name: str, depth: int) -> None:
    """As too deep by us or by the JSON decoder, but never as a fault of ours, and nothing is written."""
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    raw = b'{"documents": [{"id": "deep", "text": "b", "metadata": ' + nested + b"}]}"
    collection = f"/v1/collections/{name}"
    calls: list[tuple[str, str, bytes]] = [
        ("POST", f"{collection}/documents", raw),
        ("PATCH", f"{collection}/documents/one", b'{"metadata": ' + nested + b"}"),
    ]
    for method, path, sent in calls:
        reply = http.call(method, path, raw=sent)
        assert reply.status in (400, 422), reply
        assert "deep" in reply.body["error"]["message"]
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 1


PATCHES: list[tuple[object, int, str | None]] = [
    ({}, 422, "metadata"),
    ({"metadata": None}, 422, "metadata"),
    ({"metadata": {"a": "nul \0"}}, 422, "metadata.a"),
    ({"metadata": {"a": [{"b": "nul \0"}]}}, 422, "metadata.a.b"),
    ({"metadata": {"a" * 300: {"b" * 300: 1}}}, 422, f"metadata.{'a' * 100}..."),
    ({"metadata": {"x": "y" * 16_370}}, 413, "metadata"),
    ({"metadata": {str(n): n for n in range(512)}}, 413, "metadata"),
    ({"text": "new", "metadata": {}}, 422, "text"),
]


@pytest.mark.parametrize(("body", "status", "param"), PATCHES, ids=lambda value: str(value)[:40])
def test_bad_patches_change_nothing(
    http: Http, name: str, body: object, status: int, param: str | None
) -> None:
    """Limits hold for the merged metadata, which is over them here though the patch alone is not."""
    before = http.ok("GET", f"/v1/collections/{name}/documents/one")
    reply = http.call("PATCH", f"/v1/collections/{name}/documents/one", body)
    assert (reply.status, reply.body["error"].get("param")) == (status, param), reply
    assert http.ok("GET", f"/v1/collections/{name}/documents/one") == before


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"not json",
        b'{"query": NaN}',
        b'{"vector": [NaN]}',
        b'{"vector": [1e999]}',
        b'{"query": "\xff"}',
        b'{"query": "\\ud800"}',
        b"[" * 100_000,
        b'{"query": "x", "filter": ' + b'{"type":"and","filters":[' * 5000,
        b"\x1f\x8b\x08\x00",
        b'{"query": "a", "k": 99999999999999999999999999}',
    ],
    ids=lambda raw: raw[:30].decode("latin-1"),
)
def test_malformed_bodies(http: Http, name: str, raw: bytes) -> None:
    """Broken JSON, NaN, bad Unicode and endless nesting are the client's error, never ours."""
    reply = http.call("POST", f"/v1/collections/{name}/search", raw=raw)
    assert reply.status in (400, 422), reply
    assert reply.body["error"]["message"]


def test_a_deeply_nested_filter_is_refused(http: Http, name: str) -> None:
    """Valid JSON, but nested beyond reason."""
    deep: dict[str, object] = {"type": "eq", "key": "kind", "value": "x"}
    for _ in range(200):
        deep = {"type": "and", "filters": [deep]}
    reply = http.call("POST", f"/v1/collections/{name}/search", {"query": "x", "filter": deep})
    assert (reply.status, reply.body["error"]["param"]) == (422, "filter")


@pytest.mark.parametrize(
    "path",
    [
        "search",
        "search/batch",
        "context",
        "documents/scroll",
        "documents/count",
        "documents/patch",
        "documents/delete",
    ],
)
def test_a_filter_of_many_bytes_is_refused(http: Http, name: str, path: str) -> None:
    """2 MB of empty lists, which take thirty times as much memory decoded, are refused undecoded."""
    values = b"[" + b"[]," * 700_000 + b"[]]"
    large = b'"filter": {"type": "in", "key": "kind", "value": ' + values + b"}"
    fields = {
        "search": b'{"query": "x", %s}',
        "search/batch": b'{"searches": [{"query": "x", %s}]}',
        "context": b'{"query": "x", "token_budget": 100, %s}',
        "documents/patch": b'{"metadata": {}, %s}',
    }
    reply = http.call("POST", f"/v1/collections/{name}/{path}", raw=fields.get(path, b"{%s}") % large)
    error, place = reply.body["error"], "searches[0].filter" if path == "search/batch" else "filter"
    assert (reply.status, error["type"]) == (413, "too_large"), reply
    assert error["param"].removesuffix(".value") == place


def test_ids_to_delete_are_bounded(http: Http, name: str) -> None:
    """No document has a longer id, so one that asks for it is told."""
    for chars, status in ((512, 200), (513, 413)):
        reply = http.call("POST", f"/v1/collections/{name}/documents/delete", {"ids": ["x" * chars]})
        assert reply.status == status, reply
    assert reply.body["error"]["param"] == "ids"


def test_unknown_things_are_404(http: Http) -> None:
    """Collections, documents, jobs, models, aliases and paths that are not there."""
    for method, path, body in [
        ("GET", "/v1/collections/nowhere", None),
        ("POST", "/v1/collections/nowhere/search", {"query": "x"}),
        ("POST", "/v1/collections/nowhere/search/batch", {"searches": [{"query": "x"}]}),
        ("POST", "/v1/collections/nowhere/documents", {"documents": [GOOD]}),
        ("POST", "/v1/collections/nowhere/context", {"query": "x", "token_budget": 10}),
        ("PATCH", "/v1/collections/nowhere/documents/x", {"metadata": {"a": 1}}),
        ("POST", "/v1/collections/nowhere/reindex", {}),
        ("DELETE", "/v1/collections/nowhere", None),
        ("GET", "/v1/jobs/none", None),
        ("PUT", "/v1/aliases/a", {"collection": "nowhere"}),
        ("DELETE", "/v1/aliases/none", None),
        ("POST", "/v1/collections", {"name": "x", "model": "unknown"}),
        ("GET", "/v1/nothing", None),
    ]:
        reply = http.call(method, path, body)
        assert reply.status == 404, (path, reply)
        assert reply.body["error"]["type"] == "not_found"
    assert http.call("PATCH", "/v1/collections").status == 405


def test_a_refused_deletion_changes_nothing(http: Http) -> None:
    """No operation is logged for a document that is not there, so cached answers stay, too."""
    name = http.new_collection()
    http.write(name, GOOD)
    before = http.ok("GET", f"/v1/collections/{name}")["seq"]
    reply = http.call("DELETE", f"/v1/collections/{name}/documents/nosuch")
    assert (reply.status, reply.body["error"]["param"]) == (404, "id")
    assert http.ok("GET", f"/v1/collections/{name}")["seq"] == before


@pytest.mark.parametrize("bad", ["", "UPPER", "a b", "../x", "a/b", "x" * 70, ".", "_x"])
def test_bad_collection_names(http: Http, bad: str) -> None:
    """Refused with the rule that names follow."""
    reply = http.call("POST", "/v1/collections", {"name": bad})
    assert (reply.status, reply.body["error"]["param"]) == (422, "name")
    assert "a-z" in reply.body["error"]["message"]


def test_every_bad_name_is_told_the_rule_and_the_field(http: Http, name: str) -> None:
    """Collections, their new names, aliases, tenants and the collections of keys."""
    for method, path, body, param in (
        ("POST", "/v1/collections", {"name": "A B"}, "name"),
        ("POST", f"/v1/collections/{name}/rename", {"name": "A B"}, "name"),
        ("PUT", "/v1/aliases/A%20B", {"collection": name}, "alias"),
    ):
        reply = http.call(method, path, body)
        assert (reply.status, reply.body["error"]["param"]) == (422, param), reply
        assert "expected 1 to 63 of a-z, 0-9, '-' and '_'" in reply.body["error"]["message"]
    for method, path, body, param in (
        ("POST", "/v1/collections", {"name": "x~1of2"}, "name"),
        ("POST", f"/v1/collections/{name}/rename", {"name": "x~3of2"}, "name"),
        ("PUT", "/v1/aliases/x~0of2", {"collection": name}, "alias"),
    ):
        reply = http.call(method, path, body)
        assert (reply.status, reply.body["error"]["param"]) == (422, param), reply
    for wrong in (key("search", tenant="A B"), key("search", collections=["A B"])):
        with pytest.raises(InvalidInput, match="expected 1 to 63 of a-z, 0-9, '-' and '_'") as refused:
            check_key(wrong)
        assert refused.value.param in ("tenant", "collections")


def test_what_is_given_twice_is_refused(http: Http) -> None:
    """A parameter of the query string, or a part of a form, that comes twice is ambiguous, so the error names it."""
    name = http.new_collection()
    reply = http.call("GET", f"/v1/collections/{name}/documents?limit=1&cursor=0&limit=2")
    assert (reply.status, reply.body["error"]["param"]) == (422, "limit")
    twice = form({"file": "one"}).removesuffix(b"--edge--\r\n") + form(
        {"file": "two", "purpose": "assistants"}
    )
    reply = http.call(
        "POST", "/v1/files", raw=twice, headers={"Content-Type": "multipart/form-data; boundary=edge"}
    )
    assert (reply.status, reply.body["error"]["param"]) == (400, "file"), reply


def test_unknown_parameters_are_refused(http: Http) -> None:
    """Every path of our own API names the parameter and those there are; other servers' clients may send any."""
    name = http.new_collection()
    http.write(name, GOOD)
    for route in ROUTES:
        if not route.path.startswith("/v1/"):
            continue
        path = path_of(route).format(
            collection=name, id="x", alias="x", job="x", key="x", model="x", file="x", batch="x"
        )
        reply = http.call(route.method, f"{path}?limmit=5", {})
        unknown = "limmit" in json.dumps(reply.body)
        assert unknown == (dialect_of(path) is None), (route.method, path, reply)
        if unknown:
            assert (reply.status, reply.body["error"]["param"]) == (422, "limmit")
    name = http.new_collection()  # the first one is deleted by now
    for path, words in (
        (f"/v1/collections/{name}/documents?limmit=5", "did you mean 'limit'?"),
        (f"/v1/collections/{name}/documents?zzz=5", "known names: cursor, limit, vectors"),
        (f"/v1/collections/{name}?zzz=5", "there are none here"),
    ):
        assert words in http.call("GET", path).body["error"]["message"]
    assert http.call("GET", "/healthz?probe=1").status == 200


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "PUT", "PROPFIND", "DELETE"])
def test_a_method_without_a_route(http: Http, method: str) -> None:
    """405 in the service's own shape on its own paths, and with the methods there are."""
    for path in ("/", "/v1/collections", "/healthz", "/metrics", "/ui"):
        reply = http.call(method, path)
        assert (reply.status, reply.body["error"]["type"]) == (405, "method_not_allowed"), (path, reply)
        assert "GET" in reply.headers["Allow"]


def test_answers_name_no_folder(http: Http, model_folder: Path) -> None:
    """What to do about a missing model is told without saying where models lie."""
    reply = http.call("POST", "/v1/collections", {"name": "x", "model": "unknown"})
    assert reply.status == 404
    assert "export-model" in reply.body["error"]["message"]
    assert str(model_folder.parent) not in reply.body["error"]["message"]


def test_a_taken_name_is_409(http: Http, name: str) -> None:
    """Twice the same collection."""
    assert http.call("POST", "/v1/collections", {"name": name}).status == 409


def test_paging_and_budget_limits(http: Http, name: str) -> None:
    """Bad page sizes, cursors and budgets name their field."""
    for path, param in [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=9999", "limit"),
        ("cursor=-1", "cursor"),
        ("cursor=1e9", "cursor"),
        ("limit=0000000000019999999", "limit"),
        ("cursor=" + "1" * 30, "cursor"),
    ]:
        reply = http.call("GET", f"/v1/collections/{name}/documents?{path}")
        assert (reply.status, reply.body["error"]["param"]) == (422, param)
    for budget, status in [(0, 422), (10**9, 413), ("x", 422)]:
        reply = http.call("POST", f"/v1/collections/{name}/context", {"query": "x", "token_budget": budget})
        assert (reply.status, reply.body["error"]["param"]) == (status, "token_budget")
    for body in (
        {},
        {"ids": ["a"], "filter": {"type": "eq", "key": "kind", "value": "x"}},
        {"ids": ["a"] * 2000},
    ):
        assert http.call("POST", f"/v1/collections/{name}/documents/delete", body).status in (413, 422)


def test_a_body_over_the_limit_is_413_as_json(http: Http, name: str) -> None:
    """34 MB are refused in our own error shape."""
    raw = json.dumps({"documents": [{"id": "x", "text": "y" * 34_000_000}]}).encode()
    reply = http.call("POST", f"/v1/collections/{name}/documents", raw=raw)
    assert (reply.status, reply.body["error"]["type"]) == (413, "too_large")


def test_garbage_on_the_socket(http: Http) -> None:
    """Bytes that are not HTTP get a 400 or a closed connection, and the service lives on."""
    at = urlsplit(http.url)
    for garbage in (b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):
        with socket.create_connection((at.hostname, at.port), timeout=10) as connection:
            connection.sendall(garbage)
            assert connection.recv(4096)[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400", b"")
    assert http.ok("GET", "/healthz")


@pytest.mark.slow
def test_a_body_that_does_not_arrive(tmp_path: Path, model_folder: Path) -> None:
    """A client that stops in the middle of its body gets 408 and is disconnected; others are served meanwhile."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_SERVER_BODY_TIMEOUT_S": "0.5"}
    with serving(tmp_path / "data", environ) as server:
        at = urlsplit(server.url)
        with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
            connection.sendall(
                b"POST /v1/collections HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
            )
            assert Http(server.url).ok("GET", "/healthz")
            received = b""
            while block := connection.recv(4096):
                received += block
        assert received.startswith(b"HTTP/1.1 408")
        assert b"did not arrive within 0.5 seconds" in received


def test_serving_a_foreign_folder_is_one_clear_line(tmp_path: Path) -> None:
    """`nearline serve` on a folder of photos exits 1 and says what is wrong."""
    import subprocess
    import sys

    (tmp_path / "cat.jpg").write_bytes(b"meow")
    command = [sys.executable, "-m", "jobs.cli", "serve", "--data", str(tmp_path), "--port", "0"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2], check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1].startswith(f"nearline: {tmp_path} is not empty")


ZEROS = [0] * 100_000
MANY: list[tuple[str, str, object, int, str]] = [
    ("POST", "/search", {"vector": ZEROS}, 422, "vector"),
    ("POST", "/search/batch", {"searches": [{}] * 200_000}, 413, "searches"),
    ("POST", "/documents", {"documents": [{"id": "a", "text": "b", "vector": ZEROS}]}, 422, "documents[0].vector"),
    ("POST", "/documents", {"documents": [{"id": "a", "text": "b", "metadata": {"a": ZEROS}}]}, 413,
     "documents[0].metadata"),
    ("PATCH", "/documents/one", {"metadata": {"a": ZEROS}}, 413, "metadata"),
    ("POST", "/documents/delete", {"ids": ["a"] * 2_000_000}, 413, "ids"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "status", "param"), MANY)
def test_too_many_of_anything_is_refused_by_its_bytes(
    http: Http, name: str, method: str, path: str, body: object, status: int, param: str
) -> None:
    """Before it is decoded, which would take many times the memory; the field is named as always."""
    reply = http.call(method, f"/v1/collections/{name}{path}", body)
    assert (reply.status, reply.body["error"]["param"]) == (status, param)
