"""How sure a measured share is: 95 percent intervals from the sample of queries.

Neighbours of one query are lost together, so the query is what is drawn again: percentiles of 1,000 bootstrap
resamples (Efron 1979), with a fixed seed. Where no query lost anything, resampling would claim certainty; there
Wilson's interval (1927) of the share of such queries is given: of n queries that are all perfect, the truth is above
n / (n + 3.84) with the same confidence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 1000
Z = 1.959964  # of the normal distribution, for 95 percent
BLOCK = 4_000_000  # counts held at once
METHOD = "95 percent: bootstrap by query, 1000 resamples; Wilson by query where all queries scored 0 or 1"


def share_interval(found: ArrayLike, total: ArrayLike, seed: int = 0) -> tuple[float, float, float]:
    """(share, low, high) of sum(found) / sum(total), given both for each query [n], n and all totals above 0."""
    found_, total_ = np.asarray(found, np.float64), np.asarray(total, np.float64)
    share = float(found_.sum() / total_.sum())
    if (found_ == total_).all() or not found_.any():
        return (share, *wilson(share, len(found_)))
    sums = resampled(np.stack([found_, total_], axis=1), seed)
    low, high = np.percentile(sums[:, 0] / sums[:, 1], [2.5, 97.5])
    return share, float(low), float(high)


def mean_interval(values: ArrayLike, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high) of one value between 0 and 1 a query [n]."""
    values_ = np.asarray(values, np.float64)
    return share_interval(values_, np.ones(len(values_)), seed)


def resampled(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Sums over queries [RESAMPLES, columns] of values [n, columns]: n queries drawn with replacement each time."""
    rng = np.random.default_rng(seed)
    n = len(values)
    rows = max(1, BLOCK // n)
    even = np.full(n, 1 / n)
    blocks = [
        rng.multinomial(n, even, size=min(rows, RESAMPLES - at)) @ values for at in range(0, RESAMPLES, rows)
    ]
    return np.concatenate(blocks)


def wilson(share: float, n: int) -> tuple[float, float]:
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    spread = Z / (1 + Z * Z / n) * float(np.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n)))
    # At the ends the formula gives the end itself, but for rounding.
    return (0.0 if share == 0 else centre - spread), (1.0 if share == 1 else centre + spread)
