"""Every section and key of the settings, with its default and the values it may take.

`configs/default.toml` says what each key is for, with its unit and its reason; a test holds the two equal. Loading,
overriding and validating are in `retrieval/base/config.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from indexes.base.model import IndexOptions

LIBRARY = IndexOptions()  # its defaults are those of the service
INTEGER_MAX = 2**63 - 1  # that SQLite and numpy can hold
Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Positive = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Whole = Annotated[int, Meta(ge=-(2**63), le=INTEGER_MAX)]
Duration = Annotated[float, Meta(gt=0, le=31_536_000)]  # in the key's unit; the bound also excludes infinity
Weight = Annotated[float, Meta(ge=0, le=1_000_000)]
Share = Annotated[float, Meta(gt=0, le=1)]
Name = Annotated[str, Meta(min_length=1)]
ServiceUrl = Annotated[
    str, Meta(pattern=r"^https?://[^/?#\s]+/?$", description="an address such as http://10.0.0.1:8080")
]
# As browsers send it; anything else would never match.
Origin = Annotated[str, Meta(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/*\sA-Z]+)$")]
# The name alone, in lower case: the port is not compared.
HostName = Annotated[str, Meta(pattern=r"^(\*|[^*:/\s\[\]A-Z]+)$")]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file. Only a reload changes it, key by key (`config.take_over`), so any thread may read it."""


class ServerSection(Section, frozen=True, kw_only=True):
    host: Name = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    body_bytes_max: Positive = 33_554_432
    body_timeout_s: Duration = 15.0
    header_timeout_s: Duration = 15.0
    write_timeout_s: Duration = 15.0
    keepalive_timeout_s: Duration = 75.0
    search_processes: Annotated[int, Meta(ge=-1, le=256)] = -1
    connections_max: Positive = 1000
    connections_per_address_max: Positive = 500
    memory_bytes_max: Count = 0
    shutdown_grace_s: Duration = 25.0
    hosts: list[HostName] = []
    cors_origins: list[Origin] = []
    insecure: bool = False
    tls_certificate: str = ""
    tls_key: str = ""


class AuthSection(Section, frozen=True, kw_only=True):
    groups_secret: Annotated[
        str, Meta(pattern=r"^$|^.{32,}$", description="32 characters or more, or nothing")
    ] = ""


class PrivacySection(Section, frozen=True, kw_only=True):
    vector_noise: Annotated[float, Meta(ge=0, le=10)] = 0.0
    secret: Annotated[str, Meta(pattern=r"^$|^.{16,}$", description="16 characters or more, or nothing")] = ""


class AdmissionSection(Section, frozen=True, kw_only=True):
    searches_max: Positive = 64
    writes_max: Positive = 32
    changes_max: Positive = 64
    embeds_max: Positive = 64
    heavy_max: Positive = 16
    answers_max: Positive = 16
    watches_max: Positive = 64
    bodies_max: Positive = 512
    body_bytes_max: Positive = 67_108_864
    queue_ms_target: Duration = 250.0
    queue_ms_max: Duration = 1000.0
    wait_s_max: Duration = 30.0


class ModelsSection(Section, frozen=True, kw_only=True):
    folder: Name = "models"
    default: Name = "all-MiniLM-L6-v2"
    aliases: dict[Name, Name] = field(default_factory=dict)
    matryoshka: list[Name] = []
    threads: Count = 0
    run_threads: Positive = 1
    provider: Name = "cpu"
    provider_options: dict[Name, str] = field(default_factory=dict)


class EmbeddingSection(Section, frozen=True, kw_only=True):
    query_run_ms: Duration = 5.0
    bulk_run_ms: Duration = 10.0
    batch_texts_max: Positive = 64
    queue_tokens_max: Positive = 262_144
    query_wait_ms_max: Duration = 1000.0
    query_cache_bytes: Count = 33_554_432


class PassagesSection(Section, frozen=True, kw_only=True):
    tokens_max: Annotated[int, Meta(ge=8)] = 200
    overlap_tokens: Count = 32


class LimitsSection(Section, frozen=True, kw_only=True):
    documents_per_request_max: Positive = 1000
    document_bytes_max: Positive = 16_777_216
    metadata_bytes_max: Positive = 16_384
    metadata_keys_max: Count = 512
    metadata_values_max: Count = 4096
    id_chars_max: Positive = 512
    query_chars_max: Positive = 8192
    texts_per_request_max: Positive = 2048
    k_max: Positive = 1000
    searches_per_batch_max: Positive = 100
    queries_per_context_max: Positive = 16
    feedback_per_request_max: Positive = 1000
    filter_conditions_max: Positive = 64
    filter_bytes_max: Positive = 1_048_576
    token_budget_max: Positive = 100_000
    expanded_chars_max: Positive = 65_536
    page_limit_max: Positive = 1000
    answer_bytes_max: Positive = 33_554_432


class IndexSection(Section, frozen=True, kw_only=True):
    hot_capacity: Count = 10_000
    delta_passages_max: Positive = LIBRARY.delta_passages_max
    segments_max: Count = LIBRARY.segments_max
    dead_fraction_max: Share = LIBRARY.dead_fraction_max
    recall_target: Share = LIBRARY.recall_target
    recall_floor: Annotated[float, Meta(ge=0, le=1)] = LIBRARY.recall_floor
    build_threads: Positive = LIBRARY.build_threads
    build_timeout_s: Duration = LIBRARY.build_timeout_s
    generations_kept: Positive = LIBRARY.generations_kept
    commit_ops_max: Positive = LIBRARY.commit_ops_max
    erase_after_h: Duration = 24.0
    expire_every_s: Duration = 30.0
    idle_s: Duration = 1800.0
    resident_bytes: Count = 0


class SearchSection(Section, frozen=True, kw_only=True):
    k: Positive = 10
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    candidates: Positive = 100
    strained_from: Count = 48
    strained_candidates: Positive = 20
    fusion: Literal["rrf", "weighted"] = "weighted"
    rrf_k: Positive = 10
    weight_dense: Weight = 0.45
    weight_lexical: Weight = 0.55
    exact_scan_passages_max: Count = LIBRARY.exact_scan_passages_max
    cold: Literal["auto", "always", "calibrated", "never"] = LIBRARY.cold.mode
    cold_loss_budget: Share = LIBRARY.cold.budget
    cold_audit_share: Share = LIBRARY.cold.audit
    deadline_ms: Positive = 10_000
    threads: Positive = 2


class RerankSection(Section, frozen=True, kw_only=True):
    model: str = ""
    candidates: Positive = 20
    budget_ms: Duration = 200.0
    weight: Annotated[float, Meta(ge=0, le=1)] = 0.3


class ContextSection(Section, frozen=True, kw_only=True):
    excerpt_tokens: Count = 32
    min_similarity: Annotated[float, Meta(ge=-1, le=1)] | Literal["model"] = "model"


class AssessSection(Section, frozen=True, kw_only=True):
    outcome_key: Name = "outcome"
    bad: list[str | int | float | bool] = field(
        default_factory=lambda: ["failed", "failure", "rollback", "rolled_back", "incident", "outage"]
    )
    bad_from: float | Literal["none"] = "none"
    remedy_key: Name = "remedy"
    neighbors: Positive = 50
    near_from: Annotated[float, Meta(ge=0, le=1)] = 0.2
    prior_events: Duration = 2.0
    review_from: Share = 0.2
    stop_from: Share = 0.5


class LlmSection(Section, frozen=True, kw_only=True):
    base_url: Annotated[
        str,
        Meta(pattern=r"^$|^https?://[^?#\s]+$", description="an address that begins with http, or nothing"),
    ] = ""
    model: str = ""
    api_key: str = ""
    timeout_s: Duration = 120.0
    max_tokens: Positive = 512
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    reply_bytes_max: Positive = 8_388_608


class CacheSection(Section, frozen=True, kw_only=True):
    results_bytes_max: Count = 67_108_864
    ttl_s: Duration = 3600.0
    warm_searches: Count = 200
    reworded: bool = False


class RedisSection(Section, frozen=True, kw_only=True):
    url: Annotated[
        str,
        Meta(
            pattern=r"^$|^(rediss?(\+(sentinel|cluster))?|unix)://",
            description="redis://, rediss://, unix:// or redis+sentinel:// and its like, or nothing",
        ),
    ] = ""
    secret: Annotated[str, Meta(pattern=r"^$|^.{16,}$", description="16 characters or more, or nothing")] = ""
    timeout_ms: Duration = 15.0
    retry_after_s: Duration = 5.0
    prefix: Name = "nearline"


class StoreSection(Section, frozen=True, kw_only=True):
    url: Annotated[
        str,
        Meta(pattern=r"^$|^(s3|gs|az|file)://.", description="s3://, gs://, az:// or file:///, or nothing"),
    ] = ""
    acknowledge: Literal["local", "bucket"] = "local"
    lag_s_max: Duration = 1.0
    keep_days: Annotated[float, Meta(ge=0, le=3650)] = 7.0
    replica: bool = False
    poll_ms: Duration = 200.0
    writer: Annotated[
        str, Meta(pattern=r"^$|^https?://[^/\s]\S*$", description="http:// or https://, or nothing")
    ] = ""
    writer_api_key: str = ""
    forward_writes: bool = False


class ClusterSection(Section, frozen=True, kw_only=True):
    nodes: dict[str, list[ServiceUrl]] = field(default_factory=dict)
    secret: str = ""
    timeout_s: Duration = 10.0
    late_ms: Duration = 500.0


class QueryLogSection(Section, frozen=True, kw_only=True):
    enabled: bool = False
    queries_per_day_max: Positive = 500
    days: Positive = 7
    file_bytes_max: Positive = 1_048_576
    write_every_s: Duration = 60.0


class FeedbackSection(Section, frozen=True, kw_only=True):
    days: Count = 90
    file_bytes_max: Positive = 4_194_304


class FilesSection(Section, frozen=True, kw_only=True):
    bytes_max: Positive = 1_073_741_824
    uploads_max: Positive = 50_000
    days: Positive = 30
    text_factor_max: Positive = 16


class LogSection(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    queries: bool = False
    slow_ms: Annotated[float, Meta(ge=0)] = 1000.0


class TracingSection(Section, frozen=True, kw_only=True):
    enabled: bool = False


class Config(Section, frozen=True, kw_only=True):
    """All settings. `Config()` holds the defaults."""

    server: ServerSection = field(default_factory=ServerSection)
    auth: AuthSection = field(default_factory=AuthSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    admission: AdmissionSection = field(default_factory=AdmissionSection)
    models: ModelsSection = field(default_factory=ModelsSection)
    embedding: EmbeddingSection = field(default_factory=EmbeddingSection)
    passages: PassagesSection = field(default_factory=PassagesSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    index: IndexSection = field(default_factory=IndexSection)
    search: SearchSection = field(default_factory=SearchSection)
    rerank: RerankSection = field(default_factory=RerankSection)
    context: ContextSection = field(default_factory=ContextSection)
    assess: AssessSection = field(default_factory=AssessSection)
    llm: LlmSection = field(default_factory=LlmSection)
    cache: CacheSection = field(default_factory=CacheSection)
    redis: RedisSection = field(default_factory=RedisSection)
    store: StoreSection = field(default_factory=StoreSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    query_log: QueryLogSection = field(default_factory=QueryLogSection)
    feedback: FeedbackSection = field(default_factory=FeedbackSection)
    files: FilesSection = field(default_factory=FilesSection)
    log: LogSection = field(default_factory=LogSection)
    tracing: TracingSection = field(default_factory=TracingSection)


# What a reload cannot change, because it was used to build something when the service started. All other keys are read
# at each use. A section name stands for all of its keys.
RESTART = frozenset(
    {
        "server.host",
        "server.port",
        "server.body_bytes_max",
        "server.search_processes",
        "server.connections_max",
        "server.memory_bytes_max",
        "server.shutdown_grace_s",
        "server.insecure",
        "server.tls_certificate",
        "server.tls_key",
        "auth",
        "privacy",
        "models.folder",
        "models.default",
        "models.matryoshka",
        "models.threads",
        "models.run_threads",
        "models.provider",
        "models.provider_options",
        "embedding",
        "index.delta_passages_max",
        "index.segments_max",
        "index.dead_fraction_max",
        "index.recall_target",
        "index.recall_floor",
        "index.build_threads",
        "index.build_timeout_s",
        "index.generations_kept",
        "index.commit_ops_max",
        "index.erase_after_h",
        "index.expire_every_s",
        "index.resident_bytes",
        "search.exact_scan_passages_max",
        "search.cold",
        "search.cold_loss_budget",
        "search.cold_audit_share",
        "search.threads",
        "rerank.model",
        "llm.timeout_s",
        "cache.results_bytes_max",
        "cache.warm_searches",
        "redis",
        "store",
        "cluster.secret",
        "query_log.enabled",
        "tracing",
    }
)
