"""nearline restore"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from indexes.backup.restoring import restore
from indexes.durable import keep_private
from jobs.commands.byte_progress import byte_progress
from jobs.commands.ending import ended_by_sigterm
from jobs.commands.options import JSON, print_json


@click.command(
    epilog="Example: nearline restore --from backups/2026-03-01 --data data --collection docs --as docs-old"
)
@click.option(
    "--from", "folder", type=click.Path(path_type=Path), required=True, help="The folder of the backup."
)
@click.option(
    "--data", type=click.Path(path_type=Path), required=True, help="The data directory; made if absent."
)
@click.option("--collection", "-c", "names", multiple=True, help="Only this one; may be given several times.")
@click.option("--as", "new_name", help="Another name for the one collection.")
@JSON
def command(folder: Path, data: Path, names: tuple[str, ...], new_name: str | None, as_json: bool) -> None:
    """Put collections of a backup into a data directory that no service uses, beside those that are there.

    Every file is verified before anything is placed. A restored collection is a new one to shared caches.
    """
    keep_private()
    with ended_by_sigterm(), byte_progress(hidden=as_json) as progress:
        restored = restore(folder, data, names, new_name=new_name, progress=progress)
    if as_json:
        print_json({"data": str(data), "collections": [asdict(one) for one in restored]})
        return
    for one in restored:
        generation = (
            f"generation {one.generation} is live" if one.generation else "without indexes until a reindex"
        )
        named = f", named {', '.join(one.aliases)} too" if one.aliases else ""
        click.echo(f"{one.name}: {one.documents} documents at seq {one.seq}, {generation}{named}")
