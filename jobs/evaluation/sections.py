"""Builds the tables of a report that the terminal and the HTML page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from indexes.base.model import TIERS
from jobs.evaluation.report import Reliability, Report

PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A table with a line above and notes below. `title` is also the name of its plot."""

    title: str
    words: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: list[str] = field(default_factory=list)


def sections(report: Report, earlier: Sequence[Report]) -> list[ReportSection]:
    """The sections that have content; changes are relative to the last of the earlier reports."""
    found = [recall(report, earlier[-1] if earlier else None)]
    if report.rankings:
        found.append(ranking(report))
    if report.relevance:
        found.append(relevance(report.relevance))
    if report.latency_ms.get("dense"):
        found.append(latency(report))
    if earlier:
        found.append(history([*earlier, report]))
    return found


def show(console: Console, report: Report, earlier: Sequence[Report]) -> None:
    """Print the whole report to a terminal."""
    console.print(f"{report.collection}: {report.headline()}", style="bold", markup=False)
    console.print(report.facts(), markup=False)
    for section in sections(report, earlier):
        table = Table(*section.header, title=section.title)
        for row in section.rows:
            table.add_row(*map(escape, row))
        console.print(table)
        for note in section.notes:
            console.print(note, markup=False)
    for line in report.trouble():
        console.print(line, style="red", markup=False)


def recall(report: Report, before: Report | None) -> ReportSection:
    rows = []
    for one in report.cohorts:
        old = before.cohort(one.name) if before else None
        rows.append(
            (
                one.name,
                f"{one.value:.4f}",
                f"{one.low:.3f}-{one.high:.3f}",
                "" if one.share is None else f"{one.share:.2%}",
                str(one.neighbours),
                str(one.queries),
                "" if old is None else f"{one.value - old.value:+.4f}",
            )
        )
    notes = [f"{one.name}: {one.detail}" for one in report.cohorts if one.detail]
    notes += [f"not measured: {name}: {reason}" for name, reason in report.not_measured.items()]
    return ReportSection(
        "Recall",
        "How many of the true nearest passages dense search returns, by where they are and who asks.",
        ("cohort", f"recall@{report.k}", "95 percent", "passes", "neighbors", "queries", "change"),
        rows,
        notes,
    )


def ranking(report: Report) -> ReportSection:
    labels = list(next(iter(report.rankings.values())))
    rows = [(name, *(str(scores[label]) for label in labels)) for name, scores in report.rankings.items()]
    notes = [
        f"contexts of {budget} tokens with a relevant document: {score}"
        for budget, score in report.contexts.items()
    ]
    if report.judged_missing:
        notes.append(f"{report.judged_missing} of {report.judged} judged documents are not in the collection")
    words = "How well each kind of search ranks documents, by relevance judgments."
    return ReportSection("Ranking", words, ("search", *labels), rows, notes)


def relevance(measured: Reliability) -> ReportSection:
    rows = [
        (f"{one.since:.1f}", str(one.hits), f"{one.relevance:.3f}", f"{one.relevant:.3f}")
        for one in measured.bins
    ]
    notes = [
        f"calibration error {measured.calibration_error:.4f}",
        f"no evidence though a hit is relevant: {measured.lost or 'not measured, no hit is relevant'}",
        f"strong evidence where a hit is relevant: {measured.strong or 'not measured, no hit is relevant'}",
        f"strong evidence though what is relevant was dropped: {measured.false}",
    ]
    words = "Whether hits are as often relevant as they say: hybrid search, each question with and without its answer."
    return ReportSection(
        "Relevance", words, ("from", "hits", "mean relevance", "relevant by judgments"), rows, notes
    )


def latency(report: Report) -> ReportSection:
    """Every stage of unfiltered dense search, and only totals of the others; the JSON has all stages."""
    rows = [
        (kind, stage, *(f"{times[name]:.2f}" for name in PERCENTILES))
        for kind, stages in report.latency_ms.items()
        for stage, times in stages.items()
        if kind == "dense" or stage == "total"
    ]
    words = (
        'Milliseconds by the service\'s own clock. "wait" is time in no stage, mostly in line for a search thread. The '
        "stages of one search add up to its total; their percentiles do so only roughly."
    )
    share = report.cold_skipped / max(report.queries, 1)
    note = f"{report.cold_skipped} of {report.queries} dense searches skipped the cold tier ({share:.1%})"
    return ReportSection("Latency", words, ("search", "stage", *PERCENTILES), rows, [note])


def history(reports: Sequence[Report]) -> ReportSection:
    """A row for each report, newest first; tiers that none of them measured are left out."""
    tiers = [name for name in TIERS if any(one.cohort(name) for one in reports)]
    rows = []
    for report in reversed(reports):
        found = [report.cohort(name) for name in ("overall", *tiers)]
        hybrid = report.rankings.get("hybrid rrf", {}).get("ndcg@10")
        total = report.latency_ms.get("dense", {}).get("total")
        rows.append(
            (
                report.time[:16].replace("T", " "),
                str(report.queries),
                *("" if one is None else f"{one.value:.4f}" for one in found),
                "" if hybrid is None else f"{hybrid.value:.4f}",
                "" if total is None else f"{total['p95']:.1f}",
            )
        )
    header = ("time", "queries", f"recall@{reports[-1].k}", *tiers, "hybrid nDCG@10", "p95 ms")
    return ReportSection("History", f"The last {len(reports)} reports, this one included.", header, rows)
