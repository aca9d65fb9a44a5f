"""Filters on metadata: the grammar, and what it means.

The grammar is that of OpenAI's vector stores: comparisons `{"type": "eq", "key": ..., "value": ...}` with eq, ne,
gt, gte, lt, lte, in, nin, and compounds `{"type": "and", "filters": [...]}` with and, or.

Meaning: a value compares with values of its own kind (string, number, boolean). 1 and 1.0 are the same number, True
is none; integers and floats compare exactly, also beyond 2**53. Strings sort by code points. A list of strings
matches a comparison if one of its strings does. `ne` and `nin` are the complement of `eq` and `in`: documents without
the key match them. A key that no document has is an error, because it is nearly always a spelling mistake.

A filter index (`filter_index`, `filter_columns`) only says which rows have which values; `evaluate` does the rest.
Which rows live is decided elsewhere, so deletions need no work here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
from pyroaring import BitMap

from indexes.errors import InvalidInput
from indexes.model import Scalar

Kind = Literal["string", "number", "boolean"]


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key against one value, or against a list of values for in and nin."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: str
    value: Scalar | list[Scalar]


@dataclass(frozen=True, slots=True)
class Compound:
    """All (and) or any (or) of the filters inside."""

    type: Literal["and", "or"]
    filters: list[Filter]


Filter = Comparison | Compound

INTEGER_BOUND = 2**63  # of numbers in metadata and filters: what MessagePack and other languages can hold

ORDERINGS: dict[str, Callable[[Scalar, Scalar], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def parse_filter(value: object, *, conditions_max: int, depth_max: int = 16) -> Filter:
    """Decode and check a filter. Raises InvalidInput naming the place in it."""
    if not isinstance(value, dict):
        raise InvalidInput(f"filter must be an object, found {type(value).__name__}", param="filter")
    left = [conditions_max]
    return _parse(value, "filter", left, depth_max)


def _parse(value: object, where: str, left: list[int], depth: int) -> Filter:
    """`left` counts down the comparisons still allowed, over the whole filter."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind in ("and", "or"):
        if depth == 0:
            raise InvalidInput("filter is nested too deep", param="filter")
        return _parse_compound(value, where, left, depth)
    left[0] -= 1
    if left[0] < 0:
        raise InvalidInput("filter has too many conditions", param="filter")
    try:
        comparison = msgspec.convert(value, Comparison)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where}: {error}", param=where) from None
    _check_value(comparison, where)
    return comparison


def _parse_compound(value: dict[str, Any], where: str, left: list[int], depth: int) -> Compound:
    if unknown := sorted(value.keys() - {"type", "filters"}):
        raise InvalidInput(f"{where}: unknown field {unknown[0]!r}", param=where)
    inner = value.get("filters")
    if not isinstance(inner, list) or not inner:
        raise InvalidInput(f"{where}.filters must be a list of at least one filter", param=f"{where}.filters")
    parsed = [_parse(part, f"{where}.filters[{at}]", left, depth - 1) for at, part in enumerate(inner)]
    return Compound(value["type"], parsed)


def _check_value(comparison: Comparison, where: str) -> None:
    is_list = isinstance(comparison.value, list)
    if (comparison.type in ("in", "nin")) != is_list:
        expected = "a list" if not is_list else "one value"
        raise InvalidInput(f"{where}.value must be {expected} for {comparison.type}", param=f"{where}.value")
    values = comparison.value if isinstance(comparison.value, list) else [comparison.value]
    if any(one != one for one in values):  # noqa: PLR0124 - only NaN differs from itself
        raise InvalidInput(f"{where}.value is not a number", param=f"{where}.value")
    if any(isinstance(one, int) and not -INTEGER_BOUND <= one < INTEGER_BOUND for one in values):
        raise InvalidInput(f"{where}.value does not fit into 64 bits", param=f"{where}.value")
    if comparison.type in ORDERINGS and isinstance(comparison.value, bool):
        raise InvalidInput(f"{where}.value: booleans have no order, use eq or ne", param=f"{where}.value")


def keys_of(condition: Filter) -> Iterator[str]:
    """Every key the filter names."""
    if isinstance(condition, Comparison):
        yield condition.key
    else:
        for part in condition.filters:
            yield from keys_of(part)


class Answers(Protocol):
    """What `evaluate` asks of an index over rows 0 to size-1. It may change the bitmaps it gets."""

    @property
    def size(self) -> int: ...
    def equal(self, key: str, values: Sequence[Scalar]) -> BitMap:
        """Rows that have any of these values."""
        ...

    def ordered(self, key: str, ordering: str, bound: Scalar) -> BitMap:
        """Rows that have a value of the bound's kind that is gt, gte, lt or lte the bound."""
        ...


def evaluate(condition: Filter, index: Answers) -> BitMap:
    """Rows of the index that satisfy the filter. The caller may change the bitmap."""
    if isinstance(condition, Compound):
        result = evaluate(condition.filters[0], index)
        for part in condition.filters[1:]:
            if condition.type == "and":
                result &= evaluate(part, index)
            else:
                result |= evaluate(part, index)
        return result
    key, value = condition.key, condition.value
    if condition.type in ORDERINGS:
        assert not isinstance(value, list)
        return index.ordered(key, condition.type, value)
    found = index.equal(key, value if isinstance(value, list) else [value])
    return found.flip(0, index.size) if condition.type in ("ne", "nin") else found


def kind_of(value: Scalar) -> Kind:
    """Booleans are not numbers here, although Python thinks so; 1 and 1.0 are the same number."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"
