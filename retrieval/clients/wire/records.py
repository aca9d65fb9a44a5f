"""What the service answers about what it holds, for type checkers; at run time all of it is plain dictionaries.

Made from the service's own types by `python -m tests.support.wire_types`: do not edit. A key that is `NotRequired` in
an answer is absent where it says nothing.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Written(TypedDict):
    seq: int | str
    documents: int
    unchanged: int
    passages: int
    tokens: int
    took_ms: float


class Deleted(TypedDict):
    seq: int | str
    deleted: int


class Patched(TypedDict):
    seq: int | str
    changed: int


class PassageBody(TypedDict):
    passage: int
    start: int
    end: int
    tokens: int
    vector: list[float]


class DocumentBody(TypedDict):
    id: str
    seq: int | str
    text: NotRequired[str]
    title: str
    metadata: dict[str, Any]
    passages: int | list[PassageBody]
    language: str
    expires_at: NotRequired[str]


class ScrollPage(TypedDict):
    documents: list[DocumentBody]
    cursor: str | None


class CountBody(TypedDict):
    documents: int
    passages: int
    seq: int | str


class FieldWeightsBody(TypedDict):
    title: NotRequired[int]
    heading: NotRequired[int]


class RecallEvidence(TypedDict):
    source: str
    queries: int
    intervals: dict[str, Any]


class SearchSettings(TypedDict):
    ef: int
    probes: int
    reach: float
    rescored: int
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


class StoreState(TypedDict):
    seq: int
    behind: int
    lag_s: NotRequired[float]
    age_s: NotRequired[float]


class RebuildDue(TypedDict):
    reason: str
    failed_attempts: int
    error: str | None
    next_ms: int | None


class RankingBody(TypedDict):
    method: Literal["rrf", "weighted"] | None
    weight_dense: float | None
    rerank: bool | None
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
    metadata_keys: int


class ShardBody(TypedDict):
    name: str
    node: str
    services: int
    seq: int
    documents: int


class CollectionBody(TypedDict):
    name: str
    aliases: list[str]
    tenant: str
    model: str | None
    fingerprint: str
    model_languages: list[str] | None
    dimensions: int
    hot_capacity: int
    field_weights: FieldWeightsBody
    language: str
    languages: dict[str, int]
    documents: int
    passages: dict[str, int]
    dead_passages: int
    segments: int
    seq: int | str
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
    store: StoreState | None
    rebuild_due: RebuildDue | None
    ranking: RankingBody | None
    limits: RequestLimits
    shards: NotRequired[list[ShardBody]]


class QuarantinedBody(TypedDict):
    name: str
    aliases: list[str]
    reason: str


class UnavailableBody(TypedDict):
    name: str
    reason: str


class CollectionList(TypedDict):
    collections: list[CollectionBody]
    quarantined: list[QuarantinedBody]
    unavailable: list[UnavailableBody]


class AliasBody(TypedDict):
    alias: str
    collection: str


class FeedbackKept(TypedDict):
    kept: int
    unknown: list[str]


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


class HeldBody(TypedDict):
    seq: int | str


class SynonymsBody(TypedDict):
    synonyms: list[list[str]]
    set_ms: int | None
