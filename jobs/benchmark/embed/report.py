"""The report of a run as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from jobs.benchmark.embed.ratios import MB

QUIET = 0.05  # of the processors may be busy with other things
ONE = ("p50 ms", "p99 ms", "after a pause", "p99 ms", "first ms", "tenth ms", "cold start s")
CROWD = ("p50 ms", "p99 ms", "queries/s", "failed")
LOADS = {"alone": "alone", "writing": "documents are written", "embedding": "bulk /v1/embeddings"}
VECTORS = ("cosine to fp32, min", "mean", "alone against batch")


def show(report: dict[str, Any], console: Console) -> None:
    settings, where = report["settings"], report["machine"]
    measured = {name: row for name, row in report["rows"].items() if "query" in row}
    console.print(
        f"[bold]{settings['model']}[/] on {where['cores']} x {where['cpu']} ({', '.join(where['instructions'])})"
    )
    console.print(
        f"{settings['queries']} queries of {settings['query_tokens_mean']} tokens, medians of {settings['repeat']} "
        "rounds, every engine with its own choice of threads"
    )
    table = Table("one query at a time", *ONE)
    for name, row in measured.items():
        table.add_row(name, *queries(row))
    console.print(table)
    table = Table(f"{settings['clients']} clients", *CROWD)
    for name, row in measured.items():
        table.add_row(name, *crowd(row["crowd"]))
    console.print(table)
    for name, row in measured.items():
        show_failure(f"{name}, {settings['clients']} clients", row["crowd"], console)
    show_bulk(measured, settings, console)
    show_quality(measured, settings, console)
    for name, row in report["rows"].items():
        if name in measured:
            console.print(f"{name}: {row['what']}. Threads: {row['threads']}.", markup=False, highlight=False)
        else:
            reason = f"failed: {row['error']}" if "error" in row else f"skipped: {row.get('skipped')}"
            console.print(f"{name} {reason}", markup=False, highlight=False)
    disturbed = {name: row["others_busy"] for name, row in measured.items() if row["others_busy"] > QUIET}
    if disturbed:
        shares = ", ".join(f"{share:.0%} before {name}" for name, share in disturbed.items())
        console.print(
            f"[bold red]Others used the processors meanwhile ({shares}).[/] Engines with several or spinning threads "
            "lose most by that: do not compare these figures."
        )
    for row in measured.values():
        if "load" in row:
            show_load(row["load"], settings, console)
    table = Table("ratio", "value")
    for name, value in report["ratios"].items():
        table.add_row(name.replace("_", " "), ratio(value))
    console.print(table)


def queries(row: dict[str, Any]) -> list[str]:
    one, paused = row["query"], row["query_after_pause"]
    times = (one["p50_ms"], one["p99_ms"], paused["p50_ms"], paused["p99_ms"])
    first = (f"{row[name]:.1f}" for name in ("first_query_ms", "tenth_query_ms", "cold_start_s"))
    return [*(f"{value:.2f}" for value in times), *first]


def crowd(found: dict[str, Any]) -> list[str]:
    times = [f"{found['p50_ms']:.1f}", f"{found['p99_ms']:.1f}"]
    return [*times, f"{found['queries_per_s']:.0f}", str(found["failed"])]


def show_failure(what: str, found: dict[str, Any], console: Console) -> None:
    if found["failed"]:
        console.print(
            f"{what}: {found['failed']} failed, the first with: {found['first_failure']}",
            markup=False,
            highlight=False,
        )


def show_bulk(measured: dict[str, Any], settings: dict[str, Any], console: Console) -> None:
    """Real tokens a second by collection, and memory."""
    collections = [*settings["passages"], "all"]
    table = Table("bulk, real tokens/s", *collections, "own MB", "of it grown", "resident MB")
    for name, row in measured.items():
        memory = [
            f"{row['memory'][kind] / MB:.0f}" for kind in ("own_bytes", "grown_bytes", "resident_bytes")
        ]
        table.add_row(name, *speeds(row["bulk_tokens_per_s"], collections), *memory)
        if (sorted_first := row.get("bulk_sorted_tokens_per_s")) is not None:
            table.add_row("  the same, sorted by length", *speeds(sorted_first, collections))
    console.print(table)
    lengths = ", ".join(f"{mean} of {name}" for name, mean in settings["passage_tokens_mean"].items())
    console.print(
        f"Tokens a passage: {lengths}. Memory: the largest seen while all of this ran.", highlight=False
    )


def speeds(found: dict[str, float], collections: list[str]) -> list[str]:
    return [f"{found[name]:,.0f}" for name in collections]


def show_quality(measured: dict[str, Any], settings: dict[str, Any], console: Console) -> None:
    judged = settings["judged"]
    table = Table("vectors", *VECTORS, *(f"nDCG@10 {name}" for name in judged))
    for name, row in measured.items():
        found = row["quality"]
        near = [f"{found[key]:.5f}" if key in found else "-" for key in ("cosine_min", "cosine_mean")]
        ranked = [f"{found['ndcg@10'][one]:.4f}" for one in judged]
        table.add_row(name, *near, f"{found['alone_vs_batch_min']:.6f}", *ranked)
    console.print(table)
    console.print(f"fp32: {settings['fp32'] or 'not measured'}", markup=False, highlight=False)


def show_load(load: dict[str, Any], settings: dict[str, Any], console: Console) -> None:
    """Queries over HTTP by what runs beside them."""
    asking = {"clients": f"{settings['clients']} clients", "one_client": "1 client"}
    columns = [f"{who} {CROWD[0]}" if name == CROWD[0] else name for who in asking.values() for name in CROWD]
    table = Table("over HTTP", *columns, "passages/s beside")
    for name, found in load.items():
        rate = f"{found['passages_per_s']:.0f}" if "passages_per_s" in found else ""
        table.add_row(LOADS[name], *crowd(found["clients"]), *crowd(found["one_client"]), rate)
    console.print(table)
    for name, found in load.items():
        for key, who in asking.items():
            show_failure(f"{LOADS[name]}, {who}", found[key], console)


def ratio(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, dict):
        return ", ".join(f"{name} {one:.2f}" for name, one in value.items() if one is not None)
    return f"{value:.2f}"
