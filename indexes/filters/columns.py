"""The sealed filter index: sorted values of each column, and for each value its rows, in arrays that can be mapped.

A column is a key and a kind (string, number, boolean), since values of different kinds never match. What every
comparison means is one slice of the column's sorted values, found by bisection:

    directory.msgpack         [rows, [[kind, key, values], ...]]  the columns: strings first, then by kind and key
    texts.npy         uint8   the strings of all columns in UTF-8, ascending within a column, end to end
    offsets.npy       uint    [strings + 1]  where each string begins in texts.npy
    numbers.npy       float64 [numbers]  the numbers of all other columns, ascending within a column; see Numbers
    residues.npy      int16   [numbers], or empty if all are zero
    starts.npy        uint    [values + 1]  where the listed rows of each value begin
    rows.npy          uint32  rows of the values that are listed, ascending within a value
    wide.npy          int64   [wide]  the values, counted over all columns, whose rows are a bitmap
    wide_starts.npy   int64   [wide + 1]  where each of these begins in bitmaps.npy
    bitmaps.npy       uint8   serialised roaring bitmaps

(uint: four bytes, or eight where four do not hold the largest.) A value is wide if it has more than LISTED_MIN rows
and more than one in WIDE of the part. Its rows are kept as a bitmap instead, which takes at most two bytes a row and is
read in microseconds, where building it from listed rows takes hundreds; so nothing need be cached. A column of single
values has fewer than WIDE of them, so a range has few to join. The listed rows of a slice of values lie together.

Bytes a row of a column: 16 where every number differs, 12 and the text where every string does, 4 and less where
values repeat, at most an eighth a value where they are wide. Nothing but the directory is on the heap when mapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from indexes.arrays import changes, ends_of
from indexes.filters.bitmaps import bitmap_of
from indexes.filters.dates import NO_DATE
from indexes.filters.grammar import Filter, Kind, evaluate, kind_of
from indexes.filters.values import (
    Instants,
    Numbers,
    Positions,
    Texts,
    Values,
    instants_of,
    joined,
    narrow,
    satisfying,
)
from indexes.model import Scalar
from indexes.residency import Files

WIDE = 64
LISTED_MIN = 512  # rows: below, building a bitmap is as fast as reading one
KINDS: tuple[Kind, ...] = ("string", "number", "boolean")
DIRECTORY = "directory.msgpack"
ARRAYS = (
    "texts",
    "offsets",
    "numbers",
    "residues",
    "starts",
    "rows",
    "wide",
    "wide_starts",
    "bitmaps",
)

RowNumbers = NDArray[np.uint32]
NO_ROWS: RowNumbers = np.empty(0, np.uint32)
Name = tuple[Kind, str]


class _Directory(msgspec.Struct, array_like=True):
    size: int
    columns: list[tuple[Kind, str, int]]


class _Column(NamedTuple):
    """Where a column lies: its values, and the number of the first one over all columns."""

    first: int
    values: Values


@dataclass(frozen=True, slots=True)
class ColumnData:
    """A column before it is laid beside the others. `counts`: listed rows of each value, 0 for a wide one."""

    kind: Kind
    key: str
    values: Values
    counts: Positions
    rows: RowNumbers
    wide: Positions
    bitmaps: list[bytes]

    @staticmethod
    def of(
        name: Name, values: Values, firsts: Positions, ranks: Positions, rows: RowNumbers, size: int
    ) -> ColumnData:
        """From pairs of a value's rank and a row, in any order and however often.

        `firsts` says where in `values` each rank's value is. Values without a row are left out.
        """
        pairs = ranks.astype(np.uint64)
        pairs <<= np.uint64(32)
        pairs |= rows
        pairs.sort()  # by value, then by row
        pairs = pairs[changes(pairs)]
        rows = pairs.astype(np.uint32)  # the lower half
        ranks = (pairs >> np.uint64(32)).astype(np.int64)
        begins = np.flatnonzero(changes(ranks))
        counts = np.diff(begins, append=len(ranks))
        wide = np.flatnonzero(counts > max(LISTED_MIN, size // WIDE))
        bitmaps = [bitmap_of(rows[begins[at] : begins[at] + counts[at]], size).serialize() for at in wide]
        listed = np.ones(len(counts), bool)
        listed[wide] = False
        rows = rows[np.repeat(listed, counts)]
        used = firsts[ranks[begins]]
        return ColumnData(*name, values.take(used), np.where(listed, counts, 0), rows, wide, bitmaps)


class SealedFilters:
    """An immutable filter index over rows 0 to size-1 (a FilterPart). Safe from any thread."""

    def __init__(
        self, directory: _Directory, arrays: dict[str, NDArray[np.generic]], *, mapped: bool
    ) -> None:
        self.size = directory.size
        self.keys = frozenset(key for _, key, _ in directory.columns)
        self._own_bytes = 0 if mapped else sum(values.nbytes for values in arrays.values())
        self._directory = directory
        self._arrays = arrays
        self._starts = arrays["starts"]
        self._rows: RowNumbers = arrays["rows"]  # type: ignore[assignment]
        self._wide = arrays["wide"]
        self._columns = dict(self._laid_out())
        self._instants: dict[str, Instants] = {}  # of the strings under each key that was asked for dates

    def _laid_out(self) -> Iterable[tuple[Name, _Column]]:
        """Each column's slice of the values; `starts` and `wide` count strings first, then numbers."""
        block, offsets = self._arrays["texts"], self._arrays["offsets"]
        numbers, residues = self._arrays["numbers"], self._arrays["residues"]
        strings, first = len(offsets) - 1, 0
        for kind, key, count in self._directory.columns:
            values: Values
            if kind == "string":
                values = Texts(block, offsets[first : first + count + 1])  # type: ignore[arg-type]
            else:
                at = first - strings
                values = Numbers(numbers[at : at + count], residues[at : at + count])  # type: ignore[arg-type]
            yield (kind, key), _Column(first, values)
            first += count

    @staticmethod
    def of(size: int, columns: Iterable[ColumnData]) -> SealedFilters:
        """Lay columns, each with at least one row, beside one another."""
        ordered = sorted(columns, key=lambda column: (KINDS.index(column.kind), column.key))
        texts = Texts.joined([one.values for one in ordered if isinstance(one.values, Texts)])
        numbers = Numbers.joined([one.values for one in ordered if isinstance(one.values, Numbers)])
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
        """The arrays of a folder whose files are whole: nothing in them is checked here."""
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
    def bytes(self) -> int:
        """Memory held, mapped files left out."""
        return self._own_bytes + sum(instants.nbytes for instants in self._instants.copy().values())

    # --- what there is --------------------------------------------------------------------------------------

    def kinds(self, key: str) -> Sequence[Kind]:
        """Of the values that rows have under the key."""
        return [kind for kind in KINDS if (kind, key) in self._columns]

    def example(self, kind: Kind, key: str) -> Scalar:
        """One of the values of this kind, of which there must be one."""
        value = self._columns[kind, key].values.value_at(0)
        return bool(value) if kind == "boolean" else value

    def has_dates(self, key: str) -> bool:
        """Whether some string under the key is a date."""
        return bool((self._instants_of(key) != NO_DATE).any())

    def _instants_of(self, key: str) -> Instants:
        """What each string of the column means. Parsed when first asked for: a million dates take two seconds."""
        found = self._instants.get(key)
        if found is None:
            column = self._columns.get(("string", key))
            values = column.values if column else None
            found = instants_of(values) if isinstance(values, Texts) else np.empty(0, np.int64)
            if column:
                self._instants[key] = found
        return found

    # --- matching -------------------------------------------------------------------------------------------

    def match(self, condition: Filter) -> BitMap:
        """Rows that satisfy the filter. The caller may change the bitmap."""
        return evaluate(condition, self)

    def present(self, key: str) -> BitMap:
        """Rows that have any value."""
        columns = [self._columns[kind, key] for kind in self.kinds(key)]
        return self._rows_of([(column.first, column.first + len(column.values)) for column in columns])

    def equal(self, key: str, values: Sequence[Scalar]) -> BitMap:
        """Rows that have any of these values."""
        slices = []
        for value in values:
            if column := self._columns.get((kind_of(value), key)):
                low, high = column.values.equal(value)
                slices.append((column.first + low, column.first + high))
        return self._rows_of(slices)

    def ordered(self, key: str, ordering: str, bound: Scalar) -> BitMap:
        """Rows that have a value of the bound's kind that is gt, gte, lt or lte the bound, or has it as its prefix."""
        column = self._columns.get((kind_of(bound), key))
        if column is None:
            return BitMap()
        first, values = column
        if ordering == "prefix":
            assert isinstance(values, Texts)
            found = values.prefixed(bound)
        elif ordering in ("lt", "lte"):
            found = (0, values.lower(bound) if ordering == "lt" else values.upper(bound))
        else:
            found = (values.upper(bound) if ordering == "gt" else values.lower(bound), len(values))
        return self._rows_of([(first + found[0], first + found[1])])

    def dated(self, key: str, ordering: str, instant: int) -> BitMap:
        """Rows that have a string that is a date gt, gte, lt or lte the instant."""
        found = np.flatnonzero(satisfying(self._instants_of(key), ordering, instant))
        if not len(found):
            return BitMap()
        # Dates written alike sort as their instants do, and then this is a single slice.
        begins = np.flatnonzero(np.diff(found, prepend=-2) != 1)
        ends = np.append(begins[1:], len(found)) - 1
        first = self._columns["string", key].first
        return self._rows_of((np.stack([found[begins], found[ends] + 1], axis=1) + first).tolist())

    def _rows_of(self, slices: Sequence[tuple[int, int]]) -> BitMap:
        """Rows of all values in these slices."""
        bounds = np.array(slices, np.int64).reshape(-1, 2)
        listed = [self._rows[low:high] for low, high in self._starts[bounds].tolist() if low < high]
        wide = np.searchsorted(self._wide, bounds).tolist()
        found = [self._bitmap(at) for low, high in wide for at in range(low, high)]
        if listed or not found:
            rows = listed[0] if len(listed) == 1 else np.concatenate([NO_ROWS, *listed])
            found.append(bitmap_of(rows, self.size))
        return found[0] if len(found) == 1 else BitMap.union(*found)

    def _bitmap(self, at: int) -> BitMap:
        starts = self._arrays["wide_starts"]
        return BitMap.deserialize(self._arrays["bitmaps"][int(starts[at]) : int(starts[at + 1])].tobytes())

    # --- merging --------------------------------------------------------------------------------------------

    @staticmethod
    def merged(parts: Sequence[tuple[SealedFilters, NDArray[np.bool_]]]) -> SealedFilters:
        """The kept rows of each part (bool [size]), renumbered end to end in the order of the parts.

        Works a column at a time. Beside the result it holds, of the largest column, up to 60 bytes for each pair of
        row and value, 80 for each distinct value, and its strings three times.
        """
        size, renumbered = 0, []
        for _, kept in parts:
            renumbered.append((np.cumsum(kept) + (size - 1)).astype(np.uint32))
            size += int(np.count_nonzero(kept))
        names = sorted({name for part, _ in parts for name in part._columns})
        columns = []
        for name in names:
            ranks, rows = [], []
            held = [
                (part, column, kept, new)
                for (part, kept), new in zip(parts, renumbered)
                if (column := part._columns.get(name))
            ]
            everything = joined([column.values for _, column, _, _ in held])
            firsts, rank_of = everything.ranked()
            at = 0
            for part, column, kept, new in held:
                positions, old = part._pairs(column)
                chosen = kept[old]
                ranks.append(rank_of[at + positions[chosen]])
                rows.append(new[old[chosen]])
                at += len(column.values)
            if any(map(len, rows)):
                columns.append(
                    ColumnData.of(name, everything, firsts, np.concatenate(ranks), np.concatenate(rows), size)
                )
        return SealedFilters.of(size, columns)

    def _pairs(self, column: _Column) -> tuple[Positions, RowNumbers]:
        """Every value of the column with every row that has it: position among the column's values, and row."""
        low, high = column.first, column.first + len(column.values)
        starts = self._starts[low : high + 1].astype(np.int64)
        positions = [np.repeat(np.arange(len(column.values)), np.diff(starts))]
        rows = [self._rows[starts[0] : starts[-1]]]
        for at in range(*np.searchsorted(self._wide, (low, high)).tolist()):
            rows.append(np.frombuffer(self._bitmap(at).to_array(), np.uint32))
            positions.append(np.full(len(rows[-1]), int(self._wide[at]) - low))
        return np.concatenate(positions), np.concatenate(rows)
