"""Copies a collection into another one with a different model, beside serving, and moves an alias to it.

    what the target has already  ->  write what is missing or differs, again until a pass finds nothing  ->  delete what
    the source no longer has  ->  move the alias  ->  once more, for what was written to the source meanwhile

A document is left alone where its text, title and metadata are the same in both, so a copy that was killed goes on
where it stopped, and a later one takes over only what changed. Vectors that clients sent themselves are not copied:
they belong to the old model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from indexes.model import Progress
from jobs.ingesting import CHARS_PER_REQUEST, DOCUMENTS_PER_REQUEST, write_patiently
from retrieval.client import JSON, Client, ServiceError

PASSES_MAX = 10  # a source that changes faster than it is copied is given up on
PAGE = 200


@dataclass(slots=True)
class Copied:
    """What was done. `unchanged` were in the target already."""

    written: int = 0
    unchanged: int = 0
    deleted: int = 0
    passes: int = 0
    seconds: float = 0.0


class Pace:
    """Lets so many documents a second through, on average since it began; 0 is as fast as they come."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._begun = time.monotonic()
        self._sent = 0

    async def wait(self, documents: int) -> None:
        self._sent += documents
        if self._per_s:
            await asyncio.sleep(max(0.0, self._begun + self._sent / self._per_s - time.monotonic()))


async def reembed(
    client: Client,
    source: str,
    target: str,
    *,
    model: str,
    alias: str | None,
    per_s: float,
    progress: Progress,
) -> Copied:
    """Make `target` hold what `source` does, embedded with `model`; then let `alias` name it.

    Raises ServiceError: NotFound for a missing source or model, a conflict where the target exists with another model
    or is the source itself, and where the source changes faster than it can be copied.
    """
    begun, copied, pace = time.monotonic(), Copied(), Pace(per_s)
    source = (await client.collection(source))["name"]
    made = await client.ensure_collection(target, model=model)
    if made["name"] == source:
        raise ServiceError("source and target are the same collection", status=409, kind="conflict")
    if made["model"] != model:
        raise ServiceError(
            f"{target} exists with the model {made['model']}, not {model}", status=409, kind="conflict"
        )
    target = made["name"]
    known = {one["id"]: digest(one) async for one in client.scroll(target, limit=PAGE)}
    while True:
        seen: set[str] = set()
        fresh = await one_pass(client, source, target, known, seen, copied, pace, progress)
        if not fresh:
            break
        if copied.passes >= PASSES_MAX:
            raise ServiceError(
                f"{source} changes faster than it is copied: {fresh} documents in the last pass"
            )
    for document in sorted(known.keys() - seen):
        await client.delete(target, document)
        del known[document]
        copied.deleted += 1
    if alias is not None:
        await client.set_alias(alias, target)
        await catch_up(client, source, target, known, copied)
    copied.seconds = time.monotonic() - begun
    return copied


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
    copied.passes += 1
    written = unchanged = 0
    stage = "copying" if copied.passes == 1 else f"copying what changed, pass {copied.passes}"
    async for batch, passed in changed(client, source, known, seen):
        if batch:
            await write_patiently(client, target, [contents(one) for one in batch])
            known.update((one["id"], digest(one)) for one in batch)
            await pace.wait(len(batch))
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


async def catch_up(client: Client, source: str, target: str, known: dict[str, bytes], copied: Copied) -> None:
    """What reached the source while the alias moved; never over what clients have written to the target since."""
    async for document in client.scroll(source, limit=PAGE):
        if known.get(document["id"]) == digest(document):
            continue
        try:
            present = digest(await client.document(target, document["id"]))
        except ServiceError as error:
            if error.status != 404:
                raise
            present = None
        if present == known.get(document["id"]):
            await write_patiently(client, target, [contents(document)])
            copied.written += 1


def contents(document: JSON) -> JSON:
    return {name: document[name] for name in ("id", "text", "title", "metadata")}


def digest(document: JSON) -> bytes:
    """The same for two documents that would be embedded, found and shown the same."""
    values = [document["text"], document["title"], sorted(document["metadata"].items())]
    return blake2b(msgspec.json.encode(values), digest_size=16).digest()
