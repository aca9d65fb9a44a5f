"""Renders a report as Prometheus gauges, a file for node_exporter's textfile collector.

Shares are from 0 to 1, durations in seconds. Every gauge has a label for the collection.
`nearline_evaluate_time_seconds` is the time of the report, so that an alert can detect an old one.
"""

from __future__ import annotations

from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from jobs.evaluation.report import Report, Score

PREFIX = "nearline_evaluate_"
Samples = list[tuple[dict[str, str], float]]


def render_gauges(report: Report) -> bytes:
    registry = CollectorRegistry()

    def gauge(name: str, words: str, samples: Samples) -> None:
        """Add a gauge, unless it has no samples."""
        if samples:
            labels = ["collection", *samples[0][0]]
            one = Gauge(PREFIX + name, words, labels, registry=registry)
            for values, value in samples:
                one.labels(collection=report.collection, **values).set(value)

    began = datetime.fromisoformat(report.time).timestamp()
    gauge("time_seconds", "When the evaluation began", [({}, began)])
    gauge("queries", "Queries asked without a filter", [({}, report.queries)])
    gauge("below_floors", "Floors that were missed", [({}, len(report.below))])
    gauge("regressions", "Numbers that fell beyond chance", [({}, len(report.regressions))])
    skipped = report.cold_skipped / max(report.queries, 1)
    gauge("cold_skipped", "Share of dense searches that skipped the cold tier", [({}, skipped)])
    recalls = [
        sample
        for one in report.cohorts
        for sample in bounds({"kind": one.kind, "cohort": one.name, "k": str(report.k)}, one)
    ]
    gauge("recall", "Share of the true neighbors found, at k", recalls)
    rankings = [
        sample
        for search, scores in report.rankings.items()
        for measure, score in scores.items()
        for sample in bounds({"search": search, "measure": measure}, score)
    ]
    gauge("ranking", "Ranking quality by judgments", rankings)
    if report.judged:
        words = "Judged documents that are not in the collection"
        gauge("judged_documents_missing", words, [({}, report.judged_missing)])
    latencies = [
        ({"search": search, "stage": stage, "quantile": f"0.{quantile[1:]}"}, ms / 1000)
        for search, stages in report.latency_ms.items()
        for stage, times in stages.items()
        for quantile, ms in times.items()
    ]
    gauge("latency_seconds", "Time of a search", latencies)
    return generate_latest(registry)


def bounds(labels: dict[str, str], score: Score) -> Samples:
    values = {"value": score.value, "low": score.low, "high": score.high}
    return [({**labels, "bound": bound}, one) for bound, one in values.items()]
