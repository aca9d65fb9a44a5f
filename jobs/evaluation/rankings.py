"""Measures ranking quality by relevance judgments of documents, with `ir_measures`.

nDCG@10 and reciprocal rank come from searches for 10 hits, as users send them. Only recall@100 searches for 100,
because the depth may decide which tiers are searched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import ir_measures
from ir_measures import RR, R, nDCG

from indexes.base.errors import InvalidInput
from jobs.evaluation.asking import Asker
from jobs.evaluation.report import Score
from jobs.sources.judgments import Judgment, TextQuery
from nearline import JSON

CONTEXT_BUDGETS = (1000, 2000)  # tokens
SEARCHES: dict[str, JSON] = {
    "dense": {"mode": "dense"},
    "lexical": {"mode": "lexical"},
    "hybrid rrf": {"mode": "hybrid", "fusion": {"method": "rrf"}},
    "hybrid weighted": {"mode": "hybrid", "fusion": {"method": "weighted"}},
}
NDCG = {"ndcg@10": nDCG @ 10}


async def measure_rankings(
    asker: Asker, queries: Sequence[TextQuery], judgments: Sequence[Judgment]
) -> dict[str, dict[str, Score]]:
    """Measure every score of every kind of search, over the queries with judgments."""
    rankings: dict[str, dict[str, Score]] = {}
    for name, search in SEARCHES.items():
        kind, shallow, deep = f"by document, {name}", NDCG | {"mrr@10": RR @ 10}, {"recall@100": R @ 100}
        values = await score_queries(asker, kind, queries, judgments, shallow, k=10, kind=kind, **search)
        values |= await score_queries(asker, f"{kind}, deep", queries, judgments, deep, k=100, **search)
        rankings[name] = {label: Score.mean(some) for label, some in values.items()}
    return rankings


async def score_queries(
    asker: Asker,
    stage: str,
    queries: Sequence[TextQuery],
    judgments: Sequence[Judgment],
    measures: dict[str, Any],
    **search: Any,
) -> dict[str, list[float]]:
    """The values of each measure by query. A search without hits scores 0."""
    run = []
    async for query, answer in asker.answers(stage, queries, group_by_document=True, **search):
        # Rank by position, because scores may tie.
        for place, hit in enumerate(answer["hits"]):
            run.append(ir_measures.ScoredDoc(query.id, hit["document_id"], -float(place)))
    ids = {query.id for query in queries}
    qrels = [ir_measures.Qrel(one.query, one.document, one.grade) for one in judgments if one.query in ids]
    found: dict[Any, dict[str, float]] = defaultdict(dict)
    for one in ir_measures.iter_calc(measures.values(), qrels, run):
        found[one.measure][one.query_id] = one.value
    return {
        label: [found[measure].get(query.id, 0.0) for query in queries] for label, measure in measures.items()
    }


async def measure_contexts(
    asker: Asker, queries: Sequence[TextQuery], judgments: Sequence[Judgment]
) -> dict[str, Score]:
    """The share of queries whose context shows a relevant document, by token budget."""
    relevant = {(one.query, one.document) for one in judgments if one.grade > 0}
    contexts = {}
    for budget in CONTEXT_BUDGETS:
        shown = []
        for at, query in enumerate(queries):
            asker.progress(f"contexts of {budget} tokens", at, len(queries))
            await asker.pace()
            built = await asker.client.context(
                asker.collection, query=query.text, token_budget=budget, cache=False
            )
            shown.append(any((query.id, one["document_id"]) in relevant for one in built["citations"]))
        contexts[str(budget)] = Score.mean(shown)
    return contexts


def judged_queries(queries: Sequence[TextQuery], judgments: Sequence[Judgment]) -> list[TextQuery]:
    """The queries for which a document is judged relevant, with a grade above 0. Raises InvalidInput if there are
    judgments but none are such, or none are for these queries."""
    judged = {one.query for one in judgments if one.grade > 0}
    if judgments and not judged:
        raise InvalidInput("no judgment has a grade above 0, which a relevant document has", param="qrels")
    asked = [query for query in queries if query.id in judged]
    if judged and not asked:
        raise InvalidInput(
            f"none of the {len(queries)} queries asked (see --sample) has a judgment with a grade above 0",
            param="qrels",
        )
    return asked
