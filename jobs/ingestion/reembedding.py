"""Copies a live collection into another one with a different model and moves an alias to it.

    digest the target's documents  ->  write what is missing or differs, in passes until one finds little
    ->  have the source refuse writes for a moment: copy and delete what is left, and move the alias

Documents with equal text, title, metadata and language in both are skipped, so a killed copy resumes where it stopped
and a later run copies only changes. A language is sent only if the target would detect another, so that writing the
document again without a language changes nothing. Vectors supplied by clients belong to the old model and are not
copied.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from indexes.base.languages import AUTO, language_of
from jobs.ingestion.rate_limiter import RateLimiter
from nearline import JSON, AsyncClient, ServiceError, bulk_patience, path_of
from retrieval.clients.bulk import CHARS_PER_REQUEST, DOCUMENTS_PER_REQUEST

if TYPE_CHECKING:  # it imports numpy, which would slow down command startup
    from indexes.base.model import Progress

PAGE = 200
HELD_S = 30.0  # before it is renewed, at each batch


@dataclass(slots=True)
class Copied:
    """Counts of what was done. `unchanged` documents were already in the target."""

    written: int = 0
    unchanged: int = 0
    deleted: int = 0
    passes: int = 0
    seconds: float = 0.0


async def reembed(
    client: AsyncClient,
    source: str,
    target: str,
    *,
    model: str,
    alias: str | None,
    pace: RateLimiter,
    progress: Progress,
) -> Copied:
    """Copy the documents of `source` to `target`, embedded with `model`; then point `alias` at it.

    `pace` limits the rate of writes. Raises ServiceError: not found for a missing source or model; conflict if the
    target has another model, holds other documents or is the source itself, if the alias is a collection's name or
    names the target already, or if the source changes faster than it is copied.
    """
    begun = time.monotonic()
    origin = await client.collection(source)
    source = origin["name"]
    if alias is not None:
        named = await none_if_missing(client.collection(alias))
        if alias == (named["name"] if named else target):
            raise conflict(f"{alias!r} is the name of a collection, so it cannot be an alias")
    made = await client.ensure_collection(
        target, model=model, language=origin["language"], field_weights=origin["field_weights"]
    )
    if made["name"] == source:
        raise conflict("source and target are the same collection")
    if alias is not None and named is not None and named["name"] == made["name"]:
        raise conflict(
            f"{alias} names {target} already, and another copy would undo what was written to it since; nothing was "
            "done. To copy nevertheless, leave out the alias"
        )
    copy = CollectionCopy(client, source, made["name"], pace, made["language"])
    await copy.look()
    before = math.inf
    while (fresh := await copy.one_pass(progress)) > DOCUMENTS_PER_REQUEST:
        if fresh >= before:
            raise conflict(f"{source} changes faster than it is copied: {fresh} documents in the last pass")
        before = fresh
    if alias is None:
        await copy.set_synonyms(await copy.synonyms())
        await copy.copy_changed()
        await copy.delete_gone()
    else:
        await copy.finish(alias)
    copy.copied.seconds = time.monotonic() - begun
    return copy.copied


class CollectionCopy:
    """A copy in progress. `known` maps ids to digests of documents found in or written to the target; `language` is the
    target's default language."""

    def __init__(
        self, client: AsyncClient, source: str, target: str, pace: RateLimiter, language: str
    ) -> None:
        self.target = target
        self.copied = Copied()
        self.known: dict[str, bytes] = {}
        self._client = client
        self._source = source
        self._pace = pace
        self._language = language
        self._patience = bulk_patience()
        self._cursor: str | None = None  # of the source's last page: what is written later follows there

    async def look(self) -> None:
        """Digest the target's documents. Raises ServiceError if it has some but none of the source's."""
        self.known = {one["id"]: digest(one) async for one in self._client.scroll(self.target, limit=PAGE)}
        if not self.known:
            return
        async for document in self._documents():
            if document["id"] in self.known:
                return
        raise conflict(
            f"{self.target} holds {len(self.known)} documents, none of them of {self._source}: "
            "all would be deleted; name a new collection"
        )

    async def one_pass(self, progress: Progress) -> int:
        """Write the source's documents that are missing or different in the target, and return their number."""
        total = (await self._client.count(self._source))["documents"]
        self.copied.passes += 1
        written = unchanged = 0
        stage = "copying" if self.copied.passes == 1 else f"copying what changed, pass {self.copied.passes}"
        async for batch, skipped in self._changed():
            if batch:
                await self._write(batch)
            written += len(batch)
            unchanged += skipped
            progress(stage, written + unchanged, total)
        if self.copied.passes == 1:
            self.copied.unchanged = unchanged
        return written

    async def _changed(self, cursor: str | None = None) -> AsyncIterator[tuple[list[JSON], int]]:
        """Yield batches of documents to write, each with the number skipped since the last. With `cursor`, only of what
        was written since that page."""
        batch: list[JSON] = []
        chars = skipped = 0
        async for document in self._documents(cursor):
            if self.known.get(document["id"]) == digest(document):
                skipped += 1
            else:
                batch.append(document)
                chars += len(document["text"])
            if len(batch) >= DOCUMENTS_PER_REQUEST or chars >= CHARS_PER_REQUEST or skipped >= PAGE:
                yield batch, skipped
                batch, chars, skipped = [], 0, 0
        yield batch, skipped

    async def synonyms(self) -> list[list[str]]:
        """The source's synonyms."""
        answer = await self._client.request("GET", path_of(self._source, "synonyms"))
        found: list[list[str]] = answer["synonyms"]
        return found

    async def set_synonyms(self, synonyms: list[list[str]]) -> None:
        """Give the target these synonyms in the place of its own."""
        method, wanted = ("PUT", {"synonyms": synonyms}) if synonyms else ("DELETE", None)
        await self._client.request(method, path_of(self.target, "synonyms"), wanted)

    async def copy_changed(
        self, cursor: str | None = None, after_batch: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Write what differs, of all or of what was written since a page."""
        async for batch, _ in self._changed(cursor):
            if batch:
                await self._write(batch)
            if after_batch is not None:
                await after_batch()

    async def delete_gone(self) -> None:
        """Delete from the target what the source no longer has."""
        present = {one["id"] async for one in self._documents()}
        gone = sorted(self.known.keys() - present)
        for at in range(0, len(gone), DOCUMENTS_PER_REQUEST):
            ids = gone[at : at + DOCUMENTS_PER_REQUEST]
            # Some may have expired there, too.
            self.copied.deleted += (await self._client.delete_documents(self.target, ids=ids))["deleted"]
            for one in ids:
                del self.known[one]

    async def finish(self, alias: str) -> None:
        """Copy what is left while the source refuses writes, and move the alias: nothing is left to be copied then, and
        no write that began before goes to the source."""
        try:
            before = None
            # Until two holds say the same: if one ended before the next began, something may have changed.
            while (held := (await self._hold(), await self.synonyms())) != before:
                before = held
                await self.set_synonyms(held[1])
                # Shards are listed one after the other, so what is new is not at the end.
                await self.copy_changed(
                    self._cursor if isinstance(held[0], int) else None, after_batch=self._hold
                )
                if (await self._client.count(self._source))["documents"] != len(self.known):
                    await self.delete_gone()
            await self._client.set_alias(alias, self.target)
        finally:
            with contextlib.suppress(ServiceError):  # it ends by itself
                await self._client.hold(self._source, 0)

    async def _hold(self) -> int | str:
        return (await self._client.hold(self._source, HELD_S))["seq"]

    async def _documents(self, cursor: str | None = None) -> AsyncIterator[JSON]:
        """Yield every document of the source, or those from a page on, in the order of writing."""
        path, asked = path_of(self._source, "documents", "scroll"), {"limit": PAGE}
        self._cursor = cursor
        while True:
            page = await self._client.request(
                "POST", path, asked if cursor is None else asked | {"cursor": cursor}
            )
            for document in page["documents"]:
                yield document
            if (cursor := page["cursor"]) is None:
                return
            self._cursor = cursor

    async def _write(self, batch: list[JSON]) -> None:
        await self._pace(len(batch))
        await self._client.write(
            self.target, [self._select_fields(one) for one in batch], patience=self._patience
        )
        self.known.update((one["id"], digest(one)) for one in batch)
        self.copied.written += len(batch)

    def _select_fields(self, document: JSON) -> JSON:
        given = language_of(document["title"], document["text"]) if self._language == AUTO else self._language
        wanted = (
            "id",
            "text",
            "title",
            "metadata",
            *(("language",) if document["language"] != given else ()),
            *(("expires_at",) if "expires_at" in document else ()),
        )
        return {name: document[name] for name in wanted}


async def none_if_missing(answer: Awaitable[JSON]) -> JSON | None:
    """Return the answer, or None for status 404."""
    try:
        return await answer
    except ServiceError as error:
        if error.status != 404:
            raise
        return None


def conflict(message: str) -> ServiceError:
    return ServiceError(message, status=409, kind="conflict")


def digest(document: JSON) -> bytes:
    """Hash what a copy preserves: equal digests mean that a document need not be copied."""
    title, language = document["title"], document["language"]
    values = [document["text"], title, language, sorted(document["metadata"].items())]
    values += [document["expires_at"]] if "expires_at" in document else []
    return blake2b(msgspec.json.encode(values), digest_size=16).digest()
