"""Scroll, count and vectors over HTTP, and through the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.serving.process import ServerProcess, serving
from nearline import AsyncClient, Client
from tests.support.http import Http

EVEN = {"type": "eq", "key": "even", "value": True}


@pytest.fixture(scope="module")
def name(service: ServerProcess) -> str:
    """120 documents; number 7 long, and of several passages."""
    http = Http(service.url)
    collection = http.new_collection()
    documents = [
        {
            "id": f"n{n}",
            "text": f"Number {n}. " * (400 if n == 7 else 1),
            "title": f"T{n}",
            "metadata": {"even": n % 2 == 0},
        }
        for n in range(120)
    ]
    http.write(collection, *documents)
    return collection


def scroll(http: Http, name: str, **wanted: object) -> list[Any]:
    """All pages."""
    documents: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        wanted |= {"cursor": cursor} if cursor else {}
        page = http.ok("POST", f"/v1/collections/{name}/documents/scroll", wanted)
        documents += page["documents"]
        cursor = page["cursor"]
    return documents


def test_scrolling(http: Http, name: str) -> None:
    """Pages follow each other in the order of writing, with or without a filter, under the name or an alias."""
    everything = scroll(http, name, limit=50)
    assert [one["id"] for one in everything] == [f"n{n}" for n in range(120)]
    assert everything[3] == {
        "id": "n3", "seq": 4, "text": "Number 3. ", "title": "T3", "metadata": {"even": False}, "passages": 1,
        "language": "en",
    }  # fmt: skip
    http.ok("PUT", f"/v1/aliases/{name}-alias", {"collection": name})
    found = scroll(http, f"{name}-alias", limit=7, filter=EVEN, text=False)
    assert [one["id"] for one in found] == [f"n{n}" for n in range(0, 120, 2)]
    assert all("text" not in one for one in found)


def test_a_low_limit_makes_pages_smaller(tmp_path: Path) -> None:
    """Whatever a client asks for, or the defaults are, everything is read."""
    with serving(tmp_path / "data", {"NEARLINE_LIMITS_PAGE_LIMIT_MAX": "3"}) as server:
        http = Http(server.url)
        name = http.new_collection(model=None, dimensions=2)
        http.write(name, *({"id": f"n{n}", "text": "Text.", "vector": [1, 0]} for n in range(8)))
        assert len(scroll(http, name)) == len(scroll(http, name, limit=1000)) == 8
        assert len(http.ok("GET", f"/v1/collections/{name}/documents")["documents"]) == 3
        with Client(server.url) as client:
            assert len(list(client.scroll(name))) == len(list(client.scroll(name, limit=200))) == 8


def test_writes_between_pages(http: Http) -> None:
    """A document replaced behind the cursor comes again as its new version; one deleted before it, not at all."""
    name = http.new_collection()
    http.write(name, *({"id": f"n{n}", "text": f"text {n}"} for n in range(6)))
    path = f"/v1/collections/{name}/documents/scroll"
    first = http.ok("POST", path, {"limit": 3})
    http.write(name, {"id": "n1", "text": "new"}, {"id": "n9", "text": "added"})
    http.ok("DELETE", f"/v1/collections/{name}/documents/n4")
    rest = http.ok("POST", path, {"limit": 100, "cursor": first["cursor"]})
    assert [one["id"] for one in first["documents"] + rest["documents"]] == [
        "n0",
        "n1",
        "n2",
        "n3",
        "n5",
        "n1",
        "n9",
    ]
    assert rest["cursor"] is None


@pytest.mark.parametrize("way", ["list", "scroll"])
def test_a_cursor_belongs_to_one_collection(http: Http, name: str, way: str) -> None:
    """A cursor of another collection would leave documents out, so it is refused: an alias may have moved, or the
    collection may have been deleted and created again."""
    other = http.new_collection()
    http.write(other, *({"id": f"o{at}", "text": "Other."} for at in range(20)))
    if way == "list":
        cursor = http.ok("GET", f"/v1/collections/{name}/documents?limit=5")["next_cursor"]
        reply = http.call("GET", f"/v1/collections/{other}/documents?limit=5&cursor={cursor}")
    else:
        cursor = http.ok("POST", f"/v1/collections/{name}/documents/scroll", {"limit": 5})["cursor"]
        reply = http.call("POST", f"/v1/collections/{other}/documents/scroll", {"cursor": cursor})
    assert (reply.status, reply.body["error"]["param"]) == (422, "cursor")


def test_vectors(http: Http, name: str) -> None:
    """Every passage with its place and its unit vector, alike in all three ways of reading; off unless asked for."""
    [scrolled] = [one for one in scroll(http, name, vectors=True) if one["id"] == "n7"]
    assert len(scrolled["passages"]) > 3
    for at, passage in enumerate(scrolled["passages"]):
        assert passage["passage"] == at
        assert 0 <= passage["start"] < passage["end"] <= len(scrolled["text"])
        assert passage["tokens"] > 0
        assert np.linalg.norm(np.array(passage["vector"], np.float64)) == pytest.approx(1, abs=1e-3)
        assert len(passage["vector"]) == 384
    path = f"/v1/collections/{name}/documents"
    assert http.ok("GET", f"{path}/n7?vectors=true") == scrolled
    listed = http.ok("GET", f"{path}?limit=10&vectors=true")
    assert listed["documents"][7] == scrolled
    following = http.ok("GET", f"{path}?limit=1&cursor={listed['next_cursor']}")
    assert following["documents"][0]["id"] == "n10"
    assert http.ok("GET", f"{path}/n7")["passages"] == len(scrolled["passages"])
    assert http.ok("GET", f"{path}?limit=1&vectors=false")["documents"][0]["passages"] == 1
    own = np.array(scrolled["passages"][2]["vector"])
    hit = http.search(name, vector=own.tolist(), k=1, mode="dense")["hits"][0]
    assert hit["scores"]["dense"] == pytest.approx(1, abs=1e-2)


def test_counting(http: Http, name: str) -> None:
    """All or what matches, with the seq they were counted at."""
    path = f"/v1/collections/{name}/documents/count"
    passages = http.ok("GET", f"/v1/collections/{name}/documents/n7")["passages"]
    assert http.ok("POST", path, {}) == {"documents": 120, "passages": 119 + passages, "seq": 120}
    assert http.ok("POST", path, {"filter": EVEN}) == {"documents": 60, "passages": 60, "seq": 120}


def test_through_the_client(service: ServerProcess, name: str) -> None:
    """`scroll` follows the pages by itself; `count` and `document` answer as the service does."""

    async def work() -> tuple[list[str], Any, Any]:
        async with AsyncClient(service.url) as client:
            found = [one["id"] async for one in client.scroll(name, limit=9, filter=EVEN, text=False)]
            return (
                found,
                await client.count(name, filter=EVEN),
                await client.document(name, "n7", vectors=True),
            )

    found, counted, document = asyncio.run(work())
    assert found == [f"n{n}" for n in range(0, 120, 2)]
    assert counted["documents"] == 60
    assert document["passages"][0]["vector"]


BAD = [
    ({"limit": 0}, "limit"),
    ({"limit": "ten"}, "limit"),
    ({"limit": 2.5}, "limit"),
    ({"vectors": "yes"}, "vectors"),
    ({"text": 1}, "text"),
    ({"cursor": 5}, "cursor"),
    ({"cursor": ""}, "cursor"),
    ({"cursor": "5"}, "cursor"),
    ({"cursor": "AAAAAAAAAAAAAAAAAAAA"}, "cursor"),
    ({"cursor": "ü" * 20}, "cursor"),
    ({"cursor": "A" * 100_000}, "cursor"),
    ({"curser": "x"}, "curser"),
    ({"filter": []}, "filter"),
    ({"filter": {"type": "eq", "key": "nobody", "value": 1}}, "filter"),
    ({"filter": {"type": "eq", "key": "even"}}, "filter"),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=lambda value: str(value)[:40])
def test_bad_scrolls(http: Http, name: str, body: object, param: str) -> None:
    """Each is refused naming the field."""
    reply = http.call("POST", f"/v1/collections/{name}/documents/scroll", body)
    assert (reply.status, reply.body["error"]["param"]) == (422, param), reply


def test_a_cursor_belongs_to_its_collection(http: Http, name: str) -> None:
    """One of another collection, and one with a letter changed, are refused."""
    other = http.new_collection()
    http.write(other, *({"id": f"n{n}", "text": "t"} for n in range(3)))
    cursor = http.ok("POST", f"/v1/collections/{other}/documents/scroll", {"limit": 1})["cursor"]
    typo = ("B" if cursor[0] == "A" else "A") + cursor[1:]
    for collection, wrong in [(name, cursor), (other, typo), (other, cursor[:-4]), (other, cursor + "AAAA")]:
        reply = http.call("POST", f"/v1/collections/{collection}/documents/scroll", {"cursor": wrong})
        assert (reply.status, reply.body["error"]["param"]) == (422, "cursor")


def test_other_bad_requests(http: Http, name: str) -> None:
    """Counts and query strings name their field; unknown collections and documents are 404."""
    for body, param in [({"filter": 5}, "filter"), ({"limit": 5}, "limit")]:
        reply = http.call("POST", f"/v1/collections/{name}/documents/count", body)
        assert (reply.status, reply.body["error"]["param"]) == (422, param)
    for path in ("/n7?vectors=1", "?vectors=", "?vectors=TRUE"):
        reply = http.call("GET", f"/v1/collections/{name}/documents{path}")
        assert (reply.status, reply.body["error"]["param"]) == (422, "vectors")
    for path in ("scroll", "count"):
        assert http.call("POST", f"/v1/collections/nowhere/documents/{path}", {}).status == 404
        assert http.call("POST", f"/v1/collections/{name}/documents/{path}", raw=b"{").status == 400
    assert http.call("GET", f"/v1/collections/{name}/documents/nobody?vectors=true").status == 404


def test_an_empty_collection(http: Http) -> None:
    """Nothing to scroll, and no error."""
    name = http.new_collection()
    assert http.ok("POST", f"/v1/collections/{name}/documents/scroll", {}) == {
        "documents": [],
        "cursor": None,
    }
    assert http.ok("POST", f"/v1/collections/{name}/documents/count", {}) == {
        "documents": 0,
        "passages": 0,
        "seq": 0,
    }
