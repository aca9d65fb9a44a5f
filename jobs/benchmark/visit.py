"""Asks a running service from closed-loop clients beside a writer, and checks what its caches answered."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Self

import msgspec

from jobs.benchmark.callers import Callers, post
from jobs.benchmark.service import DOCUMENTS, K, search_request, write_request

Took = dict[str, list[float]]  # milliseconds by outcome

PATIENCE_S = 30.0
CHECKED = 100  # with writes, one hit in this many is repeated without caches
OUTCOME = re.compile(rb'"cache":"(\w+)"')
NEAR, FAR = "in process", "Redis"


def writes_of(texts: Sequence[str], documents: int) -> Iterator[bytes]:
    """Write requests: of every ten, five add a document, four replace one of `documents`, and one deletes one."""
    rng = random.Random(0)
    for number, text in enumerate(itertools.cycle(texts)):
        row = str(rng.randrange(documents))
        if number % 10 == 9:
            yield post(f"{DOCUMENTS}/delete", msgspec.json.encode({"ids": [row]}))
        else:
            yield write_request(row if number % 2 else f"new-{number}", text)


class Visit:
    """Asks a service from closed-loop clients. Use as a context manager: the writer runs within it.

    `found` and `written` count since `begin`.
    """

    def __init__(
        self,
        url: str,
        *,
        cache: bool,
        writes: Iterator[bytes] | None = None,
        writes_s: float = 1,
        elsewhere: AbstractSet[str] = frozenset(),
    ) -> None:
        """Send `writes`, if there are any, beside the searches, `writes_s` a second, and check the hits. `elsewhere`:
        questions that another process has answered, which shares its cache."""
        self._cache, self._writes, self._writes_s = cache, writes, writes_s
        self._callers = Callers(url, itertools.repeat(b""), patience_s=PATIENCE_S)
        self._hits = itertools.count(1)
        self._elsewhere, self.answered = elsewhere, set[str]()
        self.begin()

    def begin(self) -> None:
        self.found = Counter({"errors": 0, "checked": 0, "stale": 0})
        self.written = 0

    async def __aenter__(self) -> Self:
        self._leaving = False
        self._writer = asyncio.create_task(self._write(self._writes)) if self._writes else None
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving = True
        if self._writer:
            await self._writer
        self._callers.close()

    async def ask(self, texts: Sequence[str], clients: int, k: int = K) -> Took:
        asked, took = iter(texts), defaultdict[str, list[float]](list)

        async def client() -> None:
            for text in asked:
                await self._ask(text, k, took)

        await asyncio.gather(*(client() for _ in range(clients)))
        return dict(took)

    async def _ask(self, text: str, k: int, took: Took) -> None:
        here, there = text in self.answered, text in self._elsewhere
        request, begun = search_request(text, k=k, cache=self._cache), time.perf_counter()
        reply = await self._callers.ask(request)
        took_ms = (time.perf_counter() - begun) * 1000
        # The last match is the receipt's: it follows the hits, whose texts may contain anything.
        named = OUTCOME.findall(reply.body)
        if reply.status != 200 or not named:
            self.found["errors"] += 1
            return
        outcome = named[-1].decode()
        if outcome == "hit":
            outcome += f", {NEAR}" if here else f", {FAR}" if there else ", not asked before"
        elif outcome == "miss":
            outcome += ", embedding hit" if here else ", asked elsewhere" if there else ""
        took[outcome].append(took_ms)
        self.answered.add(text)
        if self._writes and outcome.startswith("hit") and next(self._hits) % CHECKED == 0:
            await self._check(text, reply.body)

    async def _check(self, text: str, body: bytes) -> None:
        """Compare a cached answer with a fresh search."""
        reply = await self._callers.ask(search_request(text, k=K, cache=False))
        if reply.status != 200:
            self.found["errors"] += 1
            return
        kept, fresh = (msgspec.json.decode(one) for one in (body, reply.body))
        if kept["receipt"]["seq"] == fresh["receipt"]["seq"]:
            self.found["checked"] += 1
            self.found["stale"] += passages(kept) != passages(fresh)

    async def _write(self, writes: Iterator[bytes]) -> None:
        """Send each write when it is due, whether or not earlier ones were answered."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not self._leaving:
                group.create_task(self._written(next(writes)))
                due += 1 / self._writes_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _written(self, request: bytes) -> None:
        status = (await self._callers.ask(request)).status
        self.written += status == 200
        self.found["errors"] += status != 200


def passages(answer: Any) -> list[tuple[str, int]]:
    return [(hit["document_id"], hit["passage"]) for hit in answer["hits"]]
