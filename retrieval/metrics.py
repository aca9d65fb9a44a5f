"""What the service tells Prometheus. One registry for each application, so that tests may run several.

Durations are in seconds, sizes in bytes, as Prometheus has it. Gauges of collections are read when scraped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from indexes.catalog import Catalog
from indexes.model import WriteResult
from retrieval.cache import EmbeddingCache, ResultCache, SharedVectors, Store
from retrieval.ceiling import SHARES, Ceiling
from retrieval.embedders import Embedders
from retrieval.embedding.results import Lane
from retrieval.job_schemas import JobBody
from retrieval.schemas import SearchAnswer

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
BATCH = (1, 2, 4, 8, 16, 32, 64, 128)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Everything counted, and `render` for GET /metrics."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "nearline_http_requests", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self._request_seconds = Histogram(
            "nearline_http_request_seconds", "Time to answer", ["route"], buckets=SECONDS, registry=registry
        )
        self._stage_seconds = Histogram(
            "nearline_search_stage_seconds",
            "Time of a search by stage",
            ["stage"],
            buckets=SECONDS,
            registry=registry,
        )
        self._searches = Counter(
            "nearline_searches", "Searches answered", ["collection", "cache", "cold"], registry=registry
        )
        self._documents = Counter(
            "nearline_documents_written", "Documents acknowledged", ["collection"], registry=registry
        )
        self._unchanged = Counter(
            "nearline_documents_unchanged",
            "Documents that came as they were there already",
            ["collection"],
            registry=registry,
        )
        self._write_seconds = Histogram(
            "nearline_write_seconds",
            "Time from request to acknowledged write",
            buckets=SECONDS,
            registry=registry,
        )
        self._loop_lag = Histogram(
            "nearline_loop_lag_seconds",
            "How late the event loop came to what was due",
            buckets=LAG,
            registry=registry,
        )
        self._refused = Counter(
            "nearline_generations_refused",
            "Rebuilds that measured below the recall floor and were not adopted",
            ["collection"],
            registry=registry,
        )
        self._jobs = Counter("nearline_jobs", "Jobs finished", ["kind", "status"], registry=registry)
        self._embedding = EmbeddingMetrics(registry)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, status).inc()
        self._request_seconds.labels(route).observe(seconds)

    def search(self, answer: SearchAnswer) -> None:
        receipt, timings = answer.receipt, answer.timings_ms
        cold = "searched" if "cold" in receipt.tiers else "skipped"
        self._searches.labels(receipt.collection, receipt.cache, cold).inc()
        self._stage_seconds.labels("total").observe(timings.total / 1000)
        if receipt.cache != "hit":
            for stage in ("embed", "dense", "lexical", "fuse", "hydrate", "wait"):
                self._stage_seconds.labels(stage).observe(getattr(timings, stage) / 1000)

    def written(self, collection: str, result: WriteResult, seconds: float) -> None:
        self._documents.labels(collection).inc(result.documents)
        self._unchanged.labels(collection).inc(result.unchanged)
        self._write_seconds.observe(seconds)

    def forget(self, collection: str) -> None:
        """Drop what was counted under a name that is gone: else each name there ever was stays for ever."""
        for metric in (self._searches, self._documents, self._unchanged, self._refused):
            held = {
                tuple(sample.labels.values())
                for family in metric.collect()
                for sample in family.samples
                if sample.labels["collection"] == collection
            }
            for labels in held:
                metric.remove(*labels)

    def loop_lag(self, seconds: float) -> None:
        self._loop_lag.observe(seconds)

    def job_finished(self, job: JobBody) -> None:
        self._jobs.labels(job.kind, job.status).inc()
        if job.kind == "reindex" and job.status == "refused":
            self._refused.labels(job.collection).inc()

    def embedding_observer(self, model: str) -> EmbeddingObserver:
        return EmbeddingObserver(self._embedding, model)

    def watch(self, catalog: Catalog) -> None:
        self.registry.register(CollectionGauges(catalog))

    def watch_memory(self, ceiling: Ceiling) -> None:
        self.registry.register(MemoryGauges(ceiling))

    def watch_caches(
        self, results: ResultCache, vectors: SharedVectors | None, memory: Store, redis: Store | None
    ) -> None:
        self.registry.register(CacheCounters(results, vectors, memory, redis))

    def watch_embeddings(self, embedders: Embedders) -> None:
        self.registry.register(EmbeddingCacheCounters(embedders.cache))
        self.registry.register(ModelGauges(embedders))


class EmbeddingMetrics:
    """What the batchers do, by model and lane."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tokenise_seconds = Histogram(
            "nearline_embedding_tokenise_seconds",
            "Time to make tokens of the texts of one request, or one run of queries",
            ["model", "lane"],
            buckets=SECONDS,
            registry=registry,
        )
        self.run_texts = Histogram(
            "nearline_embedding_run_texts",
            "Texts in one ONNX run",
            ["model", "lane"],
            buckets=BATCH,
            registry=registry,
        )
        self.run_tokens = Histogram(
            "nearline_embedding_run_tokens",
            "Padded tokens in one ONNX run",
            ["model", "lane"],
            buckets=TOKENS,
            registry=registry,
        )
        self.run_seconds = Histogram(
            "nearline_embedding_run_seconds",
            "Time of one ONNX run",
            ["model", "lane"],
            buckets=SECONDS,
            registry=registry,
        )
        self.wait_seconds = Histogram(
            "nearline_embedding_wait_seconds",
            "Time a text waits for its run",
            ["model", "lane"],
            buckets=SECONDS,
            registry=registry,
        )
        self.padding_tokens = Counter(
            "nearline_embedding_padding_tokens",
            "Tokens spent on padding",
            ["model", "lane"],
            registry=registry,
        )
        self.queue_tokens = Gauge(
            "nearline_embedding_queue_tokens",
            "Tokens waiting to be embedded",
            ["model", "lane"],
            registry=registry,
        )
        self.left = Counter(
            "nearline_embedding_texts_left",
            "Texts that left without a vector",
            ["model", "lane", "reason"],
            registry=registry,
        )


class EmbeddingObserver:
    """Counts what one model's batcher does."""

    def __init__(self, metrics: EmbeddingMetrics, model: str) -> None:
        self._metrics = metrics
        self._model = model

    def tokenised(self, lane: Lane, texts: int, seconds: float) -> None:
        self._metrics.tokenise_seconds.labels(self._model, lane).observe(seconds)

    def ran(
        self, lane: Lane, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        metrics, labels = self._metrics, (self._model, lane)
        metrics.run_texts.labels(*labels).observe(texts)
        metrics.run_tokens.labels(*labels).observe(padded_tokens)
        metrics.run_seconds.labels(*labels).observe(run_s)
        metrics.wait_seconds.labels(*labels).observe(wait_s)
        metrics.padding_tokens.labels(*labels).inc(padded_tokens - tokens)

    def queued(self, lane: Lane, tokens: int) -> None:
        self._metrics.queue_tokens.labels(self._model, lane).set(tokens)

    def left(self, lane: Lane, texts: int, reason: Literal["cancelled", "deadline", "refused"]) -> None:
        self._metrics.left.labels(self._model, lane, reason).inc(texts)


class ModelGauges(Collector):
    """The models in use: which of their graphs runs here, and how many were refused on this machine."""

    def __init__(self, embedders: Embedders) -> None:
        self._embedders = embedders

    def collect(self) -> Iterable[Metric]:
        running = GaugeMetricFamily(
            "nearline_model_variant", "The graph of a model that runs: always 1", labels=["model", "variant"]
        )
        refused = GaugeMetricFamily(
            "nearline_model_variants_refused",
            "Graphs that gave known texts strange vectors",
            labels=["model"],
        )
        for name, embedder in list(self._embedders.loaded.items()):
            running.add_metric([name, embedder.encoder.variant], 1)
            refused.add_metric([name], len(embedder.encoder.refused))
        return [running, refused]


class CollectionGauges(Collector):
    """Sizes of every collection, as they are when Prometheus asks."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def collect(self) -> Iterable[Metric]:
        passages = GaugeMetricFamily("nearline_passages", "Live passages", labels=["collection", "tier"])
        dead = GaugeMetricFamily("nearline_dead_passages", "Dead passages in indexes", labels=["collection"])
        seq = GaugeMetricFamily("nearline_seq", "Last operation", labels=["collection"])
        generation = GaugeMetricFamily("nearline_generation", "Live generation", labels=["collection"])
        recall = GaugeMetricFamily(
            "nearline_build_recall", "Recall@10 measured by the last rebuild", labels=["collection", "tier"]
        )
        memory = GaugeMetricFamily(
            "nearline_index_memory_bytes", "Memory of the indexes", labels=["collection"]
        )
        cold = CounterMetricFamily(
            "nearline_cold_decisions",
            "Queries that might need the cold tier, since the live generation was loaded",
            labels=["collection", "outcome"],
        )
        audits = CounterMetricFamily(
            "nearline_cold_audits",
            "Skipped queries for which the cold tier was searched afterwards, to see what skipping loses",
            labels=["collection"],
        )
        stops = CounterMetricFamily(
            "nearline_cold_stops",
            "Times that skipping ended by itself, to be learnt anew",
            labels=["collection"],
        )
        loss = GaugeMetricFamily(
            "nearline_cold_loss_bound",
            "Upper bound of the recall lost by skipping the cold tier; absent while nothing is known",
            labels=["collection"],
        )
        owed = GaugeMetricFamily(
            "nearline_owed_bytes", "Deleted or overwritten and not erased yet", labels=["collection"]
        )
        due = GaugeMetricFamily(
            "nearline_rebuild_due",
            "1 while a rebuild that starts by itself is due or under way",
            labels=["collection"],
        )
        for name, collection in self._catalog.collections.items():
            info = collection.info()
            due.add_metric([name], collection.wants_rebuild() is not None)
            for tier, count in info.passages.items():
                passages.add_metric([name, tier], count)
            for tier_name, value in info.recall.items():
                recall.add_metric([name, tier_name], value)
            dead.add_metric([name], info.dead_passages)
            seq.add_metric([name], info.seq)
            generation.add_metric([name], info.generation)
            memory.add_metric([name], info.memory_bytes)
            owed.add_metric([name], info.owed_bytes)
            if (seen := info.cold) is not None:
                cold.add_metric([name, "searched"], seen.queries - seen.skipped - seen.proven)
                cold.add_metric([name, "skipped"], seen.skipped)
                cold.add_metric([name, "proven"], seen.proven)
                audits.add_metric([name], seen.audits)
                stops.add_metric([name], seen.stops)
                if seen.loss_bound is not None:
                    loss.add_metric([name], seen.loss_bound)
        quarantined = GaugeMetricFamily(
            "nearline_collections_quarantined",
            "Collections out of service because their log is damaged or cannot be opened",
            value=len(self._catalog.quarantined),
        )
        counts = [passages, dead, seq, generation, recall, memory, owed]
        return [quarantined, due, *counts, cold, audits, stops, loss]


class MemoryGauges(Collector):
    """What the process holds, what requests under way may add, and what it may hold."""

    def __init__(self, ceiling: Ceiling) -> None:
        self._ceiling = ceiling

    def collect(self) -> Iterable[Metric]:
        ceiling = self._ceiling
        memory = GaugeMetricFamily(
            "nearline_memory_bytes",
            "Memory of the process, mapped files not counted: held, foretold for requests under way, and its ceiling",
            labels=["kind"],
        )
        memory.add_metric(["held"], ceiling.own)
        memory.add_metric(["foretold"], ceiling.foretold)
        memory.add_metric(["ceiling"], ceiling.bytes_max)
        refused = CounterMetricFamily(
            "nearline_memory_refusals", "Requests refused for want of memory", labels=["class"]
        )
        for load in SHARES:
            refused.add_metric([load], ceiling.refused[load])
        return [memory, refused]


class CacheCounters(Collector):
    """The result cache, what other services gave to it and to the cache of query vectors, and the stores behind."""

    def __init__(
        self, results: ResultCache, vectors: SharedVectors | None, memory: Store, redis: Store | None
    ) -> None:
        self._results = results
        self._vectors = vectors
        self._memory = memory
        self._redis = redis

    def collect(self) -> Iterable[Metric]:
        lookups = CounterMetricFamily("nearline_result_cache", "Lookups of answers", labels=["outcome"])
        lookups.add_metric(["hit"], self._results.hits)
        lookups.add_metric(["miss"], self._results.misses)
        shared = CounterMetricFamily(
            "nearline_shared_cache_hits", "What was found in Redis and not in this process", labels=["kind"]
        )
        shared.add_metric(["answer"], self._results.shared_hits)
        shared.add_metric(["vector"], self._vectors.hits if self._vectors else 0)
        events = CounterMetricFamily(
            "nearline_cache_store",
            "What happened in the stores behind the caches: answers in memory, answers and query vectors in Redis",
            labels=["store", "event"],
        )
        for name, store in (("memory", self._memory), ("redis", self._redis)):
            for event, count in asdict(store.counts).items() if store else ():
                events.add_metric([name, event], count)
        if self._redis is None:
            return [lookups, shared, events]
        up = GaugeMetricFamily(
            "nearline_redis_up", "Whether Redis worked when it was last asked: 1 or 0", value=self._redis.up
        )
        return [lookups, shared, events, up]


class EmbeddingCacheCounters(Collector):
    """The cache of query vectors."""

    def __init__(self, cache: EmbeddingCache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[Metric]:
        lookups = CounterMetricFamily(
            "nearline_embedding_cache", "Lookups of query vectors", labels=["outcome"]
        )
        lookups.add_metric(["hit"], self._cache.hits)
        lookups.add_metric(["miss"], self._cache.misses)
        return [lookups]
