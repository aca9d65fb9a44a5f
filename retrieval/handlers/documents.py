"""Documents: write, read, list by page, count, change metadata, delete."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from hashlib import blake2b

import msgspec
from aiohttp import web
from msgspec import UNSET

from indexes.base.errors import InvalidInput, NotFound, TooLarge, Unavailable
from indexes.base.model import Delete, Upsert, WriteResult
from indexes.base.work import OnStep
from indexes.collection.collection import Collection
from indexes.filters.dates import date_of, expires_ms_of
from indexes.filters.grammar import Filter, Unchecked
from indexes.reading import choosing, scrolling
from indexes.reading.scrolling import ScrolledDocument, ScrolledPage, VectorPassage
from retrieval.access.auth import NODE, PRINCIPAL
from retrieval.access.privacy import VECTOR_EXPORT, VectorExport, require_vectors
from retrieval.base.cancellation import run_abandonable
from retrieval.base.settings import Config, Whole
from retrieval.documents.metadata import metadata_of
from retrieval.documents.writing import (
    delete_matching,
    naming_document,
    patcher,
    write_documents,
    write_in_parts,
)
from retrieval.handlers.state import CONFIG, EMBEDDERS, ENTRY, HELD, METRICS, TASKS
from retrieval.handlers.wire import (
    answer,
    answer_from,
    body,
    collection_of,
    document_of,
    json_answer,
    query_int,
)
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
    PatchDocuments,
    Patched,
    ScrollDocuments,
    WriteDocuments,
    Written,
)

CHANGED_TOGETHER = 64  # passages in one commit of a patch: each is indexed again, in each process
# Of requests between nodes: the keys of a filter need not exist; the operation that the answer must know of.
UNCHECKED, LEAST = "unchecked", "least"
BEHIND_RETRY_S = 1.0
SEQ_MAX = 2**63 - 1
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
    least, seq = query_int(request, LEAST, 0, least=0, most=SEQ_MAX), collection.snapshot.seq
    if seq < least:
        why = f"{collection.name} is at seq {seq}, and a write was acknowledged with {least}"
        raise Unavailable(why, retry_after_s=BEHIND_RETRY_S)

    def work() -> DocumentBody:
        found = document_of(collection, document_id, vectors=vectors)
        held.answer(len(found.document.text))
        return document_body(found, export)

    return await answer_from(work)


async def list_page(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    limits = request.app[CONFIG].limits
    limit = query_int(request, "limit", 100, least=1, most=limits.page_limit_max)
    cursor = request.query.get("cursor", "0")
    after = 0 if cursor == "0" else decode_cursor(cursor, collection.uid)
    vectors, export = wants_vectors(request), request.app[VECTOR_EXPORT]
    bytes_max = request[HELD].page(limits.answer_bytes_max)
    condition = PRINCIPAL.get().restrict(None)

    def work() -> dict[str, object]:
        page = scrolling.page(
            collection, after, limit, condition=condition, vectors=vectors, bytes_max=bytes_max
        )
        following = None if page.following is None else encode_cursor(page.following, collection.uid)
        return {"documents": encode_page(page, export), "next_cursor": following}

    return await answer_from(work)


async def patch(request: web.Request) -> web.Response:
    started = time.perf_counter()
    wanted = await body(request, PatchDocument)
    name, collection = collection_of(request)
    change = await change_of(wanted, request.app[CONFIG])
    result = await asyncio.wrap_future(collection.change(request.match_info["id"], change))
    result = replace(result, unchanged=1 - result.documents)
    return answer(written_body(note_patched(request.app, name, collection, result, started), started))


async def patch_many(request: web.Request) -> web.Response:
    started = time.perf_counter()
    wanted = await body(request, PatchDocuments)
    name, collection = collection_of(request)
    change = naming_document(await change_of(wanted, request.app[CONFIG]))
    chosen = await chosen_by(request, wanted)
    if isinstance(chosen, list):
        documents, condition = await asyncio.to_thread(choosing.named, collection, chosen), None
    else:
        documents = await run_abandonable(partial(choosing.matching, collection, chosen))
        condition = chosen
    write = partial(collection.change_among, condition=condition, change=change)
    result = await write_in_parts(collection, documents, write, "changed", CHANGED_TOGETHER)
    note_patched(request.app, name, collection, result, started)
    return answer(Patched(result.seq, result.documents))


async def change_of(wanted: PatchDocument | PatchDocuments, config: Config) -> Callable[[Upsert], Upsert]:
    """Return what a patch does to a document. Raises InvalidInput for one that says nothing."""
    expires = (
        wanted.expires_at if wanted.expires_at is UNSET else expires_ms_of(wanted.expires_at, "expires_at")
    )
    if is_absent(wanted.metadata) and expires is UNSET:
        raise InvalidInput("expected metadata, expires_at, or both", param="metadata")
    sent = no_metadata() if is_absent(wanted.metadata) else wanted.metadata
    return patcher(await asyncio.to_thread(metadata_of, sent, "metadata", config), config, expires)


def note_patched(
    app: web.Application, name: str, collection: Collection, result: WriteResult, started: float
) -> WriteResult:
    """Count what was written, and return it without tokens: nothing was embedded."""
    result = replace(result, tokens=0)
    app[TASKS].reindex_if_due(collection.name, collection)
    app[METRICS].written(name, result, time.perf_counter() - started)
    return result


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
    """Delete these documents, skipping ids that do not exist. Expired ones are deleted too, but not counted: to
    callers, they are gone."""
    result = await asyncio.wrap_future(collection.write([Delete(one) for one in ids]))
    app[TASKS].reindex_if_due(collection.name, collection)
    return replace(result, deleted=result.deleted - result.expired)


async def delete_many(request: web.Request) -> web.Response:
    wanted = await body(request, DeleteDocuments)
    _, collection = collection_of(request)
    chosen = await chosen_by(request, wanted)
    if isinstance(chosen, list):
        result = await remove(request.app, collection, chosen)
    else:
        result = await delete_matching(collection, chosen)
        request.app[TASKS].reindex_if_due(collection.name, collection)
    return answer(Deleted(result.seq, result.deleted))


async def chosen_by(request: web.Request, wanted: DeleteDocuments | PatchDocuments) -> list[str] | Filter:
    """Return the ids, or the filter, that choose documents; another node may say that its keys need not exist. Raises
    InvalidInput unless there is one of both."""
    config = request.app[CONFIG]
    condition = filter_of(wanted.filter, config)
    if condition is not None and PRINCIPAL.get() is NODE and UNCHECKED in request.query:
        condition = Unchecked(condition)
    ids = await asyncio.to_thread(ids_of, wanted.ids, config)
    if (chosen := condition if ids is None else ids) is None or (ids is not None and condition is not None):
        raise InvalidInput("expected either ids or filter", param="ids")
    return chosen


def ids_of(raw: msgspec.Raw, config: Config) -> list[str] | None:
    """Return the distinct ids of a request, or None if it has none. Raises TooLarge, before decoding far too
    many."""
    if is_absent(raw):
        return None
    limits = config.limits
    most = limits.documents_per_request_max
    if len(raw) <= most * (limits.id_chars_max + 4) * ESCAPED_BYTES:
        sent = decode_part(raw, list[str | Whole], "ids")
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
    limit = min(wanted.limit, config.limits.page_limit_max)
    after = 0 if wanted.cursor is None else decode_cursor(wanted.cursor, collection.uid)
    condition = filter_of(wanted.filter, config)
    bytes_max = request[HELD].page(config.limits.answer_bytes_max)

    def work(on_step: OnStep) -> bytes:
        page = scrolling.page(
            collection,
            after,
            limit,
            condition=condition,
            text=wanted.text,
            vectors=wanted.vectors,
            bytes_max=bytes_max,
            on_step=on_step,
        )
        cursor = None if page.following is None else encode_cursor(page.following, collection.uid)
        return msgspec.json.encode(
            {"documents": encode_page(page, export, text=wanted.text), "cursor": cursor}
        )

    return json_answer(await run_abandonable(work))


async def count(request: web.Request) -> web.Response:
    wanted = await body(request, CountDocuments)
    _, collection = collection_of(request)
    condition = filter_of(wanted.filter, request.app[CONFIG])
    counted = await run_abandonable(partial(scrolling.count, collection, condition))
    return answer(CountBody(counted.documents, counted.passages, counted.seq))


def encode_page(page: ScrolledPage, export: VectorExport, *, text: bool = True) -> list[msgspec.Raw]:
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
