"""What Prometheus reads from the parts themselves when it asks: nothing is counted twice, or kept for what is gone."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from indexes.dense.cold_skips import ColdState
from indexes.directory.catalog import Catalog
from retrieval.access.limits import Limiter
from retrieval.admission.ceiling import SHARES, Ceiling
from retrieval.admission.gates import Gates
from retrieval.cache import EmbeddingCache, ResultCache, ResultCounts, SharedVectors, Store
from retrieval.cache.semantic import SemanticCache, SemanticCounts
from retrieval.embedding.embedders import Embedders
from retrieval.search.pipeline import Pipeline
from retrieval.upkeep.frequent import Frequent
from retrieval.upkeep.tasks import Tasks

Rows = Iterable[tuple[str | float, ...]]  # the values of the labels, then that of the metric


class OnScrape(Collector):
    """Calls `read` each time Prometheus asks."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


def gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return filled(GaugeMetricFamily(name, text, labels=labels), rows)


def counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return filled(CounterMetricFamily(name, text, labels=labels), rows)


def filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> Metric:
    for *labels, value in rows:
        family.add_metric([str(label) for label in labels], float(value))
    return family


def models(embedders: Embedders) -> list[Metric]:
    """The models in use: which of their graphs runs here, and how many were refused on this machine."""
    loaded = {name: embedder.encoder for name, embedder in list(embedders.loaded.items())}
    return [
        gauge(
            "nearline_model_variant", "The graph of a model that runs: always 1", ["model", "variant"],
            [(name, encoder.variant, 1) for name, encoder in loaded.items()],
        ),
        gauge(
            "nearline_model_variants_refused", "Graphs that gave known texts strange vectors", ["model"],
            [(name, len(encoder.refused)) for name, encoder in loaded.items()],
        ),
    ]  # fmt: skip


def load(gates: Gates, limiter: Limiter, pipeline: Pipeline) -> list[Metric]:
    """What waits and runs, and whom the limits of keys refused."""
    classes = list(gates.under_way())
    return [
        gauge(
            "nearline_requests_under_way", "Requests let in and not answered", ["class"],
            [(name, requests) for name, requests, _ in classes],
        ),
        gauge(
            "nearline_request_bytes_under_way", "Bytes of their bodies", ["class"],
            [(name, size) for name, _, size in classes],
        ),
        gauge("nearline_searches_under_way", "Searches planned and not answered, those of batches too", [],
              [(pipeline.under_way,)]),
        counter("nearline_rate_limited", "Requests refused by the limits of their key", ["limit"],
                limiter.refused.items()),
    ]  # fmt: skip


def jobs(tasks: Tasks) -> list[Metric]:
    """Jobs that wait or run, and the largest of the processes that have done some."""
    unfinished = Counter(job.kind for job in tasks.all() if job.finished_ms is None)
    largest_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return [
        gauge("nearline_jobs_under_way", "Jobs that wait or run", ["kind"],
              [(kind, unfinished[kind]) for kind in ("reindex", "tune", "erase")]),
        gauge("nearline_job_process_bytes_max", "Most memory that a process of a job took, since the start", [],
              [(largest_kb * 1024,)]),
    ]  # fmt: skip


def collections(catalog: Catalog) -> list[Metric]:
    """Sizes of every collection, as they are when Prometheus asks."""
    found = dict(catalog.collections)
    infos = {name: collection.info() for name, collection in found.items()}
    one, tiered = ["collection"], ["collection", "tier"]
    tiers = [(name, tier, count) for name, info in infos.items() for tier, count in info.passages.items()]
    recalls = [(name, tier, recall) for name, info in infos.items() for tier, recall in info.recall.items()]
    return [
        gauge(
            "nearline_collections_quarantined",
            "Collections out of service because their log is damaged or cannot be opened", [],
            [(len(catalog.quarantined),)],
        ),
        gauge(
            "nearline_rebuild_due", "1 while a rebuild that starts by itself is due or under way", one,
            [(name, collection.wants_rebuild() is not None) for name, collection in found.items()],
        ),
        gauge("nearline_passages", "Live passages", tiered, tiers),
        gauge("nearline_build_recall", "Recall@10 measured by the last rebuild", tiered, recalls),
        *(
            gauge(f"nearline_{metric}", text, one, [(name, getattr(info, field)) for name, info in infos.items()])
            for metric, text, field in (
                ("dead_passages", "Dead passages in indexes", "dead_passages"),
                ("seq", "Last operation", "seq"),
                ("generation", "Live generation", "generation"),
                ("index_memory_bytes", "Memory of the indexes", "memory_bytes"),
                ("owed_bytes", "Deleted or overwritten and not erased yet", "owed_bytes"),
                ("resident_bytes", "Index files copied into memory", "resident_bytes"),
                ("mapped_bytes", "Index files mapped", "mapped_bytes"),
            )
        ),
        gauge(
            "nearline_owed_since_seconds", "When the oldest of it was deleted; absent where nothing is owed", one,
            [(name, info.owed_since_ms / 1000) for name, info in infos.items() if info.owed_since_ms is not None],
        ),
        *cold_skipping({name: info.cold for name, info in infos.items() if info.cold is not None}),
    ]  # fmt: skip


def cold_skipping(states: dict[str, ColdState]) -> list[Metric]:
    """How often queries needed the cold tier, by collection."""
    one = ["collection"]
    outcomes = [
        (name, outcome, count)
        for name, seen in states.items()
        for outcome, count in (
            ("searched", seen.queries - seen.skipped - seen.proven),
            ("skipped", seen.skipped),
            ("proven", seen.proven),
        )
    ]
    return [
        counter(
            "nearline_cold_decisions", "Queries that might need the cold tier, since the live generation was loaded",
            ["collection", "outcome"], outcomes,
        ),
        counter(
            "nearline_cold_audits",
            "Skipped queries for which the cold tier was searched afterwards, to see what skipping loses", one,
            [(name, seen.audits) for name, seen in states.items()],
        ),
        counter(
            "nearline_cold_stops", "Times that skipping stopped by itself and learning started over", one,
            [(name, seen.stops) for name, seen in states.items()],
        ),
        gauge(
            "nearline_cold_loss_bound",
            "Upper bound of the recall lost by skipping the cold tier; absent while nothing is known", one,
            [(name, seen.loss_bound) for name, seen in states.items() if seen.loss_bound is not None],
        ),
    ]  # fmt: skip


def memory(ceiling: Ceiling) -> list[Metric]:
    """What the process holds, what requests under way may add, and what it may hold."""
    return [
        gauge(
            "nearline_memory_bytes",
            "Memory of the process, mapped files not counted: held, foretold for requests under way, and its ceiling",
            ["kind"],
            [("held", ceiling.own), ("foretold", ceiling.foretold), ("ceiling", ceiling.bytes_max)],
        ),
        counter(
            "nearline_memory_refusals", "Requests refused for want of memory", ["class"],
            [(load, ceiling.refused[load]) for load in SHARES],
        ),
    ]  # fmt: skip


def caches(
    results: ResultCache, vectors: SharedVectors | None, near: Store, redis: Store | None
) -> list[Metric]:
    """The result cache, what other services gave to it and to the cache of query vectors, and the stores behind."""
    stores = {"memory": near} if redis is None else {"memory": near, "redis": redis}
    found = [
        lookups("nearline_result_cache", "Lookups of answers", results.counts),
        counter(
            "nearline_result_cache_events",
            "Answers that outlived a write, that a write had ended, searches that waited for the same one of another, "
            "and searches that wanted no cache",
            ["event"],
            [(event, getattr(results.counts, event)) for event in ("survived", "outdated", "joined", "bypassed")],
        ),
        counter(
            "nearline_result_cache_saved_seconds", "What computing the answers took that were found again", [],
            [(results.counts.saved_ms / 1000,)],
        ),
        counter(
            "nearline_shared_cache_hits", "What was found in Redis and not in this process", ["kind"],
            [("answer", results.counts.far), ("vector", vectors.hits if vectors else 0)],
        ),
        counter(
            "nearline_cache_store",
            "What happened in the stores behind the caches: answers in memory, answers and query vectors in Redis",
            ["store", "event"],
            [(name, event, count) for name, store in stores.items() for event, count in asdict(store.counts).items()],
        ),
    ]  # fmt: skip
    if redis is not None:
        text = "Whether Redis worked when it was last asked: 1 or 0"
        found.append(gauge("nearline_redis_up", text, [], [(redis.up,)]))
    return found


def semantic(cache: SemanticCache) -> list[Metric]:
    counts = cache.counts
    return [
        lookups("nearline_semantic_cache", "Lookups of questions that ask the same", counts),
        counter(
            "nearline_semantic_cache_checks",
            "Semantic hits that were searched all the same: false ones lacked the best hit or half of all",
            ["verdict"],
            [("right", counts.right), ("false", counts.false)],
        ),
        gauge(
            "nearline_semantic_cache_switched_off", "Collections for which false hits have switched it off", [],
            [(len(cache.off),)],
        ),
        gauge(
            "nearline_semantic_cache_bytes", "What the questions take in this process", [],
            [(cache.questions.bytes_used,)],
        ),
    ]  # fmt: skip


def warm_ups(frequent: Frequent) -> list[Metric]:
    text = "Frequent searches made again by the service, after a swap or a start"
    return [counter("nearline_warm_searches", text, [], [(frequent.made,)])]


def query_vectors(cache: EmbeddingCache) -> list[Metric]:
    return [
        lookups("nearline_embedding_cache", "Lookups of query vectors", cache),
        counter(
            "nearline_embedding_cache_events",
            "Vectors that made way for newer ones, and queries that waited for the same text of another",
            ["event"],
            [("evicted", cache.evicted), ("joined", cache.joined)],
        ),
    ]  # fmt: skip


def lookups(name: str, text: str, cache: ResultCounts | EmbeddingCache | SemanticCounts) -> Metric:
    return counter(name, text, ["outcome"], [("hit", cache.hits), ("miss", cache.misses)])
