"""Counts which passages searches return, so that a rebuild can keep popular ones in the hot tier.

Hints, not data: counts live in memory and are saved beside the log at each rebuild and on close; if the file is
missing or damaged, counting starts from zero. Counts halve at every rebuild, so old demand gives way to current demand.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.durable import publish
from indexes.base.errors import StorageError
from indexes.base.model import Ids

logger = logging.getLogger(__name__)

ENTRIES_MIN = 10_000
FADING = 0.5


class Hits:
    """Bounded counts by passage id. Thread-safe; `count` costs about a microsecond per passage."""

    def __init__(self, path: Path, *, hot_capacity: int) -> None:
        self._path = path
        self._entries_max = max(4 * hot_capacity, ENTRIES_MIN)
        self._counts: dict[int, float] = load(path)
        self._changed = False  # since it was saved
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, passages: Iterable[int]) -> None:
        """Add one hit to each passage."""
        with self._lock:
            counts, self._changed = self._counts, True
            for passage in passages:
                counts[passage] = counts.get(passage, 0.0) + 1
            if len(counts) > self._entries_max:
                self._fade(least=1.0)

    def fade(self) -> None:
        """Halve all counts. Called at each rebuild."""
        with self._lock:
            self._fade(least=FADING)

    def most(self) -> tuple[Ids, NDArray[np.float64]]:
        """Passage ids and their counts, most hit first; equal counts newest first."""
        with self._lock:
            ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float64, len(self._counts))
        order = np.lexsort((-ids, -counts))
        return ids[order], counts[order]

    def save(self) -> None:
        """Publish the counts, if they have changed. Errors are only logged: hits are not worth failing for."""
        if not self._changed:
            return
        self._changed = False
        ids, counts = self.most()
        content = msgspec.msgpack.encode((ids.tobytes(), counts.astype(np.float32).tobytes()))
        try:
            publish(self._path, content)
        except StorageError as error:
            self._changed = True
            logger.warning("hit counts were not saved: %s", error.message)

    def _fade(self, *, least: float) -> None:
        """Halve every count and drop those below `least`; repeat while there are too many."""
        self._changed = True
        while True:
            self._counts = {
                passage: count * FADING for passage, count in self._counts.items() if count * FADING >= least
            }
            if len(self._counts) <= self._entries_max:
                return


def load(path: Path) -> dict[int, float]:
    try:
        ids, counts = msgspec.msgpack.decode(path.read_bytes(), type=tuple[bytes, bytes])
        numbers = np.frombuffer(ids, np.int64).tolist()
        return dict(zip(numbers, np.frombuffer(counts, np.float32).tolist(), strict=True))
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, ValueError) as error:
        logger.warning("hit counts in %s cannot be read, starting from zero: %s", path, error)
        return {}
