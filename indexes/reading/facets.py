"""Facets: how many documents that match a filter have each value of a metadata key, or values in ranges.

They are counted with the bitmaps and columns of the filter index. Every passage of a document has its metadata, so only
first passages count. The log is read once to find them, and each part's are kept as long as the part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
from pyroaring import BitMap

from indexes.base.errors import InvalidInput
from indexes.base.masks import Bits, Flags, flags_of, pack_flags
from indexes.base.model import Ids, Scalar
from indexes.base.work import OnStep, do_nothing
from indexes.collection.view import CollectionView
from indexes.filters.bitmaps import bitmap_of
from indexes.filters.filter_part import FilterPart
from indexes.filters.grammar import Filter, Kind, kind_of
from indexes.filters.satisfiable import require_key, require_values
from indexes.filters.values import Numbers, Positions, TextBlock, Values, rank_values
from indexes.parts.part import Part
from indexes.parts.prepared import select
from indexes.parts.snapshot import Snapshot

VALUES_MAX = 65_536  # distinct values under one key: more are ids, not groups
LISTED_MAX = 1000  # values of one facet

Range = tuple[Scalar | None, Scalar | None]  # from, below; None: open
_first_rows: WeakKeyDictionary[Part, Bits] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class FacetQuery:
    """One requested facet. With `bounds`, ascending numbers or ISO dates, it counts ranges instead of values. `where`:
    its place in the request."""

    key: str
    bounds: tuple[Scalar, ...] = ()
    where: str = "facets"

    @property
    def ranges(self) -> list[Range]:
        return list(pairwise((None, *self.bounds, None)))


@dataclass(frozen=True, slots=True)
class FacetCounts:
    """How many of the matching `documents` have each value, most first, or lie in each range; `missing` have no value.

    `values` are the first LISTED_MAX of all `distinct` ones. `fault`: what is wrong with the key or the ranges, empty
    if nothing is, None if there are no passages that could tell.
    """

    values: list[tuple[Scalar, int]]
    distinct: int
    ranges: list[tuple[Range, int]]
    documents: int
    missing: int
    fault: str | None = ""


def count_facets(
    collection: CollectionView,
    snapshot: Snapshot,
    condition: Filter | None,
    asked: Sequence[FacetQuery],
    on_step: OnStep = do_nothing,
) -> list[FacetCounts]:
    """Count facets, equal ones only once. Calls `on_step` between its steps.

    A key that no document has, and ranges of numbers or dates where it has none, are a `fault` of the facet. Raises
    InvalidInput for too many different values.
    """
    matching = list(_matching(collection, snapshot, condition, on_step))
    parts = [filters for filters, _ in matching]
    known: dict[tuple[str, tuple[Scalar, ...]], FacetCounts] = {}
    for one in asked:
        if (one.key, one.bounds) not in known:
            known[one.key, one.bounds] = _count_facet(one, matching, on_step)
    return [replace(known[one.key, one.bounds], fault=_fault(one, parts)) for one in asked]


def _fault(asked: FacetQuery, parts: Sequence[FilterPart]) -> str | None:
    if not any(part.size for part in parts):
        return None
    try:
        require_key(asked.key, asked.where, parts)
        if asked.bounds:
            dates = isinstance(asked.bounds[0], str)
            require_values(asked.key, asked.where, parts, () if dates else ("number",), dates=dates)
    except InvalidInput as error:
        return error.message
    return ""


def _matching(
    collection: CollectionView, snapshot: Snapshot, condition: Filter | None, on_step: OnStep
) -> Iterator[tuple[FilterPart, Flags]]:
    """For each part, the first passages of the documents that match."""
    for chosen in select(snapshot.parts, condition, on_step):
        part = chosen.part
        bits = _first_rows.get(part)
        if bits is None:
            bits = _first_rows[part] = pack_flags(_is_first(part, collection.log.first_passages()))
        yield part.filters, flags_of(bits if chosen.allowed is None else bits & chosen.allowed, part.size)


def _is_first(part: Part, firsts: Ids) -> Flags:
    flags = np.zeros(part.size, bool)
    if part.size:
        ids = part.ids_of(np.arange(part.size))
        low, high = np.searchsorted(firsts, [ids.min(), ids.max() + 1])
        rows = part.rows_of(firsts[low:high])
        flags[rows[rows >= 0]] = True
    return flags


def _count_facet(
    asked: FacetQuery, matching: Sequence[tuple[FilterPart, Flags]], on_step: OnStep
) -> FacetCounts:
    found: dict[Kind, list[tuple[Values, Positions]]] = defaultdict(list)
    ranges, documents, present = [0] * len(asked.ranges), 0, 0
    for filters, flags in matching:
        on_step()
        rows = bitmap_of(np.flatnonzero(flags).astype(np.uint32), filters.size)
        documents += len(rows)
        columns = filters.columns(asked.key)
        if not columns or not rows:
            continue
        held = [column.present() for column in columns.values()]
        present += rows.intersection_cardinality(BitMap.union(*held))
        if asked.bounds:
            column = columns.get(kind_of(asked.bounds[0]))
            for at, (low, high) in enumerate(asked.ranges):
                ranges[at] += column.between(low, high).intersection_cardinality(rows) if column else 0
            continue
        for kind, column in columns.items():
            if column.distinct > VALUES_MAX:
                raise InvalidInput(
                    f"{asked.where}: {asked.key!r} has more than {VALUES_MAX} different values; count ranges",
                    param=asked.where,
                )
            found[kind].append(column.counted(flags))
    values, distinct = _most_frequent(found, on_step)
    return FacetCounts(
        values,
        distinct,
        list(zip(asked.ranges, ranges)) if asked.bounds else [],
        documents,
        documents - present,
    )


def _most_frequent(
    found: dict[Kind, list[tuple[Values, Positions]]], on_step: OnStep
) -> tuple[list[tuple[Scalar, int]], int]:
    """The values of all parts with their sums, most first, ties in order of the values; and how many there are.

    Values stay in arrays until it is known which are listed.
    """
    listed: list[tuple[int, Kind, Scalar]] = []
    distinct = 0
    for kind, columns in found.items():
        on_step()
        values = (TextBlock if kind == "string" else Numbers).joined(values for values, _ in columns)
        firsts, ranks = rank_values(values)
        sums = np.bincount(ranks, np.concatenate([counts for _, counts in columns])).astype(np.int64)
        distinct += int(np.count_nonzero(sums))
        first = np.argsort(-sums, kind="stable")[:LISTED_MAX]
        listed += [
            (-int(sums[rank]), kind, values.value_at(int(firsts[rank])))
            for rank in first[sums[first] > 0].tolist()
        ]
    listed.sort()
    return [
        (bool(value) if kind == "boolean" else value, -count) for count, kind, value in listed[:LISTED_MAX]
    ], distinct
