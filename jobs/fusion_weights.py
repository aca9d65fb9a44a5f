"""Suggests weights of hybrid search by judgements. They are the operator's to configure: nothing is written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import ir_measures
from ir_measures import nDCG

from indexes.errors import InvalidInput
from indexes.model import Progress
from jobs.evaluation.rankings import judged_queries, qrels_of, run_of
from jobs.judgements import Judgement, Query
from retrieval.client import JSON, Client

WEIGHTS = tuple(at / 10 for at in range(11))  # of the dense ranking; the lexical one has the rest
DEPTH = 10
BATCH = 50
JUDGED_MIN = 20


async def suggest_weights(
    client: Client,
    collection: str,
    queries: Sequence[Query],
    judgements: Sequence[Judgement],
    progress: Progress,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """nDCG@10 of weighted fusion for each of WEIGHTS on one half of the judged queries; of the best on the other too.

    Raises InvalidInput where fewer than JUDGED_MIN of the queries have judgements.
    """
    asked = judged_queries(queries, judgements)
    if len(asked) < JUDGED_MIN:
        raise InvalidInput(
            f"{len(asked)} of the queries have judgements; at least {JUDGED_MIN} are needed", param="qrels"
        )
    random.Random(seed).shuffle(asked)
    halves = {"tuning": asked[::2], "validation": asked[1::2]}

    async def ndcg(fusion: JSON, name: str) -> float:
        """Of hybrid search by document over one half."""
        run = []
        search = {"k": DEPTH, "mode": "hybrid", "fusion": fusion, "group_by_document": True, "cache": False}
        for at in range(0, len(halves[name]), BATCH):
            batch = halves[name][at : at + BATCH]
            searches = [{"query": query.text, **search} for query in batch]
            for query, answer in zip(batch, await client.search_batch(collection, searches), strict=True):
                run += run_of(query, answer)
        qrels = qrels_of(halves[name], judgements)
        return round(float(ir_measures.calc_aggregate([nDCG @ DEPTH], qrels, run)[nDCG @ DEPTH]), 4)

    grid = {}
    for at, dense in enumerate(WEIGHTS):
        progress("fusion weights", at, len(WEIGHTS))
        grid[dense] = await ndcg(weighted(dense), "tuning")
    best = max(grid, key=lambda dense: grid[dense])
    return {
        "weight_dense": best,
        "weight_lexical": round(1 - best, 1),
        "queries": {name: len(half) for name, half in halves.items()},
        "ndcg@10": {"tuning": grid[best], "validation": await ndcg(weighted(best), "validation")},
        "configured": {
            method: {name: await ndcg({"method": method}, name) for name in halves}
            for method in ("weighted", "rrf")
        },
        "grid": [{"weight_dense": dense, "ndcg@10": value} for dense, value in grid.items()],
    }


def weighted(dense: float) -> JSON:
    return {"method": "weighted", "weights": {"dense": dense, "lexical": round(1 - dense, 1)}}
