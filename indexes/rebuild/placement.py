"""Which passages a generation keeps hot: the newest and the most wanted, up to the capacity.

At most half of the capacity goes to passages for having been hit, most hit first; the rest to the newest. One hit is
chance, so it takes HITS_MIN. A remainder too small to train cold lists stays hot as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexes.dense.cold import COLD_PASSAGES_MIN
from indexes.model import Ids
from indexes.parts.manifest import Moves

HITS_SHARE_MAX = 0.5
HITS_MIN = 2.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Which passages go where. Ids ascend within each tier."""

    hot: Ids
    cold: Ids
    by_hits: int

    def moves(self, was_hot: Ids, was_cold: Ids) -> Moves:
        """Compared with where passages were before; those in memory count as hot."""
        return Moves(
            hot_by_hits=self.by_hits,
            hot_by_age=len(self.hot) - self.by_hits,
            to_hot=int(np.isin(self.hot, was_cold, assume_unique=True).sum()),
            to_cold=int(np.isin(self.cold, was_hot, assume_unique=True).sum()),
        )


def place(ids: Ids, capacity: int, hit_ids: Ids, hit_counts: NDArray[np.float64]) -> Placement:
    """`ids` are all live passages, ascending; `hit_ids` those that were hit, most hit first."""
    if len(ids) - capacity < COLD_PASSAGES_MIN:
        return Placement(ids, np.empty(0, np.int64), 0)
    newest = ids[len(ids) - capacity :]
    wanted = hit_ids[hit_counts >= HITS_MIN]
    # A hit on a passage that is new enough anyway must not use up the share of the old ones.
    first_new = newest[0] if len(newest) else np.iinfo(np.int64).max
    wanted = wanted[(wanted < first_new) & np.isin(wanted, ids)][: int(capacity * HITS_SHARE_MAX)]
    hot = np.sort(np.concatenate([wanted, newest[len(wanted) :]]))
    return Placement(hot, np.setdiff1d(ids, hot, assume_unique=True), len(wanted))
