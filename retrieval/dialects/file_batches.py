"""Batches of files of OpenAI's vector stores: POST .../file_batches, GET .../file_batches/{batch} and .../files, POST
.../file_batches/{batch}/cancel.

A batch is done when the request that made it returns. A file that cannot be read or written is counted as `failed`, and
the others are written. How it went is kept beside the collection, of the latest batches:

    data/<collection>/file_batches/<id>.json      not part of backups
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from aiohttp import web

from indexes.base.durable import disk_errors, publish
from indexes.base.durable import remove as remove_durably
from indexes.base.errors import InvalidInput, NotFound, TooLarge
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.gates import AdmittedRequest
from retrieval.dialects.files import ends, order_of
from retrieval.dialects.vector_store_files import attach, checked, found_in, require_uploads
from retrieval.dialects.vector_store_schemas import (
    OpenAIAttachFile,
    OpenAIAttachFiles,
    OpenAIFileBatch,
    OpenAIFileCounts,
    OpenAILastError,
    OpenAIStoreFile,
    OpenAIStoreFileList,
)
from retrieval.handlers.state import ENTRY
from retrieval.handlers.wire import answer, answer_from, body, collection_of, query_int

FOLDER = "file_batches"
VERSION = 1
ID = re.compile(r"vsfb_[0-9a-f]{24}")
KEPT_MAX = 100  # of one collection
LISTED_MAX, LISTED = 100, 20


class Kept(msgspec.Struct, frozen=True):
    """A batch with the ids of its files, in order, and why some of them failed."""

    version: int
    id: str
    created_at: int
    files: list[str]
    failed: dict[str, OpenAILastError]


async def attached(request: web.Request) -> web.Response:
    """One file after the other. An error that is no file's own ends the batch, and the files before it stay."""
    wanted = await body(request, OpenAIAttachFiles)
    _, collection = collection_of(request)
    if bool(wanted.file_ids) == bool(wanted.files):
        raise InvalidInput("expected either file_ids or files", param="file_ids")
    checked(wanted.attributes, "", request.app, {})  # a fault of the request, not of each of its files
    files = wanted.files or [
        OpenAIAttachFile(
            file_id=one, attributes=wanted.attributes, chunking_strategy=wanted.chunking_strategy
        )
        for one in wanted.file_ids or []
    ]
    await require_uploads(request.app, [one.file_id for one in files])
    batch = await attach_all(request.app, collection, files, request[ENTRY])
    await asyncio.to_thread(keep, collection, batch)
    return answer(batch_body(collection, batch))


async def attach_all(
    app: web.Application, collection: Collection, files: Sequence[OpenAIAttachFile], entry: AdmittedRequest
) -> Kept:
    """Write each as a document. A file fails alone by what it holds and how it is to be written, not by a full disk or
    an overload."""
    failed = {}
    for one in files:
        try:
            await attach(app, collection, one, entry)
        except (InvalidInput, TooLarge, NotFound) as error:
            unreadable = error.param == "file"
            failed[one.file_id] = OpenAILastError(
                "unsupported_file" if unreadable else "invalid_file", error.message
            )
    ids = list(dict.fromkeys(one.file_id for one in files))
    return Kept(VERSION, f"vsfb_{secrets.token_hex(12)}", int(time.time()), ids, failed)


async def shown(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    return await answer_from(lambda: batch_body(collection, batch_of(collection, request)))


async def cancelled(request: web.Request) -> web.Response:
    """Changes nothing: a batch whose id is known is done."""
    return await shown(request)


async def files_listed(request: web.Request) -> web.Response:
    """In the order of the request, or the reverse. A file that was deleted from the store since is left out."""
    _, collection = collection_of(request)
    limit = query_int(request, "limit", LISTED, least=1, most=LISTED_MAX)
    backwards = order_of(request, default="asc") == "desc"
    status = request.query.get("filter")
    after, before = request.query.get("after"), request.query.get("before")

    def work() -> OpenAIStoreFileList:
        batch = batch_of(collection, request)
        ids = [
            one for one in batch.files if status in (None, "failed" if one in batch.failed else "completed")
        ]
        if backwards:
            ids.reverse()
        if after is not None:
            ids = ids[place_in(ids, after, "after") + 1 :]
        if before is not None:
            ids = ids[: place_in(ids, before, "before")]
        page = ids[-limit:] if before is not None and after is None else ids[:limit]
        files = [one for file_id in page if (one := file_body(collection, batch, file_id))]
        return OpenAIStoreFileList(files, *ends([one.id for one in files]), has_more=len(ids) > len(page))

    return await answer_from(work)


def place_in(ids: list[str], file_id: str, param: str) -> int:
    """Raises InvalidInput for a file that is not listed."""
    if file_id not in ids:
        raise InvalidInput(f"{param} names no file of this list: {file_id[:64]!r}", param=param)
    return ids.index(file_id)


def file_body(collection: Collection, batch: Kept, file_id: str) -> OpenAIStoreFile | None:
    """Reads the log: for a thread. None for a file that is not there any more."""
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
        return found_in(collection, file_id)
    except NotFound:
        return None


def batch_body(collection: Collection, batch: Kept) -> OpenAIFileBatch:
    total, failed = len(batch.files), len(batch.failed)
    return OpenAIFileBatch(
        id=batch.id,
        vector_store_id=PRINCIPAL.get().own(collection.name),
        created_at=batch.created_at,
        file_counts=OpenAIFileCounts(completed=total - failed, total=total, failed=failed),
        status="failed" if failed == total else "completed",
    )


# --- what is kept -------------------------------------------------------------------------------------------------


def keep(collection: Collection, batch: Kept) -> None:
    """Durably, in place of the oldest where there are too many."""
    folder = collection.folder / FOLDER
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
        others = sorted(folder.glob("vsfb_*.json"), key=written_ns, reverse=True)
    publish(folder / f"{batch.id}.json", msgspec.json.encode(batch))
    for one in others[KEPT_MAX - 1 :]:
        remove_durably(one)


def written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # removed by another request
        return 0


def batch_of(collection: Collection, request: web.Request) -> Kept:
    """Reads the disk: for a thread. Raises NotFound, and Forbidden for a caller that sees some documents only."""
    PRINCIPAL.get().require_whole()
    batch_id = request.match_info["batch"]
    # Nothing but an id may become part of a path.
    if ID.fullmatch(batch_id):
        path = collection.folder / FOLDER / f"{batch_id}.json"
        with disk_errors(path):
            try:
                batch = msgspec.json.decode(path.read_bytes(), type=Kept)
            except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
                batch = None
        if batch is not None and batch.version == VERSION:
            return batch
    raise NotFound(f"no batch {batch_id[:64]!r}; the latest {KEPT_MAX} are kept", param="batch_id")
