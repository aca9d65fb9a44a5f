"""Recall: which of the true neighbours a search returns, query by query, and for cohorts of them.

The truth is exact search over the vectors in the log, which the service offers as `"exact": true`: a batch of it is
one scan. Neighbours that score the same as the k-th best are interchangeable: any of them will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from indexes.model import Progress
from jobs.evaluation.intervals import share_interval
from jobs.evaluation.observing import Observations
from jobs.evaluation.report import Cohort, CohortKind
from jobs.judgements import Query
from jobs.pace import Pace
from retrieval.client import JSON, Client

BATCH = 50
TIE = 3e-5  # cold vectors are kept in float16, which moves a score by about a third of this


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A true neighbour: its document, the tier it lives in, and whether the search returned it or its equal."""

    document: str
    tier: str
    found: bool


Outcome = list[Neighbour]  # of one query; empty where nothing matches


@dataclass(frozen=True, slots=True)
class Asker:
    """Everything that measuring one collection takes."""

    client: Client
    collection: str
    k: int
    pace: Pace
    observed: Observations
    progress: Progress

    async def outcomes(
        self, stage: str, queries: Sequence[Query], condition: JSON | None = None
    ) -> list[Outcome]:
        """Ask each query as users do, then the truth in batches of one scan each."""
        outcomes: list[Outcome] = []
        for at in range(0, len(queries), BATCH):
            answers: list[JSON] = []
            for query in queries[at : at + BATCH]:
                self.progress(stage, at + len(answers), len(queries))
                await self.pace()
                answer = await self.client.search(self.collection, **self._search(query, condition))
                self.observed.add("dense" if condition is None else "dense, filtered", answer)
                answers.append(answer)
            await self.pace(len(answers))
            exact = [self._search(query, condition, exact=True) for query in queries[at : at + BATCH]]
            truths = await self.client.search_batch(self.collection, exact)
            outcomes += [
                compare(truth["hits"], answer["hits"]) for truth, answer in zip(truths, answers, strict=True)
            ]
        return outcomes

    def _search(self, query: Query, condition: JSON | None, *, exact: bool = False) -> JSON:
        search: dict[str, Any] = {"query": query.text, "k": self.k, "mode": "dense", "cache": False}
        if condition is not None:
            search["filter"] = condition
        return {**search, "exact": True} if exact else search


def compare(truth: list[JSON], answer: list[JSON]) -> Outcome:
    """The true neighbours of one query, each with whether the answer has it."""
    if not truth:
        return []
    returned = {key_of(hit) for hit in answer}
    worst = truth[-1]["scores"]["dense"]
    # Returned passages that tie with the last place, beyond those the exact search happened to list.
    listed = {key_of(hit) for hit in truth}
    spare = sum(key_of(hit) not in listed and hit["scores"]["dense"] >= worst - TIE for hit in answer)
    outcome = []
    for hit in truth:
        found = key_of(hit) in returned
        if not found and spare and hit["scores"]["dense"] <= worst + TIE:
            found = True
            spare -= 1
        outcome.append(Neighbour(hit["document_id"], hit["tier"], found))
    return outcome


def key_of(hit: JSON) -> tuple[str, int]:
    return hit["document_id"], hit["passage"]


def cohort(
    name: str,
    kind: CohortKind,
    outcomes: Sequence[Outcome],
    *,
    seed: int,
    among: Callable[[Neighbour], bool] = lambda _: True,
    detail: str = "",
    share: float | None = None,
) -> Cohort | None:
    """Recall of the neighbours in `among`; a query that has none of them says nothing. None if no query has any."""
    chosen = [[one for one in outcome if among(one)] for outcome in outcomes]
    found = [sum(one.found for one in some) for some in chosen if some]
    total = [len(some) for some in chosen if some]
    if not total:
        return None
    recall, low, high = share_interval(found, total, seed)
    return Cohort(
        name=name,
        kind=kind,
        recall=recall,
        low=low,
        high=high,
        queries=len(total),
        neighbours=sum(total),
        detail=detail,
        share=share,
    )
