"""nearline export-model"""

from __future__ import annotations

from pathlib import Path

import click

from jobs.commands.options import JSON, errors, print_json
from jobs.export_model import export_model
from jobs.export_sources import DEFAULT_NAME


@click.command(epilog="Example: nearline export-model --from intfloat/e5-small-v2 --name e5-small-v2")
@click.option(
    "--from",
    "source",
    default="auto",
    show_default=True,
    help="A folder, a hub repository (owner/name), 'hub', 'wheel', or 'auto': the wheel if installed, else the hub.",
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
@JSON
def command(
    source: str,
    name: str,
    out: Path | None,
    calibrate: Path | None,
    query_prefix: str | None,
    document_prefix: str | None,
    as_json: bool,
) -> None:
    """Make a quantised ONNX model for serving: found, optimised, int8, checked against fp32."""
    folder = out or Path("models") / name
    manifest = export_model(
        None if source == "auto" else source,
        folder,
        name=name,
        progress=lambda text: errors.print(f"{text} ..."),
        calibrate=calibrate,
        query_prefix=query_prefix,
        document_prefix=document_prefix,
    )
    if as_json:
        print_json({"folder": str(folder), "fingerprint": manifest.fingerprint, "checks": manifest.checks})
        return
    checks = manifest.checks
    click.echo(
        f"{folder}: {manifest.dimensions} dimensions, {manifest.tokens_max} tokens, {manifest.quantisation}; "
        f"cosine to fp32 {checks['cosine_mean']:.4f} on average, {checks['cosine_min']:.4f} at worst; "
        f"fingerprint {manifest.fingerprint[:12]}"
    )
