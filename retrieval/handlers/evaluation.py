"""The last evaluation of a collection, as `nearline evaluate --publish` sends it, for the page at `/ui`.

    data/<collection>/evaluation.json      mode 0600
        {"received_ms": 1772323200000, "report": {...}}

A report contains metadata values in its filters, so callers that see only some documents may not read it, `nearline
erase` deletes it, and backups leave it out.
"""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import Any

import msgspec
from aiohttp import web

from indexes.base.durable import disk_errors, publish, remove
from indexes.base.errors import NotFound, TooLarge
from indexes.base.model import now_ms
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.handlers.state import CATALOG
from retrieval.handlers.wire import answer, body, collection_of, json_answer
from retrieval.wire.decoding import decode_part
from retrieval.wire.evaluation import EvaluationBody, KeepEvaluation

FILE = "evaluation.json"
MODE = 0o600
BYTES_MAX = 1 << 20  # a report of 100 cohorts takes 30 KB

_changing = Lock()  # one for all collections: reports are rare, and two must not write one draft file


async def keep(request: web.Request) -> web.Response:
    wanted = await body(request, KeepEvaluation)
    name, collection = collection_of(request)
    if len(wanted.report) > BYTES_MAX:
        words = f"report has {len(wanted.report)} bytes, at most {BYTES_MAX} are allowed"
        raise TooLarge(words, param="report")
    await asyncio.to_thread(decode_part, wanted.report, dict[str, Any], "report")
    kept = EvaluationBody(now_ms(), wanted.report)

    def work() -> None:
        with _changing:
            if request.app[CATALOG].collections.get(collection.name) is not collection:
                raise NotFound(f"no collection {name!r}", param="collection")  # deleted or renamed since
            publish(collection.folder / FILE, msgspec.json.encode(kept), MODE)

    await asyncio.to_thread(work)
    return answer(kept)


async def show(request: web.Request) -> web.Response:
    """Return the last report. Raises NotFound if none was sent."""
    PRINCIPAL.get().require_whole()
    name, collection = collection_of(request)
    content = await asyncio.to_thread(read, collection)
    if content is None:
        raise no_evaluation(name)
    return json_answer(content)


def no_evaluation(name: str) -> NotFound:
    return NotFound(
        f"no evaluation of {name!r} was sent; send one with `nearline evaluate -c {name} --publish`"
    )


def read(collection: Collection) -> bytes | None:
    path = collection.folder / FILE
    with disk_errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def forget(collection: Collection) -> None:
    """Delete the report durably. Idempotent."""
    with _changing:
        remove(collection.folder / FILE)
