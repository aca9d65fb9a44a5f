"""A service in this process over a collection that makes every option of a search dear, and the CPU that requests take.

The collection has 30,000 passages and 150,000 different words, metadata with 60,000 values under one key, frequent
words in every passage, and a few long documents. Its model is a tiny encoder: what a model takes is not what is
measured here.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from itertools import accumulate, islice, pairwise
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from aiohttp import web

from indexes.collection import Collection
from indexes.model import NewPassage, Settings, Upsert
from jobs.export.exporting import Options, export_model
from retrieval.app import create_app
from retrieval.embedding.models import read_manifest
from retrieval.keys import CATALOG
from retrieval.settings import Config, Models, Rerank
from tests.support.encoders import DIMENSIONS, write_bert, write_reranker

NAME = "docs"
PASSAGES, RARE_WORDS = 30_000, 5  # of each passage: 150,000 in all
FREQUENT = ["data", "time", "order", "service", "value", "result", "server", "request"]
LONG, LONG_PASSAGES = 20, 100
LETTERS = "abcdefghiklmnoprstuvwz"
QUIET_S, QUIET_CPU_S = 0.2, 0.004


def rare_words(number: int) -> list[str]:
    """Words that no other passage has. They differ from each other by few letters, as typing errors do."""
    words = []
    for at in range(number * RARE_WORDS, (number + 1) * RARE_WORDS):
        code, word = at * 7919 % (22**4), "abeg"[at % 4]
        for _ in range(4):
            code, place = divmod(code, 22)
            word += LETTERS[place]
        words.append(word + "abcdefghij"[at % 10] + "tion"[: at % 5])
    return words


def texts(chance: random.Random) -> Iterator[tuple[str, list[str]]]:
    """The id of each document and the texts of its passages."""
    for number in range(PASSAGES - LONG * LONG_PASSAGES):
        words = [*chance.choices(FREQUENT, k=20), *rare_words(number)]
        chance.shuffle(words)
        yield f"{number:06}" + "x" * 490, [" ".join(words)]
    for number in range(LONG):
        first = PASSAGES - (LONG - number) * LONG_PASSAGES
        yield f"long{number}", [
            " ".join([*rare_words(first + at), *chance.choices(FREQUENT, k=160)]) for at in range(LONG_PASSAGES)
        ]


def documents() -> Iterator[Upsert]:
    chance, draw = random.Random(1), np.random.default_rng(1)
    for number, (name, passages) in enumerate(texts(chance)):
        vectors = draw.normal(size=(len(passages), DIMENSIONS)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        metadata = {
            "serials": [f"s{2 * number + at}" for at in range(2)],
            "number": number,
            "day": f"{1900 + number % 100}-{1 + number % 12:02}-{1 + number % 28:02}",
            "lang": chance.choice(["en", "de", "fr"]),
        }
        starts = list(accumulate((len(one) + 1 for one in passages), initial=0))
        pieces = tuple(
            NewPassage(start, end - 1, 25, vector)
            for (start, end), vector in zip(pairwise(starts), vectors, strict=True)
        )
        yield Upsert(name, " ".join(passages), "", metadata, pieces)


def fill(collection: Collection) -> None:
    made = documents()
    while some := list(islice(made, 1000)):
        collection.write(some).result()
    collection.settle()


@dataclass
class Service:
    url: str
    app: web.Application

    def send(self, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
        at = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=60)
        try:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()


@contextlib.contextmanager
def serving_worst_case(folder: Path) -> Iterator[Service]:
    models = folder / "models"
    for kind, write in {"encoder": write_bert, "reader": write_reranker}.items():
        export_model(
            str(write(folder / f"{kind}.source")),
            models / kind,
            name=kind,
            progress=lambda _: None,
            options=Options(only="fp32"),
        )
    config = Config(
        models=Models(folder=str(models), default="encoder"),
        rerank=Rerank(model="reader"),
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[web.AppRunner, str]:
        runner = web.AppRunner(create_app(config, folder / "data"))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    runner, url = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        app = runner.app
        manifest = read_manifest(models / "encoder")
        settings = Settings(dimensions=DIMENSIONS, fingerprint=manifest.fingerprint, model="encoder", hot_capacity=10_000)
        fill(app[CATALOG].create(NAME, settings))
        yield Service(url, app)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
