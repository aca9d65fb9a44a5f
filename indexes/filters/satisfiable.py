"""Rejects filters on a metadata key, or a kind of value, that no passage has, anywhere in the filter.

Such a filter is nearly always a mistake. An empty answer would hide it, and with `ne` or `not` it would match
everything, even before a deletion. A value that merely does not occur is not an error. Keys and kinds of removed
passages count until the next rebuild, so no error shows a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice

from indexes.base.errors import InvalidInput
from indexes.base.expiry import EXPIRES
from indexes.base.model import Scalar
from indexes.base.suggestions import suggestion
from indexes.filters.dates import is_month_or_year, looks_like_a_date, span_of
from indexes.filters.filter_part import FilterPart
from indexes.filters.grammar import ORDERINGS, Comparison, Filter, Kind, canonical, conditions, kind_of

EXAMPLE_CHARS_MAX = 40
PATHS_MAX = 5  # named of an object
KEYS_COMPARED_MAX = 1000  # of each part with a key that no document has
DATES = "2026-01-05, 2026-01-05T10:00:00Z"
FORMS = f"{DATES}, 2026-01 or 2026"


class _Held:
    """What the parts hold under a key. It is found out once, for a filter may name thousands of values."""

    def __init__(self, key: str, parts: Sequence[FilterPart]) -> None:
        self._key, self._parts = key, parts
        self._columns = [part.columns(key) for part in parts]
        self.columns = {kind: column for columns in self._columns for kind, column in columns.items()}

    @cached_property
    def dates(self) -> bool:
        return any(part.has_dates(self._key) for part in self._parts)

    @cached_property
    def years(self) -> bool:
        return any(part.has_years(self._key) for part in self._parts)

    @cached_property
    def other_strings(self) -> bool:
        return any(part.has_other_strings(self._key) for part in self._parts)

    def has(self, text: str) -> bool:
        """Whether a document has this string, letter for letter."""
        strings = [columns["string"] for columns in self._columns if "string" in columns]
        return any(column.equal([canonical(text)]) for column in strings)


def require_satisfiable(condition: Filter, parts: Sequence[FilterPart]) -> None:
    """Raise InvalidInput unless the filter can match, naming the place in it and what exists instead."""
    if not any(part.size for part in parts):
        return  # nothing is there yet, so nothing can be a mistake
    keys: dict[str, _Held] = {}
    for where, asked in conditions(condition):
        if (held := keys.get(asked.key)) is None:
            held = keys[asked.key] = _Held(asked.key, parts)
        if held.columns and isinstance(asked, Comparison):
            for at, value in enumerate(asked.values):
                place = f"{where}.value[{at}]" if isinstance(asked.value, list) else where
                _require_kind(value, asked, place, held)
        elif isinstance(asked, Comparison) or (
            asked.value and not held.columns and not _below(asked.key, parts)
        ):
            require_key(asked.key, where, parts)


def require_key(key: str, where: str, parts: Sequence[FilterPart]) -> None:
    """Raise InvalidInput if no row has a value under the key, unless there are no rows.

    An object is not a value: the message then names the keys inside it.
    """
    if any(part.size for part in parts) and not any(part.columns(key) for part in parts):
        if below := _below(key, parts):
            named = ", ".join(map(repr, below[:PATHS_MAX])) + (", ..." if len(below) > PATHS_MAX else "")
            raise InvalidInput(
                f"{where}: the metadata key {key!r} holds objects; name what is in them by a dotted path: {named}",
                param=where,
            )
        near = {one for part in parts for one in part.keys_near(key, KEYS_COMPARED_MAX)} - {EXPIRES}
        raise InvalidInput(
            f"{where}: no document has the metadata key {key!r}; {suggestion(key, sorted(near))}", param=where
        )


def _below(key: str, parts: Sequence[FilterPart]) -> list[str]:
    """Some of the dotted keys of objects under this key: one more than are named, if there are as many."""
    found = {one for part in parts for one in islice(part.keys_below(key), PATHS_MAX + 1)}
    return sorted(found)[: PATHS_MAX + 1]


def _require_kind(value: Scalar, asked: Comparison, where: str, held: _Held) -> None:
    """Require values of this one's kind."""
    missing: str = kind_of(value)
    if missing in held.columns:
        if not isinstance(value, str) or asked.type == "prefix" or asked.literal:
            return
        if span_of(value) is None:
            if _must_be_a_date(value, asked, held):
                raise InvalidInput(
                    f"{where}: {asked.key!r} holds dates, and {_shorten(value)!r} is not one; write {FORMS}",
                    param=where,
                )
            return
        if asked.type not in ORDERINGS or (held.years if is_month_or_year(value) else held.dates):
            return
        missing = f"date ({DATES})"
    raise _without(missing, asked.key, where, held.columns)


def require_values(
    key: str, where: str, parts: Sequence[FilterPart], kinds: Sequence[Kind], *, dates: bool = False
) -> None:
    """Raise InvalidInput if the key has values but none of these kinds, nor a date if `dates` count too."""
    held = {kind: column for part in parts for kind, column in part.columns(key).items()}
    if not held or held.keys() & set(kinds) or (dates and any(part.has_dates(key) for part in parts)):
        return
    wanted = [*kinds[:1], *([f"date ({DATES})"] if dates else [])]
    error = _without(" or ".join(wanted), key, where, held)
    if any(part.has_dates(key) for part in parts):
        error.message += ", only dates; a boost reads them with decay, a facet with dates as its ranges"
    raise error


def _without(missing: str, key: str, where: str, held: Iterable[Kind]) -> InvalidInput:
    there = " and ".join(f"{kind}s" for kind in sorted(held))
    return InvalidInput(f"{where}: {key!r} holds {there}, no {missing} is among them", param=where)


def _must_be_a_date(text: str, asked: Comparison, held: _Held) -> bool:
    """Whether a text that is not a date must be a mistake for one.

    It is if the key holds only dates, or if it holds dates among others and the text looks like a date. A text that a
    document has, letter for letter, is always meant.
    """
    if not held.other_strings:
        return True
    if not looks_like_a_date(text) or not held.dates:
        return False
    return asked.type in ORDERINGS or not held.has(text)


def _shorten(value: str) -> str:
    return value if len(value) <= EXAMPLE_CHARS_MAX else f"{value[:EXAMPLE_CHARS_MAX]}..."
