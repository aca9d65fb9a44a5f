"""nearline bench"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.commands.options import JSON, errors, print_json

if TYPE_CHECKING:
    from jobs.benchmark.report import Report
    from jobs.benchmark.texts import Material

MANY = click.IntRange(1000)
BUDGET = click.FloatRange(0, 1, min_open=True)
CHECKOUT = click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True)
Decorator = Callable[[Any], Any]


def option(name: str, default: Any, text: str, kind: Any = None, **more: Any) -> Decorator:
    return click.option(name, default=default, help=text, type=kind, show_default=default is not None, **more)


def queries(default: int) -> Decorator:
    return option("--queries", default, "Asked of each engine.", click.IntRange(40))


def common(command: Any) -> Any:
    folder = click.Path(path_type=Path, file_okay=False)
    text = "Folder of the report, and of texts with their vectors for the next run."
    out = option("--out", Path("reports"), text, folder)
    text = (
        "Documents to take texts from, with queries.jsonl.gz beside them if there are any; may be repeated. "
        "[default: docstrings of this Python and its packages]"
    )
    corpora = click.Path(path_type=Path, exists=True)
    return click.option("--corpus", "corpora", multiple=True, type=corpora, help=text)(out(JSON(command)))


DEPTHS = option("--depth", (10, 100), "Results asked for; may be repeated.", click.IntRange(1), multiple=True)


@click.group(
    invoke_without_command=True,
    epilog="Example: nearline bench --against ../other-checkout. The parts alone: nearline bench index --help",
)
@option("--passages", 100_000, "Texts to search.", MANY)
@option("--hot", None, "Passages kept hot. [default: a tenth]", click.IntRange(0))
@queries(1000)
@option("--clients", 16, "Of the load on the service.", click.IntRange(1))
@option("--peers/--no-peers", True, "Measure other libraries too.")
@option(
    "--against", None, "Another checkout of Nearline, whose service takes turns with this one's.", CHECKOUT
)
@common
@click.pass_context
def command(
    context: click.Context, /, corpora: tuple[Path, ...], out: Path, as_json: bool, **settings: Any
) -> None:
    """Measure text to ten passages over HTTP, beside what people build instead. Run nothing else meanwhile."""
    if context.invoked_subcommand is None:
        from jobs.benchmark.service import Plan, run

        plan = Plan(**settings)
        measure(run, plan, corpora, plan.passages, out, as_json=as_json)


@command.command(epilog="Example: nearline bench index --peers --passages 300000")
@option("--passages", 300_000, "Texts to search.", MANY)
@DEPTHS
@queries(1000)
@option("--peers/--no-peers", False, "Measure other libraries too.")
@option("--target", 0.98, "Recall that a peer's setting is chosen by.", click.FloatRange(0, 1))
@common
def index(corpora: tuple[Path, ...], out: Path, as_json: bool, **settings: Any) -> None:
    """Measure dense search by the index library: all hot, all cold, a tenth hot, beside others."""
    from jobs.benchmark.index import Plan, dense

    plan = Plan(**settings)
    measure(dense, plan, corpora, plan.passages, out, as_json=as_json)


@command.command(epilog="Example: nearline bench bm25 --passages 100000 --passages 1000000")
@option("--passages", (100_000,), "Texts to search; may be repeated.", MANY, multiple=True)
@DEPTHS
@queries(1000)
@option("--peers/--no-peers", True, "Measure other libraries too.")
@common
def bm25(
    corpora: tuple[Path, ...], passages: tuple[int, ...], out: Path, as_json: bool, **settings: Any
) -> None:
    """Measure BM25 beside tantivy, bm25s and, where it is small, rank-bm25; every size in the same turns."""
    from jobs.benchmark.index import Plan
    from jobs.benchmark.index import bm25 as run

    plan = Plan(sizes=passages, **settings)
    measure(run, plan, corpora, max(passages), out, as_json=as_json, vectors=False)


@command.command(epilog="Example: nearline bench embed --queries 400")
@queries(1000)
@option("--passages", 2000, "Texts embedded in bulk.", MANY)
@common
def embed(corpora: tuple[Path, ...], out: Path, as_json: bool, **settings: Any) -> None:
    """Measure embedding beside sentence-transformers and a plain fp32 graph: queries, bulk, likeness to fp32."""
    from jobs.benchmark.embed import Plan, run

    plan = Plan(**settings)
    measure(run, plan, corpora, plan.passages, out, as_json=as_json, vectors=False)


@command.command(epilog="Example: nearline bench cold --passages 100000 --zipf 1.5")
@option("--passages", 100_000, "Texts to search.", MANY)
@option("--zipf", 1.1, "Exponent of the topics' popularity: how skewed the load is.", click.FloatRange(0))
@option("--learn", 50_000, "Queries before measuring.", click.IntRange(1))
@queries(10_000)
@option("--budget", 0.005, "Recall that may be lost.", BUDGET)
@common
def cold(corpora: tuple[Path, ...], out: Path, as_json: bool, **settings: Any) -> None:
    """Measure skipping the cold tier within a budget of loss, beside always searching it."""
    from jobs.benchmark.cold import Plan, run

    plan = Plan(**settings)
    measure(run, plan, corpora, plan.passages, out, as_json=as_json)


def measure(
    run: Callable[[Material, Any, Path, Callable[[str], None]], Report],
    plan: Any,
    corpora: tuple[Path, ...],
    texts: int,
    out: Path,
    *,
    as_json: bool,
    vectors: bool = True,
) -> None:
    """Run a bench in a temporary folder on so many texts; write its report and print it."""
    from jobs.benchmark.texts import gather

    material = gather(corpora, texts, out, errors.print, vectors=vectors)
    with tempfile.TemporaryDirectory(prefix="nearline-bench-") as folder:
        report = run(material, plan, Path(folder), errors.print)
    path = report.write(out)
    if as_json:
        print_json(report)
    else:
        click.echo(f"{report.markdown()}\n\nReport: {path}")
