"""A report as people read it in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from indexes.model import TIERS
from jobs.evaluation.report import Cohort, Report


def show(console: Console, report: Report, earlier: Sequence[Report]) -> None:
    """Everything measured; with a history, the change since the last report and the ones before it."""
    console.print(
        f"[bold]{escape(report.collection)}[/]: generation {report.generation}, seq {report.seq}, {report.model}, "
        f"{report.queries} queries ({report.source})"
    )
    console.print(recall_table(report, earlier[-1] if earlier else None))
    for one in report.not_measured:
        console.print(f"[dim]not measured: {escape(one.cohort)}: {escape(one.reason)}[/]")
    if report.rankings:
        console.print(ranking_table(report))
    for line in context_lines(report):
        console.print(line)
    if (judged := report.judged) and judged.missing:
        console.print(
            f"[yellow]{judged.missing} of {judged.documents} judged documents are not in the collection; "
            f"{judged.queries_without} of {judged.queries} queries have no relevant one there[/]"
        )
    console.print(latency_table(report))
    cold = report.cold
    console.print(
        f"cold tier left out by {cold.skipped} of {cold.searches} dense searches ({cold.share:.1%})"
    )
    for name, rate in report.caches.items():
        since, meanwhile = (
            "none" if one is None else f"{one:.1%}" for one in (rate.since_start, rate.meanwhile)
        )
        console.print(f"cache of {name}: {since} of lookups hit since the start, {meanwhile} meanwhile")
    if earlier:
        console.print(history_table([*earlier, report]))
    if report.changed_meanwhile:
        console.print("[yellow]the collection changed while it was measured[/]")
    for worse in report.regressions:
        console.print(f"[red]{escape(worse.what)} fell from {worse.before:.4f} to {worse.now:.4f}[/]")
    for line in report.below:
        console.print(f"[red]{escape(line)}[/]")


def context_lines(report: Report) -> list[str]:
    return [
        f"contexts of {score.budget} tokens: a relevant document in {score.coverage:.1%} "
        f"({score.low:.1%} to {score.high:.1%}), {score.documents:.1f} documents in {score.tokens:.0f} tokens"
        for score in report.contexts
    ]


def recall_table(report: Report, before: Report | None) -> Table:
    table = Table("cohort", "passes", "neighbours", "queries", f"recall@{report.k}", "95 percent", "change")
    for one in report.cohorts:
        table.add_row(
            escape(one.name),
            "" if one.share is None else f"{one.share:.2%}",
            str(one.neighbours),
            str(one.queries),
            f"{one.recall:.4f}",
            f"{one.low:.3f}-{one.high:.3f}",
            change(one, before),
        )
    return table


def change(cohort: Cohort, before: Report | None) -> str:
    old = before.cohort(cohort.name) if before else None
    return "" if old is None else f"{cohort.recall - old.recall:+.4f}"


def ranking_table(report: Report) -> Table:
    labels = list(next(iter(report.rankings.values())))
    table = Table("search", *(label.replace("ndcg", "nDCG").replace("mrr", "MRR") for label in labels))
    for name, scores in report.rankings.items():
        cells = [
            f"{scores[label].value:.4f} ({scores[label].low:.3f}-{scores[label].high:.3f})"
            for label in labels
        ]
        table.add_row(name, *cells)
    return table


def latency_table(report: Report) -> Table:
    """Every stage of unfiltered dense search, of the other kinds the total; the page and the JSON have all of it."""
    table = Table("search, ms", "stage", "p50", "p95", "p99")
    for kind, stages in report.latency_ms.items():
        for stage, times in stages.items():
            if kind == "dense" or stage == "total":
                table.add_row(kind, stage, *(f"{times[name]:.2f}" for name in ("p50", "p95", "p99")))
    return table


def history_table(reports: Sequence[Report]) -> Table:
    header, *rows = history_rows(reports)
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    return table


def history_rows(reports: Sequence[Report]) -> list[list[str]]:
    """The header, and a row for each report; tiers that none of them measured are left out."""
    tiers = [name for name in TIERS if any(one.cohort(name) for one in reports)]
    rows = [["time", "queries", f"recall@{reports[-1].k}", *tiers, "hybrid nDCG@10", "p95 ms"]]
    for report in reports:
        found = [report.cohort(name) for name in ("overall", *tiers)]
        hybrid = report.rankings.get("hybrid rrf", {}).get("ndcg@10")
        p95 = report.latency_ms.get("dense", {}).get("total", {}).get("p95")
        rows.append(
            [
                report.time[:16].replace("T", " "),
                str(report.queries),
                *("" if one is None else f"{one.recall:.4f}" for one in found),
                "" if hybrid is None else f"{hybrid.value:.4f}",
                "" if p95 is None else f"{p95:.1f}",
            ]
        )
    return rows
