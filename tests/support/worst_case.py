"""A service in this process over a collection that makes every option of a search dear, and the CPU that requests take.

The collection has 30,000 passages and 150,000 different words, metadata with 60,000 values under one key, frequent
words in every passage, a few long documents, and long lists of dates in some. Its model is a tiny encoder: what a model
takes is not what is measured here.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, count, islice, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from aiohttp import web

from indexes.base.model import Metadata, NewPassage, Settings, Upsert
from indexes.collection.collection import Collection
from jobs.models.export.exporting import ExportOptions, export_model
from retrieval.base.settings import Config, ModelsSection, RerankSection
from retrieval.embedding.models import read_manifest
from retrieval.handlers.state import CATALOG
from retrieval.server.app import create_app
from tests.support.cpu import slowness
from tests.support.encoders import DIMENSIONS, write_bert, write_reranker

NAME = "docs"
PASSAGES, RARE_WORDS, RARE_WORDS_LONG = 30_000, 4, 20  # of each passage: 152,000 in all
FREQUENT = ["data", "time", "order", "service", "value", "result", "server", "request"]
LONG, LONG_PASSAGES = 20, 100
LISTS, LISTED = 300, 500  # documents with a long list in their metadata, and its dates
LETTERS = "abcdefghiklmnoprstuvwz"
QUIET_S = 0.25  # that a service is watched for, to see whether it does anything
PROBE_S, SLOWER_MAX = 0.05, 5.0
TRIES, PAUSE_S = 12, 0.1  # the second pause takes twice as long as the first, and so on
MUCH_S = 0.03  # of CPU time, from which on the speed of the machine counts


def rare_word(at: int) -> str:
    """A word that one passage has. They differ from each other by few letters, as typing errors do."""
    code, word = at * 7919 % (22**4), "abeg"[at % 4]
    for _ in range(4):
        code, place = divmod(code, 22)
        word += LETTERS[place]
    return word + "abcdefghij"[at % 10] + "tion"[: at % 5]


def document_id(number: int) -> str:
    """Of a short document: as long as they come, and much like the others."""
    return f"{number:06}" + "x" * 490


def texts(chance: random.Random) -> Iterator[tuple[str, list[str]]]:
    """The id of each document and the texts of its passages."""
    rare = map(rare_word, count())
    for number in range(PASSAGES - LONG * LONG_PASSAGES):
        words = [*chance.choices(FREQUENT, k=20), *islice(rare, RARE_WORDS)]
        chance.shuffle(words)
        yield document_id(number), [" ".join(words)]
    for number in range(LONG):
        passages = [
            " ".join([*islice(rare, RARE_WORDS_LONG), *chance.choices(FREQUENT, k=160)])
            for _ in range(LONG_PASSAGES)
        ]
        yield f"long{number}", passages


def documents() -> Iterator[Upsert]:
    chance, draw = random.Random(1), np.random.default_rng(1)
    for number, (name, passages) in enumerate(texts(chance)):
        vectors = draw.normal(size=(len(passages), DIMENSIONS)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        metadata: Metadata = {
            "serials": [f"s{2 * number + at}" for at in range(2)],
            "number": number,
            "day": f"{1900 + number % 100}-{1 + number % 12:02}-{1 + number % 28:02}",
            "lang": chance.choice(["en", "de", "fr"]),
        }
        if number < LISTS:
            days = draw.integers(0, 365 * 20, size=LISTED).astype("datetime64[D]").astype(str)
            metadata["days"] = days.tolist()
        starts = list(accumulate((len(one) + 1 for one in passages), initial=0))
        pieces = tuple(
            NewPassage(start, end - 1, 0, vector)
            for (start, end), vector in zip(pairwise(starts), vectors, strict=True)
        )
        yield Upsert(name, " ".join(passages), "", metadata, pieces)


def fill(collection: Collection) -> None:
    made = documents()
    while some := list(islice(made, 1000)):
        collection.write(some).result()
    collection.settle()


@dataclass(frozen=True)
class Request:
    """`body` is JSON, or what is sent as it is."""

    path: str
    body: Any
    method: str = "POST"

    @property
    def sent(self) -> bytes:
        return (
            self.body if isinstance(self.body, bytes) else json.dumps(self.body, ensure_ascii=False).encode()
        )


@dataclass(frozen=True)
class Service:
    url: str
    collection: Collection

    def ask(self, request: Request) -> tuple[float, int, Any]:
        """The CPU time of this process until the answer is there, as on the machine of `slowness` if it is much; its
        status, and the answer."""
        begun = time.process_time()
        connection = self._begun(request)
        reply = connection.getresponse()
        content = reply.read()
        spent = time.process_time() - begun
        connection.close()
        if spent > MUCH_S:
            spent /= slowness()
        return spent, reply.status, json.loads(content) if content.startswith((b"{", b"[")) else content

    def least_cpu_s(self, request: Request, enough: float) -> float:
        """The CPU time of a request. Other work on the machine makes it longer, never shorter, and for a while, so the
        least of twelve tries counts if the first is above `enough` and no cache answers the others."""
        again = b'"cache": false' in request.sent or request.path.endswith(("rerank", "explain"))
        least = float("inf")
        for tried in range(TRIES if again or request.method == "PATCH" else 1):
            time.sleep(PAUSE_S * tried)
            spent, status, answer = self.ask(request)
            assert status < 500, answer
            least = min(least, spent)
            if least <= enough:
                break
        return least

    def leave(self, requests: list[Request], after_s: float) -> None:
        """Send them all and be gone before the answers."""
        connections = [self._begun(one) for one in requests]
        time.sleep(after_s)
        for one in connections:
            one.close()

    def wait(self, seconds: float) -> None:
        """Wait as long as an idle machine would for this time: other programs may keep the cores busy."""
        begun, until = time.monotonic(), time.thread_time() + PROBE_S
        while time.thread_time() < until:
            pass
        time.sleep(seconds * min((time.monotonic() - begun) / PROBE_S, SLOWER_MAX))

    def quiet_cpu_s(self) -> float:
        """What the process takes in QUIET_S without a request."""
        begun = time.process_time()
        time.sleep(QUIET_S)
        return time.process_time() - begun

    def _begun(self, request: Request) -> http.client.HTTPConnection:
        at = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=60)
        kind = "multipart/form-data; boundary=edge" if request.path == "/v1/files" else "application/json"
        connection.request(request.method, request.path, request.sent, {"Content-Type": kind})
        return connection


@contextlib.contextmanager
def serving_worst_case(folder: Path, fill: Callable[[Collection], None] = fill) -> Iterator[Service]:
    models = folder / "models"
    for kind, write in {"encoder": write_bert, "reader": write_reranker}.items():
        export_model(
            str(write(folder / f"{kind}.source")),
            models / kind,
            name=kind,
            progress=lambda _: None,
            options=ExportOptions(only="fp32"),
        )
    config = Config(
        models=ModelsSection(folder=str(models), default="encoder"),
        rerank=RerankSection(model="reader"),
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[web.AppRunner, str]:
        runner = web.AppRunner(create_app(config, folder / "data"), handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    runner, url = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        app = runner.app
        manifest = read_manifest(models / "encoder")
        settings = Settings(
            dimensions=DIMENSIONS, fingerprint=manifest.fingerprint, model="encoder", hot_capacity=10_000
        )
        collection = app[CATALOG].create(NAME, settings)
        fill(collection)
        gc.collect()
        gc.freeze()  # as a service does once all is loaded: a collection would be charged to whoever asks then
        yield Service(url, collection)
    finally:
        gc.unfreeze()
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
