"""Searches first: whoever writes or seals gives way, between two small steps, while a search is under way.

Python's threads take turns. One that computes keeps the interpreter for 5 ms once it has it, and a search gives it up
at every call into compiled code, to get it back after another such turn. So the writer lets go by itself, but for no
longer than it is told: searches that never end slow writes down, and do not stop them.
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

GoOn = Callable[[], None]  # long work calls it between two of its steps; may raise, to end it

P = ParamSpec("P")
R = TypeVar("R")

GIVE_WAY_S_MAX = 0.002  # at each step; most searches take less
TURN_S = 0.0001  # instead of Python's 5 ms

# Adding to these and taking away is atomic.
_under_way: set[int] = set()  # threads that search now
_gates: deque[threading.Lock] = deque()  # those who give way wait at; the search that ends last opens them


def searching(search: Callable[P, R]) -> Callable[P, R]:
    """For functions that search: their threads count as under way meanwhile. They do not call each other."""

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
    """Wait while searches are under way, for so many seconds at most. Returns at once when there are none."""
    if not _under_way:
        return
    # Asleep until it is woken: whoever looks again and again takes turns from the search that he waits for.
    gate = threading.Lock()
    gate.acquire()
    _gates.append(gate)
    # The last search may have ended before the gate stood there.
    if not (_under_way and gate.acquire(timeout=at_most_s)):
        with contextlib.suppress(ValueError):
            _gates.remove(gate)


def nobody_waits() -> None:
    """The `GoOn` of work that nobody waits for or ends."""


def keep_turns_short() -> None:
    """For a whole process that serves searches, once it has loaded what it needs.

    A search that waits for the interpreter asks for it sooner, and collections of garbage leave alone what is there
    by now: going through all of it stops every thread.
    """
    sys.setswitchinterval(TURN_S)
    gc.freeze()
