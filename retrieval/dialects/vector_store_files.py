"""Files of OpenAI's vector stores, which are the documents of the collection, however they were written.

POST, GET /v1/vector_stores/{collection}/files, GET, POST, DELETE .../files/{file}, GET .../files/{file}/content.

A file is attached, embedded and searchable when the request returns, so its status is always `completed`. A file that
cannot be attached fails its request; batches count such files instead (`file_batches`).

`chunking_strategy` bounds passages in tokens of the collection's own model. That model reads fewer than OpenAI's
default size, so the requested size is a maximum; the answer has the size used.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput, NotFound
from indexes.base.model import ACL, Metadata, Scalar, Upsert
from indexes.base.paths import leaves
from indexes.collection.collection import Collection
from indexes.reading import scrolling
from indexes.reading.scrolling import ScrolledDocument, ScrolledPage
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.gates import AdmittedRequest
from retrieval.base.settings import PassagesSection
from retrieval.dialects.files import ends, order_of, status_of
from retrieval.dialects.page_ends import PAGE_ENDS, PageEnd
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
from retrieval.documents.extracting import names_acl
from retrieval.documents.metadata import check_limits, check_metadata
from retrieval.documents.writing import SPECIAL_TOKENS, write_documents
from retrieval.handlers.documents import remove
from retrieval.handlers.state import CONFIG, EMBEDDERS, ENTRY, HELD, METRICS, TASKS, TEXTS, UPLOADS
from retrieval.handlers.wire import answer, answer_from, body, collection_of, document_of, query_int
from retrieval.wire.documents import SentDocument

LISTED_MAX, LISTED = 100, 20
OVERLAP_SHARE = 4  # overlaps are at most a quarter of a passage


async def attach_file(request: web.Request) -> web.Response:
    wanted = await body(request, OpenAIAttachFile)
    _, collection = collection_of(request)
    passages = await attach_upload(request.app, collection, wanted, request[ENTRY])
    used = OpenAIStaticChunking(static=OpenAIChunkSizes(passages.tokens_max, passages.overlap_tokens))

    def work() -> OpenAIStoreFile:
        found = find_file(collection, wanted.file_id)
        found.chunking_strategy = used
        return found

    return await answer_from(work)


async def attach_upload(
    app: web.Application, collection: Collection, wanted: OpenAIAttachFile, entry: AdmittedRequest
) -> PassagesSection:
    """Write an uploaded file as a document, which is searchable on return, and return the passage settings used. Raises
    NotFound, InvalidInput, and Forbidden for a key that may not use uploads."""
    PRINCIPAL.get().require_unbound()
    started = time.perf_counter()
    config = app[CONFIG]
    tokens_max = (await app[EMBEDDERS].of(collection)).encoder.tokens_max - SPECIAL_TOKENS
    passages = passages_of(wanted, config.passages, tokens_max)
    upload, content = await asyncio.to_thread(app[UPLOADS].read, wanted.file_id)
    text = await app[TEXTS].find(
        content, upload.filename, config.limits.document_bytes_max, config.files.text_factor_max
    )
    stored = await asyncio.to_thread(collection.log.document, upload.id)
    metadata = check_attributes(wanted.attributes, upload.filename, app, stored.metadata if stored else {})
    if ACL not in metadata and names_acl(text, upload.filename):
        raise InvalidInput(
            f"the file {upload.filename!r} names an acl, which only `nearline ingest` reads: here everybody could see "
            "it; give the attribute acl, or take it out of the file",
            param="file_id",
        )
    document = SentDocument(
        id=upload.id, text=text, title=upload.filename, metadata=msgspec.Raw(msgspec.json.encode(metadata))
    )
    cut = msgspec.structs.replace(config, passages=passages)
    result = await write_documents(collection, app[EMBEDDERS], [document], cut, entry)
    try:
        await asyncio.to_thread(app[UPLOADS].find, upload.id)
    except NotFound:  # the upload was deleted, with its documents, before this one was written
        await remove(app, collection, [upload.id])
        raise
    app[TASKS].reindex_if_due(collection.name, collection)
    app[METRICS].written(collection.name, result, time.perf_counter() - started)
    return passages


def passages_of(wanted: OpenAIAttachFile, usual: PassagesSection, tokens_max: int) -> PassagesSection:
    """Return how to cut a file: as requested, within the model's `tokens_max`, else as usual. Raises InvalidInput."""
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
    return PassagesSection(tokens_max=most, overlap_tokens=overlap)


async def require_uploads(app: web.Application, file_ids: Sequence[str], where: str) -> None:
    """Raise NotFound for a missing upload, before anything is written. `where` names the field of the one numbered
    `{at}`."""

    def work() -> None:
        for at, one in enumerate(file_ids):
            try:
                app[UPLOADS].find(one)
            except NotFound as error:
                raise NotFound(error.message, param=where.format(at=at)) from None

    await asyncio.to_thread(work)


async def list_files(request: web.Request) -> web.Response:
    """List files in the order in which they were written. Files that are written while they are listed are not listed
    again, and do not move what follows (`page_ends`)."""
    _, collection = collection_of(request)
    limit = query_int(request, "limit", LISTED, least=1, most=LISTED_MAX)
    if "order" in request.query and order_of(request, default="asc") != "asc":
        raise InvalidInput("order must be asc: files are listed in the order of writing", param="order")
    if "before" in request.query:
        raise InvalidInput("before is not supported, only after", param="before")
    after = request.query.get("after")
    status, condition = status_of(request) or "completed", PRINCIPAL.get().restrict(None)
    bytes_max = request[HELD].page(request.app[CONFIG].limits.answer_bytes_max)
    page_ends, listing = request.app[PAGE_ENDS], (collection.uid, PRINCIPAL.get().groups)

    def work() -> OpenAIStoreFileList:
        page = ScrolledPage([], None)
        if status == "completed":  # every file is
            begin = begin_of(collection, after, page_ends.at(listing, after or ""))
            page = scrolling.page(collection, begin.position, limit, condition=condition, bytes_max=bytes_max)
            page = until(page, begin.seq)
            if page.documents:
                last = page.documents[-1]
                if page.following is None:
                    page_ends.forget(listing, last.document.id)
                else:
                    page_ends.note(listing, last.document.id, PageEnd(last.position, begin.seq))
        files = file_bodies(collection, page.documents)
        return OpenAIStoreFileList(
            files, *ends([one.id for one in files]), has_more=page.following is not None
        )

    return await answer_from(work)


def begin_of(collection: Collection, after: str | None, known: PageEnd | None) -> PageEnd:
    """Return where the page after a file begins: where the one that ended with it did, if that is known, else after its
    position, or at the start if it was deleted, because listing some files twice is better than skipping the rest."""
    if after is None:
        return PageEnd(0, collection.log.position().seq)
    if known is not None:
        return known
    try:
        position = file_of(collection, after).position
    except NotFound:
        position = 0
    return PageEnd(position, collection.log.position().seq)


def until(page: ScrolledPage, seq: int) -> ScrolledPage:
    """Return what was written up to an operation, which is the first part of a page."""
    listed = [one for one in page.documents if one.document.seq <= seq]
    return page if len(listed) == len(page.documents) else ScrolledPage(listed, None)


async def show_file(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    return await answer_from(lambda: find_file(collection, request.match_info["file"]))


async def update_file(request: web.Request) -> web.Response:
    """Replace all attributes of a file, without embedding it again."""
    wanted = await body(request, OpenAISetAttributes)
    _, collection = collection_of(request)
    file_id = request.match_info["file"]

    def change(stored: Upsert) -> Upsert:
        metadata = check_attributes(wanted.attributes, stored.title, request.app, stored.metadata)
        return stored if metadata == stored.metadata else replace(stored, metadata=metadata)

    with missing_file_named(file_id):
        await asyncio.wrap_future(collection.change(file_id, change))
    request.app[TASKS].reindex_if_due(collection.name, collection)
    return await answer_from(lambda: find_file(collection, file_id))


async def delete_file(request: web.Request) -> web.Response:
    """Delete a file from this store. Its upload stays and can be attached again."""
    _, collection = collection_of(request)
    file_id = request.match_info["file"]
    if not (await remove(request.app, collection, [file_id])).deleted:
        raise no_file(file_id)
    return answer(OpenAIStoreFileDeleted(file_id))


async def show_content(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    file_id, held = request.match_info["file"], request[HELD]

    def work() -> OpenAIFileContent:
        text = file_of(collection, file_id).document.text
        held.answer(len(text))
        return OpenAIFileContent([OpenAIText(text)])

    return await answer_from(work)


# --- documents as files -------------------------------------------------------------------------------------------


def find_file(collection: Collection, file_id: str) -> OpenAIStoreFile:
    """Describe a document as a file. Reads the log: call it on a thread. Raises NotFound."""
    return file_bodies(collection, [file_of(collection, file_id)])[0]


def file_of(collection: Collection, file_id: str) -> ScrolledDocument:
    with missing_file_named(file_id):
        return document_of(collection, file_id)


@contextlib.contextmanager
def missing_file_named(file_id: str) -> Iterator[None]:
    """Raise NotFound in terms of files instead of documents."""
    try:
        yield
    except NotFound:
        raise no_file(file_id) from None


def no_file(file_id: str) -> NotFound:
    return NotFound(f"no file {file_id[:64]!r} in this vector store", param="file_id")


def file_bodies(collection: Collection, found: Sequence[ScrolledDocument]) -> list[OpenAIStoreFile]:
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
    """Flatten metadata, because OpenAI has neither lists nor objects: values at the same path are joined with
    commas."""
    found: dict[str, list[Scalar]] = {}
    for path, value in leaves(metadata):
        found.setdefault(path, []).append(value)
    return {
        path: values[0] if len(values) == 1 else ", ".join(map(str, values)) for path, values in found.items()
    }


def check_attributes(
    attributes: Mapping[str, object] | None, title: str, app: web.Application, before: Metadata
) -> Metadata:
    """Check attributes and return them as metadata. The `acl` of `before` is kept unless the attributes change it:
    OpenAI has no lists, so its clients send back a list as text. Raises InvalidInput and TooLarge naming the field."""
    metadata = check_metadata(dict(attributes or {}), "attributes")
    if ACL in before and metadata.get(ACL) in (None, attributes_of(before).get(ACL)):
        metadata[ACL] = before[ACL]
    check_limits(title, metadata, "attributes", app[CONFIG])
    return metadata
