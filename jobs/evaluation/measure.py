"""Runs one evaluation from options to report."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from indexes.base.errors import InvalidInput
from indexes.base.model import TIERS, Progress
from jobs.evaluation import queries as sources
from jobs.evaluation.asking import Asker
from jobs.evaluation.rankings import judged_queries, measure_contexts, measure_rankings
from jobs.evaluation.recall import Outcome, add_cohort, outcomes
from jobs.evaluation.relevance import judged_hits, reliability
from jobs.evaluation.report import Report
from jobs.evaluation.survey import Survey, make_filters, survey
from jobs.ingestion.rate_limiter import RateLimiter
from jobs.sources.judgments import TextQuery, read_judgments
from nearline import JSON, AsyncClient, ServiceError

SELECTIVITIES = {"filter-10": 0.1, "filter-1": 0.01, "filter-0.1": 0.001}
FILTERED_QUERIES = 120  # per selectivity, over all its filters
TENANTS, TENANT_QUERIES = 20, 50
LOGGED_FILTERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """What to measure, and at what `rate` in queries a second. `offline` as in the report."""

    collection: str
    queries: Path | None = None
    query_log: Path | None = None
    qrels: Path | None = None
    sample: int = 1000
    seed: int = 0
    k: int = 10
    rate: float = 50.0
    tenant_key: str | None = None
    no_filters: bool = False
    offline: bool = False


async def evaluate(client: AsyncClient, options: EvaluationOptions, progress: Progress) -> Report:
    """Measure, and return the report without floors and history.

    Raises ServiceError, and InvalidInput for a file that cannot be used.
    """
    started, begun = datetime.now(UTC), time.monotonic()
    asker = Asker(client, options.collection, options.k, progress, RateLimiter(options.rate))
    judgments = read_judgments(options.qrels) if options.qrels else []
    queries = given_queries(options)
    before = await client.collection(options.collection)
    if before["model"] is None:
        raise InvalidInput(
            f"{options.collection!r} has vectors of your own and no model, and queries are texts",
            param="collection",
        )
    documents = await survey(asker, {one.document for one in judgments}, options.sample, options.seed)
    if queries is None:
        ids = [one["id"] for one in documents.sample]
        chosen = random.Random(options.seed).sample(ids, min(options.sample, len(ids)))
        queries = await sources.from_documents(asker, chosen)
    report = Report(
        time=started.isoformat(timespec="milliseconds"),
        collection=options.collection,
        model=before["model"],
        generation=before["generation"],
        seq=before["seq"],
        documents=before["documents"],
        passages=before["passages"],
        source=queries.source,
        asked=queries.digest,
        offline=options.offline,
        queries=len(queries.chosen),
        k=options.k,
        seed=options.seed,
    )
    judged = judged_queries(queries.chosen, judgments)
    add_neighbors(report, await outcomes(asker, "recall", queries.chosen), documents)
    if not options.no_filters:
        await add_made_filters(report, asker, queries.chosen, documents)
        await add_logged_filters(report, asker, queries)
    if options.tenant_key is not None:
        await add_tenants(report, asker, queries.chosen, documents, options.tenant_key)
    if judged:
        report.rankings = await measure_rankings(asker, judged, judgments)
        report.contexts = await measure_contexts(asker, judged, judgments)
        if found := await judged_hits(asker, judged, judgments):
            report.relevance = reliability(found)
        asked = {query.id for query in judged}
        about = {one.document for one in judgments if one.query in asked}
        report.judged, report.judged_missing = len(about), len(about - documents.present)
    after = await client.collection(options.collection)
    report.changed_meanwhile = any(before[key] != after[key] for key in ("seq", "generation"))
    report.cold_skipped = asker.cold_skipped if report.passages["cold"] else 0
    report.latency_ms = asker.latency_ms()
    report.took_s = round(time.monotonic() - begun, 1)
    return report


def given_queries(options: EvaluationOptions) -> sources.Queries | None:
    if options.queries is not None:
        return sources.from_file(options.queries, options.sample, options.seed)
    if options.query_log is not None:
        return sources.from_log(options.query_log, options.sample, options.seed)
    return None


def add_neighbors(report: Report, found: Sequence[Outcome], documents: Survey) -> None:
    """Add recall by a true neighbor's tier and by its age, without further searches."""
    add_cohort(report, "overall", "overall", found, "there are no queries or no passages")
    for tier in TIERS:
        some = [[one for one in outcome if one.tier == tier] for outcome in found]
        add_cohort(report, tier, "tier", some, f"no true neighbor is in the {tier} tier")
    for name, newest, words in (
        ("newest", True, "the newest tenth of the passages"),
        ("older", False, "all but the newest tenth"),
    ):
        some = [[one for one in each if (one.document in documents.newest) is newest] for each in found]
        add_cohort(report, name, "age", some, f"no true neighbor is among {words}", detail=words)


async def add_made_filters(
    report: Report, asker: Asker, queries: Sequence[TextQuery], documents: Survey
) -> None:
    """Add recall under filters of three selectivities, made from the collection's metadata."""
    for name, wanted in SELECTIVITIES.items():
        if documents.passages * wanted < 1:
            report.not_measured[name] = "the collection is too small"
            continue
        made = await make_filters(asker, documents, wanted, report.seed)
        found: list[Outcome] = []
        for at, (_, condition, _) in enumerate(made):
            some = queries[at :: len(made)][: FILTERED_QUERIES // len(made)]
            found += await outcomes(asker, name, some, condition)
        add_cohort(
            report, name, "filter", found,
            f"no metadata has values that about {wanted * 100:g} percent of the passages share",
            detail="; ".join(f"{text} ({share:.2%})" for text, _, share in made),
            share=sum(share for _, _, share in made) / max(len(made), 1),
        )  # fmt: skip


async def add_logged_filters(report: Report, asker: Asker, queries: sources.Queries) -> None:
    """Add recall under the filters that users sent most. A filter that is now refused is named and skipped."""
    found: list[Outcome] = []
    filters = queries.filtered[:LOGGED_FILTERS]
    nothing = "no logged filter matches anything"
    for condition, some in filters:
        try:
            found += await outcomes(asker, "filter-logged", some, condition)
        except ServiceError as error:
            if error.kind != "invalid_input":
                raise
            nothing = f"a logged filter is refused: {error.message}"
            report.not_measured["filter-logged"] = nothing
    if filters:
        words = f"the {len(filters)} filters that users sent most"
        add_cohort(report, "filter-logged", "filter", found, nothing, detail=words)


async def add_tenants(
    report: Report, asker: Asker, queries: Sequence[TextQuery], documents: Survey, key: str
) -> None:
    """Add recall by tenant: one row for each of the most frequent values, which searches only its own passages."""
    tenants = documents.values().get(key)
    if tenants is None:
        report.not_measured["tenant"] = f"no document has the metadata key {key!r}"
        return
    for value, _ in tenants.most_common(TENANTS):
        condition: JSON = {"type": "eq", "key": key, "value": value}
        found = await outcomes(asker, f"{key} = {value}", queries[:TENANT_QUERIES], condition)
        share = await asker.share(condition, documents.passages)
        add_cohort(report, f"tenant={value}", "tenant", found, "no passage matches", share=share)
