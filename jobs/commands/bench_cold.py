"""nearline bench cold"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from jobs.commands.bench_index import FILE, FOLDER, progress_bar, source_of
from jobs.commands.options import JSON, console, errors, print_json


@click.command(
    "cold",
    epilog="Example: nearline bench cold --passages 20000 --zipf 1.5 --seeds 3",
)
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Documents to index. May be given several times. [default: docstrings]",
)
@click.option(
    "--passages", type=click.IntRange(1000), default=100_000, show_default=True, help="At most so many."
)
@click.option("--model", type=FOLDER, help="Folder of the model. [default: that of the configuration]")
@click.option("--vectors", type=FILE, help="Instead of a corpus: vectors of passages, .npy.")
@click.option("--texts", type=FILE, help="Their texts, a JSON list.")
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
    "--queries", "count", type=click.IntRange(10), default=10_000, show_default=True, help="Queries measured."
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
@click.option(
    "--out",
    type=FOLDER,
    default=Path("reports"),
    show_default=True,
    help="Folder of the report and its plot.",
)
@JSON
def command(
    corpora: tuple[Path, ...],
    passages: int,
    model: Path | None,
    vectors: Path | None,
    texts: Path | None,
    topics: int,
    zipf: float,
    seeds: int,
    load: int,
    count: int,
    shifted: int,
    hot_capacity: int | None,
    budget: float,
    audit: float,
    depth: int,
    build_threads: int,
    out: Path,
    as_json: bool,
) -> None:
    """Measure calibrated skipping of the cold tier: a skewed load, then one that shifted to other topics.

    Every query is also asked under policy "always", which its loss and its latency are compared with.
    """
    from jobs.benchmark.cold.report import plot, show
    from jobs.benchmark.cold.run import Plan, run
    from jobs.benchmark.index.material import fill

    if (vectors is None) != (texts is None):
        raise click.UsageError("--vectors and --texts go together")
    if vectors is not None and corpora:
        raise click.UsageError("--vectors and --corpus exclude each other")
    plan = Plan(
        seeds=seeds,
        topics=topics,
        zipf=zipf,
        load=load,
        queries=count,
        shifted=shifted,
        hot_capacity=hot_capacity,
        budget=budget,
        audit=audit,
        depth=depth,
        build_threads=build_threads,
    )
    # Queries are made from the passages here, so the passages stand in for the file of queries, which nobody reads.
    source = source_of(corpora, model, vectors, texts, vectors)
    with tempfile.TemporaryDirectory(prefix="nearline-bench-") as name:
        folder = Path(name)
        with progress_bar(hidden=as_json) as progress:
            fill(folder / "passages", source, passages, progress)
        report: dict[str, Any] = run(folder / "passages", plan, folder, errors.print)
    settings = source.settings()
    report["material"] = {"name": source.name, "model": settings.model, "fingerprint": settings.fingerprint}
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"bench-cold-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    drawn = plot(report, path.with_suffix(".svg"))
    if as_json:
        print_json(report)
        return
    show(report, console)
    console.print(f"Report: {path}")
    console.print(f"Plot: {path.with_suffix('.svg')}" if drawn else "No plot: matplotlib is not installed")
