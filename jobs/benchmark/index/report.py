"""The report of a run as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from jobs.benchmark.index.timing import setting_text

SEARCHED = (
    "engine", "setting", "recall", "p50 ms", "p99 ms", "QPS, 2 threads", "insert ms",
)  # fmt: skip
STORED = (
    "bytes a vector", "own memory", "mapped", "files", "build s", "build peak MB",
)  # fmt: skip


def show(report: dict[str, Any], console: Console) -> None:
    settings, where, rows = report["settings"], report["machine"], report["rows"]
    console.print(f"[bold]{settings['passages']} passages of {report['material']['name']}[/]")
    console.print(
        f"{settings['dimensions']} dimensions, {settings['queries']} queries, "
        f"on {where['cores']} x {where['cpu']}"
    )
    measured = {name: row for name, row in rows.items() if "best" in row}
    table = Table(*SEARCHED)
    for name, row in measured.items():
        for cells in searches(name, row):
            table.add_row(*cells)
    console.print(table)
    console.print(
        f"Fastest setting of recall@{settings['k']} >= {settings['recall']}; * did not reach it, best recall "
        "shown; (i) for information. Insert: until a search finds it; Nearline's is synced to disk by then."
    )
    table = Table(*STORED)
    for name, row in measured.items():
        table.add_row(*stored(name, row))
    console.print(table)
    console.print(
        "Mapped: resident pages of its index files. Build peak: own memory of the building process."
    )
    for name, row in rows.items():
        if name not in measured:
            console.print(f"{name} {reason_of(row)}", markup=False)
    for name, ratio in report["ratios"].items():
        show_ratios(name, ratio, console)
    show_load(report["nearline_under_load"], console)


def show_ratios(name: str, ratio: dict[str, Any], console: Console) -> None:
    """What each peer needs, as a multiple of what Nearline needs."""
    best, by_peer = ratio["best_peer"], ratio["by_peer"]
    table = Table(f"{name} = 1", *(what.replace("_", " ") for what in best))
    for peer, values in by_peer.items():
        table.add_row(
            peer,
            *(f"{value:.2f}" + (" (best)" if best[what] == peer else "") for what, value in values.items()),
        )
    console.print(table)


def searches(name: str, row: dict[str, Any]) -> list[list[str]]:
    """The row of its best setting; for Nearline also the setting its builder chose, and each tier alone."""
    best = row["best"]
    mark = (" (i)" if row["extra"] else "") + ("" if row["reached"] else " *")
    inserted = row["insert_to_found"].get("p50_ms")
    found = [
        [
            name + mark,
            setting_text(best["setting"]),
            *searched(best),
            f"{row['qps_2_threads']:.0f}",
            "not found" if inserted is None else f"{inserted:.2f}",
        ]
    ]
    if "as_built" in row:
        found.append(["", "as its builder set it", *searched(row["as_built"])])
    for tier, times in row.get("tiers_alone", {}).items():
        found.append(["", f"the {tier} tier alone", "", f"{times['p50_ms']:.3f}", f"{times['p99_ms']:.3f}"])
    return found


def stored(name: str, row: dict[str, Any]) -> list[str]:
    sizes = [f"{row[f'{kind}_bytes_per_vector']:.0f}" for kind in ("own", "mapped", "file")]
    if "index_bytes_per_vector" in row:
        sizes[0] += f" (index {row['index_bytes_per_vector']:.0f})"
    return [name, *sizes, f"{row['build_s']:.1f}", f"{row['build_peak_own_bytes'] / 2**20:.0f}"]


def reason_of(row: dict[str, Any]) -> str:
    return f"failed: {row['error']}" if "error" in row else f"skipped: {row.get('skipped')}"


def searched(values: dict[str, Any]) -> list[str]:
    return [f"{values['recall']:.4f}", f"{values['p50_ms']:.3f}", f"{values['p99_ms']:.3f}"]


def show_load(measured: dict[str, Any] | None, console: Console) -> None:
    if measured is None:
        return
    if "filtered" not in measured:
        console.print(f"Nearline under load {reason_of(measured)}", markup=False)
        return
    table = Table("filter allows", "passages", "recall", "full answers", "p50 ms", "p99 ms")
    for row in measured["filtered"]:
        table.add_row(
            f"{row['share']:.1%}",
            str(row["passages"]),
            f"{row['recall']:.4f}",
            f"{row['full']:.1%}",
            f"{row['p50_ms']:.3f}",
            f"{row['p99_ms']:.3f}",
        )
    console.print(table)
    if (writing := measured["while_writing"]) is None:
        return
    console.print(
        f"{writing['passages_written']} passages written in batches, {writing['passages_per_s']:.0f} a second:"
    )
    table = Table("search", "p50 ms", "p99 ms")
    for name in ("idle", "while_writing", "ratio", "all_while_writing", "afterwards"):
        values = writing[name]
        table.add_row(name.replace("_", " "), f"{values['p50_ms']:.3f}", f"{values['p99_ms']:.3f}")
    console.print(table)
    console.print(f"Idle, while writing and their ratio: medians of {len(writing['rounds'])} rounds.")
