"""Which rows of a part satisfy a filter: one index for each part of a snapshot, over its rows 0 to size-1.

`GrowingFilters` takes rows while it is searched (the delta); `SealedFilters` (`filter_columns`) is a set of arrays
in memory or on disk; `FiltersBuilder` makes one of rows that come in any order. All three give the same answers.

The two that take rows keep pairs: for each column (a key and a kind) the rows and the codes of their values, side by
side in two typed arrays, in the order they came. The growing one is small, so a match reads its column from end to
end (4,000 rows: some ten microseconds).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pyroaring import BitMap

from indexes.filters.bitmaps import bitmap_of
from indexes.filters.columns import KINDS, NO_ROWS, ColumnData, Name, RowNumbers, SealedFilters
from indexes.filters.dates import NO_DATE
from indexes.filters.grammar import Filter, Kind, evaluate, kind_of
from indexes.filters.pools import NumberPool, Pool, TextPool
from indexes.filters.values import Instants, satisfying
from indexes.model import Ids, Metadata, Scalar

REMEMBERED_MAX = 65_536  # values of each pool of a builder: about 10 MB


class FilterPart(Protocol):
    """What a snapshot asks of one part."""

    @property
    def size(self) -> int: ...
    @property
    def keys(self) -> frozenset[str]:
        """Keys that some row has a value for. An empty list is none."""
        ...

    @property
    def bytes(self) -> int:
        """Memory held, mapped files left out. Of a growing index an estimate, and that of all its rows."""
        ...

    def kinds(self, key: str) -> Sequence[Kind]:
        """Of the values that rows have under the key."""
        ...

    def example(self, kind: Kind, key: str) -> Scalar:
        """One of the values of this kind, of which there must be one."""
        ...

    def has_dates(self, key: str) -> bool:
        """Whether some string under the key is a date."""
        ...

    def match(self, condition: Filter) -> BitMap:
        """Rows that satisfy the filter; a key nobody has matches nothing. The caller may change the bitmap."""
        ...


class GrowingFilters:
    """A filter index that takes rows from one thread while others match through `view`."""

    def __init__(self) -> None:
        self._pairs = _Pairs()
        self._rows = 0
        self._first_rows: dict[Name, int] = {}

    def add(self, metadata: Metadata) -> int:
        """Index this metadata as the next row; returns the row."""
        row = self._rows
        for name in self._pairs.add(array("I", [row]), metadata):
            self._first_rows.setdefault(name, row)
        self._rows = row + 1
        return row

    def view(self, size: int) -> GrowingFiltersView:
        """The first `size` rows, frozen: rows added later do not show."""
        return GrowingFiltersView(self._pairs, size, self._first_rows)

    def seal(self, size: int) -> SealedFilters:
        """The first `size` rows as an immutable index in memory. Rows may be added meanwhile."""
        return self._pairs.seal(size)


@dataclass(frozen=True, slots=True)
class GrowingFiltersView:
    """The first rows of a growing index, as one search sees them (a FilterPart)."""

    pairs: _Pairs
    size: int
    first_rows: dict[Name, int]

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(key for (_, key), row in self.first_rows.copy().items() if row < self.size)

    @property
    def bytes(self) -> int:
        return self.pairs.bytes

    def kinds(self, key: str) -> Sequence[Kind]:
        return [kind for kind in KINDS if self.first_rows.get((kind, key), self.size) < self.size]

    def example(self, kind: Kind, key: str) -> Scalar:
        return self.pairs.example(kind, key)

    def has_dates(self, key: str) -> bool:
        return bool((self.pairs.instants(key, self.size)[1] != NO_DATE).any())

    def match(self, condition: Filter) -> BitMap:
        return evaluate(condition, self)

    def present(self, key: str) -> BitMap:
        return self.pairs.present(key, self.size)

    def equal(self, key: str, values: Sequence[Scalar]) -> BitMap:
        return self.pairs.equal(key, values, self.size)

    def ordered(self, key: str, ordering: str, bound: Scalar) -> BitMap:
        return self.pairs.ordered(key, ordering, bound, self.size)

    def dated(self, key: str, ordering: str, instant: int) -> BitMap:
        rows, instants = self.pairs.instants(key, self.size)
        return bitmap_of(rows[satisfying(instants, ordering, instant)], self.size)


class FiltersBuilder:
    """Makes a sealed index of `size` rows. Rows come in any order; one that never comes has no metadata.

    Memory while rows are added: 8 bytes for each pair of row and value; the distinct values, strings as their UTF-8
    and 8 bytes each, numbers 10 bytes; and up to 20 MB to recognise values that come again. Of more distinct values
    than REMEMBERED_MAX some are kept more than once, at worst once for each row. While `finish` runs come the result,
    all strings twice more and 80 bytes for each, and 60 bytes for each pair of the largest column.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._pairs = _Pairs(REMEMBERED_MAX)

    def add(self, rows: Ids, metadata: Metadata) -> None:
        """Index this metadata for each of these rows, none of which came before."""
        numbers = rows.tolist()
        if numbers:
            assert max(numbers) < self._size, f"row {max(numbers)} of {self._size}"
            self._pairs.add(array("I", numbers), metadata)

    def finish(self) -> SealedFilters:
        return self._pairs.seal(self._size)


class _Pairs:
    """Pairs of row and value by column, in the order they came. One thread adds.

    Matching needs every value remembered and rows that ascend, and may run in any thread: it reads rows below `size`,
    which must all have been added before.
    """

    def __init__(self, remembered_max: int | None = None) -> None:
        limit = () if remembered_max is None else (remembered_max,)
        numbers = NumberPool(*limit)
        self._texts = TextPool(*limit)
        self._pools: dict[Kind, Pool] = {"string": self._texts, "number": numbers, "boolean": numbers}
        self._columns: dict[Name, _Column] = {}

    @property
    def bytes(self) -> int:
        pairs = sum(len(column.rows) for column in self._columns.copy().values())
        return 8 * pairs + self._pools["string"].bytes + self._pools["number"].bytes

    def add(self, rows: array[int], metadata: Metadata) -> list[Name]:
        """Returns the columns that have a value."""
        held = []
        for key, value in metadata.items():
            for one in value if isinstance(value, list) else [value]:
                if one != one:  # noqa: PLR0124 - NaN equals nothing and has no place in an order
                    continue
                kind = kind_of(one)
                column = self._columns.get((kind, key))
                if column is None:
                    column = self._columns[kind, key] = _Column(array("I"), array("I"))
                code = self._pools[kind].add(one)
                # Codes first: a reader that sees a row must also find its code.
                column.codes.extend(array("I", [code]) * len(rows))
                column.rows.extend(rows)
                held.append((kind, key))
        return held

    def example(self, kind: Kind, key: str) -> Scalar:
        value = self._pools[kind].values().value_at(self._columns[kind, key].codes[0])
        return bool(value) if kind == "boolean" else value

    def present(self, key: str, size: int) -> BitMap:
        return bitmap_of(np.concatenate([self._upto(kind, key, size)[0] for kind in KINDS]), size)

    def equal(self, key: str, values: Sequence[Scalar], size: int) -> BitMap:
        wanted: dict[Kind, list[int]] = {}
        for value in values:
            kind = kind_of(value)
            if (code := self._pools[kind].find(value)) is not None:
                wanted.setdefault(kind, []).append(code)
        found = []
        for kind, codes in wanted.items():
            rows, held = self._upto(kind, key, size)
            found.append(rows[held == codes[0] if len(codes) == 1 else np.isin(held, codes)])
        return bitmap_of(np.concatenate([NO_ROWS, *found]), size)

    def ordered(self, key: str, ordering: str, bound: Scalar, size: int) -> BitMap:
        kind = kind_of(bound)
        rows, codes = self._upto(kind, key, size)
        if not len(rows):
            return BitMap()
        return bitmap_of(rows[self._pools[kind].satisfying(ordering, bound)[codes]], size)

    def instants(self, key: str, size: int) -> tuple[RowNumbers, Instants]:
        """Rows of a column of strings below `size`, ascending, and the instant of each string or NO_DATE."""
        rows, codes = self._upto("string", key, size)
        return rows, self._texts.instants()[codes]

    def _upto(self, kind: Kind, key: str, size: int) -> tuple[RowNumbers, RowNumbers]:
        """Rows of a column below `size`, ascending, and the code of each."""
        column = self._columns.get((kind, key))
        rows, codes = column.read() if column else (NO_ROWS, NO_ROWS)
        end = int(np.searchsorted(rows, size))
        return rows[:end], codes[:end]

    def seal(self, size: int) -> SealedFilters:
        """The rows below `size`, which must all have been added, in whatever order."""
        return SealedFilters.of(size, self._sealed(size))

    def _sealed(self, size: int) -> list[ColumnData]:
        columns = []
        for pool, kinds in (
            (self._pools["string"], ("string",)),
            (self._pools["number"], ("number", "boolean")),
        ):
            names = [name for name in self._columns.copy() if name[0] in kinds]
            values = pool.values()
            firsts, ranks = values.ranked()
            for name in names:
                rows, codes = self._columns[name].read()
                chosen = rows < size
                if chosen.any():
                    columns.append(
                        ColumnData.of(name, values, firsts, ranks[codes[chosen]], rows[chosen], size)
                    )
        return columns


@dataclass(frozen=True, slots=True)
class _Column:
    rows: array[int]
    codes: array[int]

    def read(self) -> tuple[RowNumbers, RowNumbers]:
        """Copies, equally long."""
        # tobytes copies under the interpreter lock; a view of the buffer would forbid the writer to grow it.
        rows = np.frombuffer(self.rows.tobytes(), np.uint32)
        return rows, np.frombuffer(self.codes.tobytes(), np.uint32)[: len(rows)]
