"""Facets are those of the state that is searched, whatever was written to the log since."""

from __future__ import annotations

from pathlib import Path

import pytest

from indexes.reading.facets import FacetQuery, count_facets
from tests.support.vectors import World, delete, fill, make_collection, rebuild

WORLD = World()


@pytest.mark.parametrize("is_rebuilt", [False, True])
@pytest.mark.parametrize("is_counted_before", [False, True])
def test_what_was_replaced_since_still_counts(
    tmp_path: Path, *, is_rebuilt: bool, is_counted_before: bool
) -> None:
    """Also a document that was written and replaced between two counts: no state of the log that was read has it."""
    collection = make_collection(tmp_path / "docs")
    fill(collection, WORLD, range(100))
    if is_rebuilt:
        rebuild(collection)
    asked = [FacetQuery("topic")]
    if is_counted_before:
        count_facets(collection, collection.snapshot, None, asked)
    fill(collection, WORLD, range(100, 130))
    snapshot = collection.snapshot
    fill(collection, WORLD, range(50, 120), version=1)
    delete(collection, range(40, 60))
    [counted] = count_facets(collection, snapshot, None, asked)
    assert counted.documents == 130
    assert dict(counted.values) == {f"t{topic}": len(range(topic, 130, 7)) for topic in range(7)}
    [now] = count_facets(collection, collection.snapshot, None, asked)
    assert now.documents == 110
    collection.close()
