"""nearline ingest"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from jobs.commands.options import COLLECTION, JSON, URL, ask, counted, errors, print_result
from jobs.ingesting import Ingested, ingest
from jobs.ingesting import Progress as OnProgress
from jobs.sources import SourceOptions, SourceReport, parse_types, read_documents, total_bytes
from nearline import AsyncClient, ServiceError

FAILURES_SHOWN = 20
LINE_EVERY_S = 15.0


@click.command(epilog="Example: nearline ingest -c docs handbook/ faq.jsonl prices.csv --create")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@URL
@COLLECTION
@click.option("--create", is_flag=True, help="Make the collection if it does not exist.")
@click.option(
    "--language",
    metavar="CODE",
    help="With --create: BCP 47 code of the language of its documents. [default: found out for each document]",
)
@click.option(
    "--id-field",
    help="Column or field that holds the id. [default: id, else _id; rows with neither get FILE#LINE]",
)
@click.option(
    "--prefix-ids",
    is_flag=True,
    help="Put FILE/ before the ids of rows, where files number their rows alike.",
)
@click.option(
    "--text-field",
    default="text",
    show_default=True,
    help="Column or field that holds the text. Several (a,b) are joined, each a paragraph.",
)
@click.option(
    "--title-field", default="title", show_default=True, help="Column or field that holds the title."
)
@click.option(
    "--types",
    multiple=True,
    metavar="COLUMN=TYPE,...",
    help="Types of columns of tables: string, number, boolean, date, or date:%d/%m/%Y for dates written like that; "
    "those of other columns are inferred from the first 1,000 rows.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave out what this matches in folders (*.log, drafts, */old/*), by name or by path below the folder.",
)
@click.option("--lenient", is_flag=True, help="Exit with 0 also if something failed.")
@JSON
def command(
    paths: tuple[Path, ...],
    url: str,
    collection: str,
    create: bool,
    language: str | None,
    text_field: str,
    types: tuple[str, ...],
    lenient: bool,
    as_json: bool,
    **others: Any,
) -> None:
    """Send JSONL, CSV, text and Markdown files, or folders of them, to a running service.

    Whatever cannot be read or is refused by the service is listed at the end and makes the exit code 1; everything else
    is written. It is safe to run again after an interruption: no document is stored twice.
    """
    declared = {column: kind for one in types for column, kind in parse_types(one).items()}
    text_fields = tuple(field.strip() for field in text_field.split(","))
    options = SourceOptions(text_fields=text_fields, types=declared, **others)
    report, done = SourceReport(), Ingested()
    documents = read_documents(paths, options=options, report=report)

    settings: Any = {"language": language} if language else {}

    async def send(client: AsyncClient) -> None:
        if create:
            await client.ensure_collection(collection, **settings)
        await ingest(client, collection, documents, on_progress, report, done)

    try:
        with progress_bar(total_bytes(paths, options=options), hidden=as_json) as on_progress:
            ask(url, send)
    except KeyboardInterrupt:
        click.echo(stopped(done, collection), err=True)
        sys.exit(130)
    except ServiceError:
        if done.seconds:
            show_failures(report)
            click.echo(stopped(done, collection), err=True)
        raise
    for column in declared.keys() - report.types.keys():
        report.note(f"types: no table has a column '{column}' of metadata")
    for line in report.notes:
        click.echo(line, err=True)
    show_failures(report)
    print_result(as_value(done, report), ending(done, collection), *report.summary(), as_json=as_json)
    if report.failures and not lenient:
        sys.exit(1)


def ending(done: Ingested, collection: str) -> str:
    unchanged = f", {done.unchanged} unchanged" if done.unchanged else ""
    return (
        f"{counted(done.documents, 'document')} written to {collection}{unchanged}: "
        f"{counted(done.passages, 'passage')}{rate(done)}, {done.seconds:.1f} s"
        + (f" (seq {done.seq})" if done.seq else "")
    )


def rate(done: Ingested) -> str:
    return f", {done.tokens_per_s():,.0f} tokens/s" if done.tokens else ""


def stopped(done: Ingested, collection: str) -> str:
    return (
        f"stopped: {counted(done.documents + done.unchanged, 'document')} written to {collection}, perhaps some more; "
        "the same command again writes what is missing"
    )


def as_value(done: Ingested, report: SourceReport) -> dict[str, Any]:
    """The value printed by `--json`."""
    return {
        **msgspec.to_builtins(done),
        **msgspec.to_builtins(report),
        "documents": done.documents,
        "tokens_per_s": round(done.tokens_per_s(), 1),
        "seconds": round(done.seconds, 3),
        "other_files": report.other_files.total(),
        "types": {column: " or ".join(kinds) for column, kinds in report.types.items()},
    }


def show_failures(report: SourceReport) -> None:
    if not report.failures:
        return
    click.echo(f"{report.failures:,} failed:", err=True)
    for one in report.failed[:FAILURES_SHOWN]:
        click.echo(f"  {one.source}: {one.reason}", err=True)
    if report.failures > FAILURES_SHOWN:
        click.echo(f"  and {report.failures - FAILURES_SHOWN:,} more; --json names them", err=True)


@contextlib.contextmanager
def progress_bar(
    total: int,
    *,
    of: Literal["bytes_read", "documents"] = "bytes_read",
    hidden: bool = False,
    label: str = "documents",
) -> Iterator[OnProgress]:
    """A progress bar of acknowledged work out of `total` source bytes or documents; without a terminal, lines on
    stderr."""
    if not hidden and not errors.is_terminal:
        yield progress_lines(total, of, label)
        return
    columns = (
        TextColumn("{task.fields[documents]} " + label),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    # A long period, because acknowledgements of large documents are far apart.
    with Progress(*columns, console=errors, disable=hidden, transient=True, speed_estimate_period=300) as bar:
        task = bar.add_task("", total=max(total, 1), documents=0, rate=0.0)
        yield lambda done: bar.update(
            task,
            completed=getattr(done, of),
            documents=done.documents + done.unchanged,
            rate=done.tokens_per_s(),
        )


def progress_lines(total: int, of: str, label: str, every_s: float = LINE_EVERY_S) -> OnProgress:
    """The same as lines on stderr: one after an acknowledgement, at most one every `every_s`."""
    begun = shown = time.monotonic()

    def note(done: Ingested) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < every_s:
            return
        shown = now
        share = min(getattr(done, of) / max(total, 1), 1.0)
        left = f", {(now - begun) * (1 / share - 1):,.0f} s left" if share else ""
        click.echo(f"{done.documents + done.unchanged:,} {label}, {share:.0%}{rate(done)}{left}", err=True)

    return note
