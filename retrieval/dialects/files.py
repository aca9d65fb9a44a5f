"""OpenAI's files: POST, GET /v1/files, GET, DELETE /v1/files/{file}, GET /v1/files/{file}/content.

Uploaded files are kept until they are attached to vector stores (`documents/uploads.py`). Deleting a file also deletes
its documents in every collection that the caller sees, as OpenAI does. Files belong to no collection, so keys that are
restricted to collections cannot use them.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput, NotFound, NotReady, TooLarge
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.dialects.vector_store_schemas import (
    ExpiresSeconds,
    OpenAIFile,
    OpenAIFileDeleted,
    OpenAIFileList,
    OpenAIUploadFile,
)
from retrieval.documents.uploads import ID, Upload, order_of_upload
from retrieval.handlers.documents import remove
from retrieval.handlers.state import CATALOG, CONFIG, HELD, UPLOADS
from retrieval.handlers.wire import answer, form, query_int

LISTED_MAX = 10_000
STATUSES = (
    "in_progress",
    "completed",
    "failed",
    "cancelled",
)  # of OpenAI's files in a store; ours are done or failed
NAME_CHARS_MAX = 255
EXPIRES = {"expires_after[anchor]", "expires_after[seconds]"}
FIELDS = {field.name for field in msgspec.structs.fields(OpenAIUploadFile)} | EXPIRES


async def upload(request: web.Request) -> web.Response:
    """Store the file without reading it. A file that cannot be read fails when it is attached, on its own; an error
    here would end the client's whole batch."""
    PRINCIPAL.get().require_unbound()
    sent = await form(request)
    if unknown := sent.keys() - FIELDS:
        name = unicode_of(min(unknown)[:40])
        raise InvalidInput(f"unknown field {name!r}; expected {', '.join(sorted(FIELDS))}", param=name)
    file = sent.get("file")
    if not isinstance(file, web.FileField):
        raise InvalidInput(
            "expected a form (multipart/form-data) with a file in the field `file`", param="file"
        )
    purpose = convert_field(sent, "purpose", OpenAIUploadFile)
    expires_s = None
    if EXPIRES & sent.keys():
        if sent.get("expires_after[anchor]") != "created_at":
            raise InvalidInput("expires_after.anchor must be created_at", param="expires_after.anchor")
        expires_s = convert_seconds(sent.get("expires_after[seconds]"))
    with file.file:
        content = await asyncio.to_thread(file.file.read)
    most = request.app[CONFIG].limits.document_bytes_max
    if len(content) > most:
        raise TooLarge(f"the file has {len(content)} bytes, at most {most} are allowed", param="file")
    keep = request.app[UPLOADS].keep
    kept = await asyncio.to_thread(keep, name_of(file.filename), content, purpose, expires_s)
    return answer(body_of(kept))


async def list_files(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_unbound()
    limit = query_int(request, "limit", LISTED_MAX, least=1, most=LISTED_MAX)
    newest_first = order_of(request, default="desc") == "desc"
    found = await asyncio.to_thread(request.app[UPLOADS].all)
    if purpose := request.query.get("purpose"):
        found = [one for one in found if one.purpose == purpose]
    if newest_first:
        found.reverse()
    if after := request.query.get("after"):
        if not ID.fullmatch(after):
            raise InvalidInput(f"after names no file: {after[:64]!r}", param="after")
        # A loop that deletes what it lists goes on after a deleted file; from the start if its place is not known.
        if (place := await asyncio.to_thread(request.app[UPLOADS].place, after)) is not None:
            follows = operator.lt if newest_first else operator.gt
            found = [one for one in found if follows(order_of_upload(one), place)]
    page = [body_of(one) for one in found[:limit]]
    return answer(OpenAIFileList(page, *ends([one.id for one in page]), has_more=len(found) > limit))


async def show_file(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_unbound()
    found = await asyncio.to_thread(request.app[UPLOADS].find, request.match_info["file"])
    return answer(body_of(found))


async def show_content(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_unbound()
    found, raw = await asyncio.to_thread(request.app[UPLOADS].read, request.match_info["file"])
    request[HELD].answer(found.bytes)
    return web.Response(body=raw, content_type="application/octet-stream")


async def delete_file(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_unbound()
    app, file_id = request.app, request.match_info["file"]
    gone = await asyncio.to_thread(app[UPLOADS].remove, file_id)
    # Only ids of files: other documents must not be deleted from every collection.
    if ID.fullmatch(file_id):
        gone = await delete_documents(app, file_id) or gone
    if not gone:
        raise NotFound(f"no file {file_id[:64]!r}", param="file_id")
    return answer(OpenAIFileDeleted(file_id))


PASSES_MAX = 3  # over the collections, if some are renamed during a deletion


async def delete_documents(app: web.Application, file_id: str) -> bool:
    """Delete the documents of a file from all collections that the caller sees. Returns whether there were any."""
    catalog, caller = app[CATALOG], PRINCIPAL.get()
    found = False
    for number in range(PASSES_MAX):
        missed = False
        aliases = catalog.aliases
        for name, collection in list(catalog.collections.items()):
            try:
                if caller.sees(name, aliases) and await asyncio.to_thread(holds, collection, file_id):
                    found = bool((await remove(app, collection, [file_id])).deleted) or found
            except (NotFound, NotReady) as error:  # deleted or renamed; the next pass sees the new name
                if isinstance(error, NotReady) and number == PASSES_MAX - 1:
                    raise
                missed = True
        if not missed:
            break
        await asyncio.to_thread(catalog.wait_for_changes)
    return found


def holds(collection: Collection, document_id: str) -> bool:
    return bool(collection.log.known({document_id}))


def body_of(upload: Upload) -> OpenAIFile:
    return msgspec.convert(upload, OpenAIFile, from_attributes=True)


def convert_field(sent: Mapping[str, Any], name: str, kind: type[msgspec.Struct]) -> str:
    """Return a text field of the form, checked against the wire type. Raises InvalidInput naming the field."""
    declared = next(one.type for one in msgspec.structs.fields(kind) if one.name == name)
    try:
        return str(msgspec.convert(sent.get(name), declared))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{name}: {error}", param=name) from None


def convert_seconds(text: object) -> int:
    try:
        return int(msgspec.convert(text, ExpiresSeconds, strict=False))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"expires_after.seconds: {error}", param="expires_after.seconds") from None


def name_of(path: str) -> str:
    """Return the file name from the path that the client sent. Raises InvalidInput."""
    name = unicode_of(PurePosixPath(path.replace("\\", "/")).name)
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise InvalidInput(
            f"file: its name must be 1 to {NAME_CHARS_MAX} printable characters, found {name[:40]!r}",
            param="file",
        )
    return name


def unicode_of(text: str) -> str:
    """Replace surrogates, which stand for bytes that are not UTF-8 and cannot be encoded in an answer."""
    return text.encode("utf-8", "replace").decode()


def order_of(request: web.Request, *, default: str) -> str:
    order = request.query.get("order", default)
    if order not in ("asc", "desc"):
        raise InvalidInput(f"order must be asc or desc, found {order[:40]!r}", param="order")
    return order


def status_of(request: web.Request) -> str | None:
    """Return the status that the files of a listing should have, if the request names one. Raises InvalidInput."""
    status = request.query.get("filter")
    if status not in (None, *STATUSES):
        raise InvalidInput(
            f"filter must be one of {', '.join(STATUSES)}, found {status[:40]!r}", param="filter"
        )
    return status


def ends(ids: list[str]) -> tuple[str | None, str | None]:
    """Return the first and the last id of a page."""
    return (ids[0], ids[-1]) if ids else (None, None)
