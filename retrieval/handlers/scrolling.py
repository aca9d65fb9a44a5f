"""Documents page by page in the order they were written, with their vectors if asked for, and how many there are."""

from __future__ import annotations

import asyncio
import base64
import binascii
from hashlib import blake2b

import msgspec
from aiohttp import web

from indexes import scrolling
from indexes.errors import InvalidInput
from indexes.scrolling import Page, ScrolledDocument, VectorPassage
from retrieval.handlers.wire import answer, answer_from, body, collection_of
from retrieval.keys import CONFIG, HELD
from retrieval.plan import filter_of
from retrieval.schemas import CountBody, CountDocuments, DocumentBody, PassageBody, ScrollDocuments

POSITION_BYTES, CHECK_BYTES = 8, 7  # together a multiple of three, so that the cursor needs no padding


async def scroll(request: web.Request) -> web.Response:
    wanted = await body(request, ScrollDocuments)
    _, collection = collection_of(request)
    config = request.app[CONFIG]
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
        return {"documents": encoded(page, text=wanted.text), "cursor": cursor}

    return await answer_from(work)


async def count(request: web.Request) -> web.Response:
    wanted = await body(request, CountDocuments)
    _, collection = collection_of(request)
    condition = filter_of(wanted.filter, request.app[CONFIG])
    counted = await asyncio.to_thread(scrolling.count, collection, condition)
    return answer(CountBody(counted.documents, counted.passages, counted.seq))


def encoded(page: Page, *, text: bool = True) -> list[msgspec.Raw]:
    """Each document's JSON by itself: encoding a whole page in one step would hold up every other thread."""
    return [msgspec.Raw(msgspec.json.encode(document_body(one, text=text))) for one in page.documents]


def document_body(found: ScrolledDocument, *, text: bool = True) -> DocumentBody:
    document, passages = found.document, found.passages
    return DocumentBody(
        id=document.id,
        seq=document.seq,
        text=document.text if text else msgspec.UNSET,
        title=document.title,
        metadata=document.metadata,
        passages=document.passages if passages is None else [passage_body(one) for one in passages],
    )


def passage_body(passage: VectorPassage) -> PassageBody:
    return PassageBody(passage.ordinal, passage.start, passage.end, passage.tokens, passage.vector.tolist())


def query_flag(request: web.Request, name: str) -> bool:
    """`true` or `false` from the query string; absent is false. Raises InvalidInput naming it."""
    text = request.query.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidInput(f"{name} must be true or false, found {text[:40]!r}", param=name)
    return text == "true"


# --- cursors: a position in the log, and a check against typing errors and other collections' cursors ---------


def encode_cursor(position: int, uid: str) -> str:
    raw = position.to_bytes(POSITION_BYTES, "big")
    return base64.urlsafe_b64encode(raw + check_of(raw, uid)).decode()


def decode_cursor(cursor: str, uid: str) -> int:
    """Raises InvalidInput for anything that this collection has not given out as a cursor."""
    try:
        raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    position, check = raw[:POSITION_BYTES], raw[POSITION_BYTES:]
    if check != check_of(position, uid):
        raise InvalidInput("cursor is not one that this collection has given out", param="cursor")
    return int.from_bytes(position, "big")


def check_of(position: bytes, uid: str) -> bytes:
    return blake2b(position + uid.encode(), digest_size=CHECK_BYTES).digest()
