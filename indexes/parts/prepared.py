"""A query prepared against one snapshot: allowed rows and term weights are computed once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain, product

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.masks import Bits, bits_at, pack_flags, rows_in
from indexes.base.model import TIERS, DenseResult, Floats, Ids, Ranking, Rows, Scalar, Sparing, Tier
from indexes.base.work import OnStep, do_nothing
from indexes.dense.cold_skips import ListBounds, judge
from indexes.dense.vectors import Found
from indexes.filters.bitmaps import to_bits
from indexes.filters.grammar import Filter, Kind, Unchecked
from indexes.filters.satisfiable import require_key, require_satisfiable, require_values
from indexes.lexical.bm25 import NO_CORRECTIONS, WeightedQuery, best_of, score_rows
from indexes.lexical.names import EXACT
from indexes.lexical.operators import Alternatives, rows_with
from indexes.lexical.prefixed import Prefixed
from indexes.lexical.typos import NearTerms
from indexes.parts.part import Part, as_ranking
from indexes.parts.query import (
    NAMED_IN_PART,
    NOT_FOUND,
    SHARED_MAX,
    Candidates,
    Named,
    Query,
    exactness_of,
    places_in,
)
from indexes.parts.visible import Visible, count_by_tier, tiers_in

SCORING_BYTES = 16
NO_IDS: Ids = np.empty(0, np.int64)
NO_COLD = "the collection has no cold passages"
NO_COLD_MATCH = "no cold passage matches the filter"


@dataclass(frozen=True, slots=True)
class Selected:
    """The rows of one part that a search may return (`allowed` None: all), and their count per tier."""

    visible: Visible
    allowed: Bits | None
    by_tier: Mapping[Tier, int]

    @property
    def part(self) -> Part:
        return self.visible.part

    @property
    def count(self) -> int:
        return sum(self.by_tier.values())

    def ids(self) -> Ids:
        rows = np.arange(self.part.size) if self.allowed is None else rows_in(self.allowed, self.part.size)
        return self.part.ids_of(rows)


def select(
    parts: Sequence[Visible], condition: Filter | None, on_step: OnStep = do_nothing
) -> list[Selected]:
    """The live rows of each part that match the filter. `on_step` is called before each condition.

    Raises InvalidInput for a key or kind of value that no passage has.
    """
    if condition is None:
        return [Selected(visible, visible.alive, visible.by_tier) for visible in parts]
    require_satisfiable(condition, [visible.part.filters for visible in parts])
    return [_matching(visible, condition, on_step) for visible in parts]


def _matching(visible: Visible, condition: Filter, on_step: OnStep) -> Selected:
    part = visible.part
    bits = to_bits(part.filters.match(condition, on_step), part.size)
    if visible.alive is not None:
        bits &= visible.alive
    return Selected(visible, bits, count_by_tier(part, bits))


def _narrow(chosen: Selected, required: Sequence[Alternatives | Prefixed], on_step: OnStep) -> Selected:
    """Narrow a selection to the rows that have a term of each group."""
    part = chosen.part
    bits = pack_flags(rows_with(part.lexical, required, on_step))
    if chosen.allowed is not None:
        bits &= chosen.allowed
    return Selected(chosen.visible, bits, count_by_tier(part, bits))


class Prepared:
    """Answers one query. May move between threads, but only one may use it at a time."""

    def __init__(
        self,
        parts: Sequence[Visible],
        query: Query,
        weighed: WeightedQuery | None,
        scan_max: int,
        bounds: ListBounds | None = None,
        corrected: Mapping[str, str] = NO_CORRECTIONS,
        required: Sequence[Alternatives | Prefixed] = (),
        spoken: Mapping[str, int] | None = None,
        *,
        names: Sequence[tuple[range, ...]] = (),
        seen: frozenset[str] = frozenset(),
        near: Sequence[NearTerms] = (),
        typos_whole: bool = True,
        light: bool = True,
        on_step: OnStep = do_nothing,
    ) -> None:
        """`bounds` are those of the cold lists, where a query may spare them. `corrected` maps words of the query to
        the terms used for them; `typos_whole`: no such word was left out. `light`: preparing takes no time. `required`:
        only rows with one term of each group. `spoken`: the languages considered for the query. `names`: its
        `asked_keys`. `seen`: the terms of words that were looked up and need no correction. `near`: what is near
        others, if they are not corrected here. `on_step` is called between steps.
        """
        self.query = query
        self.corrected, self.seen, self.near = corrected, seen, near
        self.typos_whole, self.light = typos_whole, light
        self._on_step = on_step
        self._required = required
        self._names = names
        self._parts = parts
        self._weighed = weighed
        self._scan_max = scan_max
        self._bounds = bounds
        self._spoken = spoken
        self._ranked: list[tuple[Visible, Ids, Rows]] = []  # passages of each ranking, with their rows
        self._deciding: dict[str, dict[int, list[Scalar]]] = {}  # values of passages, by key

    @cached_property
    def selection(self) -> list[Selected]:
        selected = select(self._parts, self.query.condition, self._on_step)
        if not self._required:
            return selected
        return [_narrow(one, self._required, self._on_step) for one in selected]

    def again(self, query: Query, on_step: OnStep) -> Prepared:
        """This preparation for a query that differs only in its vector or depth."""
        found = copy(self)
        found.query, found._ranked, found._on_step = query, [], on_step
        return found

    @property
    def grouped_terms(self) -> frozenset[str]:
        """The terms that prefixes and synonyms stand for."""
        if self._weighed is None:
            return frozenset()
        groups, more = self._weighed.groups, self._weighed.synonyms.counts
        return frozenset(more).difference(groups).union(*(group.terms for group in groups.values()))

    @property
    def synonyms_whole(self) -> bool:
        """Whether all synonyms of the query's words are looked up."""
        return self._weighed is None or self._weighed.synonyms.whole

    def lexical(self) -> Ranking:
        """Passages with the highest BM25 scores above zero."""
        if self._weighed is None:
            return Ranking.empty()
        depth, floor = self.query.depth, 0.0
        rankings = []
        # Largest part first: its results let the others prune more.
        for chosen in sorted(self.selection, key=lambda one: -one.count):
            self._on_step()
            if chosen.count:
                part = chosen.part
                found = best_of(
                    part.lexical, self._weighed, depth, chosen.allowed, floor=floor, ids_of=part.ids_of
                )
                rankings.append(self._ranking(chosen, found))
                if len(found[1]) == depth:
                    floor = max(floor, float(found[1][-1]))
        return Ranking.merge(rankings, depth)

    @cached_property
    def _holders(self) -> dict[range, list[tuple[int, Rows]]]:
        """The live rows under each key of the query's possible names, with the position of their part. Keys without
        rows are left out."""
        held: dict[range, list[tuple[int, Rows]]] = {}
        for keys, (at, visible) in product(chain.from_iterable(self._names), enumerate(self._parts)):
            if len(stored := visible.part.lexical.named(keys)):
                rows = (np.unique(stored) if len(stored) > 1 else stored).astype(np.int64)
                if visible.alive is not None:
                    rows = rows[bits_at(visible.alive, rows)]
                held.setdefault(keys, []).append((at, rows))
        return held

    def add_named(self, found: Candidates) -> Candidates:
        """Add the allowed passages that the text names, with their scores. Of each name only the best match counts."""
        held = list(self._named()) if self._holders else []
        exactness = exactness_of(held)
        if not exactness:
            return msgspec.structs.replace(found, named=held) if held else found
        named = np.array(list(exactness), np.int64)
        places = places_in(found.ids, named)
        new = named[places == NOT_FOUND]
        if len(new):
            places[places == NOT_FOUND] = np.arange(len(found), len(found) + len(new))
            found = self._with_unranked(found, new)
        names = np.zeros(len(found), np.float32)
        names[places] = list(exactness.values())
        return msgspec.structs.replace(found, names=names, named=held)

    def _named(self) -> Iterator[Named]:
        """Yield the allowed passages under each possible name of the text, in the best way that any is found."""
        for name, matches in enumerate(self._names):
            for match, keys in enumerate(matches):
                if ids := self._ids_of(self._holders.get(keys, ())):
                    exactness = 1.0 if keys.start & EXACT else NAMED_IN_PART
                    yield Named(name, match, exactness, len(ids), ids if len(ids) <= SHARED_MAX else [])
                    break

    def _with_unranked(self, found: Candidates, new: Ids) -> Candidates:
        """Add passages that are in neither ranking."""
        dense, lexical = self.scores(new)
        unranked = np.full(len(new), NOT_FOUND, np.int32)
        return msgspec.structs.replace(
            found,
            ids=np.concatenate([found.ids, new]),
            dense=np.concatenate([found.dense, dense]),
            lexical=np.concatenate([found.lexical, lexical]),
            dense_ranks=np.concatenate([found.dense_ranks, unranked]),
            lexical_ranks=np.concatenate([found.lexical_ranks, unranked]),
            tiers=np.concatenate([found.tiers, tiers_of(self._parts, new)]),
        )

    def _ids_of(self, held: Iterable[tuple[int, Rows]]) -> list[int]:
        """The ids of those of these rows that are allowed."""
        ids: list[int] = []
        for at, rows in held:
            allowed = self.selection[at].allowed
            ids += (
                self._parts[at]
                .part.ids_of(rows if allowed is None else rows[bits_at(allowed, rows)])
                .tolist()
            )
        return ids

    def dense(self) -> DenseResult:
        """Return the passages nearest to the vector. A query with a filter skips the cold tier only under the policy
        `never`.

        After `steps`, what each depth adds follows what the ones before it found, so a deeper ranking extends a
        shallower one although the indexes are approximate.
        """
        vector, sparing = self.query.vector, self.query.sparing
        tiers = tiers_in(chosen.by_tier for chosen in self.selection)
        if vector is None:
            return DenseResult(Ranking.empty(), tiers, None)
        first, *deeper = (*self.query.steps, self.query.depth)
        ranks = self.query.ranks or self.query.k
        if sparing is not None and (sparing.never or not self._is_filtered):
            found = self._hot_first(vector, sparing, tiers, first, ranks)
        else:
            ranking = self._nearest(vector, first, ranks)
            found = DenseResult(ranking, tiers, self._why_no_cold(tiers))
        warm = found.tiers != tiers
        for depth in deeper:
            more = self._nearest(vector, depth, depth, warm=warm)
            found = replace(found, ranking=found.ranking.extended(more, depth))
        return found

    @property
    def _is_filtered(self) -> bool:
        return self.query.condition is not None or bool(self._required)

    def _hot_first(
        self, vector: Floats, sparing: Sparing, tiers: tuple[Tier, ...], depth: int, ranks: int
    ) -> DenseResult:
        """Search the cold tier last, and only if needed. An observed skip searches it and discards the results."""
        k, begun = self.query.k, time.perf_counter()
        found = [
            (chosen, self._nearest_in(chosen, vector, depth, ranks, warm=True))
            for chosen in self.selection
            if chosen.count
        ]
        warm = Ranking.merge([ranking for _, ranking in found], depth)
        if "cold" not in tiers:
            return DenseResult(warm, tiers, self._why_no_cold(tiers))
        verdict = judge(sparing, self._bounds, vector, warm, k)
        both, spared, judged = warm, verdict.spared, time.perf_counter()
        observed = sparing.observed and spared is not None and spared.outcome != "proven"
        if verdict.search or observed:
            both = Ranking.merge(
                [
                    self._nearest_in(chosen, vector, depth, ranks) if chosen.by_tier.get("cold") else ranking
                    for chosen, ranking in found
                ],
                depth,
            )
            if spared is not None and observed:
                loss, now = float(np.mean(both.tiers[:k] == TIERS.index("cold"))), time.perf_counter()
                spared = msgspec.structs.replace(
                    spared, loss=loss, first_s=judged - begun, lists_s=now - judged
                )
        if verdict.search:
            return DenseResult(both, tiers, None, spared)
        return DenseResult(warm, tuple(tier for tier in tiers if tier != "cold"), verdict.reason, spared)

    def _nearest(self, vector: Floats, depth: int, ranks: int, *, warm: bool = False) -> Ranking:
        return Ranking.merge(
            [
                self._nearest_in(chosen, vector, depth, ranks, warm=warm)
                for chosen in self.selection
                if chosen.count
            ],
            depth,
        )

    def _nearest_in(
        self, chosen: Selected, vector: Floats, depth: int, ranks: int, *, warm: bool = False
    ) -> Ranking:
        self._on_step()
        nearest = chosen.part.nearest_warm if warm else chosen.part.nearest
        return self._ranking(chosen, nearest(vector, depth, chosen.allowed, self._scan_max, ranks))

    def _ranking(self, chosen: Selected, found: Found) -> Ranking:
        ranking = as_ranking(chosen.part, found)
        self._ranked.append((chosen.visible, ranking.ids, found[0]))
        return ranking

    def _why_no_cold(self, tiers: tuple[Tier, ...]) -> str | None:
        if "cold" in tiers:
            return None
        held = any(visible.by_tier.get("cold") for visible in self._parts)
        return NO_COLD_MATCH if held else NO_COLD

    @property
    def weighed(self) -> WeightedQuery | None:
        """The text's terms with their weights; None without a text."""
        return self._weighed

    @property
    def lexical_bound(self) -> float:
        """The BM25 score of a passage with unlimited occurrences of every query word; 0 without a text."""
        return 0.0 if self._weighed is None else self._weighed.bound

    @property
    def scoring(self) -> bytes:
        """A key that is equal for snapshots on which this query scores passages identically, bit for bit."""
        weighed = self._weighed
        words = weighed and (weighed.weights, weighed.mean_length, weighed.bound)
        named = {
            key: np.sort(np.concatenate([self._parts[at].part.ids_of(rows) for at, rows in held])).tobytes()
            for key, held in self._holders.items()
        }
        known = words, sorted(self.corrected.items()), self._spoken, named
        return blake2b(repr(known).encode(), digest_size=SCORING_BYTES).digest()

    def newer(self, after: int, most: int) -> Candidates | None:
        """The passages with larger ids that the query may return, with both scores, unranked; None if there are more
        than `most`."""
        parts = [visible for visible in self._parts if visible.part.newest > after]
        condition, found = self.query.condition, [NO_IDS]
        for visible in parts:
            allowed = (
                visible.alive if condition is None else _matching(visible, condition, self._on_step).allowed
            )
            if self._required:
                chosen = Selected(visible, allowed, visible.by_tier)
                allowed = _narrow(chosen, self._required, self._on_step).allowed
            rows = visible.part.rows_after(after)
            found.append(visible.part.ids_of(rows if allowed is None else rows[bits_at(allowed, rows)]))
        ids = np.concatenate(found)
        if len(ids) > most:
            return None
        places = np.full(len(ids), NOT_FOUND, np.int32)
        dense, lexical = self.scores(ids)
        return Candidates(ids, dense, lexical, places, places, tiers_of(parts, ids), self.lexical_bound)

    def require_values(
        self, key: str, where: str, kinds: Sequence[Kind] = (), *, dates: bool = False
    ) -> None:
        """Raise InvalidInput naming `where` for a metadata key that no passage of the snapshot has, or that has no
        value of these `kinds` (nor a date, with `dates`) if there are any."""
        if not isinstance(self.query.condition, Unchecked):
            parts = [visible.part.filters for visible in self._parts]
            require_key(key, where, parts)
            if kinds:
                require_values(key, where, parts, kinds, dates=dates)

    def deciding_values(self, ids: Ids, key: str) -> list[list[Scalar]]:
        """The values of each of these passages under a metadata key; of a long list only those that decide how it
        compares with others (`Column.deciding`). Those that a search has asked for are known when it goes deeper."""
        self._on_step()
        wanted: list[int] = ids.tolist()
        known = self._deciding.setdefault(key, {})
        unread = np.array([one for one in wanted if one not in known], np.int64)
        known.update((one, []) for one in unread.tolist())
        for visible, at, rows in locate(self._parts, unread):
            passages = dict(zip(rows.tolist(), unread[at].tolist()))
            for kind, column in visible.part.filters.columns(key).items():
                for row, value in column.deciding(rows):
                    known[passages[row]].append(bool(value) if kind == "boolean" else value)
        return [known[one] for one in wanted]

    def scores(self, ids: Ids) -> tuple[Floats, Floats]:
        """Dense and BM25 scores of any passages; NaN if a passage is in no part or the query lacks that searcher."""
        dense, lexical = np.full((2, len(ids)), np.nan, np.float32)
        vector, weighed = self.query.vector, self._weighed
        for visible, at, rows in self._located(ids):
            if vector is not None:
                dense[at] = visible.part.vectors.scores(rows, vector)
            if weighed is not None:
                lexical[at] = score_rows(visible.part.lexical, weighed, rows)
        return dense, lexical

    def _located(self, ids: Ids) -> list[tuple[Visible, Rows, Rows]]:
        """Like `locate`, but reuses the rows of passages that a ranking has found."""
        located = []
        for visible in self._parts:
            held = [(known, rows) for part, known, rows in self._ranked if part is visible]
            if held:
                known, rows = (np.concatenate(columns) for columns in zip(*held, strict=True))
                places = places_in(known, ids)
                at = np.flatnonzero(places != NOT_FOUND)
                located.append((visible, at, rows[places[at]]))
        return located if sum(len(at) for _, at, _ in located) == len(ids) else locate(self._parts, ids)


def locate(parts: Sequence[Visible], ids: Ids) -> list[tuple[Visible, Rows, Rows]]:
    """For each part that holds any of these: the part, positions in `ids`, and rows in the part."""
    found = []
    for visible in parts:
        rows = visible.part.rows_of(ids)
        at = np.flatnonzero(rows >= 0)
        if len(at):
            found.append((visible, at, rows[at]))
    return found


def tiers_of(parts: Sequence[Visible], ids: Ids) -> NDArray[np.int8]:
    """Each passage's tier, as an index into TIERS; 0, the delta, if it is in no part yet."""
    tiers = np.zeros(len(ids), np.int8)
    for visible, at, rows in locate(parts, ids):
        tiers[at] = visible.part.tiers_of(rows)
    return tiers
