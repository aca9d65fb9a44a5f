"""Files of OpenAI's vector stores, which are documents of the collection, whoever wrote them.

POST, GET /v1/vector_stores/{collection}/files, GET, POST, DELETE .../files/{file}, GET .../files/{file}/content, and
POST, GET .../file_batches.

A file is attached, embedded and searchable when the request returns, so every status is `completed`, and a batch needs
no record: its id says how many files it had.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from aiohttp import web

from indexes import (
    Collection,
    InvalidInput,
    Metadata,
    NotFound,
    Page,
    ScrolledDocument,
    Upsert,
    scrolling,
)
from retrieval.auth import ACL, PRINCIPAL
from retrieval.dialects.files import ends, order_of
from retrieval.dialects.vector_store_schemas import (
    Attributes,
    OpenAIAttachFile,
    OpenAIAttachFiles,
    OpenAIFileBatch,
    OpenAIFileContent,
    OpenAIFileCounts,
    OpenAISetAttributes,
    OpenAIStoreFile,
    OpenAIStoreFileDeleted,
    OpenAIStoreFileList,
    OpenAIText,
)
from retrieval.document_schemas import SentDocument
from retrieval.handlers.documents import remove
from retrieval.handlers.wire import answer, answer_from, body, collection_of, document_of, query_int
from retrieval.keys import CONFIG, EMBEDDERS, HELD, METRICS, TASKS, UPLOADS
from retrieval.metadata import check_limits, flattened
from retrieval.uploads import text_of
from retrieval.writing import write_documents

LISTED_MAX, LISTED = 100, 20
BATCH = re.compile(r"vsfb_(?P<created>[0-9a-f]{8})(?P<files>[0-9a-f]{4})")


async def attached(request: web.Request) -> web.Response:
    wanted = await body(request, OpenAIAttachFile)
    _, collection = collection_of(request)
    await attach(request.app, collection, wanted.file_id, wanted.attributes)
    return await answer_from(lambda: found_in(collection, wanted.file_id))


async def attach(
    app: web.Application, collection: Collection, file_id: str, attributes: Attributes | None
) -> None:
    """Write an uploaded file as a document: searchable when this returns. Raises NotFound, InvalidInput, and Forbidden
    for a key that reaches no uploads."""
    PRINCIPAL.get().require_unbound()
    started = time.perf_counter()
    upload, content = await asyncio.to_thread(app[UPLOADS].read, file_id)
    text = await asyncio.to_thread(text_of, content, upload.filename)
    stored = await asyncio.to_thread(collection.log.document, upload.id)
    metadata = checked(attributes, upload.filename, app, stored.metadata if stored else {})
    document = SentDocument(
        id=upload.id, text=text, title=upload.filename, metadata=msgspec.Raw(msgspec.json.encode(metadata))
    )
    result = await write_documents(collection, app[EMBEDDERS], [document], app[CONFIG])
    app[TASKS].reindex_if_due(collection.name, collection)
    app[METRICS].written(collection.name, result, time.perf_counter() - started)


async def require_uploads(app: web.Application, file_ids: Sequence[str]) -> None:
    """Raises NotFound before anything is written."""

    def work() -> None:
        for one in file_ids:
            app[UPLOADS].find(one)

    await asyncio.to_thread(work)


async def listed(request: web.Request) -> web.Response:
    """In the order in which they were written."""
    _, collection = collection_of(request)
    limit = query_int(request, "limit", LISTED, least=1, most=LISTED_MAX)
    if "order" in request.query and order_of(request, default="asc") != "asc":
        raise InvalidInput("order must be asc: files are listed in the order of writing", param="order")
    if "before" in request.query:
        raise InvalidInput("before is not supported, only after", param="before")
    after = request.query.get("after")
    status, condition = request.query.get("filter", "completed"), PRINCIPAL.get().allowed(None)
    bytes_max = request[HELD].page(request.app[CONFIG].limits.answer_bytes_max)

    def work() -> OpenAIStoreFileList:
        page = Page([], None)
        if status == "completed":  # as all of them are
            position = 0 if after is None else position_of(collection, after)
            page = scrolling.page(collection, position, limit, condition=condition, bytes_max=bytes_max)
        files = bodies(collection, page.documents)
        return OpenAIStoreFileList(
            files, *ends([one.id for one in files]), has_more=page.following is not None
        )

    return await answer_from(work)


def position_of(collection: Collection, after: str) -> int:
    """Where the page after a file begins. One that was deleted, as by a loop that deletes what it lists, has none: the
    listing begins again, and what was before it is seen twice rather than what is behind it not at all."""
    try:
        return document_of(collection, after).position
    except NotFound:
        return 0


async def shown(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    return await answer_from(lambda: found_in(collection, request.match_info["file"]))


async def updated(request: web.Request) -> web.Response:
    """All attributes are replaced; nothing is embedded again."""
    wanted = await body(request, OpenAISetAttributes)
    _, collection = collection_of(request)
    file_id = request.match_info["file"]

    def change(stored: Upsert) -> Upsert:
        metadata = checked(wanted.attributes, stored.title, request.app, stored.metadata)
        return stored if metadata == stored.metadata else replace(stored, metadata=metadata)

    await asyncio.wrap_future(collection.change(file_id, change))
    request.app[TASKS].reindex_if_due(collection.name, collection)
    return await answer_from(lambda: found_in(collection, file_id))


async def deleted(request: web.Request) -> web.Response:
    """From this store; the upload stays, and can be attached again."""
    _, collection = collection_of(request)
    file_id = request.match_info["file"]
    if not (await remove(request.app, collection, [file_id])).deleted:
        raise NotFound(f"no file {file_id[:64]!r} in {collection.name!r}", param="file_id")
    return answer(OpenAIStoreFileDeleted(file_id))


async def content(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    file_id, held = request.match_info["file"], request[HELD]

    def work() -> OpenAIFileContent:
        text = document_of(collection, file_id).document.text
        held.answer(len(text))
        return OpenAIFileContent([OpenAIText(text)])

    return await answer_from(work)


# --- batches ------------------------------------------------------------------------------------------------------


async def batch_attached(request: web.Request) -> web.Response:
    """One after the other. An error ends it; the files before it stay, and cost nothing the next time."""
    wanted = await body(request, OpenAIAttachFiles)
    _, collection = collection_of(request)
    if bool(wanted.file_ids) == bool(wanted.files):
        raise InvalidInput("expected either file_ids or files", param="file_ids")
    files = wanted.files or [
        OpenAIAttachFile(file_id=one, attributes=wanted.attributes) for one in wanted.file_ids or []
    ]
    await require_uploads(request.app, [one.file_id for one in files])
    for one in files:
        await attach(request.app, collection, one.file_id, one.attributes)
    return answer(batch_body(PRINCIPAL.get().own(collection.name), int(time.time()), len(files)))


async def batch_shown(request: web.Request) -> web.Response:
    name, _ = collection_of(request)
    batch = request.match_info["batch"]
    found = BATCH.fullmatch(batch)
    if found is None:
        raise NotFound(f"no batch {batch[:64]!r}", param="batch_id")
    return answer(batch_body(name, int(found["created"], 16), int(found["files"], 16)))


def batch_body(store: str, created: int, files: int) -> OpenAIFileBatch:
    return OpenAIFileBatch(f"vsfb_{created:08x}{files:04x}", store, created, OpenAIFileCounts(files, files))


# --- documents as files -------------------------------------------------------------------------------------------


def found_in(collection: Collection, file_id: str) -> OpenAIStoreFile:
    """Reads the log: for a thread. Raises NotFound."""
    return bodies(collection, [document_of(collection, file_id)])[0]


def bodies(collection: Collection, found: Sequence[ScrolledDocument]) -> list[OpenAIStoreFile]:
    documents = [one.document for one in found]
    written = scrolling.written_ms(collection, [one.seq for one in documents])
    return [
        OpenAIStoreFile(
            id=one.id,
            vector_store_id=PRINCIPAL.get().own(collection.name),
            created_at=written.get(one.seq, 0) // 1000,
            usage_bytes=len(one.text.encode()),
            attributes=attributes_of(one.metadata),
        )
        for one in documents
    ]


def attributes_of(metadata: Metadata) -> Attributes:
    """OpenAI knows no lists: one becomes its values with commas between them."""
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in metadata.items()
    }


def checked(
    attributes: Mapping[str, object] | None, title: str, app: web.Application, before: Metadata
) -> Metadata:
    """As metadata. Whom the document was for `before`, it stays for, unless the attributes say otherwise: OpenAI knows
    no lists, and sends one back as text. Raises InvalidInput and TooLarge naming the field."""
    metadata = flattened(attributes or {}, "attributes")
    if ACL in before and metadata.get(ACL) in (None, attributes_of(before)[ACL]):
        metadata[ACL] = before[ACL]
    check_limits(title, metadata, "attributes", app[CONFIG])
    return metadata
