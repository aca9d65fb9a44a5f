"""nearline reindex, erase and reembed: rewrite a collection while it serves."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.markup import escape
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from indexes.store.building import UpToDate, await_answer, build_folder, build_from
from indexes.store.objects import Bucket
from jobs.commands.connection import ask
from jobs.commands.options import COLLECTION, JSON, PATH, URL, NumberRange, exit_on_sigterm
from jobs.commands.output import errors, format_bytes, print_result, stages
from jobs.ingestion.rate_limiter import RateLimiter
from jobs.ingestion.reembedding import Copied
from jobs.ingestion.reembedding import reembed as copy
from nearline import AsyncClient
from retrieval.base.config import load_config
from retrieval.base.index_options import options_of

ANSWER_S = 120.0  # for a writer that runs: it looks for offers every ten seconds


@click.command(epilog="Example: nearline reindex --url http://127.0.0.1:8080 --collection docs")
@URL
@COLLECTION
@click.option("--hot-capacity", type=click.IntRange(0), help="Passages to keep hot, for this rebuild only.")
@click.option(
    "--on-this-machine",
    "store",
    metavar="STORE",
    help="Build here what the store at this URL holds; the service that writes to it adopts it.",
)
@click.option("--config", type=PATH, help="With --on-this-machine: a TOML file with the settings of indexes.")
@JSON
def reindex(
    url: str, collection: str, hot_capacity: int | None, store: str | None, config: Path | None, as_json: bool
) -> None:
    """Rebuild the indexes of a collection and swap them in, while it serves.

    With --on-this-machine no service here takes part, and the one elsewhere only loads the result.
    """
    if store is not None:
        build_here(store, collection, hot_capacity, config, as_json=as_json)
        return
    if config is not None:
        raise click.UsageError("--config is for --on-this-machine; a service has its own")
    options = {} if hot_capacity is None else {"hot_capacity": hot_capacity}

    async def rebuild(client: AsyncClient) -> Mapping[str, Any]:
        return await wait_for_job(client, await client.reindex(collection, **options), hidden=as_json)

    job = ask(url, rebuild)
    print_result(job, describe_build(job["result"]), as_json=as_json)


def build_here(
    store: str, collection: str, hot_capacity: int | None, config: Path | None, *, as_json: bool
) -> None:
    """Build a generation from a store in a temporary directory, and wait for the writer to adopt it."""
    objects = Bucket(store)
    options = replace(
        options_of(load_config(config, dict(os.environ))), build_threads=len(os.sched_getaffinity(0))
    )
    with (
        exit_on_sigterm(),
        build_folder() as folder,
        stages(hidden=as_json) as progress,
    ):
        try:
            built = build_from(objects, collection, folder / "log", options, hot_capacity, progress)
        except UpToDate:
            result = {"adopted": False, "up_to_date": True}
            print_result(result, describe_elsewhere(result), as_json=as_json)
            return
        if not as_json:
            errors.print(
                f"It is in the store, and may be adopted later. Waiting for that, for {ANSWER_S:g} s at most ..."
            )
        answer = await_answer(objects, built.offer, ANSWER_S)
    adopted = answer is not None and not answer.refusal
    result = {"offer": built.offer, "adopted": adopted} | msgspec.to_builtins(built.manifest.outcome())
    result["generation"] = answer.number if answer and adopted else None
    result["refusal"] = answer.refusal if answer else ""
    print_result(result, describe_elsewhere(result), as_json=as_json)
    if result["refusal"]:
        sys.exit(1)


def describe_elsewhere(result: Mapping[str, Any]) -> str:
    """Describe what has become of a build that a service elsewhere adopts."""
    if result.get("up_to_date"):
        return "the live generation has everything already"
    if result["adopted"]:
        return describe_build(result)
    if result["refusal"]:
        return f"not adopted: {result['refusal']}"
    return "the generation is built; the service that writes to the store adopts it when it runs"


def describe_build(result: Mapping[str, Any]) -> str:
    recall = ", ".join(f"{tier} {value:.3f}" for tier, value in result["recall"].items())
    return (
        f"generation {result['generation']} is live: {result['hot']} passages hot, {result['cold']} cold, "
        f"recall@10 measured {recall or 'nothing'}{describe_interval(result['recall_evidence'])}, built "
        f"in {result['build_s']:.1f} s"
    )


def describe_interval(evidence: Mapping[str, Any] | None) -> str:
    """Describe the confidence interval of the overall recall, or return "" if the build did not record it."""
    if not evidence or "all" not in evidence["intervals"]:
        return ""
    low, high = evidence["intervals"]["all"]
    return f" (all: {low:.3f} to {high:.3f} by {evidence['queries']} {evidence['source']})"


async def wait_for_job(client: AsyncClient, job_id: str, *, hidden: bool = False) -> Mapping[str, Any]:
    """Wait for a job with a progress bar and return it. Raises ServiceError if it fails."""
    with stages(hidden=hidden) as progress:
        return await client.finished(job_id, on_progress=progress, timeout_s=math.inf)


@click.command(epilog="Example: nearline erase --collection docs")
@click.option("--collection", "-c", "collections", multiple=True, help="Name or alias; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="All collections.")
@URL
@JSON
def erase(collections: tuple[str, ...], everything: bool, url: str, as_json: bool) -> None:
    """Erase deleted and overwritten content at once, from every file of a collection.

    That covers the log, the indexes, generations kept for rollback, cached answers and sampled queries of the
    collection. Existing backups still hold it.
    """
    if everything == bool(collections):
        raise click.UsageError("name a collection with --collection, or say --all")

    async def erase_each(client: AsyncClient) -> Mapping[str, Any]:
        names = collections or [one["name"] for one in await client.collections()]
        jobs = {name: await wait_for_job(client, await client.erase(name), hidden=as_json) for name in names}
        return {name: job["result"] for name, job in jobs.items()}

    erased = ask(url, erase_each)
    lines = [
        f"{name}: {format_bytes(result['erased_bytes'])} erased, {describe_change(result['freed_bytes'])}, "
        f"{format_bytes(result['disk_bytes'])} are on disk"
        for name, result in erased.items()
    ]
    print_result(erased, *lines, as_json=as_json)
    held = ask(url, lambda client: client.request("GET", "/v1/collections")) if everything else {}
    left = [(one["name"], why) for why in ("quarantined", "unavailable") for one in held.get(why, ())]
    for name, why in left:
        errors.print(f"[red]{escape(name)} is {why}, nothing of it was erased[/]")
    if left:
        sys.exit(1)


def describe_change(freed: int) -> str:
    """Files may grow: what is written beside an erasure, and indexes that are built for it, count too."""
    return f"{format_bytes(freed)} came back" if freed >= 0 else f"the files grew by {format_bytes(-freed)}"


@click.command(
    epilog="Example: nearline reembed --from docs-1 --into docs-2 --model e5-small-v2 --alias docs --per-second 50"
)
@URL
@click.option("--from", "source", required=True, help="The collection, or an alias of it, to copy.")
@click.option("--into", "target", required=True, help="The collection to fill; made if it does not exist.")
@click.option("--model", required=True, help="The model of the new collection.")
@click.option("--alias", help="Let this name the new collection once it holds everything.")
@click.option(
    "--per-second",
    type=NumberRange(0),
    default=0.0,
    help="Documents written a second, to leave room for searches. [default: as fast as they are embedded]",
)
@JSON
def reembed(
    url: str, source: str, target: str, model: str, alias: str | None, per_second: float, as_json: bool
) -> None:
    """Copy a collection into one with another model, while both are served.

    Only differences are written, and documents missing from the source are deleted. Run it again to resume after an
    interruption, or to pick up later changes; that ends once the alias names the new collection, which has writes of
    its own from then on.
    """

    async def copy_all(client: AsyncClient) -> Copied:
        with stages(MofNCompleteColumn(), TimeRemainingColumn(), hidden=as_json) as progress:
            pace = RateLimiter(per_second)
            return await copy(client, source, target, model=model, alias=alias, pace=pace, progress=progress)

    copied = ask(url, copy_all)
    line = (
        f"{target}: {copied.written} documents written, {copied.unchanged} were there already, "
        f"{copied.deleted} deleted, in {copied.seconds:.1f} s" + (f"; {alias} names it now" if alias else "")
    )
    print_result(asdict(copied), line, as_json=as_json)
