"""Files of OpenAI's vector stores, which are documents of the collection, whoever wrote them.

POST, GET /v1/vector_stores/{collection}/files, GET, POST, DELETE .../files/{file}, GET .../files/{file}/content.

A file is attached, embedded and searchable when the request returns, so the status of each is `completed`. A file that
cannot be attached is an error of its request; those of batches are counted (`file_batches`).

`chunking_strategy` bounds passages in tokens of the collection's own model, which reads fewer of them than OpenAI's
default asks for. So what was asked is the most; the answer says what was used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput, NotFound
from indexes.base.model import Metadata, Scalar, Upsert
from indexes.base.paths import leaves
from indexes.collection.collection import Collection
from indexes.reading import scrolling
from indexes.reading.scrolling import Page, ScrolledDocument
from retrieval.access.auth import ACL, PRINCIPAL
from retrieval.admission.gates import AdmittedRequest
from retrieval.base.settings import Passages
from retrieval.dialects.files import ends, order_of
from retrieval.dialects.vector_store_schemas import (
    Attributes,
    OpenAIAttachFile,
    OpenAIChunkSizes,
    OpenAIFileContent,
    OpenAISetAttributes,
    OpenAIStaticChunking,
    OpenAIStoreFile,
    OpenAIStoreFileDeleted,
    OpenAIStoreFileList,
    OpenAIText,
)
from retrieval.documents.metadata import check_limits, check_metadata
from retrieval.documents.writing import SPECIAL_TOKENS, write_documents
from retrieval.handlers.documents import remove
from retrieval.handlers.state import CONFIG, EMBEDDERS, ENTRY, HELD, METRICS, TASKS, TEXTS, UPLOADS
from retrieval.handlers.wire import answer, answer_from, body, collection_of, document_of, query_int
from retrieval.wire.documents import SentDocument

LISTED_MAX, LISTED = 100, 20
OVERLAP_SHARE = 4  # passages share at most so large a part of their tokens


async def attached(request: web.Request) -> web.Response:
    wanted = await body(request, OpenAIAttachFile)
    _, collection = collection_of(request)
    passages = await attach(request.app, collection, wanted, request[ENTRY])
    used = OpenAIStaticChunking(static=OpenAIChunkSizes(passages.tokens_max, passages.overlap_tokens))

    def work() -> OpenAIStoreFile:
        found = found_in(collection, wanted.file_id)
        found.chunking_strategy = used
        return found

    return await answer_from(work)


async def attach(
    app: web.Application, collection: Collection, wanted: OpenAIAttachFile, entry: AdmittedRequest
) -> Passages:
    """Write an uploaded file as a document: searchable when this returns. Returns how it was cut. Raises NotFound,
    InvalidInput, and Forbidden for a key that reaches no uploads."""
    PRINCIPAL.get().require_unbound()
    started = time.perf_counter()
    config = app[CONFIG]
    tokens_max = (await app[EMBEDDERS].of(collection)).encoder.tokens_max - SPECIAL_TOKENS
    passages = passages_of(wanted, config.passages, tokens_max)
    upload, content = await asyncio.to_thread(app[UPLOADS].read, wanted.file_id)
    text = await app[TEXTS].find(content, upload.filename, config.limits.document_bytes_max)
    stored = await asyncio.to_thread(collection.log.document, upload.id)
    metadata = checked(wanted.attributes, upload.filename, app, stored.metadata if stored else {})
    document = SentDocument(
        id=upload.id, text=text, title=upload.filename, metadata=msgspec.Raw(msgspec.json.encode(metadata))
    )
    cut = msgspec.structs.replace(config, passages=passages)
    result = await write_documents(collection, app[EMBEDDERS], [document], cut, entry)
    try:
        await asyncio.to_thread(app[UPLOADS].find, upload.id)
    except NotFound:  # deleted since it was read, and so its documents, of which this one was not there yet
        await remove(app, collection, [upload.id])
        raise
    app[TASKS].reindex_if_due(collection.name, collection)
    app[METRICS].written(collection.name, result, time.perf_counter() - started)
    return passages


def passages_of(wanted: OpenAIAttachFile, usual: Passages, tokens_max: int) -> Passages:
    """How a file is cut: as the request says, as far as the model's `tokens_max` go, else as usual. Raises
    InvalidInput."""
    chunking = wanted.chunking_strategy
    if not isinstance(chunking, OpenAIStaticChunking):
        return usual
    sizes = chunking.static
    if 2 * sizes.chunk_overlap_tokens > sizes.max_chunk_size_tokens:
        raise InvalidInput(
            f"chunk_overlap_tokens must be at most half of max_chunk_size_tokens, found {sizes.chunk_overlap_tokens}",
            param="chunking_strategy.static.chunk_overlap_tokens",
        )
    most = min(sizes.max_chunk_size_tokens, tokens_max)
    overlap = min(sizes.chunk_overlap_tokens, most // OVERLAP_SHARE)
    return Passages(tokens_max=most, overlap_tokens=overlap)


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
    status, condition = request.query.get("filter", "completed"), PRINCIPAL.get().restrict(None)
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
    """OpenAI knows no lists and no objects: values with one path become a text with commas between them."""
    found: dict[str, list[Scalar]] = {}
    for path, value in leaves(metadata):
        found.setdefault(path, []).append(value)
    return {
        path: values[0] if len(values) == 1 else ", ".join(map(str, values)) for path, values in found.items()
    }


def checked(
    attributes: Mapping[str, object] | None, title: str, app: web.Application, before: Metadata
) -> Metadata:
    """As metadata. Whom the document was for `before`, it stays for, unless the attributes say otherwise: OpenAI knows
    no lists, and sends one back as text. Raises InvalidInput and TooLarge naming the field."""
    metadata = check_metadata(dict(attributes or {}), "attributes")
    if ACL in before and metadata.get(ACL) in (None, attributes_of(before).get(ACL)):
        metadata[ACL] = before[ACL]
    check_limits(title, metadata, "attributes", app[CONFIG])
    return metadata
