"""Facets of a search: check the request, and present the counts."""

from __future__ import annotations

from itertools import pairwise

from indexes.base.errors import InvalidInput
from indexes.base.model import Scalar
from indexes.filters.dates import span_of
from indexes.filters.grammar import fits
from indexes.filters.satisfiable import FORMS
from indexes.reading.facets import FacetCounts, FacetQuery
from retrieval.wire.options import Bound, Facet, FacetBody, RangeCount, ValueCount

FACETS_MAX, BOUNDS_MAX = 16, 100


def facet_queries(asked: list[str | Facet] | None) -> list[tuple[Facet, FacetQuery]]:
    """Check the requested facets. Raises InvalidInput naming the field."""
    if asked is not None and len(asked) > FACETS_MAX:
        raise InvalidInput(f"at most {FACETS_MAX} facets are counted, found {len(asked)}", param="facets")
    found = []
    for at, one in enumerate(asked or []):
        facet = Facet(key=one) if isinstance(one, str) else one
        where = f"facets[{at}]"
        found.append((facet, FacetQuery(facet.key, _bounds(facet.ranges, where), where)))
    return found


def _bounds(ranges: list[Bound] | None, where: str) -> tuple[Scalar, ...]:
    if ranges is None:
        return ()
    if not 1 <= len(ranges) <= BOUNDS_MAX:
        raise InvalidInput(f"{where}.ranges needs from 1 to {BOUNDS_MAX} bounds", param=f"{where}.ranges")
    if not all(map(fits, ranges)):
        raise InvalidInput(f"{where}.ranges does not fit into 64 bits", param=f"{where}.ranges")
    dates = [one for one in ranges if isinstance(one, str)]
    if dates and len(dates) < len(ranges):
        raise InvalidInput(f"{where}.ranges mixes numbers and dates", param=f"{where}.ranges")
    order: list[int | float] = []
    for one in ranges:
        span = span_of(one) if isinstance(one, str) else (one, one)
        if span is None:
            raise InvalidInput(
                f"{where}.ranges holds a string that is no date; write {FORMS}", param=f"{where}.ranges"
            )
        order.append(span[0])
    if any(not low < high for low, high in pairwise(order)):
        raise InvalidInput(f"{where}.ranges must ascend", param=f"{where}.ranges")
    return tuple(ranges)


def facet_body(facet: Facet, found: FacetCounts) -> FacetBody:
    """Return a facet as clients see it."""
    return FacetBody(
        key=facet.key,
        values=[ValueCount(value, count) for value, count in found.values[: facet.top]],
        ranges=[RangeCount(count, low, high) for (low, high), count in found.ranges],
        distinct=found.distinct,
        missing=found.missing,
        documents=found.documents,
    )
