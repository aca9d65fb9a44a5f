"""nearline bench"""

from __future__ import annotations

import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from jobs.commands.options import JSON, NumberRange, require_matplotlib
from jobs.commands.output import errors, print_json

COUNT = click.IntRange(1)
POSITIVE = NumberRange(0, min_open=True)
SHARE = NumberRange(0, 1)
FOLDER = click.Path(path_type=Path, file_okay=False, resolve_path=True)
FILE = click.Path(path_type=Path, exists=True, resolve_path=True)
BUCKET = click.Path(exists=True, file_okay=False)
PROGRAM = click.Path(exists=True, dir_okay=False, resolve_path=True)


def option(name: str, default: Any, text: str, kind: Any = None, **more: Any) -> click.Option:
    shown = default is not None and default != ()
    return click.Option([name], default=default, help=text, type=kind, show_default=shown, **more)


def passages(default: int, least: int = 100) -> click.Option:
    return option("--passages", default, "Texts to search.", click.IntRange(least))


def queries(default: int) -> click.Option:
    return option("--queries", default, "Asked of each engine.", COUNT)


def peers(default: bool) -> click.Option:
    return option("--peers/--no-peers", default, "Measure other libraries too.")


SIZES = click.Option(
    ["--passages", "sizes"], default=(100_000,), type=click.IntRange(1000), multiple=True, show_default=True,
    help="Texts to search; may be repeated.",
)  # fmt: skip
DEPTH = option("--depth", (10, 100), "Results asked for; may be repeated.", COUNT, multiple=True)
QUESTIONS = option("--questions", 20_000, "Different ones.", COUNT)
OUT = option("--out", "reports", "Folder of reports, and of texts embedded before.", FOLDER)
CORPUS = option(
    "--corpus", (), "Documents to take texts from, with queries.jsonl.gz beside them if there are any; repeatable. "
    "[default: docstrings of this Python and its packages]", FILE, multiple=True
)  # fmt: skip
AGAINST = option(
    "--against", None, "Another checkout of Nearline, whose service takes turns with this one's.", FILE
)


def measure(
    name: str, function: str, *, corpus: tuple[Path, ...], out: Path, as_json: bool,
    vectors: bool = True, plots: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Run a function of `jobs.benchmark` on the requested number of texts in a temporary folder, and report its
    results.

    `vectors`: it needs the texts' vectors; `plots`: it draws a plot."""
    if plots:
        require_matplotlib()
    from jobs.benchmark.texts import gather

    module, _, run = function.partition(":")
    settings = {**options}
    texts = options.pop("passages", 0) or max(options["sizes"])
    gathered = {"questions": options.pop("questions")} if "questions" in options else {}
    material = gather(corpus, texts, out, errors.print, vectors=vectors, **gathered)
    with tempfile.TemporaryDirectory(prefix="nearline-bench-") as folder:
        bench = getattr(import_module(f"jobs.benchmark.{module}"), run)
        found = bench(material, Path(folder), errors.print, **options)
    publish(name, settings, found, out, as_json)


def publish(name: str, settings: dict[str, Any], found: Any, out: Path, as_json: bool) -> None:
    """Write and print a benchmark's report."""
    from jobs.benchmark.report import report

    made = report(name, settings, found)
    path = made.write(out, found.plot)
    if as_json:
        print_json(made)
    else:
        click.echo(f"{made.markdown()}\n\nReport: {path}")


@click.group(
    invoke_without_command=True,
    params=[passages(100_000), queries(1000), peers(True), AGAINST, CORPUS, OUT],
    epilog="Example: nearline bench --against ../other-checkout. The parts alone: nearline bench index --help",
)
@JSON
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Measure text to ten passages over HTTP, compared with alternatives. Keep the machine idle otherwise."""
    if context.invoked_subcommand is None:
        measure("service", "service:run", **options)


def add(name: str, function: str, text: str, *options: click.Option, example: str, **kinds: Any) -> None:
    """Add a command that measures "module:function" of `jobs.benchmark`; `kinds` go to `measure`."""
    params: list[click.Parameter] = [*options, CORPUS, OUT]
    example = f"Example: nearline bench {name} {example}"
    run = partial(measure, name, function, **kinds)
    command.add_command(JSON(click.Command(name, callback=run, params=params, help=text, epilog=example)))


add(
    "index", "index:dense",
    "Measure dense search by the index library: all cold, a tenth hot, all hot, beside others.",
    passages(300_000), DEPTH, queries(1000), peers(False),
    example="--peers --passages 300000",
)  # fmt: skip
add(
    "bm25", "index:bm25",
    "Measure BM25 beside tantivy, bm25s and, where it is small, rank-bm25; several sizes in the same turns.",
    SIZES, DEPTH, queries(1000), peers(True),
    example="--passages 100000 --passages 1000000", vectors=False,
)  # fmt: skip
add(
    "scale", "index:scale",
    "Measure dense search by the index library at several sizes in the same turns.",
    SIZES, DEPTH, queries(1000),
    example="--passages 100000 --passages 1000000",
)  # fmt: skip
add(
    "embed", "embed:run",
    "Measure embedding beside sentence-transformers and a plain fp32 graph: queries, bulk, likeness to fp32.",
    passages(2000), queries(1000),
    example="--queries 400", vectors=False,
)  # fmt: skip
add(
    "cold", "index:cold", "Measure skipping the cold tier within a budget of loss, beside always searching it.",
    passages(100_000, least=1000), queries(10_000),
    option("--zipf", 1.1, "Exponent of the topics' popularity: how skewed the load is.", NumberRange(0)),
    option("--learn", 50_000, "Queries before measuring.", COUNT),
    example="--passages 100000 --zipf 1.5",
)  # fmt: skip
add(
    "load", "load:run",
    "Offer more and more searches at random times, then far too many, then few again; needs the extra `report`.",
    passages(20_000),
    option("--factor", (0.5, 0.8, 1, 1.5, 2, 3), "Times the peak to offer; may be repeated.", POSITIVE, multiple=True),
    option("--rate", (), "Searches a second to offer besides; may be repeated.", POSITIVE, multiple=True),
    option("--seconds", 10, "For each of them, and of normal load after the flood.", NumberRange(1)),
    option("--flood", 5, "Times the peak to offer last.", POSITIVE),
    option("--flood-s", 60, "Seconds of it.", NumberRange(1)),
    option("--writes", 0, "Documents to write a second beside all of it.", NumberRange(0)),
    example="--factor 1 --factor 3 --flood-s 10", plots=True,
)  # fmt: skip
add(
    "store", "stores:run",
    "Measure a service with a copy in object storage beside one without, a replica, and a new machine.",
    passages(20_000),
    option("--rate", 500, "Documents to write a second.", POSITIVE),
    option("--seconds", 20, "Of each service and round.", NumberRange(1)),
    option("--rounds", 8, "Of both services; of 20 s each, eight are 4,000 searches a side.", COUNT),
    option("--bucket", None, "Folder for the store; one in memory shares no disk. [default: beside the data]", BUCKET),
    example="--passages 100000 --bucket /dev/shm",
)  # fmt: skip
add(
    "shards", "sharded:run",
    "Measure a collection in shards beside the same one in one piece, on the same cores.",
    passages(20_000), queries(1000),
    option("--shards", 4, "Into which the texts are divided.", COUNT),
    option("--services", None, "Among which the shards are divided. [default: one for each shard]", COUNT),
    example="--passages 100000 --shards 4 --services 1",
)  # fmt: skip
add(
    "cache", "caches:run",
    "Measure the caches by questions that come again: off, in process and in Redis, with and without writes.",
    passages(13_000, least=1000), QUESTIONS,
    option("--clients", 32, "Each asks again when it has its answer.", COUNT),
    option("--requests", 6000, "Searches of each way of running and round.", COUNT),
    option("--alone", 200, "Searches of each kind by one client alone.", COUNT),
    option("--hit-rate", 0.68, "Share of them that was asked before; so much is asked to warm up.", SHARE),
    option("--rounds", 3, "Of all ways of running.", COUNT),
    option("--redis-server", None, "The program to measure Redis with. [default: the one on PATH]", PROGRAM),
    example="--corpus squad-sent/corpus.jsonl.gz --rounds 3",
)  # fmt: skip


@command.command(
    epilog="Example: nearline bench ranking --data judged --sets scifact --queries 200",
    params=[
        option("--data", None, "Folder of judged sets: corpus.jsonl.gz, queries.jsonl.gz and qrels.tsv each.", FILE,
               required=True),
        option("--sets", (), "One of them; may be repeated. [default: all]", multiple=True),
        option("--queries", 500, "Asked of each set, or of each language of one.", COUNT),
        option("--against", None, "Another model, measured alike; the differences are a table of their own."),
        option("--together/--apart", False, "All languages of a set in one collection, or each in its own."),
        OUT,
    ],
)  # fmt: skip
@JSON
def ranking(data: Path, out: Path, as_json: bool, **options: Any) -> None:
    """Measure nDCG@10 of every way of searching on judged collections. They stay in --out for the next run."""
    from jobs.benchmark.ranking import run

    publish("ranking", options, run(data, out, errors.print, **options), out, as_json)
