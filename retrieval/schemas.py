"""The wire types, version 1: what requests may hold and what answers do.

Requests refuse unknown fields and wrong types (`decoding`). Limits that an operator sets are checked where they apply,
not here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from indexes.catalog import NAME
from indexes.dense.cold_skips import ColdState
from indexes.info import SearchSettings
from indexes.model import Metadata, Tier
from indexes.parts.manifest import Moves
from retrieval.raw_json import (
    FilterJson,
    IdsJson,
    MetadataJson,
    SearchJson,
    SearchOutcome,
    VectorJson,
    absent,
    no_metadata,
)
from retrieval.settings import Weight

Mode = Literal["hybrid", "dense", "lexical"]
Capacity = Annotated[int, Meta(ge=0, le=1_000_000_000)]
NonEmpty = Annotated[str, Meta(min_length=1)]
DocumentId = NonEmpty | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# Only described here: the catalog refuses other names, and says what one is made of.
CollectionName = Annotated[str, Meta(extra_json_schema={"pattern": f"^{NAME.pattern}$"})]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all request bodies."""


# --- collections ----------------------------------------------------------------------------------------------


class CreateCollection(Request, frozen=True, kw_only=True):
    name: CollectionName
    model: str | None = None
    hot_capacity: Capacity | None = None


class RenameCollection(Request, frozen=True, kw_only=True):
    name: CollectionName


class SetAlias(Request, frozen=True, kw_only=True):
    collection: str


class RequestLimits(msgspec.Struct):
    """What one request to write documents may hold: their number, the UTF-8 bytes of one text, of the whole body."""

    documents_per_request: int
    document_bytes: int
    request_bytes: int


class RebuildDue(msgspec.Struct):
    """A rebuild that the service starts by itself. After failed attempts the next one begins at `next_ms`."""

    reason: str
    failed_attempts: int = 0
    error: str | None = None
    next_ms: int | None = None


class CollectionBody(msgspec.Struct, kw_only=True):
    """One collection. Recall is what the last rebuild measured at 10, with its settings; memory is of the indexes,
    less the files that they read in place: copies of those are `resident_bytes`, the others `mapped_bytes`."""

    name: str
    aliases: list[str]
    model: str
    fingerprint: str
    dimensions: int
    hot_capacity: int
    documents: int
    passages: dict[Tier, int]
    dead_passages: int
    segments: int
    seq: int
    generation: int
    generations: list[int]
    recall: dict[str, float]
    recall_target: float
    search: SearchSettings | None
    memory_bytes: int
    tier_bytes: dict[Tier, int]
    resident_bytes: int
    mapped_bytes: int
    moves: Moves | None
    cold: ColdState | None
    owed_bytes: int
    owed_since_ms: int | None
    rebuild_due: RebuildDue | None
    limits: RequestLimits


class QuarantinedBody(msgspec.Struct):
    """A collection that cannot serve, and why. It can be deleted; everything else answers 503 `quarantined`."""

    name: str
    aliases: list[str]
    reason: str


class CollectionList(msgspec.Struct):
    collections: list[CollectionBody]
    quarantined: list[QuarantinedBody]


class AliasBody(msgspec.Struct):
    alias: str
    collection: str


# --- documents ------------------------------------------------------------------------------------------------


class SentDocument(Request, frozen=True, kw_only=True):
    """A document as people send it. A number as `id` is the string of its digits."""

    id: DocumentId
    text: str
    title: str = ""
    metadata: MetadataJson = field(default_factory=no_metadata)
    vector: VectorJson = field(default_factory=absent)


class NewDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The same as it will be stored, its metadata flat."""

    id: str
    text: str
    title: str = ""
    metadata: Metadata = {}
    vector: list[float] | None = None


class WriteDocuments(Request, frozen=True, kw_only=True):
    """`wait` is accepted for clients that send it; an answer always means synced and searchable."""

    documents: list[SentDocument]
    wait: bool = True


class PatchDocument(Request, frozen=True, kw_only=True):
    """A JSON merge patch (RFC 7396) of the metadata: a null removes a key, what is not named stays as it is."""

    metadata: MetadataJson


class DeleteDocuments(Request, frozen=True, kw_only=True):
    ids: IdsJson = field(default_factory=absent)
    filter: FilterJson = field(default_factory=absent)


class ScrollDocuments(Request, frozen=True, kw_only=True):
    """One page in the order of writing. `cursor` is that of the page before; the filter stays the same throughout."""

    filter: FilterJson = field(default_factory=absent)
    cursor: str | None = None
    limit: int = 100
    vectors: bool = False
    text: bool = True


class CountDocuments(Request, frozen=True, kw_only=True):
    filter: FilterJson = field(default_factory=absent)


class Written(msgspec.Struct, kw_only=True):
    """`documents` were written, with so many passages of so many tokens to embed; `unchanged` were there already."""

    seq: int
    documents: int
    unchanged: int
    passages: int
    tokens: int
    took_ms: float


class Deleted(msgspec.Struct):
    seq: int
    deleted: int


class PassageBody(msgspec.Struct):
    """`text[start:end]` of its document, and the unit vector it is searched by."""

    passage: int
    start: int
    end: int
    tokens: int
    vector: list[float]


class DocumentBody(msgspec.Struct, kw_only=True):
    """`passages` is their number, or with `vectors` the passages themselves; `text` may be left out of a scroll."""

    id: str
    seq: int
    text: str | UnsetType = UNSET
    title: str
    metadata: Metadata
    passages: int | list[PassageBody]


class DocumentPage(msgspec.Struct):
    """`next_cursor` is null on the last page. A page of long documents may hold fewer than `limit`."""

    documents: list[DocumentBody]
    next_cursor: str | None


class ScrollPage(msgspec.Struct):
    """`cursor` is null on the last page. A page of long documents may hold fewer than `limit`."""

    documents: list[DocumentBody]
    cursor: str | None


class CountBody(msgspec.Struct):
    """What matches, or everything, as it was after operation `seq`."""

    documents: int
    passages: int
    seq: int


# --- search ---------------------------------------------------------------------------------------------------


class Weights(Request, frozen=True, kw_only=True):
    dense: Weight = 0.7
    lexical: Weight = 0.3


class Fusion(Request, frozen=True, kw_only=True):
    """How hybrid search joins its two rankings; what is absent comes from the configuration."""

    method: Literal["rrf", "weighted"] | None = None
    k: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    weights: Weights | None = None


class SearchRequest(Request, frozen=True, kw_only=True):
    """A search. `exact` scans all stored vectors instead of the indexes: the ground truth, at its price."""

    query: str | None = None
    vector: VectorJson = field(default_factory=absent)
    k: int | None = None
    mode: Mode | None = None
    filter: FilterJson = field(default_factory=absent)
    fusion: Fusion | None = None
    group_by_document: bool = False
    min_score: float | None = None
    min_seq: Annotated[int, Meta(ge=0)] | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=600_000)] | None = None
    cache: bool = True
    explain: bool = False
    exact: bool = False


class SearchBatch(Request, frozen=True, kw_only=True):
    searches: list[SearchJson]


class Scores(msgspec.Struct):
    """Cosine similarity and BM25; null where the search did not ask for that kind."""

    dense: float | None = None
    lexical: float | None = None


class Ranks(msgspec.Struct):
    """Place in each ranking before fusion, from 1; null where it was not among the candidates."""

    dense: int | None = None
    lexical: int | None = None


class Hit(msgspec.Struct, omit_defaults=True):
    """One passage: which part of which document, its text (`text[start:end]` of the document), the headings it stands
    under, outermost first, and why it is here."""

    document_id: str
    passage: int
    start: int
    end: int
    text: str
    title: str
    metadata: Metadata
    score: float
    scores: Scores
    tier: Tier
    ranks: Ranks | None = None
    heading: str = ""
    tokens: int = 0


class Receipt(msgspec.Struct):
    """What an answer says about itself."""

    collection: str
    generation: int
    seq: int
    tiers: list[Tier]
    cold_skipped: str | None
    cache: Literal["hit", "miss", "bypass"]
    model: str


class Timings(msgspec.Struct):
    """Milliseconds in each stage. `wait` is the time in which no stage ran: mostly in line for a search thread, or for
    `min_seq`. All of them add up to `total`, less what `lexical` overlaps with `embed`."""

    cache: float = 0.0
    embed: float = 0.0
    dense: float = 0.0
    lexical: float = 0.0
    fuse: float = 0.0
    hydrate: float = 0.0
    wait: float = 0.0
    total: float = 0.0


class SearchAnswer(msgspec.Struct):
    hits: list[Hit]
    receipt: Receipt
    timings_ms: Timings


class SearchBatchAnswer(msgspec.Struct):
    """In the order of the searches: what was found, or why that search failed."""

    results: list[SearchOutcome]


class ContextRequest(Request, frozen=True, kw_only=True):
    """Passages for a prompt: at most `token_budget` tokens of this collection's tokenizer, all markup included.

    `per_document` bounds the passages of one document; without it, what is left after every document had its turn goes
    to further passages. Of documents beyond the first few only excerpts of `excerpt_tokens` are shown, 0 for none.
    Passages less similar to the query (cosine) than `min_similarity` are left out.
    """

    query: NonEmpty
    token_budget: Annotated[int, Meta(ge=1)]
    k: int | None = None
    mode: Mode | None = None
    filter: FilterJson = field(default_factory=absent)
    fusion: Fusion | None = None
    group_by_document: bool = False
    per_document: Annotated[int, Meta(ge=1)] | None = None
    excerpt_tokens: Annotated[int, Meta(ge=0)] | None = None
    min_similarity: Annotated[float, Meta(ge=-1, le=1)] | None = None
    min_score: float | None = None
    min_seq: Annotated[int, Meta(ge=0)] | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=600_000)] | None = None
    cache: bool = True


class Citation(msgspec.Struct):
    """Where one numbered frame of the context comes from: `text[start:end]` of a document, these of its passages."""

    number: int
    document_id: str
    passages: list[int]
    start: int
    end: int
    title: str
    heading: str
    metadata: Metadata
    score: float
    excerpt: bool
    tokens: int


class ContextAnswer(msgspec.Struct):
    """`omitted` passages were found and did not fit, `irrelevant` ones are below the floor of similarity."""

    context: str
    citations: list[Citation]
    tokens: int
    omitted: int
    irrelevant: int
    receipt: Receipt
    timings_ms: Timings
