"""What Prometheus reads from the parts themselves when it asks: nothing is counted twice, or kept for what is gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from indexes.catalog import Catalog
from indexes.dense.cold_skips import ColdState
from retrieval.cache import EmbeddingCache, ResultCache, SharedVectors, Store
from retrieval.ceiling import SHARES, Ceiling
from retrieval.embedders import Embedders


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
        owed = GaugeMetricFamily(
            "nearline_owed_bytes", "Deleted or overwritten and not erased yet", labels=["collection"]
        )
        due = GaugeMetricFamily(
            "nearline_rebuild_due",
            "1 while a rebuild that starts by itself is due or under way",
            labels=["collection"],
        )
        cold = {}
        for name, collection in self._catalog.collections.items():
            info = collection.info()
            cold[name] = info.cold
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
        quarantined = GaugeMetricFamily(
            "nearline_collections_quarantined",
            "Collections out of service because their log is damaged or cannot be opened",
            value=len(self._catalog.quarantined),
        )
        return [quarantined, due, passages, dead, seq, generation, recall, memory, owed, *cold_families(cold)]


def cold_families(states: Mapping[str, ColdState | None]) -> list[Metric]:
    """How often queries needed the cold tier, by collection."""
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
        "Times that skipping stopped by itself and learning started over",
        labels=["collection"],
    )
    loss = GaugeMetricFamily(
        "nearline_cold_loss_bound",
        "Upper bound of the recall lost by skipping the cold tier; absent while nothing is known",
        labels=["collection"],
    )
    for name, seen in states.items():
        if seen is None:
            continue
        cold.add_metric([name, "searched"], seen.queries - seen.skipped - seen.proven)
        cold.add_metric([name, "skipped"], seen.skipped)
        cold.add_metric([name, "proven"], seen.proven)
        audits.add_metric([name], seen.audits)
        stops.add_metric([name], seen.stops)
        if seen.loss_bound is not None:
            loss.add_metric([name], seen.loss_bound)
    return [cold, audits, stops, loss]


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
