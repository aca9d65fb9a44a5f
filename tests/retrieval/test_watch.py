"""Standing queries over HTTP: what a write brings among the first hits is pushed, once, also after a break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrieval.admission.pace import Pace
from tests.support.guarded import Caller, Guarded, guarded_service
from tests.support.watching import watching

WATCHES_MAX = 4
FILLING = [
    {"id": f"f{at}", "text": f"Filling {at} about gardens, bread and the weather."} for at in range(30)
]
OUTAGE = {"query": "payment service is down", "k": 3}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Guarded]:
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_ADMISSION_WATCHES_MAX": str(WATCHES_MAX),
    }
    with guarded_service(tmp_path_factory.mktemp("watch") / "data", environ) as one:
        yield one


@pytest.fixture(scope="module")
def admin(service: Guarded) -> Caller:
    return service.caller("admin")


@pytest.fixture
def alerts(admin: Caller) -> str:
    name = admin.new_collection()
    admin.write(name, *FILLING)
    return name


@pytest.mark.slow
def test_what_enters_the_first_hits_is_pushed(admin: Caller, alerts: str) -> None:
    """A new document and a changed one that are like the query come with their places; what is unlike does not."""
    with watching(admin, alerts, OUTAGE) as events:
        assert events.next() == ("watching", {"seq": 30}, 30)
        admin.write(alerts, {"id": "a", "text": "The payment service is down since noon."})
        assert events.entered() == {"a": 1}
        admin.write(alerts, {"id": "far", "text": "Bread is baked at dawn."})
        admin.ok("DELETE", f"/v1/collections/{alerts}/documents/far")
        admin.write(alerts, {"id": "f3", "text": "Payment is down, says the service desk."})
        assert list(events.entered()) == ["f3"]
        admin.write(alerts, {"id": "a", "text": "The payment service is down since noon, still."})
        assert list(events.entered()) == ["a"]


def test_a_client_that_comes_back_gets_what_it_missed(admin: Caller, alerts: str) -> None:
    """With the id of the last event it saw; what left the first hits meanwhile is not told."""
    with watching(admin, alerts, OUTAGE) as events:
        seen = events.next()[2]
    admin.write(alerts, {"id": "gone", "text": "The payment service was down."})
    admin.write(alerts, {"id": "b", "text": "The payment service is down again."})
    admin.ok("DELETE", f"/v1/collections/{alerts}/documents/gone")
    with watching(admin, alerts, OUTAGE, after=seen) as events:
        assert events.entered() == {"b": 1}
        admin.write(alerts, {"id": "c", "text": "payment service is down"})
        name, data, number = events.next()
        assert (name, [one["hit"]["document_id"] for one in data["hits"]]) == ("hits", ["c"])
    with watching(admin, alerts, OUTAGE, after=number) as events:
        assert events.next() == ("watching", {"seq": number}, number)


def test_floors_and_filters_hold(admin: Caller, alerts: str) -> None:
    """Only what passes the filter and the least score is pushed, so that silence means that nothing is like it."""
    search = {
        **OUTAGE,
        "min_score": 0.5,
        "filter": {"type": "eq", "key": "team", "value": "shop"},
    }
    admin.write(alerts, {"id": "first", "text": "Gardens.", "metadata": {"team": "shop"}})
    with watching(admin, alerts, search) as events:
        assert events.next()[0] == "watching"
        admin.write(alerts, {"id": "x", "text": "The payment service is down.", "metadata": {"team": "bank"}})
        admin.write(alerts, {"id": "y", "text": "More gardens.", "metadata": {"team": "shop"}})
        admin.write(alerts, {"id": "z", "text": "The payment service is down.", "metadata": {"team": "shop"}})
        assert events.entered() == {"z": 1}


def test_groups_see_their_own(service: Guarded, admin: Caller, alerts: str) -> None:
    """A key that sees some documents only is told of those alone."""
    ops = service.caller("search", groups=["ops"])
    with watching(ops, alerts, OUTAGE) as events:
        assert events.next()[0] == "watching"
        admin.write(alerts, {"id": "s", "text": "payment service is down", "metadata": {"acl": ["sales"]}})
        admin.write(alerts, {"id": "o", "text": "payment service is down!", "metadata": {"acl": ["ops"]}})
        assert events.entered() == {"o": 1}


def test_a_stream_ends_with_its_key_and_its_collection(service: Guarded, admin: Caller, alerts: str) -> None:
    """A revoked key and a deleted collection end it with an error event, within seconds."""
    reader = service.caller("search")
    with watching(reader, alerts, OUTAGE) as events:
        events.next()
        service.keys.revoke(reader.token.split("_")[1])
        name, data, _ = events.next()
        assert (name, data["error"]["type"]) == ("error", "unauthorized")
        assert events.next()[0] == "end"
    with watching(admin, alerts, OUTAGE) as events:
        events.next()
        admin.ok("DELETE", f"/v1/collections/{alerts}")
        name, data, _ = events.next()
        assert (name, data["error"]["type"]) == ("error", "not_found")


def test_an_alias_tells_a_rename_from_another_target(admin: Caller, alerts: str) -> None:
    """Both end the stream, each with its reason."""
    other, alias = admin.new_collection(), f"{alerts}-alias"
    admin.ok("PUT", f"/v1/aliases/{alias}", {"collection": alerts})
    for method, path, change, reason in (
        ("POST", f"/v1/collections/{alerts}/rename", {"name": f"{alerts}-new"}, "renamed"),
        ("PUT", f"/v1/aliases/{alias}", {"collection": other}, "another collection"),
    ):
        with watching(admin, alias, OUTAGE) as events:
            events.next()
            admin.ok(method, path, change)
            name, data, _ = events.next()
            assert (name, data["error"]["type"]) == ("error", "conflict")
            assert reason in data["error"]["message"]


def test_a_revoked_key_is_seen_beside_steady_writes(service: Guarded, admin: Caller, alerts: str) -> None:
    """Though there is never a second without a write."""
    reader = service.caller("search")
    with watching(reader, alerts, OUTAGE) as events:
        events.next()
        service.keys.revoke(reader.token.split("_")[1])
        deadline = time.monotonic() + 20
        while True:
            admin.write(alerts, {"id": "w", "text": f"The payment service is down {time.monotonic()}."})
            name, data, _ = events.next()
            if name == "error":
                break
            assert time.monotonic() < deadline
    assert data["error"]["type"] == "unauthorized"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"exact": True, "mode": "dense"}, "exact"),
        ({"offset": 3}, "offset"),
        ({"facets": ["year"]}, "facets"),
        ({"min_seq": 1_000_000}, "min_seq"),
        ({"deadline_ms": 1}, "deadline_ms"),
        ({"cache": False}, "cache"),
    ],
)
def test_what_cannot_be_watched_is_refused(
    admin: Caller, alerts: str, change: dict[str, Any], param: str
) -> None:
    """With its status and the field, before any stream begins."""
    reply = admin.call("POST", f"/v1/collections/{alerts}/watch", {**OUTAGE, **change})
    assert (reply.status, reply.body["error"]["param"]) == (422, param)


def test_an_id_that_is_none_is_refused(admin: Caller, alerts: str) -> None:
    reply = admin.call(
        "POST", f"/v1/collections/{alerts}/watch", OUTAGE, headers={"Last-Event-ID": "yesterday"}
    )
    assert (reply.status, reply.body["error"]["param"]) == (422, "Last-Event-ID")


def test_an_id_of_another_collection_is_refused(admin: Caller) -> None:
    """Of one that was dropped and made anew: by its name alone nobody could tell that operations were missed."""
    path = "/v1/collections/anew/watch"

    def known(number: object) -> tuple[int, str]:
        reply = admin.call("POST", path, OUTAGE, headers={"Last-Event-ID": str(number)})
        return reply.status, reply.body["error"]["param"]

    admin.ok("POST", "/v1/collections", {"name": "anew"})
    admin.write("anew", *({"id": str(at), "text": "The payment service is down."} for at in range(9)))
    with watching(admin, "anew", OUTAGE) as events:
        events.next()
        before = events.id
    with watching(admin, "anew", OUTAGE, after=before) as events:
        assert events.next() == ("watching", {"seq": 9}, 9)
    admin.ok("DELETE", "/v1/collections/anew")
    admin.ok("POST", "/v1/collections", {"name": "anew"})
    admin.write("anew", {"id": "one", "text": "The payment service is up."})
    assert known(9) == known(before) == (409, "Last-Event-ID")
    admin.write("anew", *({"id": str(at), "text": "The payment service is down."} for at in range(20)))
    assert known(before) == (409, "Last-Event-ID")
    with watching(admin, "anew", {**OUTAGE, "k": 30}, after=20) as events:
        assert list(events.entered()) == ["19"], "a bare number is taken too"


def test_as_many_as_are_allowed_at_once(service: Guarded, admin: Caller, alerts: str) -> None:
    """One more is refused with 429; when one leaves there is room again. The last place is for another key."""
    open_ones = [watching(admin, alerts, OUTAGE) for _ in range(WATCHES_MAX - 1)]
    for one in open_ones:
        one.__enter__().next()
    assert admin.call("POST", f"/v1/collections/{alerts}/watch", OUTAGE).status == 429
    with watching(service.caller("search"), alerts, OUTAGE) as events:
        assert events.next()[0] == "watching"
    open_ones.pop().__exit__(None, None, None)
    deadline = time.monotonic() + 20
    while True:
        try:
            with watching(admin, alerts, OUTAGE) as events:
                assert events.next()[0] == "watching"
            break
        except AssertionError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    for one in open_ones:
        one.__exit__(None, None, None)


def test_the_streams_of_one_key_take_turns() -> None:
    """One searches at a time, in order, and then the key rests nine times as long; a stream that leaves frees its
    turn."""
    at_work, order, worked_s = 0, list[int](), 0.0

    async def search(pace: Pace, number: int) -> None:
        nonlocal at_work, worked_s
        async with pace.turn():
            began = time.monotonic()
            at_work += 1
            assert at_work == 1
            order.append(number)
            await asyncio.sleep(0.002)
            at_work -= 1
            worked_s += time.monotonic() - began

    async def search_all() -> float:
        pace, began = Pace(), time.monotonic()
        streams = [asyncio.create_task(search(pace, number)) for number in range(6)]
        await asyncio.sleep(0)
        streams[1].cancel()
        await asyncio.wait(streams)
        async with pace.turn():
            return time.monotonic() - began

    taken_s = asyncio.run(search_all())
    assert order == [0, 2, 3, 4, 5]
    assert taken_s >= 9 * worked_s
