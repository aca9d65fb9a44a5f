"""What the service is sent and answers, for type checkers; at run time all of it is plain dictionaries.

Made from the service's own types by `python -m tests.support.wire_types`: do not edit. A key that is `NotRequired` in
an answer is absent where it says nothing.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Weights(TypedDict):
    dense: NotRequired[float]
    lexical: NotRequired[float]


class Fusion(TypedDict):
    method: NotRequired[Literal["rrf", "weighted"] | None]
    k: NotRequired[int | None]
    weights: NotRequired[Weights | None]


class Rerank(TypedDict):
    candidates: NotRequired[int | None]
    budget_ms: NotRequired[float | None]
    weight: NotRequired[float | None]


class Decay(TypedDict):
    half_life_days: float
    now: NotRequired[str | None]


class Boost(TypedDict):
    key: str
    weight: NotRequired[float]
    scale: NotRequired[Literal["linear", "log"]]
    decay: NotRequired[Decay | None]


class Neighbors(TypedDict):
    before: NotRequired[int]
    after: NotRequired[int]


class Highlight(TypedDict):
    snippet_chars: NotRequired[int]


class Sort(TypedDict):
    key: str
    order: NotRequired[Literal["asc", "desc"]]


class Facet(TypedDict):
    key: str
    top: NotRequired[int]
    ranges: NotRequired[list[int | float | str] | None]


class SearchRequest(TypedDict):
    k: NotRequired[int | None]
    mode: NotRequired[Literal["dense", "hybrid", "lexical"] | None]
    filter: NotRequired[Any]
    fusion: NotRequired[Fusion | None]
    rerank: NotRequired[bool | Rerank | None]
    mmr: NotRequired[float | None]
    group_by_document: NotRequired[bool]
    boosts: NotRequired[list[Boost] | None]
    min_score: NotRequired[float | None]
    min_relevance: NotRequired[float | None]
    min_seq: NotRequired[int | None]
    deadline_ms: NotRequired[int | None]
    cache: NotRequired[bool]
    typos: NotRequired[bool]
    operators: NotRequired[bool]
    language: NotRequired[str | None]
    query: NotRequired[str | None]
    vector: NotRequired[Any]
    like: NotRequired[list[str | int] | None]
    unlike: NotRequired[list[str | int] | None]
    offset: NotRequired[int]
    expand: NotRequired[Neighbors | Literal["document", "section"] | None]
    highlight: NotRequired[bool | Highlight | None]
    sort: NotRequired[list[Sort] | None]
    facets: NotRequired[list[str | Facet] | None]
    explain: NotRequired[bool]
    exact: NotRequired[bool]


class ContextRequest(TypedDict):
    k: NotRequired[int | None]
    mode: NotRequired[Literal["dense", "hybrid", "lexical"] | None]
    filter: NotRequired[Any]
    fusion: NotRequired[Fusion | None]
    rerank: NotRequired[bool | Rerank | None]
    mmr: NotRequired[float | None]
    group_by_document: NotRequired[bool]
    boosts: NotRequired[list[Boost] | None]
    min_score: NotRequired[float | None]
    min_relevance: NotRequired[float | None]
    min_seq: NotRequired[int | None]
    deadline_ms: NotRequired[int | None]
    cache: NotRequired[bool]
    typos: NotRequired[bool]
    operators: NotRequired[bool]
    language: NotRequired[str | None]
    query: NotRequired[str | None]
    queries: NotRequired[list[str] | None]
    token_budget: int
    tokenizer: NotRequired[str | None]
    format: NotRequired[Literal["messages", "plain", "xml"]]
    template: NotRequired[str | None]
    order: NotRequired[Literal["newest", "oldest", "position", "relevance"]]
    date_key: NotRequired[str | None]
    explain: NotRequired[bool]
    per_document: NotRequired[int | None]
    excerpt_tokens: NotRequired[int | None]
    min_similarity: NotRequired[float | None]


class SentDocument(TypedDict):
    id: str | int
    text: NotRequired[str]
    title: NotRequired[str]
    metadata: NotRequired[Any]
    vector: NotRequired[Any]
    language: NotRequired[str | None]


class ScrollDocuments(TypedDict):
    filter: NotRequired[Any]
    cursor: NotRequired[str | None]
    limit: NotRequired[int]
    vectors: NotRequired[bool]
    text: NotRequired[bool]


class CountDocuments(TypedDict):
    filter: NotRequired[Any]


class DeleteDocuments(TypedDict):
    ids: NotRequired[Any]
    filter: NotRequired[Any]


class CreateCollection(TypedDict):
    model: NotRequired[str | None]
    hot_capacity: NotRequired[int | None]
    language: NotRequired[str]


class SetRanking(TypedDict):
    method: NotRequired[Literal["rrf", "weighted"] | None]
    weight_dense: NotRequired[float | None]
    coefficients: NotRequired[dict[str, list[float]]]
    queries: NotRequired[int]
    gain: NotRequired[float | None]
    gain_low: NotRequired[float | None]
    gain_high: NotRequired[float | None]


class SentFeedback(TypedDict):
    query: str
    document_id: str | int
    grade: NotRequired[int | None]
    shown: NotRequired[list[str | int]]


class Reindex(TypedDict):
    hot_capacity: NotRequired[int | None]


class Tune(TypedDict):
    recall_target: float
    queries: NotRequired[list[str] | None]
    apply: NotRequired[bool]


class Scores(TypedDict):
    dense: float | None
    lexical: float | None
    rerank: NotRequired[float | None]
    boost: NotRequired[float]


class Ranks(TypedDict):
    dense: int | None
    lexical: int | None


class RelevanceEvidence(TypedDict):
    meaning: float
    words: float
    meaning_lead: float
    words_lead: float


class Expanded(TypedDict):
    passages: Any
    start: int
    end: int
    text: str
    cut: NotRequired[bool]


class Hit(TypedDict):
    document_id: str
    passage: int
    start: int
    end: int
    text: str
    title: str
    metadata: dict[str, str | int | float | bool | list[str | int | float | bool]]
    score: float
    scores: Scores
    tier: Literal["cold", "delta", "hot"]
    ranks: NotRequired[Ranks | None]
    heading: NotRequired[str]
    tokens: NotRequired[int]
    relevance: NotRequired[float | None]
    evidence: NotRequired[RelevanceEvidence | None]
    language: NotRequired[str]
    highlights: NotRequired[list[Any] | None]
    snippet: NotRequired[Any | None]
    expanded: NotRequired[Expanded | None]


class Reranked(TypedDict):
    model: str
    passages: int
    of: int


class Receipt(TypedDict):
    collection: str
    generation: int
    seq: int
    tiers: list[Literal["cold", "delta", "hot"]]
    cold_skipped: str | None
    share_read: float | None
    weight_dense: float | None
    cache: Literal["bypass", "hit", "miss"]
    model: str
    reranked: Reranked | None
    supported: bool | None
    corrected: NotRequired[dict[str, str]]
    support_from: float | None


class Timings(TypedDict):
    cache: float
    embed: float
    dense: float
    lexical: float
    fuse: float
    rerank: float
    hydrate: float
    wait: float
    total: float


class ValueCount(TypedDict):
    value: str | int | float | bool
    count: int


class RangeCount(TypedDict):
    count: int
    gte: NotRequired[int | float | str | None]
    lt: NotRequired[int | float | str | None]


class FacetBody(TypedDict):
    key: str
    values: list[ValueCount]
    ranges: list[RangeCount]
    distinct: int
    missing: int
    documents: int


class SearchAnswer(TypedDict):
    hits: list[Hit]
    receipt: Receipt
    timings_ms: Timings
    facets: NotRequired[list[FacetBody]]


class Citation(TypedDict):
    number: int
    document_id: str
    passages: list[int]
    start: int
    end: int
    title: str
    heading: str
    metadata: dict[str, str | int | float | bool | list[str | int | float | bool]]
    score: float
    relevance: float | None
    excerpt: bool
    tokens: int


class Message(TypedDict):
    role: Literal["system", "user"]
    content: str


class PassageKey(TypedDict):
    document_id: str
    passage: int


class Considered(TypedDict):
    document_id: str
    passage: int
    score: float
    outcome: Literal["excerpt", "irrelevant", "no_room", "per_document", "repeats", "shown"]
    number: NotRequired[int | None]
    repeats: NotRequired[PassageKey | None]


class ContextAnswer(TypedDict):
    context: str
    citations: list[Citation]
    tokens: int
    omitted: int
    irrelevant: int
    receipt: Receipt
    timings_ms: Timings
    fence: str
    messages: list[Message] | None
    hint: str | None
    passages: list[Considered] | None


class Written(TypedDict):
    seq: int
    documents: int
    unchanged: int
    passages: int
    tokens: int
    took_ms: float


class Deleted(TypedDict):
    seq: int
    deleted: int


class PassageBody(TypedDict):
    passage: int
    start: int
    end: int
    tokens: int
    vector: list[float]


class DocumentBody(TypedDict):
    id: str
    seq: int
    text: NotRequired[str]
    title: str
    metadata: dict[str, str | int | float | bool | list[str | int | float | bool]]
    passages: int | list[PassageBody]
    language: str


class ScrollPage(TypedDict):
    documents: list[DocumentBody]
    cursor: str | None


class CountBody(TypedDict):
    documents: int
    passages: int
    seq: int


class RecallEvidence(TypedDict):
    source: str
    queries: int
    intervals: dict[str, Any]


class SearchSettings(TypedDict):
    ef: int
    probes: int
    reach: float
    rescored: int
    filtered_share: float
    tuned: bool


class Moves(TypedDict):
    hot_by_hits: int
    hot_by_age: int
    to_hot: int
    to_cold: int


class ColdState(TypedDict):
    state: Literal["always", "learning", "never", "skipping"]
    queries: int
    skipped: int
    proven: int
    audits: int
    stops: int
    loss_bound: float | None


class RebuildDue(TypedDict):
    reason: str
    failed_attempts: int
    error: str | None
    next_ms: int | None


class RankingBody(TypedDict):
    method: Literal["rrf", "weighted"] | None
    weight_dense: float | None
    coefficients: dict[str, list[float]]
    queries: int
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    set_ms: int


class RequestLimits(TypedDict):
    documents_per_request: int
    document_bytes: int
    request_bytes: int


class CollectionBody(TypedDict):
    name: str
    aliases: list[str]
    tenant: str
    model: str
    fingerprint: str
    model_languages: list[str] | None
    dimensions: int
    hot_capacity: int
    language: str
    languages: dict[str, int]
    documents: int
    passages: dict[str, int]
    dead_passages: int
    segments: int
    seq: int
    generation: int
    generations: list[int]
    recall: dict[str, float]
    recall_evidence: RecallEvidence | None
    recall_target: float
    search: SearchSettings | None
    memory_bytes: int
    tier_bytes: dict[str, int]
    resident_bytes: int
    mapped_bytes: int
    moves: Moves | None
    cold: ColdState | None
    owed_bytes: int
    owed_since_ms: int | None
    rebuild_due: RebuildDue | None
    ranking: RankingBody | None
    limits: RequestLimits


class QuarantinedBody(TypedDict):
    name: str
    aliases: list[str]
    reason: str


class CollectionList(TypedDict):
    collections: list[CollectionBody]
    quarantined: list[QuarantinedBody]


class AliasBody(TypedDict):
    alias: str
    collection: str


class FeedbackBody(TypedDict):
    time_ms: int
    query: str
    document_id: str
    grade: int | None
    passed: list[str]


class FeedbackList(TypedDict):
    feedback: list[FeedbackBody]


class JobProgress(TypedDict):
    stage: str
    done: int
    total: int


class JobBody(TypedDict):
    id: str
    kind: str
    collection: str
    status: Literal["failed", "queued", "refused", "running", "succeeded"]
    progress: JobProgress
    created_ms: int
    finished_ms: int | None
    result: dict[str, Any]
    error: str | None


class JobList(TypedDict):
    jobs: list[JobBody]
