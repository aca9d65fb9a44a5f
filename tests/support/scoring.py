"""The plain way to the best passages by BM25: score every row, sort all of them."""

from __future__ import annotations

import numpy as np

from indexes.base.model import Floats, Rows
from indexes.lexical.bm25 import LexicalPart, WeightedQuery, score_rows


def score_all(part: LexicalPart, query: WeightedQuery) -> Floats:
    """BM25 of every row of the part, float32 [size]; 0 where no term occurs."""
    return score_rows(part, query, np.arange(part.size))


def best_rows(scores: Floats, depth: int) -> Rows:
    """Rows of the `depth` largest positive scores, best first; equal scores in row order."""
    order = np.lexsort((np.arange(len(scores)), -scores))[:depth]
    return order[scores[order] > 0]
