"""Filters on metadata: the grammar, and the bitmap index that answers it.

The grammar is that of OpenAI's vector stores: comparisons `{"type": "eq", "key": ..., "value": ...}` with eq, ne,
gt, gte, lt, lte, in, nin, and compounds `{"type": "and", "filters": [...]}` with and, or.

Meaning: a value compares with values of its own kind (string, number, boolean). A list of strings matches `eq` if
it holds the string. `ne` and `nin` are the complement of `eq` and `in`: documents without the key match them. A key
that no document has is an error, because it is nearly always a spelling mistake.

The index only ever adds passages. Which of them live is decided elsewhere, so deletions need no work here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from pyroaring import BitMap64

from indexes.errors import InvalidInput
from indexes.model import Metadata, Scalar

Kind = Literal["string", "number", "boolean"]


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key against one value, or against a list of values for in and nin."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: str
    value: Scalar | list[Scalar]


@dataclass(frozen=True, slots=True)
class Compound:
    """All (and) or any (or) of the filters inside."""

    type: Literal["and", "or"]
    filters: list[Filter]


Filter = Comparison | Compound

INTEGER_BOUND = 2**63  # of numbers in metadata and filters: what MessagePack and other languages can hold

ORDERINGS: dict[str, Callable[[Scalar, Scalar], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def parse_filter(value: object, *, conditions_max: int, depth_max: int = 16) -> Filter:
    """Decode and check a filter. Raises InvalidInput naming the place in it."""
    if not isinstance(value, dict):
        raise InvalidInput(f"filter must be an object, found {type(value).__name__}", param="filter")
    left = [conditions_max]
    return _parse(value, "filter", left, depth_max)


def _parse(value: object, where: str, left: list[int], depth: int) -> Filter:
    """`left` counts down the comparisons still allowed, over the whole filter."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind in ("and", "or"):
        if depth == 0:
            raise InvalidInput("filter is nested too deep", param="filter")
        return _parse_compound(value, where, left, depth)
    left[0] -= 1
    if left[0] < 0:
        raise InvalidInput("filter has too many conditions", param="filter")
    try:
        comparison = msgspec.convert(value, Comparison)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where}: {error}", param=where) from None
    _check_value(comparison, where)
    return comparison


def _parse_compound(value: dict[str, Any], where: str, left: list[int], depth: int) -> Compound:
    if unknown := sorted(value.keys() - {"type", "filters"}):
        raise InvalidInput(f"{where}: unknown field {unknown[0]!r}", param=where)
    inner = value.get("filters")
    if not isinstance(inner, list) or not inner:
        raise InvalidInput(f"{where}.filters must be a list of at least one filter", param=f"{where}.filters")
    parsed = [_parse(part, f"{where}.filters[{at}]", left, depth - 1) for at, part in enumerate(inner)]
    return Compound(value["type"], parsed)


def _check_value(comparison: Comparison, where: str) -> None:
    is_list = isinstance(comparison.value, list)
    if (comparison.type in ("in", "nin")) != is_list:
        expected = "a list" if not is_list else "one value"
        raise InvalidInput(f"{where}.value must be {expected} for {comparison.type}", param=f"{where}.value")
    values = comparison.value if isinstance(comparison.value, list) else [comparison.value]
    if any(isinstance(one, int) and not -INTEGER_BOUND <= one < INTEGER_BOUND for one in values):
        raise InvalidInput(f"{where}.value does not fit into 64 bits", param=f"{where}.value")
    if comparison.type in ORDERINGS and isinstance(comparison.value, bool):
        raise InvalidInput(f"{where}.value: booleans have no order, use eq or ne", param=f"{where}.value")


def keys_of(condition: Filter) -> Iterator[str]:
    """Every key the filter names."""
    if isinstance(condition, Comparison):
        yield condition.key
    else:
        for part in condition.filters:
            yield from keys_of(part)


class FilterIndex:
    """Which passages have which value: for each key and kind, value to bitmap of passage ids.

    One thread adds, any thread matches. A match may see a passage half added; the snapshot's own bounds hide it.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[Kind, dict[Scalar, BitMap64]]] = {}
        self._all = BitMap64()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def keys(self) -> list[str]:
        return sorted(self._values)

    @property
    def all(self) -> BitMap64:
        return self._all

    def add(self, passages: range, metadata: Metadata) -> None:
        """Index the metadata of one document for all its passages."""
        if not len(passages):
            return
        for key, value in metadata.items():
            for one in value if isinstance(value, list) else [value]:
                bitmaps = self._values.setdefault(key, {}).setdefault(kind_of(one), {})
                bitmaps.setdefault(one, BitMap64()).add_range(passages.start, passages.stop)
        self._all.add_range(passages.start, passages.stop)

    def match(self, condition: Filter) -> BitMap64:
        """Ids of the passages that satisfy the filter, as far as this index knows them. The caller may change it."""
        if isinstance(condition, Compound):
            parts = [self.match(part) for part in condition.filters]
            result = parts[0]
            for part in parts[1:]:
                result = result & part if condition.type == "and" else result | part
            return result
        if condition.type in ("ne", "nin"):
            return self._all - self._equal(condition.key, condition.value)
        if condition.type in ("eq", "in"):
            return self._equal(condition.key, condition.value)
        return self._ordered(condition)

    def _equal(self, key: str, value: Scalar | list[Scalar]) -> BitMap64:
        wanted = value if isinstance(value, list) else [value]
        kinds = self._values.get(key, {})
        found = [bitmap for one in wanted if (bitmap := kinds.get(kind_of(one), {}).get(one)) is not None]
        return BitMap64.union(*found) if found else BitMap64()

    def _ordered(self, comparison: Comparison) -> BitMap64:
        bound = comparison.value
        assert not isinstance(bound, list)
        holds = ORDERINGS[comparison.type]
        bitmaps = self._values.get(comparison.key, {}).get(kind_of(bound), {})
        # list() copies in one step, so a writer that adds a value meanwhile does no harm.
        found = [bitmap for value, bitmap in list(bitmaps.items()) if holds(value, bound)]
        return BitMap64.union(*found) if found else BitMap64()

    def joined(self, other: FilterIndex, *, above: int) -> FilterIndex:
        """A new index with all of this one, and of the other the passages with larger ids than `above`."""
        result = FilterIndex()
        for source, least in ((self, 0), (other, above + 1)):
            for key, kinds in source._values.items():
                for kind, bitmaps in kinds.items():
                    into = result._values.setdefault(key, {}).setdefault(kind, {})
                    for value, bitmap in bitmaps.items():
                        if kept := from_id(bitmap, least):
                            into[value] = into[value] | kept if value in into else kept
            result._all |= from_id(source._all, least)
        return result

    def save(self, path: Path) -> None:
        """Write the index as MessagePack. Not synced: the publisher does that."""
        stored = [
            (key, kind, [(value, bitmap.serialize()) for value, bitmap in bitmaps.items()])
            for key, kinds in self._values.items()
            for kind, bitmaps in kinds.items()
        ]
        path.write_bytes(msgspec.msgpack.encode((self._all.serialize(), stored)))

    @staticmethod
    def load(path: Path) -> FilterIndex:
        index = FilterIndex()
        stored_type = tuple[bytes, list[tuple[str, Kind, list[tuple[Scalar, bytes]]]]]
        everything, stored = msgspec.msgpack.decode(path.read_bytes(), type=stored_type)
        index._all = BitMap64.deserialize(everything)
        for key, kind, values in stored:
            index._values.setdefault(key, {})[kind] = {
                value: BitMap64.deserialize(raw) for value, raw in values
            }
        return index


def from_id(bitmap: BitMap64, least: int) -> BitMap64:
    """A copy without the ids below `least`."""
    kept = bitmap.copy()
    kept.remove_range(0, least)
    return kept


def kind_of(value: Scalar) -> Kind:
    """Booleans are not numbers here, although Python thinks so; 1 and 1.0 are the same number."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"
