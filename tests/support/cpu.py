"""CPU time in seconds of one machine, so that a bound means the same on a slower or a busier one.

A hyperthread that shares its core takes up to twice as long for the same work, and so do older machines.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

REFERENCE_S = (
    0.0054  # that `work` takes on a core of the machine for which the bounds were written, when it is quiet
)


def slowness() -> float:
    """How many times as long as on a quiet core of that machine the same work takes here and now; at least 1."""
    return max(1.0, statistics.median(time_work() for _ in range(3)) / REFERENCE_S)


def time_work() -> float:
    """Work as searches have it: dictionaries and strings, and sorting numbers."""
    begun = time.thread_time()
    counts: dict[str, int] = {}
    for at in range(3000):
        word = f"w{at % 997}"
        counts[word] = counts.get(word, 0) + len(word)
    values = np.arange(130_000, dtype=np.float32)[::-1] % 977
    assert np.sort(values)[-1] < len(counts)
    return time.thread_time() - begun
