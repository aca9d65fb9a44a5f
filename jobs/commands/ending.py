"""An end by signal that still cleans up."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit, as Ctrl-C raises KeyboardInterrupt: drafts are removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
