"""nearline ingest"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from jobs.commands.connection import ask
from jobs.commands.ingest_output import (
    describe_end,
    describe_stop,
    progress_bar,
    show_failures,
    to_json_value,
    warn_if_nothing,
)
from jobs.commands.options import COLLECTION, JSON, URL
from jobs.commands.output import print_result, say
from jobs.ingestion.ingesting import IngestProgress, find_collection, ingest
from jobs.sources import SourceOptions, SourceReport, parse_types, read_documents, total_bytes
from nearline import AsyncClient, ServiceError
from retrieval.clients.bulk import limits_in


def split_names(*listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for one in listed for name in one.split(","))


def check_encoding(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    try:
        b" ".decode(name or "utf-8")  # of no bytes at all, the name is not looked up
    except UnicodeDecodeError:  # half a letter
        return name
    except (LookupError, ValueError) as error:
        raise click.BadParameter(
            f"{name!r} is no encoding of text that Python knows, such as cp1252"
        ) from error
    return name


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
    help="Column or field that holds the text. Several (a,b) are joined, each a paragraph; of '*' each is a line "
    "COLUMN: VALUE.",
)
@click.option(
    "--title-field", default="title", show_default=True, help="Column or field that holds the title."
)
@click.option(
    "--expires-field",
    help="Column or field that holds when a document expires: a date, or milliseconds since 1970. [default: none]",
)
@click.option(
    "--language-field",
    help="Column or field that holds the BCP 47 code of a document's language. [default: none]",
)
@click.option(
    "--vector-field",
    help="Column or field of Parquet, Arrow or JSON that holds a vector of the row's own, which is sent instead of "
    "embedding its text. [default: none]",
)
@click.option(
    "--dimensions",
    type=click.IntRange(1),
    help="With --create and --vector-field: length of the vectors. The collection then has no model.",
)
@click.option(
    "--types",
    multiple=True,
    metavar="COLUMN=TYPE,...",
    help="Types of columns of tables: string, number, boolean, date, or date:%d/%m/%Y for dates written like that; "
    "those of other columns are inferred from the first 1,000 rows.",
)
@click.option(
    "--columns",
    multiple=True,
    metavar="COLUMN,...",
    help="Columns, fields and front matter keys that become metadata. [default: all but those of id, text and title]",
)
@click.option(
    "--skip-columns",
    multiple=True,
    metavar="COLUMN,...",
    help="Columns, fields and front matter keys to leave out.",
)
@click.option(
    "--encoding",
    metavar="NAME",
    callback=check_encoding,
    help="Encoding of text files without a byte order mark, such as cp1252. [default: utf-8]",
)
@click.option("--no-ignore", is_flag=True, help="Read also what .gitignore files in the folders leave out.")
@click.option(
    "--include-generated",
    is_flag=True,
    help="Read also what tools made: search indexes, minified scripts, lock files, pages that repeat others.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave out what this matches in folders (*.log, drafts, */old/*), by name or by path below the folder.",
)
@click.option(
    "--sync",
    is_flag=True,
    help="Keep the collection equal to the folders: send what changed, delete what is gone.",
)
@click.option("--watch", is_flag=True, help="Sync, then go on following the folders until stopped.")
@click.option(
    "--dry-run", is_flag=True, help="With --sync: say what would be written and deleted, and do neither."
)
@click.option(
    "--yes", is_flag=True, help="With --sync: delete without asking, up to half of a folder's documents."
)
@click.option("--force", is_flag=True, help="With --sync: delete without asking, also more than half.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="NEARLINE_SYNC_STATE",
    show_envvar=True,
    help="Folder of the records of what was synced. [default: ~/.local/state/nearline/sync]",
)
@click.option("--lenient", is_flag=True, help="Exit with 0 also if something failed.")
@JSON
def command(
    paths: tuple[Path, ...],
    url: str,
    collection: str,
    create: bool,
    language: str | None,
    dimensions: int | None,
    text_field: str,
    types: tuple[str, ...],
    columns: tuple[str, ...],
    skip_columns: tuple[str, ...],
    lenient: bool,
    as_json: bool,
    sync: bool,
    watch: bool,
    dry_run: bool,
    yes: bool,
    force: bool,
    state: Path | None,
    **others: Any,
) -> None:
    """Send files, or folders of them, to a running service: text, tables, mail, and with the extra `files` documents.

    What cannot be read or is refused by the service is listed at the end, with exit code 1, as is a folder with nothing
    to read; everything else is written. Files in folders that are skipped on purpose are counted there, with the reason
    and the option that reads them. It is safe to run again after an interruption: no document is stored twice.
    """
    declared = {column: kind for one in types for column, kind in parse_types(one).items()}
    options = SourceOptions(
        text_fields=split_names(text_field),
        types=declared,
        columns=split_names(*columns),
        skip_columns=split_names(*skip_columns),
        **others,
    )
    created = settings_of(create, language, dimensions, options.vector_field)
    if (dry_run or yes or force) and not (sync or watch):
        raise click.UsageError("--dry-run, --yes and --force go with --sync")
    if watch and dry_run:
        raise click.UsageError("--dry-run does not go with --watch")
    if sync or watch:
        from jobs.commands.syncs import Syncs

        syncs = Syncs(paths, url, collection, created, options, state, dry_run, yes, force, as_json)
        sys.exit(syncs.follow() if watch else syncs.run_all(lenient))
    report = SourceReport()
    done = send_all(paths, url, collection, created, options, report, hidden=as_json)
    report.check_columns(options)
    for line in report.notes:
        say(line, err=True)
    show_failures(report)
    print_result(
        to_json_value(done, report), describe_end(done, collection), *report.summary(), as_json=as_json
    )
    nothing = warn_if_nothing(paths, report)
    if (report.failures or nothing) and not lenient:
        sys.exit(1)


def settings_of(
    create: bool, language: str | None, dimensions: int | None, vector_field: str | None
) -> dict[str, Any] | None:
    """Return the settings of a collection that may be created; None if it must exist. Raises UsageError for vectors
    whose length is not given, and for a length without vectors."""
    if create and vector_field and dimensions is None:
        raise click.UsageError(
            "--create with --vector-field needs --dimensions, the length of the vectors; a collection of a model, for "
            "vectors of that model, is made before"
        )
    if dimensions is not None and not (create and vector_field):
        raise click.UsageError("--dimensions goes with --create and --vector-field")
    if not create:
        return None
    chosen = {"language": language, "dimensions": dimensions}
    return {name: value for name, value in chosen.items() if value is not None}


def send_all(
    paths: tuple[Path, ...],
    url: str,
    collection: str,
    create: Any,
    options: SourceOptions,
    report: SourceReport,
    *,
    hidden: bool,
) -> IngestProgress:
    """Send all documents. `create`: settings for the collection if it does not exist; None: do not create it. Prints
    what was sent if it is stopped before the end."""
    done = IngestProgress()

    async def send(client: AsyncClient) -> None:
        limits = limits_in(await find_collection(client, collection, create, on_progress))
        fitted = replace(options, metadata_keys_max=limits["metadata_keys"])
        documents = read_documents(paths, options=fitted, report=report)
        await ingest(client, collection, documents, on_progress, report, done, limits=limits)

    try:
        with progress_bar(total_bytes(paths, options=options), hidden=hidden) as on_progress:
            ask(url, send)
    except KeyboardInterrupt:
        click.echo(describe_stop(done, collection), err=True)
        sys.exit(130)
    except ServiceError:
        if done.seconds:
            show_failures(report)
            click.echo(describe_stop(done, collection), err=True)
        raise
    return done
