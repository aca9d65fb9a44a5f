"""What every engine must do to be measured. Built in one process, opened and searched in a fresh one, as in use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexes.model import Floats

Found = Sequence[int] | NDArray[np.int64]  # rows
Setting = dict[str, int]  # knobs of one search, by the names their library gives them

HNSW_M = 16
HNSW_EF_CONSTRUCTION = 200
EFS = (32, 48, 64, 96, 128, 192, 256, 384, 512)
SPARE = 1000  # rows that may be inserted after opening, where a library wants to know


class Engine(ABC):
    """One way to search unit vectors by inner product. Rows are numbered from 0 in the order of the vectors.

    An engine is made anew in each process; its library is imported when it is made, so that ImportError comes then.
    """

    what: str
    """Version of the library and how it is set up, for readers of the report."""
    extra: bool = False
    """Shown for information; left out when the best of the others is looked for."""
    tuned: bool = False
    """Whether a build chooses search settings itself; these are measured before any other."""

    @abstractmethod
    def open(self, folder: Path, vectors: Floats) -> None:
        """Get ready to search the index in this folder. `vectors` are those it was built of."""

    @abstractmethod
    def settings(self) -> Sequence[Setting]:
        """The settings worth trying, for an open index."""

    @abstractmethod
    def use(self, setting: Setting) -> None:
        """Search with this setting from now on. No search runs meanwhile."""

    @abstractmethod
    def search(self, query: Floats, k: int) -> Found:
        """Up to `k` rows. Called from two threads at once when throughput is measured."""

    @abstractmethod
    def insert(self, row: int, vector: Floats) -> None:
        """Add one vector by the next free row; returns when the library says that it is in."""

    def details(self, queries: Floats, k: int) -> dict[str, Any]:
        """What only this engine can tell of itself, measured with the setting in use."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Let go of threads and files. Called once, after `open`."""


class Peer(Engine):
    """An engine of somebody else's, which builds its index of an array of vectors."""

    @abstractmethod
    def build(self, vectors: Floats, folder: Path, threads: int) -> None:
        """Index all vectors and leave the result in an empty folder."""


def lists_for(rows: int) -> int:
    """Lists of an inverted file: about twice the square root, as a power of two."""
    return int(1 << max(2, round(np.log2(2 * np.sqrt(max(rows, 1))))))
