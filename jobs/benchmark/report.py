"""The one report of all benches: machine, versions, settings and tables, as Markdown and as JSON."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

Row = dict[str, Any]

LIBRARIES = (
    "nearline", "aiohttp", "apsw", "faiss-cpu", "hnswlib", "numpy", "onnxruntime", "tokenizers", "bm25s", "lancedb",
    "qdrant-edge-py", "rank-bm25", "sentence-transformers", "tantivy", "torch", "transformers", "usearch",
)  # fmt: skip
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")  # these decide how fast int8 runs


class Report(msgspec.Struct, kw_only=True):
    """`tables` by title; a row's first value is its name, and rows may lack columns."""

    bench: str
    settings: dict[str, Any]
    tables: dict[str, list[Row]]
    notes: list[str] = []
    machine: dict[str, Any] = msgspec.field(default_factory=lambda: describe_machine())  # noqa: PLW0108 - defined below
    versions: dict[str, str] = msgspec.field(default_factory=lambda: installed())  # noqa: PLW0108

    def markdown(self) -> str:
        where = self.machine
        memory = f"{where['memory GiB']} GiB, {', '.join(where['instructions'])}"
        lines = [f"# nearline bench {self.bench}", "", f"{where['cores']} x {where['cpu']}, {memory}", ""]
        lines += [", ".join(f"{name} {value}" for name, value in self.settings.items()), ""]
        for title, rows in self.tables.items():
            lines += [f"## {title}", "", *table(rows), ""]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join([*lines, "", ", ".join(f"{name} {value}" for name, value in self.versions.items())])

    def write(self, folder: Path) -> Path:
        """Write both files; returns the Markdown one."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"bench-{self.bench}-{time.strftime('%Y%m%d-%H%M%S')}.md"
        path.write_text(self.markdown() + "\n")
        path.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))
        return path


def table(rows: list[Row]) -> list[str]:
    """The lines of a Markdown table. Its columns are those of all rows in the order met."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([text(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in cells]
    lines.insert(
        1, "|".join("-" * (width + (2 if 0 < at < len(widths) - 1 else 1)) for at, width in enumerate(widths))
    )
    return [f"| {line} |" if number != 1 else f"|-{line}-|" for number, line in enumerate(lines)]


def text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def describe_machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in info)}
    flags = fields.get("flags", "").split()
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "memory GiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "instructions": [one for one in INSTRUCTIONS if one in flags],
        "system": platform.platform(),
    }


def installed() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
