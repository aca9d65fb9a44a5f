"""What a failed sync means: this process acknowledges nothing more, and listeners are told, so that it can leave.

A second sync after a failed one may succeed without the bytes being on disk, so nothing is tried again. Only opening
the data directory again, in a new process, shows what the disk holds.

This is the only place that remembers a failure: from its report until everything that was open for writing (data
directories and logs, which `hold`) is closed. Everything here may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from indexes.errors import Damaged, DiskFull, Quarantined, StorageError

Listener = Callable[[StorageError], None]

_change = threading.Lock()
_held: set[object] = set()
_first: StorageError | None = None
_listeners: list[Listener] = []


def may_be_a_failed_sync(error: Exception) -> bool:
    """Whether it leaves open what the disk holds. A full disk and a damaged file do not: nothing was acknowledged."""
    return isinstance(error, StorageError) and not isinstance(error, (DiskFull, Damaged, Quarantined))


def report(error: StorageError) -> None:
    """The storage failed. The first report is passed on to every listener, on the thread that reports."""
    global _first  # noqa: PLW0603 - the state is the process's: it is the process that has to leave
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
    """Raise StorageError if a failure was reported. Asked before everything that would be acknowledged."""
    if _first is not None:
        raise StorageError(f"the storage failed before, restart the service: {_first.message}")


def listen(listener: Listener) -> Callable[[], None]:
    """Have `listener` called at the first report. The function returned ends that."""
    with _change:
        _listeners.append(listener)

    def forget() -> None:
        with _change:
            if listener in _listeners:
                _listeners.remove(listener)

    return forget


def hold() -> Callable[[], None]:
    """Something is open for writing until the function returned is called. With the last, the failure is forgotten."""
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
