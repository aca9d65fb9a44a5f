"""Guesses what an invalid filter was meant to be: a misspelled name, or another system's syntax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from indexes.base.suggestions import NAME_CHARS_SHOWN, suggestion, synonym

EXAMPLE = '{"type":"eq","key":"lang","value":"en"}'
COMPARISONS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "prefix", "exists")
OPERATORS = (*COMPARISONS, "and", "or", "not")
OPERATORS_ALIKE = (
    frozenset({"eq", "equals", "equal", "==", "=", "is", "match", "term", "contains"}),
    frozenset({"ne", "neq", "not_equals", "not_equal", "!=", "<>", "is_not"}),
    frozenset({"gt", ">", "greater", "greater_than", "after"}),
    frozenset({"gte", "ge", ">=", "min", "from", "since"}),
    frozenset({"lt", "<", "less", "less_than", "before"}),
    frozenset({"lte", "le", "<=", "max", "to", "until"}),
    frozenset({"in", "any_of", "one_of", "terms", "any"}),
    frozenset({"nin", "not_in", "none_of"}),
    frozenset({"prefix", "starts_with", "startswith", "begins_with", "like"}),
    frozenset({"exists", "has", "is_set", "not_null", "is_not_null"}),
    frozenset({"and", "all", "must", "&&"}),
    frozenset({"or", "should", "||"}),
    frozenset({"not", "must_not", "nor", "!"}),
)
FIELDS_ALIKE = (
    frozenset({"key", "field", "name", "attribute", "column", "path", "property"}),
    frozenset({"value", "values", "operand"}),
    frozenset({"type", "operator", "op", "operation"}),
    frozenset({"filter", "filters", "condition", "conditions", "clauses", "operands", "must"}),
)
SHOWN_CHARS_MAX = 600
DEPTH_MAX = 8


def about(value: dict[str, Any], is_filter: Callable[[object], bool]) -> tuple[str, str]:
    """Why an object without a known type is not a filter and how it should look, and the field at fault, or "".

    `is_filter` tests a suggestion.
    """
    given = value.get("type")
    if isinstance(given, str) and (
        value.keys() & {"key", "filter", "filters"} or synonym(given, OPERATORS, OPERATORS_ALIKE)
    ):
        hint = suggestion(given, OPERATORS, OPERATORS_ALIKE)
        return (
            f"unknown type {given[:NAME_CHARS_SHOWN]!r}, the types are {' '.join(OPERATORS)}; {hint}",
            ".type",
        )
    shape = translate(value, DEPTH_MAX)
    shown = msgspec.json.encode(shape).decode() if is_filter(shape) else ""
    if 0 < len(shown) <= SHOWN_CHARS_MAX:
        return f"a filter needs a type; this one is written {shown}", ""
    return f"a filter needs a type (one of {' '.join(OPERATORS)}), as in {EXAMPLE}", ""


def translate(value: object, depth: int) -> dict[str, Any] | None:
    """Translate a filter in the style of MongoDB, or one that only lacks a type; None if it is neither.

    Every object in the result has a known type, but it may still be invalid.
    """
    if not isinstance(value, dict) or depth == 0:
        return None
    if "key" in value:
        given = next((value[name] for name in ("type", "operator", "op", "operation") if name in value), "eq")
        return _condition(str(value["key"]), str(given), value.get("value"))
    return _all([_entry(name, inner, depth) for name, inner in value.items()])


def _entry(name: str, inner: object, depth: int) -> dict[str, Any] | None:
    """One field of such a filter: a compound, or a key with its value, values or operators."""
    compound = name.removeprefix("$")
    if compound in ("and", "or") and isinstance(inner, list):
        parts = [translate(part, depth - 1) for part in inner]
        return None if None in parts else {"type": compound, "filters": parts}
    if compound == "not":
        part = translate(inner, depth - 1)
        return part and {"type": "not", "filter": part}
    if isinstance(inner, dict):
        return _all([_condition(name, operator, value) for operator, value in inner.items()])
    return _condition(name, "in" if isinstance(inner, list) else "eq", inner)


def _condition(key: str, given: str, value: object) -> dict[str, Any] | None:
    operator = synonym(given, COMPARISONS, OPERATORS_ALIKE)
    if operator is None or key.startswith("$"):
        return None
    if value is None:
        return {"type": "exists", "key": key, "value": operator == "ne"}
    return {"type": operator, "key": key, "value": value}


def _all(parts: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    if not parts or None in parts:
        return None
    return parts[0] if len(parts) == 1 else {"type": "and", "filters": parts}
