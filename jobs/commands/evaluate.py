"""nearline evaluate"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from jobs.commands.options import COLLECTION, JSON, URL, console, errors, print_json
from jobs.evaluating import Found, measure_rankings, measure_recall, percentiles, sample_queries
from jobs.evaluating import Progress as OnProgress
from jobs.judgements import read_judgements, read_queries
from retrieval.client import Client


@click.command(
    epilog="Example: nearline evaluate -c docs --queries queries.jsonl --qrels qrels.tsv --recall-floor 0.98"
)
@URL
@COLLECTION
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help="JSON lines of id and text. [default: sampled passages]",
)
@click.option("--qrels", type=click.Path(path_type=Path), help="Judgements: query, document, grade.")
@click.option(
    "--sample", type=click.IntRange(1), default=1000, show_default=True, help="At most so many queries."
)
@click.option("--seed", default=0, show_default=True, help="Chooses the sample.")
@click.option(
    "-k", type=click.IntRange(1, 100), default=10, show_default=True, help="Neighbours counted for recall."
)
@click.option(
    "--recall-floor",
    type=click.FloatRange(0, 1),
    default=0.95,
    show_default=True,
    help="Overall and in each tier.",
)
@click.option(
    "--ndcg-floor", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="For hybrid search."
)
@JSON
def command(
    url: str,
    collection: str,
    queries: Path | None,
    qrels: Path | None,
    sample: int,
    seed: int,
    k: int,
    recall_floor: float,
    ndcg_floor: float,
    as_json: bool,
) -> None:
    """Measure recall, and ranking quality where there are judgements. Exit code 1 below a floor."""
    if qrels is not None and queries is None:
        raise click.UsageError("--qrels needs --queries")
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, console=errors, disable=as_json, transient=True) as bar:
        task = bar.add_task("", total=1)

        def on_progress(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        report = asyncio.run(evaluate(url, collection, queries, qrels, sample, seed, k, on_progress))
    report["floors"] = {"recall": recall_floor, "ndcg@10": ndcg_floor}
    report["below"] = below_floors(report, recall_floor, ndcg_floor)
    if as_json:
        print_json(report)
    else:
        show(report)
    sys.exit(1 if report["below"] else 0)


async def evaluate(
    url: str,
    collection: str,
    queries_file: Path | None,
    qrels_file: Path | None,
    sample: int,
    seed: int,
    k: int,
    progress: OnProgress,
) -> dict[str, Any]:
    """The report, but for the floors."""
    judgements = read_judgements(qrels_file) if qrels_file else []
    given = read_queries(queries_file) if queries_file else []
    async with Client(url) as client:
        before = await client.collection(collection)
        if given:
            queries = random.Random(seed).sample(given, min(sample, len(given)))
        else:
            queries = await sample_queries(client, collection, sample, seed)
        tiers, latencies = await measure_recall(client, collection, queries, k, progress)
        rankings = (
            await measure_rankings(client, collection, queries, judgements, progress) if judgements else {}
        )
        after = await client.collection(collection)
    overall = Found(sum(one.found for one in tiers.values()), sum(one.total for one in tiers.values()))
    return {
        "collection": collection,
        "model": after["model"],
        "generation": after["generation"],
        "seq": after["seq"],
        "changed_meanwhile": before["seq"] != after["seq"] or before["generation"] != after["generation"],
        "passages": after["passages"],
        "queries": len(queries),
        "k": k,
        "recall": {
            "overall": overall.recall,
            "tiers": {
                tier: {"recall": one.recall, "neighbours": one.total} for tier, one in sorted(tiers.items())
            },
        },
        "rankings": rankings,
        "dense_latency_ms": percentiles(latencies),
    }


def below_floors(report: dict[str, Any], recall_floor: float, ndcg_floor: float) -> list[str]:
    """What is too low, in words. No queries at all is too low as well."""
    recall = report["recall"]
    if recall["overall"] is None:
        return ["nothing was measured: the collection has no passages or there were no queries"]
    measured = {"overall": recall["overall"]} | {tier: one["recall"] for tier, one in recall["tiers"].items()}
    below = [
        f"recall@{report['k']} {name} is {value:.4f}, below {recall_floor}"
        for name, value in measured.items()
        if value < recall_floor
    ]
    for name, scores in report["rankings"].items():
        if name.startswith("hybrid") and scores["ndcg@10"] < ndcg_floor:
            below.append(f"nDCG@10 of {name} is {scores['ndcg@10']:.4f}, below {ndcg_floor}")
    return below


def show(report: dict[str, Any]) -> None:
    k, recall = report["k"], report["recall"]
    console.print(
        f"[bold]{report['collection']}[/]: generation {report['generation']}, seq {report['seq']}, {report['model']}, "
        f"{report['queries']} queries"
    )
    table = Table("tier", "passages", "true neighbours", f"recall@{k}")
    for tier, one in recall["tiers"].items():
        table.add_row(
            tier, str(report["passages"].get(tier, 0)), str(one["neighbours"]), f"{one['recall']:.4f}"
        )
    if recall["overall"] is not None:
        total = sum(one["neighbours"] for one in recall["tiers"].values())
        table.add_row(
            "overall", str(sum(report["passages"].values())), str(total), f"{recall['overall']:.4f}"
        )
    console.print(table)
    if report["rankings"]:
        table = Table("search", "nDCG@10", "MRR@10")
        for name, scores in report["rankings"].items():
            table.add_row(name, f"{scores['ndcg@10']:.4f}", f"{scores['mrr@10']:.4f}")
        console.print(table)
    if latency := report["dense_latency_ms"]:
        console.print(
            "dense search, ms: " + ", ".join(f"{name} {value:.1f}" for name, value in latency.items())
        )
    if report["changed_meanwhile"]:
        console.print("[yellow]the collection changed while it was measured[/]")
    for line in report["below"]:
        console.print(f"[red]{line}[/]")
