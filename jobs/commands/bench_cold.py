"""nearline bench cold"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from jobs.commands.benching import (
    OUT,
    material_of,
    material_options,
    progress_bar,
    publish,
    source_of,
)
from jobs.commands.options import JSON, console, errors


@click.command(
    "cold",
    epilog="Example: nearline bench cold --passages 20000 --zipf 1.5 --seeds 3",
)
@material_options(100_000)
@click.option(
    "--topics",
    type=click.IntRange(2),
    default=300,
    show_default=True,
    help="Clusters of passages asked about.",
)
@click.option(
    "--zipf",
    type=click.FloatRange(0),
    default=1.1,
    show_default=True,
    help="Exponent of the topics' popularity: how skewed the load is.",
)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Loads, each on its own.")
@click.option(
    "--load",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="Queries whose hits are counted.",
)
@click.option(
    "--queries", type=click.IntRange(10), default=10_000, show_default=True, help="Queries measured."
)
@click.option(
    "--shifted",
    type=click.IntRange(10),
    default=10_000,
    show_default=True,
    help="Queries measured after the load shifted to other topics.",
)
@click.option("--hot-capacity", type=click.IntRange(1), help="Passages kept hot. [default: a tenth]")
@click.option(
    "--budget",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.005,
    show_default=True,
    help="Recall that may be lost.",
)
@click.option(
    "--audit",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Share of skips searched all the same.",
)
@click.option(
    "--depth",
    type=click.IntRange(10),
    default=100,
    show_default=True,
    help="Passages a dense search ranks: the service's `candidates`.",
)
@click.option(
    "--build-threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of a rebuild."
)
@OUT
@JSON
def command(
    corpora: tuple[Path, ...],
    passages: int,
    model: Path | None,
    vectors: Path | None,
    texts: Path | None,
    out: Path,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure calibrated skipping of the cold tier: a skewed load, then one that shifted to other topics.

    Every query is also asked under policy "always", which its loss and its latency are compared with.
    """
    from jobs.benchmark.cold.report import plot, show
    from jobs.benchmark.cold.run import Plan, run
    from jobs.benchmark.index.material import fill

    plan = Plan(**settings)
    source = source_of(corpora, model, vectors, texts)
    with tempfile.TemporaryDirectory(prefix="nearline-bench-") as name:
        folder = Path(name)
        with progress_bar(hidden=as_json) as progress:
            fill(folder / "passages", source, passages, progress)
        report: dict[str, Any] = run(folder / "passages", plan, folder, errors.print)
    report["material"] = material_of(source)
    path = publish(report, "bench-cold", out, lambda report: show(report, console), as_json=as_json)
    drawing = path.with_suffix(".svg")
    drawn = plot(report, drawing)
    if not as_json:
        console.print(f"Plot: {drawing}" if drawn else "No plot: matplotlib is not installed")
