"""Who is let in when much is under way already."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.base.errors import Overloaded
from jobs.serving.process import ServerProcess, serving
from retrieval.admission.gates import BODY_BYTES_FREE, SMALL_BYTES, Bodies, Gate
from retrieval.admission.shares import Shares
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
    first = gate.enter(None, 600)
    with pytest.raises(Overloaded, match="1000"):
        gate.enter(None, 500)
    gate.enter(None, 400)
    with pytest.raises(Overloaded, match="at most 2"):
        gate.enter(None, 0)
    first.leave(done=True)
    gate.enter(None, 600)


def test_a_body_larger_than_the_bound_is_let_in_alone() -> None:
    """The bound is for bodies beside each other; what one may hold is another setting."""
    gate = gate_of(Clock(), bytes_max=1000)
    gate.enter(None, 5000)
    with pytest.raises(Overloaded):
        gate.enter(None, 1)


def test_the_wait_is_foretold_from_the_pace() -> None:
    """After 1 s for one unit of work twenty more take 20 s; beyond the bound callers are told so, and when they have
    room."""
    clock = Clock()
    gate = gate_of(clock, wait_s_max=30)
    learnt = gate.enter(None, 0)
    clock.now += 1
    learnt.leave(done=True)
    for _ in range(20):
        gate.enter(None, 0)
    assert gate.wait_s == pytest.approx(20)
    gate.bound_as(gate_of(clock, wait_s_max=8.5))
    with pytest.raises(Overloaded, match=r"delay this one by about 20 s, at most 8\.5 s") as refused:
        gate.enter(None, 0)
    assert refused.value.retry_after_s == pytest.approx(11.5)


def test_small_bodies_have_the_last_places() -> None:
    """Large ones leave a quarter of the requests and of the bytes to them, which those use."""
    gate = gate_of(Clock(), requests_max=4)
    for _ in range(3):
        gate.enter(None, 250_000)
    with pytest.raises(Overloaded, match="3 write requests are under way, at most 3"):
        gate.enter(None, SMALL_BYTES + 1)
    gate.enter(None, SMALL_BYTES)

    gate = gate_of(Clock(), bytes_max=10**6)
    gate.enter(None, 950_000)
    with pytest.raises(Overloaded, match="20000 more would join them; at most 750000"):
        gate.enter(None, 20_000)
    gate.enter(None, SMALL_BYTES)


def test_a_small_request_is_not_delayed_by_what_is_left_of_large_ones() -> None:
    """One of a megabyte is refused beside ten that take minutes, and told so; one of a line is let in."""
    clock = Clock()
    gate = gate_of(clock, wait_s_max=30)
    large = [gate.enter(None, 1_000_000) for _ in range(10)]
    clock.now += 10
    for one in large:
        one.advance(0.02)  # 20 kB/s
    with pytest.raises(Overloaded, match=r"delay this one by about 49\d s, at most 30 s"):
        gate.enter(None, 1_000_000)
    for _ in range(20):
        small = gate.enter(None, 100)
        clock.now += 0.05
        small.leave(done=True)


def test_a_key_waits_for_as_much_of_others_as_of_its_own() -> None:
    """The work of one key refuses more of it, and nothing of another key's."""
    clock = Clock()
    gate = gate_of(clock, wait_s_max=8.5)
    learnt = gate.enter("large", 0)
    clock.now += 1
    learnt.leave(done=True)
    for _ in range(9):
        gate.enter("large", 0)
    with pytest.raises(Overloaded, match="about 9 s"):
        gate.enter("large", 0)
    for _ in range(4):
        gate.enter("small", 0)
    with pytest.raises(Overloaded, match="about 9 s"):
        gate.enter("small", 0)


@pytest.mark.parametrize("places", [1, 2, 4, 16, 64])
def test_a_newcomer_finds_room_beside_any_one_key(places: int) -> None:
    """One key alone gets three quarters, and all of a service without keys everything."""
    shares = Shares(places)
    greedy(shares, "first")
    assert places == 1 or shares.total == places * 3 // 4
    assert places == 1 or (shares.has_room() and shares.allows("second"))
    without = Shares(places)
    greedy(without, None)
    assert without.total == places


@given(st.lists(st.sampled_from("abc"), max_size=200), st.integers(4, 64))
def test_keys_that_want_everything_get_equal_parts(leaving: list[str], places: int) -> None:
    """In whatever order they came: as requests end and others begin, no key keeps more than twice another's part."""
    shares = Shares(places)
    for key in "abc":
        greedy(shares, key)
    for key in [*leaving, *"abc" * 2 * places]:
        if shares.held(key):
            shares.give(key)
        for other in "cba":
            greedy(shares, other)
    held = sorted(shares.held(key) for key in "abc")
    assert shares.total <= places
    assert held[0] >= held[-1] // 2
    for key in "abc":
        shares.give(key, shares.held(key))
    assert (shares.total, shares.keys) == (0, 0)


def greedy(shares: Shares, key: str | None) -> None:
    while shares.has_room() and shares.allows(key):
        shares.take(key)


def test_what_a_head_announces_holds_nothing() -> None:
    """Only the bytes that have come count, beyond what a connection holds anyway, and all are given back."""
    bodies = Bodies(10, 1000)
    with contextlib.ExitStack() as stack:
        grow = [stack.enter_context(bodies.arriving(None)) for _ in range(10)]
        with pytest.raises(Overloaded, match="10 bodies"):
            stack.enter_context(bodies.arriving(None))
        for one in grow:
            one(BODY_BYTES_FREE)
        grow[0](BODY_BYTES_FREE + 1000)
        with pytest.raises(Overloaded, match="1000 bytes"):
            grow[1](BODY_BYTES_FREE + 1)
    with bodies.arriving(None) as again:
        again(BODY_BYTES_FREE + 1000)


def test_a_key_that_sends_slowly_leaves_room_for_the_bodies_of_others() -> None:
    bodies = Bodies(8, 1000)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(bodies.arriving("slow")) for _ in range(6)]
        with pytest.raises(Overloaded, match="6 of them from this key"):
            stack.enter_context(bodies.arriving("slow"))
        slow[0](BODY_BYTES_FREE + 700)
        with pytest.raises(Overloaded, match="700 of them from this key"):
            slow[1](BODY_BYTES_FREE + 100)
        stack.enter_context(bodies.arriving("other"))(BODY_BYTES_FREE + 300)


# --- the service ----------------------------------------------------------------------------------------------

BYTES_MAX = 2000
BODIES_MAX = 4


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    """A service for two writes and two changes at a time, of 2000 bytes each, and four bodies on their way."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_ADMISSION_WRITES_MAX": "2",
        "NEARLINE_ADMISSION_CHANGES_MAX": "2",
        "NEARLINE_ADMISSION_BODIES_MAX": str(BODIES_MAX),
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


@contextlib.contextmanager
def in_one_piece(url: str, path: str, content: bytes) -> Iterator[socket.socket]:
    """A POST whose body comes with its head; clients of the standard library send it after."""
    at = urlsplit(url)
    length = f"Content-Length: {len(content)}"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{length}"
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + content)
        yield connection


def head_of(connection: socket.socket) -> str:
    return connection.recv(4096).decode()


def settled(http: Http) -> None:
    """Wait until the connections of the test before are known to be gone: two writes at once are let in again."""
    http.ok("GET", "/healthz")


def test_bodies_on_their_way_take_no_place_and_are_bounded(narrow: ServerProcess) -> None:
    """Beside as many as may be, whatever they announce, requests in one piece are answered; one more body gets 429 and
    Retry-After by its head alone. The first is answered when it has arrived, and leaves room for another."""
    http = Http(narrow.url)
    with contextlib.ExitStack() as stack:
        lengths = [
            "Content-Length: 50",
            "Content-Length: 50",
            "Content-Length: 9000000",
            "Transfer-Encoding: chunked",
        ]
        first, *_ = [stack.enter_context(sending(narrow.url, length)) for length in lengths]
        settled(http)
        head = head_of(stack.enter_context(sending(narrow.url, "Content-Length: 50")))
        assert head.startswith("HTTP/1.1 429")
        assert "\r\nRetry-After: 1\r\n" in head
        assert f"{BODIES_MAX} bodies are arriving" in head
        for path in ("/healthz", "/readyz", "/metrics", "/v1/collections", "/openapi.json"):
            assert http.call("GET", path).status == 200
        for path, content, status in (
            ("/v1/collections/none/search", b'{"query": "x"}', 404),
            ("/v1/collections", b"{}", 422),
        ):
            with in_one_piece(narrow.url, path, content) as connection:
                assert head_of(connection).startswith(f"HTTP/1.1 {status}")
        first.sendall(b"x" * 50)
        assert head_of(first).startswith("HTTP/1.1 400")
        again = stack.enter_context(sending(narrow.url, "Content-Length: 2"))
        again.sendall(b"{}")
        assert head_of(again).startswith("HTTP/1.1 422")


def test_what_has_no_room_is_refused_before_its_body(narrow: ServerProcess) -> None:
    """While a write larger than all that may be beside each other is under way, the next needs not send its body."""
    http = Http(narrow.url)
    settled(http)
    name = http.new_collection()
    text = json.dumps({"documents": [{"id": "a", "text": " ".join(f"iron {at}" for at in range(5_000))}]})
    path = f"/v1/collections/{name}/documents"
    with sending(narrow.url, f"Content-Length: {len(text)}", path=path) as large:
        large.sendall(text.encode())
        until = time.monotonic() + 20
        while not http.metric("nearline_requests_under_way", **{"class": "write"}):
            assert time.monotonic() < until
            time.sleep(0.01)
        with sending(narrow.url, "Content-Length: 50", path=path) as next_one:
            head = head_of(next_one)
        assert head.startswith("HTTP/1.1 429")
        assert "50 more would join them" in head


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
