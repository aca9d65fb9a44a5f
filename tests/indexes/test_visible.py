"""The counts of dead terms: right for each commit, and never changed for one that a search still reads."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from math import log2
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from indexes.base.model import Delete
from indexes.parts.query import Query
from indexes.parts.visible import add_layer
from tests.indexes.test_standing import documents
from tests.support.vectors import make_collection

counters = st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.integers(1, 5), min_size=1).map(Counter)


@given(st.lists(counters, max_size=60))
def test_layers_add_up(commits: list[Counter[str]]) -> None:
    """To what all commits so far have counted; earlier layers stay as they were; there are few."""
    layers: tuple[Counter[str], ...] = ()
    total = Counter[str]()
    seen: list[tuple[tuple[Counter[str], ...], Counter[str]]] = []
    for terms in commits:
        layers = add_layer(layers, terms)
        total = total + terms
        seen.append((layers, total))
        assert len(layers) <= 1 + log2(16)
    for before, counted in seen:
        assert sum(before, Counter[str]()) == counted


def test_a_snapshot_scores_by_its_own_counts(tmp_path: Path) -> None:
    """Whatever was deleted since it was taken, each word weighs what it weighed."""
    query = Query(10, 10, "the ant met a bee", None, None, language="en")
    with closing(make_collection(tmp_path / "c", hot_capacity=60)) as collection:
        collection.write(documents(range(40))).result()
        collection.write([Delete("d1"), Delete("d2")]).result()
        before = collection.snapshot
        scoring = before.prepare(query).scoring
        for number in range(3, 30):
            collection.write([Delete(f"d{number}")]).result()
        assert before.prepare(query).scoring == scoring
        assert collection.snapshot.prepare(query).scoring != scoring
