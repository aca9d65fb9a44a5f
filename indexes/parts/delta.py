"""The newest passages: appended one by one, searched exactly, sealed into a segment once the delta is full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexes.base.arrays import find_sorted
from indexes.base.masks import Bits
from indexes.base.model import TIERS, Floats, Ids, Metadata, Rows, Terms, Tier
from indexes.base.work import OnStep, do_nothing
from indexes.dense.cold import RANKS
from indexes.dense.vectors import Found, StoredVectors
from indexes.filters.index import GrowingFilters
from indexes.lexical.postings import GrowingLexical
from indexes.parts.part import scan

POSTINGS_MAX = 1_000_000  # 270 to 430 MB of different terms, as of three texts of a megabyte without spaces


class Delta:
    """Append-only; single-threaded writer. `view` freezes what has been appended so far."""

    def __init__(self, capacity: int, dimensions: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.vectors = StoredVectors.allocate(capacity, dimensions)
        self.ids = np.empty(capacity, np.int64)
        self.lexical = GrowingLexical()
        self.filters = GrowingFilters()

    @property
    def full(self) -> bool:
        return self.size >= self.capacity or self.lexical.postings_held >= POSTINGS_MAX

    def append(
        self,
        passage: int,
        vector: Floats,
        text: str,
        metadata: Metadata,
        language: str = "en",
        terms: Terms | None = None,
        names: Sequence[int] = (),
        on_step: OnStep = do_nothing,
    ) -> None:
        """Add one passage; ids must ascend. Existing views do not change. `terms` are those of the text, if known,
        `names` the keys of its names. While it calls `on_step`, views can be searched."""
        self.ids[self.size] = passage
        self.vectors.halves[self.size] = vector
        if terms is None:
            self.lexical.add(text, language, names)
        else:
            self.lexical.add_terms(terms, names, on_step)
        self.filters.add(metadata)
        self.size += 1

    def view(self) -> DeltaView:
        return DeltaView(self)


class DeltaView:
    """A frozen prefix of a delta's rows: one part of a snapshot. Safe from any thread."""

    def __init__(self, delta: Delta) -> None:
        self.delta, self.size = delta, delta.size
        self.ids, self.vectors = delta.ids[: self.size], delta.vectors
        self.lexical = delta.lexical.view(self.size)
        self.filters = delta.filters.view(self.size)

    @property
    def newest(self) -> int:
        return int(self.ids[-1]) if self.size else 0

    @property
    def bytes(self) -> int:
        lexical = self.delta.lexical.bytes
        return int(self._vector_bytes + self.ids.nbytes + self.filters.bytes + lexical)

    def tier_bytes(self) -> dict[Tier, int]:
        return {"delta": self._vector_bytes}

    @property
    def _vector_bytes(self) -> int:
        """Rows that nothing was written to take no memory yet."""
        return int(self.vectors.halves[: self.size].nbytes)

    def ids_of(self, rows: Rows) -> Ids:
        return self.ids[rows]

    def rows_of(self, ids: Ids) -> Rows:
        return find_sorted(self.ids, ids)

    def rows_after(self, passage_id: int) -> Rows:
        return np.arange(np.searchsorted(self.ids, passage_id, "right"), self.size)

    def tiers_of(self, rows: Rows) -> NDArray[np.int8]:
        return np.full(len(rows), TIERS.index("delta"), np.int8)

    def tier_rows(self) -> dict[Tier, range]:
        return {"delta": range(self.size)}

    def nearest(
        self, query: Floats, depth: int, allowed: Bits | None, scan_max: int, ranks: int = RANKS
    ) -> Found:
        return scan(self, query, depth, allowed)

    def nearest_warm(
        self, query: Floats, depth: int, allowed: Bits | None, scan_max: int, ranks: int = RANKS
    ) -> Found:
        return self.nearest(query, depth, allowed, scan_max)
