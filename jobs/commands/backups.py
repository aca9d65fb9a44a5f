"""nearline backup, restore, accept and verify: they work on folders and need no service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from textwrap import shorten

import click
import msgspec
from rich.markup import escape
from rich.progress import DownloadColumn, TimeRemainingColumn
from rich.table import Table

from indexes.base.child import step_back
from indexes.base.durable import keep_private
from indexes.directory.backup import restoring
from indexes.directory.backup.backup import MANIFEST, back_up
from indexes.directory.backup.verifying import verify_backup, verify_data
from indexes.directory.marker import is_locked
from indexes.log.checks import Check
from indexes.store import following
from indexes.store.objects import Bucket
from indexes.store.opening import RestoredFromStore, restore_from
from indexes.store.restoring import NEWEST, Until
from jobs.commands.options import JSON, PATH, exit_on_sigterm
from jobs.commands.output import console, format_bytes, print_json, print_result, stages
from retrieval.documents import uploads

DETAIL_CHARS_MAX = 200  # SQLite may list a hundred faults; --json has all of them
NAMES = click.option(
    "--collection", "-c", "names", multiple=True, help="Only this one; may be given several times."
)


@click.command(epilog="Example: nearline backup --data data --to backups/2026-03-01")
@click.option("--data", type=PATH, required=True, help="The data directory.")
@click.option("--to", "target", type=PATH, required=True, help="The new folder; must not exist yet.")
@NAMES
@click.option(
    "--no-indexes", is_flag=True, help="Leave the indexes out: smaller, but a restore must rebuild."
)
@JSON
def backup(data: Path, target: Path, names: tuple[str, ...], no_indexes: bool, as_json: bool) -> None:
    """Copy collections to a folder, even while they are served."""
    step_back()
    keep_private()
    with exit_on_sigterm(), stages(DownloadColumn(), TimeRemainingColumn(), hidden=as_json) as progress:
        made = back_up(data, target, names, indexes=not no_indexes, progress=progress)
    value = {
        "folder": str(target),
        "created": made.created,
        "aliases": made.aliases,
        "collections": [
            {**msgspec.structs.asdict(one), "files": len(one.files), "bytes": one.bytes}
            for one in made.collections
        ],
    }
    lines = []
    for one in made.collections:
        indexes = f"generation {one.generation}" if one.generation else "no indexes"
        lines.append(
            f"{one.name}: {one.documents} documents, {one.passages} passages at seq {one.seq}, "
            f"{indexes}, {format_bytes(one.bytes)}"
        )
    print_result(value, *lines, f"the backup is in {target}", as_json=as_json)


@click.command(
    epilog="Example: nearline restore --from backups/2026-03-01 --data data --collection docs --as docs-old"
)
@click.option("--from", "source", required=True, help="The folder of the backup, or the URL of a store.")
@click.option("--data", type=PATH, required=True, help="The data directory; made if absent.")
@NAMES
@click.option("--as", "new_name", help="Another name for the one collection.")
@click.option(
    "--at", "moment", help="Of a store: as it was after an operation (a number), or at a time (ISO 8601)."
)
@JSON
def restore(
    source: str, data: Path, names: tuple[str, ...], new_name: str | None, moment: str | None, as_json: bool
) -> None:
    """Add collections from a backup or a store to a data directory that no service uses.

    Everything is verified before it is placed. Shared caches treat a restored collection as a new one.
    """
    keep_private()
    from_store = "://" in source
    if moment is not None and not from_store:
        raise click.UsageError("--at is for a store: a backup holds one moment")
    restored: list[restoring.Restored] | list[RestoredFromStore]
    with exit_on_sigterm(), stages(DownloadColumn(), TimeRemainingColumn(), hidden=as_json) as progress:
        if from_store:
            objects, until = Bucket(source), until_of(moment)
            restored = restore_from(objects, data, names, new_name=new_name, until=until, progress=progress)
        else:
            restored = restoring.restore(Path(source), data, names, new_name=new_name, progress=progress)
    lines = []
    for one in restored:
        live = (
            f"generation {one.generation} is live"
            if one.generation
            else "its indexes are made when it is served"
        )
        if from_store and one.seq < until_of(moment).seq < NEWEST.seq:
            live += ", the last state that the store has up to there"
        named = f", named {', '.join(one.aliases)} too" if one.aliases else ""
        taken = f"; NOT named {', '.join(one.taken)}: something else here is" if one.taken else ""
        lines.append(f"{one.name}: {one.documents} documents at seq {one.seq}, {live}{named}{taken}")
    if not restored:
        lines.append("there are no collections to restore")
    if note := restoring.about_keys(data):
        lines.append(note)
    value = {"data": str(data), "locked": is_locked(data), "collections": [asdict(one) for one in restored]}
    print_result(value, *lines, as_json=as_json)


def until_of(moment: str | None) -> Until:
    """Read `--at`. A time without an offset is local."""
    if moment is None:
        return NEWEST
    if moment.isdecimal():
        return Until(seq=int(moment))
    try:
        return Until(at_ms=int(datetime.fromisoformat(moment).astimezone().timestamp() * 1000))
    except ValueError:
        raise click.BadParameter(
            f"{moment!r} is neither the number of an operation nor a time such as 2026-03-01T12:00:00Z",
            param_hint="--at",
        ) from None


@click.command(epilog="Example: nearline promote --data replica --store s3://bucket/prefix")
@click.option("--data", type=PATH, required=True, help="The directory of a replica that is stopped.")
@click.option(
    "--store", "url", envvar="NEARLINE_STORE_URL", required=True, help="The store that it followed."
)
@JSON
def promote(data: Path, url: str, as_json: bool) -> None:
    """Let a replica's directory write to the store: serve it without --replica afterwards.

    That service takes over from the one that writes now, which stops if it still runs.
    """
    keep_private()
    objects = Bucket(url)
    following.promote(data, objects, objects.url)
    value = {"data": str(data), "store": objects.url}
    print_result(value, f"{data} writes to {objects.url} when it is served", as_json=as_json)


@click.command(epilog="Example: nearline accept --data data -c docs")
@click.option("--data", type=PATH, required=True, help="The data directory; no service may use it.")
@click.option("--collection", "-c", "name", required=True, help="The quarantined collection.")
@click.option("--yes", is_flag=True, help="Do it without asking; needed where there is no terminal.")
@JSON
def accept(data: Path, name: str, yes: bool, as_json: bool) -> None:
    """Serve a collection from its present log, although writes are known to be missing.

    Use this for a quarantined collection without a backup. It says what is lost and asks first. Indexes that are ahead
    of the log are removed.
    """
    keep_private()
    if not yes:
        left = restoring.survey(data, name)
        indexes = f" Generations {', '.join(map(str, left.removed))} are removed." if left.removed else ""
        click.echo(
            f"{name}: {left.reason}\nIts log ends at operation {left.seq}, with {left.documents} documents. All that "
            f"was written after it is given up.{indexes} If there is a backup, restore that instead.",
            err=True,
        )
        asked = not as_json and sys.stdin.isatty()
        if not (asked and click.confirm("Give it up?", err=True)):
            raise click.ClickException(f"nothing was changed{'' if asked else '; --yes does it'}")
    found = restoring.accept(data, name)
    line = f"{name}: {found.documents} documents, up to operation {found.seq}; what was written after it is not there"
    print_result({"collection": name, **asdict(found)}, line, as_json=as_json)


@click.command(epilog="Example: nearline verify --data data")
@click.option("--data", type=PATH, help="A data directory, served or not.")
@click.option("--backup", "folder", type=PATH, help="A backup instead.")
@NAMES
@JSON
def verify(data: Path | None, folder: Path | None, names: tuple[str, ...], as_json: bool) -> None:
    """Check that a data directory or a backup is intact. Only reads. Exit code 1 if anything is wrong."""
    if data is not None and (data / MANIFEST).is_file():
        raise click.UsageError(f"{data} is a backup: nearline verify --backup {data}")
    step_back()
    with stages(hidden=as_json) as progress:
        if data is not None and folder is None:
            found = [*verify_data(data, names, progress), *(() if names else check_uploads(data))]
        elif folder is not None and data is None:
            found = list(verify_backup(folder, names, progress))
        else:
            raise click.UsageError("give one of --data and --backup")
    sound = all(check.ok for check in found)
    if as_json:
        print_json({"ok": sound, "checks": [asdict(check) for check in found]})
    else:
        show(found)
    sys.exit(0 if sound else 1)


def check_uploads(data: Path) -> Iterator[Check]:
    files, wrong = uploads.read_all(data)
    advice = "upload these again, and delete them; documents that were made of them are not affected"
    if files:
        yield Check("", "uploaded files", not wrong, "; ".join(wrong) or f"{files} files", advice)


def show(found: list[Check]) -> None:
    """Print one row per check, and repeat failed checks below the table with advice."""
    table = Table("collection", "check", "", "found")
    for check in found:
        state = "[green]ok[/]" if check.ok else "[red]wrong[/]"
        table.add_row(check.collection, check.name, state, escape(shorten(check.detail, DETAIL_CHARS_MAX)))
    console.print(table)
    for check in found:
        if not check.ok:
            where = " of ".join(filter(None, [check.name, check.collection]))
            console.print(f"[red]{escape(where)}[/]: {escape(check.advice)}")
