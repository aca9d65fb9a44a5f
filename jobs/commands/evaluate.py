"""nearline evaluate"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from indexes.durable import replace_unsynced
from indexes.errors import NearlineError
from indexes.model import Progress as OnProgress
from jobs.commands.options import (
    COLLECTION,
    JSON,
    URL,
    console,
    print_json,
    require_matplotlib,
    stages,
)
from jobs.evaluation import history, textfile
from jobs.evaluation.floors import became_worse, below_floors, parse_floors
from jobs.evaluation.private import private_config, private_service
from jobs.evaluation.report import Floors, Report
from jobs.evaluation.run import Options, evaluate
from jobs.evaluation.table import show
from retrieval.client import Client, ServiceError
from retrieval.query_log import FILE as QUERY_LOG

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
SHARE = click.FloatRange(0, 1)


class Measuring(click.Command):
    """Exit code 1 says that a number is too low; whatever kept it from being measured, or written, is 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.show()
            sys.exit(2)
        except (NearlineError, ServiceError, OSError) as error:
            click.echo(f"nearline: {error}", err=True)
            sys.exit(2)


@click.command(
    cls=Measuring,
    epilog="Example: nearline evaluate -c docs --queries queries.jsonl --qrels qrels.tsv --recall-floor 0.98",
)
@URL
@COLLECTION
@click.option(
    "--data",
    type=FOLDER,
    help="A data directory that no service uses, instead of --url. There no search has learned to leave the cold "
    "tier out.",
)
@click.option("--config", type=FILE, help="With --data: the settings to serve it with.")
@click.option(
    "--queries", type=FILE, help="JSON lines of id and text. [default: with --data its log, else passages]"
)
@click.option("--query-log", type=FILE, help="A collection's queries.jsonl. [default with --data: its own]")
@click.option("--qrels", type=FILE, help="Judgements: query, document, grade.")
@click.option(
    "--sample", type=click.IntRange(1), default=1000, show_default=True, help="At most so many queries."
)
@click.option("--seed", default=0, show_default=True, help="Chooses the sample.")
@click.option(
    "-k", type=click.IntRange(1, 100), default=10, show_default=True, help="Neighbours counted for recall."
)
@click.option(
    "--rate", type=click.FloatRange(0.1), default=50.0, show_default=True, help="Queries a second, at most."
)
@click.option("--tenant-key", help="Metadata key whose values each get a row: the 20 most frequent.")
@click.option("--no-filters", is_flag=True, help="Leave out recall under filters.")
@click.option("--recall-floor", type=SHARE, default=0.95, show_default=True, help="Overall and in each tier.")
@click.option("--floor", "floors", multiple=True, help="Of one cohort, e.g. cold=.97 or filter-1=.9.")
@click.option("--ndcg-floor", type=SHARE, default=0.0, show_default=True, help="For hybrid search.")
@click.option("--history", "history_folder", type=FOLDER, help="Keep the report here, compare with the last.")
@click.option(
    "--regression", type=SHARE, help="With --history: a fall beyond this and beyond chance is exit code 1."
)
@click.option("--out", type=FILE, help="Write the report as JSON.")
@click.option("--html", type=FILE, help="Write it as one HTML file.")
@click.option("--prometheus", type=FILE, help="Write it for node_exporter's textfile collector.")
@JSON
def command(
    url: str,
    collection: str,
    data: Path | None,
    config: Path | None,
    queries: Path | None,
    query_log: Path | None,
    qrels: Path | None,
    sample: int,
    seed: int,
    k: int,
    rate: float,
    tenant_key: str | None,
    no_filters: bool,
    recall_floor: float,
    floors: tuple[str, ...],
    ndcg_floor: float,
    history_folder: Path | None,
    regression: float | None,
    out: Path | None,
    html: Path | None,
    prometheus: Path | None,
    as_json: bool,
) -> None:
    """Measure recall, and ranking quality where there are judgements.

    Exit code 1 below a floor, or when worse; 2 where that could not be measured, or the call is wrong.
    """
    wanted = Floors(recall_floor, ndcg_floor, parse_floors(floors))
    check_together(click.get_current_context(), wanted)
    options = Options(
        collection,
        queries,
        query_log,
        qrels,
        sample,
        seed,
        k,
        rate,
        tenant_key,
        filters=not no_filters,
        offline=data is not None,
    )
    with stages(hidden=as_json) as on_progress:
        report = asyncio.run(measured(url, data, config, options, on_progress))
    earlier = history.load(history_folder, report) if history_folder else []
    judge(report, wanted, earlier, regression)
    if as_json:
        print_json(report)
    else:
        show(console, report, earlier)
    written(report, earlier, history_folder, out, html, prometheus)
    sys.exit(exit_code(report, regression))


def judge(report: Report, floors: Floors, earlier: list[Report], regression: float | None) -> None:
    """Write into the report what of it is too low, and what fell since the last of the earlier ones."""
    report.floors, report.below = floors, below_floors(report, floors)
    if earlier:
        report.compared_with = earlier[-1].time
        report.regressions = became_worse(earlier[-1], report, regression or 0.0)


def exit_code(report: Report, regression: float | None) -> int:
    if report.cohort("overall") is None:
        return 2  # nothing was measured
    return 1 if report.below or (regression is not None and report.regressions) else 0


def check_together(context: click.Context, floors: Floors) -> None:
    """Raises UsageError, before anything is measured, for options that make no sense together, floors that nothing
    could miss, and files that cannot be written."""
    given = SimpleNamespace(**context.params)
    source = context.get_parameter_source("url")
    for wrong, words in (
        (given.qrels and not given.queries, "--qrels needs --queries"),
        (given.queries and given.query_log, "--queries and --query-log exclude each other"),
        (given.config and not given.data, "--config goes with --data"),
        (given.data and source is ParameterSource.COMMANDLINE, "--data and --url exclude each other"),
        (given.regression is not None and not given.history_folder, "--regression needs --history"),
        (floors.ndcg and not given.qrels, "--ndcg-floor needs --qrels"),
        (floor_for("tenant", floors) and not given.tenant_key, "a floor for tenants needs --tenant-key"),
        (floor_for("filter", floors) and given.no_filters, "a floor under filters rules out --no-filters"),
    ):
        if wrong:
            raise click.UsageError(words)
    for name in ("out", "html", "prometheus"):
        path = context.params[name]
        if path and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise click.UsageError(f"--{name}: {path.parent} is no folder that can be written to")
    if given.html:
        require_matplotlib()


def floor_for(kind: str, floors: Floors) -> bool:
    return any(name.startswith(kind) for name in floors.cohorts)


async def measured(
    url: str, data: Path | None, config: Path | None, options: Options, progress: OnProgress
) -> Report:
    async with address(url, data, config) as served, Client(served) as client:
        if data is not None and options.queries is None and options.query_log is None:
            options = replace(options, query_log=await own_log(client, data, options.collection))
        return await evaluate(client, options, progress)


@contextlib.asynccontextmanager
async def address(url: str, data: Path | None, config: Path | None) -> AsyncIterator[str]:
    if data is None:
        yield url
        return
    async with private_service(data, private_config(config, os.environ)) as served:
        yield served


async def own_log(client: Client, data: Path, collection: str) -> Path | None:
    """The log of queries that a service kept of this collection or alias, if it kept one."""
    path = data / (await client.collection(collection))["name"] / QUERY_LOG
    return path if path.is_file() else None


def written(
    report: Report,
    earlier: list[Report],
    history_folder: Path | None,
    out: Path | None,
    html: Path | None,
    prometheus: Path | None,
) -> None:
    """Everything that was asked for, each file whole or not at all."""
    if history_folder is not None:
        history.keep(history_folder, report)
    if out is not None:
        replace_unsynced(out, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if html is not None:
        from jobs.evaluation import page

        page.write(html, report, earlier)
    if prometheus is not None:
        textfile.write(prometheus, report)
