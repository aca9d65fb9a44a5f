"""nearline bench"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from jobs.commands.options import JSON, errors, print_json, require_matplotlib

COUNT = click.IntRange(1)
POSITIVE = click.FloatRange(0, min_open=True)
FOLDER = click.Path(path_type=Path, file_okay=False, resolve_path=True)
FILE = click.Path(path_type=Path, exists=True, resolve_path=True)


def option(name: str, default: Any, text: str, kind: Any = None, **more: Any) -> Callable[[Any], Any]:
    return click.option(name, default=default, help=text, type=kind, show_default=default is not None, **more)


def passages(default: Any, **more: Any) -> Callable[[Any], Any]:
    return option("--passages", default, "Texts to search.", click.IntRange(1000), **more)


QUERIES = option("--queries", 1000, "Asked of each engine.", COUNT)
DEPTH = option("--depth", (10, 100), "Results asked for; may be repeated.", COUNT, multiple=True)
PEERS = option("--peers/--no-peers", True, "Measure other libraries too.")
OUT = option("--out", "reports", "Folder of reports, and of texts embedded before.", FOLDER)
CORPUS = option(
    "--corpus", (), "Documents to take texts from, with queries.jsonl.gz beside them if there are any; repeatable. "
    "[default: docstrings of this Python and its packages]", FILE, multiple=True
)  # fmt: skip


def common(command: Any) -> Any:
    return CORPUS(OUT(JSON(command)))


@click.group(
    invoke_without_command=True,
    epilog="Example: nearline bench --against ../other-checkout. The parts alone: nearline bench index --help",
)
@passages(100_000)
@option("--hot", None, "Passages kept hot. [default: a tenth]", click.IntRange(0))
@QUERIES
@PEERS
@option("--against", None, "Another checkout of Nearline, whose service takes turns with this one's.", FILE)
@common
@click.pass_context
def command(context: click.Context, /, passages: int, hot: int | None, **options: Any) -> None:
    """Measure text to ten passages over HTTP, beside what people build instead. Keep the machine idle otherwise."""
    if context.invoked_subcommand is None:
        from jobs.benchmark.service import run

        measure("service", run, passages, {"hot": passages // 10 if hot is None else hot, **options})


@command.command(epilog="Example: nearline bench index --peers --passages 300000")
@passages(300_000)
@DEPTH
@QUERIES
@option("--peers/--no-peers", False, "Measure other libraries too.")
@option("--target", 0.98, "Recall that a peer's setting is chosen by.", click.FloatRange(0, 1))
@common
def index(passages: int, **options: Any) -> None:
    """Measure dense search by the index library: all cold, a tenth hot, all hot, beside others."""
    from jobs.benchmark.index import dense

    measure("index", dense, passages, options)


@command.command(epilog="Example: nearline bench bm25 --passages 100000 --passages 1000000")
@passages((100_000,), multiple=True)
@DEPTH
@QUERIES
@PEERS
@common
def bm25(passages: tuple[int, ...], **options: Any) -> None:
    """Measure BM25 beside tantivy, bm25s and, where it is small, rank-bm25; several sizes in the same turns."""
    from jobs.benchmark.index import bm25 as run

    measure("bm25", run, max(passages), {"sizes": passages, **options}, vectors=False)


@command.command(epilog="Example: nearline bench embed --queries 400")
@passages(2000)
@QUERIES
@common
def embed(passages: int, **options: Any) -> None:
    """Measure embedding beside sentence-transformers and a plain fp32 graph: queries, bulk, likeness to fp32."""
    from jobs.benchmark.embed import run

    measure("embed", run, passages, options, vectors=False)


@command.command(epilog="Example: nearline bench cold --passages 100000 --zipf 1.5")
@passages(100_000)
@option("--zipf", 1.1, "Exponent of the topics' popularity: how skewed the load is.", click.FloatRange(0))
@option("--learn", 50_000, "Queries before measuring.", COUNT)
@option("--queries", 10_000, "Asked of each engine.", COUNT)
@option("--budget", 0.005, "Recall that may be lost.", click.FloatRange(0, 1, min_open=True))
@common
def cold(passages: int, **options: Any) -> None:
    """Measure skipping the cold tier within a budget of loss, beside always searching it."""
    from jobs.benchmark.index import cold as run

    measure("cold", run, passages, options)


@command.command(epilog="Example: nearline bench load --factor 1 --factor 3 --flood-s 10")
@passages(20_000)
@option("--hot", None, "Passages kept hot. [default: a tenth]", click.IntRange(0))
@option(
    "--factor", (0.5, 0.8, 1, 1.5, 2, 3), "Times the peak to offer; may be repeated.", POSITIVE, multiple=True
)
@option("--rate", (), "Searches a second to offer besides; may be repeated.", POSITIVE, multiple=True)
@option("--seconds", 10, "For each of them, and of normal load after the flood.", click.FloatRange(1))
@option("--flood", 5, "Times the peak to offer last.", POSITIVE)
@option("--flood-s", 60, "Seconds of it.", click.FloatRange(1))
@option("--deadline-ms", 1000, "Later answers do not count; sent with each search.", COUNT)
@option("--writes", 0, "Documents to write a second beside all of it.", click.FloatRange(0))
@option("--seed", 0, "Of the times of arrival.", click.IntRange(0))
@common
def load(passages: int, hot: int | None, factor: Any, rate: Any, **options: Any) -> None:
    """Offer more and more searches at random times, then far too many, then few again; needs the extra `report`."""
    require_matplotlib()
    from jobs.benchmark.load import run
    from jobs.benchmark.load_plot import plot

    options |= {"factors": factor, "rates": rate, "hot": passages // 10 if hot is None else hot}
    measure("load", run, passages, options, in_turns=False, plot=plot)


@command.command(epilog="Example: nearline bench cache --corpus squad-sent/corpus.jsonl.gz --rounds 3")
@passages(13_000)
@option("--questions", 20_000, "Different ones to draw from.", COUNT)
@option("--zipf", 1.0, "Exponent of their popularity.", click.FloatRange(0))
@option("--clients", 32, "Each asks again when it has its answer.", COUNT)
@option("--writes", 10, "Documents written or deleted a second, in the rounds with writes.", POSITIVE)
@option("--requests", 6000, "Searches of each way of running and round.", COUNT)
@option("--alone", 200, "Searches of each kind by one client alone.", COUNT)
@option(
    "--hit-rate",
    0.68,
    "Share of them that was asked before; so much is asked to warm up.",
    click.FloatRange(0, 1),
)
@option("--rounds", 3, "Of all ways of running.", COUNT)
@option(
    "--redis-server", None, "The program to measure Redis with. [default: the one on PATH]",
    click.Path(path_type=str, exists=True, dir_okay=False, resolve_path=True),
)  # fmt: skip
@common
def cache(passages: int, questions: int, redis_server: str | None, **options: Any) -> None:
    """Measure the caches by questions that come again: off, in process and in Redis, with and without writes."""
    from jobs.benchmark.caches import run

    options |= {"redis_server": redis_server or shutil.which("redis-server")}
    measure("cache", run, passages, options, in_turns=False, questions=questions)


@command.command(epilog="Example: nearline bench semantic --corpus squad-sent/corpus.jsonl.gz")
@passages(13_000)
@option("--questions", 20_000, "Different ones to make pairs of.", COUNT)
@option("--each", 400, "Pairs of every kind.", COUNT)
@common
def semantic(passages: int, questions: int, **options: Any) -> None:
    """Measure the semantic cache: paraphrases answered, hard negatives not; needs the extra `report`."""
    require_matplotlib()
    from jobs.benchmark.semantic import run
    from jobs.benchmark.semantic_plot import plot

    measure("semantic", run, passages, options, in_turns=False, plot=plot, questions=questions)


@command.command(epilog="Example: nearline bench ranking --data judged --sets scifact --queries 200")
@option(
    "--data",
    None,
    "Folder of judged sets: corpus.jsonl.gz, queries.jsonl.gz and qrels.tsv each.",
    FILE,
    required=True,
)
@option("--sets", (), "One of them; may be repeated. [default: all]", multiple=True)
@option("--queries", 500, "Asked of each set, or of each language of one.", COUNT)
@option("--hot", 0.1, "Share of the passages kept hot.", click.FloatRange(0, 1))
@option("--model", None, "Model to embed with. [default: the configured one]")
@option("--against", None, "Another model, measured alike; the differences are a table of their own.")
@option("--together/--apart", False, "All languages of a set in one collection, or each in its own.")
@OUT
@JSON
def ranking(data: Path, out: Path, as_json: bool, **options: Any) -> None:
    """Measure nDCG@10 of every way of searching on judged collections. Collections stay in --out for the next run."""
    from jobs.benchmark.ranking import run

    publish("ranking", options, run(data, out, errors.print, **options), out, as_json)


def measure(
    name: str,
    run: Any,
    texts: int,
    options: dict[str, Any],
    *,
    vectors: bool = True,
    in_turns: bool = True,
    plot: Any = None,
    **gathered: Any,
) -> None:
    """Run a bench on `texts` texts in a temporary folder; write its report and print it.

    `in_turns`: its engines run as `jobs.benchmark.turns` has them. `gathered` says more of the texts.
    """
    from jobs.benchmark.report import TURNS
    from jobs.benchmark.texts import gather

    corpora, out, as_json = (options.pop(name) for name in ("corpus", "out", "as_json"))
    material = gather(corpora, texts, out, errors.print, vectors=vectors, **gathered)
    with tempfile.TemporaryDirectory(prefix="nearline-bench-") as folder:
        tables, notes = run(material, Path(folder), errors.print, **options)
    notes = [*TURNS, *notes] if in_turns else notes
    publish(name, {"passages": texts, **options}, (tables, notes), out, as_json, plot)


def publish(
    name: str, settings: dict[str, Any], found: Any, out: Path, as_json: bool, plot: Any = None
) -> None:
    """Write the report of a bench's tables and notes, with its plot if it has one, and print it."""
    from jobs.benchmark.report import report

    made = report(name, settings, *found)
    path = made.write(out)
    if plot:
        plot(made, path.with_suffix(".svg"))
    if as_json:
        print_json(made)
    else:
        click.echo(f"{made.markdown()}\n\nReport: {path}")
