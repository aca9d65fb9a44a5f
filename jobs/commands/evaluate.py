"""nearline evaluate"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from indexes.base.durable import replace_unsynced
from indexes.base.errors import NearlineError, message_of
from indexes.base.model import Progress
from jobs.commands.options import COLLECTION, JSON, URL, NumberRange, require_matplotlib
from jobs.commands.output import console, print_json, stages
from jobs.evaluation import textfile
from jobs.evaluation.measure import EvaluationOptions, evaluate
from jobs.evaluation.private import open_service
from jobs.evaluation.report import Report
from jobs.evaluation.sections import show
from jobs.evaluation.verdict import below_floors, find_regressions, keep, load_history, parse_floors
from nearline import AsyncClient, ServiceError, path_of
from retrieval.upkeep.query_log import FILE as QUERY_LOG

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
SHARE = NumberRange(0, 1)


class Measuring(click.Command):
    """A command whose exit code 1 means that a number is too low, and 2 that it could not be measured or written."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.show()
            sys.exit(2)
        except (NearlineError, ServiceError, OSError) as error:
            click.echo(f"nearline: {message_of(error)}", err=True)
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
    help="A data directory that no service uses, instead of --url. No search there has learned to skip the cold tier.",
)
@click.option("--config", type=FILE, help="With --data: the settings to serve it with.")
@click.option(
    "--queries", type=FILE, help="JSON lines of id and text. [default: with --data its log, else passages]"
)
@click.option("--query-log", type=FILE, help="A collection's queries.jsonl. [default with --data: its own]")
@click.option("--qrels", type=FILE, help="Judgments: query, document, grade.")
@click.option(
    "--sample", type=click.IntRange(1), default=1000, show_default=True, help="At most so many queries."
)
@click.option("--seed", default=0, show_default=True, help="Chooses the sample.")
@click.option(
    "-k", type=click.IntRange(1, 100), default=10, show_default=True, help="Neighbors counted for recall."
)
@click.option(
    "--rate", type=NumberRange(0.1), default=50.0, show_default=True, help="Queries a second, at most."
)
@click.option("--tenant-key", help="Metadata key whose values each get a row: the 20 most frequent.")
@click.option("--no-filters", is_flag=True, help="Leave out recall under filters.")
@click.option("--recall-floor", type=SHARE, default=0.95, show_default=True, help="Overall and in each tier.")
@click.option("--floor", "floors", multiple=True, help="Of one cohort, e.g. cold=.97 or filter-1=.9.")
@click.option("--ndcg-floor", type=SHARE, default=0.0, show_default=True, help="For hybrid search.")
@click.option("--history", type=FOLDER, help="Keep the report here, compare with the last.")
@click.option(
    "--regression", type=SHARE, help="With --history: a fall beyond this and beyond chance is exit code 1."
)
@click.option("--out", type=FILE, help="Write the report as JSON.")
@click.option("--html", type=FILE, help="Write it as one HTML file.")
@click.option("--prometheus", type=FILE, help="Write it for node_exporter's textfile collector.")
@click.option("--publish", is_flag=True, help="Send it to the service, whose page then shows it.")
@JSON
def command(
    url: str,
    data: Path | None,
    config: Path | None,
    recall_floor: float,
    floors: tuple[str, ...],
    ndcg_floor: float,
    history: Path | None,
    regression: float | None,
    out: Path | None,
    html: Path | None,
    prometheus: Path | None,
    publish: bool,
    as_json: bool,
    **what: Any,
) -> None:
    """Measure recall, and ranking quality if there are judgments.

    Exit code 1 if a number is below its floor or fell, 2 if it could not be measured or the call is wrong.
    """
    wanted = parse_floors(floors, recall_floor, ndcg_floor)
    check_together(click.get_current_context(), wanted)
    with stages(hidden=as_json) as on_progress:
        options = EvaluationOptions(**what, offline=data is not None)
        report = asyncio.run(run_evaluation(url, data, config, options, on_progress))
    earlier = load_history(history, report) if history else []
    report.floors = wanted
    report.below = below_floors(report)
    if earlier:
        report.compared_with = earlier[-1].time
        report.regressions = find_regressions(earlier[-1], report, regression or 0.0)
    if as_json:
        print_json(report)
    else:
        show(console, report, earlier)
    if history:
        keep(history, report)
    if out:
        replace_unsynced(out, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if html:
        from jobs.evaluation import page  # needs matplotlib, an extra

        replace_unsynced(html, page.render_page(report, earlier).encode())
    if prometheus:
        replace_unsynced(prometheus, textfile.render_gauges(report))
    if publish:
        asyncio.run(send(url, report))
    if report.cohort("overall") is None:
        sys.exit(2)
    sys.exit(1 if report.below or (regression is not None and report.regressions) else 0)


def check_together(context: click.Context, floors: dict[str, float]) -> None:
    """Raise UsageError, before measuring, for options that contradict each other, floors that can never be missed, and
    files that cannot be written."""
    given = SimpleNamespace(**context.params)
    source = context.get_parameter_source("url")
    kinds = {name.partition("=")[0].partition("-")[0] for name in floors}
    for wrong, words in (
        (given.qrels and not given.queries, "--qrels needs --queries"),
        (given.queries and given.query_log, "--queries and --query-log exclude each other"),
        (given.config and not given.data, "--config goes with --data"),
        (given.data and given.publish, "--publish goes with --url"),
        (given.data and source is ParameterSource.COMMANDLINE, "--data and --url exclude each other"),
        (given.regression is not None and not given.history, "--regression needs --history"),
        (given.ndcg_floor and not given.qrels, "--ndcg-floor needs --qrels"),
        ("tenant" in kinds and not given.tenant_key, "a floor for tenants needs --tenant-key"),
        ("filter" in kinds and given.no_filters, "a floor under filters rules out --no-filters"),
    ):
        if wrong:
            raise click.UsageError(words)
    for name in ("out", "html", "prometheus"):
        path = context.params[name]
        if path and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise click.UsageError(f"--{name}: {path.parent} is no folder that can be written to")
    if given.html:
        require_matplotlib()


async def run_evaluation(
    url: str, data: Path | None, config: Path | None, options: EvaluationOptions, progress: Progress
) -> Report:
    """Evaluate, and return the report. Over a data directory, queries come from the collection's own log, if any."""
    async with open_service(url, data, config) as address, AsyncClient(address) as client:
        if data is not None and options.queries is None and options.query_log is None:
            own = data / (await client.collection(options.collection))["name"] / QUERY_LOG
            options = replace(options, query_log=own if own.is_file() else None)
        return await evaluate(client, options, progress)


async def send(url: str, report: Report) -> None:
    async with AsyncClient(url) as client:
        path = path_of(report.collection, "evaluation")
        await client.request("PUT", path, {"report": msgspec.to_builtins(report)})
