"""Documents: write, read, list by page, count, change metadata, delete."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

import msgspec
from aiohttp import web
from msgspec import UNSET

from indexes.base.errors import InvalidInput, NotFound, TooLarge
from indexes.base.model import Delete, WriteResult
from indexes.collection.collection import Collection
from indexes.reading import scrolling
from indexes.reading.scrolling import Page, ScrolledDocument, VectorPassage
from retrieval.access.auth import PRINCIPAL
from retrieval.access.privacy import VECTOR_EXPORT, VectorExport, require_vectors
from retrieval.base.settings import Config
from retrieval.documents.metadata import date_of, expires_ms_of, metadata_of
from retrieval.documents.writing import delete_matching, patch_metadata, write_documents
from retrieval.handlers.state import CONFIG, EMBEDDERS, ENTRY, HELD, METRICS, TASKS
from retrieval.handlers.wire import answer, answer_from, body, collection_of, document_of, query_int
from retrieval.search.plan import filter_of
from retrieval.search.stopwatch import elapsed_ms
from retrieval.wire.decoding import decode_part, is_absent, no_metadata
from retrieval.wire.documents import (
    CountBody,
    CountDocuments,
    Deleted,
    DeleteDocuments,
    DocumentBody,
    PassageBody,
    PatchDocument,
    ScrollDocuments,
    WriteDocuments,
    Written,
)

CURSOR_MAX = 2**62
POSITION_BYTES, CHECK_BYTES = 8, 7  # the sum is a multiple of three, so base64 needs no padding
ESCAPED_BYTES = 12  # the most that one character takes in JSON


async def write(request: web.Request) -> web.Response:
    started = time.perf_counter()
    wanted = await body(request, WriteDocuments)
    name, collection = collection_of(request)
    app = request.app
    result = await write_documents(collection, app[EMBEDDERS], wanted.documents, app[CONFIG], request[ENTRY])
    app[TASKS].reindex_if_due(collection.name, collection)
    app[METRICS].written(name, result, time.perf_counter() - started)
    return answer(written_body(result, started))


async def show(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    vectors, document_id = wants_vectors(request), request.match_info["id"]
    held, export = request[HELD], request.app[VECTOR_EXPORT]

    def work() -> DocumentBody:
        found = document_of(collection, document_id, vectors=vectors)
        held.answer(len(found.document.text))
        return document_body(found, export)

    return await answer_from(work)


async def list_page(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    limits = request.app[CONFIG].limits
    limit = query_int(request, "limit", 100, least=1, most=limits.page_limit_max)
    cursor = query_int(request, "cursor", 0, least=0, most=CURSOR_MAX)
    vectors, export = wants_vectors(request), request.app[VECTOR_EXPORT]
    bytes_max = request[HELD].page(limits.answer_bytes_max)
    condition = PRINCIPAL.get().restrict(None)

    def work() -> dict[str, object]:
        page = scrolling.page(
            collection, cursor, limit, condition=condition, vectors=vectors, bytes_max=bytes_max
        )
        following = None if page.following is None else str(page.following)
        return {"documents": encode_page(page, export), "next_cursor": following}

    return await answer_from(work)


async def patch(request: web.Request) -> web.Response:
    started = time.perf_counter()
    wanted = await body(request, PatchDocument)
    name, collection = collection_of(request)
    app = request.app

    expires = (
        wanted.expires_at if wanted.expires_at is UNSET else expires_ms_of(wanted.expires_at, "expires_at")
    )
    if is_absent(wanted.metadata) and expires is UNSET:
        raise InvalidInput("expected metadata, expires_at, or both", param="metadata")
    sent = no_metadata() if is_absent(wanted.metadata) else wanted.metadata

    patch = await asyncio.to_thread(metadata_of, sent, "metadata", app[CONFIG])
    future = patch_metadata(collection, request.match_info["id"], patch, app[CONFIG], expires)
    result = replace(await asyncio.wrap_future(future), tokens=0)  # nothing was embedded
    app[TASKS].reindex_if_due(collection.name, collection)
    app[METRICS].written(name, result, time.perf_counter() - started)
    return answer(written_body(result, started))


def written_body(result: WriteResult, started: float) -> Written:
    return Written(
        seq=result.seq,
        documents=result.documents,
        unchanged=result.unchanged,
        passages=result.passages,
        tokens=result.tokens,
        took_ms=elapsed_ms(started),
    )


async def delete(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    document_id = request.match_info["id"]
    result = await remove(request.app, collection, [document_id])
    if not result.deleted:
        raise NotFound(f"no document {document_id!r}", param="id")
    return answer(Deleted(result.seq, result.deleted))


async def remove(app: web.Application, collection: Collection, ids: Iterable[str]) -> WriteResult:
    """Delete these documents, skipping ids that do not exist."""
    result = await asyncio.wrap_future(collection.write([Delete(one) for one in ids]))
    app[TASKS].reindex_if_due(collection.name, collection)
    return result


async def delete_many(request: web.Request) -> web.Response:
    wanted = await body(request, DeleteDocuments)
    _, collection = collection_of(request)
    condition = filter_of(wanted.filter, request.app[CONFIG])
    ids = await asyncio.to_thread(ids_of, wanted.ids, request.app[CONFIG])
    if (ids is None) == (condition is None):
        raise InvalidInput("expected either ids or filter", param="ids")
    if ids is not None:
        result = await remove(request.app, collection, ids)
    else:
        assert condition is not None
        result = await delete_matching(collection, condition)
        request.app[TASKS].reindex_if_due(collection.name, collection)
    return answer(Deleted(result.seq, result.deleted))


def ids_of(raw: msgspec.Raw, config: Config) -> list[str] | None:
    """Return the distinct ids of a delete request, or None if it has none. Raises TooLarge, before decoding far too
    many."""
    if is_absent(raw):
        return None
    limits = config.limits
    most = limits.documents_per_request_max
    if len(raw) <= most * (limits.id_chars_max + 4) * ESCAPED_BYTES:
        sent = decode_part(raw, list[str | int], "ids")
        if len(sent) <= most:
            ids = [str(one) for one in sent]
            if any(len(one) > limits.id_chars_max for one in ids):
                raise TooLarge(f"an id is longer than {limits.id_chars_max} characters", param="ids")
            return list(dict.fromkeys(ids))
    raise TooLarge(f"at most {most} ids in one request", param="ids")


# --- pages ----------------------------------------------------------------------------------------------------


async def scroll(request: web.Request) -> web.Response:
    wanted = await body(request, ScrollDocuments)
    _, collection = collection_of(request)
    config, export = request.app[CONFIG], request.app[VECTOR_EXPORT]
    if wanted.vectors:
        require_vectors()
    most = config.limits.page_limit_max
    if not 1 <= wanted.limit <= most:
        raise InvalidInput(f"limit must be from 1 to {most}, found {wanted.limit}", param="limit")
    after = 0 if wanted.cursor is None else decode_cursor(wanted.cursor, collection.uid)
    condition = filter_of(wanted.filter, config)
    bytes_max = request[HELD].page(config.limits.answer_bytes_max)

    def work() -> dict[str, object]:
        page = scrolling.page(
            collection,
            after,
            wanted.limit,
            condition=condition,
            text=wanted.text,
            vectors=wanted.vectors,
            bytes_max=bytes_max,
        )
        cursor = None if page.following is None else encode_cursor(page.following, collection.uid)
        return {"documents": encode_page(page, export, text=wanted.text), "cursor": cursor}

    return await answer_from(work)


async def count(request: web.Request) -> web.Response:
    wanted = await body(request, CountDocuments)
    _, collection = collection_of(request)
    condition = filter_of(wanted.filter, request.app[CONFIG])
    counted = await asyncio.to_thread(scrolling.count, collection, condition)
    return answer(CountBody(counted.documents, counted.passages, counted.seq))


def encode_page(page: Page, export: VectorExport, *, text: bool = True) -> list[msgspec.Raw]:
    """Encode each document of a page separately: encoding the page in one step would block every other thread."""
    return [msgspec.Raw(msgspec.json.encode(document_body(one, export, text=text))) for one in page.documents]


def document_body(found: ScrolledDocument, export: VectorExport, *, text: bool = True) -> DocumentBody:
    document, passages = found.document, found.passages
    return DocumentBody(
        id=document.id,
        seq=document.seq,
        text=document.text if text else msgspec.UNSET,
        title=document.title,
        metadata=document.metadata,
        passages=document.passages if passages is None else [passage_body(one, export) for one in passages],
        language=document.language,
        expires_at=UNSET if document.expires_ms is None else date_of(document.expires_ms),
    )


def passage_body(passage: VectorPassage, export: VectorExport) -> PassageBody:
    vector = export.of(passage.vector).tolist()
    return PassageBody(passage.ordinal, passage.start, passage.end, passage.tokens, vector)


def wants_vectors(request: web.Request) -> bool:
    """Whether the query string asks for vectors. Raises InvalidInput, and Forbidden for a caller who may not have
    them."""
    if wanted := query_flag(request, "vectors"):
        require_vectors()
    return wanted


def query_flag(request: web.Request, name: str) -> bool:
    """Return a flag from the query string, false if absent. Raises InvalidInput naming it."""
    text = request.query.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidInput(f"{name} must be true or false, found {text[:40]!r}", param=name)
    return text == "true"


# --- cursors: a position in the log, with a checksum against typos and cursors of other collections -----------


def encode_cursor(position: int, uid: str) -> str:
    raw = position.to_bytes(POSITION_BYTES, "big")
    return base64.urlsafe_b64encode(raw + check_of(raw, uid)).decode()


def decode_cursor(cursor: str, uid: str) -> int:
    """Return the position in a cursor. Raises InvalidInput for anything this collection did not issue as a cursor."""
    try:
        raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    position, check = raw[:POSITION_BYTES], raw[POSITION_BYTES:]
    if check != check_of(position, uid):
        raise InvalidInput("cursor was not issued by this collection", param="cursor")
    return int.from_bytes(position, "big")


def check_of(position: bytes, uid: str) -> bytes:
    return blake2b(position + uid.encode(), digest_size=CHECK_BYTES).digest()
