"""nearline bench index"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from jobs.commands.benching import (
    FILE,
    FOLDER,
    OUT,
    material_of,
    material_options,
    progress_bar,
    publish,
    source_of,
)
from jobs.commands.options import JSON, console, errors


@click.command(
    "index",
    epilog="Example: nearline bench index --peers --corpus squad/corpus.jsonl.gz --corpus words/corpus.jsonl.gz "
    "--data bench-data --repeat 3",
)
@material_options(300_000)
@click.option("--query-vectors", type=FILE, help="Vectors of queries, .npy.")
@click.option(
    "--data", type=FOLDER, help="Keeps what was embedded, for the next run. [default: a temporary folder]"
)
@click.option(
    "--queries", type=click.IntRange(20), default=1000, show_default=True, help="Searches measured."
)
@click.option("--hot-capacity", type=click.IntRange(0), help="Passages kept hot. [default: a tenth]")
@click.option(
    "--recall",
    type=click.FloatRange(0, 1),
    default=0.98,
    show_default=True,
    help="The fastest setting that reaches this recall@10 is compared.",
)
@click.option(
    "--recall-target",
    type=click.FloatRange(0, 1),
    default=0.99,
    show_default=True,
    help="What Nearline's builder aims at when it chooses settings itself.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True, help="Medians of so many passes."
)
@click.option(
    "--ingest",
    type=click.IntRange(0),
    default=100_000,
    show_default=True,
    help="Passages written while Nearline is searched.",
)
@click.option(
    "--build-threads", type=click.IntRange(1), default=2, show_default=True, help="Of every engine's build."
)
@click.option("--peers/--no-peers", "with_peers", default=True, help="Measure other libraries too.")
@click.option("--only", multiple=True, help="Measure this engine alone. May be given several times.")
@OUT
@JSON
def command(
    corpora: tuple[Path, ...],
    passages: int,
    model: Path | None,
    vectors: Path | None,
    texts: Path | None,
    query_vectors: Path | None,
    data: Path | None,
    with_peers: bool,
    only: tuple[str, ...],
    out: Path,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure the index library beside others: recall, latency, memory, on the same vectors in one run.

    Each engine is built in one process and searched in a fresh one. Run nothing else meanwhile.
    """
    from jobs.benchmark.index.child import ENGINES, NEARLINE
    from jobs.benchmark.index.material import prepare
    from jobs.benchmark.index.report import show
    from jobs.benchmark.index.run import Plan, run

    if unknown := sorted(set(only) - set(ENGINES)):
        raise click.BadParameter(f"{unknown[0]!r}; there are: {', '.join(ENGINES)}", param_hint="--only")
    if (vectors is None) != (query_vectors is None):
        raise click.UsageError("--vectors, --texts and --query-vectors go together")
    plan = Plan(**settings, engines=only or (None if with_peers else (NEARLINE,)))
    source = source_of(corpora, model, vectors, texts, query_vectors)
    with working_folder(data) as folder:
        with progress_bar(hidden=as_json) as progress:
            material = prepare(folder, source, passages, progress)
        report: dict[str, Any] = run(material, plan, folder, errors.print)
    report["material"] = material_of(source)
    publish(report, "bench-index", out, lambda report: show(report, console), as_json=as_json)


@contextlib.contextmanager
def working_folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="nearline-bench-") as name:
        yield Path(name) / "material"
