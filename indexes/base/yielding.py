"""Yield the GIL to searches: writing and sealing pause between small steps while a search is running.

A thread that computes in Python holds the GIL for a switch interval of 5 ms. A search releases it at every call into
native code and then waits up to that long to get it back. So background work yields on its own, for a bounded time: a
constant stream of searches slows writes down but cannot starve them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

YIELD_S_MAX = 0.002  # per step; most searches are shorter
# Switch interval while serving, instead of Python's 5 ms. With 1 ms, cached answers arrive in a tenth of the time while
# all threads are busy, but other answers take half as long again and throughput falls (`nearline bench cache`).
SWITCH_INTERVAL_S = 0.0001

# The GIL makes adding to these and removing from them atomic.
_searching: set[int] = set()  # threads that are searching
_gates: deque[threading.Lock] = deque()  # held by waiting writers; the last search to end releases them


def as_search(search: Callable[P, R]) -> Callable[P, R]:
    """Decorate a search, so that background work yields while it runs. Decorated functions must not call each other."""

    @functools.wraps(search)
    def counted(*args: P.args, **kwargs: P.kwargs) -> R:
        thread = threading.get_ident()
        _searching.add(thread)
        try:
            return search(*args, **kwargs)
        finally:
            _searching.discard(thread)
            if not _searching:
                _open_gates()

    return counted


def _open_gates() -> None:
    with contextlib.suppress(IndexError):
        while True:
            _gates.popleft().release()


def yield_to_searches(at_most_s: float = YIELD_S_MAX) -> None:
    """Wait until no search is running, at most this long. Returns immediately if none is."""
    if not _searching:
        return
    # Sleep rather than poll: polling takes the GIL from the very search being waited for.
    gate = threading.Lock()
    gate.acquire()
    _gates.append(gate)
    # The last search may have ended before the gate was in the queue.
    if not (_searching and gate.acquire(timeout=at_most_s)):
        with contextlib.suppress(ValueError):
            _gates.remove(gate)


def tune_interpreter() -> None:
    """Set up the interpreter for serving searches; call it once everything is loaded.

    The short switch interval lets a search get the GIL back sooner. Freezing takes everything loaded so far out of
    garbage collection, which stops every thread while it scans.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
