"""What the service tells Prometheus. One registry for each application, so that tests may run several.

Durations are in seconds, sizes in bytes, as Prometheus has it. Gauges of collections are read when scraped.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from indexes.catalog import Catalog
from indexes.model import WriteResult
from retrieval.cache import ResultCache, SharedVectors, Store
from retrieval.ceiling import Ceiling
from retrieval.collectors import (
    CacheCounters,
    CollectionGauges,
    EmbeddingCacheCounters,
    MemoryGauges,
    ModelGauges,
)
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
        # Looking labels up takes longer than counting. Only of metrics that are never forgotten.
        self._request_count, self._request_time = (
            cache(self._requests.labels),
            cache(self._request_seconds.labels),
        )
        self._stage_time = cache(self._stage_seconds.labels)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._request_count(method, route, status).inc()
        self._request_time(route).observe(seconds)

    def search(self, answer: SearchAnswer) -> None:
        receipt, timings = answer.receipt, answer.timings_ms
        cold = "searched" if "cold" in receipt.tiers else "skipped"
        self._searches.labels(receipt.collection, receipt.cache, cold).inc()
        self._stage_time("total").observe(timings.total / 1000)
        if receipt.cache != "hit":
            for stage in ("embed", "dense", "lexical", "fuse", "hydrate", "wait"):
                self._stage_time(stage).observe(getattr(timings, stage) / 1000)

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


class LaneMetrics:
    """Those of one model's lane."""

    def __init__(self, metrics: EmbeddingMetrics, model: str, lane: Lane) -> None:
        self.tokenise_seconds = metrics.tokenise_seconds.labels(model, lane)
        self.run_texts = metrics.run_texts.labels(model, lane)
        self.run_tokens = metrics.run_tokens.labels(model, lane)
        self.run_seconds = metrics.run_seconds.labels(model, lane)
        self.wait_seconds = metrics.wait_seconds.labels(model, lane)
        self.padding_tokens = metrics.padding_tokens.labels(model, lane)
        self.queue_tokens = metrics.queue_tokens.labels(model, lane)


class EmbeddingObserver:
    """Counts what one model's batcher does."""

    def __init__(self, metrics: EmbeddingMetrics, model: str) -> None:
        self._lane = cache(partial(LaneMetrics, metrics, model))
        self._left = metrics.left
        self._model = model

    def tokenised(self, lane: Lane, texts: int, seconds: float) -> None:
        self._lane(lane).tokenise_seconds.observe(seconds)

    def ran(
        self, lane: Lane, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        metrics = self._lane(lane)
        metrics.run_texts.observe(texts)
        metrics.run_tokens.observe(padded_tokens)
        metrics.run_seconds.observe(run_s)
        metrics.wait_seconds.observe(wait_s)
        metrics.padding_tokens.inc(padded_tokens - tokens)

    def queued(self, lane: Lane, tokens: int) -> None:
        self._lane(lane).queue_tokens.set(tokens)

    def left(self, lane: Lane, texts: int, reason: Literal["cancelled", "deadline", "refused"]) -> None:
        self._left.labels(self._model, lane, reason).inc(texts)
