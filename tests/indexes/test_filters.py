"""The filter grammar: what it accepts, what it refuses and with which words."""

from __future__ import annotations

import pytest

from indexes.errors import InvalidInput
from indexes.filters.grammar import Comparison, Compound, parse_filter


def test_a_nested_filter_is_parsed() -> None:
    """Compounds hold compounds and comparisons."""
    inner = {"type": "or", "filters": [{"type": "in", "key": "b", "value": ["x", "y"]}]}
    parsed = parse_filter(
        {"type": "and", "filters": [{"type": "eq", "key": "a", "value": 1}, inner]}, conditions_max=9
    )
    assert parsed == Compound(
        "and", [Comparison("eq", "a", 1), Compound("or", [Comparison("in", "b", ["x", "y"])])]
    )


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], "filter"),
        ({}, "filter"),
        ({"type": "like", "key": "a", "value": 1}, "filter"),
        ({"type": "eq", "key": "a"}, "filter"),
        ({"type": "eq", "key": 3, "value": 1}, "filter"),
        ({"type": "eq", "key": "a", "value": None}, "filter"),
        ({"type": "eq", "key": "a", "value": {"x": 1}}, "filter"),
        ({"type": "eq", "key": "a", "value": [1]}, "filter.value"),
        ({"type": "in", "key": "a", "value": 1}, "filter.value"),
        ({"type": "gt", "key": "a", "value": True}, "filter.value"),
        ({"type": "eq", "key": "a", "value": 2**64}, "filter.value"),
        ({"type": "in", "key": "a", "value": [1, -(2**63) - 1]}, "filter.value"),
        ({"type": "eq", "key": "a", "value": 1, "extra": 1}, "filter"),
        ({"type": "and", "filters": []}, "filter.filters"),
        ({"type": "and"}, "filter.filters"),
        ({"type": "or", "filters": [{"type": "eq", "key": "a", "value": 1}, 7]}, "filter.filters[1]"),
        ({"type": "and", "filters": [{"type": "no"}], "x": 1}, "filter"),
    ],
)
def test_bad_filters_name_their_place(value: object, param: str) -> None:
    """Each is InvalidInput with the path of the fault."""
    with pytest.raises(InvalidInput) as caught:
        parse_filter(value, conditions_max=9)
    assert caught.value.param == param


def test_too_many_or_too_deep_is_refused() -> None:
    """Conditions are counted over the whole filter, and nesting is bounded."""
    one = {"type": "eq", "key": "a", "value": 1}
    with pytest.raises(InvalidInput, match="too many"):
        parse_filter({"type": "and", "filters": [one] * 10}, conditions_max=9)
    parse_filter({"type": "and", "filters": [one] * 9}, conditions_max=9)
    deep: dict[str, object] = one
    for _ in range(20):
        deep = {"type": "and", "filters": [deep]}
    with pytest.raises(InvalidInput, match="too deep"):
        parse_filter(deep, conditions_max=100)
