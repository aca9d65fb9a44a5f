"""How good vectors are: near to those of fp32, the same in any company, and how well they rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from ir_measures import nDCG

from indexes.model import Floats
from jobs.benchmark.embed.material import Collection
from jobs.export.running import cosines

DEPTH = 10
QUERIES_AT_ONCE = 256


def judge(folder: Path, reference: Path | None, collections: dict[str, Collection]) -> dict[str, Any]:
    """Figures of one engine's vectors, as its child left them in `folder`; `reference` is the same of fp32."""
    together, alone = load(folder / "together.npy"), load(folder / "alone.npy")
    found: dict[str, Any] = {
        "alone_vs_batch_min": float(cosines(alone, together).min()),
        "ndcg@10": {name: ndcg(folder, name, collection) for name, collection in collections.items()},
    }
    if reference is not None:
        near = cosines(together, load(reference / "together.npy"))
        found |= {"cosine_min": float(near.min()), "cosine_mean": float(near.mean())}
    return found


def ndcg(folder: Path, name: str, collection: Collection) -> float:
    """Mean nDCG@10 over the queries, of exact search by inner product."""
    documents, queries = load(folder / f"{name}.documents.npy"), load(folder / f"{name}.queries.npy")
    ids = [document.id for document in collection.documents]
    run = []
    for at in range(0, len(queries), QUERIES_AT_ONCE):
        scores = queries[at : at + QUERIES_AT_ONCE] @ documents.T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
        for query, places, row in zip(collection.queries[at:], best, scores, strict=False):
            run += [ir_measures.ScoredDoc(query.id, ids[place], float(row[place])) for place in places]
    qrels = [ir_measures.Qrel(one.query, one.document, one.grade) for one in collection.judgements]
    measured = ir_measures.calc_aggregate([nDCG @ DEPTH], qrels, run)
    return float(measured[nDCG @ DEPTH])


def load(path: Path) -> Floats:
    vectors: Floats = np.load(path, allow_pickle=False)
    return vectors
