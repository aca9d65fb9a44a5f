"""The sealed filter index: sorted values of each column, and for each value its rows, in arrays that can be mapped.

A comparison is one slice of the sorted values of a column, found by bisection:

    directory.msgpack         [rows, [[kind, key, values], ...]]  the columns: strings first, then by kind and key
    texts.npy         uint8   the strings of all columns in UTF-8, ascending within a column, concatenated
    offsets.npy       uint    [strings + 1]  where each string begins in texts.npy
    numbers.npy       float64 [numbers]  the numbers of all other columns, ascending within a column; see Numbers
    residues.npy      int16   [numbers], or empty if all are zero
    starts.npy        uint    [values + 1]  where the listed rows of each value begin
    rows.npy          uint32  rows of the values that are listed, ascending within a value
    wide.npy          int64   [wide]  the values, counted over all columns, whose rows are a bitmap
    wide_starts.npy   int64   [wide + 1]  where each of these begins in bitmaps.npy
    bitmaps.npy       uint8   serialized roaring bitmaps

(uint: four bytes, or eight if the largest does not fit in four.) A value is wide if it has more than LISTED_MAX rows
and more than one in WIDE of the part. Its rows are stored as a bitmap instead, which takes at most two bytes a row and
loads in microseconds, where building it from listed rows takes hundreds; so nothing needs a cache. A column of single
values has fewer than WIDE of them, so a range has few to join. The listed rows of a slice of values are contiguous.

Bytes per row: 16 if all numbers differ; 12 plus the text if all strings do; 4 or less where values repeat; at most an
eighth of a byte for each wide value. Nothing but the directory is on the heap when mapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from indexes.base.arrays import changes, ends_of, ranges
from indexes.base.model import Rows, Scalar
from indexes.base.normalizing import normalize
from indexes.base.residency import Files
from indexes.filters.bitmaps import bitmap_of
from indexes.filters.filter_part import KINDS, Column, FilterPart, Name, at_key, below
from indexes.filters.grammar import Kind
from indexes.filters.values import Instants, Numbers, Positions, TextBlock, Values, narrow, rank_values

WIDE = 64
LISTED_MAX = 512  # rows: up to here, building a bitmap is as fast as reading one
DIRECTORY = "directory.msgpack"
ARRAYS = ("texts", "offsets", "numbers", "residues", "starts", "rows", "wide", "wide_starts", "bitmaps")

RowNumbers = NDArray[np.uint32]
NO_ROWS: RowNumbers = np.empty(0, np.uint32)


class _Directory(msgspec.Struct, array_like=True):
    size: int
    columns: list[tuple[Kind, str, int]]


class ColumnData:
    """A column before it is laid out with the others, from pairs of a value's rank and a row.

    The pairs may be in any order and repeat. `firsts` is the position in `values` of each rank's value. Values without
    a row are left out.
    """

    def __init__(
        self, name: Name, values: Values, firsts: Positions, ranks: Positions, rows: RowNumbers, size: int
    ) -> None:
        self.kind, self.key = name
        pairs = ranks.astype(np.uint64)
        pairs <<= np.uint64(32)
        pairs |= rows
        pairs.sort()  # by value, then by row
        pairs = pairs[changes(pairs)]
        rows = pairs.astype(np.uint32)  # the lower half
        ranks = (pairs >> np.uint64(32)).astype(np.int64)
        begins = np.flatnonzero(changes(ranks))
        counts = np.diff(begins, append=len(ranks))
        self.values = values.take(firsts[ranks[begins]])
        self.wide = np.flatnonzero(counts > max(LISTED_MAX, size // WIDE))
        self.bitmaps = [
            bitmap_of(rows[begins[at] : begins[at] + counts[at]], size).serialize() for at in self.wide
        ]
        listed = np.ones(len(counts), bool)
        listed[self.wide] = False
        self.rows = rows[np.repeat(listed, counts)]
        self.counts = np.where(listed, counts, 0)  # listed rows of each value


class SealedFilters(FilterPart):
    """An immutable filter index."""

    def __init__(
        self, directory: _Directory, arrays: dict[str, NDArray[np.generic]], *, mapped: bool
    ) -> None:
        self.size = directory.size
        self._own_bytes = 0 if mapped else sum(values.nbytes for values in arrays.values())
        self._directory = directory
        self._arrays = arrays
        self._columns = dict(self._laid_out())
        self._names = sorted({key for _, key in self._columns})

    def _laid_out(self) -> Iterable[tuple[Name, _SealedColumn]]:
        """Each column's slice of the values; `starts` and `wide` count strings first, then numbers."""
        block, offsets = self._arrays["texts"], self._arrays["offsets"]
        numbers, residues = self._arrays["numbers"], self._arrays["residues"]
        strings, first = len(offsets) - 1, 0
        for kind, key, count in self._directory.columns:
            values: Values
            if kind == "string":
                values = TextBlock(block, offsets[first : first + count + 1])  # type: ignore[arg-type]
            else:
                at = first - strings
                values = Numbers(numbers[at : at + count], residues[at : at + count])  # type: ignore[arg-type]
            yield (kind, key), _SealedColumn(self.size, values, first, self._arrays)
            first += count

    @cached_property
    def _by_kind(self) -> list[tuple[list[str], Positions]]:
        """The keys of each kind, ascending, and where the values of each begin, and the last ones end."""
        columns = self._directory.columns
        ends = ends_of(np.array([count for _, _, count in columns], np.int64))
        found: list[tuple[list[str], Positions]] = []
        at = 0
        for _, some in groupby(columns, key=itemgetter(0)):
            keys = [key for _, key, _ in some]
            found.append((keys, ends[at : at + len(keys) + 1]))
            at += len(keys)
        return found

    @staticmethod
    def of(size: int, columns: Iterable[ColumnData]) -> SealedFilters:
        """Lay out columns, each with at least one row."""
        ordered = sorted(columns, key=lambda column: (KINDS.index(column.kind), column.key))
        texts = TextBlock.joined(one.values for one in ordered)
        numbers = Numbers.joined(one.values for one in ordered)
        firsts = ends_of(np.array([len(one.values) for one in ordered], np.int64))
        wide = [one.wide + first for one, first in zip(ordered, firsts)]
        bitmaps = [raw for one in ordered for raw in one.bitmaps]
        counts = np.concatenate([np.empty(0, np.int64), *(one.counts for one in ordered)])
        return SealedFilters(
            _Directory(size, [(one.kind, one.key, len(one.values)) for one in ordered]),
            {
                "texts": texts.block,
                "offsets": texts.offsets,
                "numbers": numbers.keys,
                "residues": numbers.residues,
                "starts": narrow(ends_of(counts)),
                "rows": np.concatenate([NO_ROWS, *(one.rows for one in ordered)]),
                "wide": np.concatenate([np.empty(0, np.int64), *wide]),
                "wide_starts": ends_of(np.array([len(raw) for raw in bitmaps], np.int64)),
                "bitmaps": np.frombuffer(b"".join(bitmaps), np.uint8),
            },
            mapped=False,
        )

    @staticmethod
    def load(folder: Path, files: Files | None = None) -> SealedFilters:
        """Load the arrays of a folder whose files were verified: this checks nothing."""
        files = files or Files()
        directory = msgspec.msgpack.decode((folder / DIRECTORY).read_bytes(), type=_Directory)
        return SealedFilters(
            directory, {name: files.array(folder / f"{name}.npy") for name in ARRAYS}, mapped=True
        )

    def save(self, folder: Path) -> None:
        """Write ten files into an existing folder. Not synced: the publisher does that."""
        (folder / DIRECTORY).write_bytes(msgspec.msgpack.encode(self._directory))
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", self._arrays[name], allow_pickle=False)

    @property
    def names(self) -> Sequence[str]:
        return self._names

    @property
    def bytes(self) -> int:
        return self._own_bytes + sum(column.dates_bytes for column in self._columns.values())

    def column(self, kind: Kind, key: str) -> _SealedColumn | None:
        return self._columns.get((kind, normalize("NFC", key)))

    def present_under(self, key: str) -> BitMap:
        key = normalize("NFC", key)
        bounds = [
            firsts[[found.start, found.stop]]
            for keys, firsts in self._by_kind
            for found in (at_key(keys, key), below(keys, key))
        ]
        return rows_of(np.array(bounds, np.int64).reshape(-1, 2), self.size, self._arrays)

    @staticmethod
    def merged(parts: Sequence[tuple[SealedFilters, NDArray[np.bool_]]]) -> SealedFilters:
        """The kept rows of each part (bool [size]), renumbered in the order of the parts."""
        size, moved = 0, []
        for part, kept in parts:
            ends = ends_of(kept)
            moved.append((part, ends, np.arange(size, size + ends[-1], dtype=np.uint32)))
            size += int(ends[-1])
        return SealedFilters.moved(size, moved)

    @staticmethod
    def moved(size: int, parts: Sequence[tuple[SealedFilters, Positions, RowNumbers]]) -> SealedFilters:
        """One index of `size` rows: row r of a part becomes rows targets[offsets[r]:offsets[r + 1]].

        Works a column at a time. Besides the result, it holds for the largest column up to 60 bytes for each pair of
        row and value, 80 for each distinct value, and its strings three times.
        """
        columns = []
        for name in sorted({name for part, _, _ in parts for name in part._columns}):
            held = [
                (column, offsets, targets)
                for part, offsets, targets in parts
                if (column := part._columns.get(name))
            ]
            of_kind = TextBlock if name[0] == "string" else Numbers
            values = of_kind.joined(column.values for column, _, _ in held)
            firsts, rank_of = rank_values(values)
            ranks, rows, at = [], [], 0
            for column, offsets, targets in held:
                positions, old = column.pairs()
                copies = offsets[old + 1] - offsets[old]
                ranks.append(np.repeat(rank_of[at + positions], copies))
                rows.append(targets[ranges(offsets[old], copies)])
                at += len(column.values)
            if any(map(len, rows)):
                columns.append(
                    ColumnData(name, values, firsts, np.concatenate(ranks), np.concatenate(rows), size)
                )
        return SealedFilters.of(size, columns)


class _SealedColumn(Column):
    """A slice of the values of an index: `first` is the number of the first one over all columns."""

    def __init__(self, size: int, values: Values, first: int, arrays: dict[str, NDArray[np.generic]]) -> None:
        self.values = values
        self._size = size
        self._first = first
        self._arrays = arrays
        self._instants: Instants | None = None

    @property
    def dates_bytes(self) -> int:
        return 0 if self._instants is None else self._instants.nbytes

    def example(self) -> Scalar:
        return self.values.value_at(0)

    def present(self) -> BitMap:
        return self._rows_of([(0, len(self.values))])

    def equal(self, values: Sequence[Scalar]) -> BitMap:
        return self._rows_of([self.values.slice_of("eq", value) for value in values])

    def ordered(self, ordering: str, bound: Scalar) -> BitMap:
        return self._rows_of([self.values.slice_of(ordering, bound)])

    @property
    def distinct(self) -> int:
        return len(self.values)

    def counted(self, flags: NDArray[np.bool_]) -> tuple[Values, Positions]:
        starts, listed = self._listed()
        counts = np.diff(ends_of(flags[listed])[starts])
        flagged = bitmap_of(np.flatnonzero(flags).astype(np.uint32), self._size)
        for at in self._wide():
            value = int(self._arrays["wide"][at]) - self._first
            counts[value] = bitmap_at(at, self._arrays).intersection_cardinality(flagged)
        return self.values, counts

    def held_by(self, rows: Rows) -> tuple[Rows, Positions]:
        wanted = np.zeros(self._size, bool)
        wanted[rows] = True
        starts, listed = self._listed()
        at = np.flatnonzero(wanted[listed])
        held, positions = [listed[at]], [np.searchsorted(starts, at, side="right") - 1]
        some = BitMap(rows.tolist())
        for number in self._wide():
            found = np.frombuffer((bitmap_at(number, self._arrays) & some).to_array(), np.uint32)
            held.append(found)
            positions.append(np.full(len(found), int(self._arrays["wide"][number]) - self._first))
        return np.concatenate(held).astype(np.int64), np.concatenate(positions)

    def value_at(self, position: int) -> Scalar:
        return self.values.value_at(position)

    def ranks(self, positions: Positions) -> Positions:
        return positions

    def within(self, low: float | None, high: float | None) -> BitMap:
        begin = 0 if low is None else self.values.slice_of("gte", low)[0]
        end = len(self.values) if high is None else self.values.slice_of("lt", high)[1]
        return self._rows_of([(begin, max(begin, end))])

    def around(self, number: float) -> tuple[float, float]:
        at = self.values.slice_of("lte", number)[1]
        last = float(self.values.value_at(at - 1)) if at else -np.inf
        return last, float(self.values.value_at(at)) if at < len(self.values) else np.inf

    def instants(self) -> Instants:
        """Parsed on first use: a million dates take two seconds."""
        if self._instants is None:
            assert isinstance(self.values, TextBlock)
            self._instants = self.values.instants()
        return self._instants

    def ordered_years(self, ordering: str, bound: str) -> NDArray[np.bool_]:
        assert isinstance(self.values, TextBlock)
        low, high = self.values.slice_of(ordering, bound)
        flags = np.zeros(len(self.values), bool)
        flags[low:high] = self.values.begin_with_years(low, high)
        return flags

    def chosen(self, flags: NDArray[np.bool_]) -> BitMap:
        # Dates in the same notation sort like their instants, and then this is a single slice.
        inside = np.concatenate([[False], flags, [False]])
        return self._rows_of(np.flatnonzero(inside[1:] != inside[:-1]).reshape(-1, 2))

    def _rows_of(self, slices: Sequence[tuple[int, int]] | Positions) -> BitMap:
        """Rows of all values in these slices."""
        return rows_of(np.array(slices, np.int64).reshape(-1, 2) + self._first, self._size, self._arrays)

    def _listed(self) -> tuple[Positions, RowNumbers]:
        """The listed rows of all values, and where those of each value start, and end."""
        starts = self._arrays["starts"][self._first : self._first + len(self.values) + 1].astype(np.int64)
        rows: RowNumbers = self._arrays["rows"][starts[0] : starts[-1]]  # type: ignore[assignment]
        return starts - starts[0], rows

    def _wide(self) -> range:
        """The numbers of this column's values among those whose rows are a bitmap."""
        low, high = self._first, self._first + len(self.values)
        return range(*np.searchsorted(self._arrays["wide"], (low, high)).tolist())

    def pairs(self) -> tuple[Positions, RowNumbers]:
        """Every value with every row that has it: position among the column's values, and row."""
        low, high = self._first, self._first + len(self.values)
        starts = self._arrays["starts"][low : high + 1].astype(np.int64)
        positions = [np.repeat(np.arange(len(self.values)), np.diff(starts))]
        rows = [self._arrays["rows"][starts[0] : starts[-1]]]
        for at in self._wide():
            rows.append(np.frombuffer(bitmap_at(at, self._arrays).to_array(), np.uint32))
            positions.append(np.full(len(rows[-1]), int(self._arrays["wide"][at]) - low))
        return np.concatenate(positions), np.concatenate(rows)


def rows_of(bounds: Positions, size: int, arrays: Mapping[str, NDArray[np.generic]]) -> BitMap:
    """Rows of all values between these numbers, counted over all columns, [slices, 2]."""
    all_rows: RowNumbers = arrays["rows"]  # type: ignore[assignment]
    listed = [all_rows[low:high] for low, high in arrays["starts"][bounds].tolist() if low < high]
    found = [
        bitmap_at(at, arrays)
        for low, high in np.searchsorted(arrays["wide"], bounds).tolist()
        for at in range(low, high)
    ]
    if listed or not found:
        rows = listed[0] if len(listed) == 1 else np.concatenate([NO_ROWS, *listed])
        found.append(bitmap_of(rows, size))
    return found[0] if len(found) == 1 else BitMap.union(*found)


def bitmap_at(at: int, arrays: Mapping[str, NDArray[np.generic]]) -> BitMap:
    starts = arrays["wide_starts"]
    return BitMap.deserialize(arrays["bitmaps"][int(starts[at]) : int(starts[at + 1])].tobytes())
