"""nearline tune"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from indexes.base.model import Progress
from jobs.commands.options import COLLECTION, JSON, PATH, URL, NumberRange, require_matplotlib
from jobs.commands.output import console, print_json, stages
from jobs.evaluation.private import open_service
from jobs.evaluation.queries import from_log
from jobs.sources.judgments import read_queries
from nearline import AsyncClient
from retrieval.clients.endpoints import failure_of


@click.command(epilog="Example: nearline tune -c docs --recall-target 0.98 --queries queries.jsonl")
@URL
@COLLECTION
@click.option(
    "--recall-target",
    type=NumberRange(0, 1, min_open=True),
    required=True,
    help="Recall@10 to reach, now and at every later rebuild.",
)
@click.option("--queries", type=PATH, help="JSON lines of id and text. [default: made of stored vectors]")
@click.option(
    "--query-log", type=PATH, help="Instead: a collection's queries.jsonl, the sample of its users' queries."
)
@click.option("--data", type=PATH, help="Tune in a data directory that no service uses, without one.")
@click.option("--config", type=PATH, help="With --data: the TOML file that `nearline serve` is given.")
@click.option("--plot", "picture", type=PATH, help="Write the curve as SVG.")
@click.option("--dry-run", is_flag=True, help="Only report: change nothing.")
@JSON
def command(
    url: str,
    collection: str,
    recall_target: float,
    queries: Path | None,
    query_log: Path | None,
    data: Path | None,
    config: Path | None,
    picture: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find the cheapest search settings that reach a recall, on this machine, and use them from now on."""
    for wrong, words in (
        (config and not data, "--config needs --data"),
        (queries and query_log, "--queries and --query-log exclude each other"),
        (picture and not picture.absolute().parent.is_dir(), f"--plot: {picture} is in no folder"),
    ):
        if wrong:
            raise click.UsageError(words)
    if picture:
        require_matplotlib()
    asked = read_queries(queries) if queries else []
    if query_log is not None:
        asked = from_log(query_log, sys.maxsize, 0).chosen
    wanted: dict[str, Any] = {"recall_target": recall_target, "apply": not dry_run}
    if asked:
        wanted["queries"] = [query.text for query in asked]

    async def run_tuning(progress: Progress) -> dict[str, Any]:
        """Tune, and return the result. Raises ServiceError unless there is one."""
        async with open_service(url, data, config) as address, AsyncClient(address) as client:
            job_id = await client.tune(collection, **wanted)
            job = await client.ended(job_id, on_progress=progress, timeout_s=math.inf)
            if not job["result"]:
                raise failure_of(job)
        return {"result": job["result"], "error": job["error"]}

    with stages(hidden=as_json) as on_progress:
        report = asyncio.run(run_tuning(on_progress))
    present(report, picture, as_json=as_json)


def present(report: dict[str, Any], picture: Path | None, *, as_json: bool) -> None:
    """Print a report, and draw it. Raises what went wrong in spite of a result."""
    tuned = report["result"]
    if as_json:
        print_json(report)
    else:
        for shard, one in tuned.get("shards", {"": tuned}).items():
            show(one, f"{shard} what more time buys".strip())
    if picture is not None:
        plot(tuned, picture)
    if report["error"]:
        raise click.ClickException(report["error"])


def show(tuned: dict[str, Any], title: str) -> None:
    search = tuned["search"]
    chosen = {"ef": tuned["ef"], **{name: search[name] for name in ("probes", "reach", "rescored")}}
    table = Table(
        "ef",
        "lists",
        "reach",
        "rescored",
        "recall@10",
        "microseconds",
        "codes",
        title=title,
    )
    for point in tuned["curve"]:
        # 0 stands for a tier that does not exist.
        is_chosen = all(point[name] in (0, value) for name, value in chosen.items())
        shown = [str(point[name] or "-") for name in (*chosen, "codes")]
        shown[-1:-1] = f"{point['recall']:.4f}", f"{point['us']:.0f}"
        table.add_row(*shown, style="bold" if is_chosen else None)
    console.print(table)
    table = Table("", "queries", "recall@10", "95 %", "by tier", "microseconds")
    for name, label in (
        ("tuning", "chosen, on the queries it was chosen by"),
        ("validation", "chosen, on the other half"),
        ("before", "before, on the other half"),
    ):
        one = tuned[name]
        tiers = ", ".join(f"{tier} {recall:.4f}" for tier, recall in one["tiers"].items())
        recall, interval = f"{one['recall']:.4f}", f"{one['low']:.4f} to {one['high']:.4f}"
        table.add_row(label, str(one["queries"]), recall, interval, tiers, f"{one['us']:.0f}")
    console.print(table)
    for line in notes(tuned):
        console.print(line)


def notes(tuned: dict[str, Any]) -> Iterator[str]:
    """Notes on the tables, one per line."""
    search = tuned["search"]
    yield (
        f"ef {tuned['ef']}, {search['probes']} lists and those within {search['reach']:g}, {search['rescored']} "
        "rescored: "
        + ("in use now, and the target of every later rebuild" if tuned["applied"] else "not applied")
    )
    if tuned["filtered"] is not None:
        yield f"recall@10 of cold passages under a filter: {tuned['filtered']:.4f}"
    if tuned["margin"]:
        yield f"recall had to be {tuned['margin']:.4f} above the target, to be sure: more queries would allow less"
    if tuned["held_out"]:
        yield (
            "the queries were made of stored vectors; with real ones, recall may be as low as "
            f"{tuned['validation']['low']:.4f} (--queries measures it)"
        )
    if (policy := tuned["cold_policy"]) and policy["queries"]:
        skipped = policy["skipped"] + policy["proven"]
        yield f"times are of searches of both tiers; {skipped} of {policy['queries']} queries skipped the cold one"


def plot(tuned: dict[str, Any], path: Path) -> None:
    """Recall over microseconds as SVG: the curve, the settings chosen, and those in use before."""
    from matplotlib.figure import Figure  # the extra `report`

    if "shards" in tuned:
        raise click.ClickException("--plot: each shard has a curve of its own; --json prints all")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    us, recall = ([point[name] for point in tuned["curve"]] for name in ("us", "recall"))
    axes.plot(us, recall, ".-", label="cheapest settings of each recall (tuning queries)")
    for name, marker, label in (("validation", "o", "chosen"), ("before", "s", "before")):
        one = tuned[name]
        bar = [[one["recall"] - one["low"]], [one["high"] - one["recall"]]]
        axes.errorbar([one["us"]], [one["recall"]], bar, fmt=marker, label=f"{label} (other queries)")
    axes.axhline(tuned["recall_target"], color="0.6", linestyle="--", label="target")
    axes.set(xscale="log", xlabel="CPU microseconds a query, in the indexes", ylabel="recall@10")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, format="svg")
