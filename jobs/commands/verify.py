"""nearline verify"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten

import click
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from indexes.backup.verifying import verify_backup, verify_data
from indexes.child import step_back
from indexes.log.checks import Check
from jobs.commands.byte_progress import OnProgress
from jobs.commands.options import JSON, console, errors, print_json

DETAIL_CHARS_MAX = 200  # SQLite may list a hundred faults; --json has all of them


@click.command(epilog="Example: nearline verify --data data")
@click.option("--data", type=click.Path(path_type=Path), help="A data directory, served or not.")
@click.option("--backup", type=click.Path(path_type=Path), help="A backup instead.")
@click.option("--collection", "-c", "names", multiple=True, help="Only this one; may be given several times.")
@JSON
def command(data: Path | None, backup: Path | None, names: tuple[str, ...], as_json: bool) -> None:
    """Check that a data directory or a backup is whole. Only reads. Exit code 1 if anything is wrong."""
    step_back()
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, console=errors, disable=as_json, transient=True) as bar:
        task = bar.add_task("", total=1)

        def on_progress(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=max(total, 1))

        found = list(checks(data, backup, names, on_progress))
    sound = all(check.ok for check in found)
    if as_json:
        print_json({"ok": sound, "checks": [asdict(check) for check in found]})
    else:
        show(found)
    sys.exit(0 if sound else 1)


def checks(
    data: Path | None, backup: Path | None, names: tuple[str, ...], on_progress: OnProgress
) -> Iterator[Check]:
    if data is not None and backup is None:
        return verify_data(data, names, on_progress)
    if backup is not None and data is None:
        return verify_backup(backup, names, on_progress)
    raise click.UsageError("give either --data or --backup, not both")


def show(found: list[Check]) -> None:
    """One line a check; what is wrong is said again below, with what to do."""
    table = Table("collection", "check", "", "found")
    for check in found:
        state = "[green]ok[/]" if check.ok else "[red]wrong[/]"
        table.add_row(check.collection, check.name, state, escape(shorten(check.detail, DETAIL_CHARS_MAX)))
    console.print(table)
    for check in found:
        if not check.ok:
            where = " of ".join(filter(None, [check.name, check.collection]))
            console.print(f"[red]{escape(where)}[/]: {escape(check.advice)}")
