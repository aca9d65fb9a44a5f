"""What a search asks of an index, and what it gets back: values that may travel to another process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexes.filters.grammar import Filter
from indexes.model import DenseResult, Floats, Ids, Ranking, Tier

Ranks = NDArray[np.int32]
NOT_FOUND = -1


@dataclass(frozen=True, slots=True)
class Query:
    """`text` is for BM25, `vector` (of length 1, float32 [dimensions]) for the dense indexes; None: not searched.

    Each searcher returns `depth` candidates, of which the first `k` matter. `counted`: the query is part of the load,
    from which the cold policy learns.
    """

    k: int
    depth: int
    text: str | None = None
    vector: Floats | None = None
    condition: Filter | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the searchers found, each passage once: columns of n, those of the dense ranking first.

    Scores are float32, NaN where that searcher did not find the passage; ranks are its place in that ranking from 0,
    NOT_FOUND where it has none. `tiers` int8 index into TIERS. `searched` are the tiers the search covered.
    """

    ids: Ids
    dense: Floats
    lexical: Floats
    dense_ranks: Ranks
    lexical_ranks: Ranks
    tiers: NDArray[np.int8]
    searched: tuple[Tier, ...] = ()
    cold_skipped: str | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def join(dense: DenseResult, lexical: Ranking) -> Candidates:
        first = dense.ranking
        places = places_in(first.ids, lexical.ids)
        new = places == NOT_FOUND
        ids = np.concatenate([first.ids, lexical.ids[new]])
        places[new] = np.arange(len(first), len(ids))
        scores = np.full((2, len(ids)), np.nan, np.float32)
        ranks = np.full((2, len(ids)), NOT_FOUND, np.int32)
        scores[0, : len(first)] = first.scores
        ranks[0, : len(first)] = np.arange(len(first))
        scores[1, places] = lexical.scores
        ranks[1, places] = np.arange(len(lexical))
        tiers = np.concatenate([first.tiers, lexical.tiers[new]])
        return Candidates(
            ids, scores[0], scores[1], ranks[0], ranks[1], tiers, dense.tiers, dense.cold_skipped
        )


def places_in(ids: Ids, wanted: Ids) -> NDArray[np.int64]:
    """Position of each wanted id in `ids`, NOT_FOUND where it is not there."""
    if not len(ids):
        return np.full(len(wanted), NOT_FOUND, np.int64)
    order = np.argsort(ids)
    at = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[at] == wanted, at, NOT_FOUND)
