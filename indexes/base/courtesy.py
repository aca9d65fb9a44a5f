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
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

GoOn = Callable[[], None]  # long work calls it between steps; it may raise to cancel the work

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Work:
    """What the searches of one request may still do together; below 0 once they would have done more. Each number is
    about a tenth of a second of CPU. Searches on several threads share it, and may exceed it by a step each.

    `searches` counts those that have begun.
    """

    searches: int = 0
    comparisons: int = 300_000  # of words that no passage has with terms of the dictionary
    prefix_terms: int = 16_384  # that prefixes stand for
    # Characters of candidates in which phrases are looked for.
    phrase_chars: int = 8_000_000
    highlight_words: int = 10_000  # different words of a search's hits that are compared with its query
    facet_counts: int = 2_000_000  # documents and values that facets count


GIVE_WAY_S_MAX = 0.002  # per step; most searches are shorter
# Switch interval while serving, instead of Python's 5 ms. With 1 ms cached answers come ten times as soon while all
# threads are busy, and others half as soon again: fewer searches a second in all (`nearline bench cache`).
TURN_S = 0.0001

# The GIL makes adding to these and removing from them atomic.
_under_way: set[int] = set()  # threads that are searching
_gates: deque[threading.Lock] = deque()  # held by waiting writers; the last search to end releases them


def searching(search: Callable[P, R]) -> Callable[P, R]:
    """Decorates a search: background work yields while it runs. Decorated functions must not call each other."""

    @functools.wraps(search)
    def counted(*args: P.args, **kwargs: P.kwargs) -> R:
        thread = threading.get_ident()
        _under_way.add(thread)
        try:
            return search(*args, **kwargs)
        finally:
            _under_way.discard(thread)
            if not _under_way:
                _open_gates()

    return counted


def _open_gates() -> None:
    with contextlib.suppress(IndexError):
        while True:
            _gates.popleft().release()


def give_way(at_most_s: float = GIVE_WAY_S_MAX) -> None:
    """Wait until no search is running, at most this long. Returns immediately if none is."""
    if not _under_way:
        return
    # Sleep rather than poll: polling takes the GIL from the very search being waited for.
    gate = threading.Lock()
    gate.acquire()
    _gates.append(gate)
    # The last search may have ended before the gate was in the queue.
    if not (_under_way and gate.acquire(timeout=at_most_s)):
        with contextlib.suppress(ValueError):
            _gates.remove(gate)


def nobody_waits() -> None:
    """The `GoOn` of work that neither yields nor gets cancelled."""


def keep_turns_short() -> None:
    """Set up a process for serving searches; call it once everything is loaded.

    The short switch interval lets a search get the GIL back sooner. Freezing takes everything loaded so far out of
    garbage collection, which stops every thread while it scans.
    """
    sys.setswitchinterval(TURN_S)
    gc.freeze()
