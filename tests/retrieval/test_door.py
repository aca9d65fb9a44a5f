"""Requests that are refused as soon as aiohttp has parsed them."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from jobs.benchmark.callers import post
from jobs.serving.process import ServerProcess, log_of, serving
from tests.support.http import Http

MODEL = "all-MiniLM-L6-v2"
LONG = "iron " * 200
SEARCH, EMBED = "/v1/collections/docs/search", "/v1/embeddings"
BODY = b'{"query":"x"}'
VARYING = re.compile(r"^(?:X-Request-Id|Date|Retry-After(?:-Ms)?): .*\r\n", re.MULTILINE)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("narrow") / "data"


@pytest.fixture(scope="module")
def narrow(data: Path, model_folder: Path) -> Iterator[ServerProcess]:
    """A service that answers one search, or embeds one request, at a time."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_ADMISSION_SEARCHES_MAX": "1",
        "NEARLINE_ADMISSION_EMBEDS_MAX": "1",
        "NEARLINE_SERVER_HEADER_TIMEOUT_S": "0.5",
    }
    with serving(data, environ) as server:
        Http(server.url).ok("POST", "/v1/collections", {"name": "docs"})
        yield server


@contextlib.contextmanager
def connected(server: ServerProcess) -> Iterator[socket.socket]:
    at = urlsplit(server.url)
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        yield connection


def answer_on(connection: socket.socket) -> str:
    """The next whole answer."""
    received = ""
    while True:
        head, end, body = received.partition("\r\n\r\n")
        if end and len(body) >= int(head.lower().split("content-length: ")[1].split("\r\n")[0]):
            return received
        more = connection.recv(65536).decode()
        assert more, received
        received += more


@contextlib.contextmanager
def busy(server: ServerProcess, path: str) -> Iterator[None]:
    """The one place is taken by a request that takes long. It is free again when its client has gone."""
    long = {"input": [LONG] * 500, "inputs": [LONG] * 500, "model": MODEL}
    known = ("inputs",) if path == "/embed" else ("input", "model")
    with connected(server) as taking:
        taking.sendall(post(path, json.dumps({name: long[name] for name in known}).encode()))
        while not refused(server, path):
            time.sleep(0.01)
        yield
    while refused(server, path):
        time.sleep(0.01)


def refused(server: ServerProcess, path: str) -> bool:
    return Http(server.url).call("POST", path, json.loads(BODY)).status in (429, 503)


@pytest.mark.parametrize("path", [EMBED, "/api/embed", "/embed"])
def test_a_refusal_is_the_same_wherever_it_is_made(narrow: ServerProcess, path: str) -> None:
    """On the same connection: at the door, and from the middlewares, for a body that came after its head."""
    with busy(narrow, path), connected(narrow) as connection:
        connection.sendall(post(path, BODY))
        at_the_door = answer_on(connection)
        whole = post(path, BODY)
        connection.sendall(whole[:-5])
        time.sleep(0.1)
        connection.sendall(whole[-5:])
        the_long_way = answer_on(connection)
    assert at_the_door.startswith(("HTTP/1.1 429", "HTTP/1.1 503"))
    assert "\r\nRetry-After: " in at_the_door

    def parts(answer: str) -> tuple[list[str], str]:
        head, _, body = VARYING.sub("", answer).partition("\r\n\r\n")
        return sorted(head.split("\r\n")), body

    assert parts(at_the_door) == parts(the_long_way)
    assert len(VARYING.findall(at_the_door)) == len(VARYING.findall(the_long_way)) == 4


def test_the_connection_of_a_refused_request_serves_on(narrow: ServerProcess, data: Path) -> None:
    """Refused ten times, one time with its head in pieces, then answered; the id of a request comes back; the metrics
    count them, the log once. It may stay idle for longer than a head may take."""
    with connected(narrow) as connection:
        connection.sendall(post(SEARCH, BODY))
        assert answer_on(connection).startswith("HTTP/1.1 200")
        with busy(narrow, EMBED):
            before = count_refused(narrow)
            for number in range(10):
                whole = post(EMBED, BODY, f"X-Request-Id: mine-{number}")
                if number == 5:
                    connection.sendall(whole[:30])
                    time.sleep(0.1)
                    whole = whole[30:]
                connection.sendall(whole)
                assert f"X-Request-Id: mine-{number}\r\n" in answer_on(connection)
            assert count_refused(narrow) == before + 10
            time.sleep(1.2)
        connection.sendall(post(EMBED, json.dumps({"input": "x", "model": MODEL}).encode()))
        assert answer_on(connection).startswith("HTTP/1.1 200")
    time.sleep(1.1)
    assert "requests in 1 s were refused with 429" in log_of(data).read_text()


def count_refused(server: ServerProcess) -> float:
    http = Http(server.url)
    return sum(
        http.metric("nearline_http_requests_total", method="POST", route=EMBED, status=status)
        for status in ("429", "503")
    )


def test_two_requests_at_once_are_answered_in_order(narrow: ServerProcess) -> None:
    """They pass the door undecided."""
    with connected(narrow) as connection:
        connection.sendall(post(SEARCH, BODY) + post(SEARCH, b"{"))
        answers = connection.recv(65536).decode()
        while "HTTP/1.1 400" not in answers:
            answers += connection.recv(65536).decode()
    assert answers.startswith("HTTP/1.1 200")


def test_a_foreign_host_gives_its_place_back(narrow: ServerProcess) -> None:
    """It is let in and then refused; the one place is free again while its connection stays open."""
    with connected(narrow) as connection:
        connection.sendall(post(SEARCH, BODY).replace(b"localhost", b"somewhere.example"))
        assert answer_on(connection).startswith("HTTP/1.1 421")
        assert Http(narrow.url).call("POST", SEARCH, {"query": "x"}).status == 200
