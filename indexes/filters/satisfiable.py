"""Refuses a filter that asks for what no value is: a key nobody has, a kind of value that the key never holds.

Such a filter is nearly always a slip, and an empty answer would hide it; or, with `ne` or `not`, an answer that is
everything, in front of a deletion. A value that merely does not occur is no error. Removed passages still count until
a rebuild forgets them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from indexes.errors import InvalidInput
from indexes.filters.dates import looks_like_a_date
from indexes.filters.grammar import ORDERINGS, Comparison, Exists, Filter, Kind, conditions, kind_of
from indexes.filters.index import FilterPart
from indexes.suggestions import suggestion

EXAMPLE_CHARS_MAX = 40


def require_satisfiable(condition: Filter, parts: Sequence[FilterPart]) -> None:
    """Raises InvalidInput naming the place in the filter, and what there is instead."""
    if not any(part.size for part in parts):
        return  # nothing is there yet, so nothing can be a slip
    for where, part in conditions(condition):
        held = {kind: one for one in parts for kind in one.kinds(part.key)}
        if not held:
            if isinstance(part, Comparison) or part.value:
                raise InvalidInput(_unknown(part, where, parts), param=where)
        elif isinstance(part, Comparison):
            _require_kind(part, where, held, parts)


def _require_kind(
    asked: Comparison, where: str, held: dict[Kind, FilterPart], parts: Sequence[FilterPart]
) -> None:
    """`held`: the kinds of the key's values, each with a part that has it."""
    kinds = [kind_of(value) for value in asked.values]
    missing = None
    if kinds and not held.keys() & set(kinds):
        missing = f"no {kinds[0]} is"
    elif asked.instant is not None and not any(part.has_dates(asked.key) for part in parts):
        missing = "no date (2026-01-05, 2026-01-05T10:00:00Z) is"
    elif (
        asked.instant is None
        and asked.type in ORDERINGS
        and looks_like_a_date(asked.value)
        and any(part.has_dates(asked.key) for part in parts)
    ):
        raise InvalidInput(
            f"{where}: {asked.key!r} holds dates, and {asked.value!r} is none; write 2026-01-05 or "
            "2026-01-05T10:00:00Z",
            param=where,
        )
    if missing:
        there = " and ".join(
            f"{kind}s (such as {_shown(part, kind, asked.key)})" for kind, part in sorted(held.items())
        )
        raise InvalidInput(f"{where}: {asked.key!r} holds {there}, {missing} among them", param=where)


def _shown(part: FilterPart, kind: Kind, key: str) -> str:
    value = part.example(kind, key)
    if isinstance(value, str) and len(value) > EXAMPLE_CHARS_MAX:
        value = f"{value[:EXAMPLE_CHARS_MAX]}..."
    return msgspec.json.encode(value).decode()


def _unknown(asked: Comparison | Exists, where: str, parts: Sequence[FilterPart]) -> str:
    known = frozenset().union(*(part.keys for part in parts))
    return f"{where}: no document has the metadata key {asked.key!r}; {suggestion(asked.key, known)}"
