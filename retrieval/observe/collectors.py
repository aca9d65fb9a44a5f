"""Metrics read from the components when Prometheus scrapes: nothing is counted twice or kept for what is gone."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from indexes.dense.cold_skips import ColdState
from indexes.directory.catalog import Catalog
from indexes.store.following import Follower
from indexes.store.uploading import Uploader
from retrieval.admission.ceiling import SHARES, Ceiling
from retrieval.admission.gates import Gates
from retrieval.cache import EmbeddingCache, ResultCache, ResultCounts, SharedVectors, Store
from retrieval.context.llm import LanguageModel
from retrieval.embedding.embedders import Embedders
from retrieval.processes.pool import SearchProcesses
from retrieval.search.pipeline import Pipeline
from retrieval.upkeep.frequent import Frequent
from retrieval.upkeep.tasks import Tasks

Rows = Iterable[tuple[str | float, ...]]  # the label values, then the metric's value


class OnScrape(Collector):
    """Calls `read` at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


def gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return fill(GaugeMetricFamily(name, text, labels=labels), rows)


def counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return fill(CounterMetricFamily(name, text, labels=labels), rows)


def fill(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> Metric:
    for *labels, value in rows:
        family.add_metric([str(label) for label in labels], float(value))
    return family


def models(embedders: Embedders) -> list[Metric]:
    """The models in use: which graph each runs, and how many graphs were refused on this machine."""
    loaded = {name: embedder.encoder for name, embedder in list(embedders.loaded.items())}
    return [
        gauge(
            "nearline_model_variant", "The graph that a model runs: always 1", ["model", "variant"],
            [(name, encoder.variant, 1) for name, encoder in loaded.items()],
        ),
        gauge(
            "nearline_model_variants_refused", "Graphs refused because known texts got wrong vectors", ["model"],
            [(name, len(encoder.refused)) for name, encoder in loaded.items()],
        ),
    ]  # fmt: skip


def processes(searching: SearchProcesses) -> list[Metric]:
    """The search processes: how many are up, what each uses, and how often one had to be started again."""
    used = [(str(number), held, cpu_s) for number, (held, cpu_s) in enumerate(searching.usage())]
    return [
        gauge("nearline_search_processes", "Search processes that are up", [], [(len(used),)]),
        gauge("nearline_search_process_bytes", "Own memory of a search process", ["process"],
              [(name, held) for name, held, _ in used]),
        counter("nearline_search_process_cpu_seconds", "CPU seconds of a search process", ["process"],
                [(name, cpu_s) for name, _, cpu_s in used]),
        counter("nearline_search_process_answers", "Searches that search processes answered", [],
                [(searching.answers,)]),
        counter("nearline_search_process_restarts", "Search processes that ended and were started again", [],
                [(searching.restarts,)]),
    ]  # fmt: skip


def load(gates: Gates, pipeline: Pipeline) -> list[Metric]:
    """Requests waiting and running."""
    classes = list(gates.under_way())
    return [
        gauge(
            "nearline_requests_under_way", "Requests admitted and not answered yet", ["class"],
            [(name, requests) for name, requests, _ in classes],
        ),
        gauge(
            "nearline_request_bytes_under_way", "Body bytes of admitted requests", ["class"],
            [(name, size) for name, _, size in classes],
        ),
        gauge("nearline_searches_under_way", "Searches in progress, including those of batches", [],
              [(pipeline.under_way,)]),
    ]  # fmt: skip


def jobs(tasks: Tasks) -> list[Metric]:
    """Jobs queued or running, and the peak memory of job processes."""
    unfinished = Counter(job.kind for job in tasks.all() if job.finished_ms is None)
    largest_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return [
        gauge("nearline_jobs_under_way", "Jobs queued or running", ["kind"],
              [(kind, unfinished[kind]) for kind in ("reindex", "tune", "erase")]),
        gauge("nearline_job_process_bytes_max", "Peak memory of a job process since startup", [],
              [(largest_kb * 1024,)]),
    ]  # fmt: skip


def collections(catalog: Catalog) -> list[Metric]:
    """The sizes of every collection at the time of the scrape."""
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
            "nearline_rebuild_due", "1 while an automatic rebuild is due or running", one,
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
                ("owed_bytes", "Bytes deleted or overwritten but not erased yet", "owed_bytes"),
                ("resident_bytes", "Index files copied into memory", "resident_bytes"),
                ("mapped_bytes", "Index files mapped", "mapped_bytes"),
            )
        ),
        gauge(
            "nearline_owed_since_seconds", "When the oldest unerased data was deleted; absent if none", one,
            [(name, info.owed_since_ms / 1000) for name, info in infos.items() if info.owed_since_ms is not None],
        ),
        *cold_skipping({name: info.cold for name, info in infos.items() if info.cold is not None}),
    ]  # fmt: skip


def language_model(model: LanguageModel) -> list[Metric]:
    text = "Answers asked of the language model, streamed ones too, by how they ended"
    return [counter("nearline_language_model_answers", text, ["outcome"], model.outcomes.items())]


def store(store: Uploader | Follower, catalog: Catalog) -> list[Metric]:
    """How far the store is behind."""
    states = [(name, store.state_of(one)) for name, one in catalog.collections.items()]
    return [
        gauge("nearline_store_up", "1 if the store could be used the last time", [], [(not store.error,)]),
        gauge(
            "nearline_store_lag_seconds", "How long the oldest commit waits that is not in the store; 0 if all are", [],
            [(store.lag_s,)] if isinstance(store, Uploader) else [],
        ),
        gauge(
            "nearline_store_age_seconds", "How long ago a replica last had everything", [],
            [] if isinstance(store, Uploader) else [(store.oldest_s,)],
        ),
        gauge(
            "nearline_store_seq", "Last operation in the store", ["collection"],
            [(name, state.seq) for name, state in states],
        ),
        counter("nearline_store_uploads", "Uploads of a collection's commits", [], [(store.uploads,)]),
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
            "nearline_cold_decisions",
            "Queries that searched the hot tier first, to be observed or by the rule learned, "
            "since the live generation was loaded",
            ["collection", "outcome"], outcomes,
        ),
        counter(
            "nearline_cold_audits",
            "Skipped queries whose cold tier was searched afterwards to measure the loss", one,
            [(name, seen.audits) for name, seen in states.items()],
        ),
        counter(
            "nearline_cold_stops", "Times that skipping stopped automatically and learning started over", one,
            [(name, seen.stops) for name, seen in states.items()],
        ),
        gauge(
            "nearline_cold_loss_bound",
            "Upper bound of the recall lost by skipping the cold tier; absent while unknown", one,
            [(name, seen.loss_bound) for name, seen in states.items() if seen.loss_bound is not None],
        ),
    ]  # fmt: skip


def memory(ceiling: Ceiling) -> list[Metric]:
    """What the process holds, what running requests may add, and the limit."""
    return [
        gauge(
            "nearline_memory_bytes",
            "Process memory without mapped files: held, predicted for running requests, and the ceiling",
            ["kind"],
            [("held", ceiling.own), ("foretold", ceiling.foretold), ("ceiling", ceiling.bytes_max)],
        ),
        counter(
            "nearline_memory_refusals", "Requests refused for lack of memory", ["class"],
            [(load, ceiling.refused[load]) for load in SHARES],
        ),
    ]  # fmt: skip


def caches(
    results: ResultCache, vectors: SharedVectors | None, near: Store, redis: Store | None
) -> list[Metric]:
    """The result cache, hits from other services for it and for query vectors, and the stores behind them."""
    stores = {"memory": near} if redis is None else {"memory": near, "redis": redis}
    found = [
        lookups("nearline_result_cache", "Lookups in the result cache", results.counts),
        counter(
            "nearline_result_cache_events",
            "Answers kept after a write, answers ended by a write, searches that waited for an identical one, "
            "and searches that bypassed the cache",
            ["event"],
            [(event, getattr(results.counts, event)) for event in ("survived", "outdated", "joined", "bypassed")],
        ),
        counter(
            "nearline_result_cache_saved_seconds", "Computation time saved by cached answers", [],
            [(results.counts.saved_ms / 1000,)],
        ),
        counter(
            "nearline_shared_cache_hits", "Entries found in Redis and not in this process", ["kind"],
            [("answer", results.counts.far), ("vector", vectors.hits if vectors else 0)],
        ),
        counter(
            "nearline_cache_store",
            "Events in the stores behind the caches: answers in memory, answers and query vectors in Redis",
            ["store", "event"],
            [(name, event, count) for name, store in stores.items() for event, count in asdict(store.counts).items()],
        ),
    ]  # fmt: skip
    if redis is not None:
        text = "Whether the last requests to Redis succeeded, of each kind: 1 or 0"
        found.append(gauge("nearline_redis_up", text, [], [(redis.up,)]))
    return found


def warm_ups(frequent: Frequent) -> list[Metric]:
    text = "Frequent searches repeated by the service after a swap or a start"
    return [counter("nearline_warm_searches", text, [], [(frequent.made,)])]


def query_vectors(cache: EmbeddingCache) -> list[Metric]:
    return [
        lookups("nearline_embedding_cache", "Lookups in the query vector cache", cache),
        counter(
            "nearline_embedding_cache_events",
            "Vectors evicted by newer ones, and queries that waited for another query with the same text",
            ["event"],
            [("evicted", cache.evicted), ("joined", cache.joined)],
        ),
    ]  # fmt: skip


def lookups(name: str, text: str, cache: ResultCounts | EmbeddingCache) -> Metric:
    return counter(name, text, ["outcome"], [("hit", cache.hits), ("miss", cache.misses)])
