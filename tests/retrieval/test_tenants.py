"""Two tenants that call everything by the same names: nothing of one is in any answer to the other, on any route."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.guarded import Caller, Guarded, guarded_service
from tests.support.http import Reply
from tests.support.operations import Operation, form, operations
from tests.support.redis_server import redis_server

ROUNDING = 1e-6  # of a vector's values: the last bits depend on how many texts share a run of the model
MARK = "globex"  # in everything the other tenant says, and in nothing that is asked
# Rebuilds take a process each; renaming and deleting would leave little to ask about.
ONCE = ("/reindex", "/tune", "/erase", "/rollback", "/rename")
READING = ("search", "batch", "context", "answer", "assess", "explain", "scroll", "count", "embed", "rerank")


@dataclass(frozen=True)
class Tenant:
    """A caller, and the ids that the service has made for it, by the parameter of the path they stand for."""

    caller: Caller
    ids: dict[str, str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Guarded]:
    """With everything on that remembers: caches in process and in Redis, the query log, feedback."""
    folder = tmp_path_factory.mktemp("tenants")
    with redis_server(folder) as redis:
        environ = {
            "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
            "NEARLINE_REDIS_URL": redis.url,
            "NEARLINE_REDIS_TIMEOUT_MS": "5000",
            "NEARLINE_QUERY_LOG_ENABLED": "true",
        }
        with guarded_service(folder / "data", environ) as found:
            yield found


@pytest.fixture(scope="module")
def acme(guarded: Guarded) -> Tenant:
    return settled(guarded, "acme")


@pytest.fixture(scope="module")
def before(acme: Tenant) -> dict[str, Any]:
    """What acme reads, as long as nobody else is there."""
    first, second = read_everything(acme), read_everything(acme)
    assert {*first} == {*second}
    assert len(first) > 60
    return {name: stable(first[name], second[name]) for name in first}


@pytest.fixture(scope="module")
def globex(guarded: Guarded, before: dict[str, Any]) -> Tenant:
    return settled(guarded, MARK)


def settled(guarded: Guarded, word: str) -> Tenant:
    """A tenant with one of everything; `word` stands in all of it that is not a name both have."""
    caller = guarded.caller("admin", "vectors", tenant=word, name=f"key of {word}")
    caller.ok("POST", "/v1/collections", {"name": "docs"})
    caller.ok("POST", "/v1/collections", {"name": f"{word}-more"})
    caller.ok("PUT", "/v1/aliases/help", {"collection": "docs"})
    more = 1 if word == "acme" else 5
    written = [
        {
            "id": f"{name}",
            "title": f"{name} of {word}",
            "text": f"Refunds of {word} take {number} days, and {word} ships number {number} on weekdays.",
            "metadata": {
                "lang": "en",
                "year": 2020 + number,
                f"{word}_key": f"{word} value",
                "outcome": f"{word}",
            },
        }
        for number, name in enumerate(["refunds", "shipping", *(f"{word}{at}" for at in range(more))])
    ]
    caller.write("docs", *written)
    caller.write("docs", {"id": "gone", "text": f"{word} had this deleted."})
    caller.ok("DELETE", "/v1/collections/docs/documents/gone")
    said = {"query": f"what does {word} pay?", "document_id": "refunds", "grade": 3}
    caller.ok("POST", "/v1/collections/docs/feedback", {"feedback": [said]})
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    fields = {
        "purpose": "assistants",
        "file": f"The vault of {word} opens at noon.",
        "filename": f"{word}.txt",
    }
    file = caller.call("POST", "/v1/files", raw=form(fields), headers=headers).body["id"]
    batch = caller.ok("POST", "/v1/vector_stores/docs/file_batches", {"file_ids": [file]})["id"]
    caller.ok(
        "POST", f"/v1/vector_stores/{word}-more", {"name": f"store of {word}", "metadata": {"of": word}}
    )
    made = caller.ok("POST", "/v1/keys", {"scopes": ["search"], "name": f"page of {word}"})["record"]["id"]
    job = caller.ok("POST", "/v1/collections/docs/reindex", {})["job"]
    assert caller.wait_for(job)["status"] == "succeeded"
    ids = {
        "file": file,
        "batch": batch,
        "key": made,
        "job": job,
        "id": f"{word}0",
        "collection": f"{word}-more",
    }
    caller.call("POST", "/v1/collections/docs/search", {"query": f"what of {word}?"})
    return Tenant(caller, ids)


def reads(one: Operation) -> bool:
    last = one.route.path.rpartition("/")[2]
    return one.route.method == "GET" or last in READING or one.route.path == "/api/show"


def read_everything(tenant: Tenant) -> dict[str, Any]:
    """The answers of all routes that change nothing, about what both tenants have and what it has alone."""
    found: dict[str, Any] = {}
    for one in operations():
        if reads(one) and one.route.scope not in ("public", "metrics"):
            own = one.path(tenant.ids), one.path({**tenant.ids, "collection": "docs"})
            for path in {one.path(), *own}:
                reply = ask(tenant.caller, one, path)
                assert reply.status < 500 or reply.body["error"]["type"] == "not_ready", reply
                found[f"{one.route.method} {path} {one.body}"] = reply.body
    return found


def ask(caller: Caller, one: Operation, path: str, body: Any = None) -> Reply:
    raw, headers = one.sent(body)
    return caller.call(one.route.method, path, raw=raw, headers=headers)


def stable(one: Any, other: Any, name: str = "") -> Any:
    """What two answers have in common: `...` stands for what differs, and for times, sizes, and tokens,
    which the random fence of a context is among."""
    if name.endswith(("_ms", "_bytes", "tokens")):
        return ...
    if isinstance(one, dict) and isinstance(other, dict) and {*one} == {*other}:
        return {key: stable(one[key], other[key], key) for key in one}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        if is_vector(one) and is_vector(other) and np.allclose(one, other, rtol=0, atol=ROUNDING):
            return one
        return [stable(*pair) for pair in zip(one, other, strict=True)]
    return one if one == other else ...


def is_vector(value: list[Any]) -> bool:
    return len(value) > 1 and all(isinstance(one, float) for one in value)


# --- what one reads -------------------------------------------------------------------------------------------


def test_nothing_changes_with_another_tenant(before: dict[str, Any], acme: Tenant, globex: Tenant) -> None:
    """Every answer to one tenant is the same with and without another that has collections, documents, files, aliases,
    feedback and jobs of the same names, and asks the same: no id, text, count, score or error."""
    theirs = read_everything(globex)
    assert MARK in json.dumps(theirs)
    after = read_everything(acme)
    assert {*after} == {*before}
    for name, known in before.items():
        assert stable(known, after[name]) == known, name
        assert MARK not in json.dumps(after[name]), name


# Not of batches of files: their ids say all that is known of them.
MADE_UP = {
    "file": "file-000000000000000000000000",
    "key": "000000000000",
    "job": "0" * 32,
    "id": "vandel0",
    "collection": "vandel-more",
}

NAMING = {"ids", "like", "document_id", "shown", "file_id", "file_ids", "collection", "collections"}  # fields


def test_what_another_has_is_as_unknown_as_what_nobody_has(acme: Tenant, globex: Tenant) -> None:
    """Its ids are answered with the same status, headers and words as ids that were made up, in paths and in bodies."""
    compared = 0
    for one in operations():
        if one.route.scope == "public" or (one.route.method, one.route.path[-10:]) == ("POST", "/documents"):
            continue
        for name in MADE_UP:
            asked = [with_id(one, name, ids[name]) for ids in (globex.ids, MADE_UP)]
            if asked[0] == asked[1]:
                continue
            told = [
                told_by(ask(acme.caller, one, path, body), ids[name])
                for (path, body), ids in zip(asked, (globex.ids, MADE_UP), strict=True)
            ]
            assert told[0] == told[1], (one.route.method, one.route.path, name)
            compared += 1
    assert compared > 60


def with_id(one: Operation, name: str, value: str) -> tuple[str, Any]:
    """The path and the body with another value where the example has that of this parameter."""

    def put(inside: Any, field: str = "") -> Any:
        if isinstance(inside, dict):
            return {key: put(one, key) for key, one in inside.items()}
        if isinstance(inside, list):
            return [put(one, field) for one in inside]
        return value if field in NAMING and inside == one.values.get(name) else inside

    return one.path({name: value}), put(one.body)


def told_by(reply: Reply, value: str) -> tuple[int, Any, set[str]]:
    # What is made anew has an id of its own.
    words = reply.status == 201 or json.loads(json.dumps(reply.body).replace(value, "..."))
    return reply.status, stable(words, words), {*reply.headers}


# --- what one does --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_another_does_reaches_a_tenant(acme: Tenant, globex: Tenant) -> None:
    """All operations in random orders, with its own ids and the other's: none says a word of the other's, and all that
    the other has is as before."""
    first, second = read_everything(globex), read_everything(globex)
    dice = random.Random(25)
    for _ in range(2):
        for one in dice.sample(list(operations()), k=len(list(operations()))):
            if one.route.scope == "public" or one.route.path.endswith(ONCE):
                continue
            ids = {name: dice.choice([mine, globex.ids[name]]) for name, mine in acme.ids.items()}
            collection = dice.choice(["docs", "help", ids.pop("collection")])
            reply = ask(acme.caller, one, one.path({**ids, "collection": collection}))
            assert reply.status < 500 or reply.body["error"]["type"] in ("not_ready", "invalid_input"), reply
            told = json.dumps([reply.body, dict(reply.headers)])
            for asked in (f"{MARK}-more", f"{MARK}0"):
                told = told.replace(asked, "")
            assert MARK not in told, (one.route.method, one.route.path)
    after = read_everything(globex)
    for name in first:
        known = stable(first[name], second[name])
        assert stable(known, after[name]) == known, name


def test_no_name_reaches_another_tenant(acme: Tenant, globex: Tenant) -> None:
    """What is called for others by a tenant's name, only callers of none can make."""
    caller, before = acme.caller, read_everything(globex)
    for method, path, body in (
        ("POST", "/v1/collections", {"name": f"new@{MARK}"}),
        ("POST", "/v1/collections/acme-more/rename", {"name": f"new@{MARK}"}),
        ("POST", "/v1/vector_stores", {"name": f"new@{MARK}"}),
        ("PUT", f"/v1/aliases/new@{MARK}", {"collection": "acme-more"}),
        ("PUT", "/v1/aliases/new", {"collection": f"docs@{MARK}"}),
        ("POST", "/v1/keys", {"scopes": ["search"], "tenant": MARK}),
        ("POST", f"/v1/collections/docs@{MARK}/search", {"query": "refunds"}),
    ):
        assert caller.call(method, path, body).status in (400, 403, 404, 409, 422), path
    assert {*read_everything(globex)} == {*before}
    assert "new" not in str(globex.caller.ok("GET", "/v1/collections"))


# --- caches ---------------------------------------------------------------------------------------------------


def test_no_cache_tells_what_another_has_asked(guarded: Guarded) -> None:
    """Of the same documents and the same query, each tenant's first answer and first vector are its own."""
    metrics = guarded.caller("metrics")

    def hits() -> list[str]:
        names = ('nearline_embedding_cache_total{outcome="hit"', "nearline_shared_cache_hits_total")
        lines = str(metrics.call("GET", "/metrics").body).splitlines()
        return [line for line in lines if line.startswith(names)]

    for tenant in ("one", "two"):
        caller = guarded.caller("admin", tenant=tenant)
        caller.ok("POST", "/v1/collections", {"name": "same"})
        caller.write("same", {"id": "a", "text": "The lighthouse is red."})
        known = hits()
        receipt = caller.search("same", query="who painted the lighthouse?")["receipt"]
        assert (receipt["cache"], hits()) == ("miss", known)
        assert caller.search("same", query="who painted the lighthouse?")["receipt"]["cache"] == "hit"
