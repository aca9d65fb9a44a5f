"""Decides which queries run on the event loop's own thread, because their caller is the only one.

A query that goes to a worker and back waits for two threads to wake up. While there is only one caller at a time, no
other request needs the loop, and a short run on the loop's thread answers sooner. It blocks the loop for that one run,
so:

    only short runs     by a cost model that has seen RUNS_SEEN_MIN runs: a slow machine never blocks its loop
    never in a crowd    two queries at once mean two callers, and for CROWD_S all queries go to the threads
    a lookout           a second caller cannot be seen while the loop is blocked, so one query in LOOKOUT_EVERY
                        goes to the threads anyway
"""

from __future__ import annotations

import time
from collections.abc import Callable

from retrieval.embedding.costs import CostModel

BLOCKING_S_MAX = 0.004  # how long a new request may go unnoticed
RUNS_SEEN_MIN = 8  # about as many as a model's warm-up makes
CROWD_S = 0.25  # the time of many runs, so that callers who keep asking remain a crowd
LOOKOUT_EVERY = 32  # two callers that happen to alternate are noticed within a tenth of a second


class LoneQueries:
    """Decides which queries may block the loop for one short run. Use from the loop's thread only."""

    def __init__(self, costs: CostModel, clock: Callable[[], float] = time.monotonic) -> None:
        self._costs = costs
        self._clock = clock
        self._crowd_until = float("-inf")
        self._asked = 0

    def crowd(self) -> None:
        """Report that two queries were present at the same time."""
        self._crowd_until = self._clock() + CROWD_S

    def may_block(self, tokens: int) -> bool:
        """Whether a query of this many tokens is short enough, and no crowd was seen recently."""
        return (
            self._costs.runs >= RUNS_SEEN_MIN
            and self._costs.seconds(1, tokens) <= BLOCKING_S_MAX
            and self._clock() >= self._crowd_until
        )

    def looks_out(self) -> bool:
        """Whether this query, though it may block, goes to the threads to notice other callers. Call once per query."""
        self._asked += 1
        return self._asked % LOOKOUT_EVERY == 0
