"""Measures a running service: how many of the true neighbours it finds, and how well it ranks.

Recall is counted against exact search over the vectors in the log, which the service offers as `"exact": true`. A true
neighbour counts for the tier it lives in. Neighbours that score the same as the k-th best are interchangeable: any
of them will do. Ranking quality (nDCG, reciprocal rank) is measured by document, with `ir_measures`.

Requests go one after the other, so that the service's own users hardly notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ir_measures
import numpy as np
from ir_measures import RR, nDCG

from jobs.judgements import Judgement, Query
from retrieval.client import JSON, Client

BATCH = 50
RANKING_DEPTH = 10
TIE = 3e-5  # cold vectors are kept in float16, which moves a score by about a third of this
SAMPLED_QUERY_WORDS = 12
PAGE = 1000
SAMPLED_DOCUMENTS_MAX = 20_000

RANKINGS: dict[str, dict[str, Any]] = {
    "dense": {"mode": "dense"},
    "lexical": {"mode": "lexical"},
    "hybrid rrf": {"mode": "hybrid", "fusion": {"method": "rrf"}},
    "hybrid weighted": {"mode": "hybrid", "fusion": {"method": "weighted"}},
}

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Found:
    """True neighbours in one tier, and how many of them the service returned."""

    found: int = 0
    total: int = 0

    @property
    def recall(self) -> float | None:
        return self.found / self.total if self.total else None


async def measure_recall(
    client: Client, collection: str, queries: Sequence[Query], k: int, progress: Progress
) -> tuple[dict[str, Found], list[float]]:
    """Found neighbours by tier, and the service's own total milliseconds for each dense search."""
    tiers: dict[str, Found] = {}
    latencies: list[float] = []
    for at in range(0, len(queries), BATCH):
        progress("recall", at, len(queries))
        batch = queries[at : at + BATCH]
        exact = await client.search_batch(collection, [dense(query, k, exact=True) for query in batch])
        for query, truth in zip(batch, exact, strict=True):
            answer = await client.search(collection, **dense(query, k))
            latencies.append(answer["timings_ms"]["total"])
            count(truth["hits"], answer["hits"], tiers)
    return tiers, latencies


def dense(query: Query, k: int, *, exact: bool = False) -> JSON:
    return {"query": query.text, "k": k, "mode": "dense", "exact": exact, "cache": False}


def count(truth: list[JSON], answer: list[JSON], tiers: dict[str, Found]) -> None:
    """Add one query's neighbours to the counts of their tiers."""
    if not truth:
        return
    returned = {key_of(hit) for hit in answer}
    worst = truth[-1]["scores"]["dense"]
    # Returned passages that tie with the last place, beyond those the exact search happened to list.
    listed = {key_of(hit) for hit in truth}
    spare = sum(key_of(hit) not in listed and hit["scores"]["dense"] >= worst - TIE for hit in answer)
    for hit in truth:
        tier = tiers.setdefault(hit["tier"], Found())
        tier.total += 1
        if key_of(hit) in returned:
            tier.found += 1
        elif spare and hit["scores"]["dense"] <= worst + TIE:
            tier.found += 1
            spare -= 1


def key_of(hit: JSON) -> tuple[str, int]:
    return hit["document_id"], hit["passage"]


async def measure_rankings(
    client: Client,
    collection: str,
    queries: Sequence[Query],
    judgements: Sequence[Judgement],
    progress: Progress,
) -> dict[str, dict[str, float]]:
    """nDCG@10 and MRR@10 of each kind of search, over the queries that have judgements."""
    qrels = [ir_measures.Qrel(one.query, one.document, one.grade) for one in judgements]
    judged = {one.query for one in judgements}
    asked = [query for query in queries if query.id in judged]
    results: dict[str, dict[str, float]] = {}
    for name, search in RANKINGS.items():
        run = []
        for at in range(0, len(asked), BATCH):
            progress(name, at, len(asked))
            batch = asked[at : at + BATCH]
            searches = [
                {"query": query.text, "k": RANKING_DEPTH, "group_by_document": True, "cache": False, **search}
                for query in batch
            ]
            for query, answer in zip(batch, await client.search_batch(collection, searches), strict=True):
                # The order of the hits is the ranking; scores may tie, so places stand in for them.
                run += [
                    ir_measures.ScoredDoc(query.id, hit["document_id"], -float(place))
                    for place, hit in enumerate(answer["hits"])
                ]
        asked_ids = {query.id for query in asked}
        scores = ir_measures.calc_aggregate(
            [nDCG @ RANKING_DEPTH, RR @ RANKING_DEPTH],
            [one for one in qrels if one.query_id in asked_ids],
            run,
        )
        results[name] = {"ndcg@10": scores[nDCG @ RANKING_DEPTH], "mrr@10": scores[RR @ RANKING_DEPTH]}
    return results


async def sample_queries(client: Client, collection: str, wanted: int, seed: int) -> list[Query]:
    """Where there are no queries: the first words of documents chosen at random."""
    documents: list[JSON] = []
    cursor = "0"
    while cursor and len(documents) < SAMPLED_DOCUMENTS_MAX:
        path = f"/v1/collections/{collection}/documents?limit={PAGE}&cursor={cursor}"
        page = await client.request("GET", path)
        documents += page["documents"]
        cursor = page["next_cursor"]
    chosen = random.Random(seed).sample(documents, min(wanted, len(documents)))
    return [Query(one["id"], " ".join(one["text"].split()[:SAMPLED_QUERY_WORDS])) for one in chosen]


def percentiles(latencies: list[float]) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(latencies, q)), 3) for q in (50, 95, 99)} if latencies else {}
