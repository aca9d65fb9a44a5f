"""The metrics for Prometheus. One registry for each application, so that tests may run several.

Durations are in seconds and sizes in bytes, following Prometheus's conventions. Gauges of collections are read at
scrape time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric

from indexes.base.model import WriteResult
from retrieval.access.auth import PRINCIPAL
from retrieval.embedding.results import Lane, Observer, WhyLeft
from retrieval.observe.collectors import OnScrape
from retrieval.wire.collections import JobBody
from retrieval.wire.search import Receipt, Timings

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
BATCH = (1, 2, 4, 8, 16, 32, 64, 128)
LIMITS, LIMIT_STATUSES = ("second", "day", "at_once"), (429, 503)  # of keys, and as the dialects answer
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of all lines, and useless


class Metrics:
    """All counters and histograms, and `render` for GET /metrics."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("nearline_build", "The running version", registry=registry).info(
            {"version": version("nearline")}
        )
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, buckets=SECONDS, registry=registry)
        # Looking up labels takes longer than counting, so they are cached, unless `forget` removes them.
        self._request_count = cache(
            counter("nearline_http_requests", "Requests answered", ["method", "route", "status"]).labels
        )
        self._request_time = cache(
            histogram("nearline_http_request_seconds", "Time to answer", ["route"]).labels
        )
        self._rate_limited = counter(
            "nearline_rate_limited", "Requests refused by key limits", ["limit", "status"]
        ).labels
        for limit, status in itertools.product(LIMITS, LIMIT_STATUSES):
            self._rate_limited(limit, status)  # rules subtract them, which takes a 0 where there are none
        self._stage_time = cache(
            histogram("nearline_search_stage_seconds", "Time of a search by stage", ["stage"]).labels
        )
        self._degraded = counter(
            "nearline_searches_degraded",
            "Searches that left something out: under load, or shards that did not answer",
            ["left_out"],
        )
        self._searches = counter("nearline_searches", "Searches answered", ["collection", "cache", "cold"])
        self._documents = counter("nearline_documents_written", "Documents acknowledged", ["collection"])
        self._unchanged = counter("nearline_documents_unchanged", "Documents sent unchanged", ["collection"])
        self._write_seconds = histogram("nearline_write_seconds", "Time from request to acknowledged write")
        self._loop_lag = histogram(
            "nearline_loop_lag_seconds", "How late the event loop ran scheduled work", buckets=LAG
        )
        self._refused = counter(
            "nearline_generations_refused",
            "Rebuilds that measured below the recall floor and were not adopted",
            ["collection"],
        )
        self.pushed = counter("nearline_watch_hits", "Hits pushed to standing queries")
        self._jobs = counter("nearline_jobs", "Jobs finished", ["kind", "status"])
        self._embedding = EmbeddingMetrics(registry)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._request_count(method, route, status).inc()
        self._request_time(route).observe(seconds)

    def rate_limited(self, limit: str, status: int) -> None:
        self._rate_limited(limit, status).inc()

    def search(self, receipts: Sequence[Receipt], timings: Timings) -> None:
        """Count a search, of each of its collections."""
        receipt = receipts[0]
        for one in receipts:
            cold = "searched" if "cold" in one.tiers else "skipped"
            self._searches.labels(PRINCIPAL.get().full(one.collection), one.cache, cold).inc()
        missing = ("shards",) if any(one.shards_missing for one in receipts) else ()
        for left_out in (*(receipt.degraded or ()), *missing):
            self._degraded.labels(left_out).inc()
        self._stage_time("total").observe(timings.total / 1000)
        if receipt.cache in {"miss", "bypass"}:
            some = [stage for stage in ("rerank", "shards") if getattr(timings, stage)]
            for stage in ("embed", "dense", "lexical", "fuse", *some, "hydrate", "wait"):
                self._stage_time(stage).observe(getattr(timings, stage) / 1000)

    def written(self, collection: str, result: WriteResult, seconds: float) -> None:
        collection = PRINCIPAL.get().full(collection)
        self._documents.labels(collection).inc(result.documents)
        self._unchanged.labels(collection).inc(result.unchanged)
        self._write_seconds.observe(seconds)

    def forget(self, collection: str) -> None:
        """Drop the counts of a name that is gone, so that names do not accumulate."""
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

    def embedding_observer(self, model: str) -> Observer:
        return EmbeddingObserver(self._embedding, model)

    def watch(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Call `read` at each scrape (see `collectors`)."""
        self.registry.register(OnScrape(read))


class EmbeddingMetrics:
    """Metrics of the batchers, by model and lane."""

    def __init__(self, registry: CollectorRegistry) -> None:
        of_lane = ["model", "lane"]
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, labelnames=of_lane, buckets=SECONDS, registry=registry)
        queued = Gauge(
            "nearline_embedding_queue_tokens", "Tokens waiting to be embedded", of_lane, registry=registry
        )
        self.queue_tokens = cache(queued.labels)
        self.tokenise_seconds = cache(
            histogram(
                "nearline_embedding_tokenise_seconds",
                "Time to tokenize the texts of one request, or of one run of queries",
            ).labels
        )
        self.run_texts = cache(
            histogram("nearline_embedding_run_texts", "Texts in one ONNX run", buckets=BATCH).labels
        )
        self.run_tokens = cache(
            histogram("nearline_embedding_run_tokens", "Padded tokens in one ONNX run", buckets=TOKENS).labels
        )
        self.run_seconds = cache(histogram("nearline_embedding_run_seconds", "Time of one ONNX run").labels)
        self.wait_seconds = cache(
            histogram("nearline_embedding_wait_seconds", "Time a text waits for its run").labels
        )
        self.padding_tokens = cache(
            counter("nearline_embedding_padding_tokens", "Tokens spent on padding", of_lane).labels
        )
        self.left = counter(
            "nearline_embedding_texts_left", "Texts that left without a vector", [*of_lane, "reason"]
        )


class EmbeddingObserver(Observer):
    """Records what one model's batcher does."""

    def __init__(self, metrics: EmbeddingMetrics, model: str) -> None:
        self._metrics = metrics
        self._model = model

    def tokenized(self, lane: Lane, texts: int, seconds: float) -> None:
        self._metrics.tokenise_seconds(self._model, lane).observe(seconds)

    def ran(
        self, lane: Lane, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        metrics, labels = self._metrics, (self._model, lane)
        metrics.run_texts(*labels).observe(texts)
        metrics.run_tokens(*labels).observe(padded_tokens)
        metrics.run_seconds(*labels).observe(run_s)
        metrics.wait_seconds(*labels).observe(wait_s)
        metrics.padding_tokens(*labels).inc(padded_tokens - tokens)

    def queued(self, lane: Lane, tokens: int) -> None:
        self._metrics.queue_tokens(self._model, lane).set(tokens)

    def left(self, lane: Lane, texts: int, reason: WhyLeft) -> None:
        self._metrics.left.labels(self._model, lane, reason).inc(texts)
