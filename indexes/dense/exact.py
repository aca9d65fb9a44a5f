"""Exact search over stored vectors, block by block: the ground truth for measuring recall."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from indexes.base.arrays import top
from indexes.base.model import Floats, Ids
from indexes.base.work import OnStep, do_nothing


def nearest(
    blocks: Iterable[tuple[Ids, Floats]],
    queries: Floats,
    k: int,
    allowed: Ids | None = None,
    on_step: OnStep = do_nothing,
) -> list[tuple[Ids, Floats]]:
    """The `k` best ids across all blocks, with scores, for each query [n, dimensions]; only `allowed` ids if given.

    `on_step` is called before each block.
    """
    best: list[tuple[Ids, Floats]] = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
    for ids, vectors in blocks:
        on_step()
        kept = slice(None) if allowed is None else np.isin(ids, allowed, assume_unique=True)
        for at, scores in enumerate(queries @ vectors[kept].T):
            some_ids, some_scores = top(ids[kept], scores, k)
            known_ids, known_scores = best[at]
            both = np.concatenate([known_scores, some_scores])
            best[at] = top(np.concatenate([known_ids, some_ids]), both, k)
    return best
