"""nearline erase"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click
from rich.markup import escape

from jobs.commands.collections import ask, megabytes
from jobs.commands.options import JSON, URL, errors, print_json
from jobs.commands.reindex import finished
from retrieval.client import Client


@click.command(epilog="Example: nearline erase --collection docs")
@click.option("--collection", "-c", "collections", multiple=True, help="Name or alias; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="All collections.")
@URL
@JSON
def command(collections: tuple[str, ...], everything: bool, url: str, as_json: bool) -> None:
    """Erase at once what was deleted or overwritten, from every file of a collection.

    The log, the indexes, generations kept to roll back to, cached answers and the sampled queries of the collection.
    Backups that were made before still hold it.
    """
    if everything == bool(collections):
        raise click.UsageError("name a collection with --collection, or say --all")
    erased = asyncio.run(erase(url, collections, hidden=as_json))
    if as_json:
        print_json(erased)
    else:
        for name, result in erased.items():
            click.echo(
                f"{name}: {megabytes(result['erased_bytes'])} erased, {megabytes(result['freed_bytes'])} came back, "
                f"{megabytes(result['disk_bytes'])} are on disk"
            )
    sick = ask(url, Client.quarantined) if everything else []
    for one in sick:
        errors.print(f"[red]{escape(one['name'])} is quarantined, nothing of it was erased[/]")
    if sick:
        sys.exit(1)


async def erase(url: str, names: tuple[str, ...], *, hidden: bool) -> dict[str, Any]:
    """What each erasure did, by collection; all collections where none is named."""
    async with Client(url) as client:
        wanted = names or [one["name"] for one in await client.collections()]
        return {
            name: (await finished(client, await client.erase(name), hidden=hidden))["result"]
            for name in wanted
        }
