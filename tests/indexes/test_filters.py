"""The filter grammar: what it accepts, what it refuses and with which words."""

from __future__ import annotations

import json

import pytest

from indexes.base.errors import InvalidInput
from indexes.filters.grammar import Comparison, Compound, Exists, Not, parse_filter


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
        ("kind = x", "filter"),
        ({"type": "sounds", "key": "a", "value": 1}, "filter.type"),
        ({"type": [], "key": "a", "value": 1}, "filter"),
        ({"type": "eq", "key": "a"}, "filter"),
        ({"type": "eq", "key": 3, "value": 1}, "filter.key"),
        ({"type": "eq", "key": "a", "value": None}, "filter.value"),
        ({"type": "eq", "key": "a", "value": {"x": 1}}, "filter.value"),
        ({"type": "in", "key": "a", "value": [1, {}]}, "filter.value[1]"),
        ({"type": "prefix", "key": "a", "value": 1}, "filter.value"),
        ({"type": "prefix", "key": "a", "value": ["x"]}, "filter.value"),
        ({"type": "exists"}, "filter"),
        ({"type": "exists", "key": "a", "value": 1}, "filter.value"),
        ({"type": "not"}, "filter.filter"),
        ({"type": "not", "filters": []}, "filter.filters"),
        ({"type": "not", "filter": {"type": "eq", "key": "a"}}, "filter.filter"),
        ({"type": "eq", "key": "a", "value": [1]}, "filter.value"),
        ({"type": "in", "key": "a", "value": 1}, "filter.value"),
        ({"type": "gt", "key": "a", "value": True}, "filter.value"),
        ({"type": "eq", "key": "a", "value": 2**64}, "filter.value"),
        ({"type": "in", "key": "a", "value": [1, -(2**63) - 1]}, "filter.value"),
        ({"type": "eq", "key": "a", "value": 1, "extra": 1}, "filter.extra"),
        ({"type": "eq", "key": "a", "value": "1", "literal": 1}, "filter.literal"),
        ({"type": "gt", "key": "a", "value": "1", "literal": True}, "filter.literal"),
        ({"type": "and", "filters": []}, "filter.filters"),
        ({"type": "and"}, "filter.filters"),
        ({"type": "or", "filters": [{"type": "eq", "key": "a", "value": 1}, 7]}, "filter.filters[1]"),
        ({"type": "and", "filters": [{"type": "no"}], "x": 1}, "filter.x"),
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
    with pytest.raises(InvalidInput, match="more than 9 conditions"):
        parse_filter({"type": "and", "filters": [one] * 10}, conditions_max=9)
    parse_filter({"type": "and", "filters": [one] * 9}, conditions_max=9)
    deep: dict[str, object] = one
    negated: dict[str, object] = one
    for _ in range(20):
        deep = {"type": "and", "filters": [deep]}
        negated = {"type": "not", "filter": negated}
    for nested in (deep, negated):
        with pytest.raises(InvalidInput, match="more than 16 deep"):
            parse_filter(nested, conditions_max=100)


def test_exists_and_not_are_parsed() -> None:
    """`exists` asks for a value unless it says false; `not` holds any filter."""
    parsed = parse_filter({"type": "not", "filter": {"type": "exists", "key": "a"}}, conditions_max=1)
    assert parsed == Not(Exists("a", True))
    assert parse_filter({"type": "exists", "key": "a", "value": False}, conditions_max=1) == Exists(
        "a", False
    )


EN = '{"type":"eq","key":"lang","value":"en"}'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"type": "equals", "key": "a", "value": 1}, "did you mean 'eq'?"),
        ({"type": "$gte", "key": "a", "value": 1}, "did you mean 'gte'?"),
        ({"type": "must", "filters": []}, "did you mean 'and'?"),
        (
            {"type": "near", "key": "a", "value": 1},
            "the types are eq ne gt gte lt lte in nin prefix exists and or not",
        ),
        ({"type": "eq", "field": "a", "value": 1}, "did you mean 'key'?"),
        ({"type": "or", "conditions": []}, "did you mean 'filters'?"),
        ({"type": "eq", "key": "a", "value": None}, '{"type":"exists","key":...,"value":false}'),
        ([{"type": "eq", "key": "a", "value": 1}], f"an object such as {EN}"),
        ({"lang": "en"}, EN),
        ({"lang": {"$eq": "en"}}, EN),
        ({"key": "lang", "value": "en"}, EN),
        ({"key": "lang", "operator": "!=", "value": "en"}, '{"type":"ne","key":"lang","value":"en"}'),
        ({"type": "article"}, '{"type":"eq","key":"type","value":"article"}'),
        ({"lang": ["en", "de"]}, '{"type":"in","key":"lang","value":["en","de"]}'),
        ({"lang": {"$nin": ["en"]}}, '{"type":"nin","key":"lang","value":["en"]}'),
        ({"lang": None}, '{"type":"exists","key":"lang","value":false}'),
        (
            {"$or": [{"lang": "en"}, {"year": {"$gte": 1, "$lt": 3}}]},
            f'"or","filters":[{EN},{{"type":"and","filters":[{{"type":"gte","key":"year","value":1}},{{"type":"lt"',
        ),
        ({"$not": {"lang": "en"}}, f'{{"type":"not","filter":{EN}}}'),
        ({"lang": {"$regex": "^e"}}, f"as in {EN}"),
        ({"lang": {"$gt": True}}, f"as in {EN}"),
        ({"$nor": [{"lang": "en"}]}, f"as in {EN}"),
        ({"$where": "true"}, f"as in {EN}"),
        ({"must": [{"key": "lang", "match": {"value": "en"}}]}, f"as in {EN}"),
        ({"lang": "x" * 5000}, f"as in {EN}"),
        ({}, f"as in {EN}"),
    ],
)
def test_a_filter_in_another_language_is_told_how_to_say_it(value: object, words: str) -> None:
    """The likely name, or exactly this filter in the grammar; where that is unclear, an example."""
    for whole, place in ((value, "filter"), ({"type": "and", "filters": [value]}, "filter.filters[0]")):
        with pytest.raises(InvalidInput) as refused:
            parse_filter(whole, conditions_max=9)
        assert words in refused.value.message
        assert refused.value.message.startswith(place)


def test_what_is_suggested_is_a_filter() -> None:
    """Whatever the error shows can be sent as it is."""
    for value in (
        {"a": 1, "b": [True, 2.5], "c": {"$ne": None, "$exists": True}},
        {"$and": [{"a": {"gt": 2}}]},
    ):
        with pytest.raises(InvalidInput) as refused:
            parse_filter(value, conditions_max=9)
        shown = refused.value.message.partition("this one is written ")[2]
        parse_filter(json.loads(shown), conditions_max=9)


def test_endless_nesting_in_another_language_is_refused() -> None:
    """No suggestion is worth a crash."""
    deep: dict[str, object] = {"a": 1}
    for _ in range(5000):
        deep = {"$not": deep}
    with pytest.raises(InvalidInput, match="needs a type"):
        parse_filter(deep, conditions_max=9)
