"""Ranking quality by relevance judgements: nDCG@10, reciprocal rank and recall@100 of each kind of search, by document;
and how often a context for a prompt shows a relevant document.

The measures are those of `ir_measures`. The first two are taken from searches for 10, as users send them; only recall
at 100 asks for 100, because how deep one asks may decide which tiers are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ir_measures
from ir_measures import RR, R, nDCG

from indexes.errors import InvalidInput
from indexes.model import Progress
from jobs.evaluation.intervals import mean_interval
from jobs.evaluation.observing import Observations
from jobs.evaluation.report import ContextScore, Judged, RankingScore
from jobs.judgements import Judgement, Query
from jobs.pace import Pace
from retrieval.client import JSON, Client

DEPTH, DEEP = 10, 100
CONTEXT_BUDGETS = (1000, 2000)  # tokens

SEARCHES: dict[str, dict[str, Any]] = {
    "dense": {"mode": "dense"},
    "lexical": {"mode": "lexical"},
    "hybrid rrf": {"mode": "hybrid", "fusion": {"method": "rrf"}},
    "hybrid weighted": {"mode": "hybrid", "fusion": {"method": "weighted"}},
}
MEASURES = {
    "ndcg@10": (nDCG @ DEPTH, DEPTH),
    "mrr@10": (RR @ DEPTH, DEPTH),
    "recall@100": (R @ DEEP, DEEP),
}

Rankings = dict[str, dict[str, RankingScore]]


async def measure_rankings(
    client: Client,
    collection: str,
    queries: Sequence[Query],
    judgements: Sequence[Judgement],
    progress: Progress,
    *,
    pace: Pace | None = None,
    observed: Observations | None = None,
    seed: int = 0,
) -> Rankings:
    """Each score of each kind of search, over the queries that have judgements."""
    asked = judged_queries(queries, judgements)
    if judgements and not asked:
        raise InvalidInput("none of the queries has a judgement", param="qrels")
    qrels = qrels_of(asked, judgements)
    pace, observed = pace or Pace(0), observed or Observations()
    results: Rankings = {}
    for name, search in SEARCHES.items() if asked else ():
        scores: dict[str, RankingScore] = {}
        for depth in (DEPTH, DEEP):
            run = []
            for at, query in enumerate(asked):
                progress(f"{name}, {depth} deep", at, len(asked))
                await pace()
                full = {"query": query.text, "k": depth, "group_by_document": True, "cache": False, **search}
                answer = await client.search(collection, **full)
                if depth == DEPTH:
                    observed.add(f"by document, {name}", answer)
                run += run_of(query, answer)
            for label, (measure, deep) in MEASURES.items():
                if deep == depth:
                    by_query = {
                        one.query_id: one.value for one in ir_measures.iter_calc([measure], qrels, run)
                    }
                    # A search that found nothing has no lines in the run, and scores 0.
                    values = [by_query.get(query.id, 0.0) for query in asked]
                    scores[label] = RankingScore(*mean_interval(values, seed))
        results[name] = scores
    return results


async def measure_contexts(
    client: Client,
    collection: str,
    queries: Sequence[Query],
    judgements: Sequence[Judgement],
    progress: Progress,
    *,
    pace: Pace,
    seed: int,
) -> list[ContextScore]:
    """Coverage of each budget, with the service's own settings, over the queries that have judgements."""
    asked = judged_queries(queries, judgements)
    relevant: dict[str, set[str]] = {}
    for one in judgements:
        if one.grade > 0:
            relevant.setdefault(one.query, set()).add(one.document)
    scores = []
    for budget in CONTEXT_BUDGETS if asked else ():
        found, documents, tokens = [], 0, 0
        for at, query in enumerate(asked):
            progress(f"contexts of {budget} tokens", at, len(asked))
            await pace()
            built = await client.context(collection, query=query.text, token_budget=budget, cache=False)
            shown = {citation["document_id"] for citation in built["citations"]}
            found.append(not shown.isdisjoint(relevant.get(query.id, ())))
            documents, tokens = documents + len(shown), tokens + built["tokens"]
        coverage, low, high = mean_interval(found, seed)
        scores.append(
            ContextScore(
                budget=budget,
                coverage=coverage,
                low=low,
                high=high,
                documents=documents / len(asked),
                tokens=tokens / len(asked),
            )
        )
    return scores


def judged_queries(queries: Sequence[Query], judgements: Sequence[Judgement]) -> list[Query]:
    """Those that have judgements."""
    judged = {one.query for one in judgements}
    return [query for query in queries if query.id in judged]


def qrels_of(queries: Sequence[Query], judgements: Sequence[Judgement]) -> list[Any]:
    """The judgements of these queries, as ir-measures takes them."""
    ids = {query.id for query in queries}
    return [ir_measures.Qrel(one.query, one.document, one.grade) for one in judgements if one.query in ids]


def run_of(query: Query, answer: JSON) -> list[Any]:
    """What a search found, as ir-measures takes it: the order of the hits is the ranking, as scores may tie."""
    return [
        ir_measures.ScoredDoc(query.id, hit["document_id"], -float(place))
        for place, hit in enumerate(answer["hits"])
    ]


def judged_of(
    queries: Sequence[Query], judgements: Sequence[Judgement], holds: Callable[[str], bool]
) -> Judged:
    """What the judgements of these queries speak of, and how much of it is in the collection."""
    asked = {query.id for query in queries}
    documents: dict[str, bool] = {}
    relevant: dict[str, bool] = {}
    for one in judgements:
        if one.query not in asked:
            continue
        there = documents.setdefault(one.document, holds(one.document))
        relevant[one.query] = relevant.get(one.query, False) or (there and one.grade > 0)
    missing = sum(not there for there in documents.values())
    return Judged(len(documents), missing, len(relevant), sum(not any_ for any_ in relevant.values()))
