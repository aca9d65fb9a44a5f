"""The filter grammar: what it accepts, what it refuses and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from indexes.errors import InvalidInput
from indexes.filters import Comparison, Compound, FilterIndex, parse_filter
from indexes.model import Scalar


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


def test_kinds_do_not_mix() -> None:
    """True is not 1, "1" is not 1, and 1.0 is."""
    index = FilterIndex()
    values: list[Scalar] = [True, 1, "1", 1.0]
    for at, value in enumerate(values):
        index.add(range(at, at + 1), {"x": value})
    assert list(index.match(Comparison("eq", "x", 1))) == [1, 3]
    assert list(index.match(Comparison("eq", "x", True))) == [0]
    assert list(index.match(Comparison("eq", "x", "1"))) == [2]
    assert list(index.match(Comparison("gte", "x", 0))) == [1, 3]
    assert list(index.match(Comparison("gte", "x", "0"))) == [2]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """A loaded index matches like the saved one."""
    index = FilterIndex()
    index.add(range(1, 4), {"topic": "a", "n": 1.5, "ok": True, "tags": ["x", "y"]})
    index.add(range(4, 5), {"topic": "b"})
    index.save(tmp_path / "filters")
    loaded = FilterIndex.load(tmp_path / "filters")
    for condition in (
        Comparison("ne", "topic", "a"),
        Comparison("lt", "n", 2),
        Comparison("eq", "tags", "y"),
        Comparison("eq", "ok", True),
    ):
        assert list(loaded.match(condition)) == list(index.match(condition))
    assert loaded.keys == ["n", "ok", "tags", "topic"]


def test_joining_keeps_the_newer_ids_only() -> None:
    """Of the other index, ids up to the bound are left out."""
    old, new = FilterIndex(), FilterIndex()
    old.add(range(1, 3), {"a": "x"})
    new.add(range(1, 6), {"a": "x", "b": 1})
    joined = old.joined(new, above=3)
    assert list(joined.match(Comparison("eq", "a", "x"))) == [1, 2, 4, 5]
    assert list(joined.match(Comparison("eq", "b", 1))) == [4, 5]
    assert list(new.match(Comparison("eq", "b", 1))) == [1, 2, 3, 4, 5]
