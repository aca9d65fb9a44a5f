"""The report format of all benches: machine, versions, settings and tables, as Markdown and JSON."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from jobs.benchmark.turns import TURN, Row

LIBRARIES = (
    "nearline", "aiohttp", "apsw", "faiss-cpu", "hnswlib", "numpy", "onnxruntime", "tokenizers", "bm25s", "lancedb",
    "qdrant-edge-py", "rank-bm25", "sentence-transformers", "tantivy", "torch", "transformers", "usearch",
)  # fmt: skip
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")  # these determine int8 speed
TURNS = [
    f"Engines take turns of {TURN} queries. x p50, x rate: times the first row's, medians over the turns.",
    "CPU ms: processor time of a query in the engine's own process. own: its memory without mapped files.",
    "2 threads: times the queries a second of one thread, median over rounds of all queries.",
]


class Report(msgspec.Struct, frozen=True):
    """`tables` maps titles to rows, which may lack columns."""

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

    def write(self, folder: Path) -> Path:
        """Write both files; returns the Markdown one."""
        path = folder / f"bench-{self.bench}-{time.strftime('%Y%m%d-%H%M%S')}.md"
        path.write_text(self.markdown() + "\n")
        path.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))
        return path


def report(bench: str, settings: dict[str, Any], tables: dict[str, list[Row]], notes: list[str]) -> Report:
    """A report that describes this machine and the installed versions."""
    settings = {"commit": Path(__file__).parents[2], **settings}
    settings = {name: commit(one) if isinstance(one, Path) else one for name, one in settings.items()}
    return Report(bench, machine(), versions(), settings, tables, notes)


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
