"""nearline bench embed"""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
import msgspec

from jobs.commands.options import JSON, console, errors, print_json

FOLDER = click.Path(path_type=Path, file_okay=False)
DATA = Path("../shared/data")


@click.command(
    "embed",
    epilog="Example: nearline bench embed --repeat 3 --data collections --only nearline --only 'ONNX fp32'",
)
@click.option("--only", multiple=True, help="Measure this engine alone. May be given several times.")
@click.option(
    "--queries", type=click.IntRange(20), default=1000, show_default=True, help="Single queries measured."
)
@click.option(
    "--passages",
    type=click.IntRange(50),
    default=2000,
    show_default=True,
    help="Of each collection, embedded in bulk.",
)
@click.option(
    "--questions",
    type=click.IntRange(10),
    default=2000,
    show_default=True,
    help="Judged queries of each collection, for nDCG@10.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True, help="Medians of so many rounds."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help=f"Folder with squad-sent/ and scifact/. [default: {DATA} if it is there, else docstrings]",
)
@click.option("--model", type=FOLDER, help="Folder of the model. [default: that of the configuration]")
@click.option("--out", type=FOLDER, default=Path("reports"), show_default=True, help="Folder of the report.")
@JSON
def command(
    only: tuple[str, ...],
    queries: int,
    passages: int,
    questions: int,
    repeat: int,
    data: Path | None,
    model: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Measure embedding beside others: latency, throughput, memory, ranking, with the same weights in one run.

    Each engine runs in processes of its own, one after the other. Run nothing else meanwhile.
    """
    from jobs.benchmark.embed.child import ENGINES
    from jobs.benchmark.embed.material import gather
    from jobs.benchmark.embed.report import show
    from jobs.benchmark.embed.run import Plan, run

    if unknown := sorted(set(only) - set(ENGINES)):
        raise click.BadParameter(f"{unknown[0]!r}; there are: {', '.join(ENGINES)}", param_hint="--only")
    folder = model if model is not None else configured()
    found = data if data is not None or not DATA.is_dir() else DATA
    material = gather(found, folder, queries=queries, passages=passages, questions=questions)
    report = run(material, Plan(model=folder, repeat=repeat, engines=only or None), errors.print)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"bench-embed-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    if as_json:
        print_json(report)
    else:
        show(report, console)
        console.print(f"Report: {path}")


def configured() -> Path:
    from retrieval.config import load_config

    models = load_config(None, os.environ).models
    return Path(models.folder) / models.default
