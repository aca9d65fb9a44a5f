"""What the service answers to questions, for type checkers; at run time all of it is plain dictionaries.

Made from the service's own types by `python -m tests.support.wire_types`: do not edit. A key that is `NotRequired` in
an answer is absent where it says nothing.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Scores(TypedDict):
    dense: float | None
    lexical: float | None
    rerank: NotRequired[float | None]
    boost: NotRequired[float]
    name: NotRequired[float]


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
    metadata: dict[str, Any]
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
    collapsed: NotRequired[int]
    group: NotRequired[str | int | float | bool | None]
    collection: NotRequired[str]


class Reranked(TypedDict):
    model: str
    passages: int
    of: int


class EvidenceFrom(TypedDict):
    some: float
    strong: float


class Receipt(TypedDict):
    collection: str
    generation: int
    seq: int | str
    tiers: list[Literal["cold", "delta", "hot"]]
    cold_skipped: str | None
    share_read: float | None
    weight_dense: float | None
    cache: Literal["bypass", "hit", "miss"]
    model: str | None
    reranked: Reranked | None
    evidence: Literal["none", "some", "strong"] | None
    corrected: NotRequired[dict[str, str]]
    degraded: NotRequired[list[Literal["candidates", "rerank"]]]
    over_budget: NotRequired[
        list[
            Literal[
                "collapse",
                "facets",
                "group_by_document",
                "highlight",
                "min_relevance",
                "min_score",
                "operators",
                "synonyms",
                "typos",
            ]
        ]
    ]
    query_cut: NotRequired[bool]
    evidence_from: EvidenceFrom | None
    age_s: NotRequired[float]
    shards_missing: NotRequired[list[int]]


class Timings(TypedDict):
    cache: float
    embed: float
    dense: float
    lexical: float
    fuse: float
    rerank: float
    hydrate: float
    shards: float
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


class SearchCollectionsAnswer(TypedDict):
    hits: list[Hit]
    receipts: list[Receipt]
    timings_ms: Timings


class Citation(TypedDict):
    number: int
    document_id: str
    passages: list[int]
    start: int
    end: int
    title: str
    heading: str
    metadata: dict[str, Any]
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


class Considered(PassageKey):
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


class Cause(TypedDict):
    kind: Literal[
        "below_floor",
        "beyond_depth",
        "collapsed",
        "cut_query",
        "expired",
        "filtered",
        "found",
        "grouped",
        "left_out",
        "missed_by_index",
        "missing_terms",
        "no_document",
        "not_visible",
        "outscored",
        "own_vector",
        "reranked",
        "unread_query",
        "words_elsewhere",
    ]
    stage: Literal["candidates", "filter", "floor", "fusion", "group", "log", "page", "rerank", "snapshot"]
    reason: str
    evidence: dict[str, Any]


class Change(TypedDict):
    patch: dict[str, Any]
    verified_rank: int


class FollowedWord(TypedDict):
    word: str
    score: float
    share: float
    near: str | None


class FollowedPassage(TypedDict):
    passage: int
    tier: Literal["cold", "delta", "hot"]
    scores: Scores
    exact: Ranks
    candidate: Ranks
    score: float | None
    place: int | None
    words: list[FollowedWord]


class ExplainAnswer(TypedDict):
    found: int | None
    cause: Cause
    also: list[Cause]
    change: Change | None
    others: list[Change]
    passages: list[FollowedPassage]
    searches: int
    seq: int | str
    within_k: NotRequired[bool]
    over_budget: NotRequired[bool]


class PastEvent(TypedDict):
    document_id: str
    title: str
    text: str
    metadata: dict[str, Any]
    similarity: float
    outcome: str | int | float | bool | list[str | int | float | bool] | None
    bad: bool | None
    counted: bool


class RemedyOf(TypedDict):
    remedy: str
    document_ids: list[str]


class Assessment(TypedDict):
    risk_score: float | None
    interval: list[float] | None
    recommendation: Literal["proceed", "review", "stop"]
    summary: str
    abstained: Literal["no_outcomes", "none_bad", "nothing_near"] | None
    base_rate: float | None
    events: int
    events_worth: float
    evidence: list[PastEvent]
    remedies: list[RemedyOf]
    read_chars: int
    cut: bool
    receipt: Receipt
    timings_ms: Timings


class AnswerSentence(TypedDict):
    text: str
    citations: list[int]
    words_found: float | None


class Answer(TypedDict):
    answer: str | None
    reason: Literal["declined", "empty", "no_model", "not_in_documents"] | None
    evidence: Literal["none", "some", "strong"] | None
    citations: list[Citation]
    cited: list[int]
    unknown_citations: list[int]
    sentences: list[AnswerSentence]
    messages: list[Message] | None
    model: str | None
    finish_reason: str | None
    tokens: int
    model_ms: float
    receipt: Receipt
    timings_ms: Timings
