"""Helpers that all handlers share: read a body, check who asks, write an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import MultiMapping

from indexes.base.errors import InvalidInput, NearlineError, NotFound, TooLarge
from indexes.collection.collection import Collection
from indexes.directory.catalog import tenant_of
from indexes.reading import scrolling
from indexes.reading.scrolling import ScrolledDocument
from indexes.store.uploading import Uploader
from retrieval.access.auth import PRINCIPAL
from retrieval.handlers.browsers import FORM
from retrieval.handlers.state import (
    BODY,
    CATALOG,
    CONFIG,
    EMBEDDERS,
    FOLDERS,
    FREQUENT,
    HELD,
    LIMITER,
    METRICS,
    QUERY_LOG,
    STORE,
    TASKS,
    USED,
)
from retrieval.wire.collections import (
    CollectionBody,
    FieldWeightsBody,
    RankingBody,
    RequestLimits,
    StoreState,
)
from retrieval.wire.decoding import INLINE_BYTES, decode, shorten
from retrieval.wire.errors import MalformedRequest, without_folders
from retrieval.wire.search import SearchAnswer, SearchRequest

T = TypeVar("T")

DIGITS_MAX = 19  # of a 64-bit integer


async def body(request: web.Request, kind: type[T]) -> T:
    """Decode the request's JSON body; an empty body counts as an empty object."""
    sent = request.get(BODY) or await request.read() or b"{}"
    if len(sent) <= INLINE_BYTES:
        return decode(sent, kind)
    async with request[HELD].decoding(sent):
        return await asyncio.to_thread(decode, sent, kind)


async def form(request: web.Request) -> Mapping[str, Any]:
    """Return the parts of a form; aiohttp spools large ones to disk. Raises MalformedRequest, TooLarge, and, for a part
    that is given twice, InvalidInput."""
    try:
        if request.content_type == FORM and not request.content.at_eof():
            await _require_boundary(request.content)
        parts = await request.post()
    except web.HTTPRequestEntityTooLarge as error:
        raise TooLarge(f"the form is too large: {error.text}", param="body") from None
    except (ValueError, LookupError, RuntimeError) as error:  # from the boundary, a charset or an encoding
        raise MalformedRequest(f"the body is not a valid form: {error}") from None
    except HttpProcessingError as error:  # from a part's headers
        raise MalformedRequest(f"the body is not a valid form: {error.message}") from None
    return require_once(parts, "the form")


def require_once(given: MultiMapping[T], where: str) -> MultiMapping[T]:
    """Raises InvalidInput naming what is given more than once."""
    for name in given if len(given) > len(set(given)) else ():
        if len(given.getall(name)) > 1:
            shown = shorten(name)
            raise InvalidInput(f"{shown} is given more than once in {where}", param=shown)
    return given


async def _require_boundary(content: StreamReader) -> None:
    """Raises ValueError for a form that begins with anything else, which aiohttp would read line by line until its
    end, holding the event loop."""
    first = await content.readline()
    if not first.startswith(b"--"):
        raise ValueError("it does not begin with its boundary")
    content.unread_data(first)


def in_callers_words(app: web.Application, error: NearlineError) -> NearlineError:
    """Replace names in the error by those the caller knows, and remove paths, which belong in the log only. An error
    about another field quotes the caller's own text, and keeps it."""
    folders = app[FOLDERS]
    error.message = without_folders(error.message, folders)
    if error.param in {None, "collection", "name", "alias"}:
        error.message = PRINCIPAL.get().hide_tenant(error.message)
    return error


def note_search(
    app: web.Application, collection: Collection, asked: SearchRequest, found: SearchAnswer
) -> None:
    """Count an answered search in the metrics, the query log, and the frequent queries."""
    app[METRICS].search([found.receipt], found.timings_ms)
    app[QUERY_LOG].note(collection, asked)
    app[FREQUENT].note(collection, asked)


async def charge(app: web.Application, searches: int) -> None:
    """Charge a request's searches beyond the first to the limits of its key. Raises RateLimited, or TooLarge for more
    than the key may ever send in a day."""
    caller = PRINCIPAL.get()
    most = caller.limits.per_day if caller.limits else None
    if most is not None and searches > most:
        raise TooLarge(f"one request has {searches} searches, and this key may send {most} requests a day")
    if searches > 1:
        await app[LIMITER].take(caller.key, caller.limits, searches - 1, forced=True)


def answer(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return json_answer(msgspec.json.encode(value), headers, status=status)


async def answer_from(work: Callable[[], object], *, status: int = 200) -> web.Response:
    """Run `work` and encode what it returns, both on a thread."""
    return json_answer(await asyncio.to_thread(lambda: msgspec.json.encode(work())), status=status)


def json_answer(content: bytes, headers: dict[str, str] | None = None, *, status: int = 200) -> web.Response:
    """Return a response with content that is JSON already."""
    return web.Response(body=content, status=status, content_type="application/json", headers=headers)


def timing_headers(stages_ms: Mapping[str, float], embed_ms: float) -> dict[str, str]:
    """Return headers with the time each stage took, in the form browsers show, and the time embedding took."""
    stages = ", ".join(f"{name};dur={ms:.3f}" for name, ms in stages_ms.items())
    return {"Server-Timing": stages, "X-Embed-Latency": f"{embed_ms:.3f}"}


def collection_of(request: web.Request) -> tuple[str, Collection]:
    """Return the collection name in the path, as the client wrote it, and the collection it currently refers to.

    Raises NotFound, also for a collection that the client may not see. An alias may move, so resolve it once per
    request and use that collection, and its own name, throughout.
    """
    name = request.match_info["collection"]
    return name, named_collection(request, name)


def named_collection(request: web.Request, name: str) -> Collection:
    """Return the collection of this name or alias, and record that it is used. Raises as `collection_of` does."""
    collection = PRINCIPAL.get().collection(request.app[CATALOG], name)
    if request.method != "GET":
        request.app[USED][collection.name] = time.time()
    return collection


def document_of(collection: Collection, document_id: str, *, vectors: bool = False) -> ScrolledDocument:
    """Read a document from the log; run it on a thread. Raises NotFound, also for one that the caller may not see."""
    found = scrolling.document(collection, document_id, vectors=vectors)
    if not PRINCIPAL.get().may_read(found.document.metadata):
        raise NotFound(f"no document {document_id!r}", param="id")
    return found


def query_int(request: web.Request, name: str, default: int, *, least: int, most: int) -> int:
    """Return an integer from the query string. Raises InvalidInput naming it."""
    text = request.query.get(name)
    if text is None:
        return min(default, most)
    short = len(text) <= DIGITS_MAX and text.isascii() and text.isdigit()
    if not short or not least <= int(text) <= most:
        raise InvalidInput(
            f"{name} must be a whole number from {least} to {most}, found {text[:40]!r}", param=name
        )
    return int(text)


def store_state(app: web.Application, collection: Collection) -> StoreState | None:
    if (store := app[STORE]) is None:
        return None
    return StoreState(**asdict(store.state_of(collection)))


async def names_stored(app: web.Application) -> None:
    """Wait until the store has a change of collections or aliases, if it must. Raises Unavailable; the change is made
    here then, and may come to be in the store."""
    if isinstance(store := app[STORE], Uploader) and store.options.acknowledge == "bucket":
        await asyncio.wrap_future(store.directory_changed())


async def settings_stored(app: web.Application, collection: Collection, *, anyway: bool = False) -> None:
    """Have the store take the settings of a collection that have changed, and wait for that if it must, or `anyway`.
    Raises Unavailable; they are changed here then, and may come to be in the store."""
    if isinstance(store := app[STORE], Uploader):
        changed = store.settings_changed(collection.uid)
        if anyway or store.options.acknowledge == "bucket":
            await asyncio.wrap_future(changed)


def describe(app: web.Application, collection: Collection) -> CollectionBody:
    """Describe a collection. Reads its folder: run it on a thread. Raises Forbidden for a caller that sees only some
    documents."""
    PRINCIPAL.get().require_whole()
    caller, name, settings, config = PRINCIPAL.get(), collection.name, collection.settings, app[CONFIG]
    ranking, manifest = collection.ranking.current, app[EMBEDDERS].try_manifest(settings.model)
    return CollectionBody(
        name=caller.own(name),
        aliases=caller.aliases_of(name, app[CATALOG].aliases),
        tenant=tenant_of(name),
        model=settings.model or None,
        fingerprint=settings.fingerprint,
        model_languages=manifest.languages if manifest else None,
        dimensions=settings.dimensions,
        hot_capacity=settings.hot_capacity,
        language=settings.language,
        field_weights=FieldWeightsBody(**asdict(settings.field_weights)),
        **asdict(collection.info()),
        store=store_state(app, collection),
        rebuild_due=app[TASKS].rebuild_due(name, collection),
        ranking=None if ranking is None else msgspec.convert(ranking, RankingBody, from_attributes=True),
        limits=RequestLimits(
            documents_per_request=config.limits.documents_per_request_max,
            document_bytes=config.limits.document_bytes_max,
            request_bytes=config.server.body_bytes_max,
            metadata_keys=config.limits.metadata_keys_max,
        ),
    )
