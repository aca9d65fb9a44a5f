"""Filters on metadata: the grammar, and what it means.

The grammar is that of OpenAI's vector stores: comparisons `{"type": "eq", "key": ..., "value": ...}` with eq, ne,
gt, gte, lt, lte, in, nin, and compounds `{"type": "and", "filters": [...]}` with and, or. Beyond it there are
`{"type": "prefix", "key": ..., "value": "..."}`, `{"type": "exists", "key": ...}`, which with `"value": false` asks
for the opposite, and `{"type": "not", "filter": {...}}`.

Meaning: a value compares with values of its own kind (string, number, boolean). 1 and 1.0 are the same number, True
is not a number; integers and floats compare exactly, also beyond 2**53. A string in a filter that is an ISO date means
an instant; a day, a month (2024-06) or a year means all of it (`dates`). Strings that are dates compare with that span:
eq and in hold inside it, gt after its end, lte up to its end. Other strings are equal only to themselves and sort by
code points; with an ISO date as bound they do not match, but for those that begin with a year where it is a month or a
year: 2026, 2026-Q1 and 20260105 are gte 2026. With `"literal": true`, eq, ne, in and nin compare strings as they are
written, dates too, as names and ids need it.
A key is a path of keys joined with dots into objects and lists (`base.paths`); it matches a comparison if one of its
values does, and an empty list or object is no value. Keys and strings compare in Unicode's composed form (NFC), so "é"
is one string, however it is encoded. `ne` and `nin` are the complement of `eq` and `in`: documents without the
key match them. A key or kind of value that no passage has is an error (`satisfiable`).

`filter_part` finds the rows that satisfy a filter. Encoded, each part of a filter names its class as its `node`.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from indexes.base.errors import InvalidInput
from indexes.base.model import Scalar
from indexes.base.normalizing import normalize
from indexes.base.suggestions import suggestion
from indexes.filters import hints

Kind = Literal["string", "number", "boolean"]


class Comparison(msgspec.Struct, frozen=True, tag_field="node"):
    """One key against one value, or against a list of values for in and nin. `literal` is for eq, ne, in and nin."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "prefix", "in", "nin"]
    key: str
    value: Scalar | list[Scalar]
    literal: bool = False

    @property
    def values(self) -> list[Scalar]:
        return self.value if isinstance(self.value, list) else [self.value]


class Exists(msgspec.Struct, frozen=True, tag_field="node"):
    """Whether there is any value under the key, or in an object there; with `value` false, whether there is none."""

    key: str
    value: bool = True


class Compound(msgspec.Struct, frozen=True, tag_field="node"):
    """All (and) or any (or) of the filters inside."""

    type: Literal["and", "or"]
    filters: list[Filter]


class Not(msgspec.Struct, frozen=True, tag_field="node"):
    """Everything that does not satisfy the filter inside."""

    filter: Filter


class Unchecked(msgspec.Struct, frozen=True, tag_field="node"):
    """The filter inside, whose keys need not exist."""

    filter: Filter


Filter = Comparison | Exists | Compound | Not | Unchecked

INTEGER_BOUND = 2**63  # of numbers in metadata and filters: what MessagePack and other languages can hold

ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
FIELDS = {
    "and": ("type", "filters"),
    "or": ("type", "filters"),
    "not": ("type", "filter"),
    **dict.fromkeys(hints.COMPARISONS, ("type", "key", "value")),
    **dict.fromkeys(("eq", "ne", "in", "nin"), ("type", "key", "value", "literal")),
}


def parse_filter(value: object, *, conditions_max: int, depth_max: int = 16) -> Filter:
    """Decode and check a filter. Raises InvalidInput naming the faulty place."""
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1
        if counted > conditions_max:
            raise InvalidInput(f"filter has more than {conditions_max} conditions", param="filter")

    return _parse(value, "filter", count, depth_max, depth_max)


def _parse(value: object, where: str, count: Callable[[], None], depth: int, depth_max: int) -> Filter:
    """`count` is called for each comparison, and `depth` more filters may be inside each other."""
    if not isinstance(value, dict):
        raise _fault(where, f"must be an object such as {hints.EXAMPLE}")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in FIELDS:
        message, field = hints.about(value, is_filter)
        raise _fault(f"{where}{field}", message)
    for name in value:
        if name not in FIELDS[kind]:
            raise _fault(
                f"{where}.{name}", f"unknown field; {suggestion(name, FIELDS[kind], hints.FIELDS_ALIKE)}"
            )
    if kind in ("and", "or", "not"):
        if depth == 0:
            raise InvalidInput(f"filter is nested more than {depth_max} deep", param="filter")
        if kind == "not":
            return Not(_parse(value.get("filter"), f"{where}.filter", count, depth - 1, depth_max))
        inner = value.get("filters")
        if not isinstance(inner, list) or not inner:
            raise _fault(f"{where}.filters", "must be a list of at least one filter")
        parts = [
            _parse(part, f"{where}.filters[{at}]", count, depth - 1, depth_max)
            for at, part in enumerate(inner)
        ]
        return Compound("and" if kind == "and" else "or", parts)
    count()
    return _parse_condition(value, where)


def is_filter(value: object) -> bool:
    try:
        parse_filter(value, conditions_max=sys.maxsize)
    except InvalidInput:
        return False
    return True


def _parse_condition(value: dict[str, Any], where: str) -> Comparison | Exists:
    if "value" in value and value["value"] is None:
        absent = '{"type":"exists","key":...,"value":false}'
        raise _fault(f"{where}.value", f"is null; a key without a value is {absent}")
    wanted: type[Comparison | Exists] = Exists if value["type"] == "exists" else Comparison
    try:
        condition = msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise _fault(f"{where}{place.rstrip('`')}", message) from None
    if isinstance(condition, Comparison):
        _check_value(condition, where)
    return condition


def _check_value(comparison: Comparison, where: str) -> None:
    kind, value = comparison.type, comparison.value
    if (kind in ("in", "nin")) != isinstance(value, list):
        fault = f"must be {'one value' if isinstance(value, list) else 'a list'} for {kind}"
    elif any(one != one for one in comparison.values):  # noqa: PLR0124 - only NaN differs from itself
        fault = "is not a number"
    elif not all(map(fits, comparison.values)):
        fault = "does not fit into 64 bits"
    elif kind in ORDERINGS and isinstance(value, bool):
        fault = "is a boolean: booleans have no order, use eq or ne"
    elif kind == "prefix" and not isinstance(value, str):
        fault = "must be a string for prefix"
    else:
        return
    raise _fault(f"{where}.value", fault)


def _fault(place: str, message: str) -> InvalidInput:
    return InvalidInput(f"{place}: {message}", param=place)


def fits(value: Scalar) -> bool:
    """Whether an integer is one of 64 bits; all other values are fine."""
    return not isinstance(value, int) or -INTEGER_BOUND <= value < INTEGER_BOUND


def conditions(condition: Filter, where: str = "filter") -> Iterator[tuple[str, Comparison | Exists]]:
    """Each condition on a key that must exist, with its place in the filter."""
    match condition:
        case Compound():
            for at, part in enumerate(condition.filters):
                yield from conditions(part, f"{where}.filters[{at}]")
        case Not():
            yield from conditions(condition.filter, f"{where}.filter")
        case Unchecked():
            return
        case _:
            yield where, condition


def canonical(value: Scalar) -> Scalar:
    """The value as it is indexed and compared: a string in Unicode's composed form."""
    return normalize("NFC", value) if isinstance(value, str) else value


def kind_of(value: Scalar) -> Kind:
    """The kind of a value. Unlike in Python, booleans are not numbers; 1 and 1.0 are the same number."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"
