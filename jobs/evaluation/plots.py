"""The plots of the HTML page, as SVG to stand inside it: small enough for a phone, in the page's own colours.

matplotlib draws with placeholder colours, which become CSS variables, so that a plot follows light and dark. What
SVG files carry for standing alone (prologue, namespaces, metadata) is taken out.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from indexes.model import TIERS
from jobs.evaluation.floors import is_below
from jobs.evaluation.report import Report

WIDTH_IN = 4.6
INK, FAINT, GOOD, BAD = "#010203", "#040506", "#070809", "#0a0b0c"
SERIES = ("#070809", "#0d0e0f", "#101112", "#131415")
VARIABLES = {
    INK: "--ink", FAINT: "--line", GOOD: "--series-1", BAD: "--bad",
    "#0d0e0f": "--series-2", "#101112": "--series-3", "#131415": "--series-4",
}  # fmt: skip
STYLE = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10.5,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": FAINT,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": FAINT,
    "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 9.5,
    "text.parse_math": False,  # names are users' own, dollars and all
}  # fmt: skip
LABEL_CHARS = 24


def recall_plot(report: Report) -> str:
    """A dot a cohort with its interval; below its floor in the warning colour."""
    with mpl.rc_context(STYLE):
        cohorts = report.cohorts[::-1]
        figure, axes = frame(rows=len(cohorts))
        for at, one in enumerate(cohorts):
            colour = BAD if is_below(one, report.floors) else GOOD
            axes.plot([one.low, one.high], [at, at], color=colour, linewidth=2.4, solid_capstyle="round")
            axes.plot([one.recall], [at], "o", color=colour, markersize=5)
        axes.set_yticks(range(len(cohorts)), [cut(one.name) for one in cohorts])
        axes.set_xlim(right=1.002)
        axes.set_xlabel(f"recall@{report.k}, with 95 percent interval")
        return svg(figure, "recall", f"Recall at {report.k} by cohort")


def ranking_plot(report: Report) -> str:
    """Bars of each measure, a kind of search beside the other."""
    with mpl.rc_context(STYLE):
        searches = list(report.rankings)
        labels = list(report.rankings[searches[0]])
        figure, axes = frame(rows=len(labels) * len(searches) * 0.62 + 2)
        height = 0.8 / len(searches)
        for number, name in enumerate(searches):
            scores = [report.rankings[name][label] for label in labels]
            places = [-at + 0.4 - height * (number + 0.5) for at in range(len(labels))]
            axes.barh(places, [one.value for one in scores], height * 0.9, color=SERIES[number], label=name)
            for place, one in zip(places, scores, strict=True):
                axes.plot([one.low, one.high], [place, place], color=INK, linewidth=1)
        axes.set_yticks([-at for at in range(len(labels))], labels)
        axes.set_xlim(0, 1)
        axes.set_xlabel("score, with 95 percent interval")
        legend_below(figure, 2)
        return svg(figure, "ranking", "Ranking quality by kind of search")


def latency_plot(report: Report) -> str:
    """Median, 95th and 99th percentile of each stage of an unfiltered dense search."""
    with mpl.rc_context(STYLE):
        stages = report.latency_ms.get("dense", {})
        names = list(stages)[::-1]
        figure, axes = frame(rows=len(names) + 2)
        for at, name in enumerate(names):
            times = stages[name]
            axes.plot([times["p50"], times["p99"]], [at, at], color=FAINT, linewidth=2)
            for number, quantile in enumerate(("p50", "p95", "p99")):
                label = quantile if at == 0 else None
                axes.plot([times[quantile]], [at], "o", color=SERIES[number], markersize=5, label=label)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlim(left=0)
        axes.set_xlabel("milliseconds")
        if names:
            legend_below(figure, 3)
        return svg(figure, "latency", "Latency of dense search by stage")


def shares_plot(report: Report) -> str:
    """Share of searches that skipped cold, and of cache lookups that hit."""
    with mpl.rc_context(STYLE):
        rows = [("cold tier left out", report.cold.share)]
        for name, rate in report.caches.items():
            rows.append((f"{name}: cache hits", rate.since_start or 0.0))
        rows.reverse()
        figure, axes = frame(rows=len(rows))
        axes.barh(range(len(rows)), [100 * share for _, share in rows], 0.55, color=GOOD)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_xlim(0, 100)
        axes.set_xlabel("percent")
        return svg(figure, "shares", "Tiers left out and cache hits")


def history_plot(reports: Sequence[Report]) -> str:
    """Recall overall and by tier, one point a report."""
    with mpl.rc_context(STYLE):
        figure, axes = frame(rows=8)
        for number, name in enumerate(("overall", *TIERS)):
            known = [(at, one) for at, report in enumerate(reports) if (one := report.cohort(name))]
            if not known:
                continue
            places = [at for at, _ in known]
            axes.plot(
                places, [one.recall for _, one in known], "o-",
                color=SERIES[number], markersize=4, linewidth=1.6, label=name,
            )  # fmt: skip
            axes.fill_between(
                places, [one.low for _, one in known], [one.high for _, one in known],
                color=SERIES[number], alpha=0.14, linewidth=0,
            )  # fmt: skip
        axes.set_xticks(range(len(reports)), [one.time[5:10] for one in reports], rotation=45, ha="right")
        axes.set_ylim(top=1.002)
        axes.set_ylabel(f"recall@{reports[-1].k}")
        legend_below(figure, 4)
        return svg(figure, "history", "Recall over the last reports")


def frame(rows: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_IN, 1.0 + 0.27 * rows), layout="constrained")
    return figure, figure.add_subplot()


def legend_below(figure: Figure, columns: int) -> None:
    figure.legend(loc="outside lower center", ncols=columns)


def cut(text: str) -> str:
    return text if len(text) <= LABEL_CHARS else text[: LABEL_CHARS - 1] + "…"


def svg(figure: Figure, name: str, words: str) -> str:
    """The figure as an element of an HTML page. `name` keeps its ids apart from those of other plots."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r' id="', f' id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    text = re.sub(r"font: ([^;\"]*?)'?sans-serif'?[^;\"]*", r"font: \1sans-serif", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    opening = f'<svg role="img" aria-label="{words}" viewBox="0 0 {size[1]} {size[2]}">'
    return re.sub(r"<svg[^>]*>", opening, text, count=1).strip()
