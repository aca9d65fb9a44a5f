"""nearline reembed"""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jobs.commands.options import JSON, URL, errors, print_json
from jobs.pace import Pace
from jobs.reembedding import Copied, reembed
from retrieval.client import Client


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
    type=click.FloatRange(0),
    default=0.0,
    help="Documents written a second, to leave room for searches. [default: as fast as they are embedded]",
)
@JSON
def command(
    url: str, source: str, target: str, model: str, alias: str | None, per_second: float, as_json: bool
) -> None:
    """Embed a collection anew with another model, into another collection, while both serve.

    Only what differs is written, and what the source does not have is deleted: run it again after it was stopped, or to
    take over what changed since.
    """
    copied = asyncio.run(copy(url, source, target, model, alias, per_second, hidden=as_json))
    if as_json:
        print_json(asdict(copied))
        return
    click.echo(
        f"{target}: {copied.written} documents written, {copied.unchanged} were there already, "
        f"{copied.deleted} deleted, in {copied.seconds:.1f} s" + (f"; {alias} names it now" if alias else "")
    )


async def copy(
    url: str, source: str, target: str, model: str, alias: str | None, per_s: float, *, hidden: bool
) -> Copied:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    async with Client(url) as client:
        with Progress(*columns, console=errors, disable=hidden, transient=True) as bar:
            task = bar.add_task("reading what is there", total=None)

            def progress(stage: str, done: int, total: int) -> None:
                bar.update(task, description=stage, completed=done, total=max(total, done))

            return await reembed(
                client, source, target, model=model, alias=alias, pace=Pace(per_s), progress=progress
            )
