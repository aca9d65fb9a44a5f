"""The fail-stop latch for failed syncs: this process acknowledges nothing more, and listeners can shut it down.

After a failed sync, a retry may succeed without the bytes being on disk, so nothing is retried. Only reopening the
data directory in a new process shows what the disk holds.

This is the only place that records a failure: from its report until everything open for writing (data directories and
logs, which `hold`) is closed. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from indexes.base.errors import Damaged, DiskFull, Quarantined, StorageError

Listener = Callable[[StorageError], None]

_change = threading.Lock()
_held: set[object] = set()
_first: StorageError | None = None
_listeners: list[Listener] = []


def may_be_a_failed_sync(error: Exception) -> bool:
    """Whether an error leaves the state on disk unknown. A full disk or a damaged file does not: nothing was
    acknowledged."""
    return isinstance(error, StorageError) and not isinstance(error, (DiskFull, Damaged, Quarantined))


def report(error: StorageError) -> None:
    """Record a storage failure. The first one is passed to every listener, on the reporting thread."""
    global _first  # noqa: PLW0603 - process-wide state: the whole process has to stop
    with _change:
        if not _held or _first is not None:
            return
        _first = error
        told = list(_listeners)
    for listener in told:
        listener(error)


def any_reported() -> bool:
    return _first is not None


def require_none() -> None:
    """Raise StorageError if a failure was reported. Call before doing anything that will be acknowledged."""
    if _first is not None:
        raise StorageError(f"{_first.later}{_first.message}")


def listen(listener: Listener) -> Callable[[], None]:
    """Call `listener` on the first report. Returns a function that unregisters it."""
    with _change:
        _listeners.append(listener)

    def forget() -> None:
        with _change:
            if listener in _listeners:
                _listeners.remove(listener)

    return forget


def hold() -> Callable[[], None]:
    """Register something as open for writing. Returns a function that ends this; the last one resets the failure."""
    held = object()
    with _change:
        _held.add(held)

    def release() -> None:
        global _first  # noqa: PLW0603 - as above
        with _change:
            _held.discard(held)
            if not _held:
                _first = None

    return release
