"""Metadata as people have it: nested, with nulls and lists; filters on what it became; and changes to it alone."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from indexes.errors import InvalidInput
from nearline import AsyncClient, ServiceError
from retrieval.metadata import DEPTH_MAX, Patch, flattened
from tests.support.http import Http

SENT = {
    "author": {"name": "Ada", "born": {"year": 1815}, "died": None},
    "scores": [1, 2.5, True, None, "x"],
    "empty": [],
    "nothing": {},
    "none": None,
    "big": 2**63 - 1,
}
STORED = {
    "author.name": "Ada",
    "author.born.year": 1815,
    "scores": [1, 2.5, True, "x"],
    "empty": [],
    "big": 2**63 - 1,
}


def test_metadata_is_stored_flat(http: Http) -> None:
    """Nulls are dropped, objects become keys with dots, and that is what comes back and what filters compare."""
    name = http.new_collection()
    http.write(name, {"id": 12, "text": "notes on the engine", "metadata": SENT})
    assert http.ok("GET", f"/v1/collections/{name}/documents/12")["metadata"] == STORED
    assert http.search(name, query="engine")["hits"][0]["metadata"] == STORED
    assert http.ok("POST", f"/v1/collections/{name}/documents/scroll", {})["documents"][0]["id"] == "12"
    for key, value in [("author.born.year", 1815), ("scores", 2.5), ("scores", True), ("scores", "x")]:
        assert http.found(name, query="x", filter={"type": "eq", "key": key, "value": value}) == ["12"]
    http.reindex(name)
    assert http.found(name, query="x", filter={"type": "gt", "key": "scores", "value": 2}) == ["12"]
    http.write(name, {"id": "13", "text": "more"})
    assert http.ok("POST", f"/v1/collections/{name}/documents/delete", {"ids": [12, "13"]})["deleted"] == 2


def test_nesting_has_a_bound() -> None:
    """As many objects as are allowed are taken; one more is refused by name."""
    deep: dict[str, object] = {"x": 1}
    for _ in range(DEPTH_MAX - 1):
        deep = {"a": deep}
    assert flattened(deep, "metadata") == {"a." * (DEPTH_MAX - 1) + "x": 1}
    with pytest.raises(InvalidInput, match="nested too deep") as refused:
        flattened({"b": deep}, "metadata")
    assert refused.value.param == "metadata.b" + ".a" * (DEPTH_MAX - 1)


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
        ({"type": "gt", "key": "day", "value": "2026-01-05"}, "p1 p2"),
        ({"type": "lt", "key": "day", "value": "2026-01-05T09:00:00Z"}, "p0 p1"),
        ({"type": "lte", "key": "day", "value": "2026-01-05T08:00:00"}, "p0 p1"),
        ({"type": "gt", "key": "day", "value": "2026-01"}, "p0 p1 p2 p3"),
        ({"type": "eq", "key": "day", "value": "2026-01-05T00:00:00Z"}, ""),
        ({"type": "prefix", "key": "day", "value": "2026-01-05"}, "p0 p1"),
        ({"type": "exists", "key": "day"}, "p0 p1 p2 p3"),
        ({"type": "exists", "key": "day", "value": False}, "p4"),
        ({"type": "exists", "key": "nobody", "value": False}, "p0 p1 p2 p3 p4"),
        ({"type": "not", "filter": {"type": "prefix", "key": "day", "value": "2026"}}, "p3 p4"),
        ({"type": "in", "key": "year", "value": [2023, "2023"]}, "p4"),
        ({"type": "in", "key": "year", "value": []}, ""),
        ({"type": "eq", "key": "mixed", "value": "2023"}, "p0"),
        ({"type": "gt", "key": "mixed", "value": 7}, "p3"),
    ],
)
def test_filters(http: Http, papers: str, condition: object, found: str) -> None:
    """Dates compare as instants across rebuilt and new parts; the rest of the grammar says what it says."""
    scrolled = http.ok("POST", f"/v1/collections/{papers}/documents/scroll", {"filter": condition})
    assert [document["id"] for document in scrolled["documents"]] == found.split()


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (
            {"type": "gt", "key": "year", "value": 5},
            "'year' holds strings (such as \"2023\"), no number is among them",
        ),
        ({"type": "eq", "key": "year", "value": 2023}, "no number is among them"),
        ({"type": "ne", "key": "year", "value": 2023}, "no number is among them"),
        ({"type": "in", "key": "year", "value": [2023, True]}, "no number is among them"),
        ({"type": "prefix", "key": "ok", "value": "t"}, "'ok' holds booleans (such as true), no string is"),
        (
            {"type": "eq", "key": "mixed", "value": True},
            "'mixed' holds numbers (such as 7) and strings (such as",
        ),
        (
            {"type": "gt", "key": "note", "value": "2026-01-05"},
            "'note' holds strings (such as \"in May\"), no date (2026-01-05, 2026-01-05T10:00:00Z) is among them",
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
    for whole, place in (
        (condition, "filter"),
        ({"type": "or", "filters": [known, condition]}, "filter.filters[1]"),
        ({"type": "not", "filter": condition}, "filter.filter"),
    ):
        reply = http.call("POST", f"/v1/collections/{papers}/documents/delete", {"filter": whole})
        assert (reply.status, reply.body["error"]["param"]) == (422, place)
        assert reply.body["error"]["message"].startswith(f"{place}: ")
        assert words in reply.body["error"]["message"]
    assert http.ok("GET", f"/v1/collections/{papers}")["documents"] == 5


# --- changes to it alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "patch", "after"),
    [
        ({"a": 1, "b": 2}, {"b": None, "c": [3, None]}, {"a": 1, "c": [3]}),
        ({"a.b": 1, "a.c": 2, "ab": 3}, {"a": {"b": None, "d": 4}}, {"a.c": 2, "ab": 3, "a.d": 4}),
        ({"a.b": 1, "a.c.d": 2, "ab": 3}, {"a": None}, {"ab": 3}),
        ({"a.b": 1, "ab": 3}, {"a": 5}, {"a": 5, "ab": 3}),
        ({"a": 5}, {"a": {"b": 1}}, {"a.b": 1}),
        ({"a": 5}, {"a": {}}, {}),
        ({"a.b": 1}, {"a": {}}, {"a.b": 1}),
        ({"a.b": 1, "a.c": 2}, {"a.b": None}, {"a.c": 2}),
        ({"a.b": 1, "a.c": 2}, {"a.b": 5, "a": None}, {"a.b": 5}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": 1}, {"nobody": None}, {"a": 1}),
    ],
)
def test_a_patch_merges_as_rfc_7396_says(
    stored: dict[str, object], patch: dict[str, object], after: dict[str, object]
) -> None:
    """With stored keys read as the objects they came from."""
    assert json.dumps(Patch.of(patch, "metadata").applied(stored), sort_keys=True) == json.dumps(  # type: ignore[arg-type]
        after, sort_keys=True
    )


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
    assert after == {**before, "seq": 2, "metadata": {"lang": "de", "by.whom": "Ada"}}
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
def test_a_bound_that_was_meant_as_a_date(http: Http) -> None:
    """Where a key holds dates, one written otherwise is refused instead of compared by its characters."""
    name = http.new_collection()
    http.write(name, {"id": "a", "text": "x", "metadata": {"at": "2026-01-05"}})
    for bound in ("2026-1-5", "2026-13-45", "05/01/2000"):
        search = {"query": "x", "filter": {"type": "gte", "key": "at", "value": bound}}
        reply = http.call("POST", f"/v1/collections/{name}/search", search)
        assert reply.status == 422
        assert "holds dates" in reply.body["error"]["message"]


@pytest.mark.model
def test_a_filter_on_an_empty_collection(http: Http) -> None:
    """Nothing is there, so no key is unknown: no hits, and no error on the first day."""
    name = http.new_collection()
    search = {"query": "x", "filter": {"type": "eq", "key": "lang", "value": "en"}}
    assert http.ok("POST", f"/v1/collections/{name}/search", search)["hits"] == []
