"""nearline demo"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from jobs.commands.ingest_output import progress_bar
from jobs.commands.options import PATH, exit_on_sigterm
from jobs.commands.output import console
from jobs.commands.rebuilds import wait_for_job
from jobs.commands.search import HIGHLIGHT, show
from jobs.ingestion.ingesting import ingest
from jobs.serving.process import log_of, serving
from jobs.sources import SourceDocument
from jobs.sources.docstrings import docstrings
from nearline import AsyncClient

COLLECTION = "python"
HOT_CAPACITY = 2000
WARM_UP = 20
OPTIONS: dict[str, Any] = {"k": 3, "group_by_document": True, "highlight": HIGHLIGHT}
QUERIES = (
    "read a file line by line without loading it into memory",
    "run a function in another process and get its result back",
    "stop waiting for a task after some seconds",
    "parse a date like 2026-11-21T10:00",
    "compare two texts and show the differences",
)


@click.command(epilog="Example: nearline demo")
@click.option(
    "--data",
    type=PATH,
    default=Path("demo/data"),
    show_default=True,
    help="Where the data stay. Another run finds them there.",
)
def command(data: Path) -> None:
    """Index the docstrings of this Python, serve them, and search them over HTTP.

    The data is kept, and the last lines say how to continue with it. An interrupted first run leaves nothing behind.
    """
    missing = [folder for folder in (data, *data.parents) if not folder.exists()]
    with exit_on_sigterm():
        try:
            play(data)
        except BaseException:
            if missing:
                shutil.rmtree(missing[-1], ignore_errors=True)
                log_of(data).unlink(missing_ok=True)
            raise


def play(data: Path) -> None:
    data.parent.mkdir(parents=True, exist_ok=True)
    console.print("Reading the docstrings of the Python standard library ...")
    documents = list(docstrings())
    with serving(data) as server:
        console.print(f"Serving {data} at {server.url}")
        asyncio.run(tour(server.url, documents))
    console.print("\nTo go on with these data, serve them:")
    say_command("serve", "--data", str(data))
    console.print("and open http://127.0.0.1:8080/ui, or search from another terminal:")
    say_command("search", "-c", COLLECTION, "compare two folders")


async def tour(url: str, documents: list[SourceDocument]) -> None:
    async with AsyncClient(url) as client:
        info = await client.ensure_collection(COLLECTION, hot_capacity=HOT_CAPACITY)
        if info["documents"] == len(documents) and info["generation"]:  # an earlier run finished
            console.print("The docstrings are indexed already.")
        else:
            await fill(client, documents)
        for number in range(WARM_UP):  # so that the timings below are from a warm service
            await client.search(COLLECTION, query=f"warm up {number}", cache=False)
        for query in QUERIES:
            console.print(f"\n[bold yellow]{query}[/]")
            show(await client.search(COLLECTION, query=query, **OPTIONS))
        console.print("\n[bold yellow]The first query again: the answer comes from the cache[/]")
        show(await client.search(COLLECTION, query=QUERIES[0], **OPTIONS))


async def fill(client: AsyncClient, documents: list[SourceDocument]) -> None:
    console.print(f"Embedding {len(documents)} docstrings on this CPU ...")
    with progress_bar(len(documents), of="documents", label="docstrings") as on_progress:
        done = await ingest(client, COLLECTION, documents, on_progress)
    console.print(f"{done.documents} documents, {done.passages} passages, durable and searchable.")
    console.print(
        f"Rebuilding: the newest {HOT_CAPACITY} passages stay hot, the others move to the cold tier ..."
    )
    await wait_for_job(client, await client.reindex(COLLECTION))


def say_command(*arguments: str) -> None:
    """Print a command line to paste, invoking this program the way it was invoked."""
    program = [sys.argv[0]] if os.access(sys.argv[0], os.X_OK) else [sys.executable, "-m", "jobs.cli"]
    click.echo("  " + shlex.join([*program, *arguments]))
