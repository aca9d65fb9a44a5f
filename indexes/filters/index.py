"""Filter indexes that accept rows: `GrowingFilters` while it is searched (the delta), `FiltersBuilder` for a rebuild.

A growing column keeps its rows and the codes of their values in two parallel typed arrays, in the order of arrival. It
is small, so a match reads all of it (4,000 rows: about ten microseconds).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from indexes.base.arrays import changes, ends_of
from indexes.base.model import Ids, Metadata, Rows, Scalar
from indexes.base.normalizing import normalize
from indexes.base.paths import leaves
from indexes.filters.bitmaps import bitmap_of
from indexes.filters.columns import ColumnData, RowNumbers, SealedFilters
from indexes.filters.dates import YEAR, instant_of
from indexes.filters.filter_part import KINDS, Column, FilterPart, Name, at_key, below
from indexes.filters.grammar import ORDERINGS, Kind, canonical, kind_of
from indexes.filters.values import Instants, Numbers, Positions, TextBlock, Values, rank_values

REMEMBERED_MAX = 65_536  # distinct values a builder holds as Python objects: about 10 MB
FEW_NAMES = 64  # below a key: their rows are joined for each filter
ROW_BYTES = 4
KEPT_FROM = 4096  # values in all: preparing a column of fewer takes a few microseconds
VALUE_BYTES = 150  # per value besides its text, approximately: its object, its code and its dictionary entry


class GrowingFilters:
    """A filter index that takes rows from one thread while others match through `view`."""

    def __init__(self) -> None:
        self.distinct = 0  # values, over all columns
        self.bytes = 0
        self.columns: dict[Name, _Pairs] = {}
        self._names: tuple[int, list[str]] = 0, []  # the keys of so many columns, ascending
        self._rows = 0
        self._last: Metadata | None = None
        self._last_codes: list[tuple[_Pairs, int]] = []

    def add(self, metadata: Metadata) -> int:
        """Index this metadata as the next row; returns the row."""
        row = self._rows
        if metadata is not self._last:  # the passages of a document share its metadata
            # A list may repeat a value.
            self._last, self._last_codes = metadata, list(dict.fromkeys(self._coded(metadata)))
        for column, code in self._last_codes:
            # Codes first: a reader that sees a row must also find its code.
            column.held.append(code)
            column.rows.append(row)
        self.bytes += 8 * len(self._last_codes)
        self._rows = row + 1
        return row

    def _coded(self, metadata: Metadata) -> Iterator[tuple[_Pairs, int]]:
        """Each value as its column and its code there."""
        for path, value in leaves(metadata):
            if value != value:  # noqa: PLR0124 - NaN equals nothing and cannot be ordered
                continue
            name, value = (kind_of(value), normalize("NFC", path)), canonical(value)  # noqa: PLW2901
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = _Pairs()
            code = column.codes.get(value)
            if code is None:
                code = column.codes[value] = len(column.codes)
                self.distinct += 1
                self.bytes += VALUE_BYTES + (len(value) if isinstance(value, str) else 0)
            yield column, code

    def names(self) -> list[str]:
        """The keys of all columns, ascending. Only what was added since is sorted in."""
        known, names = self._names
        if len(self.columns) > known:
            columns = self.columns.copy()  # takes milliseconds with a hundred thousand keys
            new = {key for _, key in islice(columns, known, None)}
            names = [*names, *sorted(key for key in new if not names[at_key(names, key)])]
            names.sort()  # two ascending runs, which takes one pass
            self._names = len(columns), names
        return names

    def rows_under(self, key: str) -> bytes:
        """The numbers of the rows that have values under a key, as uint32, perhaps repeated."""
        held = (self.columns.get((kind, key)) for kind in KINDS)
        return b"".join(pairs.rows.tobytes() for pairs in held if pairs is not None)

    def view(self, size: int) -> GrowingFiltersView:
        """The first `size` rows, frozen: rows added later are not visible."""
        return GrowingFiltersView(self, size)

    def seal(self, size: int) -> SealedFilters:
        """The first `size` rows as an immutable index in memory. Rows may be added while it runs."""
        view = self.view(size)
        return SealedFilters.of(
            size,
            [column.sealed(name, size) for name in self.columns.copy() if (column := view.column(*name))],
        )


class _Pairs:
    """Pairs of row and value of one column in order of arrival, and a code for each distinct value, from 0."""

    __slots__ = ("codes", "converted", "held", "rows")

    def __init__(self) -> None:
        self.codes: dict[Scalar, int] = {}
        self.held = array("I")
        self.rows = array("I")
        self.converted: NDArray[Any] = np.empty(0, np.int64)  # the first values, see _GrowingColumn


class GrowingFiltersView(FilterPart):
    """The first rows of a growing index, as one search sees them."""

    def __init__(self, growing: GrowingFilters, size: int) -> None:
        self.size = size
        self._growing = growing
        self._columns: dict[Name, _GrowingColumn] = {}  # large ones that were asked for

    @property
    def names(self) -> Sequence[str]:
        return self._growing.names()

    @property
    def bytes(self) -> int:
        return self._growing.bytes

    def column(self, kind: Kind, key: str) -> _GrowingColumn | None:
        name = kind, normalize("NFC", key)
        pairs = self._growing.columns.get(name)
        if pairs is None:
            return None
        column = self._columns.get(name)
        if column is None:
            column = _GrowingColumn(pairs, self.size)
            if len(column.rows) >= KEPT_FROM:  # or as many as there are keys would be kept
                self._columns[name] = column
        return column if len(column.rows) else None

    def present_under(self, key: str) -> BitMap:
        names, key = self.names, normalize("NFC", key)
        under = below(names, key)
        if under.stop - under.start <= FEW_NAMES:
            held_rows = map(self._growing.rows_under, [key, *names[under]])
            rows = np.frombuffer(b"".join(held_rows), np.uint32)
        else:
            names, held, ends = self._by_name
            found = at_key(names, key), below(names, key)
            rows = np.concatenate([held[ends[one.start] : ends[one.stop]] for one in found])
        flags = np.zeros(self.size, bool)
        flags[rows[rows < self.size]] = True
        return bitmap_of(np.flatnonzero(flags).astype(np.uint32), self.size)

    @cached_property
    def _by_name(self) -> tuple[Sequence[str], RowNumbers, Positions]:
        """All keys, ascending, the rows that have values under them, one key after the other, and where those of each
        begin, and the last ones end."""
        names, rows = self.names, dict[str, bytes]()
        for (_, name), pairs in self._growing.columns.copy().items():
            rows[name] = rows.get(name, b"") + pairs.rows.tobytes()
        held = [rows.get(name, b"") for name in names]
        ends = ends_of(np.array([len(one) for one in held], np.int64) // ROW_BYTES)
        return names, np.frombuffer(b"".join(held), np.uint32), ends


class _GrowingColumn(Column):
    """The part of a column that one view sees: its rows, ascending, and the codes of their values."""

    def __init__(self, pairs: _Pairs, size: int) -> None:
        # tobytes copies under the GIL; a buffer view would prevent the writer from growing the array.
        rows = np.frombuffer(pairs.rows.tobytes(), np.uint32)
        self.rows: RowNumbers = rows[: np.searchsorted(rows, size)]
        self._codes = np.frombuffer(pairs.held.tobytes(), np.uint32)[: len(self.rows)].astype(np.intp)
        self._begins = np.flatnonzero(changes(self.rows))  # where the values of each row begin
        # Codes are given in order of arrival, so the values of these rows are the first ones.
        self._distinct = int(self._codes.max(initial=-1)) + 1
        self._pairs = pairs
        self._size = size

    def example(self) -> Scalar:
        return next(iter(self._pairs.codes))

    def present(self) -> BitMap:
        return bitmap_of(self.rows[self._begins], self._size)

    def equal(self, values: Sequence[Scalar]) -> BitMap:
        codes = [self._pairs.codes.get(value, self._distinct) for value in values]
        flags = np.zeros(self._distinct, bool)
        flags[[code for code in codes if code < self._distinct]] = True
        return self.chosen(flags) if flags.any() else BitMap()

    def ordered(self, ordering: str, bound: Scalar) -> BitMap:
        if not isinstance(bound, str):
            return self.chosen(self._numbers(ordering, bound))
        holds: Callable[[str, str], bool] = str.startswith if ordering == "prefix" else ORDERINGS[ordering]
        return self.chosen(
            np.fromiter((holds(text, bound) for text in self._values), np.bool_, self._distinct)
        )

    def _numbers(self, ordering: str, bound: float) -> NDArray[np.bool_]:
        """Which numbers compare so with the bound. Rounding to floats keeps order, so only equal floats need the exact
        numbers."""
        holds, keys = ORDERINGS[ordering], self._converted(float)
        flags = np.array(holds(keys, float(bound)), bool)
        tied = np.flatnonzero(keys == float(bound))
        flags[tied] = [holds(self._values[at], bound) for at in tied]
        return flags

    def ordered_years(self, ordering: str, bound: str) -> NDArray[np.bool_]:
        holds = ORDERINGS[ordering]
        flags = (holds(text, bound) and YEAR.match(text) is not None for text in self._values)
        return np.fromiter(flags, np.bool_, self._distinct)

    @property
    def distinct(self) -> int:
        return self._distinct

    def counted(self, flags: NDArray[np.bool_]) -> tuple[Values, Positions]:
        counts = np.bincount(self._codes[flags[self.rows]])
        found, values = np.flatnonzero(counts), self._values
        kind: type[TextBlock | Numbers] = TextBlock if isinstance(values[0], str) else Numbers
        return kind.of([values[at] for at in found.tolist()]), counts[found]

    def held_by(self, rows: Rows) -> tuple[Rows, Positions]:
        wanted = np.zeros(self._size, bool)
        wanted[rows] = True
        at = np.flatnonzero(wanted[self.rows])
        return self.rows[at].astype(np.int64), self._codes[at]

    @cached_property
    def _values(self) -> list[Any]:
        return list(self._pairs.codes)[: self._distinct]  # one atomic step, because the writer may be adding

    def value_at(self, position: int) -> Scalar:
        value: Scalar = self._values[position]
        return value

    def ranks(self, positions: Positions) -> Positions:
        return self._ranks[positions]

    @cached_property
    def _ranks(self) -> Positions:
        ranks = np.empty(self._distinct, np.int64)
        ranks[sorted(range(self._distinct), key=self._values.__getitem__)] = np.arange(self._distinct)
        return ranks

    def within(self, low: float | None, high: float | None) -> BitMap:
        flags = np.ones(self._distinct, bool)
        if low is not None:
            flags &= self._numbers("gte", low)
        if high is not None:
            flags &= self._numbers("lt", high)
        return self.chosen(flags)

    def around(self, number: float) -> tuple[float, float]:
        values = self._converted(float)
        before, after = values[values <= number], values[values > number]
        return float(before.max(initial=-np.inf)), float(after.min(initial=np.inf))

    def instants(self) -> Instants:
        return self._converted(instant_of)

    def _converted(self, convert: Callable[[Any], float]) -> NDArray[Any]:
        """Each value as a number, always by the same function. Two readers may convert the same new values."""
        known = self._pairs.converted
        if len(known) < len(self._pairs.codes):
            new = list(self._pairs.codes)[len(known) :]
            known = self._pairs.converted = np.append(known, np.array([convert(value) for value in new]))
        return known[: self._distinct]

    def chosen(self, flags: NDArray[np.bool_]) -> BitMap:
        held = np.logical_or.reduceat(flags[self._codes], self._begins)
        return bitmap_of(self.rows[self._begins[held]], self._size)

    def sealed(self, name: Name, size: int) -> ColumnData:
        distinct = list(self._pairs.codes)
        values = TextBlock.of(distinct) if name[0] == "string" else Numbers.of(distinct)
        firsts, ranks = rank_values(values)
        return ColumnData(name, values, firsts, ranks[self._codes], self.rows, size)


class FiltersBuilder:
    """Builds a sealed index of `size` rows. Rows may come in any order; those that never come have no metadata.

    Additions are collected in a growing index, which is sealed whenever it holds REMEMBERED_MAX values; `finish` moves
    its rows to their places. Memory while rows are added: 8 bytes for each pair of addition and value, and up to 10 MB
    for values, in the growing index; the sealed ones' size on disk; and 4 to 8 bytes a row. `finish` also needs what
    `SealedFilters.moved` does.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._sealed: list[tuple[SealedFilters, Positions, RowNumbers]] = []
        self._start()

    def _start(self) -> None:
        self._growing = GrowingFilters()
        self._targets = array("I")
        self._counts = array("I")

    def add(self, rows: Ids, metadata: Metadata) -> None:
        """Index this metadata for each of these new rows."""
        numbers = rows.tolist()
        if numbers:
            assert max(numbers) < self._size, f"row {max(numbers)} of {self._size}"
            self._targets.extend(numbers)
            self._counts.append(len(numbers))
            self._growing.add(metadata)
            if self._growing.distinct >= REMEMBERED_MAX:
                self._seal()

    def _seal(self) -> None:
        sealed = self._growing.seal(len(self._counts))
        self._sealed.append((sealed, ends_of(np.array(self._counts)), np.array(self._targets, np.uint32)))
        self._start()

    def finish(self) -> SealedFilters:
        self._seal()
        return SealedFilters.moved(self._size, self._sealed)
