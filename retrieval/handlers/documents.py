"""Documents: write, read, list, change their metadata, delete."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import msgspec
from aiohttp import web

from indexes import scrolling
from indexes.errors import InvalidInput, NotFound, TooLarge
from indexes.model import Delete, WriteResult
from retrieval.decoding import decode_part
from retrieval.handlers.scrolling import document_body, encoded, query_flag
from retrieval.handlers.wire import answer, answer_from, body, collection_of, query_int
from retrieval.keys import CONFIG, EMBEDDERS, HELD, METRICS, TASKS
from retrieval.metadata import Patch, metadata_of
from retrieval.pipeline import elapsed_ms
from retrieval.plan import filter_of
from retrieval.raw_json import is_absent
from retrieval.schemas import Deleted, DeleteDocuments, DocumentBody, PatchDocument, WriteDocuments, Written
from retrieval.settings import Config
from retrieval.writing import delete_matching, patch_metadata, write_documents

CURSOR_MAX = 2**62
ESCAPED_BYTES = 12  # of one character in JSON, at most


async def write(request: web.Request) -> web.Response:
    started = time.perf_counter()
    wanted = await body(request, WriteDocuments)
    name, collection = collection_of(request)
    app = request.app
    result = await write_documents(collection, app[EMBEDDERS], wanted.documents, app[CONFIG])
    app[TASKS].reindex_if_due(collection.name, collection)
    app[METRICS].written(name, result, time.perf_counter() - started)
    return answer(written(result, started))


async def shown(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    vectors, document_id = query_flag(request, "vectors"), request.match_info["id"]
    held = request[HELD]

    def work() -> DocumentBody:
        found = scrolling.document(collection, document_id, vectors=vectors)
        held.answer(len(found.document.text))
        return document_body(found)

    return await answer_from(work)


async def listed(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    limits = request.app[CONFIG].limits
    limit = query_int(request, "limit", 100, least=1, most=limits.page_limit_max)
    cursor = query_int(request, "cursor", 0, least=0, most=CURSOR_MAX)
    vectors = query_flag(request, "vectors")
    bytes_max = request[HELD].page(limits.answer_bytes_max)

    def work() -> dict[str, object]:
        page = scrolling.page(collection, cursor, limit, vectors=vectors, bytes_max=bytes_max)
        following = None if page.following is None else str(page.following)
        return {"documents": encoded(page), "next_cursor": following}

    return await answer_from(work)


async def patched(request: web.Request) -> web.Response:
    started = time.perf_counter()
    wanted = await body(request, PatchDocument)
    name, collection = collection_of(request)
    app = request.app

    def work() -> Patch:
        return Patch.of(metadata_of(wanted.metadata, "metadata", app[CONFIG]), "metadata")

    patch = await asyncio.to_thread(work)
    future = patch_metadata(collection, request.match_info["id"], patch, app[CONFIG])
    result = replace(await asyncio.wrap_future(future), tokens=0)  # none was embedded
    app[TASKS].reindex_if_due(collection.name, collection)
    app[METRICS].written(name, result, time.perf_counter() - started)
    return answer(written(result, started))


def written(result: WriteResult, started: float) -> Written:
    return Written(
        seq=result.seq,
        documents=result.documents,
        unchanged=result.unchanged,
        passages=result.passages,
        tokens=result.tokens,
        took_ms=elapsed_ms(started),
    )


async def deleted(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    document_id = request.match_info["id"]
    result = await asyncio.wrap_future(collection.write([Delete(document_id)]))
    if not result.deleted:
        raise NotFound(f"no document {document_id!r}", param="id")
    request.app[TASKS].reindex_if_due(collection.name, collection)
    return answer(Deleted(result.seq, result.deleted))


async def delete_many(request: web.Request) -> web.Response:
    wanted = await body(request, DeleteDocuments)
    _, collection = collection_of(request)
    condition = filter_of(wanted.filter, request.app[CONFIG])
    ids = ids_of(wanted.ids, request.app[CONFIG])
    if (ids is None) == (condition is None):
        raise InvalidInput("expected either ids or filter", param="ids")
    if ids is not None:
        result = await asyncio.wrap_future(collection.write([Delete(one) for one in ids]))
    else:
        assert condition is not None
        result = await delete_matching(collection, condition)
    request.app[TASKS].reindex_if_due(collection.name, collection)
    return answer(Deleted(result.seq, result.deleted))


def ids_of(raw: msgspec.Raw, config: Config) -> list[str] | None:
    """The ids of a request to delete, each once; None for none. Raises TooLarge, before decoding far too many."""
    if is_absent(raw):
        return None
    limits = config.limits
    most = limits.documents_per_request_max
    if len(raw) <= most * (limits.id_chars_max + 4) * ESCAPED_BYTES:
        ids = [str(one) for one in decode_part(raw, list[str | int], "ids")]
        if any(len(one) > limits.id_chars_max for one in ids):
            raise TooLarge(f"an id is longer than {limits.id_chars_max} characters", param="ids")
        if len(ids) <= most:
            return list(dict.fromkeys(ids))
    raise TooLarge(f"at most {most} ids in one request", param="ids")
