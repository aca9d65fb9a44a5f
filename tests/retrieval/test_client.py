"""The Python client, with and without an event loop: against a real service, and against faults."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import math
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, assert_type

import pytest

import nearline
from jobs.serving.process import ServerProcess, serving
from nearline import (
    JSON,
    AsyncClient,
    Client,
    ContextAnswer,
    DocumentBody,
    Hit,
    Ingested,
    Refused,
    RefusedDocument,
    SearchAnswer,
    ServiceError,
    Written,
)
from retrieval.clients.blocking import endpoint, steps, stream
from retrieval.clients.endpoints import Endpoints
from retrieval.clients.expected import may_repeat
from retrieval.clients.replies import LATE_STATUS
from retrieval.server.routes import ROUTES
from retrieval.wire.errors import STATUS, type_name
from tests.support import wire_types
from tests.support.commands import nearline as run_command
from tests.support.doorway import Doorway
from tests.support.http import Http
from tests.support.stub import Reply, Stub

ROOT = Path(__file__).parents[2]
BUSY = {"error": {"type": "overloaded", "message": "much waits already"}}
METHODS = {name for name, one in vars(Endpoints).items() if isinstance(one, endpoint | stream | steps)}


PIECE = b'event: piece\ndata: {"text": "Five"}\n\n'
WHOLE = b'event: answer\ndata: {"answer": "Five days."}\n\n'


def stream_of(content: bytes) -> Reply:
    return Reply(content, headers={"Content-Type": "text/event-stream"})


def failure_of(ask: Callable[..., Any], *args: Any, **options: Any) -> ServiceError:
    """Return the error of a call, or of what it iterates over."""
    with pytest.raises(ServiceError) as caught:
        list(ask(*args, **options))
    return caught.value


async def all_pieces(url: str, **options: Any) -> list[JSON]:
    async with AsyncClient(url, **options) as client:
        return [one async for one in client.stream_answer("docs", query="refunds")]


def notes(number: int, words: str = "A note.") -> list[dict[str, Any]]:
    return [{"id": f"n{at}", "text": f"{words} It has the number {at}."} for at in range(number)]


# -- what it is


def test_the_types_are_the_service_s_own() -> None:
    """wire/ is what is made of the structs; `python -m tests.support.wire_types` brings it up to date."""
    for name in wire_types.FILES:
        assert (wire_types.FOLDER / f"{name}.py").read_text() == wire_types.source(name)


def test_importing_it_is_light() -> None:
    """Neither numpy nor anything of the service is loaded."""
    code = "import sys, nearline; heavy = {'numpy', 'onnxruntime', 'tokenizers', 'indexes', 'retrieval.server.app'}\n"
    code += "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_users_see_its_types() -> None:
    """Type checkers ignore the annotations of installed code without this mark, which only a package can have."""
    assert Path(nearline.__file__).with_name("py.typed").is_file()


def test_the_url_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address may come from NEARLINE_URL, and a key is sent as a bearer token."""
    with Stub(Reply({"collections": []})) as stub:
        monkeypatch.setenv("NEARLINE_URL", stub.url + "/")
        with Client(key="secret") as client:
            assert client.url == stub.url
            client.request("GET", "/v1/collections")
            assert stub.seen[0][2]["Authorization"] == "Bearer secret"
    for url in (
        "localhost:8080",
        "http://",
        "http://127.0.0.1:8080/?a=1",
        "http://127.0.0.1:8080#top",
        "ftp://host",
        "http://[::",
        "http://[host]:80",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
        "http://:8080",
    ):
        with pytest.raises(ServiceError, match="is not the address of a service"):
            Client(url)
    for timeout_s, retry_s in ((math.inf, 1.0), (-1.0, 1.0), (math.nan, 1.0), (5.0, -1.0), (5.0, math.inf)):
        with pytest.raises(ServiceError, match="expected seconds above 0"):
            Client("http://127.0.0.1:8080", timeout_s=timeout_s, retry_s=retry_s)


# -- every endpoint, against a real service


def test_a_key_is_sent_without_the_blanks_around_it() -> None:
    """A file with a key often ends in a newline. A key with other characters is refused, by commands in one line."""
    with Stub(Reply({"collections": [], "quarantined": [], "unavailable": []})) as stub:
        with Client(stub.url, key=" nl_key\r\n") as client:
            client.collections()
        assert stub.seen[0][2]["Authorization"] == "Bearer nl_key"
        with pytest.raises(ServiceError, match="no key has"):
            Client(stub.url, key="nl_\nkey")
        refused = run_command("collections", "list", "--url", stub.url, NEARLINE_KEY="nl_\nkey")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.model
def test_every_method(http: Http, service: ServerProcess) -> None:
    """Each one does what the endpoint does, without an event loop; what later ones need is made by earlier ones."""
    name = http.new_collection()
    called: set[str] = set()

    class Noted(Client):
        def __getattribute__(self, attribute: str) -> Any:
            if attribute in METHODS:
                called.add(attribute)
            return super().__getattribute__(attribute)

    with Noted(service.url) as client:
        assert client.ready()
        assert client.ensure_collection(name)["name"] == name
        assert client.create_collection(f"{name}-b", language="en")["language"] == "en"
        assert client.rename_collection(f"{name}-b", f"{name}-c")["name"] == f"{name}-c"
        client.delete_collection(f"{name}-c")
        assert name in {one["name"] for one in client.collections()}
        assert client.quarantined() == client.unavailable() == []
        assert client.set_alias(f"{name}-now", name)["collection"] == name
        assert client.collection(f"{name}-now")["name"] == name
        client.remove_alias(f"{name}-now")

        assert client.write(name, [{"id": "a", "text": "Refunds take five days."}])["documents"] == 1
        assert client.ingest(name, notes(10)).documents == 10
        client.patch(name, "a", {"lang": "en"})
        assert client.document(name, "a")["metadata"] == {"lang": "en"}
        client.patch(name, "n1", {"kind": "old"})
        old = {"type": "eq", "key": "kind", "value": "old"}
        assert client.patch_documents(name, {"lang": "de"}, filter=old)["changed"] == 1
        assert client.patch_documents(name, {"lang": "de"}, ids=["a", "n1", "absent"])["changed"] == 1
        client.patch(name, "a", {"lang": "en"})
        assert client.delete(name, "n0")["deleted"] == 1
        assert client.delete_documents(name, ids=["n1", "n2"])["deleted"] == 2
        assert [one["id"] for one in client.scroll(name, limit=3)] == [f"n{at}" for at in range(3, 10)] + [
            "a"
        ]
        assert client.count(name)["documents"] == 8

        hit = client.search(name, query="how long do refunds take", k=1)["hits"][0]
        assert (hit["document_id"], hit["text"]) == ("a", "Refunds take five days.")
        batch = client.search_batch(name, [{"query": "refunds"}, {"query": "number 7", "mode": "lexical"}])
        assert [one["hits"][0]["document_id"] for one in batch] == ["a", "n7"]
        with pytest.raises(ServiceError, match="refundz"):
            client.search_batch(name, [{"query": "refunds", "refundz": 1}])
        assert "five days" in client.context(name, query="refunds", token_budget=100)["context"]
        vectors = client.embed(["refunds", "a note"], kind="query")["vectors"]
        assert [len(one) for one in vectors] == [client.collection(name)["dimensions"]] * 2

        assert client.set_ranking(name, weight_dense=0.5)["ranking"] is not None
        client.reset_ranking(name)
        assert client.hold(name, 0)["seq"] == client.collection(name)["seq"]
        graded = [{"query": "refunds", "document_id": one, "grade": 3} for one in ("a", "none")]
        assert client.send_feedback(name, graded) == {"kept": 1, "unknown": ["none"]}
        assert [one["grade"] for one in client.feedback(name)] == [3]
        client.forget_feedback(name)
        assert client.feedback(name) == []

        assert client.set_synonyms(name, synonyms=[["k8s", "kubernetes"]]) == client.synonyms(name)
        client.finished(client.reindex(name))
        queries = [f"which note has the number {at}" for at in range(25)]
        client.finished(client.tune(name, recall_target=0.95, queries=queries), on_progress=lambda *_: None)
        assert client.ended(client.erase(name))["status"] == "succeeded"
        job = client.jobs()[0]
        assert client.job(job["id"])["kind"] == "erase"
        client.finished(client.reindex(name))
        assert client.rollback(name) >= 1
        assert "nearline_" in client.metrics()
        assert client.request("GET", "/healthz")
    any_answer = Reply({"cause": {}, "hits": [], "risk_score": None, "answer": None})
    with Stub(any_answer) as stub, Noted(stub.url) as client:
        client.explain("docs", query="refunds", document_id="a", k=5)
        client.search_collections(collections=["docs", "more"], query="refunds")
        client.assess("docs", action="restart the database")
        client.answer("docs", query="refunds", token_budget=500)
        stub.replies[0] = stream_of(WHOLE)
        assert list(client.stream_answer("docs", query="refunds")) == [{"answer": "Five days."}]
        assert [(path.rpartition("/")[2], body) for _, path, _, body in stub.seen] == [
            ("explain", {"query": "refunds", "document_id": "a", "k": 5}),
            ("search", {"collections": ["docs", "more"], "query": "refunds"}),
            ("assess", {"action": "restart the database"}),
            ("answer", {"query": "refunds", "token_budget": 500}),
            ("answer", {"query": "refunds", "stream": True}),
        ]
    assert called == METHODS


@pytest.mark.model
async def check_types(client: AsyncClient, blocking: Client, name: str) -> None:
    """Type checkers know each answer; at run time it is what it says."""
    found = assert_type(await client.search(name, query="refunds"), SearchAnswer)
    assert assert_type(blocking.search(name, query="refunds"), SearchAnswer)["hits"] == found["hits"]
    hits = assert_type(found["hits"], list[Hit])
    assert_type(hits[0]["text"], str)
    built = assert_type(await client.context(name, query="refunds", token_budget=100), ContextAnswer)
    assert built["citations"][0]["document_id"] == "n0"
    everything: list[DocumentBody] = [one async for one in client.scroll(name)]
    assert everything == list(assert_type(blocking.scroll(name), Iterator[DocumentBody]))
    assert_type(await client.write(name, notes(1)), Written)
    assert_type(await client.ingest(name, []), Ingested)
    assert_type(blocking.ingest(name, []), Ingested)


@pytest.mark.model
def test_both_clients_answer_alike(http: Http, service: ServerProcess) -> None:
    """One definition of each method, awaited or not, with the types that mypy checks here."""
    name = http.new_collection()
    http.write(name, *notes(1, "Refunds."))

    async def both() -> None:
        async with AsyncClient(service.url) as client:
            with Client(service.url) as blocking:
                await check_types(client, blocking, name)

    asyncio.run(both())


def test_an_answer_in_pieces() -> None:
    """Server-sent events arrive one by one; comments and the end mark are not among them."""
    with (
        Stub(stream_of(b": here\n\n" + PIECE + WHOLE + b"data: [DONE]\n\n")) as stub,
        Client(stub.url) as client,
    ):
        pieces = [{"text": "Five"}, {"answer": "Five days."}]
        assert list(client.stream_answer("docs", query="refunds")) == pieces
        assert asyncio.run(all_pieces(stub.url)) == pieces
        broken = PIECE + b'data: {"error": {"type": "unavailable", "message": "the model left"}}\n\n'
        stub.replies.append(stream_of(broken))
        first = next(iter(client.stream_answer("docs", query="refunds")))  # and the rest is never read
        assert first == {"text": "Five"}
        with pytest.raises(ServiceError, match="the model left"):
            list(client.stream_answer("docs", query="refunds"))


def test_an_event_may_be_long() -> None:
    """As an answer is that cites many documents with large metadata."""
    whole = {"answer": "Five days [1].", "citations": [{"metadata": {"note": "n" * 16_000}}] * 100}
    event = f"data: {json.dumps(whole)}\n\n".encode()
    with Stub(stream_of(PIECE + event)) as stub, Client(stub.url) as client:
        assert list(client.stream_answer("docs", query="refunds")) == [{"text": "Five"}, whole]


def test_an_error_in_a_stream_has_its_status() -> None:
    """The same as before the first piece: what may be tried again does not look like a fault of the service."""
    statuses = {type_name(error): status for error, status in STATUS.items()}
    for kind in LATE_STATUS:
        late = f'data: {{"error": {{"type": "{kind}", "message": "late"}}}}\n\n'.encode()
        with Stub(stream_of(PIECE + late)) as stub, Client(stub.url) as client:
            with pytest.raises(ServiceError) as failed:
                list(client.stream_answer("docs", query="refunds"))
            assert (failed.value.kind, failed.value.status) == (kind, statuses[kind])


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("disconnected", stream_of(PIECE)),
        ("disconnected", stream_of(PIECE + b'event: answer\ndata: {"answer": "Fi')),
        ("disconnected", stream_of(PIECE + WHOLE.rstrip())),
        ("unreadable", stream_of(PIECE + b'data: {"text": "Fi\n\n')),
        ("unreadable", stream_of(PIECE + b"data: 5\n\n")),
        ("unreadable", stream_of(PIECE + b"data: " + b"[" * 200_000 + b"\n\n")),
        ("unknown", stream_of(PIECE + b'data: {"error": "gone"}\n\n')),
        ("unreadable", Reply(b"<html>log in</html>", headers={"Content-Type": "text/html"})),
        ("unreadable", Reply({"answer": "Five days."})),
    ],
)
def test_a_stream_that_is_cut_or_none_is_a_failure(kind: str, reply: Reply) -> None:
    """Only the whole answer ends it; what has arrived is given before the error, which no retry follows."""
    with Stub(reply) as stub, Client(stub.url) as client:
        found: list[JSON] = []
        assert failure_of(lambda: found.extend(client.stream_answer("docs", query="refunds"))).kind == kind
        assert failure_of(asyncio.run, all_pieces(stub.url)).kind == kind
        assert len(stub.seen) == 2
        is_stream = isinstance(reply.body, bytes) and reply.body.startswith(PIECE)
        assert found == ([{"text": "Five"}] if is_stream else [])


# -- retries


def test_a_stream_is_asked_for_again_until_its_first_event() -> None:
    """Both clients retry a stream for the reasons for which they retry any answer, and within its deadline."""
    busy, well = Reply(BUSY, 503, {"Retry-After-Ms": "50"}), stream_of(PIECE + WHOLE)
    tries = [busy, Reply(cut=True), Reply(b"", 502), Reply(b"", 504), stream_of(b": wait\n\n"), well]
    with Stub(*tries, *tries) as stub, Client(stub.url) as client:
        assert len(list(client.stream_answer("docs", query="x"))) == 2
        assert len(asyncio.run(all_pieces(stub.url))) == 2
        assert len(stub.seen) == 2 * len(tries)
    with Stub(busy) as stub, Client(stub.url, retry_s=0) as client:
        assert failure_of(client.stream_answer, "docs", query="x").status == 503
        assert len(stub.seen) == 1
    with Stub(busy, Reply(after_s=60)) as stub, Client(stub.url) as client:
        late = failure_of(client.stream_answer, "docs", query="x", deadline_ms=500)
        assert (late.kind, len(stub.seen)) == ("timeout", 2)
        assert stub.seen[1][3]["deadline_ms"] < stub.seen[0][3]["deadline_ms"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again_when_it_says(status: int) -> None:
    """After Retry-After-Ms, the finer of the two headers, or else after Retry-After."""
    busy = Reply(BUSY, status, {"Retry-After": "60", "Retry-After-Ms": "300"})
    with Stub(busy, busy, Reply({"hits": []})) as stub, Client(stub.url) as client:
        begun = time.monotonic()
        assert client.search("docs", query="x")["hits"] == []
        assert time.monotonic() - begun >= 0.6
        assert len(stub.seen) == 3


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "x"), (404, "not_found"), (409, "conflict"), (413, "too_large"), (422, "invalid_input"),
     (500, "damaged"), (503, "quarantined"), (503, "deadline_exceeded"), (507, "disk_full")],
)  # fmt: skip
def test_what_another_try_would_not_change(status: int, kind: str) -> None:
    """It is an error at once, with the service's own words, kind and field."""
    detail = {"error": {"type": kind, "message": "no, because", "param": "query"}}
    with Stub(Reply(detail, status)) as stub, Client(stub.url) as client:
        with pytest.raises(ServiceError, match="no, because") as caught:
            client.search("docs", query="x")
        assert (caught.value.status, caught.value.kind, caught.value.param) == (status, kind, "query")
        assert len(stub.seen) == 1


def test_a_broken_connection() -> None:
    """What may be sent twice is sent again; feedback, which would count twice, is not."""
    cut, proxy = Reply(cut=True), Reply(b"<html>Bad Gateway</html>", 502)
    with Stub(cut, proxy, Reply({"hits": []})) as stub, Client(stub.url) as client:
        assert client.search("docs", query="x")["hits"] == []
        assert len(stub.seen) == 3
    for broken, kind in ((cut, "disconnected"), (proxy, "unknown")):
        with Stub(broken) as stub, Client(stub.url) as client:
            with pytest.raises(ServiceError) as caught:
                client.send_feedback("docs", [{"query": "x", "document_id": "a"}])
            assert (caught.value.kind, len(stub.seen)) == (kind, 1)


def test_the_methods_that_are_not_repeated_are_documented() -> None:
    """docs/client.md names all that send one request if its connection breaks, and no others."""
    row = re.search(r"^\| connection broken.*$", (ROOT / "docs" / "client.md").read_text(), re.MULTILINE)
    assert row is not None
    given: dict[str, Any] = {"metadata": {}, "documents": [], "searches": [], "texts": [], "feedback": []}
    once = set()
    for name in METHODS - {"ready", "ingest", "request"}:  # which have rules of their own
        with Stub(Reply(cut=True)) as stub, Client(stub.url, retry_s=0.01, failures_max=0) as client:
            call = getattr(client, name)
            needed = [one for one in inspect.signature(call).parameters.values() if one.default is one.empty]
            args = [given.get(one.name, "a") for one in needed[1:] if one.kind is not one.VAR_KEYWORD]
            failed = failure_of(call, *args)
            assert failed.kind == "disconnected"
            if len(stub.seen) == 1:
                once.add(name)
    assert set(re.findall(r"`(\w+)`", row[0])) - {"ensure_collection"} == once


def test_a_request_is_not_repeated_unless_that_is_safe() -> None:
    """A key is made once, even if the answer was lost; the caller may allow more."""
    with Stub(Reply(cut=True)) as stub, Client(stub.url, retry_s=0.01) as client:
        for method, path in (
            ("POST", "/v1/keys"),
            ("POST", "/v1/collections/docs/reindex"),
            ("POST", "/v1/collections/docs"),
            ("DELETE", "/v1/keys/k"),
            ("DELETE", "/v1/collections/docs?x=/y"),
        ):
            stub.seen.clear()
            assert failure_of(client.request, method, path, {}).kind == "disconnected"
            assert len(stub.seen) == 1
    safe = [("POST", "/v1/keys", True), ("post", "/v1/search?x=1", None), ("PUT", "/elsewhere", None)]
    for method, path, twice in safe:
        with Stub(Reply(cut=True)) as stub, Client(stub.url, retry_s=0.01) as client:
            assert failure_of(client.request, method, path, {}, twice=twice).kind == "disconnected"
            assert len(stub.seen) > 1


def test_what_is_not_named_is_not_repeated() -> None:
    """Only these POST and DELETE requests may be sent twice; a new route may not, until it is named here."""
    paths = {route.path for route in ROUTES if route.method == "POST" and may_repeat("POST", route.path)}
    own = "/v1/collections/{collection}"
    assert {path.removeprefix(own) for path in paths if path.startswith(own)} == {
        f"/{one}"
        for one in (
            "search", "search/batch", "context", "answer", "assess", "explain", "documents",
            "documents/scroll", "documents/count", "documents/delete", "documents/patch",
        )
    }  # fmt: skip
    assert {path for path in paths if not path.startswith(own)} == {"/v1/search", "/v1/embeddings"}
    deleted = {
        route.path for route in ROUTES if route.method == "DELETE" and may_repeat("DELETE", route.path)
    }
    assert deleted == {f"{own}/{one}" for one in ("feedback", "documents/{id:.+}", "synonyms", "ranking")}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    """A POST would be sent on as a GET, and the error would name a wrong cause."""
    with Stub(Reply({"hits": []})) as target:
        moved = Reply(b"", status, {"Location": f"{target.url}/elsewhere"})
        with Stub(moved) as stub, Client(stub.url) as client:
            for ask in (
                lambda: client.search("docs", query="x"),
                lambda: client.collection("docs"),
                lambda: client.delete_collection("docs"),
                lambda: client.stream_answer("docs", query="x"),
                client.metrics,
            ):
                failure = failure_of(ask)
                assert (failure.kind, failure.status) == ("unreadable", status)
                assert f"{stub.url} answers with {status} to {target.url}/elsewhere" in failure.message
            assert len(stub.seen) == 5
        assert not target.seen


def test_retries_end() -> None:
    """With the last error: after `retry_s`, or where the service asks for more time than the request has."""
    busy = Reply(BUSY, 429, {"Retry-After-Ms": "50"})
    with Stub(busy) as stub, Client(stub.url, retry_s=0.3) as client:
        with pytest.raises(ServiceError, match="much waits already"):
            client.search("docs", query="x")
        assert 3 <= len(stub.seen) <= 8
    with Stub(Reply(BUSY, 429, {"Retry-After": "60"})) as stub, Client(stub.url, timeout_s=5) as client:
        with pytest.raises(ServiceError, match="much waits already") as caught:
            client.search("docs", query="x")
        assert (caught.value.retry_after_s, len(stub.seen)) == (60.0, 1)


@pytest.mark.slow
@pytest.mark.model
def test_a_real_overload_is_waited_out(http: Http, tmp_path: Path, model_folder: Path) -> None:
    """A service that lets one search in at a time answers all of forty, sooner or later."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_ADMISSION_SEARCHES_MAX": "1"}
    with serving(tmp_path / "data", environ) as server, Client(server.url) as client:
        client.create_collection("docs")
        client.ingest("docs", notes(50))

        def ask(at: int) -> str:
            return client.search("docs", query=f"number {at}", cache=False)["hits"][0]["document_id"]

        with ThreadPoolExecutor(16) as pool:
            assert len(list(pool.map(ask, range(40)))) == 40
        assert Http(server.url).metric("nearline_http_requests_total", status="429") > 0


# -- deadlines


def test_a_deadline_bounds_all_tries() -> None:
    """Each try tells the service what is left, and a service that hangs is left."""
    with (
        Stub(Reply(BUSY, 429, {"Retry-After-Ms": "100"}), Reply(after_s=20)) as stub,
        Client(stub.url) as client,
    ):
        begun = time.monotonic()
        with pytest.raises(ServiceError, match="did not answer in time") as caught:
            client.search("docs", query="x", deadline_ms=500)
        assert time.monotonic() - begun < 10
        assert caught.value.kind == "timeout"
        first, second = (body["deadline_ms"] for *_, body in stub.seen)
        assert first > 450
        assert second <= first - 100


@pytest.mark.model
def test_the_service_says_that_a_deadline_was_missed(http: Http, service: ServerProcess) -> None:
    """Its own answer arrives, and is not asked for again."""
    name = http.new_collection()
    http.write(name, *notes(3))
    with Client(service.url) as client:
        with pytest.raises(ServiceError) as caught:
            client.search(name, query="refunds " * 200, deadline_ms=1, min_seq=10**9)
        assert (caught.value.status, caught.value.kind) == (503, "deadline_exceeded")


# -- circuit breaker


def test_the_breaker_opens_and_closes() -> None:
    """After failures in a row requests fail unsent; after a while one finds out, and closes it if all is well."""
    sick, well = Reply({"error": {"type": "not_ready", "message": "closing"}}, 503), Reply({"hits": []})
    with (
        Stub(sick, sick, sick, well) as stub,
        Client(stub.url, retry_s=0, failures_max=2, open_s=0.4) as client,
    ):
        for kind in ("not_ready", "not_ready", "circuit_open", "circuit_open"):
            with pytest.raises(ServiceError, match="closing") as caught:
                client.search("docs", query="x")
            assert caught.value.kind == kind
        assert len(stub.seen) == 2
        time.sleep(0.45)
        for kind in ("not_ready", "circuit_open"):  # the probe fails: open again
            with pytest.raises(ServiceError) as caught:
                client.search("docs", query="x")
            assert caught.value.kind == kind
        time.sleep(0.45)
        assert client.search("docs", query="x") == client.search("docs", query="y")
        assert len(stub.seen) == 5


def test_the_tries_of_one_request_open_no_breaker() -> None:
    """A service that starts again is waited for, however often it is tried, and the count begins again after it."""
    sick, well = Reply({"error": {"type": "not_ready", "message": "starting"}}, 503), Reply({"hits": []})
    with (
        Stub(*[sick] * 6, well) as stub,
        Client(stub.url, retry_s=30, failures_max=2, open_s=30) as client,
    ):
        assert client.search("docs", query="x")["hits"] == []
        assert client.search("docs", query="y")["hits"] == []
        assert len(stub.seen) == 8


@pytest.mark.parametrize(
    "content", [b"<html>proxy says hello</html>", b'{"hits":"\xff"}', b"{", b"[" * 200_000]
)
def test_an_answer_that_is_no_json_is_a_failure(content: bytes) -> None:
    with Stub(Reply(content)) as stub, Client(stub.url, retry_s=0) as client:
        with pytest.raises(ServiceError, match="the answer is no JSON") as caught:
            client.search("docs", query="x")
        assert caught.value.kind == "unreadable"


@pytest.mark.parametrize(
    "content",
    [
        b'{"error": {"type": 5, "message": null}}',
        b'{"error": {"type": "x", "message": "m", "param": 5}}',
        b'{"error": "gone"}',
        b'{"error": "\xff"}',
        b"[]",
        b"[" * 200_000,
        b'{"error": {"message": ' + b"[" * 200_000,
    ],
)
def test_a_foreign_error_is_of_an_unknown_kind(content: bytes) -> None:
    """What the server sent is quoted; kind and message are text whatever it is, in a batch, too."""
    with Stub(Reply(content, 422, {"Retry-After": "9" * 5000})) as stub, Client(stub.url) as client:
        failure = failure_of(client.search, "docs", query="x")
        assert (failure.kind, failure.status, failure.param) == ("unknown", 422, None)
        assert failure.message == f"status 422: {content[:200]!r}"
        stub.replies.append(Reply({"results": [{"error": {"type": None, "message": None}}]}))
        assert failure_of(client.search, "docs", query="x").kind == "unknown"
        assert failure_of(client.search_batch, "docs", []).kind == "unknown"


@pytest.mark.parametrize("answer", [{"status": "ok"}, []])
def test_an_answer_of_another_kind_of_server_is_a_failure(answer: object) -> None:
    """It says which answer shows that; what is asked for at other paths may be anything."""
    with Stub(Reply(answer)) as stub, Client(stub.url, retry_s=0) as client:
        for ask in (
            lambda: client.create_collection("docs"),
            lambda: client.ingest("docs", notes(1)),
            client.metrics,
        ):
            with pytest.raises(ServiceError, match=f"{stub.url} is not a Nearline service: its ") as caught:
                ask()
            assert caught.value.kind == "unreadable"
        with pytest.raises(ServiceError, match="its answer to DELETE /v1/collections/docs is not empty"):
            client.delete_collection("docs")
        assert client.request("GET", "/elsewhere") == answer


def test_a_refusal_is_no_failure() -> None:
    """A service that answers 404, or 429, is there: the breaker stays closed."""
    missing = Reply({"error": {"type": "not_found", "message": "no such collection"}}, 404)
    with Stub(missing) as stub, Client(stub.url, retry_s=0, failures_max=2) as client:
        for _ in range(5):
            with pytest.raises(ServiceError, match="no such collection"):
                client.search("docs", query="x")
        assert len(stub.seen) == 5


def test_only_one_request_finds_out() -> None:
    """While it is under way the others still fail at once."""
    with (
        Stub(Reply(cut=True), Reply({"hits": []}, after_s=0.5)) as stub,
        Client(stub.url, retry_s=0, failures_max=1, open_s=0.1) as client,
    ):
        with pytest.raises(ServiceError):
            client.search("docs", query="x")
        time.sleep(0.15)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(client.search, "docs", query="x") for _ in range(8)]
        errors = [one.exception() for one in asked]
        assert sum(one is None for one in errors) == 1
        assert {one.kind for one in errors if isinstance(one, ServiceError)} == {"circuit_open"}
        assert len(stub.seen) == 2


# -- embedding elsewhere


@pytest.mark.model
def test_embedding_falls_back_to_the_same_model(service: ServerProcess) -> None:
    """While the first service is away, another one of the same fingerprint gives the same vectors."""
    with Doorway(service.url) as door, Client(door.url) as client:
        first = client.embed(["refunds"])
        named = client.embed(["refunds"], model=first["model"])
        assert (first["url"], first["vectors"]) == (door.url, named["vectors"])
        door.target = "http://127.0.0.1:9"
        other = client.embed(["refunds"], fallback=["http://127.0.0.1:9", service.url])
        assert (other["url"], other["vectors"]) == (service.url, first["vectors"])
        with Stub(Reply({"model_id": "m", "model_sha": "f00"})) as stub:
            with pytest.raises(ServiceError, match="with the fingerprint f00, expected") as caught:
                client.embed(["refunds"], fallback=[stub.url])
            assert caught.value.kind == "model_mismatch"
            assert len(stub.seen) == 1
    with Client("http://127.0.0.1:9") as client:
        with pytest.raises(ServiceError, match="cannot be reached"):
            client.embed(["refunds"], fallback=[service.url])  # which model was it?
        given = client.embed(["refunds"], fallback=[service.url], fingerprint=first["fingerprint"])
        assert given["vectors"] == first["vectors"]
    with Client(service.url) as client:
        with pytest.raises(ServiceError, match="has no model 'gone'"):
            client.embed(["refunds"], model="gone")


# -- bulk ingestion


@pytest.mark.slow
@pytest.mark.model
def test_an_ingestion_that_broke_off_is_resumed(http: Http, service: ServerProcess) -> None:
    """`read` documents are settled: begun behind them with the same total, every document is there, once."""
    name, all_of_them = http.new_collection(), notes(900)
    total, seen = Ingested(), list[int]()

    def breaks_off() -> Iterator[dict[str, Any]]:
        yield from all_of_them[:700]
        raise OSError("the disk is gone")

    with Client(service.url) as client:
        with pytest.raises(OSError, match="the disk is gone"):
            client.ingest(name, breaks_off(), total=total, on_progress=lambda now: seen.append(now.read))
        assert total.read in {200, 400, 600}
        assert (total.last_id, seen) == (f"n{total.read - 1}", sorted(seen))
        rest = itertools.islice(all_of_them, total.read, None)
        done = client.ingest(name, rest, total=total)
        assert (done.read, done.last_id) == (900, "n899")
        assert client.count(name)["documents"] == 900
        again = client.ingest(name, all_of_them)
        assert (again.documents, again.unchanged) == (0, 900)


@pytest.mark.model
def test_refused_documents_are_reported(http: Http, service: ServerProcess) -> None:
    """With their place, whoever refuses them; without a callback the first is an error."""
    name, documents = http.new_collection(), notes(6)
    documents[2]["text"] = "A \0 in it."
    documents[5]["text"] = "\udcff"
    refused: list[Refused] = []
    with Client(service.url) as client:
        done = client.ingest(name, documents, on_refused=refused.append)
        assert (done.documents, done.refused, done.read, done.last_id) == (4, 2, 6, "n5")
        assert sorted((one.position, one.reason) for one in refused) == [
            (2, "text holds a NUL character"),
            (5, "contains text that is not valid Unicode: surrogates not allowed"),
        ]
        with pytest.raises(RefusedDocument, match="document 'n2': text holds a NUL") as caught:
            client.ingest(name, documents[:5])
        assert caught.value.refused.position == 2
        odd: list[Any] = [
            {"id": "t", "text": 5},
            "no object",
            {"id": "n", "text": "x", "metadata": {"a": [math.nan]}},
            {"id": ["l"], "text": "x"},
            {"id": 7, "text": "x"},
            {"id": "7", "text": "x"},
        ]
        refused.clear()
        assert client.ingest(name, odd, on_refused=refused.append).refused == 5
        assert [(one.position, one.id) for one in refused] == [
            (0, "t"),
            (1, None),
            (2, "n"),
            (3, ["l"]),
            (5, "7"),
        ]
        assert refused[-1].reason == "id '7' is also documents[4].id"
        with pytest.raises(ValueError, match="begins with a slash"):
            client.request("GET", "v1/collections")
        assert client.ready()


@pytest.mark.model
def test_documents_are_read_where_ingest_is_called(http: Http, service: ServerProcess) -> None:
    """On the caller's thread, so that a generator may use the client itself."""
    source, target = http.new_collection(), http.new_collection()
    threads: set[str] = set()

    def copied(client: Client) -> Iterator[JSON]:
        for document in client.scroll(source, limit=50):
            threads.add(threading.current_thread().name)
            yield {"id": document["id"], "text": document["text"]}

    with Client(service.url) as client:
        client.ingest(source, notes(300))
        assert client.ingest(target, copied(client)).documents == 300
    assert threads == {threading.current_thread().name}


@pytest.mark.model
@pytest.mark.slow
def test_a_service_that_is_killed_and_restarted_meanwhile(tmp_path: Path, model_folder: Path) -> None:
    """Nothing is lost and nothing is there twice, with a breaker that opens in between."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    first = ServerProcess(tmp_path / "data", environ)
    killed = threading.Event()

    def kill(now: Ingested) -> None:
        if now.read >= 400 and not killed.is_set():
            killed.set()
            first.kill()

    with Doorway(first.url) as door, Client(door.url, failures_max=2, open_s=0.5) as client:
        client.create_collection("notes")
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(client.ingest, "notes", notes(1200), on_progress=kill)
            assert killed.wait(120)
            with serving(tmp_path / "data", environ) as second:
                door.target = second.url
                done = sending.result(240)
                assert done.documents + done.unchanged == done.read == 1200
                listed = [one["id"] for one in client.scroll("notes", limit=500)]
                assert sorted(listed) == sorted(f"n{at}" for at in range(1200))


# -- threads and processes


@pytest.mark.model
def test_threads_share_a_client(http: Http, service: ServerProcess) -> None:
    """Each gets its own answer."""
    name = http.new_collection()
    with Client(service.url) as client, ThreadPoolExecutor(8) as pool:
        client.ingest(name, notes(50))
        asked = pool.map(lambda at: client.document(name, f"n{at % 50}")["id"], range(200))
        assert list(asked) == [f"n{at % 50}" for at in range(200)]


def run_python(code: str, url: str) -> None:
    """Run code that ends well and says nothing."""
    command = [sys.executable, "-W", "error", "-c", code, url]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.model
def test_a_fork_has_connections_of_its_own(http: Http, service: ServerProcess) -> None:
    """A child process uses the client it inherited, and the parent goes on with its own."""
    code = """
import os, sys
from nearline import Client
client = Client(sys.argv[1])
assert client.ready()
child = os.fork()
if child == 0:
    os._exit(7 if client.ready() and client.collections() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert client.ready()
"""
    http.new_collection()
    run_python(code, service.url)


@pytest.mark.parametrize(
    "begin",
    [
        "iter(client.scroll('docs'))",
        "iter(client.stream_answer('docs', query='x'))",
    ],
)
def test_an_iteration_does_not_continue_in_a_fork(begin: str) -> None:
    """It fails clearly there, and goes on in the parent, whose connection the child leaves alone."""
    page = Reply({"documents": [{"id": "a"}], "cursor": "more"})
    code = f"""
import os, sys
from nearline import Client, ServiceError
client = Client(sys.argv[1])
items = {begin}
next(items)
child = os.fork()
if child == 0:
    try:
        next(items)
    except ServiceError as error:
        os._exit(7 if error.kind == "disconnected" and client.ready() else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(list(items)) == 1
"""
    last = Reply({"documents": [{"id": "b"}], "cursor": None})
    replies = (page, Reply(), last) if "scroll" in begin else (stream_of(PIECE + WHOLE), Reply())
    with Stub(*replies) as stub:
        run_python(code, stub.url)


def test_an_ingestion_does_not_continue_in_a_fork() -> None:
    """A child that is forked while documents are read cannot wait for the requests of its parent."""
    code = """
import os, sys
from nearline import Client, ServiceError

child = -1

def documents():
    global child
    for at in range(2):
        yield {"id": f"n{at}", "text": "A note."}
    child = os.fork()

try:
    done = Client(sys.argv[1]).ingest("docs", documents())
except ServiceError as error:
    os._exit(7 if child == 0 and error.kind == "disconnected" else 1)
assert done.documents == 2 and child > 0
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    written = {"seq": 1, "documents": 2, "passages": 2, "tokens": 2, "unchanged": 0, "took_ms": 1}
    with Stub(Reply({"name": "docs"}), Reply(written)) as stub:
        run_python(code, stub.url)
        assert len(stub.seen) == 2


def test_a_callback_cannot_wait_for_itself() -> None:
    """An error says so, instead of a client that hangs."""
    job = {"id": "j", "status": "running", "progress": {"stage": "x", "done": 0, "total": 1}}

    def waits(*_: object) -> None:
        client.job("j")

    with Stub(Reply(job)) as stub, Client(stub.url) as client:
        with pytest.raises(RuntimeError, match="a callback of this client cannot call it"):
            client.finished("j", on_progress=waits)


def test_it_can_be_closed_and_used_again() -> None:
    """Closing ends the thread; the next request starts another one."""
    with Stub() as stub:
        client = Client(stub.url)
        for _ in range(2):
            client.request("GET", "/")
            client.close()
            assert not [one for one in threading.enumerate() if one.name == "nearline-client"]
        client.close()


def test_closing_ends_what_is_under_way() -> None:
    """The requests of other threads and event loops fail, those of an ingestion too; none waits forever."""
    late = Reply(after_s=60)
    calls: list[tuple[Any, ...]] = [
        (lambda client: client.search("notes", query="a note"), late),
        (lambda client: client.ingest("notes", notes(5)), Reply({"name": "notes"}), late),
        (lambda client: list(client.scroll("notes")), late),
        (lambda client: asyncio.run(client.awaited(lambda core: core.search("notes", query="a"))), late),
    ]
    with ThreadPoolExecutor(1) as thread:
        for call, *replies in calls:
            with Stub(*replies) as stub:
                client = Client(stub.url)
                asked = thread.submit(call, client)
                while len(stub.seen) < len(replies):
                    time.sleep(0.01)
                client.close()
                error = asked.exception(10)
                assert isinstance(error, ServiceError)
                assert error.kind == "disconnected"


def test_errors_travel_between_processes() -> None:
    """Each can be pickled with all that it says, as pools of processes do."""
    refused = RefusedDocument(Refused(3, "n3", "text is empty"))
    for error in (refused, ServiceError("busy", status=429, kind="overloaded", param="k", retry_after_s=2)):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_text_that_is_not_unicode(http: Http, service: ServerProcess) -> None:
    """It is refused as the service refuses what it cannot read, in a path as in a body."""
    half, name = "half an emoji \ud83d", http.new_collection()
    with Client(service.url) as client:
        for ask in (
            lambda: client.search(name, query=half),
            lambda: client.document(name, half),
            lambda: client.collection(half),
        ):
            with pytest.raises(ServiceError, match="not valid Unicode") as refused:
                ask()
            assert (refused.value.status, refused.value.kind) == (422, "invalid_input")


def test_the_examples_run(http: Http, service: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of docs/client.md, one after the other."""
    monkeypatch.setenv("NEARLINE_URL", service.url)
    names: dict[str, Any] = {"__name__": "example"}
    blocks = (ROOT / "docs" / "client.md").read_text().split("```python\n")[1:]
    assert len(blocks) >= 3
    for block in blocks:
        exec(block.partition("```")[0], names)
    assert os.environ["NEARLINE_URL"] == service.url
