"""Translates filters in the MongoDB style that LangChain's users know to the service's own grammar.

{"lang": "en", "price": {"$gte": 1, "$lt": 3}}     all conditions hold
{"$or": [{"lang": "en"}, {"tags": ["a", "b"]}]}    one of them holds; a list matches any of its values
{"source": {"page": 3}}                            a nested key, which is the key `source.page`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMPARISONS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "prefix", "exists")
OPERATORS = " ".join(f"${name}" for name in (*COMPARISONS, "between", "not", "and", "or", "nor"))
OWN_FIELDS = {"type", "key", "value", "filter", "filters"}

JSON = dict[str, Any]


def condition_of(given: Any) -> JSON | None:
    """Translate a plain filter; one in the service's grammar is returned as it is.

    None and empty filters mean no filter. Raises TypeError for anything but a dictionary, ValueError for an unknown
    operator; the service itself refuses what only it knows, such as a misspelled key.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"filter: expected a dictionary, found {type(given).__name__}")
    return _condition(given) if given else None


def all_of(parts: list[JSON]) -> JSON:
    return parts[0] if len(parts) == 1 else {"type": "and", "filters": parts}


def _condition(given: Any) -> JSON:
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"filter: expected a dictionary with a condition, found {given!r:.40}")
    if _is_own(given):
        return dict(given)
    return all_of([_entry(str(key), value) for key, value in given.items()])


def _is_own(given: Mapping[str, Any]) -> bool:
    """Whether it is in the service's grammar, valid or not."""
    own = isinstance(given.get("type"), str) and given.keys() <= OWN_FIELDS
    return own and bool(given.keys() & {"key", "filter", "filters"})


def _entry(key: str, value: Any) -> JSON:
    if key in {"$and", "$or", "$nor"}:
        if not isinstance(value, list | tuple) or not value:
            raise ValueError(f"filter: {key} needs a list of conditions, found {value!r:.40}")
        parts = [_condition(one) for one in value]
        if key == "$and":
            return {"type": "and", "filters": parts}
        either = {"type": "or", "filters": parts}
        return either if key == "$or" else _negation(either)
    if key == "$not":
        return _negation(_condition(value))
    if key.startswith("$"):
        raise ValueError(f"filter: unknown operator {key}; there are {OPERATORS}")
    return _field(key, value)


def _field(key: str, value: Any) -> JSON:
    if not isinstance(value, Mapping):
        return _comparison(key, "$in" if isinstance(value, list | tuple | set) else "$eq", value)
    operators = [str(name).startswith("$") for name in value]
    if not operators or any(operators) != all(operators):
        raise ValueError(f"filter on {key}: expected either operators or keys inside it, found {value!r:.80}")
    if any(operators):
        return all_of([_comparison(key, str(name), operand) for name, operand in value.items()])
    return all_of([_field(f"{key}.{name}", inner) for name, inner in value.items()])


def _comparison(key: str, operator: str, value: Any) -> JSON:
    name = operator.removeprefix("$")
    if name == "not":
        return _negation(_field(key, value))
    if name == "between" and isinstance(value, list | tuple) and len(value) == 2:
        low, high = value
        return all_of([_comparison(key, "$gte", low), _comparison(key, "$lte", high)])
    if name not in COMPARISONS:
        raise ValueError(f"filter on {key}: unknown operator {operator}; there are {OPERATORS}")
    if value is None and name in {"eq", "ne"}:
        return {"type": "exists", "key": key, "value": name == "ne"}
    return {"type": name, "key": key, "value": list(value) if isinstance(value, tuple | set) else value}


def _negation(condition: JSON) -> JSON:
    return {"type": "not", "filter": condition}
