"""nearline tune"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from indexes.model import Progress
from jobs.commands.options import COLLECTION, JSON, URL, console, print_json, require_matplotlib, stages
from jobs.evaluation.sources import from_log
from jobs.fusion_weights import suggest_weights
from jobs.judgements import Judgement, Query, read_judgements, read_queries
from retrieval.client import Client, failure_of

PATH = click.Path(path_type=Path)


@click.command(epilog="Example: nearline tune -c docs --recall-target 0.98 --queries queries.jsonl")
@URL
@COLLECTION
@click.option(
    "--recall-target",
    type=click.FloatRange(0, 1, min_open=True),
    required=True,
    help="Recall@10 to reach, now and at every later rebuild.",
)
@click.option("--queries", type=PATH, help="JSON lines of id and text. [default: made of stored vectors]")
@click.option(
    "--query-log", type=PATH, help="Instead: a collection's queries.jsonl, the sample of its users' queries."
)
@click.option("--qrels", type=PATH, help="Judgements (query, document, grade): suggests fusion weights.")
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
    qrels: Path | None,
    data: Path | None,
    config: Path | None,
    picture: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find the cheapest search settings that reach a recall, on this machine, and use them from now on."""
    if qrels is not None and (queries is None or data is not None):
        raise click.UsageError("--qrels needs --queries, and a running service instead of --data")
    if config is not None and data is None:
        raise click.UsageError("--config needs --data")
    if queries is not None and query_log is not None:
        raise click.UsageError("--queries and --query-log exclude each other")
    if picture is not None:
        require_matplotlib()
        if not picture.absolute().parent.is_dir():
            raise click.UsageError(f"--plot: there is no folder {picture.absolute().parent}")
    asked = read_queries(queries) if queries else logged(query_log)
    judgements = read_judgements(qrels) if qrels else []
    with stages(hidden=as_json) as progress:
        if data is None:
            report = asyncio.run(
                in_service(url, collection, recall_target, asked, judgements, not dry_run, progress)
            )
        else:
            report = in_folder(data, config, collection, recall_target, asked, not dry_run, progress)
    if as_json:
        print_json(report)
    else:
        show(report["result"], report["fusion"])
    if picture is not None:
        plot(report["result"], picture)
    if report["error"]:
        raise click.ClickException(report["error"])


def logged(path: Path | None) -> Sequence[Query]:
    """All queries of a log. Raises InvalidInput if it is none, or empty."""
    return from_log(path, sys.maxsize, 0).chosen if path else []


async def in_service(
    url: str,
    collection: str,
    recall_target: float,
    queries: Sequence[Query],
    judgements: Sequence[Judgement],
    apply: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Let a service tune. Raises ServiceError unless there is an outcome to show."""
    wanted: dict[str, Any] = {"recall_target": recall_target, "apply": apply}
    if queries:
        wanted["queries"] = [query.text for query in queries]
    async with Client(url) as client:
        job_id = await client.tune(collection, **wanted)
        job = await client.ended(job_id, on_progress=progress, timeout_s=math.inf)
        if not job["result"]:
            raise failure_of(job)
        fusion = (
            await suggest_weights(client, collection, queries, judgements, progress) if judgements else None
        )
    return {"result": job["result"], "fusion": fusion, "error": job["error"]}


def in_folder(
    data: Path,
    config_file: Path | None,
    name: str,
    recall_target: float,
    queries: Sequence[Query],
    apply: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Tune without a service. Raises NotADataDirectory, Locked while a service uses the directory, NotFound."""
    # Only here: a command that talks to a service needs no indexes.
    from indexes.backup.backup import aliases_of
    from indexes.catalog import Catalog
    from indexes.tuner import TuneRun
    from retrieval.config import load_config
    from retrieval.handlers.jobs import checked
    from retrieval.lifecycle import options_of

    aliases_of(data)  # a typing error must not become a new data directory
    config = load_config(config_file, os.environ)
    with contextlib.closing(Catalog(data, options_of(config))) as catalog:
        collection = catalog.get(name)
        vectors = None
        if queries:
            progress("embed", 0, 1)
            texts = checked([query.text for query in queries], config.limits.query_chars_max)
            vectors = embed(Path(config.models.folder), collection.settings, texts)
        tuned = TuneRun(collection, recall_target, vectors).run(progress)
        applied = apply and tuned.met
        if applied:
            collection.set_search(tuned.chosen())
    error = None if tuned.met else tuned.why_unmet
    result = {**msgspec.to_builtins(tuned), "cold_policy": None, "applied": applied}
    return {"result": result, "fusion": None, "error": error}


def embed(models: Path, settings: Any, texts: list[str]) -> Any:
    """Vectors of queries by the collection's own model. Raises NotFound or ModelMismatch if it is not in `models`."""
    from indexes.errors import ModelMismatch
    from retrieval.embedders import missing
    from retrieval.embedding.encoder import Encoder, available_threads
    from retrieval.embedding.models import find_models, load_model

    folder = find_models(models).get(settings.model)
    if folder is None:
        raise missing(settings.model, models)
    encoder = Encoder(load_model(folder), threads=available_threads())
    if encoder.fingerprint != settings.fingerprint:
        raise ModelMismatch(f"the collection was not written with the model in {folder}", param="model")
    return encoder.encode(texts, "query")


def show(tuned: dict[str, Any], fusion: dict[str, Any] | None) -> None:
    search = tuned["search"]
    chosen = {"ef": tuned["ef"], **{name: search[name] for name in ("probes", "reach", "rescored")}}
    table = Table(
        "ef", "lists", "reach", "rescored", "recall@10", "microseconds", "codes", title="what more time buys"
    )
    for point in tuned["curve"]:
        # 0 stands for a tier that does not exist.
        is_chosen = all(point[name] in (0, value) for name, value in chosen.items())
        shown = [str(point[name] or "-") for name in ("ef", "probes", "reach", "rescored")]
        table.add_row(
            *shown,
            f"{point['recall']:.4f}",
            f"{point['us']:.0f}",
            str(point["codes"] or "-"),
            style="bold" if is_chosen else None,
        )
    console.print(table)
    table = Table("", "queries", "recall@10", "95 %", "by tier", "microseconds")
    for name, label in (
        ("tuning", "chosen, on the queries it was chosen by"),
        ("validation", "chosen, on the other half"),
        ("before", "before, on the other half"),
    ):
        one = tuned[name]
        tiers = ", ".join(f"{tier} {recall:.4f}" for tier, recall in one["tiers"].items())
        recall, width = f"{one['recall']:.4f}", f"± {one['half_width']:.4f}"
        table.add_row(label, str(one["queries"]), recall, width, tiers, f"{one['us']:.0f}")
    console.print(table)
    for line in notes(tuned, fusion):
        console.print(line)


def notes(tuned: dict[str, Any], fusion: dict[str, Any] | None) -> Iterator[str]:
    """What is to be said beside the tables, a line each."""
    search = tuned["search"]
    yield (
        f"ef {tuned['ef']}, {search['probes']} lists and those within {search['reach']:g}, {search['rescored']} "
        f"rescored, {search['filtered_share']:g} of a filter's matches covered: "
        + ("in use now, and the target of every later rebuild" if tuned["applied"] else "not applied")
    )
    if tuned["filtered"]:
        halves = ", ".join(f"{half} {recall:.4f}" for half, recall in tuned["filtered"].items())
        yield f"recall@10 of cold passages under a filter: {halves}"
    if tuned["margin"]:
        yield f"recall had to be {tuned['margin']:.4f} above the target: more queries would allow less"
    if tuned["held_out"]:
        yield "the queries were made of stored vectors; real ones (--queries) say more"
    if (policy := tuned["cold_policy"]) and policy["queries"]:
        skipped = policy["skipped"] + policy["proven"]
        yield f"times are of searches of both tiers; {skipped} of {policy['queries']} queries skipped the cold one"
    if fusion is not None:
        found, now = fusion["ndcg@10"]["validation"], fusion["configured"]
        yield (
            f"suggested fusion weights: dense {fusion['weight_dense']:g}, lexical {fusion['weight_lexical']:g}, nDCG@10"
            f" {found:.4f} on {fusion['queries']['validation']} queries it was not chosen by; as configured: weighted "
            f"{now['weighted']['validation']:.4f}, rrf {now['rrf']['validation']:.4f}"
        )
        yield "fusion weights are not written: set search.weight_dense and search.weight_lexical"


def plot(tuned: dict[str, Any], path: Path) -> None:
    """Recall over microseconds as SVG: the curve, the settings chosen, and those in use before."""
    from matplotlib.figure import Figure  # the extra `report`

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    us, recall = ([point[name] for point in tuned["curve"]] for name in ("us", "recall"))
    axes.plot(us, recall, ".-", label="cheapest settings of each recall (tuning queries)")
    for name, marker, label in (("validation", "o", "chosen"), ("before", "s", "before")):
        one = tuned[name]
        bar = [one["half_width"]]
        axes.errorbar([one["us"]], [one["recall"]], bar, fmt=marker, label=f"{label} (other queries)")
    axes.axhline(tuned["recall_target"], color="0.6", linestyle="--", label="target")
    axes.set(xscale="log", xlabel="CPU microseconds a query, in the indexes", ylabel="recall@10")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, format="svg")
