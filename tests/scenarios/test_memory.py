"""Everything that is known to take memory, all at once: the process keeps below its ceiling, and goes on answering.

The short form is part of `make slow`; `make torture` runs a minute of it, and prints what it measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from jobs.benchmark.callers import post
from jobs.serving.process import ServerProcess, serving
from tests.support.health import probed
from tests.support.http import Http
from tests.support.memory import peak_bytes

CEILING = 1_500_000_000
DIMENSIONS = 384
CONNECTIONS = 20
SILENT = 100  # clients that do not read
MEGABYTE = 1 << 20


def vector(dice: random.Random) -> list[float]:
    return [round(dice.uniform(-1, 1), 3) for _ in range(DIMENSIONS)]


def attacks() -> Iterator[bytes]:
    """Requests that each take much memory, or try to."""
    dice = random.Random(0)
    batch = {"searches": [{"vector": vector(dice), "k": 1000, "cache": False} for _ in range(100)]}
    long = {"searches": [{"vector": vector(dice), "k": 200, "cache": False} for _ in range(8)]}
    zeros = b"[" + b"0," * (15 * MEGABYTE) + b"0]"
    lists = b"[" + b"[]," * (10 * MEGABYTE) + b"[]]"
    bomb = gzip.compress(bytes(300 * MEGABYTE), compresslevel=1)
    write = b'{"documents":[{"id":"a","text":"b","%s":%s}]}'
    kinds = [
        post("/v1/collections/fat/search", bomb, "Content-Encoding: gzip"),
        post("/v1/collections/fat/search/batch", json.dumps(batch).encode()),
        post("/v1/collections/long/search/batch", json.dumps(long).encode()),
        post("/v1/collections/fat/search", b'{"query":"x","filter":' + lists + b"}"),
        post("/v1/collections/fat/search", b'{"vector":' + zeros + b"}"),
        post("/v1/collections/fat/search", json.dumps({"vector": vector(dice), "k": 1000}).encode()),
        post("/v1/collections/fat/documents/scroll", b'{"limit":1000,"vectors":true}'),
        post("/v1/collections/fat/documents", write % (b"vector", zeros)),
        post("/v1/collections/fat/documents", write % (b"metadata", b'{"a":' + lists + b"}")),
        post("/v1/embeddings", b'{"model":"all-MiniLM-L6-v2","input":' + zeros + b"}"),
    ]
    return itertools.cycle(kinds)


async def attack(url: str, requests: Iterator[bytes], until: float, statuses: Counter[int]) -> None:
    """One request after the other, over one connection as long as it lives; every answer is read."""
    at = urlsplit(url)
    while time.monotonic() < until:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=MEGABYTE)
            try:
                while time.monotonic() < until:
                    writer.write(next(requests))
                    head = await reader.readuntil(b"\r\n\r\n")
                    statuses[int(head.split(b" ", 2)[1])] += 1
                    await reader.readexactly(
                        int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    )
            finally:
                writer.close()


async def silence(url: str, request: bytes, until: float) -> None:
    """Send a request and never read its answer; now and then come back."""
    at = urlsplit(url)
    loop = asyncio.get_running_loop()
    while time.monotonic() < until:
        with socket.socket() as connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(connection, (at.hostname, at.port))
            await loop.sock_sendall(connection, request)
            await asyncio.sleep(min(3, until - time.monotonic()))


async def storm(url: str, seconds: float) -> tuple[Counter[int], list[float]]:
    until, requests, statuses = time.monotonic() + seconds, attacks(), Counter[int]()
    page = post("/v1/collections/fat/documents/scroll", b'{"limit":1000}')
    attackers = [attack(url, requests, until, statuses) for _ in range(CONNECTIONS)]
    silent = [silence(url, page, until) for _ in range(SILENT)]
    probing = asyncio.create_task(probed(url, lambda: time.monotonic() >= until))
    await asyncio.gather(*attackers, *silent)
    return statuses, await probing


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    """`fat` holds 1,000 documents with 15 KB of metadata, `long` 200 of 1 MiB."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SERVER_MEMORY_BYTES_MAX": str(CEILING),
    }
    with serving(tmp_path_factory.mktemp("heavy") / "data", environ) as server:
        http, dice = Http(server.url), random.Random(1)
        for name in ("fat", "long"):
            http.ok("POST", "/v1/collections", {"name": name})
        for first in range(0, 1000, 500):
            http.write(
                "fat",
                *(
                    {"id": f"d{at}", "text": "t", "metadata": {"m": "m" * 15_000}, "vector": vector(dice)}
                    for at in range(first, first + 500)
                ),
            )
        for first in range(0, 200, 20):
            http.write(
                "long",
                *(
                    {"id": f"d{at}", "text": "w" * 100 + " t" * (MEGABYTE // 2), "vector": vector(dice)}
                    for at in range(first, first + 20)
                ),
            )
        yield server


@pytest.mark.slow
def test_memory(heavy: ServerProcess) -> None:
    """Six seconds from 20 connections, and 100 clients that do not read: below the ceiling, and searches go on."""
    held(heavy, 6)


@pytest.mark.torture
def test_memory_for_long(heavy: ServerProcess) -> None:
    """The same for a minute."""
    held(heavy, 60)


def held(server: ServerProcess, seconds: float) -> None:
    before = peak_bytes(server.pid)
    statuses, took = asyncio.run(storm(server.url, seconds))
    peak = peak_bytes(server.pid)
    print(  # noqa: T201 - what the long form is for
        f"\n{dict(sorted(statuses.items()))}; {before / 1e6:.0f} MB before, {peak / 1e6:.0f} MB at most; "
        f"healthz at most {max(took, default=0) * 1000:.0f} ms, {len(took)} times"
    )
    http = Http(server.url)
    assert peak < CEILING
    assert http.search("fat", query="still here", k=1)["hits"]
