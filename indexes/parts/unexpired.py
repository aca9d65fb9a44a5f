"""Hides expired documents from their instant on, before they are deleted.

A snapshot stays right for all time: what it hides depends on the clock alone. The rows that have expired are found in
the filter indexes and masked as deleted ones are, once for each instant that passes; a search in between costs what it
does without. A collection in which nothing expires does not even look at the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

import numpy as np

from indexes.base.expiry import EXPIRES
from indexes.base.masks import bits_at
from indexes.base.model import Ids
from indexes.filters.bitmaps import rows_of
from indexes.parts.visible import Visible

NO_TERMS: Counter[str] = Counter()
NONE: Ids = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Hidden:
    """The parts from `since_ms` on and before `until_ms`, and the passages among them that have expired."""

    parts: tuple[Visible, ...]
    expired: Ids
    since_ms: float
    until_ms: float

    def holds(self, now_ms: int) -> bool:
        return self.since_ms <= now_ms < self.until_ms

    def content(self, before: bytes) -> bytes:
        """Stands for the documents that are left of `before`; equal in copies."""
        return blake2b(before + b"%d" % int(self.since_ms), digest_size=len(before)).digest()


def expires(parts: Sequence[Visible]) -> bool:
    """Whether any document in them, deleted or not, has an expiry."""
    return any(visible.part.filters.column("number", EXPIRES) is not None for visible in parts)


def hide_expired(parts: Sequence[Visible], now_ms: int) -> Hidden:
    """Terms of hidden rows still count in statistics, as those of a commit in progress may."""
    since, until = -inf, inf
    left, expired = [], []
    for visible in parts:
        shown = visible
        if column := visible.part.filters.column("number", EXPIRES):
            last, following = column.around(now_ms)
            since, until = max(since, last), min(until, following)
            if last > -inf:
                rows = rows_of(column.ordered("lte", now_ms))
                rows = rows if visible.alive is None else rows[bits_at(visible.alive, rows)]
                expired.append(visible.part.ids_of(rows))
                shown = visible.without(rows, NO_TERMS)
        left.append(shown)
    ids = np.sort(np.concatenate(expired)) if expired else NONE
    return Hidden(tuple(left), ids, since, until)
