"""Writes documents: checks them, cuts them into passages, embeds those, and writes all to the log atomically.

Documents that the collection already holds unchanged are recognized by their digests before any of that work and
cost only a lookup. Everything that can be refused is refused before the first passage is embedded, so a bad document
never leaves a request partly written.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from indexes.base.errors import InvalidInput, NearlineError, TooLarge
from indexes.base.languages import check_language
from indexes.base.model import Floats, Metadata, NewPassage, Upsert, WriteResult
from indexes.base.work import OnStep, do_nothing
from indexes.collection.collection import Collection
from indexes.filters.dates import expires_ms_of
from indexes.filters.grammar import Filter
from indexes.log.content import DIGEST_BYTES
from indexes.log.reader import searchable_text
from indexes.reading import choosing
from indexes.reading.choosing import ChosenDocuments
from retrieval.admission.gates import AdmittedRequest
from retrieval.base.cancellation import run_abandonable
from retrieval.base.settings import Config, PassagesSection
from retrieval.documents.chunking import CHUNKING_VERSION, Span, split
from retrieval.documents.metadata import (
    check_limits,
    check_metadata,
    metadata_of,
    patch_metadata,
)
from retrieval.documents.outline import has_literals
from retrieval.embedding.embedders import Embedder, Embedders
from retrieval.wire.documents import SentDocument
from retrieval.wire.vectors import vector_of, vectors_of

T = TypeVar("T")

TITLE_TOKENS_MAX = 48  # of a passage's budget; a longer title is truncated for embedding, but stored whole
SPECIAL_TOKENS = 2
CONTROL_CHARACTER = re.compile(r"[\0-\x1f\x7f]")
CODE_KEY = (
    "programming_language"  # in the metadata of a document that is source code; `nearline ingest` sets it
)
CODE_VERSION, LITERALS_VERSION = 2, 1  # of the rules for just these documents; see CHUNKING_VERSION
INLINE_CHARS = 4000  # about a millisecond of work
VECTOR_BYTES_PER_CHAR = 32  # as many bytes of a vector's JSON take as long as a character of text


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDocument:
    """A document as it will be stored, checked and with its fields decoded. A `vector` of its own is normalized."""

    id: str
    text: str
    title: str = ""
    metadata: Metadata = field(default_factory=dict)
    vector: Floats | None = None
    language: str = ""  # empty: the collection's
    expires_ms: int | None = None


async def write_documents(
    collection: Collection,
    embedders: Embedders,
    sent: list[SentDocument],
    config: Config,
    entry: AdmittedRequest,
) -> WriteResult:
    """Write all documents or none, synced and searchable on return. `entry` is told the progress.

    Documents unchanged at the start are left alone, even if another request changes them during this one. Raises
    InvalidInput or TooLarge naming the field.
    """
    chars = sum(len(one.text) + len(one.metadata) + len(one.vector) // VECTOR_BYTES_PER_CHAR for one in sent)
    dimensions = collection.settings.dimensions
    embeds = collection.settings.embeds

    def check() -> list[tuple[NewDocument, bytes, int]]:
        documents = check_documents(sent, dimensions, config, embeds=embeds)
        return [(one, digest_of(one, config.passages), text_bytes(one)) for one in documents]

    checked = await off_loop(chars, check)
    known = await asyncio.to_thread(collection.log.digests, [document.id for document, _, _ in checked])
    changed = [one for one in checked if known.get(one[0].id) != one[1]]
    fresh = [document for document, _, _ in changed]
    entry.expect(sum(size for _, _, size in changed))
    if any(document.vector is None for document in fresh):
        embedder = await embedders.of(collection)
        upserts = await embed(fresh, embedder, config, embedders.cutting, entry)
    else:
        upserts = await off_loop(chars, lambda: [with_vector(document) for document in fresh])

    if collection.has_long(upserts):
        upserts = await run_abandonable(
            partial(collection.analyzed, upserts), threads=embedders.cutting(chars)
        )

    def write() -> Future[WriteResult]:
        digests = (digest for _, digest, _ in changed)
        return collection.write(
            [replace(one, digest=digest) for one, digest in zip(upserts, digests, strict=True)]
        )

    # Even with nothing left to write: unchanged documents are searchable once the writer gets to this.
    # On a thread, because this detects languages, and the first call loads the detector.
    result = await asyncio.wrap_future(await asyncio.to_thread(write))
    return replace(result, unchanged=len(checked) - len(fresh))


async def delete_matching(collection: Collection, condition: Filter) -> WriteResult:
    """Delete the documents that match now. Those that are replaced before their turn stay unless they still match."""
    chosen = await run_abandonable(partial(choosing.matching, collection, condition))
    write = partial(collection.delete_among, condition=condition)
    return await write_in_parts(collection, chosen, write, "deleted")


async def write_in_parts(
    collection: Collection,
    chosen: ChosenDocuments,
    write: Callable[[dict[str, int]], Future[WriteResult]],
    done: str,
    together: int | None = None,
) -> WriteResult:
    """Write what concerns these documents, and return the sum.

    Commits have documents of `together` passages, by default `commit_ops_max`, so other writes can go in between and
    memory does not grow with their texts. An error midway says how many are already `done`, and so does the note of a
    cancellation. `write` removes from a part what it has dealt with, and is repeated until the part is empty.
    """
    total = WriteResult(collection.snapshot.seq, documents=0, passages=0, tokens=0, deleted=0)
    for part in chosen.parts(together or collection.options.commit_ops_max):
        while part:
            try:
                one = await asyncio.wrap_future(write(part))
            except asyncio.CancelledError as cancelled:
                cancelled.add_note(f"{total.documents + total.deleted} or more documents were already {done}")
                raise
            except NearlineError as error:
                if not (already := total.documents + total.deleted):
                    raise
                told = copy.copy(error)
                told.message += f"; {already} documents were already {done}, up to seq {total.seq}"
                raise told from error
            total = replace(
                total,
                seq=one.seq,
                documents=total.documents + one.documents,
                passages=total.passages + one.passages,
                deleted=total.deleted + one.deleted,
            )
    return total


def text_bytes(document: NewDocument) -> int:
    """Return the number of bytes to embed."""
    return len(document.text.encode()) if document.vector is None else 0


def digest_of(document: NewDocument, passages: PassagesSection) -> bytes:
    """Return a digest that is equal for documents stored alike by one model. The order of metadata keys does not
    matter."""
    # Code, languages and literal blocks were added later, so documents without them keep their digests.
    code = (CODE_KEY, CODE_VERSION) if is_code(document) else ()
    literals = () if code or not has_literals(document.text) else (LITERALS_VERSION,)
    shaped_by = (CHUNKING_VERSION, passages.tokens_max, passages.overlap_tokens, *code, *literals)
    language = (document.language,) if document.language else ()
    expires = () if document.expires_ms is None else (document.expires_ms,)
    vector = None if document.vector is None else document.vector.tobytes()
    encoded = msgspec.msgpack.encode(
        (document.text, document.title, document.metadata, vector or shaped_by, *language, *expires),
        order="deterministic",
    )
    return blake2b(encoded, digest_size=DIGEST_BYTES, person=b"nearline-docum-1").digest()


def patcher(
    patch: Metadata, config: Config, expires_ms: int | UnsetType | None = UNSET
) -> Callable[[Upsert], Upsert]:
    """Return what merges a patch into the metadata of a stored document, without embedding again; UNSET leaves the
    expiry. It raises TooLarge or InvalidInput for the result."""

    def change(stored: Upsert) -> Upsert:
        metadata = patch_metadata(stored.metadata, patch)
        expires = stored.expires_ms if expires_ms is UNSET else expires_ms
        if metadata is stored.metadata and expires == stored.expires_ms:
            return stored
        check_limits(stored.title, check_metadata(metadata, "metadata"), "metadata", config)
        return replace(stored, metadata=metadata, expires_ms=expires)

    return change


def naming_document(change: Callable[[Upsert], Upsert]) -> Callable[[Upsert], Upsert]:
    """Return the same change, whose errors say which document cannot be changed."""

    def named(stored: Upsert) -> Upsert:
        try:
            return change(stored)
        except NearlineError as error:
            error.message = f"document {stored.id!r}: {error.message}"
            raise

    return named


async def off_loop(chars: int, work: Callable[[], T]) -> T:
    """Run `work` on a thread if the text is long enough to delay searches; for a short one, waking a thread takes
    longer."""
    return work() if chars <= INLINE_CHARS else await asyncio.to_thread(work)


def check_documents(
    documents: list[SentDocument], dimensions: int, config: Config, *, embeds: bool = True
) -> list[NewDocument]:
    """Return the documents as they will be stored; unless the collection `embeds`, each needs a vector. Raises
    InvalidInput or TooLarge for the first bad one."""
    limits = config.limits
    if not documents:
        raise InvalidInput("documents is empty, expected at least one", param="documents")
    if len(documents) > limits.documents_per_request_max:
        raise TooLarge(
            f"{len(documents)} documents in one request, at most {limits.documents_per_request_max} are allowed",
            param="documents",
        )
    seen: dict[str, int] = {}
    checked = []
    vectors = vectors_of([sent.vector for sent in documents], dimensions)
    for at, (sent, vector) in enumerate(zip(documents, vectors, strict=True)):
        where = f"documents[{at}]"
        document = NewDocument(
            id=str(sent.id),
            text=sent.text,
            title=sent.title,
            metadata=metadata_of(sent.metadata, f"{where}.metadata", config),
            vector=vector_of(sent.vector, dimensions, f"{where}.vector") if vector is None else vector,
            language=check_language(sent.language, f"{where}.language") if sent.language else "",
            expires_ms=expires_ms_of(sent.expires_at, f"{where}.expires_at"),
        )
        check_document(document, where, config)
        if (first := seen.setdefault(document.id, at)) != at:
            raise InvalidInput(
                f"{where}.id {document.id!r} is also documents[{first}].id", param=f"{where}.id"
            )
        if document.vector is None and not embeds:
            raise InvalidInput(
                f"{where}.vector is missing: the collection has no model to embed the text with",
                param=f"{where}.vector",
            )
        checked.append(document)
    return checked


def check_document(document: NewDocument, where: str, config: Config) -> None:
    limits = config.limits
    if not document.text.strip() and not document.title.strip():
        raise InvalidInput(f"{where}.text is empty, expected text or a title", param=f"{where}.text")
    size = len(document.text.encode())
    if size > limits.document_bytes_max:
        raise TooLarge(
            f"{where}.text has {size} bytes, at most {limits.document_bytes_max} are allowed",
            param=f"{where}.text",
        )
    if len(document.id) > limits.id_chars_max:
        raise TooLarge(f"{where}.id is longer than {limits.id_chars_max} characters", param=f"{where}.id")
    check_limits(document.title, document.metadata, f"{where}.metadata", config)
    for name, text in (("id", document.id), ("text", document.text), ("title", document.title)):
        if "\0" in text:
            raise InvalidInput(f"{where}.{name} holds a NUL character", param=f"{where}.{name}")
    if CONTROL_CHARACTER.search(document.id):
        raise InvalidInput(f"{where}.id holds a control character", param=f"{where}.id")
    if document.id in (".", ".."):
        raise InvalidInput(
            f"{where}.id is {document.id!r}, which clients remove from URLs, so it could not be read back",
            param=f"{where}.id",
        )


async def embed(
    documents: list[NewDocument],
    embedder: Embedder,
    config: Config,
    cutting: Callable[[int], Executor],
    entry: AdmittedRequest,
) -> list[Upsert]:
    """Chunk and embed documents, except those that bring their own vectors. Long documents are chunked on the
    threads of `cutting`; all passages are embedded together."""

    def cut(on_step: OnStep) -> list[list[Piece]]:
        return [chunk(document, embedder, config, on_step) for document in documents]

    chars = sum(len(one.text) for one in documents)
    if chars <= INLINE_CHARS:
        pieces = [chunk(document, embedder, config) for document in documents]
    else:
        pieces = await run_abandonable(cut, threads=cutting(chars))
    texts = [piece.embedded for spans in pieces for piece in spans]
    vectors = await embedder.documents(texts, entry.advance) if texts else np.empty((0, 0), np.float32)
    return await off_loop(chars, lambda: assemble(documents, pieces, vectors))


def assemble(documents: list[NewDocument], pieces: list[list[Piece]], vectors: Floats) -> list[Upsert]:
    """Return the documents with their passages; `vectors` [passages, dimensions] are those of all pieces, in order."""
    upserts, at = [], 0
    for document, own in zip(documents, pieces, strict=True):
        if document.vector is not None:
            upserts.append(with_vector(document))
            continue
        upserts.append(upsert_of(document, own, vectors[at : at + len(own)]))
        at += len(own)
    return upserts


class Piece(msgspec.Struct, frozen=True):
    """A future passage: its position and the text that is embedded for it (with the title)."""

    span: Span
    embedded: str


def chunk(
    document: NewDocument, embedder: Embedder, config: Config, on_step: OnStep = do_nothing
) -> list[Piece]:
    """Return the document's passages. A document with only a title is one empty passage, found by its title."""
    if document.vector is not None:
        return []
    counter = embedder.counter
    title = document.title
    tokens_max = min(config.passages.tokens_max, embedder.encoder.tokens_max - SPECIAL_TOKENS)
    if not document.text.strip():
        starts = counter.starts(title)
        return [Piece(Span(0, 0), title if len(starts) <= tokens_max else title[: starts[tokens_max]])]
    title_starts = counter.starts(title) if title else ()
    if len(title_starts) > TITLE_TOKENS_MAX:
        title = title[: title_starts[TITLE_TOKENS_MAX]]
    room = embedder.encoder.tokens_max - SPECIAL_TOKENS - min(len(title_starts), TITLE_TOKENS_MAX)
    tokens_max = min(tokens_max, room)
    overlap = min(config.passages.overlap_tokens, tokens_max // 4)
    starts_of = partial(counter.starts, on_step=on_step)
    spans = split(
        document.text,
        starts_of,
        tokens_max=tokens_max,
        overlap_tokens=overlap,
        code=is_code(document),
        on_step=on_step,
    )
    pieces = []
    for span in spans:
        on_step()
        pieces.append(Piece(span, searchable_text(title, document.text[span.start : span.end])))
    return pieces


def is_code(document: NewDocument) -> bool:
    return bool(document.metadata.get(CODE_KEY))


def upsert_of(document: NewDocument, pieces: list[Piece], vectors: Floats) -> Upsert:
    passages = tuple(
        NewPassage(piece.span.start, piece.span.end, piece.span.tokens, vector, piece.span.heading)
        for piece, vector in zip(pieces, vectors, strict=True)
    )
    return upsert(document, passages)


def with_vector(document: NewDocument) -> Upsert:
    """Return a document that brings its own vector as one passage, whatever its length."""
    assert document.vector is not None
    return upsert(document, (NewPassage(0, len(document.text), 0, document.vector),))


def upsert(document: NewDocument, passages: tuple[NewPassage, ...]) -> Upsert:
    return Upsert(
        document.id,
        document.text,
        document.title,
        document.metadata,
        passages,
        language=document.language,
        expires_ms=document.expires_ms,
    )
