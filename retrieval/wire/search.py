"""The wire types, version 1: what requests may hold and what answers do.

Requests refuse unknown fields and wrong types (`decoding`). Limits that an operator sets are checked where they apply,
not here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from indexes.base.model import Metadata, Tier
from retrieval.base.settings import Count, Positive, Weight
from retrieval.wire import decoding
from retrieval.wire.decoding import FilterJson, SearchesJson, SearchOutcome, VectorJson, absent
from retrieval.wire.message import Message
from retrieval.wire.options import (
    Boosts,
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
DocumentId = NonEmpty | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Doc = decoding.Doc
Request = decoding.Request

Condition = Annotated[
    FilterJson,
    Doc("Only documents whose metadata match: `{type, key, value}`, or `{type, filters}` to combine"),
]
Seq = Annotated[
    int, Doc("Position of the last operation in the log: pass it as `min_seq` to read what was written")
]
OwnVector = Annotated[VectorJson, Doc("A vector of your own; it is normalized")]
RankConstant = Annotated[int, Meta(ge=1, le=10_000)]
DeadlineMs = Annotated[int, Meta(ge=1, le=600_000)]
Similarity = Annotated[float, Meta(ge=-1, le=1)]
ExampleIds = Annotated[list[DocumentId], Meta(min_length=1, max_length=100)]
Chance = Annotated[float, Meta(ge=0, le=1)]
Start = Annotated[int, Doc("Start in the document's text, in characters")]
End = Annotated[int, Doc("End in the document's text, in characters, exclusive")]


class Weights(Request, frozen=True, kw_only=True):
    dense: Annotated[Weight, Doc("Of the score by meaning")] = 0.0
    lexical: Annotated[Weight, Doc("Of the score by words")] = 0.0


class Fusion(Request, frozen=True, kw_only=True):
    """How hybrid search joins its two rankings; what is absent comes from the configuration."""

    method: Annotated[Literal["rrf", "weighted"] | None, Doc("`rrf` joins by rank, `weighted` by score")] = (
        None
    )
    k: Annotated[RankConstant | None, Doc("For `rrf`: larger flattens the lead of the first ranks")] = None
    weights: Annotated[Weights | None, Doc("For `weighted`")] = None


class SearchOptions(Request, frozen=True, kw_only=True):
    """What a search and a context have in common."""

    k: Annotated[int | None, Doc("Number of hits")] = None
    mode: Annotated[Mode | None, Doc("By meaning (dense), by words (lexical) or both (hybrid)")] = None
    filter: Condition = field(default_factory=absent)
    fusion: Annotated[Fusion | None, Doc("How hybrid search joins both rankings")] = None
    rerank: Annotated[
        bool | Rerank | None, Doc("Let a cross-encoder read the first candidates: true, or how")
    ] = None
    mmr: Annotated[
        Chance | None,
        Doc("Prefer hits unlike those before them (MMR): 1 is relevance alone, 0 difference alone"),
    ] = None
    group_by_document: Annotated[bool, Doc("Only the best passage of each document")] = False
    boosts: Annotated[
        Boosts | None, Doc("Raise or lower the scores of candidates by their metadata: recency, votes, flags")
    ] = None
    min_score: Annotated[float | None, Doc("Drop hits that score less")] = None
    min_relevance: Annotated[Chance | None, Doc("Drop hits of less `relevance`")] = None
    min_seq: Annotated[Count | None, Doc("Wait up to 5 s until this write is visible")] = None
    deadline_ms: Annotated[DeadlineMs | None, Doc("Give up after this time, with status 503")] = None
    cache: Annotated[bool, Doc("False bypasses the result cache and the query vector cache")] = True
    typos: Annotated[
        bool, Doc("Look up a word that no passage has as the nearest one that some passage has")
    ] = True
    operators: Annotated[
        bool,
        Doc(
            'Of the query, "words in quotes" must follow each other so, and inst* stands for words that begin so'
        ),
    ] = False
    language: Annotated[
        str | None, Doc("BCP 47 code of the query's language; absent: guessed among those of the documents")
    ] = None


class SearchRequest(SearchOptions, frozen=True, kw_only=True):
    """A search. `exact` scans all stored vectors instead of the indexes: the ground truth, at its price."""

    query: Annotated[str | None, Doc("The text to search for")] = None
    vector: OwnVector = field(default_factory=absent)
    like: Annotated[
        ExampleIds | None, Doc("Ids of documents: find others like these; instead of a query, or beside it")
    ] = None
    unlike: Annotated[ExampleIds | None, Doc("Ids of documents: less like these")] = None
    offset: Annotated[
        Count, Doc("Hits to pass over, those of the pages before; with `k` at most limits.k_max")
    ] = 0
    expand: Annotated[
        Expand | None, Doc("Show each hit with its neighbors, its section, or its whole document")
    ] = None
    highlight: Annotated[
        bool | Highlight | None, Doc("Where each hit has words of the query: true, or how")
    ] = None
    sort: Annotated[
        Sorts | None, Doc("Order the candidates by metadata instead of by score; those without a value last")
    ] = None
    facets: Annotated[
        list[NonEmpty | Facet] | None,
        Doc("Metadata keys: count the documents that match the filter by their values"),
    ] = None
    explain: Annotated[
        bool, Doc("Add each hit's rank in both rankings and the evidence of its relevance")
    ] = False
    exact: Annotated[bool, Doc("With mode dense: score every stored vector, the ground truth. Slow")] = False


class SearchBatch(Request, frozen=True, kw_only=True):
    searches: Annotated[SearchesJson, Doc("Each as a search of its own")]


class Scores(msgspec.Struct):
    """Cosine similarity and BM25; null where the search did not ask for that kind. `rerank` only where it was asked
    for; null where time ran out before."""

    dense: Annotated[float | None, Doc("Cosine similarity")] = None
    lexical: Annotated[float | None, Doc("BM25")] = None
    rerank: Annotated[
        float | UnsetType | None, Doc("Of the cross-encoder; at 0 the odds are even that it answers")
    ] = UNSET
    boost: Annotated[float | UnsetType, Doc("What `boosts` multiplied the score by")] = UNSET


class Ranks(msgspec.Struct):
    """Place in each ranking before fusion, from 1; null where it was not among the candidates."""

    dense: Annotated[int | None, Doc("In the ranking by meaning")] = None
    lexical: Annotated[int | None, Doc("In the ranking by words")] = None


class RelevanceEvidence(msgspec.Struct):
    """What `relevance` is computed from. A lead is what the hit has beyond the tenth candidate of that ranking."""

    meaning: Annotated[float, Doc("Cosine, from 0 where unrelated texts are to 1; 0 if it was not asked for")]
    words: Annotated[float, Doc("BM25 over what a passage with all words of the query could score")]
    meaning_lead: Annotated[float, Doc("Beyond the tenth candidate by meaning")]
    words_lead: Annotated[float, Doc("Beyond the tenth candidate by words")]


class Hit(msgspec.Struct, omit_defaults=True):
    """One passage: which part of which document, its text (`text[start:end]` of the document), the headings it stands
    under, outermost first, and why it is here."""

    document_id: Annotated[str, Doc("Id of its document")]
    passage: Annotated[int, Doc("Position of the passage in its document, from 0")]
    start: Start
    end: End
    text: Annotated[str, Doc("The text")]
    title: Annotated[str, Doc("Title of the document")]
    metadata: Annotated[Metadata, Doc("As it was sent")]
    score: Annotated[float, Doc("What the hits are ordered by")]
    scores: Annotated[Scores, Doc("Score in each ranking")]
    tier: Annotated[Tier, Doc("Where the passage was found")]
    ranks: Annotated[Ranks | None, Doc("With `explain`: rank in each ranking")] = None
    heading: Annotated[str, Doc("Headings above the passage, outermost first")] = ""
    tokens: Annotated[int, Doc("Number of tokens")] = 0
    relevance: Annotated[
        float | None,
        Doc("How likely the passage is a relevant one; absent where the search's scores cannot tell"),
    ] = None
    evidence: Annotated[
        RelevanceEvidence | None, Doc("With `explain`: what `relevance` is computed from")
    ] = None
    language: Annotated[str, Doc("BCP 47 code of the document's language")] = ""
    highlights: Annotated[
        list[Span] | None, Doc("With `highlight`: [start, end) in `text` of the words that the query has too")
    ] = None
    snippet: Annotated[Span | None, Doc("With `highlight`: the part of `text` with most of them")] = None
    expanded: Annotated[Expanded | None, Doc("With `expand`: the passage and those around it")] = None


CacheOutcome = Literal["hit", "miss", "bypass", "semantic"]
Degraded = Literal["candidates", "rerank"]


class Receipt(msgspec.Struct):
    """What an answer says about itself."""

    collection: Annotated[str, Doc("Name or alias of a collection")]
    generation: Annotated[int, Doc("Number of the live build of the indexes; 0 before the first rebuild")]
    seq: Seq
    tiers: Annotated[list[Tier], Doc("Tiers that were searched")]
    cold_skipped: Annotated[str | None, Doc("Why the cold tier was not searched; null if it was")]
    share_read: Annotated[
        float | None, Doc("How much of the query the model reads, 0 to 1; null if no text was embedded")
    ]
    weight_dense: Annotated[
        float | None,
        Doc(
            "Weight of meaning in the scores, 0 to 1, less where the model reads less; null unless scores were fused"
        ),
    ]
    cache: Annotated[CacheOutcome, Doc("Whether the answer came from the result cache")]
    model: Annotated[str, Doc("Name of the embedding model")]
    reranked: Annotated[Reranked | None, Doc("With `rerank`: how much was read in time")] = None
    supported: Annotated[
        bool | None,
        Doc("False: no hit is relevant enough to say that the collection answers this; null where unknown"),
    ] = None
    corrected: Annotated[
        dict[str, str] | UnsetType,
        Doc(
            "Words of the query that no passage has, and those looked up instead; absent where there are none"
        ),
    ] = UNSET
    degraded: Annotated[
        list[Degraded] | UnsetType, Doc("What was left out because of the load; absent where nothing was")
    ] = UNSET
    over_budget: Annotated[
        list[OverBudget] | UnsetType,
        Doc("Options that would have taken too long and did what they could; absent where there are none"),
    ] = UNSET
    support_from: Annotated[
        float | None, Doc("One of the first ten hits needs this `relevance` for `supported`")
    ] = None


class Timings(msgspec.Struct):
    """Milliseconds in each stage. `wait` is the time in which no stage ran. All of them add up to `total`."""

    cache: Annotated[float, Doc("Looking into the result cache")] = 0.0
    embed: Annotated[float, Doc("Embedding the query")] = 0.0
    dense: Annotated[float, Doc("Searching by meaning")] = 0.0
    lexical: Annotated[float, Doc("Searching by words")] = 0.0
    fuse: Annotated[float, Doc("Joining both rankings")] = 0.0
    rerank: Annotated[float, Doc("Reading candidates beside the query")] = 0.0
    hydrate: Annotated[float, Doc("Reading the hits from the log")] = 0.0
    wait: Annotated[
        float, Doc("Time in which no stage ran: mostly waiting for a search thread or for `min_seq`")
    ] = 0.0
    total: Annotated[float, Doc("All of it")] = 0.0


class SearchAnswer(msgspec.Struct):
    hits: Annotated[list[Hit], Doc("Best first")]
    receipt: Annotated[Receipt, Doc("How the answer was found")]
    timings_ms: Annotated[Timings, Doc("Milliseconds of each stage")]
    facets: Annotated[list[FacetBody] | UnsetType, Doc("With `facets`: the counts, in their order")] = UNSET


class SearchBatchAnswer(msgspec.Struct):
    """In the order of the searches: what was found, or why that search failed."""

    results: Annotated[list[SearchOutcome], Doc("In the order of the searches: an answer or an error")]


class ContextRequest(SearchOptions, frozen=True, kw_only=True):
    """Passages for a prompt: at most `token_budget` tokens, all markup included.

    `per_document` bounds the passages of one document; without it, what is left after every document had its turn goes
    to further passages. Of documents beyond the first few only excerpts of `excerpt_tokens` are shown, 0 for none.
    Passages less similar to the query (cosine) than `min_similarity` are left out.
    """

    query: Annotated[NonEmpty | None, Doc("The text to search for")] = None
    queries: Annotated[
        list[NonEmpty] | None, Doc("Several texts to search for, instead of `query`; each has its share")
    ] = None
    token_budget: Annotated[Positive, Doc("Most tokens of the context, markup included")]
    tokenizer: Annotated[
        str | None,
        Doc(
            "Counts the tokens: `cl100k_base` or `o200k_base`; absent: the tokenizer of the collection's model"
        ),
    ] = None
    format: Annotated[
        Literal["xml", "plain", "messages"],
        Doc("Tags around each passage, a line above each, or `messages` for a chat model as well"),
    ] = "xml"
    template: Annotated[
        NonEmpty | None,
        Doc(
            "How each passage is shown: text with {text} and, if you like, {number}, {title}, {heading}, "
            "{document_id}, {start}, {end}, {score}, {fence}"
        ),
    ] = None
    order: Annotated[
        Literal["relevance", "position", "newest", "oldest"],
        Doc("Of the documents shown: `position` is by id, `newest` and `oldest` by `date_key`"),
    ] = "relevance"
    date_key: Annotated[
        NonEmpty | None, Doc("The metadata key with a number or an ISO 8601 date, for `order`")
    ] = None
    explain: Annotated[bool, Doc("Say of each passage found why it is shown, or not")] = False
    per_document: Annotated[Positive | None, Doc("Most passages from one document")] = None
    excerpt_tokens: Annotated[Count | None, Doc("Size of an excerpt; 0 shows whole passages only")] = None
    min_similarity: Annotated[
        Similarity | None,
        Doc(
            "Drop passages less similar to the query (cosine) that do not contain its words; "
            "where neither this nor the settings name a cosine, the model does"
        ),
    ] = None


class Citation(msgspec.Struct):
    """Where one numbered frame of the context comes from: `text[start:end]` of a document, these of its passages."""

    number: Annotated[int, Doc("Number of the frame in the context")]
    document_id: Annotated[str, Doc("Id of its document")]
    passages: Annotated[list[int], Doc("Their positions in the document, from 0")]
    start: Start
    end: End
    title: Annotated[str, Doc("Title of the document")]
    heading: Annotated[str, Doc("Headings above the passage, outermost first")]
    metadata: Annotated[Metadata, Doc("As it was sent")]
    score: Annotated[float, Doc("What the hits are ordered by")]
    relevance: Annotated[float | None, Doc("Of the most relevant of its passages; null where unknown")]
    excerpt: Annotated[bool, Doc("Whether only part of the passage is shown")]
    tokens: Annotated[int, Doc("Number of tokens")]


class PassageKey(msgspec.Struct):
    document_id: Annotated[str, Doc("Id of its document")]
    passage: Annotated[int, Doc("Position of the passage in its document, from 0")]


Outcome = Literal["shown", "excerpt", "repeats", "irrelevant", "per_document", "no_room"]


class Considered(PassageKey, omit_defaults=True):
    """A passage found, and what became of it."""

    score: Annotated[float, Doc("What the hits are ordered by")]
    outcome: Annotated[
        Outcome,
        Doc(
            "`shown`, or an `excerpt` of it; left out because it `repeats` another, is `irrelevant` (below "
            "`min_similarity`), its document has its most passages (`per_document`), or there was `no_room`"
        ),
    ]
    number: Annotated[int | None, Doc("Of the frame that shows it")] = None
    repeats: Annotated[PassageKey | None, Doc("The passage that says the same")] = None


class ContextAnswer(msgspec.Struct):
    """`omitted` passages were found and did not fit, `irrelevant` ones are below the floor of similarity. `tokens`
    counts the context, or with format `messages` the contents of the messages."""

    context: Annotated[str, Doc("The text for the prompt")]
    citations: Annotated[list[Citation], Doc("One for each numbered frame of the context")]
    tokens: Annotated[int, Doc("Number of tokens")]
    omitted: Annotated[int, Doc("Passages found that did not fit")]
    irrelevant: Annotated[int, Doc("Passages found but below `min_similarity`")]
    receipt: Annotated[Receipt, Doc("How the answer was found; of several queries, of all of them")]
    timings_ms: Annotated[Timings, Doc("Milliseconds of each stage; of several queries, of the slowest")]
    fence: Annotated[str, Doc("Number in all the marks around passages; no text shown contains it")] = ""
    messages: Annotated[
        list[Message] | None,
        Doc(
            "With format `messages`: the context and the question for a chat model; null where nothing is shown"
        ),
    ] = None
    hint: Annotated[
        str | None, Doc("Where the budget is too small for any passage: how much the smallest needs")
    ] = None
    passages: Annotated[
        list[Considered] | None, Doc("With `explain`: every passage found, the most relevant first")
    ] = None
