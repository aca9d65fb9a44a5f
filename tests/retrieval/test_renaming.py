"""A collection that is renamed while others use it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.http import Http


@pytest.mark.slow
def test_searches_and_writes_during_renames(http: Http) -> None:
    """Through an alias each is answered, or refused as not ready for a moment; what was acknowledged stays."""
    name = http.new_collection()
    http.write(name, {"id": "whales", "text": "Whales sing to each other."})
    http.reindex(name)
    http.ok("PUT", f"/v1/aliases/{name}-live", {"collection": name})
    path = f"/v1/collections/{name}-live"
    done: list[bool] = []

    def searching(number: int) -> set[int]:
        statuses: set[int] = set()
        while not done:
            body = {"query": f"songs {number} {len(statuses)}", "cache": False}
            statuses.add(http.call("POST", f"{path}/search", body).status)
        return statuses

    def writing() -> tuple[set[int], list[str]]:
        statuses: set[int] = set()
        written: list[str] = []
        while not done:
            document = {"id": f"d{len(written)}", "text": f"Note {len(written)}."}
            statuses.add(status := http.call("POST", f"{path}/documents", {"documents": [document]}).status)
            written += [document["id"]] if status == 200 else []
        return statuses, written

    with ThreadPoolExecutor(3) as pool:
        searches = [pool.submit(searching, number) for number in range(2)]
        writes = pool.submit(writing)
        try:
            for at in range(10):
                old, new = (name, f"{name}-next") if at % 2 == 0 else (f"{name}-next", name)
                http.ok("POST", f"/v1/collections/{old}/rename", {"name": new})
        finally:
            done.append(True)
        statuses, written = writes.result()
        for one in searches:
            statuses |= one.result()
    assert 200 in statuses <= {200, 503}
    assert written
    assert all(http.ok("GET", f"{path}/documents/{one}")["id"] == one for one in written)


@pytest.mark.parametrize("change", ["rename", "delete"])
def test_a_rebuild_that_starts_meanwhile_leaves_nothing(http: Http, change: str) -> None:
    """One of both is refused, or the rebuild ends first. No folder stays under a name that is gone."""
    for number in range(6):
        name = http.new_collection(dimensions=2)
        http.write(name, *({"id": f"d{at}", "text": "word", "vector": [1, at]} for at in range(50)))

        def go(name: str = name) -> int:
            path = f"/v1/collections/{name}"
            if change == "delete":
                return http.call("DELETE", path).status
            return http.call("POST", f"{path}/rename", {"name": f"{name}-next"}).status

        with ThreadPoolExecutor(2) as pool:
            going = pool.submit(go)
            time.sleep(0.001 * number)
            reply = http.call("POST", f"/v1/collections/{name}/reindex", {})
            changed = going.result()
        if reply.status == 202:
            assert http.wait_for(reply.body["job"])["status"] == "succeeded"
        else:
            assert reply.status in {404, 409, 503}
        assert changed in {200, 204, 409}
        if changed != 409:
            assert http.call("GET", f"/v1/collections/{name}").status == 404
            assert http.call("POST", "/v1/collections", {"name": name, "dimensions": 2}).status == 201
        assert http.call("DELETE", f"/v1/collections/{name}").status == 204


@pytest.mark.slow
def test_no_rename_while_a_job_runs(http: Http) -> None:
    """A rebuild works in the collection's folder: renaming waits for it, and says so."""
    name = http.new_collection()
    http.write(name, {"id": "a", "text": "Apples grow."})
    job = http.ok("POST", f"/v1/collections/{name}/reindex", {})["job"]
    reply = http.call("POST", f"/v1/collections/{name}/rename", {"name": f"{name}-next"})
    assert (reply.status, reply.body["error"]["type"]) == (409, "conflict")
    assert http.wait_for(job)["status"] == "succeeded"
    assert http.ok("POST", f"/v1/collections/{name}/rename", {"name": f"{name}-next"})["generation"] == 1
