"""Recall on a sample of queries, and how far it may be from that of all queries."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

Z = 1.959964  # of the normal distribution, for 95 percent
ONE_SIDED = 1.644854  # for 95 percent on one side


@dataclass(frozen=True, slots=True)
class Share:
    """Recall on a sample of queries with its 95 percent interval, `low` to `high`, and its standard error."""

    recall: float
    low: float
    high: float
    error: float

    @staticmethod
    def of(found: ArrayLike, wanted: ArrayLike) -> Share:
        """sum(found) / sum(wanted), given both for each query [n]."""
        if not np.sum(wanted):
            return Share(1.0, 0.0, 1.0, 0.0)
        return Share(*share_interval(found, wanted), standard_error(found, wanted))

    @property
    def margin(self) -> float:
        """By how much the recall of other queries may be lower, or higher: one-sided 95 percent."""
        return ONE_SIDED * self.error

    @property
    def sure(self) -> float:
        """The lower bound, by which settings are chosen."""
        return self.recall - self.margin


def share_interval(found: ArrayLike, total: ArrayLike) -> tuple[float, float, float]:
    """sum(found) / sum(total) with its interval, given both for each query [n], n and the sum of totals above 0.

    Wilson's interval is computed for the number of independent trials that would have the variance of this ratio
    (Kish's effective sample size). Where the queries do not differ, as when all are perfect, each query is one trial.
    """
    n, share = np.size(found), float(np.sum(found) / np.sum(total))
    error = standard_error(found, total)
    trials = share * (1 - share) / error**2 if error > 0 and 0 < share < 1 else n
    return share, *wilson(share, trials)


def wilson(share: float, trials: float, z: float = Z) -> tuple[float, float]:
    """Wilson's interval of a share observed in `trials` trials; `z` is the normal quantile of its confidence."""
    center = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    # At the ends the formula gives the end itself, apart from rounding.
    return (0.0 if share == 0 else center - half), (1.0 if share == 1 else center + half)


def standard_error(found: ArrayLike, total: ArrayLike) -> float:
    """Standard error of sum(found) / sum(total), as a ratio of sums over queries, because the neighbors of one query
    are lost together (Cochran 1977, 6.4)."""
    found_, total_ = np.asarray(found, np.float64), np.asarray(total, np.float64)
    n, share = len(found_), found_.sum() / total_.sum()
    spread = np.sum((found_ - share * total_) ** 2) * n / max(n - 1, 1)
    return float(np.sqrt(spread) / total_.sum())
