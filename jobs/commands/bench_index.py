"""nearline bench index"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jobs.commands.options import JSON, console, errors, print_json

if TYPE_CHECKING:
    from jobs.benchmark.index.material import Source

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(
    "index",
    epilog="Example: nearline bench index --peers --corpus squad/corpus.jsonl.gz --corpus words/corpus.jsonl.gz "
    "--data bench-data --repeat 3",
)
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Documents to index, with queries.jsonl.gz beside them if there are any. May be given several times. "
    "[default: docstrings]",
)
@click.option(
    "--passages", type=click.IntRange(1000), default=300_000, show_default=True, help="At most so many."
)
@click.option("--model", type=FOLDER, help="Folder of the model. [default: that of the configuration]")
@click.option("--vectors", type=FILE, help="Instead of a corpus: vectors of passages, .npy.")
@click.option("--texts", type=FILE, help="Their texts, a JSON list.")
@click.option("--query-vectors", type=FILE, help="Vectors of queries, .npy.")
@click.option(
    "--data", type=FOLDER, help="Keeps what was embedded, for the next run. [default: a temporary folder]"
)
@click.option(
    "--queries", "count", type=click.IntRange(20), default=1000, show_default=True, help="Searches measured."
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
@click.option(
    "--out",
    type=FOLDER,
    default=Path("reports"),
    show_default=True,
    help="Folder of the report.",
)
@JSON
def command(
    corpora: tuple[Path, ...],
    passages: int,
    model: Path | None,
    vectors: Path | None,
    texts: Path | None,
    query_vectors: Path | None,
    data: Path | None,
    count: int,
    hot_capacity: int | None,
    recall: float,
    recall_target: float,
    repeat: int,
    ingest: int,
    build_threads: int,
    with_peers: bool,
    only: tuple[str, ...],
    out: Path,
    as_json: bool,
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
    plan = Plan(
        queries=count,
        recall=recall,
        recall_target=recall_target,
        hot_capacity=hot_capacity,
        repeat=repeat,
        ingest=ingest,
        build_threads=build_threads,
        engines=only or (None if with_peers else (NEARLINE,)),
    )
    source = source_of(corpora, model, vectors, texts, query_vectors)
    with working_folder(data) as folder:
        with progress_bar(hidden=as_json) as progress:
            material = prepare(folder, source, passages, progress)
        report: dict[str, Any] = run(material, plan, folder, errors.print)
    settings = source.settings()
    report["material"] = {"name": source.name, "model": settings.model, "fingerprint": settings.fingerprint}
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"bench-index-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    if as_json:
        print_json(report)
    else:
        show(report, console)
        console.print(f"Report: {path}")


def source_of(
    corpora: tuple[Path, ...],
    model: Path | None,
    vectors: Path | None,
    texts: Path | None,
    query_vectors: Path | None,
) -> Source:
    """Vectors that were made before, or corpora to embed with the model of the configuration."""
    from jobs.benchmark.index.sources import Arrays, Corpora
    from retrieval.config import load_config

    if vectors is not None or texts is not None or query_vectors is not None:
        if vectors is None or texts is None or query_vectors is None or corpora:
            raise click.UsageError("--vectors, --texts and --query-vectors go together, without --corpus")
        return Arrays(vectors, texts, query_vectors)
    config = load_config(None, os.environ)
    if model is not None:
        folder = model.resolve()
        models = msgspec.structs.replace(config.models, folder=str(folder.parent), default=folder.name)
        config = msgspec.structs.replace(config, models=models)
    return Corpora(corpora, config)


@contextlib.contextmanager
def working_folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="nearline-bench-") as name:
        yield Path(name) / "material"


@contextlib.contextmanager
def progress_bar(*, hidden: bool) -> Iterator[Any]:
    """A bar by passages written."""
    columns = (TextColumn("passages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=hidden, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
