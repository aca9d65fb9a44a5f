"""Column types of tables: declared with `--types`, or inferred when all cells agree.

A wrong guess loses data (the zip code 01234 is not 1234), so inference accepts only values that round-trip: leading
zeros, `+`, exponents, decimal commas and more than 15 digits stay strings. Declared types accept more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, cast, get_args

from indexes.base.errors import InvalidInput
from indexes.filters.dates import NO_DATE, instant_of

Kind = Literal["string", "number", "boolean", "date"]

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_BOOLEANS = {"true": True, "false": False}
_DECLARED_BOOLEANS = {**_BOOLEANS, "yes": True, "no": False, "1": True, "0": False}
# Integers of up to 15 digits are exact as floats; longer ones are mostly card or account numbers.
DIGITS_MAX = 15


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type. `date_format` is a `datetime.strptime` format; None means ISO 8601."""

    kind: Kind
    date_format: str | None = None
    inferred: bool = False

    def value(self, cell: str) -> str | int | float | bool | None:
        """Convert `cell` to this type; return None if it does not fit."""
        if self.kind == "string":
            return cell
        cell = cell.strip()
        if self.kind == "number":
            return _number(cell) if not self.inferred or _round_trips(cell) else None
        if self.kind == "boolean":
            return (_BOOLEANS if self.inferred else _DECLARED_BOOLEANS).get(cell.lower())
        if self.date_format is not None:
            return _date(cell, self.date_format)
        return None if instant_of(cell) == NO_DATE else cell  # what filters accept as a date


def infer(cells: Iterable[str]) -> ColumnType:
    """Return the type that fits every nonblank cell."""
    filled = [cell for cell in cells if cell.strip()]
    kinds: tuple[Kind, ...] = ("number", "boolean", "date")
    for kind in kinds:
        column_type = ColumnType(kind, inferred=True)
        if filled and all(column_type.value(cell) is not None for cell in filled):
            return column_type
    return ColumnType("string", inferred=True)


def parse_types(declared: str) -> dict[str, ColumnType]:
    """Parse `zip=string,published=date:%d/%m/%Y` to types by column. Raises InvalidInput."""
    types = {}
    for one in re.split(r",(?=[^,=]+=)", declared):  # formats may contain commas
        column, _, written = one.partition("=")
        kind, _, date_format = written.partition(":")
        if not column.strip() or kind not in get_args(Kind) or (date_format and kind != "date"):
            raise InvalidInput(
                f"types: expected COLUMN=TYPE, of the types {', '.join(get_args(Kind))} or date:FORMAT, found {one!r}",
                param="types",
            )
        if date_format:
            _check_format(date_format)
        types[column.strip()] = ColumnType(cast("Kind", kind), date_format or None)
    return types


def _check_format(date_format: str) -> None:
    example = datetime(2021, 12, 31)  # noqa: DTZ001 - only to validate the format
    try:
        datetime.strptime(example.strftime(date_format), date_format)  # noqa: DTZ007
    except ValueError as error:
        raise InvalidInput(f"types: the date format {date_format!r}: {error}", param="types") from error


def _round_trips(cell: str) -> bool:
    return bool(_NUMBER.fullmatch(cell)) and sum(map(str.isdigit, cell)) <= DIGITS_MAX


def _number(cell: str) -> int | float | None:
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(cell: str, date_format: str) -> str | None:
    try:
        moment = datetime.strptime(cell, date_format)  # noqa: DTZ007 - naive if the cell has no time zone
    except ValueError:
        return None
    has_time = re.search(r"%[HIcX]", date_format)
    return moment.isoformat() if has_time else moment.date().isoformat()
