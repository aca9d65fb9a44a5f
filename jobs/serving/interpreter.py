"""How the interpreter of a service, and of each search process, uses memory and yields to other threads."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys

HEAPS_MAX = 2
M_ARENA_MAX = -8  # of glibc's mallopt
SWITCH_INTERVAL_S = 0.0001  # Python's is 5 ms


def share_heaps() -> None:
    """Limit glibc to a few malloc arenas. Call before starting threads; a no-op without glibc.

    By default threads get arenas of their own, and memory that a model run freed in one is not reused by the others.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return  # the operator has decided
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS_MAX)


def tune_interpreter() -> None:
    """Set up the interpreter for serving; call it once everything is loaded.

    With a short switch interval the event loop gets the GIL back sooner from threads that write. Freezing takes
    everything loaded so far out of garbage collection, which stops every thread while it scans.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
