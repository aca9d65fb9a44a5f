"""What `nearline tune` shows beside the settings: the curve as a picture, and fusion weights by judgements.

Weights of hybrid search belong to the configuration, which is the operator's: they are suggested, never written.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import ir_measures
from ir_measures import nDCG

from indexes.errors import InvalidInput
from indexes.model import Progress
from jobs.evaluation.rankings import judged_queries, qrels_of, run_of
from jobs.judgements import Judgement, Query
from retrieval.client import JSON, Client

WEIGHTS = tuple(at / 10 for at in range(11))  # of the dense ranking; the lexical one has the rest
RANKING_DEPTH = 10
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
    """nDCG@10 of weighted fusion for each of WEIGHTS on one half of the judged queries, the best one also on the other.

    Raises InvalidInput where fewer than JUDGED_MIN of the queries have judgements.
    """
    asked = judged_queries(queries, judgements)
    if len(asked) < JUDGED_MIN:
        raise InvalidInput(
            f"{len(asked)} of the queries have judgements; at least {JUDGED_MIN} are needed", param="qrels"
        )
    random.Random(seed).shuffle(asked)
    tuning, validation = asked[::2], asked[1::2]

    async def score(fusion: JSON, half: Sequence[Query]) -> float:
        return await ndcg(client, collection, half, qrels_of(half, judgements), fusion)

    grid = {}
    for at, dense in enumerate(WEIGHTS):
        progress("fusion weights", at, len(WEIGHTS))
        grid[dense] = await score(weighted(dense), tuning)
    best = max(grid, key=lambda dense: grid[dense])
    return {
        "weight_dense": best,
        "weight_lexical": round(1 - best, 1),
        "queries": {"tuning": len(tuning), "validation": len(validation)},
        "ndcg@10": {"tuning": grid[best], "validation": await score(weighted(best), validation)},
        "configured": {
            method: {
                "tuning": await score({"method": method}, tuning),
                "validation": await score({"method": method}, validation),
            }
            for method in ("weighted", "rrf")
        },
        "grid": [{"weight_dense": dense, "ndcg@10": value} for dense, value in grid.items()],
    }


def weighted(dense: float) -> JSON:
    return {"method": "weighted", "weights": {"dense": dense, "lexical": round(1 - dense, 1)}}


async def ndcg(
    client: Client, collection: str, queries: Sequence[Query], qrels: Sequence[Any], fusion: JSON
) -> float:
    """Of hybrid search with this fusion, by document, over these queries."""
    run = []
    for at in range(0, len(queries), BATCH):
        batch = queries[at : at + BATCH]
        searches = [
            {
                "query": query.text,
                "k": RANKING_DEPTH,
                "mode": "hybrid",
                "fusion": fusion,
                "group_by_document": True,
                "cache": False,
            }
            for query in batch
        ]
        for query, answer in zip(batch, await client.search_batch(collection, searches), strict=True):
            run += run_of(query, answer)
    scores = ir_measures.calc_aggregate([nDCG @ RANKING_DEPTH], qrels, run)
    return round(float(scores[nDCG @ RANKING_DEPTH]), 4)


def require_matplotlib() -> None:
    """Raises ClickException saying how to get it, before minutes of measuring are spent."""
    if find_spec("matplotlib") is None:
        raise click.ClickException(
            'a plot needs matplotlib: pip install "nearline[report]"; the table needs nothing'
        )


def plot(tuned: Mapping[str, Any], path: Path) -> None:
    """The curve of a tuning as SVG: recall over microseconds, with the settings chosen and those in use before."""
    from matplotlib.figure import Figure  # the extra `report`

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    curve = tuned["curve"]
    axes.plot(
        [point["us"] for point in curve],
        [point["recall"] for point in curve],
        ".-",
        color="#4878a8",
        label="cheapest settings of each recall (tuning queries)",
    )
    for name, marker, label in (
        ("validation", "o", "chosen (other queries)"),
        ("before", "s", "before (other queries)"),
    ):
        measure = tuned[name]
        axes.errorbar(
            [measure["us"]], [measure["recall"]], [measure["half_width"]], fmt=marker, capsize=3, label=label
        )
    axes.axhline(tuned["recall_target"], color="0.6", linestyle="--", linewidth=1, label="target")
    axes.set_xscale("log")
    axes.set_xlabel("microseconds a query, in the indexes")
    axes.set_ylabel("recall@10")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, format="svg")
