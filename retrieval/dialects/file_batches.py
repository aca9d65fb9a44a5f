"""Batches of files of OpenAI's vector stores: POST .../file_batches, GET .../file_batches/{batch} and .../files, POST
.../file_batches/{batch}/cancel.

A batch is done when the request that creates it returns. A file that cannot be read or written is counted as `failed`;
the others are written. The outcomes of the latest batches are stored beside the collection:

    data/<collection>/file_batches/<id>.json      not part of backups
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from aiohttp import web

from indexes.base.durable import disk_errors, publish
from indexes.base.durable import remove as remove_durably
from indexes.base.errors import InvalidInput, NotFound, TooLarge
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.gates import AdmittedRequest
from retrieval.dialects.files import ends, order_of, status_of
from retrieval.dialects.vector_store_files import attach_upload, check_attributes, find_file, require_uploads
from retrieval.dialects.vector_store_schemas import (
    OpenAIAttachFile,
    OpenAIAttachFiles,
    OpenAIFileBatch,
    OpenAIFileCounts,
    OpenAILastError,
    OpenAIStoreFile,
    OpenAIStoreFileList,
)
from retrieval.handlers.state import ENTRY, UPLOADS
from retrieval.handlers.wire import answer, answer_from, body, collection_of, in_callers_words, query_int

FOLDER = "file_batches"
VERSION = 1
ID = re.compile(r"vsfb_[0-9a-f]{24}")
KEPT_MAX = 100  # batches per collection
LISTED_MAX, LISTED = 100, 20


class FileBatch(msgspec.Struct, frozen=True):
    """A batch with the ids of its files, in order, and the reasons why some failed."""

    version: int
    id: str
    created_at: int
    files: list[str]
    failed: dict[str, OpenAILastError]


async def attach_files(request: web.Request) -> web.Response:
    """Attach files one after the other. An error that no file caused ends the batch; the files before it stay."""
    wanted = await body(request, OpenAIAttachFiles)
    _, collection = collection_of(request)
    if bool(wanted.file_ids) == bool(wanted.files):
        raise InvalidInput("expected either file_ids or files", param="file_ids")
    check_attributes(
        wanted.attributes, "", request.app, {}
    )  # these belong to the request, not to one of its files
    files = wanted.files or [
        OpenAIAttachFile(
            file_id=one, attributes=wanted.attributes, chunking_strategy=wanted.chunking_strategy
        )
        for one in wanted.file_ids or []
    ]
    where = "files[{at}].file_id" if wanted.files else "file_ids[{at}]"
    await require_uploads(request.app, [one.file_id for one in files], where)
    batch = await attach_all(request.app, collection, files, request[ENTRY])
    await asyncio.to_thread(save_batch, collection, batch)
    return answer(batch_body(collection, batch))


async def attach_all(
    app: web.Application, collection: Collection, files: Sequence[OpenAIAttachFile], entry: AdmittedRequest
) -> FileBatch:
    """Write each file as a document, once, as the last that names it says. Bad content or options fail only their file;
    a full disk or overload raises."""
    failed = {}
    wanted = {one.file_id: one for one in files}
    for one in wanted.values():
        try:
            await attach_upload(app, collection, one, entry)
        except (InvalidInput, TooLarge, NotFound) as error:
            code: Literal["unsupported_file", "invalid_file"] = (
                "unsupported_file" if error.param == "file" else "invalid_file"
            )
            message = in_callers_words(app, error).message
            failed[one.file_id] = OpenAILastError(code, await without_name(app, message, one.file_id))
    return FileBatch(VERSION, f"vsfb_{secrets.token_hex(12)}", int(time.time()), list(wanted), failed)


async def without_name(app: web.Application, message: str, file_id: str) -> str:
    """Take the name of an upload out of a message that is kept longer than the upload, and not erased with it."""
    try:
        upload = await asyncio.to_thread(app[UPLOADS].find, file_id)
    except NotFound:
        return f"no file {file_id!r}"
    return message.replace(f" {upload.filename!r}", "").replace(upload.filename, "the file")


async def show_batch(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    return await answer_from(lambda: batch_body(collection, read_batch(collection, request)))


async def cancel_batch(request: web.Request) -> web.Response:
    """Show the batch. There is nothing to cancel: a batch is done before its id is known."""
    return await show_batch(request)


async def list_files(request: web.Request) -> web.Response:
    """List the files of a batch in the order of the request, or the reverse, without those deleted since."""
    _, collection = collection_of(request)
    limit = query_int(request, "limit", LISTED, least=1, most=LISTED_MAX)
    backwards = order_of(request, default="asc") == "desc"
    status = status_of(request)
    after, before = request.query.get("after"), request.query.get("before")

    def work() -> OpenAIStoreFileList:
        batch = read_batch(collection, request)
        ids = [
            one for one in batch.files if status in (None, "failed" if one in batch.failed else "completed")
        ]
        if backwards:
            ids.reverse()
        if after is not None:
            ids = ids[position_in(ids, after, "after") + 1 :]
        if before is not None:
            ids = ids[: position_in(ids, before, "before")]
        page = ids[-limit:] if before is not None and after is None else ids[:limit]
        files = [one for file_id in page if (one := file_body(collection, batch, file_id))]
        return OpenAIStoreFileList(files, *ends([one.id for one in files]), has_more=len(ids) > len(page))

    return await answer_from(work)


def position_in(ids: list[str], file_id: str, param: str) -> int:
    """Return the position of a file. Raises InvalidInput if it is not listed."""
    if file_id not in ids:
        raise InvalidInput(f"{param} names no file of this list: {file_id[:64]!r}", param=param)
    return ids.index(file_id)


def file_body(collection: Collection, batch: FileBatch, file_id: str) -> OpenAIStoreFile | None:
    """Describe a file, or return None if it was deleted. Reads the log: call it on a thread."""
    if (error := batch.failed.get(file_id)) is not None:
        return OpenAIStoreFile(
            id=file_id,
            vector_store_id=PRINCIPAL.get().own(collection.name),
            created_at=batch.created_at,
            usage_bytes=0,
            attributes={},
            status="failed",
            last_error=error,
        )
    try:
        return find_file(collection, file_id)
    except NotFound:
        return None


def batch_body(collection: Collection, batch: FileBatch) -> OpenAIFileBatch:
    total, failed = len(batch.files), len(batch.failed)
    return OpenAIFileBatch(
        id=batch.id,
        vector_store_id=PRINCIPAL.get().own(collection.name),
        created_at=batch.created_at,
        file_counts=OpenAIFileCounts(completed=total - failed, total=total, failed=failed),
        status="failed" if failed == total else "completed",
    )


# --- storage ------------------------------------------------------------------------------------------------------


def save_batch(collection: Collection, batch: FileBatch) -> None:
    """Store a batch durably, and delete the oldest beyond KEPT_MAX."""
    folder = collection.folder / FOLDER
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
        others = sorted(folder.glob("vsfb_*.json"), key=modified_ns, reverse=True)
    publish(folder / f"{batch.id}.json", msgspec.json.encode(batch))
    for one in others[KEPT_MAX - 1 :]:
        remove_durably(one)


def modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # removed by another request
        return 0


def read_batch(collection: Collection, request: web.Request) -> FileBatch:
    """Read the batch that a request names; call it on a thread. Raises NotFound, and Forbidden for a caller that sees
    only some documents."""
    PRINCIPAL.get().require_whole()
    batch_id = request.match_info["batch"]
    # Only a valid id may become part of a path.
    if ID.fullmatch(batch_id):
        path = collection.folder / FOLDER / f"{batch_id}.json"
        with disk_errors(path):
            try:
                batch = msgspec.json.decode(path.read_bytes(), type=FileBatch)
            except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
                batch = None
        if batch is not None and batch.version == VERSION:
            return batch
    raise NotFound(f"no batch {batch_id[:64]!r}; the latest {KEPT_MAX} are kept", param="batch_id")
