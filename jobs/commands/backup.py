"""nearline backup"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from indexes.backup.backup import Backup, back_up
from indexes.child import step_back
from indexes.durable import keep_private
from jobs.commands.byte_progress import byte_progress
from jobs.commands.ending import ended_by_sigterm
from jobs.commands.options import JSON, print_json


@click.command(epilog="Example: nearline backup --data data --to backups/2026-03-01")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="The data directory.")
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    help="The new folder; must not exist yet.",
)
@click.option("--collection", "-c", "names", multiple=True, help="Only this one; may be given several times.")
@click.option(
    "--no-indexes", is_flag=True, help="Leave the indexes out: smaller, but a restore must rebuild."
)
@JSON
def command(data: Path, target: Path, names: tuple[str, ...], no_indexes: bool, as_json: bool) -> None:
    """Copy collections to a folder, also while they are served."""
    step_back()
    keep_private()
    with ended_by_sigterm(), byte_progress(hidden=as_json) as progress:
        backup = back_up(data, target, names, indexes=not no_indexes, progress=progress)
    if as_json:
        print_json({"folder": str(target), **summary(backup)})
        return
    for one in summary(backup)["collections"]:
        generation = f"generation {one['generation']}" if one["generation"] else "no indexes"
        click.echo(
            f"{one['name']}: {one['documents']} documents, {one['passages']} passages at seq {one['seq']}, "
            f"{generation}, {one['bytes'] / 1e6:.1f} MB"
        )
    click.echo(f"the backup is in {target}")


def summary(backup: Backup) -> dict[str, Any]:
    """Everything but the single files."""
    return {
        "created": backup.created,
        "aliases": backup.aliases,
        "collections": [
            {
                "name": one.name,
                "seq": one.seq,
                "documents": one.documents,
                "passages": one.passages,
                "generation": one.generation,
                "files": len(one.files),
                "bytes": one.bytes,
            }
            for one in backup.collections
        ],
    }
