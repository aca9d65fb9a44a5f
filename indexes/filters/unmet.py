"""Which conditions of a filter a document fails, and the filter without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from indexes.filters.grammar import Comparison, Compound, Exists, Filter, Not, conditions

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unmet:
    """One condition, the place in the filter where it stands, and whether it had to fail there (inside `not`)."""

    where: str
    condition: Comparison | Exists
    negated: bool = False


def relaxed(
    value: JSON, condition: Filter, holds: Callable[[Filter], bool], where: str = "filter"
) -> tuple[JSON | None, list[Unmet]]:
    """The filter without what keeps a document out, None if nothing is left of it; and what that was.

    `value` is `condition` as JSON; `holds` says whether the document satisfies a part of it. An `or` or a `not` goes as
    a whole.
    """
    if holds(condition):
        return value, []
    if isinstance(condition, Compound) and condition.type == "and":
        kept, unmet = [], []
        for at, (part, inner) in enumerate(zip(value["filters"], condition.filters, strict=True)):
            rest, missed = relaxed(part, inner, holds, f"{where}.filters[{at}]")
            unmet += missed
            if rest is not None:
                kept.append(rest)
        return ({**value, "filters": kept} if kept else None), unmet
    if isinstance(condition, Not):
        inside = conditions(condition.filter, f"{where}.filter")
        return None, [Unmet(place, one, negated=True) for place, one in inside if holds(one)]
    return None, [Unmet(place, one) for place, one in conditions(condition, where) if not holds(one)]
