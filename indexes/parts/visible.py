"""A part of a snapshot with a mask of its live rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from indexes.base.masks import (
    Bits,
    bits_at,
    clear_rows,
    count_bits,
    first_bits,
    flags_of,
    pack_flags,
)
from indexes.base.model import TIERS, Rows, Tier
from indexes.parts.part import Part


@dataclass(frozen=True, slots=True)
class Visible:
    """A part and its live rows (`alive` None: all).

    `dead_terms` counts the dead rows' terms for BM25, in layers to be added up: one counter would have to be copied
    with every commit, or would show the counts of a later one to searches that are under way.
    """

    part: Part
    by_tier: Mapping[Tier, int]
    alive: Bits | None = None
    dead: int = 0
    dead_length: int = 0
    dead_terms: tuple[Counter[str], ...] = ()

    @staticmethod
    def whole(part: Part) -> Visible:
        return Visible(part, {tier: len(rows) for tier, rows in part.tier_rows().items()})

    def without(self, rows: Rows, terms: Counter[str]) -> Visible:
        """The same part with these rows also dead. Rows that are already dead are ignored."""
        size = self.part.size
        alive = pack_flags(np.ones(size, bool)) if self.alive is None else self.alive.copy()
        fresh = np.unique(rows[bits_at(alive, rows)])
        if not len(fresh):
            return self
        clear_rows(alive, fresh)
        length = int(self.part.lexical.lengths[fresh].sum())
        return replace(
            self,
            alive=alive,
            by_tier=count_by_tier(self.part, alive),
            dead=self.dead + len(fresh),
            dead_length=self.dead_length + length,
            dead_terms=add_layer(self.dead_terms, terms),
        )

    def grown(self, part: Part) -> Visible:
        """The same, after rows were appended to the part."""
        if self.alive is None:
            return Visible.whole(part)
        flags = np.ones(part.size, bool)
        flags[: self.part.size] = self.alive_flags()
        alive = pack_flags(flags)
        return replace(self, part=part, alive=alive, by_tier=count_by_tier(part, alive))

    def alive_flags(self) -> NDArray[np.bool_]:
        """One boolean per row."""
        return np.ones(self.part.size, bool) if self.alive is None else flags_of(self.alive, self.part.size)

    @property
    def live(self) -> int:
        return self.part.size - self.dead


def add_layer(layers: tuple[Counter[str], ...], newest: Counter[str]) -> tuple[Counter[str], ...]:
    """Add a layer of counts. Each layer is more than twice as large as the next, so there are few, and the cost of
    copying is proportional to the new counts times the number of layers."""
    found = [*layers, newest]
    while len(found) > 1 and len(found[-2]) <= 2 * len(found[-1]):
        newest = found.pop()
        found[-1] = found[-1].copy()
        found[-1].update(newest)
    return tuple(found)


def count_by_tier(part: Part, bits: Bits) -> dict[Tier, int]:
    """Number of rows set in a bitmap, by tier."""
    return {
        tier: count_before(bits, rows.stop) - count_before(bits, rows.start)
        for tier, rows in part.tier_rows().items()
    }


def count_before(bits: Bits, row: int) -> int:
    return count_bits(first_bits(bits, row))


def tiers_in(counts: Iterable[Mapping[Tier, int]]) -> tuple[Tier, ...]:
    """Tiers with a nonzero total."""
    totals = sum_by_tier(counts)
    return tuple(tier for tier in TIERS if totals[tier])


def sum_by_tier(counts: Iterable[Mapping[Tier, int]]) -> dict[Tier, int]:
    totals: dict[Tier, int] = dict.fromkeys(TIERS, 0)
    for one in counts:
        for tier, count in one.items():
            totals[tier] += count
    return totals
