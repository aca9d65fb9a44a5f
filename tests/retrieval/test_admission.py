"""Who is let in when much is under way already, decided before the body is read."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from indexes.errors import Overloaded
from jobs.server_process import ServerProcess, serving
from retrieval.admission import REQUEST_WORK, Gate
from tests.support.http import Http


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def gate_of(
    clock: Clock, *, requests_max: int = 100, bytes_max: int = 10**9, wait_s_max: float = 10.0
) -> Gate:
    return Gate("write", requests_max=requests_max, bytes_max=bytes_max, wait_s_max=wait_s_max, clock=clock)


def test_requests_and_bytes_are_bounded_and_given_back() -> None:
    """The third request, or one whose bytes are too many beside another, is refused until there is room."""
    gate = gate_of(Clock(), requests_max=2, bytes_max=1000)
    first = gate.enter(600)
    with pytest.raises(Overloaded, match="1000"):
        gate.enter(500)
    gate.enter(400)
    with pytest.raises(Overloaded, match="at most 2"):
        gate.enter(0)
    first.leave(done=True)
    gate.enter(600)


def test_a_body_larger_than_the_bound_is_let_in_alone() -> None:
    """The bound is for bodies beside each other; what one may hold is another setting."""
    gate = gate_of(Clock(), bytes_max=1000)
    gate.enter(5000)
    with pytest.raises(Overloaded):
        gate.enter(1)


def test_the_wait_is_foretold_from_the_pace() -> None:
    """After 1 s for one unit of work nine more take nine seconds; beyond the bound, callers are told so."""
    clock = Clock()
    gate = gate_of(clock, wait_s_max=8.5)
    learnt = gate.enter(0)
    learnt.arrived(0)
    clock.now += 1
    learnt.leave(done=True)
    for _ in range(9):
        gate.enter(0).arrived(0)
    assert gate.wait_s == pytest.approx(9)
    with pytest.raises(Overloaded) as refused:
        gate.enter(0)
    assert refused.value.retry_after_s == pytest.approx(9)


def test_a_slow_sender_says_nothing_about_the_pace() -> None:
    """A body that takes a minute to arrive leaves the foretold wait as it was."""
    clock = Clock()
    gate = gate_of(clock)
    slow = gate.enter(10)
    clock.now += 60
    slow.arrived(10)
    clock.now += 1
    slow.leave(done=True)
    gate.enter(0).arrived(10)
    assert gate.wait_s == pytest.approx(1)


def test_a_body_counts_as_what_arrived() -> None:
    """A chunked body holds the largest size until it is there, and gives the rest back."""
    gate = gate_of(Clock(), bytes_max=1000)
    chunked = gate.enter(1000)
    chunked.arrived(10)
    gate.enter(900)


def test_what_arrives_after_its_answer_counts_for_nothing() -> None:
    """The rest of a refused body is still read, and must not stand in the account for ever."""
    clock = Clock()
    gate = gate_of(clock)
    late = gate.enter(REQUEST_WORK)
    late.leave(done=True)
    late.arrived(REQUEST_WORK)
    clock.now += 5
    assert gate.wait_s == 0
    gate.enter(0).leave(done=True)


# --- the service ----------------------------------------------------------------------------------------------

BYTES_MAX = 2000


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    """A service that takes two writes at a time, of 2000 bytes together."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_ADMISSION_WRITES_MAX": "2",
        "NEARLINE_ADMISSION_BODY_BYTES_MAX": str(BYTES_MAX),
        "NEARLINE_SEARCH_DEADLINE_MS": "300",
    }
    with serving(tmp_path_factory.mktemp("narrow") / "data", environ) as server:
        yield server


@contextlib.contextmanager
def sending(url: str, *headers: str, path: str = "/v1/collections") -> Iterator[socket.socket]:
    """A POST that has sent its headers, and no body yet."""
    at = urlsplit(url)
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        yield connection


def head_of(connection: socket.socket) -> str:
    return connection.recv(4096).decode()


def settled(http: Http) -> None:
    """Wait until the connections of the test before are known to be gone: two writes at once are let in again."""
    http.ok("GET", "/healthz")


def test_beyond_the_bound_a_write_is_refused_before_its_body(narrow: ServerProcess) -> None:
    """With two bodies on their way a third gets 429 and Retry-After on its headers alone; nothing else is refused."""
    http = Http(narrow.url)
    with (
        sending(narrow.url, "Content-Length: 50") as first,
        sending(narrow.url, "Content-Length: 50"),
    ):
        settled(http)
        with sending(narrow.url, "Content-Length: 50") as third:
            head = head_of(third)
        assert head.startswith("HTTP/1.1 429")
        assert "\r\nRetry-After: 1\r\n" in head
        assert "2 write requests are under way" in head
        for path in ("/healthz", "/readyz", "/metrics", "/v1/collections", "/openapi.json"):
            assert http.call("GET", path).status == 200
        assert http.call("POST", "/v1/collections/none/search", {"query": "x"}).status == 404
        first.sendall(b"x" * 50)
        assert head_of(first).startswith("HTTP/1.1 400")
        assert http.call("POST", "/v1/collections", {}).status == 422


@pytest.mark.parametrize("header", ["Content-Length: 1900", "Transfer-Encoding: chunked"])
def test_bodies_on_their_way_are_bounded_in_bytes(narrow: ServerProcess, header: str) -> None:
    """Beside a body of 1900 bytes, or a chunked one, none of 200 is let in, and it is once the first has left."""
    http = Http(narrow.url)
    with sending(narrow.url, header) as large:
        settled(http)
        reply = http.call("POST", "/v1/collections", {"name": "x" * 200})
        assert (reply.status, reply.body["error"]["type"]) == (429, "overloaded")
        if header.startswith("Content"):
            assert http.call("POST", "/v1/collections", {}).status == 422  # a small one has room
        large.sendall(b"1900".rjust(1900) if header.startswith("Content") else b"2\r\n{}\r\n0\r\n\r\n")
        assert head_of(large).startswith("HTTP/1.1 4")
        assert http.call("POST", "/v1/collections", {"name": "x" * 200}).status == 422


def test_a_body_that_is_too_large_is_refused_on_its_headers(http: Http) -> None:
    """Nobody waits for 10 GB to say that they are too many."""
    with sending(http.url, "Content-Length: 10000000000") as connection:
        assert head_of(connection).startswith("HTTP/1.1 413")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
def test_compressed_bodies_are_refused_on_their_headers(http: Http, encoding: str) -> None:
    """A small body may unpack to gigabytes: 415, in the dialect of the path, whatever the bytes are."""
    with sending(http.url, f"Content-Encoding: {encoding}", "Content-Length: 300000") as connection:
        assert head_of(connection).startswith("HTTP/1.1 415")
    for path in ("/v1/collections", "/v1/embeddings", "/v1/nothing"):
        reply = http.call("POST", path, raw=b"not compressed", headers={"Content-Encoding": encoding})
        assert reply.status == 415
        assert "Content-Encoding" in str(reply.body["error"])
    assert http.call("POST", "/v1/collections", {}, headers={"Content-Encoding": "identity"}).status == 422


@pytest.mark.parametrize(
    "request_of", [{"path": "search"}, {"path": "context", "token_budget": 100}], ids=str
)
def test_a_search_without_a_deadline_gets_the_configured_one(
    narrow: ServerProcess, request_of: dict[str, object]
) -> None:
    """It waits no longer for a state that does not come."""
    http = Http(narrow.url)
    name = http.new_collection()
    http.write(name, {"id": "a", "text": "iron"})
    body = {"query": "iron", "min_seq": 10**6, **request_of}
    reply = http.call("POST", f"/v1/collections/{name}/{body.pop('path')}", body)
    assert (reply.status, reply.body["error"]["param"]) == (503, "deadline_ms")
