"""The wire types of collections, of feedback about their hits, and of their jobs: rebuilds, tunings and erasures."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from indexes.base.languages import AUTO
from indexes.base.model import Tier
from indexes.collection.info import SearchSettings
from indexes.dense.cold_skips import ColdState
from indexes.directory.marker import WHOLE_NAME
from indexes.parts.manifest import Moves, RecallEvidence
from retrieval.base.settings import Count
from retrieval.wire.search import Doc, DocumentId, NonEmpty, Request, Seq

Capacity = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Dimensions = Annotated[int, Meta(ge=1, le=4096)]
FieldWeight = Annotated[int, Meta(ge=0, le=5)]
# Only documented here: the catalog validates names and explains the rules.
CollectionName = Annotated[str, Meta(extra_json_schema={"pattern": f"^{WHOLE_NAME}$"})]
RankingMethod = Annotated[
    Literal["rrf", "weighted"] | None, Doc("`rrf` fuses by rank, `weighted` by score; null: as configured")
]
DenseWeight = Annotated[
    Annotated[float, Meta(ge=0, le=1)] | None,
    Doc(
        "For `weighted`, which it implies: weight of the dense ranking, BM25 has the rest; null: as configured"
    ),
]
DefaultRerank = Annotated[
    bool | None, Doc("Whether searches that do not say so are reranked; null: they are not")
]
JudgedQueries = Annotated[Count, Doc("Judged queries it was learned from; 0 if set by hand")]
Gain = Annotated[float | None, Doc("Gain in nDCG@10 on held-out queries; null if set by hand")]
GainLow = Annotated[float | None, Doc("Lower bound of its 95 percent interval")]
GainHigh = Annotated[float | None, Doc("Upper bound of its 95 percent interval")]
JobStatus = Literal["queued", "running", "succeeded", "failed", "refused"]


# --- collections ----------------------------------------------------------------------------------------------


class FieldWeightsBody(Request, frozen=True, kw_only=True):
    """How often words count in BM25, beside those of a passage itself, which count once."""

    title: Annotated[FieldWeight, Doc("The words of its document's title")] = 1
    heading: Annotated[FieldWeight, Doc("The words of the headings above it; 0: they do not find it")] = 0


class CreateCollection(Request, frozen=True, kw_only=True):
    name: Annotated[CollectionName, Doc("1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or digit")]
    model: Annotated[str | None, Doc("Name of the embedding model")] = None
    dimensions: Annotated[
        Dimensions | None,
        Doc(
            "Length of vectors of your own: the collection has no model, and documents and queries bring theirs"
        ),
    ] = None
    metric: Annotated[
        Literal["cosine"], Doc("How vectors are compared: they are brought to length 1. There is no other")
    ] = "cosine"
    hot_capacity: Annotated[Capacity | None, Doc("Passages to keep in the hot tier")] = None
    language: Annotated[
        str, Doc("BCP 47 code of the language of documents that set none; `auto` detects it for each")
    ] = AUTO
    field_weights: Annotated[
        FieldWeightsBody, Doc("How often the words of titles and headings count; this cannot change later")
    ] = FieldWeightsBody()
    shards: Annotated[
        Annotated[int, Meta(ge=1, le=256)],
        Doc("In how many parts it is divided among the nodes of the cluster; this cannot change later"),
    ] = 1


class RenameCollection(Request, frozen=True, kw_only=True):
    name: Annotated[CollectionName, Doc("1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or digit")]


class SetAlias(Request, frozen=True, kw_only=True):
    collection: Annotated[str, Doc("Name or alias of a collection")]


class RequestLimits(msgspec.Struct):
    """Limits on one request to write documents."""

    documents_per_request: Annotated[int, Doc("Documents in one write")]
    document_bytes: Annotated[int, Doc("UTF-8 bytes of one text")]
    request_bytes: Annotated[int, Doc("Bytes of a request's body")]
    metadata_keys: Annotated[int, Doc("Keys in the metadata of one document")]


class RebuildDue(msgspec.Struct):
    """A rebuild that the service starts automatically. After a failed attempt, the next one starts at `next_ms`."""

    reason: Annotated[str, Doc("Why")]
    failed_attempts: Annotated[int, Doc("Failures since the last rebuild that succeeded")] = 0
    error: Annotated[str | None, Doc("What went wrong; null if nothing did")] = None
    next_ms: Annotated[int | None, Doc("Unix time of the next attempt in milliseconds")] = None


class SetRanking(Request, frozen=True, kw_only=True):
    """A collection's default ranking. Absent fields come from the configuration."""

    method: RankingMethod = None
    weight_dense: DenseWeight = None
    rerank: DefaultRerank = None
    coefficients: Annotated[
        dict[Annotated[str, Meta(max_length=64)], Annotated[list[float], Meta(max_length=256)]],
        Meta(max_length=64),
        Doc("Lists of numbers by name, such as a calibration of relevance"),
    ] = field(default_factory=dict)
    queries: JudgedQueries = 0
    gain: Gain = None
    gain_low: GainLow = None
    gain_high: GainHigh = None


Alternative = Annotated[str, Meta(min_length=1, max_length=100)]


class SetSynonyms(Request, frozen=True, kw_only=True):
    """A collection's synonyms, in the place of those that it has."""

    synonyms: Annotated[
        list[Annotated[list[Alternative], Meta(min_length=2, max_length=32)]],
        Meta(max_length=1000),
        Doc('Lists of words and expressions that mean the same: `["k8s", "kubernetes"]`'),
    ]


class SynonymsBody(msgspec.Struct):
    synonyms: Annotated[list[list[str]], Doc("Lists of words and expressions that mean the same")]
    set_ms: Annotated[int | None, Doc("Unix time of the change in milliseconds; null: there are none")]


class HoldWrites(Request, frozen=True, kw_only=True):
    """How long a collection is to refuse writes."""

    seconds: Annotated[float, Meta(ge=0, le=60), Doc("From now on; 0 ends it")]


class HeldBody(msgspec.Struct):
    seq: Seq


class RankingBody(msgspec.Struct, kw_only=True):
    """A collection's own ranking settings. `gain` is in nDCG@10 on held-out queries."""

    method: RankingMethod
    weight_dense: DenseWeight
    rerank: DefaultRerank
    coefficients: Annotated[dict[str, list[float]], Doc("Lists of numbers by name")]
    queries: JudgedQueries
    gain: Gain
    gain_low: GainLow
    gain_high: GainHigh
    set_ms: Annotated[int, Doc("Unix time of the change in milliseconds")]


class StoreState(msgspec.Struct):
    """How far the store (`store.url`) has come with a collection, or a replica with what the store has."""

    seq: Annotated[int, Doc("Last operation that the store has; of a replica: that it has seen there")]
    behind: Annotated[int, Doc("Operations that the store, or the replica, does not have yet")]
    lag_s: Annotated[
        float | UnsetType, Doc("Seconds that the oldest of them has waited for the store; not of a replica")
    ] = UNSET
    age_s: Annotated[
        float | UnsetType, Doc("Seconds since a replica last had everything; only of a replica")
    ] = UNSET


class StoreChanges(msgspec.Struct):
    """News of the store, for its replicas."""

    changes: Annotated[int, Doc("How often this service has put something there since its start")]
    epoch: Annotated[
        int, Doc("Which of the services that have written to the store it is; 0: not known yet")
    ] = 0


class ShardBody(msgspec.Struct):
    """A shard of a collection. It can be asked for by its name, as a collection, at its node."""

    name: Annotated[str, Doc("Its name, such as `docs~2of8`")]
    node: Annotated[str, Doc("Name of its node in the configuration")]
    services: Annotated[int, Doc("Services that answer for it: one that writes, and replicas")]
    seq: Annotated[int, Doc("Position of the last operation in its log")]
    documents: Annotated[int, Doc("Number of documents")]


class NodeBody(msgspec.Struct):
    """A service of a node, as the one that was asked sees it."""

    node: Annotated[str, Doc("Name of the node in the configuration")]
    url: Annotated[str, Doc("Where it is asked")]
    up: Annotated[bool, Doc("Whether it answers")]
    why: Annotated[str | None, Doc("Why it does not; null if it does")]
    writes: Annotated[bool, Doc("Whether it takes writes; a replica does not")]
    shards: Annotated[
        dict[str, int], Doc("Its shards, each with the position of the last operation in its log")
    ]
    moving: Annotated[
        list[str], Doc("Those that come from another node or go to one, and take no writes here")
    ] = field(default_factory=list)


class ClusterBody(msgspec.Struct):
    services: Annotated[list[NodeBody], Doc("All services of all nodes; empty without a cluster")]
    missing: Annotated[
        list[str], Doc("Shards that no service has which answers: a node is away, or came back empty")
    ] = field(default_factory=list)


class MoveShard(Request, frozen=True, kw_only=True):
    shard: Annotated[str, Doc("Name of a shard, such as docs~2of6")]
    to: Annotated[str, Doc("Name of the node that shall have it")]


class BalanceShards(Request, frozen=True, kw_only=True):
    without: Annotated[list[str], Doc("Names of nodes that shall have no shards")] = field(
        default_factory=list
    )


class CollectionBody(msgspec.Struct, kw_only=True):
    """One collection. Recall is recall@10 as the last rebuild measured it with its settings. `memory_bytes` is the
    memory of the indexes without files read in place: copies of those are `resident_bytes`, the rest `mapped_bytes`."""

    name: Annotated[str, Doc("The collection's own name, not an alias")]
    aliases: Annotated[list[str], Doc("Other names of this collection")]
    tenant: Annotated[str, Doc("The tenant that owns it; empty: none")]
    model: Annotated[str | None, Doc("Name of the embedding model; null: documents bring vectors")]
    fingerprint: Annotated[
        str, Doc("Hash of everything that affects a vector; without a model, one of this collection's own")
    ]
    model_languages: Annotated[
        list[str] | None, Doc("BCP 47 codes of the languages that the model reads; null if unknown")
    ]
    dimensions: Annotated[int, Doc("Length of a vector")]
    hot_capacity: Annotated[int, Doc("Passages to keep in the hot tier")]
    field_weights: Annotated[
        FieldWeightsBody, Doc("How often the words of titles and headings count in BM25")
    ]
    language: Annotated[str, Doc("Language of documents that set none; `auto`: detected for each")]
    languages: Annotated[dict[str, int], Doc("Live passages by language, the most frequent first")]
    documents: Annotated[int, Doc("Number of documents")]
    passages: Annotated[dict[Tier, int], Doc("Live passages by tier")]
    dead_passages: Annotated[int, Doc("Deleted passages that are still in an index")]
    segments: Annotated[int, Doc("Sealed batches of recent passages; a rebuild empties them")]
    seq: Seq
    generation: Annotated[int, Doc("Number of the live build of the indexes; 0 before the first rebuild")]
    generations: Annotated[list[int], Doc("Builds on disk; a rollback returns to an older one")]
    recall: Annotated[
        dict[str, float],
        Doc("Recall@10 measured by the last rebuild or tuning, by tier; empty before the first rebuild"),
    ]
    recall_evidence: Annotated[
        RecallEvidence | None,
        Doc("Evidence for the recall: queries, and a 95 percent interval for each value"),
    ]
    recall_target: Annotated[float, Doc("Recall@10 that the next rebuild aims for")]
    search: Annotated[SearchSettings | None, Doc("Search settings in use; null before the first rebuild")]
    memory_bytes: Annotated[int, Doc("Memory of the indexes, without mapped files")]
    tier_bytes: Annotated[dict[Tier, int], Doc("Memory of the indexes by tier")]
    resident_bytes: Annotated[
        int, Doc("Index files read in place and copied into memory, up to `index.resident_bytes`")
    ]
    mapped_bytes: Annotated[int, Doc("Mapped index files, which the system may evict from memory")]
    moves: Annotated[Moves | None, Doc("Passages the last rebuild moved between tiers")]
    cold: Annotated[
        ColdState | None,
        Doc("How queries that searched the hot tier first fared; null before the first rebuild"),
    ]
    owed_bytes: Annotated[int, Doc("Bytes deleted or overwritten but not erased yet")]
    owed_since_ms: Annotated[int | None, Doc("Unix time in milliseconds when the oldest of them was deleted")]
    store: Annotated[StoreState | None, Doc("What the store has of it; null if none is configured")]
    rebuild_due: Annotated[
        RebuildDue | None, Doc("A rebuild that the service starts automatically; null if none is due")
    ]
    ranking: Annotated[
        RankingBody | None, Doc("This collection's own ranking settings; null if it ranks as configured")
    ]
    limits: Annotated[RequestLimits, Doc("Limits on one write")]
    shards: Annotated[
        list[ShardBody] | UnsetType,
        Doc("Where its shards are; absent if it is in one piece. What is stated above is their sum"),
    ] = UNSET


class QuarantinedBody(msgspec.Struct):
    """A collection that cannot serve, and why. It can be deleted; all other requests are answered 503 `quarantined`."""

    name: Annotated[str, Doc("The collection's own name")]
    aliases: Annotated[list[str], Doc("Other names of this collection")]
    reason: Annotated[str, Doc("Why")]


class UnavailableBody(msgspec.Struct):
    """A collection in shards that cannot be described now, and why. It is whole again once its nodes answer."""

    name: Annotated[str, Doc("The collection's own name")]
    reason: Annotated[str, Doc("Why, such as which of its shards no node answers for")]


class CollectionList(msgspec.Struct):
    collections: Annotated[list[CollectionBody], Doc("Collections that serve")]
    quarantined: Annotated[list[QuarantinedBody], Doc("Collections out of service, with the reason")]
    unavailable: Annotated[
        list[UnavailableBody], Doc("Collections in shards of which some are at nodes that do not answer")
    ] = []


class AliasBody(msgspec.Struct):
    alias: Annotated[str, Doc("The other name; it can be moved to another collection atomically")]
    collection: Annotated[str, Doc("Name or alias of a collection")]


# --- feedback -------------------------------------------------------------------------------------------------


class SentFeedback(Request, frozen=True, kw_only=True):
    """Feedback with a `grade` is a judgment; without one, the user opened this document and skipped those above it."""

    query: Annotated[NonEmpty, Doc("The text that was searched for")]
    document_id: Annotated[DocumentId, Doc("Id of the document, as hits show it")]
    grade: Annotated[
        Annotated[int, Meta(ge=0, le=3)] | None,
        Doc("From 0, not relevant, to 3; null: the user opened the document"),
    ] = None
    shown: Annotated[
        Annotated[list[DocumentId], Meta(max_length=100)],
        Doc("Ids of the documents that the user saw, best first, including this one"),
    ] = field(default_factory=list)


class SendFeedback(Request, frozen=True, kw_only=True):
    feedback: Annotated[
        list[SentFeedback], Doc("All entries about documents that exist are kept, or, after an error, none")
    ]


class FeedbackKept(msgspec.Struct):
    """How much feedback is now durably stored."""

    kept: Annotated[int, Doc("Number of entries kept")]
    unknown: Annotated[
        list[str],
        Doc(
            "Ids of documents that do not exist, or that the key may not see; entries about them are not kept"
        ),
    ]


class FeedbackBody(msgspec.Struct, kw_only=True):
    time_ms: Annotated[int, Doc("Unix time of its arrival in milliseconds")]
    query: Annotated[str, Doc("The text that was searched for")]
    document_id: Annotated[str, Doc("Id of the document")]
    grade: Annotated[int | None, Doc("From 0 to 3; null: the user opened the document")]
    passed: Annotated[list[str], Doc("Ids of the documents shown above the one that the user opened")]


class FeedbackList(msgspec.Struct):
    feedback: Annotated[list[FeedbackBody], Doc("Oldest first; without documents that are gone")]


# --- jobs -----------------------------------------------------------------------------------------------------


class Reindex(Request, frozen=True, kw_only=True):
    hot_capacity: Annotated[Capacity | None, Doc("Passages to keep in the hot tier")] = None


class Tune(Request, frozen=True, kw_only=True):
    """Find the cheapest search settings for this recall@10, with these queries or synthetic ones; `apply` activates
    them."""

    recall_target: Annotated[float, Meta(gt=0, le=1), Doc("Recall@10 to reach")]
    queries: Annotated[list[str] | None, Doc("Queries to measure with; absent: synthetic ones")] = None
    apply: Annotated[bool, Doc("Whether to use the settings found; false only reports them")] = True


class JobStarted(msgspec.Struct):
    job: Annotated[str, Doc("Id of the job")]


class JobProgress(msgspec.Struct):
    stage: Annotated[str, Doc("The current stage")] = "waiting"
    done: Annotated[int, Doc("Steps done")] = 0
    total: Annotated[int, Doc("Total number of steps")] = 0


class JobBody(msgspec.Struct):
    id: Annotated[str, Doc("Id of the job")]
    kind: Annotated[str, Doc("reindex, tune or erase; move or balance for shards")]
    collection: Annotated[str, Doc("Name or alias of a collection; empty if shards are moved")]
    status: Annotated[JobStatus, Doc("`refused`: it measured below the recall floor and changed nothing")]
    progress: Annotated[JobProgress, Doc("Its progress")]
    created_ms: Annotated[int, Doc("Unix time in milliseconds")]
    finished_ms: Annotated[int | None, Doc("Unix time in milliseconds; null while it is not finished")] = None
    result: Annotated[dict[str, Any], Doc("The job's result")] = field(default_factory=dict)
    error: Annotated[str | None, Doc("What went wrong; null if nothing did")] = None


class JobList(msgspec.Struct):
    jobs: Annotated[list[JobBody], Doc("Newest first")]


class Nothing(Request, frozen=True, kw_only=True):
    """An empty body."""


class RolledBack(msgspec.Struct):
    generation: Annotated[int, Doc("Number of the live build of the indexes; 0 before the first rebuild")]
