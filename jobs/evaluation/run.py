"""One evaluation from beginning to end: what the command asks for, and the report.

Requests go one after the other, at a bounded rate, and past the caches of answers and of query vectors: what is timed
is what a new query costs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexes.model import TIERS, Progress
from jobs.evaluation import sources
from jobs.evaluation.intervals import METHOD
from jobs.evaluation.made_filters import make_filters
from jobs.evaluation.observing import Observations, cache_rates
from jobs.evaluation.rankings import judged_of, measure_contexts, measure_rankings
from jobs.evaluation.recall import Asker, Outcome, cohort
from jobs.evaluation.report import Cohort, CohortKind, NotMeasured, Report
from jobs.evaluation.survey import Survey, survey
from jobs.judgements import Query, read_judgements
from jobs.pace import Pace
from retrieval.client import JSON, Client, ServiceError

SELECTIVITIES = {"filter-10": 0.1, "filter-1": 0.01, "filter-0.1": 0.001}
FILTERED_QUERIES = 120  # of one selectivity, over its filters together
TENANTS, TENANT_QUERIES = 20, 50
LOGGED_FILTERS = 20


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and how gently. `rate` in queries a second; `offline` as in the report."""

    collection: str
    queries: Path | None = None
    query_log: Path | None = None
    qrels: Path | None = None
    sample: int = 1000
    seed: int = 0
    k: int = 10
    rate: float = 50.0
    tenant_key: str | None = None
    filters: bool = True
    offline: bool = False


async def evaluate(client: Client, options: Options, progress: Progress) -> Report:
    """The report, but for floors and history. Raises ServiceError, InvalidInput for a file that cannot be used."""
    started, begun = datetime.now(UTC), time.monotonic()
    name, pace = options.collection, Pace(options.rate)
    judgements = read_judgements(options.qrels) if options.qrels else []
    given = read_given(options)
    before, metrics_before = await client.collection(name), await client.metrics()
    documents = await survey(client, name, 0 if given else options.sample, options.seed, pace, progress)
    queries = given or await sources.from_documents(client, name, documents.sample, pace, progress)
    observed = Observations()
    asker = Asker(client, name, options.k, pace, observed, progress)
    outcomes = await asker.outcomes("recall", queries.chosen)
    cohorts = Cohorts(options.seed)
    of_neighbours(cohorts, outcomes, documents)
    if options.filters:
        await of_filters(cohorts, asker, queries, documents)
    if options.tenant_key is not None:
        await of_tenants(cohorts, asker, queries.chosen, documents, options.tenant_key)
    rankings = await measure_rankings(
        client,
        name,
        queries.chosen,
        judgements,
        progress,
        pace=pace,
        observed=observed,
        seed=options.seed,
    )
    contexts = await measure_contexts(
        client, name, queries.chosen, judgements, progress, pace=pace, seed=options.seed
    )
    after = await client.collection(name)
    return Report(
        time=started.isoformat(timespec="milliseconds"),
        took_s=round(time.monotonic() - begun, 1),
        collection=name,
        model=after["model"],
        generation=after["generation"],
        seq=after["seq"],
        changed_meanwhile=any(before[key] != after[key] for key in ("seq", "generation")),
        documents=after["documents"],
        passages=after["passages"],
        source=queries.source,
        asked=queries.digest,
        offline=options.offline,
        queries=len(queries.chosen),
        k=options.k,
        seed=options.seed,
        interval=METHOD,
        cohorts=cohorts.measured,
        not_measured=cohorts.missing,
        rankings=rankings,
        contexts=contexts,
        judged=judged_of(queries.chosen, judgements, documents.holds) if judgements else None,
        latency_ms=observed.latency_ms(),
        cold=observed.cold(),
        caches=cache_rates(metrics_before, await client.metrics()),
    )


def read_given(options: Options) -> sources.Queries | None:
    if options.queries is not None:
        return sources.from_file(options.queries, options.sample, options.seed)
    if options.query_log is not None:
        return sources.from_log(options.query_log, options.sample, options.seed)
    return None


@dataclass(slots=True)
class Cohorts:
    """Those measured, and those that could not be, with the reason."""

    seed: int
    measured: list[Cohort] = field(default_factory=list)
    missing: list[NotMeasured] = field(default_factory=list)

    def add(
        self, name: str, kind: CohortKind, outcomes: Sequence[Outcome], nothing: str, **more: Any
    ) -> None:
        """`nothing` is the reason given where no query has a neighbour of this cohort."""
        found = cohort(name, kind, outcomes, seed=self.seed, **more)
        if found is None:
            self.missing.append(NotMeasured(name, nothing))
        else:
            self.measured.append(found)


def of_neighbours(cohorts: Cohorts, outcomes: Sequence[Outcome], documents: Survey) -> None:
    """By where a true neighbour lives and how old it is: no further search is needed."""
    cohorts.add("overall", "overall", outcomes, "there are no queries or no passages")
    for tier in TIERS:
        cohorts.add(
            tier, "tier", outcomes, f"no true neighbour is in the {tier} tier",
            among=lambda one, tier=tier: one.tier == tier,
        )  # fmt: skip
    for name, newest, words in (
        ("newest", True, "the newest tenth of the passages"),
        ("older", False, "all but the newest tenth"),
    ):
        cohorts.add(
            name, "age", outcomes, f"no true neighbour is among {words}",
            among=lambda one, newest=newest: documents.is_newest(one.document) is newest, detail=words,
        )  # fmt: skip


async def of_filters(cohorts: Cohorts, asker: Asker, queries: sources.Queries, documents: Survey) -> None:
    """Under made-up filters of three selectivities, and under those that users sent most."""
    for name, wanted in SELECTIVITIES.items():
        if documents.passages * wanted < 1:
            cohorts.missing.append(NotMeasured(name, "the collection is too small"))
            continue
        made = await make_filters(asker.client, asker.collection, documents, wanted, cohorts.seed, asker.pace)
        if not made:
            reason = f"no metadata has values that about {wanted * 100:g} percent of the passages share"
            cohorts.missing.append(NotMeasured(name, reason))
            continue
        outcomes: list[Outcome] = []
        for at, one in enumerate(made):
            some = queries.chosen[at :: len(made)][: FILTERED_QUERIES // len(made)]
            outcomes += await asker.outcomes(name, some, one.condition)
        texts = "; ".join(f"{one.text} ({one.share:.2%})" for one in made)
        share = sum(one.share for one in made) / len(made)
        cohorts.add(name, "filter", outcomes, "no query had a match", detail=texts, share=share)
    if queries.filtered:
        outcomes = []
        for condition, some in queries.filtered[:LOGGED_FILTERS]:
            try:
                outcomes += await asker.outcomes("filter-logged", some, condition)
            except ServiceError as error:
                if error.kind != "invalid_input":
                    raise
                reason = f"a logged filter is refused: {error.message}"
                cohorts.missing.append(NotMeasured("filter-logged", reason))
        words = f"the {min(LOGGED_FILTERS, len(queries.filtered))} filters that users sent most"
        cohorts.add("filter-logged", "filter", outcomes, "no logged filter matches anything", detail=words)


async def of_tenants(
    cohorts: Cohorts, asker: Asker, queries: Sequence[Query], documents: Survey, key: str
) -> None:
    """Each tenant searches its own passages alone: one row for each of the most frequent values."""
    known = documents.keys.get(key)
    if known is None:
        cohorts.missing.append(NotMeasured("tenant", f"no document has the metadata key {key!r}"))
        return
    for value, passages in known.passages.most_common(TENANTS):
        condition: JSON = {"type": "eq", "key": key, "value": value}
        outcomes = await asker.outcomes(f"{key} = {value}", queries[:TENANT_QUERIES], condition)
        share = passages / max(documents.passages, 1)
        cohorts.add(f"tenant={value}", "tenant", outcomes, "no passage matches", share=share)
