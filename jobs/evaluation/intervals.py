"""95 percent confidence intervals of measured shares, over a sample of queries."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from jobs.evaluation.report import Score

Z = 1.959964  # of the normal distribution, for 95 percent
METHOD = "95 percent: Wilson's, for as many trials as the queries' spread is worth"


def share_score(found: ArrayLike, total: ArrayLike) -> Score:
    """sum(found) / sum(total), given both for each query [n], n and all totals above 0.

    The neighbors of one query are lost together, so the variance is that of a ratio of sums over queries (Cochran
    1977, 6.4). Wilson's interval is computed for the number of independent trials that would have that variance (Kish's
    effective sample size). Where the queries do not differ, as when all are perfect, each query is one trial.
    """
    found_, total_ = np.asarray(found, np.float64), np.asarray(total, np.float64)
    n, share = len(found_), float(found_.sum() / total_.sum())
    spread = float(np.sum((found_ - share * total_) ** 2)) * n / max(n - 1, 1) / float(total_.sum()) ** 2
    trials = share * (1 - share) / spread if spread > 0 and 0 < share < 1 else n
    center = (share + Z * Z / (2 * trials)) / (1 + Z * Z / trials)
    half = Z / (1 + Z * Z / trials) * math.sqrt(share * (1 - share) / trials + (Z / (2 * trials)) ** 2)
    # At the ends the formula gives the end itself, apart from rounding.
    return Score(share, 0.0 if share == 0 else center - half, 1.0 if share == 1 else center + half)


def mean_score(values: ArrayLike) -> Score:
    """The mean of one value between 0 and 1 for each query [n]."""
    return share_score(values, np.ones_like(values, np.float64))
