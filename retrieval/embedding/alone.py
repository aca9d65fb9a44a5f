"""Which queries run on the event loop's own thread, because their caller is the only one.

A query that passes to a worker and back waits for two threads to wake. While one caller at a time asks, nobody else
needs the loop, and a short run on the loop's thread answers sooner. It blocks the loop for that one run, so:

    only short runs     by a cost model that has seen RUNS_SEEN_MIN runs: a slow machine never blocks its loop
    never in a crowd    two queries at once are two callers, and for CROWD_S all take the threads, on every core
    a lookout           a second caller cannot be seen while the loop is blocked, so one query in LOOKOUT_EVERY
                        takes the threads anyway
"""

from __future__ import annotations

import time
from collections.abc import Callable

from retrieval.embedding.costs import CostModel

BLOCKING_S_MAX = 0.004  # as long as a request may wait for another's run to end without being seen
RUNS_SEEN_MIN = 8  # about as many as the warm-up of a model
CROWD_S = 0.25  # many runs: callers who keep asking are met again and again, and stay a crowd
LOOKOUT_EVERY = 32  # two callers who take turns are found out within a tenth of a second


class LoneQueries:
    """Decides which queries may block the loop for one short run. Use from the loop's thread only."""

    def __init__(self, costs: CostModel, clock: Callable[[], float] = time.monotonic) -> None:
        self._costs = costs
        self._clock = clock
        self._crowd_until = float("-inf")
        self._asked = 0

    def crowd(self) -> None:
        """Two queries were there at the same time."""
        self._crowd_until = self._clock() + CROWD_S

    def may_block(self, tokens: int) -> bool:
        """Whether a query of so many tokens is short enough, and no crowd was seen lately."""
        return (
            self._costs.runs >= RUNS_SEEN_MIN
            and self._costs.seconds(1, tokens) <= BLOCKING_S_MAX
            and self._clock() >= self._crowd_until
        )

    def looks_out(self) -> bool:
        """Whether this query, though it may block, takes the threads to see other callers. Ask once for each query."""
        self._asked += 1
        return self._asked % LOOKOUT_EVERY == 0
