"""nearline learn"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from indexes.base.model import Progress
from jobs.commands.connection import ask
from jobs.commands.options import COLLECTION, JSON, PATH, URL, NumberRange
from jobs.commands.output import console, print_json, print_result, stages
from jobs.evaluation.asking import Asker
from jobs.evaluation.learning import (
    CHOICES,
    JUDGED_MIN,
    from_feedback,
    learn,
    learn_relevance,
    learn_reranking,
    usable_queries,
)
from jobs.evaluation.private import open_service
from jobs.evaluation.rankings import judged_queries
from jobs.ingestion.rate_limiter import RateLimiter
from jobs.sources.judgments import Judgment, TextQuery, read_judgments, read_queries
from nearline import AsyncClient
from retrieval.search.relevance import calibrations_of


@click.command(epilog="Example: nearline learn -c docs --queries queries.jsonl --qrels qrels.tsv")
@URL
@COLLECTION
@click.option("--queries", type=PATH, help="JSON lines of id and text. [default: the collection's feedback]")
@click.option("--qrels", type=PATH, help="Judgments of these queries: query, document, grade.")
@click.option("--data", type=PATH, help="Learn in a data directory that no service uses, without one.")
@click.option("--config", type=PATH, help="With --data: the TOML file that `nearline serve` is given.")
@click.option(
    "--sample",
    type=click.IntRange(JUDGED_MIN),
    default=1000,
    show_default=True,
    help="At most so many queries.",
)
@click.option(
    "--rate", type=NumberRange(0.1), default=50.0, show_default=True, help="Searches a second, at most."
)
@click.option(
    "--relevance",
    is_flag=True,
    help="Fit the relevance of hits too. Needs judgments of nearly all that is relevant: the rest counts as not.",
)
@click.option(
    "--rerank", is_flag=True, help="Measure reranking too, and have all searches reranked if that is a gain."
)
@click.option("--dry-run", is_flag=True, help="Only report: change nothing.")
@click.option("--reset", is_flag=True, help="Rank as configured again, instead of learning.")
@JSON
def command(
    url: str,
    collection: str,
    queries: Path | None,
    qrels: Path | None,
    data: Path | None,
    config: Path | None,
    sample: int,
    rate: float,
    relevance: bool,
    rerank: bool,
    dry_run: bool,
    reset: bool,
    as_json: bool,
) -> None:
    """Learn from judgments how hybrid search should rank, and adopt it if the gain is beyond chance."""
    for wrong, words in (
        (bool(queries) != bool(qrels), "--queries and --qrels need each other"),
        (config and not data, "--config needs --data"),
        (reset and (queries or dry_run or data or relevance or rerank), "--reset goes alone"),
    ):
        if wrong:
            raise click.UsageError(words)
    if reset:
        ask(url, lambda client: client.reset_ranking(collection))
        print_result({"ranking": None}, f"{collection} ranks as configured", as_json=as_json)
        return

    async def run_learning(progress: Progress) -> dict[str, Any]:
        async with open_service(url, data, config) as address, AsyncClient(address) as client:
            asker = Asker(client, collection, progress=progress, pace=RateLimiter(rate))
            return await learn_and_adopt(
                asker, queries, qrels, sample, relevance=relevance, rerank=rerank, adopt=not dry_run
            )

    with stages(hidden=as_json) as on_progress:
        report = asyncio.run(run_learning(on_progress))
    if as_json:
        print_json(report)
    else:
        show(report)


async def learn_and_adopt(
    asker: Asker,
    queries: Path | None,
    qrels: Path | None,
    sample: int,
    *,
    relevance: bool,
    rerank: bool,
    adopt: bool,
) -> dict[str, Any]:
    """Learn, adopt, and return the report. Raises ServiceError, and InvalidInput for files that cannot be used."""
    present = (await asker.client.collection(asker.collection))["ranking"]
    given, judgments = await judgments_for(asker, queries, qrels)
    source = "judgments" if queries else "feedback"
    asked = usable_queries(given, judgments, sample)
    report: dict[str, Any] = {"source": source, "queries": len(asked), "before": present, "adopted": False}
    if len(asked) < JUDGED_MIN:
        return {**report, "reason": f"{len(asked)} queries have a relevant document, {JUDGED_MIN} are needed"}
    found = await learn(asker, asked, judgments)
    settings = found.settings()
    report |= {
        "ndcg@10": found.ndcg,
        "ndcg@10_before": found.ndcg_in_force,
        "best": settings,
        "grid": found.grid,
    }
    coefficients = dict(present["coefficients"]) if present else {}
    fitted = False
    if relevance:
        prior = calibrations_of(coefficients)["hybrid"]
        fusion = found.best.fusion if found.helps else None
        likely = await learn_relevance(asker, asked, judgments, prior, fusion)
        fitted = likely is not None and likely.gain_low > 0
        report["relevance"] = {**(asdict(likely) if likely else {}), "adopted": fitted and adopt}
        if likely and fitted:
            coefficients["relevance.hybrid"] = likely.coefficients
    before = bool(present and present["rerank"])
    reranks = before
    if rerank:
        gained = await learn_reranking(asker, asked, judgments, found.best.fusion if found.helps else None)
        reranks = gained["gain_low"] > 0
        report["rerank"] = {**gained, "adopted": reranks and adopt}
    if not found.helps and not fitted and reranks == before:
        return {**report, "reason": "the gain on held-out queries may be chance"}
    if not adopt:
        return {**report, "reason": "a dry run"}
    if not found.helps:
        kept: dict[str, Any] = {**present} if present else {}
        settings = {one: kept[one] for one in settings if kept}
    await put_in_force(asker, settings, coefficients, rerank=reranks)
    if not found.helps:
        others = "relevance or reranking" if rerank else "relevance"
        reason = f"its gain on held-out queries may be chance, that of {others} is beyond it"
        return {**report, "reason": reason if fitted or reranks else "reranking gains nothing any more"}
    return {**report, "adopted": True, "reason": "the gain on held-out queries is beyond chance"}


async def judgments_for(
    asker: Asker, queries: Path | None, qrels: Path | None
) -> tuple[list[TextQuery], list[Judgment]]:
    """Return queries and their judgments: those of the files, else the collection's feedback."""
    if not queries or not qrels:
        return from_feedback(await asker.client.feedback(asker.collection))
    given, judgments = read_queries(queries), read_judgments(qrels)
    judged_queries(given, judgments)
    return given, judgments


async def put_in_force(
    asker: Asker, settings: Mapping[str, Any], coefficients: dict[str, list[float]], *, rerank: bool
) -> None:
    """Have the collection ranked so, or as configured if nothing is to differ from that."""
    if settings.get("method") or coefficients or rerank:
        await asker.client.set_ranking(
            asker.collection, **settings, coefficients=coefficients, rerank=rerank or None
        )
    else:
        await asker.client.reset_ranking(asker.collection)


def show(report: dict[str, Any]) -> None:
    if "best" in report:
        best = report["best"]
        table = Table("ranking", "nDCG@10", title=f"{report['queries']} queries, {report['source']}")
        table.add_row("as it is", f"{report['ndcg@10_before']:.4f}")
        for choice, one in zip(CHOICES, report["grid"], strict=True):
            is_best = (choice.method, choice.weight_dense) == (best["method"], best["weight_dense"])
            table.add_row(describe_ranking(one), f"{one['ndcg@10']:.4f}", style="bold" if is_best else None)
        console.print(table)
        console.print(
            f"{describe_ranking(best)}: gain on held-out queries {best['gain']:+.4f}, "
            f"95 percent from {best['gain_low']:+.4f} to {best['gain_high']:+.4f}"
        )
    if "relevance" in report:
        one = report["relevance"]
        gained = (
            f"gain in log loss on held-out queries {one['gain']:+.4f}, "
            f"95 percent from {one['gain_low']:+.4f} to {one['gain_high']:+.4f}"
            if "gain" in one
            else f"the model reads fewer than {JUDGED_MIN} of the queries"
        )
        console.print(f"relevance: {'adopted' if one['adopted'] else 'unchanged'}; {gained}")
    if "rerank" in report:
        one = report["rerank"]
        console.print(
            f"reranking: {'adopted' if one['adopted'] else 'not adopted'}; nDCG@10 {one['ndcg@10']:.4f}, "
            f"gain {one['gain']:+.4f}, 95 percent from {one['gain_low']:+.4f} to {one['gain_high']:+.4f}"
        )
    console.print(f"ranking: {'adopted' if report['adopted'] else 'unchanged'}; {report['reason']}")


def describe_ranking(one: dict[str, Any]) -> str:
    weight = one["weight_dense"]
    return "by rank" if weight is None else f"dense {weight:g}, lexical {1 - weight:g}"
