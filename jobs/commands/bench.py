"""nearline bench"""

from __future__ import annotations

import asyncio
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from indexes.memory import memory_bytes
from indexes.parts.generation import Shelf, read_manifest
from jobs.benchmark import lexical, peers
from jobs.benchmark.index.process import mapped_bytes
from jobs.benchmark.machine import machine, versions
from jobs.benchmark.service import (
    COLLECTION,
    WARM_UP,
    fill,
    inserts,
    latencies,
    rebuild,
    recall,
    sample_queries,
)
from jobs.commands import bench_cold, bench_embed, bench_index
from jobs.commands.benching import OUT, publish
from jobs.commands.options import JSON, console, errors
from jobs.docstrings import docstrings
from jobs.server_process import serving
from jobs.sources import SourceDocument, read_documents
from retrieval.client import Client

TINY = 200  # documents of the collection that memory is compared with


@click.group(
    invoke_without_command=True,
    epilog="Example: nearline bench --corpus corpus.jsonl.gz --passages 100000. "
    "The index library alone, beside others: nearline bench index --help",
)
@click.option(
    "--corpus", type=click.Path(path_type=Path, exists=True), help="Documents to index. [default: docstrings]"
)
@click.option(
    "--passages",
    type=click.IntRange(1000),
    default=100_000,
    show_default=True,
    help="At most so many documents.",
)
@click.option("--hot-capacity", type=click.IntRange(0), help="Passages kept hot. [default: a tenth]")
@click.option(
    "--queries", "count", type=click.IntRange(10), default=1000, show_default=True, help="Searches measured."
)
@click.option("--seed", default=0, show_default=True, help="Chooses the queries.")
@OUT
@click.option(
    "--peers/--no-peers", "with_peers", default=True, help="Measure sentence-transformers and hnswlib too."
)
@JSON
@click.pass_context
def command(
    context: click.Context,
    corpus: Path | None,
    passages: int,
    hot_capacity: int | None,
    count: int,
    seed: int,
    out: Path,
    with_peers: bool,
    as_json: bool,
) -> None:
    """Measure latency, recall, memory and ingest rate on this machine. Run nothing else meanwhile."""
    if context.invoked_subcommand is not None:
        return
    documents = list(islice(read_documents([corpus]) if corpus else docstrings(), passages))
    hot = len(documents) // 10 if hot_capacity is None else hot_capacity
    with tempfile.TemporaryDirectory(prefix="nearline-bench-") as folder:
        report = measure(Path(folder) / "data", documents, hot, count, seed, with_peers)
    report["corpus"] = {"name": corpus.parent.name if corpus else "docstrings", "documents": len(documents)}
    publish(report, "bench", out, show, as_json=as_json)


command.add_command(bench_index.command)
command.add_command(bench_embed.command)
command.add_command(bench_cold.command)


def measure(
    data: Path, documents: list[SourceDocument], hot: int, count: int, seed: int, with_peers: bool
) -> dict[str, Any]:
    """Fill and rebuild with one process, measure with a fresh one: what ingest left in memory does not count."""
    queries = sample_queries(documents, count, seed)
    report: dict[str, Any] = {"machine": machine(), "versions": versions()}
    report["settings"] = {
        "hot_capacity": hot,
        "queries": len(queries),
        "k": 10,
        "mode": "hybrid",
        "clients": 1,
    }
    say = errors.print
    tiny = data.with_name("tiny")
    with serving(tiny) as server:
        asyncio.run(run(server.url, lambda client: fill(client, documents[:TINY], hot, say)))
    with serving(tiny) as server:
        # The same process with next to no data, after the same searches: what caches and arenas take by themselves.
        asyncio.run(run(server.url, lambda client: measure_searches(client, queries)))
        baseline = memory_bytes(server.pid)
    with serving(data) as server:
        say(f"ingesting {len(documents)} documents ...")
        report["ingest"] = asyncio.run(run(server.url, lambda client: fill(client, documents, hot, say)))
        say("rebuilding ...")
        report["rebuild"] = asyncio.run(run(server.url, rebuild))
    with serving(data) as server:
        say("searching ...")
        report |= asyncio.run(run(server.url, lambda client: measure_searches(client, queries)))
        report["memory"] = asyncio.run(
            run(server.url, lambda client: memory(client, server.pid, data, baseline))
        )
        report["memory"] |= tier_bytes(data / COLLECTION)
        say("inserting ...")
        texts = [f"{query.text} number {number}" for number, query in enumerate(queries[:200])]
        report["insert"] = asyncio.run(run(server.url, lambda client: inserts(client, texts)))
        say("inserting while a rebuild runs ...")
        report["insert_during_rebuild"] = asyncio.run(
            run(server.url, lambda client: busy_inserts(client, texts))
        )
        say("counting recall ...")
        report["recall"] = asyncio.run(run(server.url, lambda client: recall(client, queries[:200])))
    if with_peers:
        say("measuring the peer ...")
        texts = [query.text for query in queries[:300]]
        report["peer"] = peers.measure(data / COLLECTION / "log.db", texts)
        say("measuring BM25 engines ...")
        report["lexical_engines"] = lexical.measure(data / COLLECTION / "log.db", texts)
    return report


async def run(url: str, work: Any) -> Any:
    async with Client(url) as client:
        return await work(client)


async def measure_searches(client: Client, queries: list[Any]) -> dict[str, Any]:
    uncached = [{"query": query.text, "k": 10} for query in queries]
    warm_up = [{"query": f"warm up number {number}", "k": 10} for number in range(WARM_UP)]
    fresh = await latencies(client, uncached[WARM_UP:], warm_up)
    cached = await latencies(client, uncached[WARM_UP:], [])
    # Another mode is another answer, so the result cache has none; the vectors of the queries are known by now.
    dense = [{"query": query.text, "k": 10, "mode": "dense"} for query in queries[WARM_UP:]]
    return {
        "uncached": fresh,
        "cached": cached,
        "dense_query_vector_known": await latencies(client, dense, []),
    }


async def memory(client: Client, pid: int, data: Path, baseline: dict[str, int]) -> dict[str, Any]:
    """The process after searching, less the same with next to no data; and what the indexes say of themselves.

    Of mapped files only those of the data count: how much of its libraries a process maps differs from start to start.
    """
    info = await client.collection(COLLECTION)
    now = memory_bytes(pid)
    passages = sum(info["passages"].values())
    grown = now["own"] - baseline["own"]
    return {
        "passages": info["passages"],
        "process_bytes": now["resident"],
        "tiny_process_bytes": baseline["resident"],
        "own_bytes_per_passage": round(grown / passages, 1),
        "with_mapped_files_bytes_per_passage": round((grown + mapped_bytes(data, pid)) / passages, 1),
        "index_bytes_per_passage": round(info["memory_bytes"] / passages, 1),
    }


def tier_bytes(collection: Path) -> dict[str, float]:
    """Size of each tier's index in the live generation, by its own passages."""
    shelf = Shelf(collection)
    manifest = read_manifest(shelf.path(shelf.current()))
    sizes = {"hot": ("hot.hnsw", manifest.hot), "cold": ("cold.ivf", manifest.cold)}
    return {
        f"{tier}_index_bytes_per_passage": round(manifest.files[name].bytes / count, 1)
        for tier, (name, count) in sizes.items()
        if count
    }


async def busy_inserts(client: Client, texts: list[str]) -> dict[str, Any]:
    job = await client.reindex(COLLECTION)
    measured = await inserts(client, texts)
    running = (await client.job(job))["status"] == "running"
    await client.finished(job)
    return {**measured, "rebuild_outlasted_inserts": running}


def show(report: dict[str, Any]) -> None:
    where, corpus = report["machine"], report["corpus"]
    console.print(
        f"[bold]{corpus['documents']} documents of {corpus['name']}[/] on {where['cores']} x {where['cpu']}"
    )
    table = Table("measured", "value")
    ingest, memory_, inserted = report["ingest"], report["memory"], report["insert"]["found_by_a_search"]
    busy = report["insert_during_rebuild"]["found_by_a_search"]
    rows = [
        ("text query over HTTP, hybrid, uncached", pair(report["uncached"])),
        ("text query over HTTP, from the result cache", pair(report["cached"])),
        ("recall@10 of dense search", f"{report['recall']['overall']:.4f}"),
        ("index memory", f"{memory_['index_bytes_per_passage']:.0f} bytes a passage"),
        ("own memory of the process", f"{memory_['own_bytes_per_passage']:.0f} bytes a passage"),
        (
            "the same with mapped files",
            f"{memory_['with_mapped_files_bytes_per_passage']:.0f} bytes a passage",
        ),
        (
            "ingest",
            f"{ingest['passages_per_s']:.0f} passages/s ({ingest['passages']} in {ingest['seconds']:.0f} s)",
        ),
        ("rebuild", f"{report['rebuild']['seconds']:.0f} s"),
        ("insert to found, durable", pair(inserted)),
        ("the same while a rebuild runs", pair(busy)),
    ]
    if "total" in report.get("peer", {}):
        peer = report["peer"]
        rows.append(("peer: sentence-transformers + hnswlib", pair(peer["total"])))
        rows.append(("peer: index memory", f"{peer['index_bytes_per_passage']} bytes a passage"))
        rows.append(
            ("uncached p50, peer / Nearline", f"{peer['total']['p50_ms'] / report['uncached']['p50_ms']:.1f}")
        )
    for name, engine in report.get("lexical_engines", {}).items():
        if "p50_ms" in engine:
            rows.append((f"BM25 top 100: {name}", pair(engine)))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def pair(values: dict[str, Any]) -> str:
    return f"p50 {values['p50_ms']:.1f} ms, p99 {values['p99_ms']:.1f} ms"
