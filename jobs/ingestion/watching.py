"""Follows folders: `nearline ingest --watch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from indexes.base.errors import InvalidInput, StorageError
from nearline import ServiceError

DEBOUNCE_MS = 1_500  # a file that is being written changes many times
LOOK_MS = 1_000
RESCAN_S = 300.0  # for changes without events: network file systems, files that failed, unmounted folders
RETRY_S_MIN, RETRY_S_MAX = 5.0, 60.0


def watch(folders: Sequence[Path], sync: Callable[[], None], failed: Callable[[Exception], None]) -> None:
    """Call `sync` at once, after changes below `folders`, and every five minutes, until KeyboardInterrupt or
    SystemExit.

    If it raises because of the service, the folder or the record, pass the error to `failed` and retry with pauses that
    double from RETRY_S_MIN to RETRY_S_MAX.
    """
    from watchfiles import watch as changes_of

    due, retry_s = 0.0, RETRY_S_MIN
    # Yields empty sets, too, so that the first sync starts after the watch and misses no change.
    looks = changes_of(
        *folders,
        debounce=DEBOUNCE_MS,
        rust_timeout=LOOK_MS,
        yield_on_timeout=True,
        raise_interrupt=True,
        ignore_permission_denied=True,
    )
    for changes in looks:
        if not changes and time.monotonic() < due:
            continue
        try:
            sync()
            retry_s = RETRY_S_MIN
            due = time.monotonic() + RESCAN_S
        except (ServiceError, InvalidInput, StorageError) as error:
            failed(error)
            due = time.monotonic() + retry_s
            retry_s = min(2 * retry_s, RETRY_S_MAX)
