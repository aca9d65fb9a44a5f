"""Finds the conditions of a filter that a document fails, and the filter without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from indexes.filters.grammar import Comparison, Compound, Exists, Filter, Not, Unchecked

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unmet:
    """A failed condition, its place in the filter, and whether it had to fail there, inside `not`."""

    where: str
    condition: Comparison | Exists
    negated: bool = False


def relax(
    value: JSON, condition: Filter, holds: Callable[[Filter], bool], where: str = "filter"
) -> tuple[JSON | None, list[Unmet]]:
    """The filter without the conditions that exclude a document, None if nothing is left, and those conditions.

    `value` is `condition` as JSON; `holds` tells whether the document satisfies a part of it. An `or` or a `not` is
    removed as a whole.
    """
    if holds(condition):
        return value, []
    if isinstance(condition, Compound) and condition.type == "and":
        kept, unmet = [], []
        for at, (part, inner) in enumerate(zip(value["filters"], condition.filters, strict=True)):
            rest, missed = relax(part, inner, holds, f"{where}.filters[{at}]")
            unmet += missed
            if rest is not None:
                kept.append(rest)
        return ({**value, "filters": kept} if kept else None), unmet
    return None, list(at_fault(condition, holds, where))


def at_fault(
    condition: Filter, holds: Callable[[Filter], bool], where: str, negated: bool = False
) -> Iterator[Unmet]:
    """The conditions whose outcome would have to change."""
    if holds(condition) is not negated:
        return
    if isinstance(condition, Compound):
        for at, part in enumerate(condition.filters):
            yield from at_fault(part, holds, f"{where}.filters[{at}]", negated)
    elif isinstance(condition, Not):
        yield from at_fault(condition.filter, holds, f"{where}.filter", not negated)
    elif isinstance(condition, Unchecked):
        yield from at_fault(condition.filter, holds, where, negated)
    else:
        yield Unmet(where, condition, negated)
