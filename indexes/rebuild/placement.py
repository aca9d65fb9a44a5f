"""Chooses the hot passages of a generation: the newest and the most hit, up to the capacity.

At most half of the capacity goes to hit passages, most hits first; the rest to the newest. A single hit may be chance,
so HITS_MIN are required. If the remainder is too small to train cold lists, everything stays hot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Ids
from indexes.dense.cold import COLD_PASSAGES_MIN
from indexes.parts.manifest import Moves

HITS_SHARE_MAX = 0.5
HITS_MIN = 2.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Passages by tier. Ids ascend within each tier."""

    hot: Ids
    cold: Ids
    by_hits: int

    def moves(self, was_hot: Ids, was_cold: Ids) -> Moves:
        """Changes from the previous placement; passages in memory count as hot."""
        return Moves(
            hot_by_hits=self.by_hits,
            hot_by_age=len(self.hot) - self.by_hits,
            to_hot=int(np.isin(self.hot, was_cold, assume_unique=True).sum()),
            to_cold=int(np.isin(self.cold, was_hot, assume_unique=True).sum()),
        )


def place(ids: Ids, capacity: int, hit_ids: Ids, hit_counts: NDArray[np.float64]) -> Placement:
    """`ids` are all live passages, ascending; `hit_ids` those with hits, most hits first."""
    if len(ids) - capacity < COLD_PASSAGES_MIN:
        return Placement(ids, np.empty(0, np.int64), 0)
    newest = ids[len(ids) - capacity :]
    wanted = hit_ids[hit_counts >= HITS_MIN]
    # Hits on passages that are new enough anyway must not use up the share reserved for old ones.
    first_new = newest[0] if len(newest) else np.iinfo(np.int64).max
    wanted = wanted[(wanted < first_new) & np.isin(wanted, ids)][: int(capacity * HITS_SHARE_MAX)]
    hot = np.sort(np.concatenate([wanted, newest[len(wanted) :]]))
    return Placement(hot, np.setdiff1d(ids, hot, assume_unique=True), len(wanted))
