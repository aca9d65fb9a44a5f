"""Documents with `expires_at`, over HTTP: gone at their instant, shown and changed before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from retrieval.upkeep.expiring import keep_deleting
from tests.support.http import Http
from tests.support.vectors import World, make_collection

SOON_S = 1.0


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[tuple[Collection, list[int]]]:
    """A collection, and its clock."""
    clock = [1_000]
    options = IndexOptions(delta_passages_max=256, segments_max=0, now_ms=lambda: clock[0])
    with closing(make_collection(tmp_path / "c", options=options)) as collection:
        yield collection, clock


def test_nothing_shows_an_expired_document(http: Http) -> None:
    """Not a search that is cached, not a filter, count, page, facet, context or example. An explanation says when it
    expired, and nothing else of it."""
    name = http.new_collection()
    path, at = f"/v1/collections/{name}/documents", datetime.now(UTC) + timedelta(seconds=SOON_S)
    metadata = {"kind": "notice"}
    http.write(name, {"id": "stays", "text": "the lift works again", "metadata": metadata})
    http.write(
        name,
        {"id": "goes", "text": "the lift is broken", "metadata": metadata, "expires_at": at.isoformat()},
    )
    search: dict[str, Any] = {"query": "is the lift broken", "facets": ["kind"]}
    assert http.found(name, **search) == ["goes", "stays"]
    if datetime.now(UTC) < at:
        assert http.ok("GET", f"{path}/goes")["metadata"] == metadata
        assert http.search(name, **search)["receipt"]["cache"] == "hit"
    time.sleep(max(0.0, (at - datetime.now(UTC)).total_seconds()) + 0.01)
    found = http.search(name, **search)
    assert [hit["document_id"] for hit in found["hits"]] == ["stays"]
    assert found["receipt"]["cache"] == "miss"
    assert found["facets"][0]["values"] == [{"value": "notice", "count": 1}]
    condition = {"filter": {"type": "eq", "key": "kind", "value": "notice"}}
    for asked in ({}, condition):
        assert http.ok("POST", f"{path}/count", asked)["documents"] == 1
        assert [one["id"] for one in http.ok("POST", f"{path}/scroll", asked)["documents"]] == ["stays"]
    assert [one["id"] for one in http.ok("GET", path)["documents"]] == ["stays"]
    files = http.ok("GET", f"/v1/vector_stores/{name}")["file_counts"]
    assert (files["total"], files["completed"]) == (1, 1)
    context = http.ok("POST", f"/v1/collections/{name}/context", {"query": "lift", "token_budget": 200})
    assert "broken" not in str(context)
    for reply in (
        http.call("GET", f"{path}/goes"),
        http.call("PATCH", f"{path}/goes", {"expires_at": None}),
        http.call("POST", f"/v1/collections/{name}/search", {"like": ["goes"]}),
    ):
        assert "no document 'goes'" in str(reply.body), reply.body
    why = {"query": "lift", "document_id": "goes"}
    explained = http.ok("POST", f"/v1/collections/{name}/explain", why)
    assert explained["cause"]["kind"] == "expired", explained
    assert explained["cause"]["evidence"].keys() == {"expires_at", "written_seq"}
    assert explained["passages"] == []
    exact = {"query": "is the lift broken", "mode": "dense", "exact": True}
    assert http.found(name, **exact) == ["stays"]


def test_no_correction_shows_a_word_of_an_expired_document(http: Http) -> None:
    """A word that only an expired document has is no word to be corrected to, and is itself corrected."""
    name, at_ms = http.new_collection(language="en"), int(time.time() * 1000) + 300
    http.write(
        name,
        {"id": "goes", "text": "a secret notice about Kubernetes and kubernettes", "expires_at": at_ms},
        {"id": "stays", "text": "Cats sleep on the balcony"},
    )
    time.sleep(max(0.0, at_ms / 1000 - time.time()) + 0.01)
    for query in ("kubrenetes", "secrett"):
        assert "corrected" not in http.search(name, query=query)["receipt"]
    http.write(name, {"id": "newer", "text": "kubernetis"})
    assert http.search(name, query="kubernetes")["receipt"]["corrected"] == {"kubernetes": "kubernetis"}


def test_an_expired_document_is_missing_to_every_deletion(http: Http) -> None:
    """Deleting it by id, by a list of ids, by filter or as a file reports it as missing, but removes its text."""
    name = http.new_collection()
    path, at_ms = f"/v1/collections/{name}/documents", int(time.time() * 1000) + 300
    ids = ["one", "several", "matched", "file"]
    for one in ids:
        http.write(name, {"id": one, "text": f"gone {one}", "metadata": {"n": 1}, "expires_at": at_ms})
    http.write(name, {"id": "stays", "text": "here"})
    time.sleep(max(0.0, at_ms / 1000 - time.time()) + 0.01)
    assert http.call("PATCH", f"{path}/one", {"metadata": {"n": 2}}).status == 404
    assert http.call("DELETE", f"{path}/one").status == 404
    assert http.ok("POST", f"{path}/delete", {"ids": ["several", "stays"]})["deleted"] == 1
    by_filter = {"filter": {"type": "eq", "key": "n", "value": 1}}
    assert http.ok("POST", f"{path}/delete", by_filter)["deleted"] == 0
    assert http.ok("POST", f"{path}/patch", {"ids": ["matched"], "metadata": {"n": 2}})["changed"] == 0
    assert http.call("DELETE", f"/v1/vector_stores/{name}/files/file").status == 404
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] <= 1  # the matched one, until it is swept


def test_an_expiry_is_shown_changed_and_taken_away(http: Http) -> None:
    """Milliseconds and dates mean the same; a patch changes it, null and a write without it take it away."""
    name = http.new_collection()
    path = f"/v1/collections/{name}/documents/d"
    for sent, shown in [
        (32_503_680_000_000, "3000-01-01T00:00:00Z"),
        ("3000-01-01", "3000-01-01T00:00:00Z"),
        ("3000-01-01T02:00:00.5+02:00", "3000-01-01T00:00:00.500Z"),
    ]:
        http.write(name, {"id": "d", "text": "a notice", "expires_at": sent})
        assert http.ok("GET", path)["expires_at"] == shown
    http.reindex(name)
    http.ok("PATCH", path, {"metadata": {"seen": True}})
    assert http.ok("GET", path)["expires_at"] == "3000-01-01T00:00:00.500Z"
    http.ok("PATCH", path, {"expires_at": "3001-01-01"})
    document = http.ok("GET", path)
    assert (document["expires_at"], document["metadata"]) == ("3001-01-01T00:00:00Z", {"seen": True})
    assert http.ok("PATCH", path, {"expires_at": "3001-01-01"})["documents"] == 0
    http.ok("PATCH", path, {"expires_at": None})
    assert "expires_at" not in http.ok("GET", path)
    http.write(name, {"id": "d", "text": "a notice", "expires_at": "3000-01-01"})
    http.write(name, {"id": "d", "text": "a notice"})
    assert "expires_at" not in http.ok("GET", path)
    for past in ("1969-12-31", "0001-01-01"):
        http.write(name, {"id": "d", "text": "a notice", "expires_at": past})
        assert http.call("GET", path).status == 404


@pytest.mark.parametrize("value", ["tomorrow", "2026-13-01", -1, 2**60])
def test_what_is_no_instant_is_refused_by_name(http: Http, value: object) -> None:
    name = http.new_collection()
    sent = {"documents": [{"id": "d", "text": "a notice", "expires_at": value}]}
    reply = http.call("POST", f"/v1/collections/{name}/documents", sent)
    assert (reply.status, reply.body["error"]["param"]) == (422, "documents[0].expires_at")
    reply = http.call("PATCH", f"/v1/collections/{name}/documents/d", {"expires_at": value})
    assert (reply.status, reply.body["error"]["param"]) == (422, "expires_at")
    reply = http.call("PATCH", f"/v1/collections/{name}/documents/d", {})
    assert (reply.status, reply.body["error"]["param"]) == (422, "metadata")


def test_the_sweep_deletes_what_has_expired(clocked: tuple[Collection, list[int]]) -> None:
    """In the log and so for good, counted among what is owed to erasure; what expires later stays."""
    collection, clock = clocked
    world = World()
    documents = [replace(world.document(at), expires_ms=2_000 if at < 300 else 3_000) for at in range(310)]
    collection.write(documents).result()
    before = collection.snapshot
    clock[0] = 2_000
    assert len(before.expired) == 0
    assert collection.snapshot.live == 10
    assert collection.snapshot.content != before.content

    async def sweep() -> None:
        sweeping = asyncio.create_task(keep_deleting(lambda: {"c": collection}, 0.01))
        await asyncio.wrap_future(collection.arrivals.at(before.seq + 1))
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping

    asyncio.run(sweep())
    assert collection.documents == collection.log.document_count() == 10
    assert collection.log.owed.bytes > 0
    clock[0] = 1_000  # a clock that is set back brings nothing back that was deleted
    assert collection.snapshot.live == 10


def test_a_collection_without_expiries_does_not_look_at_the_clock(tmp_path: Path) -> None:
    """Its snapshot is the published one itself."""

    def no_clock() -> int:
        raise AssertionError("asked for the time")

    options = IndexOptions(now_ms=no_clock)
    with closing(make_collection(tmp_path / "c", options=options)) as collection:
        collection.write([World().document(1)]).result()
        assert collection.snapshot is collection.snapshot
        assert collection.snapshot.live == 1
