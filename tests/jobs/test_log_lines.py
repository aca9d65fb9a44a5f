"""What `nearline serve` says on stderr: every line whole, in the format that was asked for."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from jobs.serving.log_lines import JsonFormatter, TextFormatter
from jobs.serving.process import log_of, serving
from retrieval.base.request_id import REQUEST_ID
from tests.support.http import Http

ROOT = Path(__file__).parents[2]

# A warning, an error nobody caught on a thread, one in a finaliser, and one that ends the program.
PROGRAM = """
import logging, threading, warnings
from jobs.serving.log_lines import set_up_logging
from retrieval.base.settings import LogSection
set_up_logging(LogSection(format="json"))
warnings.warn("old\\nways")
logging.getLogger("some.library").warning("two\\nlines")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
class Fragile:
    def __del__(self):
        raise ValueError("in a finaliser")
Fragile()
raise RuntimeError("the end")
"""


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def serve(tmp_path: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs.cli", "serve", "--data", str(tmp_path), *arguments]
    return subprocess.run(
        command,
        env={**os.environ, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_line_of_a_service_is_json(tmp_path: Path, model_folder: Path) -> None:
    """From the first warning at the start to malformed requests."""
    environ = {"NEARLINE_LOG_FORMAT": "json", "NEARLINE_XX": "1", "NEARLINE_LOG_LEVEL": "debug"}
    with serving(
        tmp_path / "data", {**environ, "NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    ) as server:
        Http(server.url).call("POST", "/v1/collections", raw=b"{")
        Http(server.url).ok("GET", "/healthz")
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(b"no HTTP\r\n\r\n")
            connection.recv(1000)
    lines = entries(log_of(tmp_path / "data").read_text())
    assert "NEARLINE_XX names no setting" in next(
        one["message"] for one in lines if one["level"] == "warning"
    )
    requests = {one["path"]: one for one in lines if one["logger"] == "nearline.requests"}
    assert (requests["/v1/collections"]["status"], requests["/v1/collections"]["level"]) == (400, "info")
    assert (requests["/healthz"]["status"], requests["/healthz"]["level"]) == (200, "debug")


@pytest.mark.slow
def test_a_start_that_fails_says_so_in_json(tmp_path: Path) -> None:
    """Wrong settings, from the environment or a file, and a folder that is not ours: one error, exit code 1."""
    (tmp_path / "other").write_text("x")
    (tmp_path / "c.toml").write_text('[log]\nformat = "json"\n')
    json_wanted = {"NEARLINE_LOG_FORMAT": "json"}
    for ended, reason in [
        (serve(tmp_path, **json_wanted), "is not a nearline data directory"),
        (serve(tmp_path, "--config", str(tmp_path / "c.toml")), "is not a nearline data directory"),
        (serve(tmp_path, **json_wanted, NEARLINE_SEARCH_K="many"), "NEARLINE_SEARCH_K"),
    ]:
        *before, line = entries(ended.stderr)
        assert ended.returncode == 1
        assert {one["level"] for one in before} <= {"info"}
        assert line["level"] == "critical"
        assert reason in line["message"]


def test_warnings_and_uncaught_errors_are_json() -> None:
    """Also those of libraries and threads; a traceback is inside its object."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    warned, library, *uncaught = entries(ended.stderr)
    assert "old\nways" in warned["message"]
    assert library["message"] == "two\nlines"
    assert [one["message"].split()[1] for one in uncaught] == [
        "ZeroDivisionError",
        "ValueError",
        "RuntimeError",
    ]
    assert all("Traceback" in one["trace"] for one in uncaught)


def test_the_request_log_tells_no_query_and_cannot_be_forged(tmp_path: Path, model_folder: Path) -> None:
    """One line a request, with the id it was given; line breaks in a path stay encoded, query strings are left out."""
    with serving(tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        path = "/v1/collections/a%0A2026%20CRITICAL%20forged/documents?cursor=secret"
        request = urllib.request.Request(server.url + path, headers={"X-Request-Id": "mine-1"})
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request)
    *_, line, stopping = log_of(tmp_path / "data").read_text().splitlines()
    assert "GET /v1/collections/a%0A2026%20CRITICAL%20forged/documents 404 " in line
    assert line.endswith(" bytes to 127.0.0.1 [mine-1]")
    assert "secret" not in line
    assert " INFO jobs.serving.service: stopping: " in stopping


FORGED = "2026-01-01 00:00:00,000 CRITICAL forged"
BREAKS = ("\n", "\r", "\r\n", "\x1b[2K\x1b[1A", "\u2028", "\u2029", "\x85", "\x0b", "\x9b1A", "\u202e", "\0")
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: |    ")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_client_can_forge_a_line(tmp_path: Path, model_folder: Path, log_format: str) -> None:
    """Not by a path, an id, a name, a query, metadata or a header, in a request that is well-formed or not."""
    environ = {"NEARLINE_LOG_FORMAT": log_format, "NEARLINE_LOG_LEVEL": "debug"}
    with serving(
        tmp_path / "data", {**environ, "NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        zeroed = tmp_path / "data" / "docs" / "log.db"
        for number, text in enumerate(f"a{one}{FORGED}" for one in BREAKS):
            quoted = urllib.parse.quote(text)
            http.call("POST", "/v1/collections", {"name": text, "model": text})
            http.call("POST", "/v1/collections/docs/documents", {"documents": [
                {"id": text, "text": text.replace("\0", ""), "title": "x", "metadata": {text: text}}]})  # fmt: skip
            http.call(
                "POST", "/v1/collections/docs/search", {"query": text, "mode": text, "filter": {text: text}}
            )
            http.call("PUT", f"/v1/aliases/{quoted}", {"collection": text})
            for path in (f"/v1/collections/docs/documents/{quoted}", f"/{quoted}", f"/docs/assets/{quoted}"):
                for method in ("GET", "DELETE"):
                    http.call(method, path)
            raw = text.encode().replace(b"\n", b"\r" if number % 2 else b"\n")
            for lines in (
                b"GET /healthz HTTP/1.1\r\nHost: %s" % raw,
                b"GET /%s HTTP/1.1\r\nHost: localhost" % raw,
                b"%s /healthz HTTP/1.1\r\nHost: localhost" % raw,
                *(
                    b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n%s: %s" % (name, raw)
                    for name in (
                        b"X-Request-Id",
                        b"Origin",
                        b"User-Agent",
                        b"Content-Type",
                        b"Content-Encoding",
                    )
                ),
            ):
                send(server.url, lines + b"\r\nConnection: close\r\n\r\n{}")
        with zeroed.open("r+b") as file:  # from here on errors are logged
            file.write(bytes(zeroed.stat().st_size))
        for one in BREAKS:
            http.call("GET", f"/v1/collections/docs/documents/{urllib.parse.quote(f'b{one}{FORGED}')}")
    logged = log_of(tmp_path / "data").read_bytes().decode()
    written = logged.splitlines()  # at everything that anybody takes for the end of a line
    assert len(written) == logged.count("\n") > 100
    assert all(line.isprintable() for line in written)
    if log_format == "json":
        assert not any(one["level"] == "critical" for one in map(json.loads, written))
    else:
        assert [line for line in written if not LINE.match(line)] == []
        assert not any(line.startswith(FORGED[:10]) for line in written)
    assert "forged" in logged


def test_a_malformed_request_is_one_line(tmp_path: Path, model_folder: Path) -> None:
    """It is the client's mistake: no error of ours, and no traceback."""
    with serving(tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        for request in (
            b"no HTTP",
            b"GET /a\0b HTTP/1.1\r\nHost: localhost",
            b"GET / HTTP/1.1\r\nHost: a\rb",
        ):
            send(server.url, request + b"\r\n\r\n")
    written = log_of(tmp_path / "data").read_text().splitlines()
    lines = [line for line in written if not re.search("jobs.serving.service: (starting|stopping)", line)]
    assert [" INFO nearline.requests: UNKNOWN / 400 " in line for line in lines] == [True] * 3


def send(url: str, request: bytes) -> None:
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(request)
        while connection.recv(65_536):
            pass


def test_what_a_traceback_quotes_is_indented() -> None:
    """The message of an exception may hold what a client sent; in text its lines cannot look like those of the log."""
    for one in BREAKS:
        try:
            raise ValueError(f"bad id a{one}{FORGED}")
        except ValueError:
            record = logging.LogRecord("some.library", logging.ERROR, "", 0, "failed", None, sys.exc_info())
        first, *others = TextFormatter().format(record).splitlines()
        assert first.endswith("some.library: failed")
        assert others
        assert all(line.startswith("    ") and line.isprintable() for line in others)
        record.exc_text = None
        line = JsonFormatter().format(record)
        assert line.isprintable()
        assert f"a{one}{FORGED}" in json.loads(line)["trace"]


def test_every_line_of_a_request_has_its_id() -> None:
    """In both formats, whoever logs; and a message with a line break stays one line of text."""
    record = logging.LogRecord("some.library", logging.INFO, "", 0, "one\n%s", ("two",), None)
    token = REQUEST_ID.set("mine-2")
    try:
        assert json.loads(JsonFormatter().format(record))["request_id"] == "mine-2"
        assert TextFormatter().format(record).endswith("some.library: one\\ntwo [mine-2]")
    finally:
        REQUEST_ID.reset(token)
    assert "request_id" not in json.loads(JsonFormatter().format(record))


def test_an_alias_of_no_model_is_named(tmp_path: Path, model_folder: Path) -> None:
    """Clients are told that there is no such model; the log tells the operator."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_MODELS_ALIASES": json.dumps({"gpt": "absent", "small": model_folder.name}),
    }
    with serving(tmp_path / "data", environ):
        pass
    said = [line for line in log_of(tmp_path / "data").read_text().splitlines() if "aliases" in line]
    assert ["there is no model absent, which gpt stands for" in line for line in said] == [True]
