"""Measures recall, the share of true neighbors that a search returns, by query and for cohorts of neighbors.

The truth is exact search over the vectors in the log (`"exact": true`), which takes one scan per batch. Neighbors with
the same score as the k-th best are interchangeable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from indexes.rebuild.shares import share_interval
from jobs.evaluation.asking import Asker
from jobs.evaluation.report import Cohort, CohortKind, Report
from jobs.sources.judgments import TextQuery
from nearline import JSON

BATCH = 50
TIE = 3e-5  # cold vectors are stored as float16, which moves a score by about a third of this


@dataclass(frozen=True, slots=True)
class TrueNeighbor:
    """A true neighbor: its document, its tier, and whether the search returned it or one that ties with it."""

    document: str
    tier: str
    found: bool


Outcome = list[TrueNeighbor]  # of one query; empty if nothing matches


async def outcomes(
    asker: Asker, stage: str, queries: Sequence[TextQuery], condition: JSON | None = None
) -> list[Outcome]:
    """Send each query as users do, then get the truth in batches of one scan each."""
    kind = "dense, filtered" if condition else "dense"
    search = {"k": asker.k, "mode": "dense", "collapse": False} | ({"filter": condition} if condition else {})
    found: list[Outcome] = []
    answers: list[JSON] = []
    async for _, answer in asker.answers(stage, queries, kind=kind, **search):
        answers.append(answer)
        if len(answers) == BATCH or len(found) + len(answers) == len(queries):
            await asker.pace(len(answers))
            batch = queries[len(found) : len(found) + len(answers)]
            exact = [{"query": one.text, "cache": False, "exact": True, **search} for one in batch]
            truths = await asker.client.search_batch(asker.collection, exact)
            found += [compare(truth["hits"], one["hits"]) for truth, one in zip(truths, answers, strict=True)]
            answers.clear()
    return found


def compare(truth: Sequence[JSON], answer: Sequence[JSON]) -> Outcome:
    """The true neighbors of one query, each marked if the answer has it."""
    returned, listed = ({(hit["document_id"], hit["passage"]) for hit in hits} for hits in (answer, truth))
    worst = truth[-1]["scores"]["dense"] if truth else 0.0
    # Returned passages that tie with the last true neighbor but are not listed by the exact search.
    spare = sum(
        (hit["document_id"], hit["passage"]) not in listed and hit["scores"]["dense"] >= worst - TIE
        for hit in answer
    )
    outcome = []
    for hit in truth:
        found = (hit["document_id"], hit["passage"]) in returned
        if not found and spare and hit["scores"]["dense"] <= worst + TIE:
            found, spare = True, spare - 1
        outcome.append(TrueNeighbor(hit["document_id"], hit["tier"], found))
    return outcome


def add_cohort(
    report: Report,
    name: str,
    kind: CohortKind,
    outcomes: Sequence[Outcome],
    nothing: str,
    *,
    detail: str = "",
    share: float | None = None,
) -> None:
    """Add recall over the queries with a neighbor in this cohort; `nothing` is the reason reported if there are
    none."""
    chosen = [[one.found for one in outcome] for outcome in outcomes if outcome]
    if not chosen:
        report.not_measured[name] = nothing
        return
    total = [len(some) for some in chosen]
    recall, low, high = share_interval([sum(some) for some in chosen], total)
    report.cohorts.append(
        Cohort(
            name=name,
            kind=kind,
            value=recall,
            low=low,
            high=high,
            queries=len(chosen),
            neighbours=sum(total),
            detail=detail,
            share=share,
        )
    )
