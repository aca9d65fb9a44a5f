"""The plain way to the best passages by BM25: score every row, sort all of them."""

from __future__ import annotations

import numpy as np

from indexes.base.model import Floats, Rows
from indexes.lexical.bm25 import LexicalPart, WeightedQuery, saturate


def score_all(part: LexicalPart, query: WeightedQuery) -> Floats:
    """BM25 of every row of the part, float32 [size]; 0 where no term occurs."""
    scores = np.zeros(part.size, np.float32)
    for (_, weight), (rows, frequencies) in zip(query.weights, query.postings_in(part), strict=True):
        scores[rows] += saturate(frequencies, part.lengths[rows], query.formula) * np.float32(weight)
    return scores


def best_rows(scores: Floats, depth: int) -> Rows:
    """Rows of the `depth` largest positive scores, best first; equal scores in row order."""
    order = np.lexsort((np.arange(len(scores)), -scores))[:depth]
    return order[scores[order] > 0]
