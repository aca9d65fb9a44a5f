"""What every engine must do to be measured, and what it is told of the model.

An engine lives in a process of its own and is used from that process's event loop. Its libraries are imported when it
is made or opened, so that a cold start counts them and ModuleNotFoundError comes then.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from indexes.model import Floats

BATCH_TEXTS = (
    32  # of one run, where a library leaves the choice to its caller; also what sentence-transformers takes
)
REQUEST_TEXTS = 200  # of one bulk request to a service, and two at a time, as `nearline ingest` sends them
REQUESTS_AT_ONCE = 2


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Where the model is. Folders as text, because a setup travels to child processes as JSON.

    `model` is the exported int8 model, run by the service with `run_threads` threads a run and `runs_at_once`.
    `weights` has the same weights as sentence-transformers reads them, `plain` their fp32 graph beside the same files;
    where one is None, `missing` says why.
    """

    model: str
    scratch: str
    run_threads: int
    runs_at_once: int
    weights: str | None = None
    plain: str | None = None
    missing: str = ""

    def needs(self, folder: str | None) -> str:
        """`folder`, or ModuleNotFoundError with the reason why it is not there."""
        if folder is None:
            raise ModuleNotFoundError(self.missing)
        return folder


class Crowd(msgspec.Struct, frozen=True):
    """What clients that asked at the same time went through: milliseconds of each answer, and seconds for all."""

    milliseconds: list[float]
    seconds: float
    failed: int = 0
    first_failure: str = ""


class Engine(ABC):
    """One way to turn texts into unit vectors, float32 [texts, dimensions]."""

    what: str
    """Libraries with their versions, and how they are used: for readers of the report."""
    threads: str
    """How many threads compute, and who chose that. Known after `open`."""
    begun: float | None = None
    """time.monotonic() when the process that embeds was started, if that is not this one."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @property
    def pid(self) -> int:
        """The process that embeds, for whoever looks at its memory. Known after `open`."""
        return os.getpid()

    @abstractmethod
    async def open(self) -> None:
        """Get ready to embed."""

    @abstractmethod
    async def query(self, text: str) -> Floats:
        """Vector [dimensions] of one short text, as a user would ask for it."""

    @abstractmethod
    async def documents(self, texts: Sequence[str]) -> Floats:
        """Vectors of many texts, in order, as a user would ask for them."""

    async def documents_sorted(self, texts: Sequence[str]) -> Floats | None:
        """The same if the caller sorts by length first. None where the engine does so by itself."""
        return None

    @abstractmethod
    async def crowd(self, texts: Sequence[str], clients: int) -> Crowd:
        """Ask every text once: `clients` at the same time, each one text after the other."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of threads, sockets and processes. Called once, after `open`, also if that failed."""


class Served(Engine):
    """An engine that takes many callers by itself: its clients are tasks of the event loop."""

    async def crowd(self, texts: Sequence[str], clients: int) -> Crowd:
        book = _Book()

        async def client(own: Sequence[str]) -> None:
            for text in own:
                begun = time.perf_counter()
                try:
                    await self.query(text)
                except Exception as error:  # noqa: BLE001 - whatever a client meets is counted
                    book.failed(error)
                else:
                    book.took(begun)

        begun = time.perf_counter()
        await asyncio.gather(*(client(texts[number::clients]) for number in range(clients)))
        return book.closed(begun)


class Library(Engine):
    """An engine that is called as a function. Its clients are threads, as in a threaded server around it."""

    @abstractmethod
    def load(self) -> None: ...
    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Floats:
        """Vectors of the texts, in order, in runs of the library's choice. Called from many threads at once."""

    async def open(self) -> None:
        self.load()

    def ask(self, text: str) -> Floats:
        """Vector of one query. Called from many threads at once."""
        vector: Floats = self.embed([text])[0]
        return vector

    async def query(self, text: str) -> Floats:
        return self.ask(text)

    async def documents(self, texts: Sequence[str]) -> Floats:
        return self.embed(texts)

    async def crowd(self, texts: Sequence[str], clients: int) -> Crowd:
        book = _Book()

        def client(own: Sequence[str]) -> None:
            for text in own:
                begun = time.perf_counter()
                try:
                    self.ask(text)
                except Exception as error:  # noqa: BLE001 - whatever a client meets is counted
                    book.failed(error)
                else:
                    book.took(begun)

        with ThreadPoolExecutor(clients) as pool:
            begun = time.perf_counter()
            list(pool.map(client, [texts[number::clients] for number in range(clients)]))
            return book.closed(begun)

    async def close(self) -> None:
        pass


class _Book:
    """What the clients of a crowd write down. Appending to a list is safe from any thread."""

    def __init__(self) -> None:
        self._milliseconds: list[float] = []
        self._failures: list[Exception] = []

    def took(self, begun: float) -> None:
        self._milliseconds.append((time.perf_counter() - begun) * 1000)

    def failed(self, error: Exception) -> None:
        self._failures.append(error)

    def closed(self, begun: float) -> Crowd:
        """Raises the first failure if nothing else happened."""
        seconds = time.perf_counter() - begun
        if self._failures and not self._milliseconds:
            raise self._failures[0]
        first = str(self._failures[0]) if self._failures else ""
        return Crowd(self._milliseconds, seconds, len(self._failures), first)


async def in_requests(send: Callable[[list[str]], Awaitable[Floats]], texts: Sequence[str]) -> Floats:
    """Vectors of all texts, in order, asked for in requests of bounded size, a few at the same time."""
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def one(part: list[str]) -> Floats:
        async with slots:
            return await send(part)

    starts = range(0, len(texts), REQUEST_TEXTS)
    parts = await asyncio.gather(*(one(list(texts[at : at + REQUEST_TEXTS])) for at in starts))
    return np.concatenate(parts)


def in_order(vectors: Floats, order: Sequence[int]) -> Floats:
    """Rows of `vectors` put back: row i is that of the text at `order[i]`."""
    placed = np.empty_like(vectors)
    placed[list(order)] = vectors
    return placed


def service_threads(setup: Setup) -> str:
    return f"{setup.run_threads} a run, {setup.runs_at_once} runs at once, not spinning"


def shortest_first(texts: Sequence[str]) -> list[int]:
    """Positions of the texts by their number of characters, which is about their number of tokens."""
    return sorted(range(len(texts)), key=lambda at: len(texts[at]))
