"""The plot of `nearline bench load`, as SVG: goodput over offered load, and the p99 of what was let in."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl  # the extra `report`
from matplotlib.figure import Figure

from jobs.benchmark.report import Report


def plot(report: Report, path: Path) -> None:
    rows, peak = report.tables["Offered load"], max(row["in time/s"] for row in report.tables["Peak"])
    offered = [row["offered/s"] for row in rows]
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    above.plot([0, peak, max(offered)], [0, peak, peak], color="0.6", linestyle="--", label="at best")
    above.plot(offered, [row["in time/s"] for row in rows], "o-", label="answered in time")
    above.set(ylabel="searches a second")
    below.plot(offered, [row["p99 ms"] for row in rows], "o-", label="p99 of what was let in")
    below.plot(offered, [row["p50 ms"] for row in rows], "s-", label="p50")
    below.set(xlabel="searches offered a second", ylabel="milliseconds")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(loc="lower right", fontsize="small")
    with mpl.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(path, format="svg")
