"""OpenAI's files: POST, GET /v1/files, GET, DELETE /v1/files/{file}, GET /v1/files/{file}/content.

What is uploaded waits here to be attached to vector stores (`documents/uploads.py`). Deleting a file deletes the
documents made of it, too, in every collection that the caller sees, as OpenAI does. A file belongs to no collection, so
keys that are bound to some reach none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput, NotFound, TooLarge
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.dialects.vector_store_schemas import (
    ExpiresSeconds,
    OpenAIFile,
    OpenAIFileDeleted,
    OpenAIFileList,
    OpenAIUploadFile,
)
from retrieval.documents.uploads import ID, Upload
from retrieval.handlers.documents import remove
from retrieval.handlers.state import CATALOG, CONFIG, HELD, UPLOADS
from retrieval.handlers.wire import answer, form, query_int

LISTED_MAX = 10_000
NAME_CHARS_MAX = 255
EXPIRES = {"expires_after[anchor]", "expires_after[seconds]"}
FIELDS = {field.name for field in msgspec.structs.fields(OpenAIUploadFile)} | EXPIRES


async def upload(request: web.Request) -> web.Response:
    """Keeps the file, whatever it holds. One that cannot be read fails where it is attached: with its reason, beside
    the others of its batch, while an error here would end the client's whole batch."""
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
    purpose = converted(sent, "purpose", OpenAIUploadFile)
    expires_s = None
    if EXPIRES & sent.keys():
        if sent.get("expires_after[anchor]") != "created_at":
            raise InvalidInput("expires_after.anchor must be created_at", param="expires_after.anchor")
        expires_s = seconds(sent.get("expires_after[seconds]"))
    with file.file:
        content = await asyncio.to_thread(file.file.read)
    most = request.app[CONFIG].limits.document_bytes_max
    if len(content) > most:
        raise TooLarge(f"the file has {len(content)} bytes, at most {most} are allowed", param="file")
    keep = request.app[UPLOADS].keep
    kept = await asyncio.to_thread(keep, name_of(file.filename), content, purpose, expires_s)
    return answer(body_of(kept))


async def listed(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_unbound()
    limit = query_int(request, "limit", LISTED_MAX, least=1, most=LISTED_MAX)
    newest_first = order_of(request, default="desc") == "desc"
    found = await asyncio.to_thread(request.app[UPLOADS].all)
    if purpose := request.query.get("purpose"):
        found = [one for one in found if one.purpose == purpose]
    if newest_first:
        found.reverse()
    ids = [one.id for one in found]
    if after := request.query.get("after"):
        if after not in ids:
            raise InvalidInput(f"after names no file: {after[:64]!r}", param="after")
        found = found[ids.index(after) + 1 :]
    page = [body_of(one) for one in found[:limit]]
    return answer(OpenAIFileList(page, *ends([one.id for one in page]), has_more=len(found) > limit))


async def shown(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_unbound()
    found = await asyncio.to_thread(request.app[UPLOADS].find, request.match_info["file"])
    return answer(body_of(found))


async def content(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_unbound()
    found, raw = await asyncio.to_thread(request.app[UPLOADS].read, request.match_info["file"])
    request[HELD].answer(found.bytes)
    return web.Response(body=raw, content_type="application/octet-stream")


async def deleted(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_unbound()
    app, file_id = request.app, request.match_info["file"]
    gone = await asyncio.to_thread(app[UPLOADS].remove, file_id)
    # Only what has the id of a file: any other document is not ours to delete from every collection.
    if ID.fullmatch(file_id):
        gone = await delete_documents(app, file_id) or gone
    if not gone:
        raise NotFound(f"no file {file_id[:64]!r}", param="file_id")
    return answer(OpenAIFileDeleted(file_id))


PASSES_MAX = 3  # over the collections, if some are renamed under a deletion


async def delete_documents(app: web.Application, file_id: str) -> bool:
    """Delete the documents of a file from all collections that the caller sees. Returns whether there was one."""
    catalog, caller = app[CATALOG], PRINCIPAL.get()
    found = False
    for _ in range(PASSES_MAX):
        missed = False
        aliases = catalog.aliases
        for name, collection in list(catalog.collections.items()):
            try:
                if caller.sees(name, aliases) and await asyncio.to_thread(holds, collection, file_id):
                    found = bool((await remove(app, collection, [file_id])).deleted) or found
            except NotFound:  # deleted, or renamed: then its documents are under the new name
                missed = True
        if not missed:
            break
    return found


def holds(collection: Collection, document_id: str) -> bool:
    return bool(collection.log.known({document_id}))


def body_of(upload: Upload) -> OpenAIFile:
    return msgspec.convert(upload, OpenAIFile, from_attributes=True)


def converted(sent: Mapping[str, Any], name: str, kind: type[msgspec.Struct]) -> str:
    """A text of the form as the wire type says. Raises InvalidInput naming it."""
    declared = next(one.type for one in msgspec.structs.fields(kind) if one.name == name)
    try:
        return str(msgspec.convert(sent.get(name), declared))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{name}: {error}", param=name) from None


def seconds(text: object) -> int:
    try:
        return int(msgspec.convert(text, ExpiresSeconds, strict=False))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"expires_after.seconds: {error}", param="expires_after.seconds") from None


def name_of(path: str) -> str:
    """The last part of what the client calls the file. Raises InvalidInput."""
    name = unicode_of(PurePosixPath(path.replace("\\", "/")).name)
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise InvalidInput(
            f"file: its name must be 1 to {NAME_CHARS_MAX} printable characters, found {name[:40]!r}",
            param="file",
        )
    return name


def unicode_of(text: str) -> str:
    """Without what stands for bytes that are no UTF-8, which no answer could hold."""
    return text.encode("utf-8", "replace").decode()


def order_of(request: web.Request, *, default: str) -> str:
    order = request.query.get("order", default)
    if order not in ("asc", "desc"):
        raise InvalidInput(f"order must be asc or desc, found {order[:40]!r}", param="order")
    return order


def ends(ids: list[str]) -> tuple[str | None, str | None]:
    """The first and the last id of a page."""
    return (ids[0], ids[-1]) if ids else (None, None)
