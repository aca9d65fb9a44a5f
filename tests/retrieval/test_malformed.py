"""Bytes that are no valid HTTP request, over a socket: each is answered in JSON, and the status says what is wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from jobs.serving.process import ServerProcess

HOST = b"Host: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
CODED = b"chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
SEARCH = b"POST /v1/collections/none/search HTTP/1.1\r\n" + HOST
OLD_CHUNKS = (
    b"POST /v1/nothing HTTP/1.0\r\nConnection: keep-alive\r\n" + HOST + CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"
)

# What is sent, the status, and the type of the error in our own shape or None for the shape of a dialect.
MALFORMED = {
    "no request line": (b"hello\r\n\r\n", 400, "malformed_request"),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), 400, "malformed_request"),
    "bad version": (b"GET /healthz HTTP/9.9\r\n" + HOST + b"\r\n", 400, "malformed_request"),
    "bad method": (b"GE@T /healthz HTTP/1.1\r\n" + HOST + b"\r\n", 400, "malformed_request"),
    "bad target": (b"GET http://[::1 HTTP/1.1\r\n" + HOST + b"\r\n", 400, "malformed_request"),
    "bad header name": (b"GET /healthz HTTP/1.1\r\n" + HOST + b"a b: c\r\n\r\n", 400, "malformed_request"),
    "bad header value": (b"GET /healthz HTTP/1.1\r\n" + HOST + b"a: \x00\r\n\r\n", 400, "malformed_request"),
    "a header without a colon": (b"GET /healthz HTTP/1.1\r\nhello\r\n\r\n", 400, "malformed_request"),
    "bad length": (SEARCH + b"Content-Length: abc\r\n\r\n", 400, "malformed_request"),
    "negative length": (SEARCH + b"Content-Length: -1\r\n\r\n", 400, "malformed_request"),
    "two lengths": (SEARCH + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400, "malformed_request"),
    "length and chunks": (
        SEARCH + b"Content-Length: 2\r\n" + CHUNKED + b"0\r\n\r\n",
        400,
        "malformed_request",
    ),
    "chunks in HTTP/1.0": (OLD_CHUNKS, 400, "malformed_request"),
    "bad coding": (SEARCH + b"Transfer-Encoding: odd\r\n\r\n", 400, "malformed_request"),
    "gzip as transfer coding": (SEARCH + b"Transfer-Encoding: gzip, " + CODED, 415, "unsupported_encoding"),
    "gzip twice": (
        SEARCH + b"Content-Encoding: gzip\r\nTransfer-Encoding: gzip, " + CODED,
        415,
        "unsupported_encoding",
    ),
    "gzip in a second header": (
        SEARCH + b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        415,
        "unsupported_encoding",
    ),
    "gzip last": (SEARCH + b"Transfer-Encoding: chunked, gzip\r\n\r\n", 400, "malformed_request"),
    "gzip alone": (SEARCH + b"Transfer-Encoding: gzip\r\n\r\n{}", 400, "malformed_request"),
    "bad chunk size": (SEARCH + CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", 400, "malformed_request"),
    "bad chunk end": (SEARCH + CHUNKED + b"2\r\n{}oops\r\n0\r\n\r\n", 400, "malformed_request"),
    "long target": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414, "target_too_long"),
    "long query": (
        b"GET /healthz?" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        414,
        "target_too_long",
    ),
    "long header": (b"GET /healthz HTTP/1.1\r\na: " + b"b" * 9000 + b"\r\n\r\n", 431, "headers_too_large"),
    "long header name": (
        b"GET /healthz HTTP/1.1\r\n" + b"a" * 9000 + b": b\r\n\r\n",
        431,
        "headers_too_large",
    ),
    "many headers": (
        b"GET /healthz HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % at for at in range(300)) + b"\r\n",
        431,
        "headers_too_large",
    ),
    "unknown Expect": (SEARCH + b"Expect: tea\r\nContent-Length: 2\r\n\r\n{}", 417, "expectation_failed"),
    "unknown Expect, no path": (
        b"GET /nowhere HTTP/1.1\r\n" + HOST + b"Expect: tea\r\n\r\n",
        417,
        "expectation_failed",
    ),
    "unknown Expect, of OpenAI": (b"GET /v1/models HTTP/1.1\r\n" + HOST + b"Expect: tea\r\n\r\n", 417, None),
    "no path": (b"GET /nowhere HTTP/1.1\r\n" + HOST + b"\r\n", 404, "not_found"),
    "unknown method": (b"BREW /healthz HTTP/1.1\r\n" + HOST + b"\r\n", 400, "malformed_request"),
    "wrong method": (b"PUT /healthz HTTP/1.1\r\n" + HOST + b"\r\n", 405, "method_not_allowed"),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400, "malformed_request"),
    "bad escape": (b"GET /v1/collections/%zz HTTP/1.1\r\n" + HOST + b"\r\n", 404, "not_found"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_every_malformed_request_is_answered_in_json(service: ServerProcess, name: str) -> None:
    """With its status, a body in our shape, and a length; and the service goes on."""
    sent, status, kind = MALFORMED[name]
    head, body = exchange(service, sent)
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert int(lines[0].split()[1]) == status, (head, body)
    assert headers["content-type"].startswith("application/json")
    assert "aiohttp" not in headers.get("server", "")
    error = json.loads(body)["error"]
    assert error["message"]
    assert "\n" not in error["message"]
    assert kind is None or error["type"] == kind
    assert exchange(service, b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")[
        0
    ].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("name", ["chunks in HTTP/1.0", "length and chunks"])
def test_where_a_request_ends_is_not_guessed(service: ServerProcess, name: str) -> None:
    """What a proxy may take for the next request is not answered: the connection closes after the refusal."""
    sent, _, _ = MALFORMED[name]
    with socket.create_connection(("127.0.0.1", urlsplit(service.url).port or 0), timeout=20) as connection:
        connection.sendall(sent + b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    assert received.split()[1] == b"400", received
    assert received.count(b"\r\n\r\n") == 1, received


def exchange(service: ServerProcess, sent: bytes) -> tuple[bytes, bytes]:
    """The head and the body of the first answer."""
    with socket.create_connection(("127.0.0.1", urlsplit(service.url).port or 0), timeout=20) as connection:
        connection.sendall(sent)
        received = b""
        while b"\r\n\r\n" not in received:
            received += next(pieces(connection))
        head, _, body = received.partition(b"\r\n\r\n")
        (length,) = (
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        while len(body) < length:
            body += next(pieces(connection))
        return head, body[:length]


def pieces(connection: socket.socket) -> Iterator[bytes]:
    while piece := connection.recv(1 << 16):
        yield piece
    raise AssertionError("closed without an answer")
