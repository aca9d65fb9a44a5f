"""What one search reads: a frozen set of parts, with the passages in each that no longer live.

A snapshot never changes. The collection publishes a new one by assigning one reference, so a search that has begun
finishes on the old one and never waits for a write or a build.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from indexes.courtesy import searching
from indexes.dense.skipping import ColdWatch
from indexes.errors import InvalidInput
from indexes.filters.bitmaps import to_bits
from indexes.filters.grammar import Filter, keys_of
from indexes.lexical.bm25 import Statistics, best_of, score_rows, weigh
from indexes.masks import (
    Bits,
    bits_at,
    clear_rows,
    count_bits,
    first_bits,
    flags_of,
    pack_flags,
    rows_in,
)
from indexes.model import TIERS, Bm25, DenseResult, Floats, Ids, Ranking, Rows, Tier
from indexes.parts.part import Part, as_ranking

NO_COLD = "the collection has no cold passages"
NO_COLD_MATCH = "no cold passage matches the filter"


@dataclass(frozen=True, slots=True)
class Visible:
    """A part and the rows of it that live. `alive` None: all of them.

    `dead_terms` counts terms of the dead rows for BM25. The writer adds to it in place, so a search may see the
    counts of the commit under way: a rounding of the statistics, never of visibility.
    """

    part: Part
    by_tier: Mapping[Tier, int]
    alive: Bits | None = None
    dead: int = 0
    dead_length: int = 0
    dead_terms: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def whole(part: Part) -> Visible:
        return Visible(part, {tier: len(rows) for tier, rows in part.tier_rows().items()})

    def without(self, rows: Rows, terms: Counter[str]) -> Visible:
        """The same part with these rows dead too. Rows that are dead already count once."""
        size = self.part.size
        alive = pack_flags(np.ones(size, bool)) if self.alive is None else self.alive.copy()
        fresh = np.unique(rows[bits_at(alive, rows)])
        if not len(fresh):
            return self
        clear_rows(alive, fresh)
        self.dead_terms.update(terms)
        length = int(self.part.lexical.lengths[fresh].sum())
        return replace(
            self,
            alive=alive,
            by_tier=count_by_tier(self.part, alive),
            dead=self.dead + len(fresh),
            dead_length=self.dead_length + length,
        )

    def grown(self, part: Part) -> Visible:
        """The same, after the part took more rows at its end."""
        if self.alive is None:
            return Visible.whole(part)
        flags = np.ones(part.size, bool)
        flags[: self.part.size] = self.alive_flags()
        alive = pack_flags(flags)
        return replace(self, part=part, alive=alive, by_tier=count_by_tier(part, alive))

    def alive_flags(self) -> NDArray[np.bool_]:
        """One boolean a row."""
        return np.ones(self.part.size, bool) if self.alive is None else flags_of(self.alive, self.part.size)

    @property
    def live(self) -> int:
        return self.part.size - self.dead


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One frozen view of a collection. Every method is safe from any thread.

    `content`, 32 bytes, is equal for snapshots of equal documents, in this collection or any other (`log.content`).
    """

    seq: int
    content: bytes
    generation: int
    parts: tuple[Visible, ...]
    bm25: Bm25
    exact_scan_max: int
    watch: ColdWatch | None = None

    # --- searching ------------------------------------------------------------------------------------------

    @searching
    def dense(
        self,
        query: Floats,
        depth: int,
        condition: Filter | None = None,
        *,
        k: int | None = None,
        counted: bool = True,
    ) -> DenseResult:
        """The `depth` passages nearest to a unit vector. Raises InvalidInput for a filter key nobody has.

        With `k`, the number of them that matter, the cold tier is left out where the policy allows it; a filter takes
        part in that only where the policy is never to search it. `counted`: the query is one of the load, from which
        the policy learns.
        """
        selection = self._select(condition)
        watch = self.watch
        if k is not None and watch is not None and (condition is None or watch.policy.mode == "never"):
            return self._dense_sparing(query, depth, selection, watch, k, counted=counted)
        rankings = [
            as_ranking(
                chosen.visible.part,
                chosen.visible.part.nearest(query, depth, chosen.allowed, self.exact_scan_max),
            )
            for chosen in selection
            if chosen.count
        ]
        tiers = tiers_in(chosen.by_tier for chosen in selection)
        return DenseResult(Ranking.merge(rankings, depth), tiers, self._why_no_cold(tiers))

    def _dense_sparing(
        self,
        query: Floats,
        depth: int,
        selection: list[Selected],
        watch: ColdWatch,
        k: int,
        *,
        counted: bool,
    ) -> DenseResult:
        """Everything but the cold tier first, then that one if it is needed. A skip to be audited searches it too,
        and leaves what it found out of the answer."""
        warm = Ranking.merge(
            [self._of(chosen, query, depth, cold=False) for chosen in selection if chosen.warm], depth
        )
        tiers = tiers_in(chosen.by_tier for chosen in selection)
        if "cold" not in tiers:
            return DenseResult(warm, tiers, self._why_no_cold(tiers))
        decision = watch.decide(query, warm, k, counted=counted)
        both = warm
        if decision.search or decision.note:
            cold = [
                self._of(chosen, query, depth, cold=True)
                for chosen in selection
                if chosen.by_tier.get("cold")
            ]
            both = Ranking.merge([warm, *cold], depth)
        if decision.note:
            watch.learn(decision, float(np.mean(both.tiers[:k] == TIERS.index("cold"))))
        if decision.search:
            return DenseResult(both, tiers, None)
        return DenseResult(warm, tuple(tier for tier in tiers if tier != "cold"), decision.reason)

    def _why_no_cold(self, tiers: tuple[Tier, ...]) -> str | None:
        if "cold" in tiers:
            return None
        return NO_COLD_MATCH if self.counts()["cold"] else NO_COLD

    def _of(self, chosen: Selected, query: Floats, depth: int, *, cold: bool) -> Ranking:
        part = chosen.visible.part
        nearest = part.nearest_cold if cold else part.nearest_warm
        return as_ranking(part, nearest(query, depth, chosen.allowed, self.exact_scan_max))

    @searching
    def lexical(self, text: str, depth: int, condition: Filter | None = None) -> Ranking:
        """The `depth` passages of highest BM25 score above zero."""
        parts = [visible.part.lexical for visible in self.parts]
        query = weigh(text, parts, self.statistics(), self.bm25)
        rankings = []
        for chosen in self._select(condition):
            if not chosen.count:
                continue
            part = chosen.visible.part
            found = best_of(part.lexical, query, depth, chosen.allowed)
            rankings.append(as_ranking(part, found))
        return Ranking.merge(rankings, depth)

    def dense_scores(self, query: Floats, ids: Ids) -> Floats:
        """Exact inner products of these passages, NaN for one that is in no part."""
        return self._score(ids, lambda part, rows: part.vectors.scores(rows, query))

    def lexical_scores(self, text: str, ids: Ids) -> Floats:
        """BM25 of these passages, NaN for one that is in no part."""
        query = weigh(text, [visible.part.lexical for visible in self.parts], self.statistics(), self.bm25)
        return self._score(ids, lambda part, rows: score_rows(part.lexical, query, rows))

    def _score(self, ids: Ids, scorer: Callable[[Part, Rows], Floats]) -> Floats:
        scores = np.full(len(ids), np.nan, np.float32)
        for visible, at, rows in self.locate(ids):
            scores[at] = scorer(visible.part, rows)
        return scores

    def locate(self, ids: Ids) -> Iterator[tuple[Visible, Rows, Rows]]:
        """For each part that holds some of these: the part, the positions in `ids`, and the rows in the part."""
        for visible in self.parts:
            rows = visible.part.rows_of(ids)
            at = np.flatnonzero(rows >= 0)
            if len(at):
                yield visible, at, rows[at]

    def tiers_of(self, ids: Ids) -> list[Tier | None]:
        """The tier each passage lives in, None for one that is in no part."""
        tiers: list[Tier | None] = [None] * len(ids)
        for visible, at, rows in self.locate(ids):
            for position, tier in zip(at, visible.part.tiers_of(rows), strict=True):
                tiers[position] = TIERS[tier]
        return tiers

    def matching(self, condition: Filter) -> Ids:
        """Ids of the live passages that satisfy the filter, ascending."""
        found = [chosen.visible.part.ids_of(chosen.rows()) for chosen in self._select(condition)]
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    # --- counting -------------------------------------------------------------------------------------------

    def counts(self) -> dict[Tier, int]:
        """Live passages of each tier."""
        return sum_by_tier(visible.by_tier for visible in self.parts)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those that hold live passages."""
        return tiers_in(visible.by_tier for visible in self.parts)

    @property
    def live(self) -> int:
        return sum(visible.live for visible in self.parts)

    @property
    def dead(self) -> int:
        """Passages still in some index that no longer live."""
        return sum(visible.dead for visible in self.parts)

    def statistics(self) -> Statistics:
        length = sum(visible.part.lexical.length - visible.dead_length for visible in self.parts)
        return Statistics(self.live, length, [visible.dead_terms for visible in self.parts if visible.dead])

    # --- filters --------------------------------------------------------------------------------------------

    def _select(self, condition: Filter | None) -> list[Selected]:
        if condition is None:
            return [Selected(visible, visible.alive, visible.by_tier) for visible in self.parts]
        known = {key for visible in self.parts for key in visible.part.filters.keys}
        for key in keys_of(condition):
            if key not in known:
                listed = ", ".join(sorted(known)[:20]) or "none"
                raise InvalidInput(
                    f"no document has the metadata key {key!r}; known keys: {listed}", param="filter"
                )
        return [_chosen(visible, condition) for visible in self.parts]


@dataclass(frozen=True, slots=True)
class Selected:
    """The rows of one part that a search may return, and how many of them each tier has."""

    visible: Visible
    allowed: Bits | None
    by_tier: Mapping[Tier, int]

    @property
    def count(self) -> int:
        return sum(self.by_tier.values())

    @property
    def warm(self) -> int:
        """Rows that are not cold."""
        return self.count - self.by_tier.get("cold", 0)

    def rows(self) -> Rows:
        size = self.visible.part.size
        return np.arange(size) if self.allowed is None else rows_in(self.allowed, size)


def _chosen(visible: Visible, condition: Filter) -> Selected:
    part = visible.part
    bits = to_bits(part.filters.match(condition), part.size)
    if visible.alive is not None:
        bits &= visible.alive
    return Selected(visible, bits, count_by_tier(part, bits))


def count_by_tier(part: Part, bits: Bits) -> dict[Tier, int]:
    """Rows set in a bitmap, tier by tier."""
    return {
        tier: count_before(bits, rows.stop) - count_before(bits, rows.start)
        for tier, rows in part.tier_rows().items()
    }


def count_before(bits: Bits, row: int) -> int:
    return count_bits(first_bits(bits, row))


def tiers_in(counts: Iterable[Mapping[Tier, int]]) -> tuple[Tier, ...]:
    """The tiers of which there are any."""
    totals = sum_by_tier(counts)
    return tuple(tier for tier in TIERS if totals[tier])


def sum_by_tier(counts: Iterable[Mapping[Tier, int]]) -> dict[Tier, int]:
    totals: dict[Tier, int] = dict.fromkeys(TIERS, 0)
    for one in counts:
        for tier, count in one.items():
            totals[tier] += count
    return totals
