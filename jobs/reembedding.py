"""Copies a collection into another one with a different model, beside serving, and moves an alias to it.

    what the target has already  ->  write what is missing or differs, again until a pass finds little  ->  delete what
    the source no longer has  ->  move the alias  ->  once more, for what was written or deleted meanwhile

A document is left alone where its text, title and metadata are the same in both, so a copy that was killed goes on
where it stopped, and a later one takes over only what changed. Vectors that clients sent themselves are not copied:
they belong to the old model.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from indexes.model import Progress
from jobs.ingesting import CHARS_PER_REQUEST, DOCUMENTS_PER_REQUEST, PatientWriter
from jobs.pace import Pace
from retrieval.client import JSON, Client, ServiceError

PAGE = 200


@dataclass(slots=True)
class Copied:
    """What was done. `unchanged` were in the target already."""

    written: int = 0
    unchanged: int = 0
    deleted: int = 0
    passes: int = 0
    seconds: float = 0.0


async def reembed(
    client: Client,
    source: str,
    target: str,
    *,
    model: str,
    alias: str | None,
    pace: Pace,
    progress: Progress,
) -> Copied:
    """Make `target` hold what `source` does, embedded with `model`; then let `alias` name it.

    `pace` is asked before documents are written. Raises ServiceError: NotFound for a missing source or model, a
    conflict where the target exists with another model, holds other documents or is the source itself, where the alias
    is a collection, and where the source changes faster than it can be copied.
    """
    begun, copied = time.monotonic(), Copied()
    source = (await client.collection(source))["name"]
    if alias is not None and (await named(client, alias) or target) == alias:
        raise ServiceError(
            f"{alias!r} is the name of a collection, so it cannot be an alias", status=409, kind="conflict"
        )
    made = await client.ensure_collection(target, model=model)
    if made["name"] == source:
        raise ServiceError("source and target are the same collection", status=409, kind="conflict")
    if made["model"] != model:
        raise ServiceError(
            f"{target} exists with the model {made['model']}, not {model}", status=409, kind="conflict"
        )
    target = made["name"]
    known = {one["id"]: digest(one) async for one in client.scroll(target, limit=PAGE)}
    if known and not await shares_any(client, source, known.keys()):
        raise ServiceError(
            f"{target} holds {len(known)} documents, none of them of {source}: all would be deleted; "
            "name a new collection",
            status=409,
            kind="conflict",
        )
    before = math.inf
    while True:
        seen: set[str] = set()
        fresh = await one_pass(client, source, target, known, seen, copied, pace, progress)
        if fresh <= DOCUMENTS_PER_REQUEST:
            break
        if fresh >= before:
            raise ServiceError(
                f"{source} changes faster than it is copied: {fresh} documents in the last pass",
                status=409,
                kind="conflict",
            )
        before = fresh
    for document in sorted(known.keys() - seen):
        await client.delete(target, document)
        del known[document]
        copied.deleted += 1
    if alias is not None:
        await client.set_alias(alias, target)
    await catch_up(client, source, target, known, copied, pace)
    copied.seconds = time.monotonic() - begun
    return copied


async def shares_any(client: Client, source: str, ids: Collection[str]) -> bool:
    async for document in client.scroll(source, limit=PAGE):
        if document["id"] in ids:
            return True
    return False


async def named(client: Client, name: str) -> str | None:
    """The collection that a name or an alias stands for, if any."""
    try:
        return str((await client.collection(name))["name"])
    except ServiceError as error:
        if error.status != 404:
            raise
        return None


async def one_pass(
    client: Client,
    source: str,
    target: str,
    known: dict[str, bytes],
    seen: set[str],
    copied: Copied,
    pace: Pace,
    progress: Progress,
) -> int:
    """Write every document of the source that the target does not hold as it is; returns how many."""
    total = (await client.count(source))["documents"]
    writer = PatientWriter(client, target)
    copied.passes += 1
    written = unchanged = 0
    stage = "copying" if copied.passes == 1 else f"copying what changed, pass {copied.passes}"
    async for batch, passed in changed(client, source, known, seen):
        if batch:
            await pace(len(batch))
            await writer.write([contents(one) for one in batch])
            known.update((one["id"], digest(one)) for one in batch)
        written += len(batch)
        unchanged += passed
        progress(stage, written + unchanged, total)
    copied.written += written
    if copied.passes == 1:
        copied.unchanged = unchanged
    return written


async def changed(
    client: Client, source: str, known: dict[str, bytes], seen: set[str]
) -> AsyncIterator[tuple[list[JSON], int]]:
    """Batches of documents to write, each with how many were passed over beside it."""
    batch: list[JSON] = []
    chars = passed = 0
    async for document in client.scroll(source, limit=PAGE):
        seen.add(document["id"])
        if known.get(document["id"]) == digest(document):
            passed += 1
        else:
            batch.append(document)
            chars += len(document["text"])
        if len(batch) >= DOCUMENTS_PER_REQUEST or chars >= CHARS_PER_REQUEST or passed >= PAGE:
            yield batch, passed
            batch, chars, passed = [], 0, 0
    yield batch, passed


async def catch_up(
    client: Client, source: str, target: str, known: dict[str, bytes], copied: Copied, pace: Pace
) -> None:
    """What was written to the source or deleted there since; never over what clients did to the target meanwhile."""

    writer = PatientWriter(client, target)

    async def untouched(document_id: str) -> bool:
        try:
            present = digest(await client.document(target, document_id))
        except ServiceError as error:
            if error.status != 404:
                raise
            present = None
        return present == known.get(document_id)

    seen: set[str] = set()
    async for document in client.scroll(source, limit=PAGE):
        seen.add(document["id"])
        if known.get(document["id"]) == digest(document):
            continue
        await pace()
        if await untouched(document["id"]):
            await writer.write([contents(document)])
            copied.written += 1
    for document_id in sorted(known.keys() - seen):
        if await untouched(document_id):
            await client.delete(target, document_id)
            copied.deleted += 1


def contents(document: JSON) -> JSON:
    return {name: document[name] for name in ("id", "text", "title", "metadata")}


def digest(document: JSON) -> bytes:
    """The same for two documents that would be embedded, found and shown the same."""
    values = [document["text"], document["title"], sorted(document["metadata"].items())]
    return blake2b(msgspec.json.encode(values), digest_size=16).digest()
