"""What the bench commands share: where vectors come from, a bar of progress, and the report."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jobs.commands.options import console, errors, print_json

if TYPE_CHECKING:
    from jobs.benchmark.index.material import Source
    from retrieval.settings import Config

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)

CORPORA = click.option(
    "--corpus",
    "corpora",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Documents to index, with queries.jsonl.gz beside them if there are any. May be given several times. "
    "[default: docstrings]",
)
MODEL = click.option("--model", type=FOLDER, help="Folder of the model. [default: that of the configuration]")
VECTORS = click.option("--vectors", type=FILE, help="Instead of a corpus: vectors of passages, .npy.")
TEXTS = click.option("--texts", type=FILE, help="Their texts, a JSON list.")
OUT = click.option(
    "--out", type=FOLDER, default=Path("reports"), show_default=True, help="Folder of the report."
)


def material_options(passages: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options that say what is indexed, at most so many passages of it by default: all that `source_of` takes."""
    most = click.option(
        "--passages", type=click.IntRange(1000), default=passages, show_default=True, help="At most so many."
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        return CORPORA(most(MODEL(VECTORS(TEXTS(command)))))

    return decorate


def source_of(
    corpora: tuple[Path, ...],
    model: Path | None,
    vectors: Path | None,
    texts: Path | None,
    query_vectors: Path | None = None,
) -> Source:
    """Vectors that were made before, or corpora to embed with the model of the configuration."""
    from jobs.benchmark.index.sources import Arrays, Corpora

    if vectors is None and texts is None:
        return Corpora(corpora, configured(model))
    if vectors is None or texts is None:
        raise click.UsageError("--vectors and --texts go together")
    if corpora:
        raise click.UsageError("--vectors and --corpus exclude each other")
    return Arrays(vectors, texts, query_vectors)


def configured(model: Path | None) -> Config:
    """The configuration, with the model of this folder as the default one."""
    from retrieval.config import load_config

    config = load_config(None, os.environ)
    if model is None:
        return config
    folder = model.resolve()
    models = msgspec.structs.replace(config.models, folder=str(folder.parent), default=folder.name)
    return msgspec.structs.replace(config, models=models)


@contextlib.contextmanager
def progress_bar(*, hidden: bool) -> Iterator[Any]:
    """A bar by passages written."""
    columns = (TextColumn("passages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=hidden, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def material_of(source: Source) -> dict[str, str]:
    """What a report says of it."""
    settings = source.settings()
    return {"name": source.name, "model": settings.model, "fingerprint": settings.fingerprint}


def publish(
    report: Mapping[str, Any], name: str, out: Path, show: Callable[[Any], None], *, as_json: bool
) -> Path:
    """Write the report to a file of its own in `out`, and print it. Returns the file."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    if as_json:
        print_json(report)
    else:
        show(report)
        console.print(f"Report: {path}")
    return path
