"""The interface of the filter index of one part, and how the conditions of a filter combine.

An index is a set of columns: a key and a kind of value (string, number, boolean), because values of different kinds
never match. Keys and strings are stored in Unicode's composed form (NFC). An index answers for rows 0 to size-1. Which
of them live is decided elsewhere, so deletions need no work here.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from indexes.base.arrays import changes
from indexes.base.model import Rows, Scalar
from indexes.base.normalizing import normalize
from indexes.base.work import OnStep, do_nothing
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
    canonical,
    kind_of,
)
from indexes.filters.values import Instants, Positions, Values

AFTER_DOT = chr(ord(".") + 1)
FEW = 4  # values a row, on average, up to which none are left out

KINDS: tuple[Kind, ...] = ("string", "number", "boolean")
Name = tuple[Kind, str]


def at_key(names: Sequence[str], key: str) -> slice:
    """Where a key is among ascending ones; empty if they do not have it."""
    return slice(bisect_left(names, key), bisect_right(names, key))


def below(names: Sequence[str], key: str) -> slice:
    """Where the dotted keys that begin with a key are among ascending ones."""
    return slice(bisect_left(names, f"{key}."), bisect_left(names, f"{key}{AFTER_DOT}"))


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
    def held_by(self, rows: Rows) -> tuple[Rows, Positions]:
        """Each of these rows, once for each value that it has, with the value's position in the column."""

    @abstractmethod
    def value_at(self, position: int) -> Scalar:
        """A value by its position; booleans perhaps as numbers."""

    @abstractmethod
    def ranks(self, positions: Positions) -> Positions:
        """Numbers that order the values at these positions."""

    def deciding(self, rows: Rows) -> Iterator[tuple[int, Scalar]]:
        """Each of these rows with those of its values that decide how it compares with others: the first and the last,
        for strings also by date, and a string that is no date if it has one. Booleans perhaps as numbers."""
        held, positions = self.held_by(rows)
        if len(held) > FEW * len(rows):
            order = np.argsort(held, kind="stable")
            held, positions = held[order], positions[order]
            begins = np.flatnonzero(changes(held))
            lengths = np.diff(begins, append=len(held))
            keys = [self.ranks(positions)]
            if isinstance(self.example(), str):
                keys.append(self.instants()[positions])  # a string that is no date is before all dates
            chosen = []
            for key in keys:
                for first in (np.minimum, np.maximum):
                    equal = np.flatnonzero(key == np.repeat(first.reduceat(key, begins), lengths))
                    chosen.append(equal[changes(held[equal])])
            at = np.concatenate(chosen)
            held, positions = held[at], positions[at]
        for row, position in zip(held.tolist(), positions.tolist()):
            yield row, self.value_at(position)

    @abstractmethod
    def within(self, low: float | None, high: float | None) -> BitMap:
        """Rows with a number from `low` and below `high`; None is open."""

    @abstractmethod
    def around(self, number: float) -> tuple[float, float]:
        """The last value of a numeric column up to this number, and the first one above it; infinite if there is
        none."""

    @abstractmethod
    def instants(self) -> Instants:
        """The instants of the values of a column of strings; NO_DATE for a string that is not a date."""

    @abstractmethod
    def ordered_years(self, ordering: str, bound: str) -> NDArray[np.bool_]:
        """Which strings begin with a year, four digits, and compare so with the bound; one flag for each of
        `instants()`."""

    @abstractmethod
    def chosen(self, flags: NDArray[np.bool_]) -> BitMap:
        """Rows of the chosen strings, one flag for each."""

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
        flags = dates & ORDERINGS[holds](instants, bound)
        if is_month_or_year(text) and not dates.all():
            flags |= ~dates & self.ordered_years(ordering, text)
        return self.chosen(flags)

    def inside(self, spans: Sequence[Span]) -> BitMap:
        """Rows of a column of strings that have a date inside one of these spans. They may overlap."""
        instants = self.instants()
        begins, ends = (np.sort(np.array(bounds, np.int64)) for bounds in zip(*spans, strict=True))
        # A date is inside as many spans as have begun and not ended; NO_DATE is before all of them.
        begun = np.searchsorted(begins, instants, "right")
        return self.chosen(begun > np.searchsorted(ends, instants, "right"))


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

    @abstractmethod
    def present_under(self, key: str) -> BitMap:
        """Rows that have a value under this key, or under a dotted key that begins with it. An object may hold any
        number of keys. The caller may change the bitmap."""

    def keys_below(self, key: str) -> Iterator[str]:
        """The dotted keys of what objects under this key hold, ascending."""
        names = self.names
        return (one for one in names[below(names, normalize("NFC", key))] if self.columns(one))

    def keys_near(self, key: str, most: int) -> list[str]:
        """Keys that some row has a value for: all of them, or the `most` around this one in the alphabet."""
        names = self.names
        first = max(min(bisect_left(names, key) - most // 2, len(names) - most), 0)
        return [one for one in names[first : first + most] if self.columns(one)]

    def has_dates(self, key: str) -> bool:
        """Whether some string under the key is a date."""
        strings = self.column("string", key)
        return strings is not None and bool((strings.instants() != NO_DATE).any())

    def has_years(self, key: str) -> bool:
        """Whether some string under the key is a date or begins with a year."""
        strings = self.column("string", key)
        return self.has_dates(key) or (strings is not None and bool(strings.ordered_years("gte", "").any()))

    def has_other_strings(self, key: str) -> bool:
        """Whether some string under the key is not a date. An example usually decides without parsing all of them."""
        strings = self.column("string", key)
        if strings is None:
            return False
        return instant_of(str(strings.example())) == NO_DATE or bool((strings.instants() == NO_DATE).any())

    def match(self, condition: Filter, on_step: OnStep = do_nothing) -> BitMap:
        """Rows that satisfy the filter; an unknown key matches nothing. The caller may change the bitmap. `on_step` is
        called before each condition."""
        match condition:
            case Compound(type, filters):
                found = (self.match(one, on_step) for one in filters)
                return reduce(operator.iand if type == "and" else operator.ior, found)
            case Not(inner):
                return self.match(inner, on_step).flip(0, self.size)
            case Unchecked(inner):
                return self.match(inner, on_step)
            case Exists(key, wanted):
                on_step()
                present = self.present_under(key)
                return present if wanted else present.flip(0, self.size)
            case _:
                on_step()
                return self._compare(condition)

    def _compare(self, asked: Comparison) -> BitMap:
        if asked.type in ORDERINGS or asked.type == "prefix":
            (bound,) = map(canonical, asked.values)
            column = self.column(kind_of(bound), asked.key)
            if column is None:
                return BitMap()
            if isinstance(bound, str) and asked.type != "prefix":
                return column.compare(asked.type, bound)
            return column.ordered(asked.type, bound)
        wanted: dict[Kind, list[Scalar]] = {}
        for value in map(canonical, asked.values):
            wanted.setdefault(kind_of(value), []).append(value)
        rows = BitMap()
        for kind, values in wanted.items():
            if column := self.column(kind, asked.key):
                rows |= column.equal(values)
                texts = [value for value in values if isinstance(value, str) and not asked.literal]
                if spans := [span for text in texts if (span := span_of(text))]:
                    rows |= column.inside(spans)
        return rows.flip(0, self.size) if asked.type in ("ne", "nin") else rows
