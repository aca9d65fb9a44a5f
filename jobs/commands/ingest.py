"""nearline ingest"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from jobs.commands.options import COLLECTION, JSON, URL, counted, errors, print_json
from jobs.ingesting import Ingested, ingest
from jobs.ingesting import Progress as OnProgress
from jobs.sources import SourceDocument, SourceOptions, SourceReport, read_documents, total_bytes
from retrieval.client import Client


@click.command(epilog="Example: nearline ingest -c docs handbook/ faq.jsonl prices.csv --create")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@URL
@COLLECTION
@click.option("--create", is_flag=True, help="Make the collection if it does not exist.")
@click.option("--id-field", default="id", show_default=True, help="Column or field that holds the id.")
@click.option("--text-field", default="text", show_default=True, help="Column or field that holds the text.")
@click.option(
    "--title-field", default="title", show_default=True, help="Column or field that holds the title."
)
@click.option(
    "--number-rows", is_flag=True, help="Give rows without an id one made of file name and row number."
)
@click.option(
    "--lenient",
    is_flag=True,
    help="Skip files and rows that cannot be read, and name them, instead of stopping.",
)
@JSON
def command(
    paths: tuple[Path, ...],
    url: str,
    collection: str,
    create: bool,
    id_field: str,
    text_field: str,
    title_field: str,
    number_rows: bool,
    lenient: bool,
    as_json: bool,
) -> None:
    """Send JSONL, CSV, text and Markdown files, or folders of them, to a running service."""
    options = SourceOptions(
        id_field=id_field,
        text_field=text_field,
        title_field=title_field,
        number_rows=number_rows,
        lenient=lenient,
    )
    report = SourceReport()
    documents = read_documents(paths, options=options, report=report)
    written = 0

    def note(documents: int, read: int) -> None:
        nonlocal written
        written = documents
        on_progress(documents, read)

    try:
        with progress_bar(total_bytes(paths, options=options), hidden=as_json) as on_progress:
            done = asyncio.run(send(url, collection, create, documents, note))
    except KeyboardInterrupt:
        click.echo(
            f"stopped: {counted(written, 'document')} written to {collection}, perhaps some more; "
            "the same command again writes what is missing",
            err=True,
        )
        sys.exit(130)
    for line in report.notes:
        click.echo(line, err=True)
    if as_json:
        print_json(asdict(done))
        return
    click.echo(
        f"{counted(done.documents, 'document')}, {counted(done.passages, 'passage')} written to {collection}"
        + (f", {done.unchanged} unchanged" if done.unchanged else "")
        + (f" (seq {done.seq})" if done.seq else "")
    )
    if summary := report.summary():
        click.echo(summary)


async def send(
    url: str, collection: str, create: bool, documents: Iterator[SourceDocument], on_progress: OnProgress
) -> Ingested:
    async with Client(url) as client:
        await (client.ensure_collection(collection) if create else client.collection(collection))
        return await ingest(client, collection, documents, on_progress)


@contextlib.contextmanager
def progress_bar(total: int, *, hidden: bool = False, label: str = "documents") -> Iterator[OnProgress]:
    """A bar by bytes of source read, with the number of documents beside it."""
    columns = (
        TextColumn("{task.fields[documents]} " + label),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, disable=hidden or not errors.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=max(total, 1), documents=0)
        yield lambda documents, read: bar.update(task, completed=read, documents=documents)
