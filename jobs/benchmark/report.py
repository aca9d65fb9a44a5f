"""What all benches report: machine, versions, settings, tables and a plot, as Markdown, JSON and SVG."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

LIBRARIES = (
    "nearline", "aiohttp", "apsw", "faiss-cpu", "hnswlib", "numpy", "onnxruntime", "tokenizers", "bm25s", "lancedb",
    "qdrant-edge-py", "rank-bm25", "sentence-transformers", "tantivy", "torch", "transformers", "usearch",
)  # fmt: skip
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")  # these determine int8 speed

Say = Callable[[str], None]
Row = dict[str, Any]
Line = tuple[Sequence[float], Sequence[float], str]  # x, y, and a matplotlib format


class Plot(NamedTuple):
    """Panels stacked vertically, each with the label of its y axis and its lines by name."""

    xlabel: str
    panels: dict[str, dict[str, Line]]


class BenchResults(NamedTuple):
    """A benchmark's results: tables by title, notes, and a plot."""

    tables: dict[str, list[Row]]
    notes: list[str]
    plot: Plot | None = None


class BenchReport(msgspec.Struct, frozen=True):
    """Everything that a benchmark writes. `tables` maps titles to rows, which may lack columns."""

    bench: str
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    tables: dict[str, list[Row]]
    notes: list[str]

    def markdown(self) -> str:
        lines = [f"# nearline bench {self.bench}", ""]
        for facts in (self.machine, self.versions, self.settings):
            lines += [", ".join(f"{name} {text(value)}" for name, value in facts.items()), ""]
        for title, rows in self.tables.items():
            lines += [f"## {title}", "", *table(rows), ""]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)])

    def write(self, folder: Path, plot: Plot | None = None) -> Path:
        """Write all files; returns the Markdown one."""
        path = folder / f"bench-{self.bench}-{time.strftime('%Y%m%d-%H%M%S')}.md"
        path.write_text(self.markdown() + "\n")
        path.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))
        if plot:
            draw(plot, path.with_suffix(".svg"))
        return path


def report(bench: str, settings: dict[str, Any], found: BenchResults) -> BenchReport:
    """A report that describes this machine and the installed versions."""
    settings = {"commit": Path(__file__).parents[2], **settings}
    settings = {name: commit(one) if isinstance(one, Path) else one for name, one in settings.items()}
    return BenchReport(bench, machine(), versions(), settings, found.tables, found.notes)


def draw(plot: Plot, path: Path) -> None:
    from matplotlib import rc_context  # the extra `report`
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.5 + 2.3 * len(plot.panels)), layout="constrained")
    grid = figure.subplots(len(plot.panels), sharex=True, squeeze=False)
    for axes, (ylabel, lines) in zip(grid.flat, plot.panels.items()):
        for label, line in lines.items():
            axes.plot(*line, label=label)
        axes.set_ylabel(ylabel)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    axes.set_xlabel(plot.xlabel)
    with rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(path, format="svg")


def percentiles(taken: Sequence[float], of: Sequence[int] = (50, 99), *, digits: int = 2) -> Row:
    return {f"p{q} ms": round(float(np.percentile(taken, q)), digits) for q in of}


def table(rows: list[Row]) -> list[str]:
    """The lines of a Markdown table with the columns of all rows, in order of first appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([text(row.get(name)) for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return [lines[0], rule, *lines[1:]]


def text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "/".join(map(text, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in info)}
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "GiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "instructions": [one for one in INSTRUCTIONS if one in fields.get("flags", "").split()],
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    installed = {one.name: one.version for one in distributions()}
    return {"python": platform.python_version()} | {
        name: installed[name] for name in LIBRARIES if name in installed
    }


def commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
