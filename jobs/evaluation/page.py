"""Renders a report as one self-contained HTML file, without scripts.

Recall, ranking, relevance, latency and history each have a section with a summary sentence, a plot and the numbers.
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from indexes.base.model import TIERS
from jobs.evaluation.report import METHOD, Report
from jobs.evaluation.sections import PERCENTILES, ReportSection, sections
from jobs.evaluation.verdict import floor_of

TEMPLATE = Path(__file__).with_name("page.html")
STYLE = {
    "svg.fonttype": "none", "font.family": "sans-serif",
    "font.size": 10.5, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.4,
    "text.parse_math": False,  # users' names may contain dollar signs
}  # fmt: skip
GOOD, BAD = "tab:blue", "#b3261e"
LABEL_CHARS = 24


def render_page(report: Report, earlier: Sequence[Report]) -> str:
    shown = []
    for one in sections(report, earlier):
        plot = b64encode(svg(PLOTS[one.title], [*earlier, report])).decode()
        shown.append(
            f'<section><h2>{one.title}</h2><p>{escape(one.words)}</p><div class="pair"><figure>'
            f'<img alt="Plot: {one.title}" src="data:image/svg+xml;base64,{plot}"></figure>'
            f'<div class="numbers">{table(one)}<ul>{items(one.notes)}</ul></div></div></section>'
        )
    return Template(TEMPLATE.read_text()).substitute(
        collection=escape(report.collection),
        verdict="bad" if report.below or report.regressions else "good",
        headline=report.headline(),
        facts=escape(report.facts()),
        trouble=items(report.trouble()),
        sections="\n".join(shown),
        interval=escape(METHOD),
    )


def items(lines: Iterable[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def table(section: ReportSection) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in section.header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(one)}</td>' for one in row)}</tr>" for row in section.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def svg(plot: Callable[[Axes, Sequence[Report]], float], reports: Sequence[Report]) -> bytes:
    """Draw an image as wide as a phone; a plot returns its height in rows of text."""
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        rows = plot(figure.add_subplot(), reports)
        figure.set_size_inches(4.6, 1 + 0.27 * rows)
        out = io.BytesIO()
        figure.savefig(out, format="svg", transparent=True)
    return out.getvalue()


def plot_recall(axes: Axes, reports: Sequence[Report]) -> float:
    """Draw a dot with its interval for each cohort, red below its floor."""
    report, cohorts = reports[-1], reports[-1].cohorts[::-1]
    for at, one in enumerate(cohorts):
        color = BAD if one.value < floor_of(one, report.floors) else GOOD
        axes.plot([one.low, one.high], [at, at], color=color, linewidth=2.4)
        axes.plot([one.value], [at], "o", color=color, markersize=5)
    names = [one.name for one in cohorts]
    axes.set_yticks(
        range(len(names)), [one if len(one) <= LABEL_CHARS else one[: LABEL_CHARS - 1] + "…" for one in names]
    )
    axes.set(xlabel=f"recall@{report.k}, 95 percent")
    axes.set_xlim(right=1.002)
    return len(cohorts)


def plot_ranking(axes: Axes, reports: Sequence[Report]) -> float:
    """Draw a dot with its interval for each measure and kind of search."""
    rankings = reports[-1].rankings
    labels = list(next(iter(rankings.values())))
    for number, (name, scores) in enumerate(rankings.items()):
        places = [-at - 0.15 * number for at in range(len(labels))]
        values = [scores[label].value for label in labels]
        (dots,) = axes.plot(values, places, "o", markersize=5, label=name)
        bounds = ([scores[label].low for label in labels], [scores[label].high for label in labels])
        axes.hlines(places, *bounds, color=dots.get_color())
    axes.set_yticks([-at - 0.2 for at in range(len(labels))], labels)
    axes.set(xlim=(0, 1), xlabel="score, with 95 percent interval")
    legend(axes, 2)
    return 3 * len(labels)


def plot_relevance(axes: Axes, reports: Sequence[Report]) -> float:
    """Draw the share of hits judged relevant over their stated relevance; on the diagonal, both are equal."""
    measured = reports[-1].relevance
    assert measured is not None
    axes.plot([0, 1], [0, 1], color="gray", linewidth=1)
    axes.plot(
        [one.relevance for one in measured.bins], [one.relevant for one in measured.bins], "o-", markersize=5
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="mean relevance", ylabel="relevant by judgments")
    return 8


def plot_latency(axes: Axes, reports: Sequence[Report]) -> float:
    """Draw percentiles of each stage of an unfiltered dense search."""
    stages = dict(reversed(reports[-1].latency_ms["dense"].items()))
    for name in PERCENTILES:
        axes.plot([times[name] for times in stages.values()], list(stages), "o", markersize=5, label=name)
    axes.set(xlabel="milliseconds")
    axes.set_xlim(left=0)
    legend(axes, 3)
    return len(stages) + 2


def plot_history(axes: Axes, reports: Sequence[Report]) -> float:
    """Draw recall overall and by tier, a point for each report."""
    for name in ("overall", *TIERS):
        known = {at: found for at, one in enumerate(reports) if (found := one.cohort(name))}
        if known:
            (line,) = axes.plot(
                list(known), [one.value for one in known.values()], "o-", markersize=4, label=name
            )
            bounds = ([one.low for one in known.values()], [one.high for one in known.values()])
            axes.fill_between(list(known), *bounds, color=line.get_color(), alpha=0.14)
    axes.set_xticks(range(len(reports)), [one.time[5:10] for one in reports], rotation=45, ha="right")
    axes.set(ylabel=f"recall@{reports[-1].k}")
    axes.set_ylim(top=1.002)
    legend(axes, 4)
    return 8


def legend(axes: Axes, columns: int) -> None:
    """Draw the legend below the plot."""
    assert axes.figure is not None
    axes.figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9.5)


PLOTS = {
    "Recall": plot_recall,
    "Ranking": plot_ranking,
    "Relevance": plot_relevance,
    "Latency": plot_latency,
    "History": plot_history,
}
