"""The wire types of searches and contexts, version 1.

Requests refuse unknown fields and wrong types (`decoding`). Limits that an operator sets are checked where they
apply, not here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from indexes.base.errors import InvalidInput
from indexes.base.model import Metadata, Tier
from retrieval.base.settings import Count, Positive, Weight, Whole
from retrieval.wire import decoding
from retrieval.wire.decoding import FilterJson, SearchesJson, SearchOutcome, VectorJson, absent
from retrieval.wire.message import Message
from retrieval.wire.options import (
    Boosts,
    Collapse,
    Expand,
    Expanded,
    Facet,
    FacetBody,
    Highlight,
    OverBudget,
    Rerank,
    Reranked,
    Sorts,
    Span,
)

Mode = Literal["hybrid", "dense", "lexical"]
NonEmpty = Annotated[str, Meta(min_length=1)]
DocumentId = NonEmpty | Whole
Doc = decoding.Doc
Request = decoding.Request

Condition = Annotated[
    FilterJson,
    Doc("Only documents whose metadata match: `{type, key, value}`, or `{type, filters}` to combine"),
]
SeqToken = Annotated[str, Meta(max_length=8192)]
Seq = Annotated[
    int | str,
    Doc(
        "Position of the last operation in the log, as text that names one of each shard if there are several; pass "
        "it as `min_seq` to read your own writes"
    ),
]
MinSeq = Annotated[
    Count | SeqToken | None, Doc("Wait up to 5 s until this write is visible: the `seq` of its answer")
]
OwnVector = Annotated[
    VectorJson, Doc("A vector of your own: numbers, or base64 of float32, little-endian; it is normalized")
]
RankConstant = Annotated[int, Meta(ge=1, le=10_000)]
DeadlineMs = Annotated[int, Meta(ge=1, le=600_000)]
Similarity = Annotated[float, Meta(ge=-1, le=1)]
ExampleIds = Annotated[list[DocumentId], Meta(min_length=1, max_length=100)]
Chance = Annotated[float, Meta(ge=0, le=1)]
Start = Annotated[int, Doc("Start in the document's text, in characters")]
End = Annotated[int, Doc("End in the document's text, in characters, exclusive")]


class Weights(Request, frozen=True, kw_only=True):
    dense: Annotated[Weight, Doc("Weight of the dense score")] = 0.0
    lexical: Annotated[Weight, Doc("Weight of the lexical score")] = 0.0


class Fusion(Request, frozen=True, kw_only=True):
    """How hybrid search fuses its two rankings. Absent fields come from the configuration."""

    method: Annotated[Literal["rrf", "weighted"] | None, Doc("`rrf` fuses by rank, `weighted` by score")] = (
        None
    )
    k: Annotated[
        RankConstant | None, Doc("For `rrf`: a larger value reduces the lead of the first ranks")
    ] = None
    weights: Annotated[Weights | None, Doc("For `weighted`")] = None


class SearchOptions(Request, frozen=True, kw_only=True):
    """The options that searches and contexts share."""

    k: Annotated[int | None, Doc("Number of hits")] = None
    mode: Annotated[Mode | None, Doc("By meaning (dense), by words (lexical) or both (hybrid)")] = None
    filter: Condition = field(default_factory=absent)
    fusion: Annotated[Fusion | None, Doc("How hybrid search fuses both rankings")] = None
    rerank: Annotated[
        bool | Rerank | None, Doc("Let a cross-encoder rerank the first candidates: true, or options")
    ] = None
    mmr: Annotated[
        Chance | None,
        Doc("Prefer hits that differ from those above them (MMR): 1 is pure relevance, 0 pure diversity"),
    ] = None
    group_by_document: Annotated[bool, Doc("Only the best passage of each document")] = False
    collapse: Annotated[
        bool | Literal["text"] | Collapse | None,
        Doc(
            "`text`, or true: show one hit for all passages with the same text; an object: collapse as it says; false: "
            "show all. Default: `text`, and false in standing queries"
        ),
    ] = None
    boosts: Annotated[
        Boosts | None, Doc("Raise or lower the scores of candidates by their metadata: recency, votes, flags")
    ] = None
    min_score: Annotated[float | None, Doc("Drop hits with a lower score")] = None
    min_relevance: Annotated[Chance | None, Doc("Drop hits with a lower `relevance`")] = None
    min_seq: MinSeq = None
    deadline_ms: Annotated[DeadlineMs | None, Doc("Give up after this time, with status 503")] = None
    cache: Annotated[bool, Doc("False bypasses the result cache and the query vector cache")] = True
    typos: Annotated[
        bool,
        Doc("Replace a word that no passage contains by the most similar one that exists"),
    ] = True
    operators: Annotated[
        bool,
        Doc('In the query, "words in quotes" match as a phrase, and inst* matches words with this prefix'),
    ] = False
    language: Annotated[
        str | None, Doc("BCP 47 code of the query's language; absent: detected among those of the documents")
    ] = None
    partial: Annotated[
        bool,
        Doc("Of a collection in shards: leave out shards that do not answer, instead of status 503"),
    ] = False


class PageOptions(SearchOptions, frozen=True, kw_only=True):
    """What is searched for, and what is shown of it."""

    query: Annotated[str | None, Doc("The text to search for")] = None
    vector: OwnVector = field(default_factory=absent)
    offset: Annotated[Count, Doc("Hits to skip, those of earlier pages; with `k` at most limits.k_max")] = 0
    expand: Annotated[
        Expand | None, Doc("Show each hit with its neighbors, its section, or its whole document")
    ] = None
    highlight: Annotated[
        bool | Highlight | None, Doc("Mark where each hit contains words of the query: true, or options")
    ] = None
    sort: Annotated[
        Sorts | None,
        Doc("Sort the candidates by metadata instead of by score; those without a value come last"),
    ] = None
    explain: Annotated[
        bool, Doc("Add each hit's rank in both rankings and the evidence of its relevance")
    ] = False


class SearchRequest(PageOptions, frozen=True, kw_only=True):
    """A search. `exact` scans all stored vectors instead of the indexes: the ground truth, but slow."""

    like: Annotated[
        ExampleIds | None, Doc("Ids of documents: find similar ones, instead of or in addition to a query")
    ] = None
    unlike: Annotated[ExampleIds | None, Doc("Ids of documents that hits should not resemble")] = None
    facets: Annotated[
        list[NonEmpty | Facet] | None,
        Doc("Metadata keys: count the documents that match the filter by their values"),
    ] = None
    exact: Annotated[bool, Doc("With mode dense: score every stored vector, the ground truth. Slow")] = False


class SearchCollections(PageOptions, frozen=True, kw_only=True):
    """A search of several collections with one ranking over all. `min_seq` is refused: each has its own operations."""

    collections: Annotated[
        list[NonEmpty], Doc("Names or aliases of at most 16 collections, whose vectors are of one model")
    ]


class SearchBatch(Request, frozen=True, kw_only=True):
    searches: Annotated[SearchesJson, Doc("Each is a complete search")]


class Scores(msgspec.Struct):
    """Cosine similarity and BM25, null if the search did not use that kind. `rerank` is present only if it was
    requested, and null if time ran out first."""

    dense: Annotated[float | None, Doc("Cosine similarity")] = None
    lexical: Annotated[float | None, Doc("BM25")] = None
    rerank: Annotated[
        float | UnsetType | None,
        Doc("Score of the cross-encoder; 0 means even odds that the passage answers the query"),
    ] = UNSET
    boost: Annotated[float | UnsetType, Doc("Factor by which `boosts` multiplied the score")] = UNSET
    name: Annotated[
        float | UnsetType,
        Doc("1 if the query holds the document's id or title, 0.5 for a heading or the last part of a name"),
    ] = UNSET


class Ranks(msgspec.Struct):
    """Rank in each ranking before fusion, from 1; null if it was not among the candidates."""

    dense: Annotated[int | None, Doc("In the dense ranking")] = None
    lexical: Annotated[int | None, Doc("In the lexical ranking")] = None


class RelevanceEvidence(msgspec.Struct):
    """What `relevance` is computed from. A lead is the hit's advantage over the tenth candidate of that ranking."""

    meaning: Annotated[float, Doc("Cosine, scaled from 0 (unrelated texts) to 1; 0 if it was not used")]
    words: Annotated[
        float, Doc("BM25 relative to the best possible score of a passage with all words of the query")
    ]
    meaning_lead: Annotated[float, Doc("Lead over the tenth candidate of the dense ranking")]
    words_lead: Annotated[float, Doc("Lead over the tenth candidate of the lexical ranking")]


class Hit(msgspec.Struct, omit_defaults=True):
    """One passage: its document, position and text (`text[start:end]` of the document), the headings above it,
    outermost first, and its scores."""

    document_id: Annotated[str, Doc("Id of its document")]
    passage: Annotated[int, Doc("Position of the passage in its document, from 0")]
    start: Start
    end: End
    text: Annotated[str, Doc("The text")]
    title: Annotated[str, Doc("Title of the document")]
    metadata: Annotated[Metadata, Doc("As it was sent")]
    score: Annotated[float, Doc("What the hits are ordered by")]
    scores: Annotated[Scores, Doc("Score in each ranking")]
    tier: Annotated[Tier, Doc("Tier in which the passage was found")]
    ranks: Annotated[Ranks | None, Doc("With `explain`: rank in each ranking")] = None
    heading: Annotated[str, Doc("Headings above the passage, outermost first")] = ""
    tokens: Annotated[int, Doc("Number of tokens")] = 0
    relevance: Annotated[
        float | None,
        Doc("Probability that the passage is relevant; absent if the search's scores cannot tell"),
    ] = None
    evidence: Annotated[
        RelevanceEvidence | None, Doc("With `explain`: what `relevance` is computed from")
    ] = None
    language: Annotated[str, Doc("BCP 47 code of the document's language")] = ""
    highlights: Annotated[
        list[Span] | None, Doc("With `highlight`: [start, end) in `text` of words of the query")
    ] = None
    snippet: Annotated[Span | None, Doc("With `highlight`: the part of `text` with most of them")] = None
    expanded: Annotated[Expanded | None, Doc("With `expand`: the passage and those around it")] = None
    collapsed: Annotated[
        int,
        Doc(
            "How many of the candidates that were read stand behind this hit, or behind the hits of its group"
        ),
    ] = 0
    group: Annotated[
        str | int | float | bool | None,
        Doc("With `collapse.key`: the value that the hits of its group share"),
    ] = None
    collection: Annotated[str, Doc("In a search of several collections: the one that it is from")] = ""


CacheOutcome = Literal["hit", "miss", "bypass"]
Degraded = Literal["candidates", "rerank"]
Evidence = Literal["none", "some", "strong"]


class EvidenceFrom(msgspec.Struct):
    """The `relevance` that one of the first ten hits must have for a verdict."""

    some: Annotated[float, Doc("For `some`; of ten questions that the collection answers, nine get there")]
    strong: Annotated[float, Doc("For `strong`; of ten questions that it does not answer, one gets there")]


class Receipt(msgspec.Struct):
    """How an answer was produced."""

    collection: Annotated[str, Doc("Name or alias of a collection")]
    generation: Annotated[int, Doc("Number of the live build of the indexes; 0 before the first rebuild")]
    seq: Seq
    tiers: Annotated[list[Tier], Doc("Tiers that were searched by meaning; a search by words covers all")]
    cold_skipped: Annotated[str | None, Doc("Why the cold tier was not searched; null if it was")]
    share_read: Annotated[
        float | None, Doc("Share of the query that the model reads, 0 to 1; null if no text was embedded")
    ]
    weight_dense: Annotated[
        float | None,
        Doc(
            "Weight of the dense score, 0 to 1, lower if the model reads less; null unless scores were fused"
        ),
    ]
    cache: Annotated[CacheOutcome, Doc("Whether the answer came from the result cache")]
    model: Annotated[str | None, Doc("Name of the embedding model; null: documents bring vectors")]
    reranked: Annotated[Reranked | None, Doc("With `rerank`: how much was read in time")] = None
    evidence: Annotated[
        Evidence | None,
        Doc(
            "What speaks for an answer being here: `none`, none of the first ten hits is about the question; `some`, "
            "one is; `strong`, one is so relevant as few are to questions without an answer; null if unknown. The "
            "first ten are those before `boosts`, `sort` and `mmr`"
        ),
    ] = None
    corrected: Annotated[
        dict[str, str] | UnsetType,
        Doc("Words of the query that no passage contains, and those used instead; absent if there are none"),
    ] = UNSET
    degraded: Annotated[
        list[Degraded] | UnsetType, Doc("What was skipped because of load; absent if nothing was")
    ] = UNSET
    over_budget: Annotated[
        list[OverBudget] | UnsetType,
        Doc("Options that ran out of time and were applied in part; absent if there are none"),
    ] = UNSET
    query_cut: Annotated[
        bool | UnsetType,
        Doc("True: the query is longer than the model reads; its questions, or its ends, were embedded"),
    ] = UNSET
    evidence_from: Annotated[EvidenceFrom | None, Doc("What `evidence` is judged by")] = None
    age_s: Annotated[
        float | UnsetType,
        Doc("On a replica: seconds since it last had all that the store has; absent elsewhere"),
    ] = UNSET
    shards_missing: Annotated[
        list[int] | UnsetType,
        Doc("With `partial`: numbers of the shards that did not answer; absent if all did"),
    ] = UNSET


class Timings(msgspec.Struct):
    """Milliseconds in each stage. `wait` is time in which no stage ran. Together they add up to `total`, unless stages
    ran at the same time."""

    cache: Annotated[float, Doc("Result cache lookup")] = 0.0
    embed: Annotated[float, Doc("Embedding the query")] = 0.0
    dense: Annotated[float, Doc("Dense search")] = 0.0
    lexical: Annotated[float, Doc("Lexical search")] = 0.0
    fuse: Annotated[float, Doc("Fusing both rankings")] = 0.0
    rerank: Annotated[float, Doc("Reranking the candidates")] = 0.0
    hydrate: Annotated[float, Doc("Reading the hits from the log")] = 0.0
    shards: Annotated[float, Doc("Waiting for the services that have the shards, if it has several")] = 0.0
    wait: Annotated[float, Doc("Time in which no stage ran: mostly waiting for a search thread")] = 0.0
    total: Annotated[float, Doc("The whole search")] = 0.0


class SearchAnswer(msgspec.Struct):
    hits: Annotated[list[Hit], Doc("Best first")]
    receipt: Annotated[Receipt, Doc("How the answer was found")]
    timings_ms: Annotated[Timings, Doc("Milliseconds of each stage")]
    facets: Annotated[list[FacetBody] | UnsetType, Doc("With `facets`: the counts, in their order")] = UNSET


class SearchCollectionsAnswer(msgspec.Struct):
    hits: Annotated[list[Hit], Doc("Best first, each with its `collection`")]
    receipts: Annotated[list[Receipt], Doc("How the answer was found in each collection, in their order")]
    timings_ms: Annotated[Timings, Doc("Milliseconds of each stage, over all collections")]


class SearchBatchAnswer(msgspec.Struct):
    """The results in the order of the searches."""

    results: Annotated[list[SearchOutcome], Doc("In the order of the searches: an answer or an error")]


class ContextRequest(SearchOptions, frozen=True, kw_only=True):
    """Passages for a prompt: at most `token_budget` tokens, all markup included.

    `per_document` limits the passages of one document; without it, the budget left after every document had its turn
    is spent on more passages. Documents after the first few are shown only as excerpts of `excerpt_tokens`, 0 for
    none. Passages less similar to the query (cosine) than `min_similarity` are left out.
    """

    query: Annotated[NonEmpty | None, Doc("The text to search for")] = None
    queries: Annotated[
        list[NonEmpty] | None, Doc("Several texts to search for, instead of `query`; each gets its share")
    ] = None
    token_budget: Annotated[Positive, Doc("Maximum tokens of the context, markup included")]
    tokenizer: Annotated[
        str | None,
        Doc(
            "The tokenizer to count with: `cl100k_base` or `o200k_base`; absent: that of the collection's model"
        ),
    ] = None
    format: Annotated[
        Literal["xml", "plain", "messages"],
        Doc("Tags around each passage, a line above each, or also `messages` for a chat model"),
    ] = "xml"
    template: Annotated[
        NonEmpty | None,
        Doc(
            "How each passage is shown: text with {text} and, optionally, {number}, {title}, {heading}, "
            "{document_id}, {start}, {end}, {score}, {fence}"
        ),
    ] = None
    order: Annotated[
        Literal["relevance", "position", "newest", "oldest"],
        Doc("Order of the documents shown: `position` is by id, `newest` and `oldest` by `date_key`"),
    ] = "relevance"
    date_key: Annotated[
        NonEmpty | None, Doc("The metadata key with a number or an ISO 8601 date, for `order`")
    ] = None
    explain: Annotated[bool, Doc("Say why each passage found is shown or not")] = False
    per_document: Annotated[Positive | None, Doc("Maximum passages from one document")] = None
    excerpt_tokens: Annotated[Count | None, Doc("Size of an excerpt; 0 shows whole passages only")] = None
    min_similarity: Annotated[
        Similarity | None,
        Doc(
            "Drop passages less similar to the query (cosine) that do not contain its words; "
            "default: the settings' value, or the model's"
        ),
    ] = None


class Citation(msgspec.Struct):
    """The source of one numbered frame of the context: `text[start:end]` of a document, consisting of these
    passages."""

    number: Annotated[int, Doc("Number of the frame in the context")]
    document_id: Annotated[str, Doc("Id of its document")]
    passages: Annotated[list[int], Doc("Their positions in the document, from 0")]
    start: Start
    end: End
    title: Annotated[str, Doc("Title of the document")]
    heading: Annotated[str, Doc("Headings above the passage, outermost first")]
    metadata: Annotated[Metadata, Doc("As it was sent")]
    score: Annotated[float, Doc("What the hits are ordered by")]
    relevance: Annotated[float | None, Doc("Relevance of its most relevant passage; null if unknown")]
    excerpt: Annotated[bool, Doc("Whether only part of the passage is shown")]
    tokens: Annotated[int, Doc("Number of tokens")]


class PassageKey(msgspec.Struct):
    document_id: Annotated[str, Doc("Id of its document")]
    passage: Annotated[int, Doc("Position of the passage in its document, from 0")]


Outcome = Literal["shown", "excerpt", "repeats", "irrelevant", "per_document", "no_room"]


class Considered(PassageKey, omit_defaults=True):
    """A passage found, and whether it is shown."""

    score: Annotated[float, Doc("What the hits are ordered by")]
    outcome: Annotated[
        Outcome,
        Doc(
            "`shown`, or an `excerpt` of it; left out because it `repeats` another, is `irrelevant` (below "
            "`min_similarity`), its document has reached `per_document`, or there was `no_room`"
        ),
    ]
    number: Annotated[int | None, Doc("Number of the frame that shows it")] = None
    repeats: Annotated[PassageKey | None, Doc("The passage that it repeats")] = None


class ContextAnswer(msgspec.Struct):
    """`omitted` passages were found but are not shown; `irrelevant` ones are below the similarity floor. `tokens`
    counts the context, or with format `messages` the contents of the messages."""

    context: Annotated[str, Doc("The text for the prompt")]
    citations: Annotated[list[Citation], Doc("One for each numbered frame of the context")]
    tokens: Annotated[int, Doc("Number of tokens")]
    omitted: Annotated[
        int, Doc("Relevant passages not shown: without room, or more of a document than `per_document`")
    ]
    irrelevant: Annotated[int, Doc("Passages found but below `min_similarity`")]
    receipt: Annotated[Receipt, Doc("How the answer was found; for several queries, for all of them")]
    timings_ms: Annotated[Timings, Doc("Milliseconds of each stage; for several queries, of the slowest")]
    fence: Annotated[str, Doc("Number in all marks around passages; no text shown contains it")] = ""
    messages: Annotated[
        list[Message] | None,
        Doc(
            "With format `messages`: the context and the question for a chat model; null if nothing is shown"
        ),
    ] = None
    hint: Annotated[
        str | None, Doc("If the budget is too small for any passage: the tokens that the smallest needs")
    ] = None
    passages: Annotated[
        list[Considered] | None, Doc("With `explain`: every passage found, most relevant first")
    ] = None


def seq_in(min_seq: int | str | None) -> int:
    """Return the operation that a search of a whole collection waits for, 0 for none. Raises InvalidInput for one of a
    collection in several shards."""
    if isinstance(min_seq, str):
        raise InvalidInput(
            f"min_seq {min_seq[:40]!r} is of a collection in several shards, and this one is in one piece",
            param="min_seq",
        )
    return min_seq or 0
