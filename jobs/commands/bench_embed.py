"""nearline bench embed"""

from __future__ import annotations

from pathlib import Path

import click

from jobs.commands.benching import MODEL, OUT, configured, publish
from jobs.commands.options import JSON, console, errors


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
    help="Folder with squad-sent/ and scifact/. [default: docstrings, which have no judgements]",
)
@MODEL
@OUT
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

    Each engine runs in processes of its own, one at a time; single queries are asked in short turns, and compared
    within a turn. Run nothing else meanwhile.
    """
    from jobs.benchmark.embed.child import ENGINES
    from jobs.benchmark.embed.material import gather
    from jobs.benchmark.embed.report import show
    from jobs.benchmark.embed.run import Plan, run

    if unknown := sorted(set(only) - set(ENGINES)):
        raise click.BadParameter(f"{unknown[0]!r}; there are: {', '.join(ENGINES)}", param_hint="--only")
    models = configured(model).models
    folder = Path(models.folder) / models.default
    material = gather(data, folder, queries=queries, passages=passages, questions=questions)
    report = run(material, Plan(model=folder, repeat=repeat, engines=only or None), errors.print)
    publish(report, "bench-embed", out, lambda report: show(report, console), as_json=as_json)
