"""Clients that are slow, silent or too many: they lose their connections, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from jobs.serving.process import ServerProcess, log_of, serving
from retrieval.access.auth import Keys
from retrieval.admission.gates import Gates
from retrieval.base.settings import AdmissionSection, ServerSection
from retrieval.observe.metrics import Metrics
from retrieval.server.connections import AcceptErrors, Connections
from retrieval.server.door import Door
from tests.support.http import Http

DESCRIPTORS = 256
WRITE_TIMEOUT_S = 100
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
BUNDLE = b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    """A service that waits half a second for anything, and may open few files."""
    names = ("HEADER_TIMEOUT_S", "BODY_TIMEOUT_S", "WRITE_TIMEOUT_S")
    environ = {f"NEARLINE_SERVER_{name}": "0.5" for name in names}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))  # the service inherits it
    try:
        data = tmp_path_factory.mktemp("strict") / "data"
        server = ServerProcess(data, {**environ, "NEARLINE_MODELS_FOLDER": str(model_folder.parent)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield server
    server.stop()
    assert "Traceback" not in log_of(data).read_text()


def connect(server: ServerProcess, receive_bytes: int | None = None) -> socket.socket:
    at = urlsplit(server.url)
    connection = socket.socket()
    connection.settimeout(30)
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect((at.hostname, at.port))
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the service closes the connection, however it does."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while block := connection.recv(1 << 20):
            received += block
    return received


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: loc"])
def test_a_head_that_does_not_come(strict: ServerProcess, sent: bytes) -> None:
    """The connection is closed without a word, whether it is new or was used before."""
    with connect(strict) as connection:
        connection.sendall(sent)
        assert rest_of(connection) == b""
    if sent:
        with connect(strict) as connection:
            connection.sendall(HEALTH)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            connection.sendall(sent)
            assert rest_of(connection) == b""


def test_a_head_that_trickles(strict: ServerProcess) -> None:
    """A byte now and then does not prolong the time."""
    with connect(strict) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /")
        for _ in range(300):
            connection.sendall(b"x")
            time.sleep(0.05)
        raise AssertionError("never disconnected")


def test_an_idle_connection_is_kept(strict: ServerProcess) -> None:
    """The time for a head begins with its first byte where a request was answered before."""
    with connect(strict) as connection:
        for pause_s in (0, 2):
            time.sleep(pause_s)
            connection.sendall(HEALTH)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_come(strict: ServerProcess) -> None:
    """408, and then the connection is closed."""
    with connect(strict) as connection:
        connection.sendall(b"POST /v1/collections HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        assert rest_of(connection).startswith(b"HTTP/1.1 408")


def test_a_client_that_does_not_read(strict: ServerProcess) -> None:
    """It is disconnected before its answers are sent; one that reads slowly gets them all."""
    whole = len(Http(strict.url).ok("GET", "/docs/assets/swagger-ui-bundle.js").encode())
    with connect(strict, receive_bytes=4096) as connection:
        connection.sendall(BUNDLE * 20)
        time.sleep(3)
        assert len(rest_of(connection)) < 20 * whole
    with connect(strict, receive_bytes=65_536) as connection:
        connection.sendall(BUNDLE)
        received = 0
        while received < whole:
            time.sleep(0.05)
            block = connection.recv(50_000)
            assert block, f"disconnected after {received} bytes"
            received += len(block)


def test_unread_answers_are_bounded_together(tmp_path: Path, model_folder: Path) -> None:
    """With 100 KB for them, clients that do not read are disconnected long before their time is over."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SERVER_MEMORY_BYTES_MAX": "400000",
        "NEARLINE_SERVER_WRITE_TIMEOUT_S": str(WRITE_TIMEOUT_S),
    }
    with serving(tmp_path / "data", environ) as server, contextlib.ExitStack() as stack:
        started = time.monotonic()
        for _ in range(16):
            stack.enter_context(connect(server, receive_bytes=4096)).sendall(BUNDLE * 20)
        while sockets_of(server) < 16:
            time.sleep(0.05)
        while sockets_of(server) > 8:
            time.sleep(0.05)
        assert time.monotonic() - started < WRITE_TIMEOUT_S


def sockets_of(server: ServerProcess) -> int:
    links = [path.readlink() for path in Path(f"/proc/{server.pid}/fd").iterdir() if path.is_symlink()]
    return sum(str(link).startswith("socket:") for link in links)


def test_more_silent_clients_than_descriptors(strict: ServerProcess) -> None:
    """Everybody else is served meanwhile: new connections take the places of those that wait longest."""
    http = Http(strict.url)
    with contextlib.ExitStack() as stack:
        for number in range(2 * DESCRIPTORS):
            connection = stack.enter_context(connect(strict))
            connection.sendall(b"GET / HTTP/1.1\r\n" if number % 2 else b"")
            if number % 16 == 0:
                assert http.call("GET", "/healthz").status == 200


@pytest.mark.slow
def test_slow_bodies_make_room_too(tmp_path: Path, model_folder: Path) -> None:
    """With eight places, sixteen clients that stop in the middle of their bodies keep nobody out."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_SERVER_CONNECTIONS_MAX": "8"}
    half = b"POST /v1/collections HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
    with serving(tmp_path / "data", environ) as server, contextlib.ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(connect(server)).sendall(half)
            assert Http(server.url).call("GET", "/healthz").status == 200


SLOW = 500
SLOW_HEADS = (b"", b"GET /healthz HTTP/1.1\r\nHost: loc")
SLOW_BODIES = (
    b"POST /v1/collections HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
    b"POST /v1/collections HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
)


@pytest.mark.parametrize(
    "timeout_s",
    [1, pytest.param(15, marks=pytest.mark.torture)],
    ids=["short", "long"],
)
@pytest.mark.parametrize("begins", [SLOW_HEADS, SLOW_BODIES], ids=["heads", "bodies"])
def test_five_hundred_slow_clients(
    tmp_path: Path, model_folder: Path, begins: tuple[bytes, ...], timeout_s: float
) -> None:
    """A byte now and then from each: all are refused or closed when the time for a request is over, and others are
    answered meanwhile."""
    names = ("HEADER_TIMEOUT_S", "BODY_TIMEOUT_S")
    environ = {f"NEARLINE_SERVER_{name}": str(timeout_s) for name in names}
    # All callers have one address here.
    environ["NEARLINE_SERVER_CONNECTIONS_PER_ADDRESS_MAX"] = "1000"
    environ["NEARLINE_MODELS_FOLDER"] = str(model_folder.parent)
    with serving(tmp_path / "data", environ) as server, contextlib.ExitStack() as stack:
        http = Http(server.url)
        name = http.new_collection()
        http.write(name, {"id": "a", "text": "Good clients are answered."})
        slow = [stack.enter_context(connect(server)) for _ in range(SLOW)]
        open_ = set(slow)
        for number, one in enumerate(slow):
            one.sendall(begins[number % len(begins)])
            one.setblocking(False)
        deadline, asked = time.monotonic() + timeout_s + 30, 0
        while open_ and time.monotonic() < deadline:
            assert http.found(name, query=f"who is answered, {asked}?") == ["a"]
            asked += 1
            open_ = {one for one in open_ if not closed(one)}
        assert not open_
        assert asked > 1


def closed(connection: socket.socket) -> bool:
    """Or answered already, with 408, or 429 where there are too many. Sends one more byte if not."""
    try:
        received = connection.recv(4096)
    except BlockingIOError:
        with contextlib.suppress(ConnectionError):
            connection.send(b"x")
        return False
    except ConnectionError:
        return True
    return received == b"" or received.startswith((b"HTTP/1.1 408", b"HTTP/1.1 429"))


@pytest.mark.parametrize(
    "settings", [ServerSection(connections_max=1), ServerSection(connections_per_address_max=1)]
)
def test_where_everybody_waits_for_us_a_new_client_is_told(settings: ServerSection, tmp_path: Path) -> None:
    """503 with Retry-After; the request under way is answered, and its place is free again."""
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(_: web.BaseRequest) -> web.StreamResponse:
        started.set()
        await release.wait()
        answer = web.Response()
        answer.force_close()
        return answer

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEALTH)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def story() -> list[bytes]:
        connections = Connections(settings, Door(Gates(AdmissionSection()), Keys(tmp_path), Metrics(), {}))
        server = web.Server(handler)
        site = await asyncio.get_running_loop().create_server(
            lambda: connections.accept(server), "127.0.0.1", 0
        )
        port = site.sockets[0].getsockname()[1]
        first = asyncio.create_task(ask(port))
        await started.wait()
        refused = await ask(port)
        release.set()
        answers = [refused, await first, await ask(port)]
        site.close()
        await server.shutdown(1)
        return answers

    refused, first, later = asyncio.run(asyncio.wait_for(story(), 30))
    assert refused.startswith(b"HTTP/1.1 503")
    assert b"Retry-After: 1" in refused
    assert first.startswith(b"HTTP/1.1 200")
    assert later.startswith(b"HTTP/1.1 200")


def test_a_lack_of_descriptors_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand failed accepts log once; what else goes wrong on the loop is told as before."""

    async def fail() -> None:
        tell = AcceptErrors()
        loop = asyncio.get_running_loop()
        error = OSError(errno.EMFILE, "Too many open files")
        for _ in range(1000):
            tell(
                loop,
                {"message": "socket.accept() out of system resource", "exception": error, "socket": None},
            )
        tell(loop, {"message": "something else", "exception": ValueError("x")})

    with caplog.at_level(logging.ERROR):
        asyncio.run(fail())
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert messages[0] == "cannot accept connections: Too many open files (1 attempts)"
    assert messages[1].startswith("something else")


def test_bytes_that_are_no_http_learn_no_version(strict: ServerProcess) -> None:
    """aiohttp answers them itself, and would name itself."""
    with connect(strict) as connection:
        connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        received = rest_of(connection)
    assert received.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert b"Server: nearline\r\n" in received
    assert b"aiohttp" not in received


@pytest.mark.slow
def test_kept_connections_end_with_the_service(tmp_path: Path, model_folder: Path) -> None:
    """A client that keeps its connection does not keep the service."""
    server = ServerProcess(tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)})
    with connect(server) as connection:
        connection.sendall(HEALTH)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert server.stop() == 0
        assert connection.recv(4096) == b""
