"""OpenAI's vector stores, which are collections: POST, GET /v1/vector_stores, GET, POST, DELETE
/v1/vector_stores/{collection}, POST /v1/vector_stores/{collection}/search.

OpenAI assigns a store an id and allows any name. Here the id is the collection's name, which is the store's name if
that is valid, else derived from it. A name already in use gets a suffix, because stores may share a name. Fields that a
collection lacks are stored beside it, in `vector_store.json` (`indexes/parts/learned.py`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from itertools import starmap

import msgspec
from aiohttp import web
from msgspec import UNSET

from indexes.base.durable import disk_errors
from indexes.base.errors import Conflict, InvalidInput
from indexes.base.normalizing import normalize
from indexes.collection.collection import Collection
from indexes.directory.marker import NAME, SHARD_MARK
from indexes.parts.learned import VectorStoreSettings
from indexes.reading import scrolling
from retrieval.access.auth import PRINCIPAL
from retrieval.base.cancellation import gather_or_cancel
from retrieval.dialects.file_batches import attach_all
from retrieval.dialects.files import ends, order_of
from retrieval.dialects.vector_store_files import attributes_of, require_uploads
from retrieval.dialects.vector_store_schemas import (
    OpenAIAttachFile,
    OpenAICreateVectorStore,
    OpenAIExpiresAfter,
    OpenAIFileCounts,
    OpenAIRankingOptions,
    OpenAIStoreResult,
    OpenAIStoreResults,
    OpenAIStoreSearch,
    OpenAIText,
    OpenAIUpdateVectorStore,
    OpenAIVectorStore,
    OpenAIVectorStoreDeleted,
    OpenAIVectorStoreList,
)
from retrieval.handlers.collections import make, remove
from retrieval.handlers.search import Find, budget_of
from retrieval.handlers.state import CATALOG, ENTRY, PIPELINE
from retrieval.handlers.wire import (
    answer,
    answer_from,
    body,
    charge,
    collection_of,
    note_search,
    query_int,
    settings_stored,
)
from retrieval.observe.request_log import note_queries
from retrieval.wire.collections import CreateCollection
from retrieval.wire.search import Hit, SearchAnswer, SearchRequest

logger = logging.getLogger(__name__)

ID_CHARS_MAX = 48  # leaves room for a suffix
LISTED_MAX, LISTED = 100, 20
RESULTS = 10
MOST = "max_num_results"
DAY_S = 86_400
OPENAIS_NAMES = {
    "filter": "filters",
    "k": MOST,
    "min_relevance": "ranking_options.score_threshold",
}


async def create(request: web.Request) -> web.Response:
    wanted = await body(request, OpenAICreateVectorStore)
    app = request.app
    await require_uploads(app, wanted.file_ids or [], "file_ids[{at}]")
    name = own_name(wanted.name or "")
    try:
        collection = await make(app, CreateCollection(name=name))
    except Conflict:
        collection = await make(app, CreateCollection(name=f"{name[:ID_CHARS_MAX]}-{secrets.token_hex(4)}"))
    expires = wanted.expires_after.days if wanted.expires_after else None
    details = VectorStoreSettings(
        name=wanted.name or None,
        description=wanted.description or "",
        metadata=wanted.metadata or {},
        expires_days=expires,
        used_at=int(time.time()),
    )
    await asyncio.to_thread(collection.vector_store.set, details)
    await settings_stored(app, collection)
    files = [
        OpenAIAttachFile(file_id=one, chunking_strategy=wanted.chunking_strategy)
        for one in wanted.file_ids or []
    ]
    failed = len((await attach_all(app, collection, files, request[ENTRY])).failed)

    def work() -> OpenAIVectorStore:
        made = store_body(collection)
        made.file_counts.failed = failed
        made.file_counts.total += failed
        return made

    return await answer_from(work)


async def list_stores(request: web.Request) -> web.Response:
    """List stores in alphabetical order of their ids."""
    limit = query_int(request, "limit", LISTED, least=1, most=LISTED_MAX)
    after, before = request.query.get("after", ""), request.query.get("before", "")
    backwards = order_of(request, default="asc") == "desc"
    catalog, caller = request.app[CATALOG], PRINCIPAL.get()
    aliases = catalog.aliases
    visible = {
        caller.own(name): one
        for name, one in catalog.collections.items()
        if caller.sees(name, aliases) and SHARD_MARK not in name
    }
    found = sorted(visible.items(), reverse=backwards)
    if after:
        found = [(name, one) for name, one in found if (name < after if backwards else name > after)]
    if before:
        found = [(name, one) for name, one in found if (name > before if backwards else name < before)]

    def work() -> OpenAIVectorStoreList:
        # `before` asks for the page that ends there, `after` for the one that begins there.
        page = [store_body(one) for _, one in (found[-limit:] if before and not after else found[:limit])]
        return OpenAIVectorStoreList(page, *ends([one.id for one in page]), has_more=len(found) > limit)

    return await answer_from(work)


async def show_store(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    return await answer_from(lambda: store_body(collection))


async def update_store(request: web.Request) -> web.Response:
    """Set the name, metadata and expiry that the request has; the id stays."""
    wanted = await body(request, OpenAIUpdateVectorStore)
    _, collection = collection_of(request)

    def change(current: VectorStoreSettings | None) -> VectorStoreSettings:
        details = current or VectorStoreSettings()
        if wanted.name is not None:
            details = msgspec.structs.replace(details, name=wanted.name)
        if wanted.metadata is not None:
            details = msgspec.structs.replace(details, metadata=wanted.metadata)
        if wanted.expires_after is not UNSET:
            days = wanted.expires_after.days if wanted.expires_after else None
            details = msgspec.structs.replace(details, expires_days=days, used_at=int(time.time()))
        return details

    await asyncio.to_thread(collection.vector_store.change, change)
    await settings_stored(request.app, collection)
    return await answer_from(lambda: store_body(collection))


async def delete_store(request: web.Request) -> web.Response:
    """Delete a store by the collection's own name, not an alias."""
    name = request.match_info["collection"]
    await remove(request.app, name)
    return answer(OpenAIVectorStoreDeleted(name))


def own_name(name: str) -> str:
    """Return the collection name for a store name."""
    if NAME.fullmatch(name):
        return name
    plain = normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:ID_CHARS_MAX].strip("-") or f"vs_{secrets.token_hex(12)}"


def store_body(collection: Collection) -> OpenAIVectorStore:
    """Describe a collection as a store. Reads the disk: call it on a thread. Raises Forbidden for a caller that sees
    only some documents."""
    PRINCIPAL.get().require_whole()
    own = PRINCIPAL.get().own(collection.name)
    details = collection.vector_store.current or VectorStoreSettings()
    with disk_errors(collection.folder):
        size = (collection.folder / "log.db").stat().st_size
    used = last_used_s(collection)
    made_ms = scrolling.created_ms(collection) or scrolling.written_ms(collection, [1]).get(1)
    created = used if made_ms is None else made_ms // 1000
    active = max(used, created)
    hidden = collection.snapshot.expired  # deleted soon, and in no listing of the store's files
    documents = collection.documents - len(collection.log.documents_of(hidden.tolist()))
    days = details.expires_days
    expires_at = None if days is None else active + days * DAY_S
    return OpenAIVectorStore(
        id=own,
        name=own if details.name is None else details.name,
        description=details.description,
        created_at=created,
        last_active_at=active,
        usage_bytes=size,
        file_counts=OpenAIFileCounts(completed=documents, total=documents),
        metadata=details.metadata,
        status="expired" if expires_at is not None and expires_at <= time.time() else "completed",
        expires_after=None if days is None else OpenAIExpiresAfter(anchor="last_active_at", days=days),
        expires_at=expires_at,
    )


def last_used_s(collection: Collection) -> int:
    """Return the time of the last write or noted use in seconds since 1970, 0 if there was none. Reads the disk."""
    seq, settings = collection.snapshot.seq, collection.vector_store.current
    return max(
        settings.used_at if settings else 0, scrolling.written_ms(collection, [seq]).get(seq, 0) // 1000
    )


# --- search -------------------------------------------------------------------------------------------------------


async def search(request: web.Request) -> web.Response:
    wanted = await body(request, OpenAIStoreSearch)
    name, collection = collection_of(request)
    budget = budget_of(request, MOST)

    async def find(asked: SearchRequest) -> SearchAnswer:
        found = await request.app[PIPELINE].search(name, collection, asked, budget=budget)
        note_search(request.app, collection, asked, found)
        return found

    return await answer_best(request, wanted, find)


async def answer_best(request: web.Request, wanted: OpenAIStoreSearch, find: Find) -> web.Response:
    """Return the passages most relevant to any of the queries, each once, by descending relevance."""
    queries = [wanted.query] if isinstance(wanted.query, str) else wanted.query
    note_queries(request, queries)
    await charge(request.app, len(queries))
    options = wanted.ranking_options or OpenAIRankingOptions()
    most = wanted.max_num_results or RESULTS

    async def find_for(at: int, query: str) -> SearchAnswer:
        asked = SearchRequest(
            query=query,
            k=most,
            filter=wanted.filters,
            min_relevance=options.score_threshold,
        )
        try:
            return await find(asked)
        except InvalidInput as error:
            raise in_openais_names(error, None if isinstance(wanted.query, str) else at) from None

    best: dict[tuple[str, int], Hit] = {}
    for found in await gather_or_cancel(starmap(find_for, enumerate(queries))):
        for hit in found.hits:
            before = best.setdefault((hit.document_id, hit.passage), hit)
            if score_of(hit) > score_of(before):
                best[hit.document_id, hit.passage] = hit
    hits = sorted(best.values(), key=score_of, reverse=True)[:most]
    results = [
        OpenAIStoreResult(
            file_id=hit.document_id,
            filename=hit.title or hit.document_id,
            score=score_of(hit),
            attributes=attributes_of(hit.metadata),
            content=[OpenAIText(hit.text)],
        )
        for hit in hits
    ]
    return answer(OpenAIStoreResults(queries, results))


def in_openais_names(error: InvalidInput, at: int | None) -> InvalidInput:
    """Name the field of the store search that became the faulty one of our search. `at` is the query's place in a
    list."""
    ours = re.split(r"\W", error.param or "", maxsplit=1)[0]
    theirs = f"query[{at}]" if ours == "query" and at is not None else OPENAIS_NAMES.get(ours, ours)

    def rename(text: str) -> str:
        return re.sub(rf"^{ours}\b", theirs, text)

    return type(error)(rename(error.message), param=rename(error.param)) if error.param else error


def score_of(hit: Hit) -> float:
    return hit.relevance or 0.0
