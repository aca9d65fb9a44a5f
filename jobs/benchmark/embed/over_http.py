"""Nearline as others use it: `nearline serve` in a process of its own, asked through POST /v1/embeddings.

The client shares the machine with the service: what asking costs is in the figures.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec
import numpy as np

from indexes.model import Floats
from jobs.benchmark.embed.engine import Served, Setup, in_requests, service_threads
from jobs.benchmark.embed.nearline import config_of
from jobs.server_process import ServerProcess
from retrieval.client import error_from

TIMEOUT_S = 600.0


class OverHttp(Served):
    """One client session with kept connections; vectors travel as base64, as OpenAI's client asks for them."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.what = (
            "POST /v1/embeddings of `nearline serve`, base64, kept connections, the client on the same cores"
        )
        self._starting: asyncio.Task[ServerProcess] | None = None
        self._server: ServerProcess | None = None
        self._session: aiohttp.ClientSession | None = None
        self._folder = Path(setup.model)

    @property
    def model(self) -> str:
        """The name by which the service knows the model."""
        return self._folder.name

    @property
    def pid(self) -> int:
        return self.server.pid

    @property
    def server(self) -> ServerProcess:
        assert self._server is not None, "open it first"
        return self._server

    async def open(self) -> None:
        config = config_of(self._folder)
        self.threads = service_threads(self.setup)
        environ = {
            "NEARLINE_MODELS_FOLDER": config.models.folder,
            "NEARLINE_MODELS_DEFAULT": config.models.default,
            "NEARLINE_EMBEDDING_QUERY_CACHE_ENTRIES": "0",
        }
        self.begun = time.monotonic()
        data = Path(self.setup.scratch) / f"service-{time.monotonic_ns()}"
        self._starting = asyncio.create_task(asyncio.to_thread(ServerProcess, data, environ))
        self._server = await asyncio.shield(self._starting)
        # A crowd must not wait for connections.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
        )
        # The client's own first time, connecting included, is not the service's.
        async with self._session.get(f"{self._server.url}/healthz") as answer:
            await answer.read()

    async def query(self, text: str) -> Floats:
        vector: Floats = (await self.embeddings(text, "query"))[0]
        return vector

    async def documents(self, texts: Sequence[str]) -> Floats:
        return await in_requests(lambda part: self.embeddings(part, "document"), texts)

    async def embeddings(self, texts: str | list[str], kind: str) -> Floats:
        """Vectors [texts, dimensions]. Raises ServiceError with the service's words."""
        wanted = {"model": self.model, "input": texts, "encoding_format": "base64", "input_type": kind}
        found = msgspec.json.decode(await self.post("/v1/embeddings", wanted), type=_Answer)
        vectors = [b""] * len(found.data)
        for one in found.data:
            vectors[one.index] = base64.b64decode(one.embedding)
        return np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1)

    async def post(self, path: str, body: object) -> bytes:
        """The answer as it came. Raises ServiceError with the service's words."""
        assert self._session is not None, "open it first"
        async with self._session.post(
            self.server.url + path,
            data=msgspec.json.encode(body),
            headers={"Content-Type": "application/json"},
        ) as answer:
            content = await answer.read()
            if answer.status >= 400:
                raise error_from(answer.status, content, answer.headers)
            return content

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._starting is not None:  # also one that was not waited for to the end
            await asyncio.to_thread((await self._starting).stop)


class _Item(msgspec.Struct):
    index: int
    embedding: str


class _Answer(msgspec.Struct):
    data: list[_Item]
