"""A report as one HTML file that needs nothing else: no server, no script, no other file.

A section each for recall, ranking, latency, and tiers and caches, and for the history where there is one: what it
says in a sentence, a plot, and the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from indexes.durable import replace_unsynced
from jobs.evaluation import plots
from jobs.evaluation.report import Report
from jobs.evaluation.table import change, context_lines, history_rows

TEMPLATE = Path(__file__).with_name("page.html")


def write(path: Path, report: Report, earlier: Sequence[Report]) -> None:
    """Raises DiskFull or StorageError."""
    replace_unsynced(path, rendered(report, earlier).encode())


def rendered(report: Report, earlier: Sequence[Report]) -> str:
    sections = [recall(report, earlier)]
    if report.rankings:
        sections.append(ranking(report))
    if report.latency_ms.get("dense"):
        sections.append(latency(report))
    sections.append(shares(report))
    if earlier:
        sections.append(history([*earlier, report]))
    trouble = [*report.below, *(f"{one.what} fell to {one.now:.4f}" for one in report.regressions)]
    if report.changed_meanwhile:
        trouble.append("the collection changed while it was measured")
    overall = report.cohort("overall")
    return Template(TEMPLATE.read_text()).substitute(
        collection=escape(report.collection),
        verdict="bad" if report.below or report.regressions else "good",
        headline="nothing was measured" if overall is None else f"recall@{report.k} {overall.recall:.4f}",
        facts=escape(
            f"{report.time[:16].replace('T', ' ')} UTC, generation {report.generation}, seq {report.seq}, "
            f"{report.model}, {report.documents} documents, {sum(report.passages.values())} passages, "
            f"{report.queries} queries ({report.source}), {report.took_s:g} s"
        ),
        trouble="".join(f"<li>{escape(line)}</li>" for line in trouble),
        sections="\n".join(sections),
        interval=escape(report.interval),
    )


def recall(report: Report, earlier: Sequence[Report]) -> str:
    before = earlier[-1] if earlier else None
    rows = [
        (
            one.name, f"{one.recall:.4f}", f"{one.low:.4f} – {one.high:.4f}",
            "" if one.share is None else f"{one.share:.2%}", str(one.neighbours), change(one, before),
        )
        for one in report.cohorts
    ]  # fmt: skip
    header = ("cohort", f"recall@{report.k}", "95 %", "passes", "neighbours", "change")
    details = [f"{one.name}: {one.detail}" for one in report.cohorts if one.detail]
    details += [f"not measured: {one.cohort}: {one.reason}" for one in report.not_measured]
    words = "How many of the true nearest passages dense search returns, by where they live and who asks."
    notes = "".join(f"<li>{escape(one)}</li>" for one in details)
    return section("Recall", words, plots.recall_plot(report), table(header, rows) + f"<ul>{notes}</ul>")


def ranking(report: Report) -> str:
    labels = list(next(iter(report.rankings.values())))
    rows = [
        (name, *(f"{scores[label].value:.4f}" for label in labels))
        for name, scores in report.rankings.items()
    ]
    words = "How well each kind of search ranks documents, by relevance judgements."
    if report.judged is not None:
        words += (
            f" {report.judged.missing} of {report.judged.documents} judged documents are not in the collection;"
            f" {report.judged.queries_without} of {report.judged.queries} queries have no relevant one there."
        )
    contexts = "".join(f"<li>{escape(line)}</li>" for line in context_lines(report))
    numbers = table(("search", *labels), rows) + f"<ul>{contexts}</ul>"
    return section("Ranking", words, plots.ranking_plot(report), numbers)


def latency(report: Report) -> str:
    header = ("search", "stage", "p50", "p95", "p99")
    rows = {
        kind: [
            (kind, stage, *(f"{times[name]:.2f}" for name in header[2:])) for stage, times in stages.items()
        ]
        for kind, stages in report.latency_ms.items()
    }
    numbers = table(header, rows.pop("dense"))
    if rows:
        others = table(header, [row for kind in rows.values() for row in kind])
        numbers += f"<details><summary>Other kinds of search</summary>{others}</details>"
    words = (
        'Milliseconds of unfiltered dense search, by the service\'s own clock. "wait" is time in no stage, mostly in '
        "line for a search thread. The stages of one search add up to its total; their percentiles do so roughly."
    )
    return section("Latency", words, plots.latency_plot(report), numbers)


def shares(report: Report) -> str:
    cold = report.cold
    rows = [("cold tier left out", f"{cold.share:.1%}", f"{cold.skipped} of {cold.searches} dense searches")]
    rows += [(f"because {reason}", "", str(count)) for reason, count in cold.reasons.items()]
    for name, rate in report.caches.items():
        since, meanwhile = (
            "no lookups" if one is None else f"{one:.1%}" for one in (rate.since_start, rate.meanwhile)
        )
        rows.append((f"{name}: cache hits", since, f"{meanwhile} during the evaluation"))
    words = "What searches could leave out. Cache hits are everybody's, since the service started."
    return section(
        "Tiers and caches", words, plots.shares_plot(report), table(("", "share", ""), rows, wrapped=True)
    )


def history(reports: Sequence[Report]) -> str:
    header, *rows = history_rows(reports)
    last = reports[-1]
    words = f"The last {len(reports)} reports, this one included."
    if last.compared_with:
        fell = len(last.regressions)
        words += (
            f" Against the one before, {fell or 'no'} number{'' if fell == 1 else 's'} fell beyond chance."
        )
    return section("History", words, plots.history_plot(reports), table(header, rows[::-1]))


def section(title: str, words: str, plot: str, numbers: str) -> str:
    return (
        f'<section><h2>{title}</h2><p>{escape(words)}</p><div class="pair"><figure>{plot}</figure>'
        f'<div class="numbers">{numbers}</div></div></section>'
    )


def table(header: Iterable[str], rows: Iterable[Sequence[str]], *, wrapped: bool = False) -> str:
    """Numbers stay on one line; `wrapped` is for cells with sentences."""
    head = "".join(f"<th>{escape(one)}</th>" for one in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(one)}</td>" for one in row) + "</tr>" for row in rows)
    opening = '<table class="wrapped">' if wrapped else "<table>"
    return f"{opening}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
