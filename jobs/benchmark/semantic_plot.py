"""The plot of `nearline bench semantic`, as SVG: paraphrases answered, over hard negatives answered wrongly."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl  # the extra `report`
from matplotlib.figure import Figure

from jobs.benchmark.report import Report


def plot(report: Report, path: Path) -> None:
    rows = report.tables["By threshold"]
    thresholds = [row["similarity_from"] for row in rows]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for way, color in (("similarity alone", "tab:orange"), ("with words", "tab:blue")):
        for column, marker, line in (("hits", "o", "-"), ("false hits", "x", "--")):
            share = [row[f"{way}: {column} %"] for row in rows]
            axes.plot(thresholds, share, f"{marker}{line}", color=color, label=f"{column}, {way}")
    axes.axvline(0.9, color="0.6", linewidth=1, linestyle=":", label="the default")
    axes.set(xlabel="similarity_from", ylabel="percent", ylim=(-2, 102))
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="center left", fontsize="small")
    with mpl.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(path, format="svg")
