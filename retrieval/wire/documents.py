"""The wire types of documents: writing, listing, counting and deleting them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from indexes.base.model import Metadata
from retrieval.base.settings import Whole
from retrieval.wire.decoding import IdsJson, MetadataJson, absent, no_metadata
from retrieval.wire.search import Condition, Doc, DocumentId, End, OwnVector, Request, Seq, Start

Expiry = Annotated[
    str | Whole | None,
    Doc("When it expires: an ISO 8601 date, or milliseconds since 1970; null: never"),
]


class SentDocument(Request, frozen=True, kw_only=True):
    """A document as clients send it. A number as `id` becomes the string of its digits. A document without a text
    needs a title and is found by that."""

    id: Annotated[DocumentId, Doc("Unique in its collection; a number is the string of its digits")]
    text: Annotated[str, Doc("The text; may be empty if there is a title")] = ""
    title: Annotated[str, Doc("Title of the document")] = ""
    metadata: MetadataJson = field(default_factory=no_metadata)
    vector: OwnVector = field(default_factory=absent)
    language: Annotated[
        str | None,
        Doc(
            "BCP 47 code of its language, such as `en` or `pt-BR`; `auto`: detected; absent: the collection's"
        ),
    ] = None
    expires_at: Expiry = None


class WriteDocuments(Request, frozen=True, kw_only=True):
    """`wait` is accepted for clients that send it; an answer always means synced and searchable."""

    documents: Annotated[list[SentDocument], Doc("Documents to write; those with a known id are replaced")]
    wait: Annotated[bool, Doc("Accepted and ignored: an answer always means synced and searchable")] = True


class PatchDocument(Request, frozen=True, kw_only=True):
    """A JSON merge patch (RFC 7396) of the metadata: null removes a key, and keys that are not named stay as they
    are.

    An absent `expires_at` stays as it is, and null removes it. At least one of the two is required.
    """

    metadata: Annotated[MetadataJson, Meta(extra_json_schema={"type": ["object", "null"]})] = field(
        default_factory=absent
    )
    expires_at: Expiry | UnsetType = UNSET


class PatchDocuments(PatchDocument, frozen=True, kw_only=True):
    """A patch of the documents with these ids, or of all that match the filter. Ids that do not exist are skipped."""

    ids: Annotated[IdsJson, Doc("Ids of documents")] = field(default_factory=absent)
    filter: Condition = field(default_factory=absent)


class DeleteDocuments(Request, frozen=True, kw_only=True):
    ids: Annotated[IdsJson, Doc("Ids of documents")] = field(default_factory=absent)
    filter: Condition = field(default_factory=absent)


class ScrollDocuments(Request, frozen=True, kw_only=True):
    """One page in the order of writing. `cursor` comes from the previous page; use the same filter for all pages."""

    filter: Condition = field(default_factory=absent)
    cursor: Annotated[str | None, Doc("Where the page begins: `cursor` of the previous page")] = None
    limit: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        Doc("Documents on one page, at most as many as `limits.page_limit_max` allows"),
    ] = 100
    vectors: Annotated[
        bool, Doc("Whether to list the passages with their vectors; a key needs the scope `vectors`")
    ] = False
    text: Annotated[bool, Doc("Whether to return texts")] = True


class CountDocuments(Request, frozen=True, kw_only=True):
    filter: Condition = field(default_factory=absent)


class Written(msgspec.Struct, kw_only=True):
    """`documents` were written, as this many passages with this many tokens to embed; `unchanged` were already
    stored."""

    seq: Seq
    documents: Annotated[int, Doc("Number of documents")]
    unchanged: Annotated[int, Doc("Documents that were already stored unchanged")]
    passages: Annotated[int, Doc("Number of passages")]
    tokens: Annotated[int, Doc("Number of tokens")]
    took_ms: Annotated[float, Doc("Milliseconds until the write was synced and searchable")]


class Patched(msgspec.Struct):
    seq: Seq
    changed: Annotated[int, Doc("Documents changed; those that were already so are not counted")]


class Deleted(msgspec.Struct):
    seq: Seq
    deleted: Annotated[int, Doc("Documents deleted")]


class PassageBody(msgspec.Struct):
    """`text[start:end]` of its document, with its vector."""

    passage: Annotated[int, Doc("Position of the passage in its document, from 0")]
    start: Start
    end: End
    tokens: Annotated[int, Doc("Number of tokens")]
    vector: Annotated[list[float], Doc("The unit vector it is searched by, with the configured noise")]


class DocumentBody(msgspec.Struct, kw_only=True):
    """`passages` is their number, or the passages themselves with `vectors`. A scroll may leave out `text`."""

    id: Annotated[str, Doc("Unique in its collection; a number is the string of its digits")]
    seq: Seq
    text: Annotated[str | UnsetType, Doc("The text")] = UNSET
    title: Annotated[str, Doc("Title of the document")]
    metadata: Annotated[Metadata, Doc("As it was sent")]
    passages: Annotated[int | list[PassageBody], Doc("Number of passages")]
    language: Annotated[str, Doc("BCP 47 code of its language, as sent or detected when it was written")]
    expires_at: Annotated[str | UnsetType, Doc("When it expires, in UTC; absent: never")] = UNSET


class DocumentPage(msgspec.Struct):
    """`next_cursor` is null on the last page. A page of long documents may hold fewer than `limit`."""

    documents: Annotated[list[DocumentBody], Doc("In the order they were written")]
    next_cursor: Annotated[str | None, Doc("`cursor` of the next page; null on the last one")]


class ScrollPage(msgspec.Struct):
    """`cursor` is null on the last page. A page of long documents may hold fewer than `limit`."""

    documents: Annotated[list[DocumentBody], Doc("In the order they were written")]
    cursor: Annotated[str | None, Doc("Where the next page begins; null on the last one")]


class CountBody(msgspec.Struct):
    """The number of matching documents, or of all, after operation `seq`."""

    documents: Annotated[int, Doc("Number of documents")]
    passages: Annotated[int, Doc("Number of passages")]
    seq: Seq
