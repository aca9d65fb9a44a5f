"""What the service is sent, for type checkers; at run time all of it is plain dictionaries.

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


class Collapse(TypedDict):
    similarity: NotRequired[float | None]
    key: NotRequired[str | None]
    hits: NotRequired[int | None]


class Decay(TypedDict):
    half_life_days: float
    now: NotRequired[str | None]


class Boost(TypedDict):
    key: str
    weight: NotRequired[float]
    scale: NotRequired[Literal["linear", "log"]]
    decay: NotRequired[Decay | None]


class SearchOptions(TypedDict):
    k: NotRequired[int | None]
    mode: NotRequired[Literal["dense", "hybrid", "lexical"] | None]
    filter: NotRequired[Any]
    fusion: NotRequired[Fusion | None]
    rerank: NotRequired[bool | Rerank | None]
    mmr: NotRequired[float | None]
    group_by_document: NotRequired[bool]
    collapse: NotRequired[bool | Literal["text"] | Collapse | None]
    boosts: NotRequired[list[Boost] | None]
    min_score: NotRequired[float | None]
    min_relevance: NotRequired[float | None]
    min_seq: NotRequired[int | str | None]
    deadline_ms: NotRequired[int | None]
    cache: NotRequired[bool]
    typos: NotRequired[bool]
    operators: NotRequired[bool]
    language: NotRequired[str | None]
    partial: NotRequired[bool]


class Neighbors(TypedDict):
    before: NotRequired[int]
    after: NotRequired[int]


class Highlight(TypedDict):
    snippet_chars: NotRequired[int]


class Sort(TypedDict):
    key: str
    order: NotRequired[Literal["asc", "desc"]]


class PageOptions(SearchOptions):
    query: NotRequired[str | None]
    vector: NotRequired[Any]
    offset: NotRequired[int]
    expand: NotRequired[Neighbors | Literal["document", "section"] | None]
    highlight: NotRequired[bool | Highlight | None]
    sort: NotRequired[list[Sort] | None]
    explain: NotRequired[bool]


class Facet(TypedDict):
    key: str
    top: NotRequired[int]
    ranges: NotRequired[list[int | float | str] | None]


class SearchRequest(PageOptions):
    like: NotRequired[list[str | int] | None]
    unlike: NotRequired[list[str | int] | None]
    facets: NotRequired[list[str | Facet] | None]
    exact: NotRequired[bool]


class SearchCollections(PageOptions):
    collections: list[str]


class ContextRequest(SearchOptions):
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


class ExplainRequest(SearchRequest):
    document_id: str | int
    passage: NotRequired[int | None]
    answer_seq: NotRequired[int | str | None]


class Outcome(TypedDict):
    key: NotRequired[str | None]
    bad: NotRequired[list[str | int | float | bool] | None]
    bad_from: NotRequired[float | None]


class AssessRequest(TypedDict):
    action: Any
    outcome: NotRequired[Outcome | None]
    remedy_key: NotRequired[str | None]
    neighbors: NotRequired[int | None]
    near_from: NotRequired[float | None]
    filter: NotRequired[Any]
    language: NotRequired[str | None]
    min_seq: NotRequired[int | str | None]
    deadline_ms: NotRequired[int | None]
    cache: NotRequired[bool]


class AnswerRequest(SearchOptions):
    query: str
    queries: NotRequired[list[str] | None]
    token_budget: NotRequired[int]
    tokenizer: NotRequired[str | None]
    format: NotRequired[Literal["messages", "plain", "xml"]]
    template: NotRequired[str | None]
    order: NotRequired[Literal["newest", "oldest", "position", "relevance"]]
    date_key: NotRequired[str | None]
    explain: NotRequired[bool]
    per_document: NotRequired[int | None]
    excerpt_tokens: NotRequired[int | None]
    min_similarity: NotRequired[float | None]
    instruction: NotRequired[str | None]


class SentDocument(TypedDict):
    id: str | int
    text: NotRequired[str]
    title: NotRequired[str]
    metadata: NotRequired[Any]
    vector: NotRequired[Any]
    language: NotRequired[str | None]
    expires_at: NotRequired[str | int | None]


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


class PatchDocument(TypedDict):
    expires_at: NotRequired[str | int | None]


class PatchDocuments(PatchDocument):
    ids: NotRequired[Any]
    filter: NotRequired[Any]


class FieldWeightsBody(TypedDict):
    title: NotRequired[int]
    heading: NotRequired[int]


class CreateCollection(TypedDict):
    model: NotRequired[str | None]
    dimensions: NotRequired[int | None]
    metric: NotRequired[Literal["cosine"]]
    hot_capacity: NotRequired[int | None]
    language: NotRequired[str]
    field_weights: NotRequired[FieldWeightsBody]
    shards: NotRequired[int]


class SetRanking(TypedDict):
    method: NotRequired[Literal["rrf", "weighted"] | None]
    weight_dense: NotRequired[float | None]
    rerank: NotRequired[bool | None]
    coefficients: NotRequired[dict[str, list[float]]]
    queries: NotRequired[int]
    gain: NotRequired[float | None]
    gain_low: NotRequired[float | None]
    gain_high: NotRequired[float | None]


class SetSynonyms(TypedDict):
    synonyms: list[list[str]]


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
