"""Facets: documents counted by the values of their metadata."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.filters.dates import NO_DATE
from indexes.filters.index import GrowingFilters
from jobs.serving.process import ServerProcess
from tests.support.http import Http

LONG = "A sentence about rivers that makes this document longer than one passage. " * 60
AXES = 384


def documents(rnd: random.Random) -> dict[str, dict[str, Any]]:
    """Of one passage and of several, with values of every kind, lists, and none."""
    found: dict[str, dict[str, Any]] = {}
    for at in range(120):
        metadata: dict[str, Any] = {
            "lang": rnd.choice(["en", "de", "fr"]),
            "year": rnd.choice([2024, 2025, 2025.5]),
        }
        if at % 3:
            metadata["tags"] = rnd.sample(["a", "b", "c", "d"], rnd.randrange(4))
        if at % 4:
            metadata["draft"] = rnd.random() < 0.5
        if at % 5:
            metadata["day"] = f"2026-{rnd.randrange(1, 13):02}-10"
        if at % 7 == 0:
            metadata["year"] = "unknown"
        vector = [1.0 if place == at else 0.0 for place in range(AXES)]
        document: dict[str, Any] = {
            "id": f"d{at}",
            "text": f"text {at}",
            "metadata": metadata,
            "vector": vector,
        }
        if at % 10 == 0:
            document = {"id": f"d{at}", "text": LONG, "metadata": metadata}
        found[f"d{at}"] = document
    return found


@pytest.fixture(scope="module", params=["delta", "generation"])
def library(
    service: ServerProcess, request: pytest.FixtureRequest
) -> tuple[Http, str, dict[str, dict[str, Any]]]:
    """Written, perhaps rebuilt, then partly deleted and replaced."""
    http, rnd = Http(service.url), random.Random(3)
    name, held = http.new_collection(), documents(rnd)
    http.write(name, *held.values())
    http.search(name, query="text", facets=["lang"])  # some is known of what changes now
    if request.param == "generation":
        http.reindex(name)
    gone = [f"d{at}" for at in range(0, 120, 9)]
    http.ok("POST", f"/v1/collections/{name}/documents/delete", {"ids": gone})
    changed = {one: {**held[one], "metadata": {"lang": "it"}} for one in ("d1", "d10")}
    http.write(name, *changed.values())
    return http, name, {**{one: held[one] for one in held if one not in gone}, **changed}


FILTERS: list[tuple[Any, Callable[[dict[str, Any]], bool]]] = [
    (None, lambda metadata: True),
    ({"type": "eq", "key": "lang", "value": "de"}, lambda metadata: metadata["lang"] == "de"),
    ({"type": "eq", "key": "draft", "value": True}, lambda metadata: metadata.get("draft") is True),
]


@pytest.mark.parametrize(("condition", "matches"), FILTERS, ids=["all", "German", "drafts"])
@pytest.mark.parametrize("key", ["lang", "year", "tags", "draft", "day"])
def test_counts_are_those_of_the_documents(
    library: tuple[Http, str, dict[str, dict[str, Any]]],
    condition: Any,
    matches: Callable[[dict[str, Any]], bool],
    key: str,
) -> None:
    """Each live document that matches the filter counts once for each of its values, whatever its passages are."""
    http, name, held = library
    for _ in range(2):  # from the cache, too
        body = {"query": "text", "k": 1, "filter": condition, "facets": [{"key": key, "top": 100}]}
        (facet,) = http.search(name, **body)["facets"]
        wanted: Counter[tuple[type, Any]] = Counter()
        matching = [one["metadata"] for one in held.values() if matches(one["metadata"])]
        for metadata in matching:
            value = metadata.get(key, [])
            wanted.update((type(one), one) for one in (value if isinstance(value, list) else [value]))
        assert {(type(one["value"]), one["value"]): one["count"] for one in facet["values"]} == wanted
        counts = [one["count"] for one in facet["values"]]
        assert counts == sorted(counts, reverse=True)
        assert facet["documents"] == len(matching)
        assert facet["missing"] == sum(metadata.get(key, []) == [] for metadata in matching)
        assert facet["distinct"] == len(wanted)


def test_ranges_of_numbers_and_dates(library: tuple[Http, str, dict[str, dict[str, Any]]]) -> None:
    """Each range has the documents with a value from its start and below its end; values of other kinds are in none."""
    http, name, held = library
    asked = [
        {"key": "year", "ranges": [2025, 2025.5]},
        {"key": "day", "ranges": ["2026-03-01", "2026-09-10"]},
    ]
    years, days = http.search(name, query="text", facets=asked)["facets"]
    values = [one["metadata"].get("year") for one in held.values()]
    numbers = [one for one in values if isinstance(one, (int, float))]
    assert years["ranges"] == [
        {"count": sum(one < 2025 for one in numbers), "lt": 2025},
        {"count": sum(2025 <= one < 2025.5 for one in numbers), "gte": 2025, "lt": 2025.5},
        {"count": sum(one >= 2025.5 for one in numbers), "gte": 2025.5},
    ]
    dates = [one["metadata"]["day"] for one in held.values() if "day" in one["metadata"]]
    assert [one["count"] for one in days["ranges"]] == [
        sum(one < "2026-03-01" for one in dates),
        sum("2026-03-01" <= one < "2026-09-10" for one in dates),
        sum(one >= "2026-09-10" for one in dates),
    ]
    assert years["values"] == []


def test_numbers_beyond_64_bits_are_counted(http: Http) -> None:
    """They are written as they came, and so are the largest integers; a filter takes each of them."""
    name = http.new_collection()
    values = [1e300, 1e20, 2.0**64, 1e19, -1e19, 2**63 - 1, -(2**63), 1e15]
    http.write(
        name, *({"id": str(at), "text": "a", "metadata": {"n": value}} for at, value in enumerate(values))
    )
    [facet] = http.search(name, query="a", facets=["n"])["facets"]
    assert {one["value"] for one in facet["values"]} == set(values)
    for one in facet["values"]:
        equal = {"type": "eq", "key": "n", "value": one["value"]}
        assert len(http.search(name, query="a", filter=equal)["hits"]) == 1


def test_the_top_values_are_listed(library: tuple[Http, str, dict[str, dict[str, Any]]]) -> None:
    """The most frequent ones; `distinct` says how many there are. A plain search has no facets."""
    http, name, _ = library
    (facet,) = http.search(name, query="text", facets=[{"key": "day", "top": 2}])["facets"]
    assert len(facet["values"]) == 2
    assert facet["distinct"] > 2
    assert "facets" not in http.search(name, query="text")


@pytest.mark.parametrize(
    ("facets", "param"),
    [
        (["lamg"], "facets[0]"),
        (["lang", {"key": "year", "ranges": [3, 2]}], "facets[1].ranges"),
        ([{"key": "year", "ranges": []}], "facets[0].ranges"),
        ([{"key": "year", "ranges": [1, "2026-01-01"]}], "facets[0].ranges"),
        ([{"key": "year", "ranges": ["soon"]}], "facets[0].ranges"),
        ([{"key": "year", "ranges": [10**25]}], "facets[0].ranges"),
        ([{"key": "lang", "top": 0}], "facets[0].top"),
        (["lang"] * 17, "facets"),
    ],
    ids=str,
)
def test_a_wrong_facet_is_refused(
    library: tuple[Http, str, dict[str, dict[str, Any]]], facets: Any, param: str
) -> None:
    """The error names the field, and the key that was probably meant."""
    http, name, _ = library
    reply = http.call("POST", f"/v1/collections/{name}/search", {"query": "text", "facets": facets})
    assert (reply.status, reply.body["error"]["param"]) == (422, param)
    assert facets != ["lamg"] or "'lang'" in reply.body["error"]["message"]


VALUES = st.one_of(
    st.integers(-3, 3),
    st.floats(-3, 3),
    st.booleans(),
    st.sampled_from(["x", "y", "2026-01-05", "2026-01-06"]),
)


@given(st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=30), st.data())
def test_sealed_and_growing_columns_count_alike(rows: list[list[Any]], data: st.DataObject) -> None:
    """Counts and ranges of flagged rows are those found by reading them one by one, in either form of the index."""
    growing = GrowingFilters()
    for values in rows:
        growing.add({"key": values})
    flags = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    low, high = sorted(data.draw(st.tuples(st.floats(-3, 3), st.floats(-3, 3))))
    for part in (growing.view(len(rows)), growing.seal(len(rows))):
        for kind, column in part.columns("key").items():
            own = [[one for one in values if kind_is(kind, one)] for values in rows]
            wanted = Counter(one for values, flag in zip(own, flags) if flag for one in set(values))
            found, counts = column.counted(flags)
            assert {found.value_at(at): count for at, count in enumerate(counts.tolist()) if count} == wanted
            if kind == "number":
                between = [at for at, values in enumerate(own) if any(low <= one < high for one in values)]
                assert list(column.between(low, high)) == between
            if kind == "string":
                dates = [at for at, values in enumerate(own) if "2026-01-05" in values]
                assert list(column.between("2026-01-05", "2026-01-06")) == dates
                assert (column.instants() != NO_DATE).any() == any(
                    "2026" in one for values in own for one in values
                )


def kind_is(kind: str, value: Any) -> bool:
    return kind == (
        "boolean" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
    )
