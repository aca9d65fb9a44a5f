"""The interface of the filter index of one part, and how the conditions of a filter combine.

An index is a set of columns: a key and a kind of value (string, number, boolean), because values of different kinds
never match. It answers for rows 0 to size-1. Which of them live is decided elsewhere, so deletions need no work here.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from indexes.base.model import Rows, Scalar
from indexes.base.normalizing import normalize
from indexes.filters.dates import NO_DATE, Span, instant_of, is_month_or_year, span_of
from indexes.filters.grammar import (
    ORDERINGS,
    Comparison,
    Compound,
    Exists,
    Filter,
    Kind,
    Not,
    Unchecked,
    kind_of,
)
from indexes.filters.values import Instants, Positions, Values

AFTER_DOT = chr(ord(".") + 1)

KINDS: tuple[Kind, ...] = ("string", "number", "boolean")
Name = tuple[Kind, str]


class Column(ABC):
    """The values of one kind under one key, at least one. Callers may change the bitmaps they get."""

    @abstractmethod
    def example(self) -> Scalar:
        """One of the values; booleans as numbers."""

    @abstractmethod
    def present(self) -> BitMap:
        """Rows that have any value."""

    @abstractmethod
    def equal(self, values: Sequence[Scalar]) -> BitMap:
        """Rows that have any of these values, which are of the column's kind."""

    @abstractmethod
    def ordered(self, ordering: str, bound: Scalar) -> BitMap:
        """Rows with a value for which the comparison with `bound` holds (`prefix`: that starts with it)."""

    @property
    @abstractmethod
    def distinct(self) -> int:
        """Number of different values."""

    @abstractmethod
    def counted(self, flags: NDArray[np.bool_]) -> tuple[Values, Positions]:
        """The distinct values in any order, booleans as numbers, and how many of the flagged rows (bool [size]) have
        each. Values that no flagged row has may be left out."""

    @abstractmethod
    def held_by(self, rows: Rows) -> list[tuple[int, Scalar]]:
        """Each of these rows with each value that it has; booleans perhaps as numbers."""

    @abstractmethod
    def within(self, low: float | None, high: float | None) -> BitMap:
        """Rows with a number from `low` and below `high`; None is open."""

    @abstractmethod
    def around(self, number: float) -> tuple[float, float]:
        """The last value of a numeric column up to this number, and the first one above it; infinite if there is
        none."""

    @abstractmethod
    def instants(self) -> Instants:
        """The instants of a column of strings; NO_DATE for a string that is not a date."""

    @abstractmethod
    def chosen(self, flags: NDArray[np.bool_]) -> BitMap:
        """Rows of the chosen strings; one flag for each of `instants()`."""

    def between(self, low: Scalar | None, high: Scalar | None) -> BitMap:
        """Rows with a value from `low` and below `high`, numbers or dates, not both None; None is open.

        A day, month or year stands for the instant at which it begins.
        """
        if not isinstance(low, str) and not isinstance(high, str):
            return self.within(low, high)
        instants = self.instants()
        flags = instants != NO_DATE
        if low is not None and (span := span_of(str(low))):
            flags &= instants >= span[0]
        if high is not None and (span := span_of(str(high))):
            flags &= instants < span[0]
        return self.chosen(flags)

    def compare(self, ordering: str, text: str) -> BitMap:
        """Rows of a column of strings that are gt, gte, lt or lte the text, as the grammar says."""
        span = span_of(text)
        if span is None:
            return self.ordered(ordering, text)
        instants = self.instants()
        dates = instants != NO_DATE
        begin, end = span
        holds, bound = {"gte": ("gte", begin), "lt": ("lt", begin), "gt": ("gte", end), "lte": ("lt", end)}[
            ordering
        ]
        found = self.chosen(dates & ORDERINGS[holds](instants, bound))
        if is_month_or_year(text):
            found |= self.ordered(ordering, text) - self.chosen(dates)
        return found

    def inside(self, spans: Sequence[Span]) -> BitMap:
        """Rows of a column of strings that have a date inside one of these spans. They may overlap."""
        instants = self.instants()
        begins, ends = (np.sort(np.array(bounds, np.int64)) for bounds in zip(*spans, strict=True))
        # A date is inside as many spans as have begun and not ended; NO_DATE is before all of them.
        begun = np.searchsorted(begins, instants, "right")
        return self.chosen(begun > np.searchsorted(ends, instants, "right"))


def _spellings(value: Scalar) -> Iterable[Scalar]:
    """Return a value as it is written and, of a string, composed and decomposed: "é" is one character or two."""
    if not isinstance(value, str) or value.isascii():
        return (value,)
    return {value, normalize("NFC", value), normalize("NFD", value)}


class FilterPart(ABC):
    """The filter index of one part. Safe from any thread."""

    size: int

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The keys of all columns, ascending. Some may have no value in any row yet."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Memory held, mapped files excluded. For a growing index an estimate, and that of all its rows."""

    @abstractmethod
    def column(self, kind: Kind, key: str) -> Column | None:
        """None if no row has such a value."""

    def columns(self, key: str) -> dict[Kind, Column]:
        """The columns of a key, by the kind of their values."""
        return {kind: column for kind in KINDS if (column := self.column(kind, key))}

    def keys_below(self, key: str) -> list[str]:
        """The dotted keys of what objects under this key hold, ascending."""
        first, end = bisect_left(self.names, f"{key}."), bisect_left(self.names, f"{key}{AFTER_DOT}")
        return [one for one in self.names[first:end] if self.columns(one)]

    def keys_near(self, key: str, most: int) -> list[str]:
        """Keys that some row has a value for: all of them, or the `most` around this one in the alphabet."""
        names = self.names
        first = max(min(bisect_left(names, key) - most // 2, len(names) - most), 0)
        return [one for one in names[first : first + most] if self.columns(one)]

    def has_dates(self, key: str) -> bool:
        """Whether some string under the key is a date."""
        strings = self.column("string", key)
        return strings is not None and bool((strings.instants() != NO_DATE).any())

    def has_other_strings(self, key: str) -> bool:
        """Whether some string under the key is not a date. An example usually decides without parsing all of them."""
        strings = self.column("string", key)
        if strings is None:
            return False
        return instant_of(str(strings.example())) == NO_DATE or bool((strings.instants() == NO_DATE).any())

    def match(self, condition: Filter) -> BitMap:
        """Rows that satisfy the filter; an unknown key matches nothing. The caller may change the bitmap."""
        match condition:
            case Compound(type, filters):
                return reduce(operator.iand if type == "and" else operator.ior, map(self.match, filters))
            case Not(inner):
                return self.match(inner).flip(0, self.size)
            case Unchecked(inner):
                return self.match(inner)
            case Exists(key, wanted):
                found = BitMap()
                for name in (key, *self.keys_below(key)):
                    for column in self.columns(name).values():
                        found |= column.present()
                return found if wanted else found.flip(0, self.size)
            case _:
                return self._compare(condition)

    def _compare(self, asked: Comparison) -> BitMap:
        if asked.type in ORDERINGS or asked.type == "prefix":
            assert not isinstance(asked.value, list)
            column = self.column(kind_of(asked.value), asked.key)
            if column is None:
                return BitMap()
            if isinstance(asked.value, str) and asked.type != "prefix":
                return column.compare(asked.type, asked.value)
            return column.ordered(asked.type, asked.value)
        wanted: dict[Kind, list[Scalar]] = {}
        for value in asked.values:
            wanted.setdefault(kind_of(value), []).extend(_spellings(value))
        rows = BitMap()
        for kind, values in wanted.items():
            if column := self.column(kind, asked.key):
                rows |= column.equal(values)
                spans = [span for value in values if isinstance(value, str) and (span := span_of(value))]
                if spans:
                    rows |= column.inside(spans)
        return rows.flip(0, self.size) if asked.type in ("ne", "nin") else rows
