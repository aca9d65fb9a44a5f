"""The values of metadata under their dotted paths, and the filter index made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from indexes.base.model import Metadata
from indexes.base.normalizing import normalize
from indexes.base.paths import leaves, value_at, values_at
from indexes.filters.grammar import parse_filter
from indexes.filters.index import GrowingFilters

ORDER: Metadata = {
    "order": 17,
    "items": [{"sku": "A", "at": [[1], 2]}, {"sku": "B"}, "loose"],
    "at": {"city": "Ulm", "zip": None},
    "at.city": "Bonn",
    "none": {},
}


def test_values_stand_under_their_paths() -> None:
    """Lists add nothing to a path, nulls and empty objects hold no value, and dots in keys mean the same as nesting."""
    assert list(leaves(ORDER)) == [
        ("order", 17),
        ("items.sku", "A"),
        ("items.at", 1),
        ("items.at", 2),
        ("items.sku", "B"),
        ("items", "loose"),
        ("at.city", "Ulm"),
        ("at.city", "Bonn"),
    ]
    assert values_at(ORDER, "at.city") == ["Ulm", "Bonn"]
    assert [value_at(ORDER, path) for path in ("order", "items.sku", "at", "nothing")] == [
        17,
        ["A", "B"],
        None,
        None,
    ]
    assert value_at({"tags": ["one"]}, "tags") == ["one"]


class Unread(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("nothing that is wanted is in here")


def test_values_are_read_where_they_can_be() -> None:
    """Long lists under other paths are passed over, beside what is wanted and above it."""
    long = Unread(["2026-01-01"] * 500)
    metadata: Metadata = {
        "days": long,
        "at": [{"days": long, "city": "Ulm"}, {"city": ["Bonn"]}],
        "at.days": long,
    }
    assert values_at(metadata, "at.city") == ["Ulm", "Bonn"]


KEYS = st.sampled_from(["a", "b", "a.b", "b.a", "e\u0301", "\u00e9"])
SCALARS = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["x", "y"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.lists(KEYS, min_size=1, max_size=3).map(".".join))
def test_values_are_those_of_all_leaves(metadata: Metadata, path: str) -> None:
    wanted = normalize("NFC", path)
    assert values_at(metadata, path) == [
        value for found, value in leaves(metadata) if normalize("NFC", found) == wanted
    ]


def test_passages_of_a_document_share_what_is_known_of_its_metadata() -> None:
    """Rows of equal metadata are indexed alike, whether it is one object or two, before and after others."""
    growing = GrowingFilters()
    for metadata in (ORDER, ORDER, {"order": 18}, dict(ORDER), ORDER):
        growing.add(metadata)
    for key, value, rows in (
        ("items.sku", "B", [0, 1, 3, 4]),
        ("order", 18, [2]),
        ("items.at", 2, [0, 1, 3, 4]),
    ):
        wanted = parse_filter({"type": "eq", "key": key, "value": value}, conditions_max=1)
        assert list(growing.view(5).match(wanted)) == rows
        assert list(growing.seal(5).match(wanted)) == rows
