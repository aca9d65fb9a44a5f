"""Exact ranks of single passages, wherever the indexes keep them, and what a filter has against them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from indexes.base.model import Floats, NewPassage, Upsert
from indexes.collection.collection import Collection
from indexes.filters.grammar import Filter, parse_filter
from indexes.filters.unmet import relax
from indexes.lexical.analysis import query_terms
from indexes.parts.query import Query
from indexes.parts.standing import holds, standings
from tests.support.vectors import DIMENSIONS, make_collection, rebuild

WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]
SEALED, LATER = 600, 100


def unit(rng: np.random.Generator) -> Floats:
    values = rng.normal(size=DIMENSIONS)
    made: Floats = (values / np.linalg.norm(values)).astype(np.float32)
    return made


def documents(numbers: range) -> list[Upsert]:
    rng = np.random.default_rng(numbers.start)
    texts = [" ".join(rng.choice(WORDS, 5)) for _ in numbers]
    return [
        Upsert(
            f"d{number}",
            text,
            "",
            {"n": number, "even": number % 2 == 0},
            (NewPassage(0, len(text), 5, unit(rng)),),
        )
        for number, text in zip(numbers, texts)
    ]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Hot and cold passages, and some that were written later."""
    with closing(make_collection(tmp_path_factory.mktemp("standing") / "c", hot_capacity=60)) as made:
        made.write(documents(range(SEALED))).result()
        rebuild(made)
        made.write(documents(range(SEALED, SEALED + LATER))).result()
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("given", [None, {"type": "eq", "key": "even", "value": True}], ids=str)
def test_exact_ranks(collection: Collection, given: object) -> None:
    """The ranks are those of a full ranking by each searcher among what the filter allows, and gains add up."""
    condition = None if given is None else parse_filter(given, conditions_max=9)
    snapshot, vector, text = collection.snapshot, unit(np.random.default_rng(9)), "the ant met a bee"
    prepared = snapshot.prepare(Query(10, 10, text, vector, condition, language="en"))
    ids = np.array([3, 4, 300, 599, 601, 650])
    found = standings(prepared, ids, query_terms(text, "en"))
    dense, _ = collection.exact(vector[None], SEALED + LATER, condition)[0]
    lexical = snapshot.lexical(text, SEALED + LATER, condition)
    assert {one.tier for one in found} == {"hot", "cold", "delta"} or given is None
    for one in found:
        assert one.allowed == (one.id in dense)
        assert one.dense_rank == (dense.tolist().index(one.id) + 1 if one.allowed else None)
        listed = lexical.ids.tolist()
        assert one.lexical_rank == (listed.index(one.id) + 1 if one.id in listed else None)
        assert one.lexical or pytest.approx(sum(one.gains.values()), abs=1e-5) == 0
        assert one.gains.keys() | one.lacks.keys() == query_terms(text, "en").keys()
        assert (one.cold_list is not None) == (one.tier != "delta")


def test_a_passage_that_the_snapshot_lacks_has_no_standing(collection: Collection) -> None:
    """Neither one that was never written, nor one that is dead."""
    prepared = collection.snapshot.prepare(Query(10, 10, "ant"))
    assert standings(prepared, np.array([10**9]), query_terms("ant")) == []


EVEN, LARGE, THERE = (
    {"type": "eq", "key": "even", "value": True},
    {"type": "gte", "key": "n", "value": 5},
    {"type": "exists", "key": "n"},
)
FILTERS = [  # of document 3: odd and small; what is left, and where it fails
    (EVEN, None, ["filter"]),
    ({"type": "and", "filters": [THERE, EVEN, LARGE]}, {"type": "and", "filters": [THERE]},
     ["filter.filters[1]", "filter.filters[2]"]),
    ({"type": "or", "filters": [EVEN, LARGE]}, None, ["filter.filters[0]", "filter.filters[1]"]),
    ({"type": "not", "filter": THERE}, None, ["filter.filter"]),
    ({"type": "not", "filter": {"type": "or", "filters": [EVEN, THERE]}}, None, ["filter.filter.filters[1]"]),
    ({"type": "or", "filters": [EVEN, {"type": "not", "filter": THERE}]}, None,
     ["filter.filters[0]", "filter.filters[1].filter"]),
    ({"type": "and", "filters": [{"type": "not", "filter": EVEN}, LARGE]},
     {"type": "and", "filters": [{"type": "not", "filter": EVEN}]}, ["filter.filters[1]"]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "rest", "places"), FILTERS, ids=str)
def test_what_a_filter_has_against_a_document(
    collection: Collection, value: dict[str, object], rest: object, places: list[str]
) -> None:
    """The conditions at fault by their places, and the filter without them, which lets the document in."""
    prepared = collection.snapshot.prepare(Query(10, 10, "ant"))
    (three,) = collection.log.passages_of("d3")

    def satisfies(condition: Filter) -> bool:
        return holds(prepared, three, condition)

    left, unmet = relax(value, parse_filter(value, conditions_max=9), satisfies)
    assert left == rest
    assert [one.where for one in unmet] == places
    assert left is None or satisfies(parse_filter(left, conditions_max=9))
