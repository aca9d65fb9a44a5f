"""Metadata as people have it: nested, with nulls and lists of objects; filters on it; and changes to it alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from indexes.base.errors import InvalidInput, NotReady
from indexes.base.model import IndexOptions, WriteResult
from indexes.collection.collection import Collection
from indexes.filters.grammar import parse_filter
from indexes.reading.choosing import named
from nearline import AsyncClient, ServiceError
from retrieval.base.cancellation import Stopping
from retrieval.base.settings import Config, LimitsSection
from retrieval.documents.metadata import DEPTH_MAX, check_metadata, patch_metadata
from retrieval.documents.writing import patcher, write_in_parts
from tests.support.http import Http
from tests.support.vectors import World, fill, make_collection

SENT = {
    "author": {"name": "Ada", "born": {"year": 1815}, "died": None},
    "scores": [1, 2.5, True, None, "x"],
    "empty": [],
    "nothing": {},
    "none": None,
    "big": 2**63 - 1,
}


def test_metadata_comes_back_as_it_was_sent(http: Http) -> None:
    """Objects, nulls and lists keep their shape; filters reach the values by dotted paths."""
    name = http.new_collection()
    http.write(name, {"id": 12, "text": "notes on the engine", "metadata": SENT})
    assert http.ok("GET", f"/v1/collections/{name}/documents/12")["metadata"] == SENT
    assert http.search(name, query="engine")["hits"][0]["metadata"] == SENT
    assert http.ok("POST", f"/v1/collections/{name}/documents/scroll", {})["documents"][0]["id"] == "12"
    for key, value in [("author.born.year", 1815), ("scores", 2.5), ("scores", True), ("scores", "x")]:
        assert http.found(name, query="x", filter={"type": "eq", "key": key, "value": value}) == ["12"]
    http.reindex(name)
    assert http.found(name, query="x", filter={"type": "gt", "key": "scores", "value": 2}) == ["12"]
    http.write(name, {"id": "13", "text": "more"})
    assert http.ok("POST", f"/v1/collections/{name}/documents/delete", {"ids": [12, "13"]})["deleted"] == 2


ORDERS = [
    {
        "order": number,
        "paid": None,
        "items": [
            {"sku": sku, "qty": number % 3, "tags": [["new"], sku.lower()]} for sku in ("A", f"B{number}")
        ],
        "customer": {"name": f"c{number}", "address": {"city": "Ulm" if number % 2 else "Bonn", "zip": None}},
        "shipped": f"2024-{number + 1:02}-10",
        "customer.vip": number == 1,
        "path": [[1.5, 2], [3, 4]],
        "none": {},
    }
    for number in range(12)
]


@pytest.fixture(scope="module")
def orders(service: object) -> str:
    """Normal order records; half of them in a generation, half in the delta."""
    http = Http(service.url)  # type: ignore[attr-defined]
    name = http.new_collection()
    for half in (ORDERS[:6], ORDERS[6:]):
        http.write(name, *({"id": f"o{one['order']}", "text": "an order", "metadata": one} for one in half))
        if half[0]["order"] == 0:
            http.reindex(name)
    return name


def test_lists_of_objects_are_taken_and_returned(http: Http, orders: str) -> None:
    """Every record comes back exactly as it was sent, whether read, scrolled, searched or exported."""
    documents = http.ok("POST", f"/v1/collections/{orders}/documents/scroll", {})["documents"]
    assert [one["metadata"] for one in documents] == ORDERS
    assert [
        http.ok("GET", f"/v1/collections/{orders}/documents/o{at}")["metadata"] for at in range(12)
    ] == ORDERS
    hits = http.search(orders, query="order", k=12, collapse=False)["hits"]
    assert {hit["document_id"]: hit["metadata"] for hit in hits} == {
        f"o{one['order']}": one for one in ORDERS
    }


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({"type": "eq", "key": "items.sku", "value": "A"}, range(12)),
        ({"type": "eq", "key": "items.sku", "value": "B7"}, [7]),
        ({"type": "ne", "key": "items.sku", "value": "B7"}, [n for n in range(12) if n != 7]),
        ({"type": "in", "key": "items.sku", "value": ["B1", "B10", "C"]}, [1, 10]),
        ({"type": "prefix", "key": "items.sku", "value": "B1"}, [1, 10, 11]),
        ({"type": "gte", "key": "items.qty", "value": 2}, [2, 5, 8, 11]),
        ({"type": "eq", "key": "items.tags", "value": "b3"}, [3]),
        ({"type": "eq", "key": "items.tags", "value": "new"}, range(12)),
        ({"type": "eq", "key": "customer.address.city", "value": "Bonn"}, range(0, 12, 2)),
        ({"type": "eq", "key": "customer.vip", "value": True}, [1]),
        ({"type": "gt", "key": "path", "value": 3}, range(12)),
        ({"type": "lt", "key": "shipped", "value": "2024-03-10T00:00:00Z"}, [0, 1]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_filters_reach_into_objects_and_lists(
    http: Http, orders: str, condition: object, found: Sequence[int]
) -> None:
    """By dotted path, in rebuilt and new parts alike; any element of a list may match."""
    scrolled = http.ok("POST", f"/v1/collections/{orders}/documents/scroll", {"filter": condition})
    assert [document["id"] for document in scrolled["documents"]] == [f"o{number}" for number in found]


def test_options_of_a_search_reach_into_objects_and_lists(http: Http, orders: str) -> None:
    """Facets, sort and boosts take dotted paths as they take flat keys; an unknown one is refused by name."""
    answer = http.search(
        orders,
        query="order",
        k=12,
        collapse=False,
        facets=["customer.address.city", {"key": "items.sku", "top": 1}],
        sort=[{"key": "customer.name", "order": "desc"}],
        boosts=[{"key": "items.qty", "weight": 1.0}],
    )
    cities, skus = answer["facets"]
    assert cities["values"] == [{"value": "Bonn", "count": 6}, {"value": "Ulm", "count": 6}]
    assert (skus["values"], skus["distinct"]) == ([{"value": "A", "count": 12}], 13)
    names = [hit["metadata"]["customer"]["name"] for hit in answer["hits"]]
    assert names == sorted(names, reverse=True)
    assert {hit["document_id"]: hit["scores"]["boost"] for hit in answer["hits"]} == {
        f"o{number}": 1.0 + number % 3 for number in range(12)
    }
    for option, place in (
        ({"facets": ["items.nothing"]}, "facets[0]"),
        ({"sort": [{"key": "customer"}]}, "sort[0].key"),
        ({"boosts": [{"key": "items", "weight": 1}]}, "boosts[0].key"),
        ({"filter": {"type": "eq", "key": "customer.address", "value": "Ulm"}}, "filter"),
    ):
        reply = http.call("POST", f"/v1/collections/{orders}/search", {"query": "x", **option})
        assert reply.status == 422, option
        assert str(reply.body["error"]["param"]).startswith(place)


def test_explain_shows_what_a_path_holds(http: Http, orders: str) -> None:
    """The values of the document under the path that a filter asks for."""
    condition = {"type": "eq", "key": "items.sku", "value": "B2"}
    body = {"query": "order", "filter": condition, "document_id": "o7"}
    told = http.ok("POST", f"/v1/collections/{orders}/explain", body)
    assert told["cause"]["evidence"]["conditions"][0]["document_value"] == ["A", "B7"]


def test_metadata_survives_a_restart(tmp_path: Path) -> None:
    """What is nested is read back from the log into the same filters."""
    with closing(make_collection(tmp_path / "c")) as collection:
        documents = [replace(World().document(number), metadata=ORDERS[number]) for number in range(3)]
        collection.write(documents).result()
    wanted = parse_filter({"type": "eq", "key": "items.sku", "value": "B2"}, conditions_max=1)
    with closing(Collection(tmp_path / "c", IndexOptions())) as collection:
        assert len(collection.snapshot.matching(wanted)) == 1
        assert collection.document("d2").metadata == ORDERS[2]


def test_nesting_has_a_bound() -> None:
    """As many objects as are allowed are taken; one more is refused by name."""
    deep: dict[str, Any] = {"x": 1}
    for _ in range(DEPTH_MAX - 1):
        deep = {"a": deep}
    assert check_metadata(deep, "metadata") is deep
    with pytest.raises(InvalidInput, match="nested too deep") as refused:
        check_metadata({"b": deep}, "metadata")
    assert refused.value.param == "metadata.b" + ".a" * (DEPTH_MAX - 1) + ".x"


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (
            {"a": 1, "items": [[n % 10 for n in range(100)]] * 50},
            "has 5001 values, at most 4096 are allowed; 5000 of them are in 'items'",
        ),
        (
            {"votes": {f"u{n}": n for n in range(600)}},
            "has 600 different keys, at most 512 are allowed; 600 of them are in 'votes'",
        ),
        ({"a": 1, "notes": ["y" * 20_000]}, "are allowed; 20004 of them are in 'notes'"),
    ],
)
def test_too_much_metadata_is_told_with_its_largest_field(http: Http, metadata: object, words: str) -> None:
    """The limits are bytes, values, and keys, those in objects and lists included."""
    name = http.new_collection()
    http.write(name, {"id": "wide", "text": "x", "metadata": {f"column {at}": at for at in range(300)}})
    body = {"documents": [{"id": "x", "text": "x", "metadata": metadata}]}
    reply = http.call("POST", f"/v1/collections/{name}/documents", body)
    assert (reply.status, reply.body["error"]["param"]) == (413, "documents[0].metadata")
    assert words in reply.body["error"]["message"]


# --- filters on it --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers(service: object) -> str:
    http = Http(service.url)  # type: ignore[attr-defined]
    name = http.new_collection()
    for at, (day, year) in enumerate(
        [
            ("2026-01-05", "2023"),
            ("2026-01-05T10:00:00+02:00", "2024"),
            ("2026-01-06T00:00:00Z", 7),
            ("soon", 8),
        ]
    ):
        http.write(name, {"id": f"p{at}", "text": f"paper {at}", "metadata": {"day": day, "mixed": year}})
        if at == 1:
            http.reindex(name)
    http.write(
        name, {"id": "p4", "text": "paper 4", "metadata": {"year": "2023", "ok": True, "note": "in May"}}
    )
    return name


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({"type": "gte", "key": "day", "value": "2026-01-05"}, "p0 p1 p2"),
        ({"type": "gt", "key": "day", "value": "2026-01-05"}, "p2"),
        ({"type": "lte", "key": "day", "value": "2026-01-05"}, "p0 p1"),
        ({"type": "eq", "key": "day", "value": "2026-01-05"}, "p0 p1"),
        ({"type": "ne", "key": "day", "value": "2026-01-05"}, "p2 p3 p4"),
        ({"type": "eq", "key": "day", "value": "2026-01"}, "p0 p1 p2"),
        ({"type": "eq", "key": "day", "value": "2026"}, "p0 p1 p2"),
        ({"type": "in", "key": "day", "value": ["2026-01-06", "soon"]}, "p2 p3"),
        ({"type": "nin", "key": "day", "value": ["2026-01-06", "2026-01-05"]}, "p3 p4"),
        ({"type": "eq", "key": "day", "value": "2026-01-05T08:00:00.000Z"}, "p1"),
        ({"type": "eq", "key": "day", "value": "later"}, ""),
        ({"type": "lt", "key": "day", "value": "2026-01-05T09:00:00Z"}, "p0 p1"),
        ({"type": "lte", "key": "day", "value": "2026-01-05T08:00:00"}, "p0 p1"),
        ({"type": "gte", "key": "day", "value": "2026-01"}, "p0 p1 p2"),
        ({"type": "gt", "key": "day", "value": "2026-01"}, ""),
        ({"type": "lte", "key": "day", "value": "2026-01"}, "p0 p1 p2"),
        ({"type": "lt", "key": "day", "value": "2026-01"}, ""),
        ({"type": "lte", "key": "day", "value": "2026"}, "p0 p1 p2"),
        ({"type": "gt", "key": "day", "value": "2025"}, "p0 p1 p2"),
        ({"type": "gte", "key": "year", "value": "2023"}, "p4"),
        ({"type": "eq", "key": "day", "value": "2026-01-05T00:00:00Z"}, "p0"),
        ({"type": "prefix", "key": "day", "value": "2026-01-05"}, "p0 p1"),
        ({"type": "exists", "key": "day"}, "p0 p1 p2 p3"),
        ({"type": "exists", "key": "day", "value": False}, "p4"),
        ({"type": "exists", "key": "nobody", "value": False}, "p0 p1 p2 p3 p4"),
        ({"type": "not", "filter": {"type": "prefix", "key": "day", "value": "2026"}}, "p3 p4"),
        ({"type": "in", "key": "mixed", "value": ["2023", 7, 9]}, "p0 p2"),
        ({"type": "in", "key": "year", "value": []}, ""),
        ({"type": "eq", "key": "mixed", "value": "2023"}, "p0"),
        ({"type": "gt", "key": "mixed", "value": 7}, "p3"),
    ],
)
def test_filters(http: Http, papers: str, condition: object, found: str) -> None:
    """Dates compare as instants across rebuilt and new parts; the rest of the grammar says what it says."""
    scrolled = http.ok("POST", f"/v1/collections/{papers}/documents/scroll", {"filter": condition})
    assert [document["id"] for document in scrolled["documents"]] == found.split()


def test_no_error_shows_a_value_of_a_document_that_is_gone(http: Http) -> None:
    """Errors about filters, boosts and facets say which types a key holds, and show none of its values."""
    name = http.new_collection()
    written = {"kept": "678-90", "gone": "123-45"}
    http.write(
        name, *({"id": one, "text": "Noon.", "metadata": {"ssn": ssn}} for one, ssn in written.items())
    )
    http.ok("DELETE", f"/v1/collections/{name}/documents/gone")
    for asked in (
        {"filter": {"type": "eq", "key": "ssn", "value": 1}},
        {"boosts": [{"key": "ssn"}]},
        {"facets": [{"key": "ssn", "ranges": [1, 2]}]},
    ):
        refused = http.call("POST", f"/v1/collections/{name}/search", {"query": "noon", **asked})
        message = refused.body["error"]["message"]
        assert (refused.status, "holds strings, no number" in message) == (422, True), refused
        assert not [ssn for ssn in written.values() if ssn in message]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (
            {"type": "gt", "key": "year", "value": 5},
            "'year' holds strings, no number is among them",
        ),
        ({"type": "eq", "key": "year", "value": 2023}, "no number is among them"),
        ({"type": "ne", "key": "year", "value": 2023}, "no number is among them"),
        ({"type": "in", "key": "year", "value": ["x", True, 2023]}, "no boolean is among them"),
        ({"type": "in", "key": "year", "value": ["2023", 2023]}, "no number is among them"),
        (
            {"type": "nin", "key": "ok", "value": [True, "true"]},
            "'ok' holds booleans, no string is",
        ),
        ({"type": "prefix", "key": "ok", "value": "t"}, "'ok' holds booleans, no string is"),
        (
            {"type": "eq", "key": "mixed", "value": True},
            "'mixed' holds numbers and strings, no boolean",
        ),
        (
            {"type": "gt", "key": "note", "value": "2026-01-05"},
            "'note' holds strings, no date (2026-01-05, 2026-01-05T10:00:00Z) is among them",
        ),
        (
            {"type": "gt", "key": "note", "value": "2026"},
            "'note' holds strings, no date (2026-01-05, 2026-01-05T10:00:00Z) is among them",
        ),
        ({"type": "eq", "key": "yaer", "value": "2023"}, "metadata key 'yaer'; did you mean 'year'?"),
        ({"type": "exists", "key": "zzz"}, "metadata key 'zzz'; known names: day, mixed, note, ok, year"),
    ],
)
def test_what_no_value_can_satisfy_is_an_error(
    http: Http, papers: str, condition: dict[str, object], words: str
) -> None:
    """It names the place in the filter and says what the key holds; a deletion by such a filter deletes nothing."""
    known = {"type": "exists", "key": "day"}
    at = {"in": ".value[1]", "nin": ".value[1]"}.get(str(condition["type"]), "")
    for whole, place in (
        (condition, "filter"),
        ({"type": "or", "filters": [known, condition]}, "filter.filters[1]"),
        ({"type": "not", "filter": condition}, "filter.filter"),
    ):
        reply = http.call("POST", f"/v1/collections/{papers}/documents/delete", {"filter": whole})
        assert (reply.status, reply.body["error"]["param"]) == (422, f"{place}{at}")
        assert reply.body["error"]["message"].startswith(f"{place}{at}: ")
        assert words in reply.body["error"]["message"]
    assert http.ok("GET", f"/v1/collections/{papers}")["documents"] == 5


# --- changes to it alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "patch", "after"),
    [
        ({"a": 1, "b": 2}, {"b": None, "c": [3, None]}, {"a": 1, "c": [3, None]}),
        (
            {"a": {"b": 1, "c": 2}},
            {"a": {"b": None, "d": {"e": 3, "f": None}}},
            {"a": {"c": 2, "d": {"e": 3}}},
        ),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, {"a": [{"b": 2}]}),
        ({"a": 5}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 5}, {"a": {}}, {"a": {}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1}}),
        ({"a.b": 1, "a": {"b": 2}}, {"a": None}, {"a.b": 1}),
        ({"a.b": 1}, {"a": {"b": 3}}, {"a.b": 1, "a": {"b": 3}}),
        ({"a": {"b": 1}}, {"a.b": 2}, {"a": {"b": 1}, "a.b": 2}),
        ({"a.b": 1, "a": 2}, {"a.b": None}, {"a": 2}),
        ({".": 1, "..": 2}, {"..": None}, {".": 1}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": 1}, {"nobody": None}, {"a": 1}),
    ],
)
def test_a_patch_merges_as_rfc_7396_says(
    stored: dict[str, object], patch: dict[str, object], after: dict[str, object]
) -> None:
    """A key with dots is itself: it names nothing inside an object, and is not removed with one."""
    before = json.dumps(stored)
    assert json.dumps(patch_metadata(stored, patch), sort_keys=True) == json.dumps(after, sort_keys=True)
    assert json.dumps(stored) == before


def test_a_patch_keeps_text_vectors_and_passages(http: Http) -> None:
    """Only metadata and the place in the log change; the answer is that of a write; what changes nothing is none."""
    name = http.new_collection()
    text = "The harbour master keeps a log. " * 200
    http.write(name, {"id": "a/1", "title": "Harbour", "text": text, "metadata": {"lang": "en", "n": 1}})
    path = f"/v1/collections/{name}/documents/a%2F1"
    before = http.ok("GET", f"{path}?vectors=true")
    hits = http.search(name, query="harbour", cache=False)["hits"]
    answer = http.ok("PATCH", path, {"metadata": {"lang": "de", "n": None, "by": {"whom": "Ada"}}})
    assert (answer["seq"], answer["documents"], answer["passages"]) == (2, 1, len(before["passages"]))
    after = http.ok("GET", f"{path}?vectors=true")
    assert after == {**before, "seq": 2, "metadata": {"lang": "de", "by": {"whom": "Ada"}}}
    assert [hit["score"] for hit in http.search(name, query="harbour")["hits"]] == [
        hit["score"] for hit in hits
    ]
    assert http.found(name, query="log", filter={"type": "eq", "key": "lang", "value": "de"}, k=1) == ["a/1"]
    again = http.ok("PATCH", path, {"metadata": {"lang": "de", "n": None}})
    assert (again["seq"], again["documents"], again["passages"]) == (2, 0, 0)
    assert http.ok("GET", f"/v1/collections/{name}")["seq"] == 2
    reply = http.call("PATCH", f"/v1/collections/{name}/documents/nobody", {"metadata": {"a": 1}})
    assert (reply.status, reply.body["error"]["param"]) == (404, "id")


def test_patches_at_the_same_time_all_hold(http: Http) -> None:
    """Each merges into what the one before left."""
    name = http.new_collection()
    http.write(name, {"id": "one", "text": "text"})

    def patch(key: int) -> None:
        for value in range(5):
            http.ok("PATCH", f"/v1/collections/{name}/documents/one", {"metadata": {f"k{key}": value}})

    threads = [threading.Thread(target=patch, args=(key,)) for key in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = http.ok("GET", f"/v1/collections/{name}/documents/one")["metadata"]
    assert stored == {f"k{key}": 4 for key in range(4)}


def test_what_is_cut_off_says_how_much_is_done(tmp_path: Path) -> None:
    """A service that stops ends a write of many commits after any of them."""
    stopping, stuck = Stopping(), Future[WriteResult]()

    async def story(collection: Collection) -> None:
        chosen = named(collection, ["d0", "d1", "d2"])
        done = collection.change_among({"d0": 1}, None, patcher({"seen": True}, Config()))
        writes = iter([done, stuck])
        asyncio.get_running_loop().call_later(0.3, stopping.end_grace)
        async with stopping.within_grace():
            await write_in_parts(collection, chosen, lambda _: next(writes), "changed")

    with closing(make_collection(tmp_path / "c")) as collection:
        fill(collection, World(), range(3))
        with pytest.raises(NotReady, match="1 or more documents were already changed; send it again"):
            asyncio.run(story(collection))


def test_the_client_patches(http: Http) -> None:
    """`AsyncClient.patch` speaks the endpoint, errors included."""
    name = http.new_collection()
    http.write(name, {"id": "one", "text": "text", "metadata": {"a": 1}})

    async def run() -> None:
        async with AsyncClient(http.url) as client:
            assert (await client.patch(name, "one", {"a": None, "b": 2}))["documents"] == 1
            assert (await client.document(name, "one"))["metadata"] == {"b": 2}
            with pytest.raises(ServiceError, match="no document 'two'"):
                await client.patch(name, "two", {})

    asyncio.run(run())


@pytest.mark.model
def test_a_value_that_was_meant_as_a_date(http: Http) -> None:
    """Where a key holds dates, one written otherwise is refused instead of compared by its characters."""
    name = http.new_collection()
    http.write(name, {"id": "a", "text": "x", "metadata": {"at": "2026-01-05"}})
    for bound in ("2026-1-5", "2026-13-45", "05/01/2000", "June 2024", "yesterday", "2024-13", "2024Q2", ""):
        for kind in ("gte", "lt", "eq", "ne", "in", "nin"):
            value = [bound] if kind in ("in", "nin") else bound
            search = {"query": "x", "filter": {"type": kind, "key": "at", "value": value}}
            reply = http.call("POST", f"/v1/collections/{name}/search", search)
            assert reply.status == 422, (kind, bound)
            assert ": 'at' holds dates" in reply.body["error"]["message"]
            assert "write 2026-01-05, 2026-01-05T10:00:00Z, 2026-01 or 2026" in reply.body["error"]["message"]


def test_dates_beside_other_strings(http: Http) -> None:
    """A string that a document has is found as it is written; what only looks like a date is refused."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "a", "text": "x", "metadata": {"at": "2026-01-05"}},
        {"id": "b", "text": "x", "metadata": {"at": "5/1/2026"}},
        {"id": "c", "text": "x", "metadata": {"at": "2026-01"}},
    )
    path = f"/v1/collections/{name}/documents/scroll"
    for value, ids in (("5/1/2026", ["b"]), ("2026-01", ["a", "c"]), ("2026-01-05", ["a"]), ("soon", [])):
        answer = http.ok("POST", path, {"filter": {"type": "eq", "key": "at", "value": value}})
        assert [document["id"] for document in answer["documents"]] == ids
    reply = http.call("POST", path, {"filter": {"type": "eq", "key": "at", "value": "6/1/2026"}})
    assert (reply.status, "holds dates" in reply.body["error"]["message"]) == (422, True)


def test_a_range_of_years_matches_no_placeholder(http: Http) -> None:
    """Alone or in a list beside a date, before and after a rebuild; a list matches if one of its elements does."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "date", "text": "x", "metadata": {"due": "2027-01-01"}},
        {"id": "words", "text": "x", "metadata": {"due": "TBD"}},
        {"id": "listed", "text": "x", "metadata": {"due": ["TBD", "2020-01-01", "-"]}},
        {"id": "year", "text": "x", "metadata": {"due": ["TBD", "2020-01-01", "2027"]}},
    )
    found = {
        "gte": ["date", "year"],
        "gt": ["date", "year"],
        "lt": ["listed", "year"],
        "lte": ["listed", "year"],
    }
    for _ in range(2):
        for kind, ids in found.items():
            for value in ("2026", "2026-01"):
                answer = http.ok(
                    "POST",
                    f"/v1/collections/{name}/documents/scroll",
                    {"filter": {"type": kind, "key": "due", "value": value}},
                )
                assert [document["id"] for document in answer["documents"]] == ids, (kind, value)
        http.reindex(name)


def test_a_key_that_holds_objects(http: Http) -> None:
    """It exists where they have a value. To filter, sort or count by it is refused with the paths there are."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "a", "text": "x", "metadata": {"customer": {"name": "Ada", "at": {"city": "Ulm"}}}},
        {"id": "b", "text": "x", "metadata": {"customer": [{"name": "Bob"}]}},
        {"id": "c", "text": "x", "metadata": {"customer": {}, "customers": 3}},
        {"id": "d", "text": "x", "metadata": {"customer": []}},
    )
    path = f"/v1/collections/{name}/documents/scroll"
    for key, ids in (("customer", ["a", "b"]), ("customer.at", ["a"]), ("customer.at.city", ["a"])):
        for value in (True, False):
            answer = http.ok("POST", path, {"filter": {"type": "exists", "key": key, "value": value}})
            found = [document["id"] for document in answer["documents"]]
            assert found == (ids if value else [one for one in "abcd" if one not in ids])
    words = (
        "'customer' holds objects; name what is in them by a dotted path: 'customer.at.city', 'customer.name'"
    )
    for asked in (
        {"filter": {"type": "eq", "key": "customer", "value": "Ada"}},
        {"filter": {"type": "ne", "key": "customer", "value": "Ada"}},
        {"sort": [{"key": "customer"}]},
        {"facets": ["customer"]},
        {"boosts": [{"key": "customer"}]},
    ):
        reply = http.call("POST", f"/v1/collections/{name}/search", {"query": "x", **asked})
        assert (reply.status, words in reply.body["error"]["message"]) == (422, True), reply


def test_composed_and_decomposed_letters_are_alike(http: Http) -> None:
    """In keys and values, for every operator, facet, sort and boost; the metadata comes back as it was sent."""
    name = http.new_collection()
    sent = [
        {"ville": "Gen\u00e8ve", "ann\u00e9e": 1},
        {"ville": "Gene\u0300ve", "anne\u0301e": 2},
        {"ville": "Genf", "ann\u00e9e": 3},
    ]
    http.write(name, *({"id": str(at), "text": "lac", "metadata": one} for at, one in enumerate(sent)))
    for _ in ("delta", "generation"):
        for e_grave, e_acute in (("\u00e8", "\u00e9"), ("e\u0300", "e\u0301")):
            ville, year = f"Gen{e_grave}ve", f"ann{e_acute}e"
            for condition, ids in (
                ({"type": "eq", "key": "ville", "value": ville}, "01"),
                ({"type": "ne", "key": "ville", "value": ville}, "2"),
                ({"type": "in", "key": "ville", "value": [ville]}, "01"),
                ({"type": "prefix", "key": "ville", "value": f"Gen{e_grave}"}, "01"),
                ({"type": "prefix", "key": "ville", "value": "Gene"}, ""),
                ({"type": "gte", "key": "ville", "value": ville}, "01"),
                ({"type": "gt", "key": "ville", "value": ville}, ""),
                ({"type": "lt", "key": "ville", "value": ville}, "2"),
                ({"type": "exists", "key": year}, "012"),
                ({"type": "lte", "key": year, "value": 2}, "01"),
            ):
                assert (
                    "".join(sorted(http.found(name, query="lac", filter=condition, collapse=False))) == ids
                ), condition
            answer = http.search(
                name,
                query="lac",
                collapse=False,
                facets=["ville", year],
                sort=[{"key": year}],
                boosts=[{"key": year}],
            )
            assert [hit["metadata"] for hit in answer["hits"]] == sent
            assert [(one["value"], one["count"]) for one in answer["facets"][0]["values"]] == [
                ("Gen\u00e8ve", 2),
                ("Genf", 1),
            ]
            assert [one["value"] for one in answer["facets"][1]["values"]] == [1, 2, 3]
        http.reindex(name)


def test_a_key_with_a_dot_is_the_path(http: Http) -> None:
    """Both spellings are one key, and a document with both has both values."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "a", "text": "x", "metadata": {"a.b": 1}},
        {"id": "b", "text": "x", "metadata": {"a": {"b": 2}}},
        {"id": "c", "text": "x", "metadata": {"a.b": 1, "a": {"b": 2}}},
    )
    for value, ids in ((1, {"a", "c"}), (2, {"b", "c"})):
        condition = {"type": "eq", "key": "a.b", "value": value}
        assert set(http.found(name, query="x", filter=condition, collapse=False)) == ids


def test_what_cannot_count_is_refused(http: Http) -> None:
    """Ranges of numbers or dates, and boosts, where the key has none of what they read."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "a", "text": "x", "metadata": {"word": "b", "number": 5, "day": "2026-01-05", "ok": True}},
    )
    ages = {"decay": {"half_life_days": 3}}
    for asked, place, missing in (
        ({"facets": [{"key": "word", "ranges": [1, 2]}]}, "facets[0]", "no number is among them"),
        ({"facets": [{"key": "number", "ranges": ["2025", "2026"]}]}, "facets[0]", "no date (2026-01-05"),
        ({"facets": [{"key": "word", "ranges": ["2025"]}]}, "facets[0]", "no date (2026-01-05"),
        ({"boosts": [{"key": "word"}]}, "boosts[0].key", "no number is among them"),
        ({"boosts": [{"key": "day"}]}, "boosts[0].key", "reads them with decay"),
        ({"boosts": [{"key": "word", **ages}]}, "boosts[0].key", "no number or date (2026-01-05"),
    ):
        reply = http.call("POST", f"/v1/collections/{name}/search", {"query": "x", **asked})
        assert (reply.status, reply.body["error"]["param"]) == (422, place), (asked, reply)
        assert missing in reply.body["error"]["message"]
    for fine in (
        {"boosts": [{"key": "ok"}, {"key": "number"}, {"key": "day", **ages}, {"key": "number", **ages}]},
        {"facets": [{"key": "day", "ranges": ["2026"]}, {"key": "number", "ranges": [1]}]},
    ):
        assert http.found(name, query="x", **fine) == ["a"]


def test_letters_composed_or_not(http: Http) -> None:
    """A string is equal to itself in Unicode's other form; case and everything else count."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "composed", "text": "x", "metadata": {"size": "Gr\u00f6\u00dfe"}},
        {"id": "decomposed", "text": "x", "metadata": {"size": "Gro\u0308\u00dfe"}},
        {"id": "lower", "text": "x", "metadata": {"size": "gr\u00f6\u00dfe"}},
    )
    for value in ("Gr\u00f6\u00dfe", "Gro\u0308\u00dfe"):
        for condition in ({"type": "eq", "value": value}, {"type": "in", "value": [value]}):
            found = http.found(name, query="x", filter={**condition, "key": "size"}, collapse=False)
            assert set(found) == {"composed", "decomposed"}


def test_ranges_of_months_and_years(http: Http) -> None:
    """The bounds of a facet's ranges have the forms that filters read."""
    name = http.new_collection()
    http.write(
        name,
        *(
            {"id": day, "text": "x", "metadata": {"at": day}}
            for day in ("2023-12-31", "2024-05-31", "2024-06-01")
        ),
    )
    facet = {"key": "at", "ranges": ["2024", "2024-06", "2024-06-02"]}
    (found,) = http.search(name, query="x", facets=[facet])["facets"]
    assert [one["count"] for one in found["ranges"]] == [1, 1, 1, 0]


@pytest.mark.model
def test_a_filter_on_an_empty_collection(http: Http) -> None:
    """Nothing is there, so no key is unknown: no hits, and no error on the first day."""
    name = http.new_collection()
    search = {"query": "x", "filter": {"type": "eq", "key": "lang", "value": "en"}}
    assert http.ok("POST", f"/v1/collections/{name}/search", search)["hits"] == []


def test_metadata_may_have_as_many_bytes_as_its_json(http: Http) -> None:
    """And the bytes of the title count, too."""
    name, most = http.new_collection(), LimitsSection().metadata_bytes_max
    path = f"/v1/collections/{name}/documents"
    for title, over, status in (("", 0, 200), ("", 1, 413), ("né", 0, 413), ("né", -3, 200)):
        metadata = {"a": "y" * (most - len('{"a":""}') + over)}
        document = {"id": "m", "text": "a", "title": title, "metadata": metadata}
        assert http.call("POST", path, {"documents": [document]}).status == status, (title, over)
