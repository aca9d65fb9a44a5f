"""nearline reindex"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from jobs.commands.options import COLLECTION, JSON, URL, errors, print_json
from retrieval.client import Client


@click.command(epilog="Example: nearline reindex --url http://127.0.0.1:8080 --collection docs")
@URL
@COLLECTION
@click.option("--hot-capacity", type=click.IntRange(0), help="Passages to keep hot, for this rebuild only.")
@JSON
def command(url: str, collection: str, hot_capacity: int | None, as_json: bool) -> None:
    """Rebuild the indexes of a collection and swap them in, while it serves."""
    job = asyncio.run(rebuild(url, collection, hot_capacity, hidden=as_json))
    if as_json:
        print_json(job)
        return
    result = job["result"]
    recall = ", ".join(f"{tier} {value:.3f}" for tier, value in result["recall"].items())
    click.echo(
        f"generation {result['generation']} is live: {result['hot']} passages hot, {result['cold']} cold, "
        f"recall@10 measured {recall or 'nothing'}, built in {result['build_s']:.1f} s"
    )


async def rebuild(
    url: str, collection: str, hot_capacity: int | None, *, hidden: bool = False
) -> dict[str, Any]:
    options = {} if hot_capacity is None else {"hot_capacity": hot_capacity}
    async with Client(url) as client:
        return await finished(client, await client.reindex(collection, **options), hidden=hidden)


async def finished(client: Client, job_id: str, *, hidden: bool) -> dict[str, Any]:
    """A job once it has succeeded, with a bar meanwhile. Raises ServiceError if it did not."""
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, console=errors, disable=hidden, transient=True) as bar:
        task = bar.add_task("waiting", total=1)

        def progress(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=max(total, 1))

        return await client.finished(job_id, on_progress=progress, timeout_s=math.inf)
