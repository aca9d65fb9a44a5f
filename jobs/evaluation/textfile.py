"""A report as gauges for Prometheus: a file for the textfile collector of node_exporter.

Shares are from 0 to 1, durations in seconds. Every gauge carries the collection. `nearline_evaluate_time_seconds`
says when, so that an alert can tell an old report from a good one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from indexes.durable import replace_unsynced
from jobs.evaluation.report import Report

PREFIX = "nearline_evaluate_"


def write(path: Path, report: Report) -> None:
    """By rename: the collector never reads half a file. Raises DiskFull or StorageError."""
    replace_unsynced(path, rendered(report))


class Gauges:
    """Gauges that all carry the collection's name."""

    def __init__(self, collection: str) -> None:
        self.registry = CollectorRegistry()
        self._collection = collection

    def one(self, name: str, words: str, value: float) -> None:
        self.many(name, words, [({}, value)])

    def many(self, name: str, words: str, samples: Iterable[tuple[dict[str, str], float]]) -> None:
        """All samples of one gauge, each with the same labels. Without samples there is no gauge."""
        known = list(samples)
        if not known:
            return
        gauge = Gauge(PREFIX + name, words, ["collection", *known[0][0]], registry=self.registry)
        for labels, value in known:
            gauge.labels(collection=self._collection, **labels).set(value)


def rendered(report: Report) -> bytes:
    gauges = Gauges(report.collection)
    began = datetime.fromisoformat(report.time).timestamp()
    gauges.one("time_seconds", "When the evaluation began", began)
    gauges.one("queries", "Queries asked without a filter", report.queries)
    gauges.one("below_floors", "Floors that were missed", len(report.below))
    gauges.one(
        "regressions", "Numbers that fell since the report before, beyond chance", len(report.regressions)
    )
    gauges.one("cold_skipped", "Share of dense searches that left the cold tier out", report.cold.share)
    gauges.many("recall", "Share of the true neighbours found, at k", recalls(report))
    gauges.many("ranking", "Ranking quality by judgements", rankings(report))
    if report.judged is not None:
        words = "Judged documents that are not in the collection"
        gauges.one("judged_documents_missing", words, report.judged.missing)
    gauges.many("latency_seconds", "Time of a search", latencies(report))
    rates = [({"cache": name}, rate.since_start) for name, rate in report.caches.items()]
    known = [(labels, rate) for labels, rate in rates if rate is not None]
    gauges.many("cache_hits", "Share of lookups that hit since the service started", known)
    return generate_latest(gauges.registry)


def recalls(report: Report) -> Iterator[tuple[dict[str, str], float]]:
    for one in report.cohorts:
        labels = {"kind": one.kind, "cohort": one.name, "k": str(report.k)}
        for bound, value in (("value", one.recall), ("low", one.low), ("high", one.high)):
            yield {**labels, "bound": bound}, value


def rankings(report: Report) -> Iterator[tuple[dict[str, str], float]]:
    for search, scores in report.rankings.items():
        for measure, one in scores.items():
            for bound, value in (("value", one.value), ("low", one.low), ("high", one.high)):
                yield {"search": search, "measure": measure, "bound": bound}, value


def latencies(report: Report) -> Iterator[tuple[dict[str, str], float]]:
    for search, stages in report.latency_ms.items():
        for stage, times in stages.items():
            for quantile, ms in times.items():
                yield {"search": search, "stage": stage, "quantile": f"0.{quantile[1:]}"}, ms / 1000
