"""What may be said of a mean loss from the losses that were seen: upper bounds, and a test whether it has grown.

Losses lie between 0 and 1; they are kept as a tally of hundredths, rounded up. Both the bound and the test bet against
a mean (Waudby-Smith and Ramdas 2023): a bettor who stakes the same share of his fortune on every loss being below the
mean, or above it, grows rich only if it is. Where most losses are small, as the share of a query's neighbours that one
tier holds, that is much tighter than a bound for losses of all or nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

CONFIDENCE = 0.95
LEVELS: Values = np.arange(101) / 100
STAKES = (0.1, 0.2, 0.35, 0.5, 0.7, 0.99)  # below 1, or one loss of 1 would take everything
BETS = (2.0, 8.0, 30.0)  # stakes of the sequential test, each quickest for another size of change
ALARM = 100.0  # what a stake must have grown to; by chance alone it would once in so many audits at most
FADED = 0.25  # of the share that was skipped at first: with less, another load is to be learnt
SHARE_QUERIES = 2000  # over so many the share that skips is counted: a load may come to skip more than it did


def levels_of(losses: NDArray[np.floating]) -> NDArray[np.int64]:
    """Hundredths, rounded up."""
    levels: NDArray[np.int64] = np.ceil(100 * losses - 1e-6).astype(np.int64)
    return levels


def tally(losses: NDArray[np.floating]) -> Values:
    """How many losses there are of each level, float64 [101]."""
    return np.bincount(levels_of(losses), minlength=len(LEVELS)).astype(np.float64)


def upper_mean(tallied: Values, stake: float) -> float:
    """Upper bound, at CONFIDENCE, of the mean that these losses were drawn with, for a stake chosen without them."""
    fortune = math.log(1 / (1 - CONFIDENCE))

    def grown(mean: float) -> float:
        return float(tallied @ np.log1p(stake * (mean - LEVELS)))

    low, high = 0.0, 1.0
    if grown(high) < fortune:
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if grown(middle) < fortune:
            low = middle
        else:
            high = middle
    return high


def threshold_rank(expected: Values, lost: Values, budget: float, stake: float) -> int:
    """How many of these queries, in the order of their expected loss, may be skipped within the budget.

    Queries of one expected loss are skipped together or not at all, and those expected to lose everything never.
    """
    order = np.argsort(expected, kind="stable")
    sums = np.zeros((len(expected) + 1, len(LEVELS)), np.int32)
    sums[np.arange(1, len(sums)), levels_of(lost[order])] = 1
    np.cumsum(sums, axis=0, out=sums)
    # 0, and each number of queries after which the next one is expected to lose more.
    ranks = np.flatnonzero(np.diff(expected[order], prepend=-np.inf, append=np.inf))
    ranks = ranks[ranks <= np.count_nonzero(expected < 1)]
    low, high = 0, len(ranks) - 1
    while low < high:
        middle = (low + high + 1) // 2
        skipped = sums[ranks[middle]].astype(np.float64)
        # The others lose nothing, and one more skip never lowers the bound.
        skipped[0] += len(expected) - ranks[middle]
        if upper_mean(skipped, stake) <= budget:
            low = middle
        else:
            high = middle - 1
    return int(ranks[low])


class Evidence:
    """What is known of the loss of skipping: the held-out queries, then the audits, the oldest fading as they come."""

    def __init__(self, held_out: int, skipped: Values, budget: float, stake: float) -> None:
        """`skipped`: what those of the held-out queries lost that would have been skipped, tallied."""
        self._full = float(skipped.sum())
        self._share = self._first_share = self._full / held_out  # of queries that are skipped
        self._tally = skipped.copy()
        self._budget = budget
        self._stake = stake
        self._bets = np.ones(len(BETS))

    def decided(self, skipped: bool) -> None:
        """Keep count of the share that is skipped. It belongs to the load as much as the loss of a skip does."""
        self._share += (skipped - self._share) / SHARE_QUERIES

    def add(self, loss: float) -> None:
        """An audit: what a skipped query lost."""
        self._tally *= 1 - 1 / (self._full + 1)
        self._tally += tally(np.array([loss]))
        # What a skip may lose on average for all of them to use up the budget. A skip went before, so the share is
        # above zero; and no stake may go below zero, so where little is skipped it counts for little.
        growth = 1 + np.array(BETS) * (loss - self._budget / self._share)
        self._bets = np.maximum(self._bets, 1) * np.maximum(growth, 0)

    def bound(self) -> float:
        """Upper bound, at CONFIDENCE, of the recall that skipping costs on average over all queries."""
        return self._share * upper_mean(self._tally, self._stake)

    @property
    def faded(self) -> bool:
        """Whether so few queries are skipped by now that the load cannot be the one that was learnt from."""
        return self._share < FADED * self._first_share

    @property
    def alarm(self) -> bool:
        return bool(self._bets.max() > ALARM)
