"""Access keys: who may do what, whose collections there are, and which documents a caller sees."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from click.testing import CliRunner

from indexes.base.errors import Conflict, Damaged, InvalidInput, NotFound
from indexes.base.model import IndexOptions, now_ms
from indexes.directory.backup.backup import back_up
from indexes.directory.backup.restoring import restore
from indexes.directory.catalog import Catalog
from indexes.directory.marker import KEYS, KEYS_LOCK, MARKER, prepare
from jobs.commands.keys import command as keys_command
from jobs.serving.process import log_of, serving
from retrieval.access.auth import RELOAD_S, Keys, Principal
from retrieval.access.key_file import Key, Scope
from retrieval.access.limits import DAY_S
from retrieval.base.settings import Config
from retrieval.server import routes
from retrieval.server.app import create_app
from retrieval.server.openapi import Route
from retrieval.wire.errors import Forbidden, Unauthorized
from tests.support.commands import nearline
from tests.support.guarded import Caller, Guarded, guarded_service, key
from tests.support.http import Http
from tests.support.operations import operations

SECRET = "a secret of more than thirty-two characters"
SCOPES: tuple[Scope, ...] = ("search", "write", "admin", "metrics")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Guarded]:
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_AUTH_GROUPS_SECRET": SECRET}
    environ["NEARLINE_LOG_FORMAT"] = "json"
    with guarded_service(tmp_path_factory.mktemp("guarded") / "data", environ) as found:
        yield found


# --- who may do what ------------------------------------------------------------------------------------------


def concrete(route: Route) -> str:
    return re.sub(r"\{\w+(:[^{}]+)?\}", "none", route.path)


@pytest.mark.parametrize("route", routes.ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_each_route_asks_for_its_scope(guarded: Guarded, callers: dict[str, Caller], route: Route) -> None:
    """No key, a wrong, an ended or a revoked one get 401; one of other scopes 403; the right one neither."""
    body: object = {} if route.method in ("POST", "PUT", "PATCH") else None
    status = {name: one.call(route.method, concrete(route), body).status for name, one in callers.items()}
    if route.method == "GET":
        heads = {name: one.call("HEAD", concrete(route)) for name, one in callers.items()}
        assert {name: head.status for name, head in heads.items()} == status
        assert route.path == "/" or not any(head.body for head in heads.values())  # urllib follows with GET
    invalid = {name: status.pop(name) for name in ("none", "wrong", "ended", "revoked")}
    if route.scope == "public":
        assert not {401, 403} & {*invalid.values(), *status.values()}
        return
    assert {*invalid.values()} == {401}
    allowed = {*SCOPES} - {"metrics"} if route.scope == "key" else {route.scope, "admin"}
    for scope in SCOPES:
        assert (status[scope] == 403) == (scope not in allowed), scope
        assert status[scope] != 401


@pytest.fixture(scope="module")
def callers(guarded: Guarded) -> dict[str, Caller]:
    url, keys = guarded.server.url, guarded.keys
    revoked, text = keys.create(key("admin"))
    keys.revoke(revoked.id)
    time.sleep(0.3)
    return {
        "none": Caller(url),
        "wrong": Caller(url, text[:-2] + ("aa" if text[-2:] != "aa" else "bb")),
        "ended": guarded.caller("admin", expires_ms=now_ms() - 1),
        "revoked": Caller(url, text),
        **{scope: guarded.caller(scope) for scope in SCOPES},
    }


def test_unknown_paths_need_a_key_too(guarded: Guarded) -> None:
    """What exists is not for everybody to find out."""
    assert Caller(guarded.server.url).call("GET", "/v1/nothing").status == 401
    assert guarded.caller("search").call("GET", "/v1/nothing").status == 404


def test_a_route_without_a_scope_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting it keeps the service from starting."""
    first, *others = routes.ROUTES
    monkeypatch.setattr(routes, "ROUTES", (replace(first, scope=None), *others))
    with pytest.raises(ValueError, match="has no scope"):
        create_app(Config(), tmp_path / "data")


def test_a_refusal_says_what_is_wanted(guarded: Guarded) -> None:
    """In the words of the path's API, with the header that names the scheme; and never with the key."""
    reply = guarded.caller("search").call("POST", "/v1/collections", {"name": "c"})
    assert (reply.status, reply.body["error"]["type"]) == (403, "forbidden")
    assert "admin" in reply.body["error"]["message"]
    reply = Caller(guarded.server.url).call("POST", "/v1/embeddings", {"model": "m", "input": "x"})
    assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "Authorization" in reply.body["error"]["message"]


# --- keys -----------------------------------------------------------------------------------------------------


def test_a_lost_file_lets_nobody_in(tmp_path: Path) -> None:
    """A running service keeps what it read; one that starts refuses everybody until there is a key again."""
    running = Keys(tmp_path)
    text = running.create(key("search"))[1]
    (tmp_path / KEYS).unlink()
    running._looked_at = float("-inf")
    assert running.admit({"Authorization": f"Bearer {text}"}, "search").key
    started = Keys(tmp_path)
    assert started.required
    with pytest.raises(Unauthorized):
        started.admit({"Authorization": f"Bearer {text}"}, "search")
    again = started.create(key("search"))[1]
    assert started.admit({"Authorization": f"Bearer {again}"}, "search").key


def lose(data: Path) -> None:
    (data / KEYS).unlink()


def lose_with_its_lock(data: Path) -> None:
    for name in (KEYS, KEYS_LOCK):
        (data / name).unlink()


def empty(data: Path) -> None:
    (data / KEYS).write_text('{"format": 1, "keys": []}')


def empty_as_the_newest(data: Path) -> None:
    (data / KEYS).write_text('{"format": 1, "revision": 99, "keys": []}')


def put_back(data: Path) -> None:
    """From before the key was revoked."""
    (data / "earlier.json").rename(data / KEYS)


def lose_all_but_the_copy(data: Path) -> None:
    lose_with_its_lock(data)
    (data / MARKER).write_text("{")


MISHAPS = [lose, lose_with_its_lock, empty, empty_as_the_newest, put_back, lose_all_but_the_copy]


@pytest.mark.parametrize("mishap", MISHAPS, ids=lambda mishap: mishap.__name__)
def test_no_file_of_keys_opens_a_service(tmp_path: Path, mishap: Callable[[Path], None]) -> None:
    """Whatever happens to it: one that runs lets nobody new in, one that starts nobody at all."""
    prepare(tmp_path)
    running = Keys(tmp_path)
    revoked, text = running.create(key("admin"))
    (tmp_path / "earlier.json").write_bytes((tmp_path / KEYS).read_bytes())
    running.revoke(revoked.id)
    running.create(key("admin"))
    mishap(tmp_path)
    for keys in (running, Keys(tmp_path)):
        keys._looked_at = float("-inf")
        for headers in ({}, {"Authorization": f"Bearer {text}"}):
            with pytest.raises(Unauthorized):
                keys.admit(headers, "search")


def test_an_earlier_file_is_neither_listed_nor_changed(tmp_path: Path) -> None:
    """A key that was revoked since would be valid again, and a later one unknown: the file has to be put back, or
    deleted. A lost one is named where a key is not found, because a running service keeps its keys."""
    prepare(tmp_path)
    keys = Keys(tmp_path)
    keys.create(key("search"))
    before = (tmp_path / KEYS).read_bytes()
    later = keys.create(key("search"))[0].id
    (tmp_path / KEYS).write_bytes(before)
    acts: list[Callable[[], object]] = [
        lambda: Keys(tmp_path).create(key("search")),
        keys.all,
        lambda: keys.revoke(later),
        lambda: keys.rotate(later),
    ]
    for act in acts:
        with pytest.raises(Conflict, match=r"revision 1, the newest was 2.*delete this file"):
            act()
    (tmp_path / KEYS).unlink()
    for act in acts[2:]:
        with pytest.raises(NotFound, match="is lost"):
            act()
    text = (made := Keys(tmp_path)).create(key("search"))[1]
    assert made.admit({"Authorization": f"Bearer {text}"}, "search").key


def test_only_a_command_opens_a_directory(tmp_path: Path) -> None:
    """A service that starts then lets everybody in, one that runs stays as it is; the next key locks it again."""
    prepare(tmp_path)
    running = Keys(tmp_path)
    running.create(key("search"))
    nearline("keys", "open", "--data", tmp_path, "--yes").check_returncode()
    running._looked_at = float("-inf")
    with pytest.raises(Unauthorized):
        running.admit({}, "search")
    opened = Keys(tmp_path)
    assert not opened.required
    opened.create(key("search"))
    assert Keys(tmp_path).required


def test_a_restored_directory_is_locked(tmp_path: Path) -> None:
    """Backups hold no keys: what comes from a directory with keys lets nobody in, from one without it says nothing."""
    for name, made in (("open", False), ("with keys", True)):
        data = tmp_path / name
        prepare(data)
        if made:
            Keys(data).create(key("search"))
        back_up(data, tmp_path / f"{name}.backup", progress=lambda *_: None)
        restore(
            tmp_path / f"{name}.backup", restored := tmp_path / f"{name}.restored", progress=lambda *_: None
        )
        assert Keys(restored).required == made
    told = nearline("restore", "--from", tmp_path / "with keys.backup", "--data", tmp_path / "new")
    assert "is locked: access keys were needed" in " ".join(told.stdout.split())


def test_a_service_stays_closed(tmp_path: Path, model_folder: Path) -> None:
    """Emptied, reloaded, restarted without any file of keys: 401, and the log says what to do."""
    data, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with guarded_service(data, environ) as found:
        assert found.caller("search").call("GET", "/v1/collections").status == 200
        empty(data)
        os.kill(found.server.pid, signal.SIGHUP)
        time.sleep(RELOAD_S + 0.05)
        assert Caller(found.server.url).call("GET", "/v1/collections").status == 401
    lose_with_its_lock(data)
    with serving(data, environ) as server:
        assert Caller(server.url).call("GET", "/v1/collections").status == 401
    assert "nearline keys create" in log_of(data).read_text()


def test_commands_that_read_make_no_directory(tmp_path: Path) -> None:
    """Nor does a key that is refused."""
    for words in (
        ["list"],
        ["revoke", "0"],
        ["rotate", "0"],
        ["create", "--scope", "search", "--per-second", "0"],
    ):
        assert nearline("keys", *words, "--data", tmp_path / "typo").returncode == 1
    assert not (tmp_path / "typo").exists()


def test_only_hashes_are_stored(tmp_path: Path) -> None:
    """In a file that is its owner's alone."""
    made, text = Keys(tmp_path).create(key("search"))
    content = (tmp_path / KEYS).read_text()
    assert text.split("_", 2)[2] not in content
    assert made.sha256 in content
    assert (tmp_path / KEYS).stat().st_mode & 0o077 == 0


def test_a_revoked_key_is_refused_within_a_second(guarded: Guarded) -> None:
    """Also where another process revoked it."""
    made, text = guarded.keys.create(key("search"))
    caller = Caller(guarded.server.url, text)
    assert until(lambda: caller.call("GET", "/v1/models").status == 200)
    guarded.keys.revoke(made.id)
    assert until(lambda: caller.call("GET", "/v1/models").status == 401)


def until(holds: Callable[[], bool], within_s: float = 1.0) -> bool:
    deadline = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


def test_a_rotated_key_ends_after_its_grace(tmp_path: Path) -> None:
    """The new one has its rights; it ends at once without grace."""
    keys = Keys(tmp_path)
    old, old_text = keys.create(key("search", tenant="acme", collections=["docs"]))
    new, new_text = keys.rotate(old.id, grace_s=3600)
    assert (new.scopes, new.tenant, new.collections) == (old.scopes, old.tenant, old.collections)
    for text in (old_text, new_text):
        keys.admit({"Authorization": f"Bearer {text}"}, "search")
    keys.rotate(new.id)
    with pytest.raises(Unauthorized):
        keys.admit({"Authorization": f"Bearer {new_text}"}, "search")
    with pytest.raises(Conflict):
        keys.rotate(new.id)
    with pytest.raises(NotFound):
        keys.rotate(old.id, tenant="other")


def test_a_rotated_key_lasts_as_long_as_the_old_one(tmp_path: Path) -> None:
    """From now on; and one that has ended is not rotated."""
    keys = Keys(tmp_path)
    old, _ = keys.create(key("search", expires_ms=now_ms() + 1_000_000))
    new, _ = keys.rotate(old.id)
    assert new.expires_ms
    assert old.expires_ms
    assert new.expires_ms - new.created_ms == pytest.approx(old.expires_ms - old.created_ms, abs=1000)
    ended, _ = keys.create(key("search", expires_ms=now_ms() - 1))
    with pytest.raises(Conflict):
        keys.rotate(ended.id)


@pytest.mark.parametrize("lifetime_ms", [None, 86_400_000])
def test_a_grace_is_not_inherited(tmp_path: Path, lifetime_ms: int | None) -> None:
    """A key that is rotated again within its grace makes one that lasts as long as it was made to last."""
    keys = Keys(tmp_path)
    expires_ms = None if lifetime_ms is None else now_ms() + lifetime_ms
    old, old_text = keys.create(key("search", expires_ms=expires_ms))
    for grace_s in (3600, 60, 3600):
        made, text = keys.rotate(old.id, grace_s=grace_s)
        if lifetime_ms is None:
            assert made.expires_ms is None
        else:
            assert made.expires_ms
            assert made.expires_ms - made.created_ms == pytest.approx(lifetime_ms, abs=1000)
        for one in (old_text, text):
            assert keys.admit({"Authorization": f"Bearer {one}"}, "search").key
    ends_ms = next(one.expires_ms for one in keys.all() if one.id == old.id)
    assert ends_ms
    assert ends_ms - old.created_ms == pytest.approx(60_000, abs=1000)  # no later grace prolongs it


def test_keys_stay_required(tmp_path: Path) -> None:
    """When all are revoked, and when their file is removed under a running service."""
    clock = iter(range(1000))
    keys = Keys(tmp_path, now=lambda: float(next(clock)))
    assert keys.admit({}, "admin") == Principal()
    made, _ = keys.create(key("admin"))
    keys.revoke(made.id)
    for _ in range(2):
        with pytest.raises(Unauthorized):
            keys.admit({}, "search")
        (tmp_path / KEYS).unlink(missing_ok=True)


def test_a_damaged_file_of_keys_stops_the_start_and_not_the_service(tmp_path: Path) -> None:
    """What was read before stays in force."""
    clock = iter(range(1000))
    keys = Keys(tmp_path, now=lambda: float(next(clock)))
    _, text = keys.create(key("search"))
    (tmp_path / KEYS).write_text("{")
    keys.admit({"Authorization": f"Bearer {text}"}, "search")
    with pytest.raises(Damaged):
        Keys(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        (key(), "scopes"),
        (key("search", tenant="a/b"), "tenant"),
        (key("metrics", tenant="acme"), "scopes"),
        (key("metrics", collections=["docs"]), "scopes"),
        (key("search", collections=["../x"]), "collections"),
        (key("write", groups=["staff"]), "scopes"),
        (key("search", groups=[""]), "groups"),
    ],
)
def test_rights_that_make_no_sense_are_refused(tmp_path: Path, wrong: Key, param: str) -> None:
    """Naming the field; no key is made."""
    with pytest.raises(InvalidInput) as caught:
        Keys(tmp_path).create(wrong)
    assert caught.value.param == param
    assert not (tmp_path / KEYS).exists()


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("--name", "x" * 201, "name"),
        ("--expires-days", 3651, "expires_s"),
        ("--expires-days", 1e300, "expires_s"),
        ("--expires-days", "inf", "expires_s"),
        ("--per-second", 0, "limits.per_second"),
        ("--per-second", "nan", "limits.per_second"),
        ("--at-once", -1, "limits.at_once"),
        ("--grace-s", 31_536_001, "grace_s"),
        ("--grace-s", "inf", "grace_s"),
    ],
)
def test_commands_and_http_refuse_the_same(
    guarded: Guarded, tmp_path: Path, option: str, value: float | str, field: str
) -> None:
    """Naming the same field; no directory is made."""
    data = ["--data", str(tmp_path / "typo")]
    words = ["rotate", "0"] if field == "grace_s" else ["create", "--scope", "search"]
    refused = CliRunner().invoke(keys_command, [*words, *data, option, str(value)]).exception
    assert isinstance(refused, InvalidInput)
    assert refused.param == field
    assert not (tmp_path / "typo").exists()
    if value in ("inf", "nan"):  # JSON has neither
        return
    number = value * DAY_S if field == "expires_s" and not isinstance(value, str) else value
    body: dict[str, Any] = {} if field == "grace_s" else {"scopes": ["search"]}
    outer, _, inner = field.partition(".")
    path = "/v1/keys/0/rotate" if field == "grace_s" else "/v1/keys"
    reply = guarded.caller("admin").call("POST", path, {**body, outer: {inner: number} if inner else number})
    assert (reply.status, reply.body["error"]["param"]) == (422, field)


@pytest.mark.parametrize("ms", [86_400_000_001_795_581_936_748, -(10**18), 10**15])
def test_times_beyond_the_calendar_are_listed(tmp_path: Path, ms: int) -> None:
    """The keys of a file that was edited or damaged are listed, so that they can be revoked."""
    prepare(tmp_path)
    made, _ = Keys(tmp_path).create(key("search", expires_ms=ms))
    listed = nearline("keys", "list", "--data", tmp_path, COLUMNS="300")
    assert listed.returncode == 0, listed.stderr
    assert made.id in listed.stdout
    assert f"{ms} ms" in listed.stdout


def test_collections_of_a_key_that_do_not_exist_are_told(guarded: Guarded) -> None:
    """One that may be made later is named in the answer; one that no key of the tenant could call so is refused."""
    acme = guarded.caller("admin", tenant="acme-bound")
    acme.ok("POST", "/v1/collections", {"name": "here"})
    wanted = {"scopes": ["search"], "collections": ["here", "later"]}
    made = acme.ok("POST", "/v1/keys", wanted)
    assert made["absent"] == ["later"]
    assert acme.ok("POST", f"/v1/keys/{made['record']['id']}/rotate", {})["absent"] == ["later"]
    reply = acme.call("POST", "/v1/keys", {**wanted, "collections": ["here@other-http"]})
    assert (reply.status, reply.body["error"]["param"]) == (422, "collections")


def test_an_admin_makes_keys_over_http(guarded: Guarded) -> None:
    """Of its own tenant alone; it sees, rotates and revokes no others. Nobody without a key makes the first."""
    acme, other = guarded.caller("admin", tenant="acme-http"), guarded.caller("admin", tenant="other-http")
    made = acme.ok("POST", "/v1/keys", {"scopes": ["search"], "name": "page"})
    assert made["record"]["tenant"] == "acme-http"
    searcher = Caller(guarded.server.url, made["key"])
    assert searcher.call("GET", "/v1/models").status == 200
    assert acme.call("POST", "/v1/keys", {"scopes": ["search"], "tenant": "other-http"}).status == 403
    none = acme.call("POST", "/v1/keys", {"scopes": ["search"], "collections": []})
    assert (none.status, none.body["error"]["param"]) == (422, "collections")
    listed = acme.ok("GET", "/v1/keys")["keys"]
    assert {one["tenant"] for one in listed} == {"acme-http"}
    assert "sha256" not in json.dumps(listed)
    mine = made["record"]["id"]
    assert other.call("DELETE", f"/v1/keys/{mine}").status == 404
    assert other.call("POST", f"/v1/keys/{mine}/rotate", {}).status == 404
    assert acme.call("DELETE", f"/v1/keys/{mine}").status == 204
    assert searcher.call("GET", "/v1/models").status == 401
    bound = guarded.caller("admin", collections=["docs"])
    assert bound.call("POST", "/v1/keys", {"scopes": ["admin"]}).status == 403


def test_without_keys_none_is_made_over_http(http: Http) -> None:
    """Or whoever comes first would lock out everybody else."""
    assert http.call("POST", "/v1/keys", {"scopes": ["admin"]}).status == 403


def test_no_secret_is_logged(guarded: Guarded) -> None:
    """The log names a request's key by its id."""
    made, text = guarded.keys.create(key("search"))
    path = "/v1/collections/none/search"
    assert until(lambda: Caller(guarded.server.url, text).call("POST", path, {"query": "x"}).status == 404)
    assert until(lambda: made.id in log_of(guarded.data).read_text())
    assert text.split("_", 2)[2] not in log_of(guarded.data).read_text()


# --- tenants --------------------------------------------------------------------------------------------------


FEEDBACK = {"document_id": "refunds", "grade": 3}
OUTCOME = {"key": "acmekey", "bad": ["1"]}
DOCUMENTS = {
    "acme": [{"id": "a1", "text": "Acme pays refunds within fourteen days.", "metadata": {"acmekey": 1}}],
    "globex": [
        {"id": "g1", "text": "Globex ships to the moon.", "metadata": {"globexkey": 2}},
        {"id": "g2", "text": "Globex refunds nothing at all.", "metadata": {"globexkey": 3}},
    ],
}


@pytest.fixture(scope="module")
def tenants(guarded: Guarded) -> dict[str, Caller]:
    """Two tenants with a collection and an alias of the same names each."""
    found = {tenant: guarded.caller("admin", tenant=tenant) for tenant in DOCUMENTS}
    for tenant, caller in found.items():
        caller.ok("POST", "/v1/collections", {"name": "docs"})
        caller.ok("POST", "/v1/collections", {"name": f"{tenant}-only"})
        caller.ok("PUT", "/v1/aliases/live", {"collection": "docs"})
        caller.write("docs", *DOCUMENTS[tenant])
        caller.wait_for(caller.ok("POST", "/v1/collections/docs/reindex", {})["job"])
    return found


def test_tenants_see_nothing_of_each_other(guarded: Guarded, tenants: dict[str, Caller]) -> None:
    """No id, text, key, name, job or count of the other one, in any answer or error of any endpoint."""
    operator = guarded.caller("admin")
    foreign = ["Globex", "globex", "g1", "g2"]
    jobs = [one["id"] for one in operator.ok("GET", "/v1/jobs")["jobs"] if "globex" in one["collection"]]
    assert jobs
    caller, seen = tenants["acme"], []
    for name in ("docs", "live", "globex-only", "docs@globex", "docs@acme"):
        c = f"/v1/collections/{name}"
        seen += [
            caller.call("POST", f"{c}/search", {"query": "refunds of Globex to the moon", "k": 100}),
            caller.call("POST", f"{c}/search/batch", {"searches": [{"query": "refunds", "mode": "lexical"}]}),
            caller.call(
                "POST", f"{c}/search", {"query": "x", "filter": {"type": "eq", "key": "globxkey", "value": 1}}
            ),
            caller.call("POST", f"{c}/context", {"query": "refunds", "token_budget": 500}),
            caller.call("GET", f"{c}/documents"),
            caller.call("GET", f"{c}/documents/g1"),
            caller.call("POST", f"{c}/documents/scroll", {}),
            caller.call("POST", f"{c}/documents/count", {}),
            caller.call("DELETE", f"{c}/documents/g1"),
            caller.call("POST", f"{c}/documents/delete", {"ids": ["g1"]}),
            caller.call("PATCH", f"{c}/documents/g1", {"metadata": {"x": 1}}),
            caller.call("GET", f"{c}/feedback"),
            caller.call("GET", c),
            caller.call("POST", f"{c}/assess", {"action": "refunds of Globex", "outcome": OUTCOME}),
            caller.call("POST", f"{c}/answer", {"query": "refunds", "token_budget": 500}),
            *(caller.call("GET", f"/v1/vector_stores/{name}{rest}") for rest in ("", "/files", "/files/g1")),
            caller.call("POST", f"/v1/vector_stores/{name}/search", {"query": "refunds to the moon"}),
        ]
    seen += [
        caller.call("GET", path)
        for path in ("/v1/collections", "/v1/vector_stores", "/v1/jobs", "/v1/keys", "/v1/files")
    ]
    seen += [caller.call("GET", f"/v1/jobs/{job}") for job in jobs]
    seen += [caller.call("DELETE", "/v1/collections/globex-only"), caller.call("GET", "/readyz")]
    seen += [caller.call("PUT", "/v1/aliases/mine", {"collection": "globex-only"})]
    for reply in seen:
        told = json.dumps(reply.body).replace("globxkey", "")
        for echo in (
            "globex-only",
            "docs@globex",
            "documents/g1",
            "document 'g1'",
            "file 'g1'",
        ):  # what it asked for itself
            told = told.replace(echo, "")
        assert not [word for word in foreign if word in told], reply
        assert reply.status < 500
    assert [one["name"] for one in caller.ok("GET", "/v1/collections")["collections"]] == [
        "acme-only",
        "docs",
    ]
    assert tenants["globex"].ok("POST", "/v1/collections/docs/documents/count", {})["documents"] == 2
    assert caller.call("GET", "/metrics").status == 403
    names = [one["name"] for one in operator.ok("GET", "/v1/collections")["collections"]]
    assert {"docs@acme", "docs@globex"} <= {*names}


def test_equal_questions_of_tenants_share_no_answer(tenants: dict[str, Caller]) -> None:
    """Each gets its own, from its own cache."""
    for _ in range(2):
        found = {tenant: one.found("docs", query="refunds") for tenant, one in tenants.items()}
    assert found["acme"] == ["a1"]
    assert {*found["globex"]} == {"g1", "g2"}


def test_a_key_bound_to_collections_reaches_no_others(guarded: Guarded, tenants: dict[str, Caller]) -> None:
    """By name or alias; what an alias is moved to, it reaches next."""
    caller = guarded.caller("search", "write", tenant="acme", collections=["live"])
    assert caller.found("live", query="refunds") == ["a1"] == caller.found("docs", query="refunds")
    assert caller.call("POST", "/v1/collections/acme-only/search", {"query": "x"}).status == 404
    assert [one["name"] for one in caller.ok("GET", "/v1/collections")["collections"]] == ["docs"]
    assert caller.ok("GET", "/v1/collections/docs")["aliases"] == ["live"]
    admin = guarded.caller("admin", tenant="acme", collections=["docs"])
    assert admin.call("POST", "/v1/collections", {"name": "more"}).status == 403
    assert admin.call("PUT", "/v1/aliases/x", {"collection": "docs"}).status == 403
    assert admin.call("DELETE", "/v1/collections/acme-only").status == 404


MARK = "wormwood"  # in all that belongs to the collection that a key is not bound to


@pytest.mark.parametrize("scopes", [("admin", "vectors"), ("search", "write")], ids=" ".join)
def test_a_bound_key_learns_and_changes_nothing_elsewhere(
    guarded: Guarded, scopes: tuple[Scope, ...]
) -> None:
    """On every route, named by path, id or alias: no word of another collection, and nothing of it is changed."""
    mine, other = f"mine-{scopes[0]}", f"{MARK}-{scopes[0]}"
    owner = guarded.caller("admin", "vectors")
    for name in (mine, other):
        owner.ok("POST", "/v1/collections", {"name": name})
        document = {
            "id": f"{name}-1",
            "text": f"Refunds of {name} take days.",
            "metadata": {f"{name}_key": name},
        }
        owner.write(name, document, {**document, "id": "refunds"})
        owner.ok("PUT", f"/v1/aliases/{name}-alias", {"collection": name})
        owner.ok(
            "POST",
            f"/v1/collections/{name}/feedback",
            {"feedback": [FEEDBACK | {"query": f"what of {name}?"}]},
        )
    job = owner.ok("POST", f"/v1/collections/{other}/reindex", {})["job"]
    owner.wait_for(job)
    ids = {"file": upload(owner, f"{MARK}.txt", MARK.encode()), "job": job, "key": owner.token.split("_")[1]}
    ids["id"] = f"{other}-1"

    def belongings() -> Any:
        collection = owner.ok("GET", f"/v1/collections/{other}")
        kept = {
            field: collection[field]
            for field in ("name", "aliases", "seq", "documents", "generation", "ranking")
        }
        shown: tuple[tuple[str, Any], ...] = ("documents/scroll", {}), ("feedback", None)
        read = [owner.call("POST" if body == {} else "GET", f"/v1/collections/{other}/{path}", body).body
                for path, body in shown]  # fmt: skip
        return kept, read, owner.ok("GET", f"/v1/files/{ids['file']}")

    before = belongings()
    bound = guarded.caller(*scopes, collections=[mine])
    asked, forbidden = 0, set()
    for one in sorted(
        operations(), key=lambda one: (one.route.method == "DELETE", one.route.path.endswith("/rename"))
    ):
        if one.route.scope == "public" or one.route.path.endswith(("/reindex", "/tune", "/erase")):
            continue
        raw, headers = one.sent(json.loads(json.dumps(one.body).replace('"docs"', json.dumps(other))))
        for collection in (mine, other, f"{other}-alias"):
            path = one.path({**ids, "collection": collection, "alias": f"{other}-alias"})
            reply = bound.call(one.route.method, path, raw=raw, headers=headers)
            assert reply.status < 500 or reply.body["error"]["type"] == "not_ready", reply
            if other in path and "{collection}" in path:
                assert reply.status in (403, 404), path
            told = json.dumps([reply.body, dict(reply.headers)])
            for known in (other, ids["file"], f"{MARK}.txt"):  # what was asked for
                told = told.replace(known, "") if known in path or known in str(raw) else told
            assert MARK not in told, (one.route.method, path, told[:500])
            asked += 1
            if reply.status == 403:
                forbidden.add(f"{one.route.method} {one.route.path}")
    assert asked > 150
    assert forbidden >= {"GET /metrics", "GET /v1/files", "POST /v1/collections", "PUT /v1/aliases/{alias}"}
    assert belongings() == before


def test_uploaded_files_are_their_tenants(guarded: Guarded, tenants: dict[str, Caller]) -> None:
    """Another tenant can neither list, read, attach nor delete them, nor the documents made of them."""
    globex, acme = tenants["globex"], tenants["acme"]
    made = upload(globex, "secrets.txt", b"The vault of Globex opens at noon.")
    path = f"/v1/files/{made}"
    assert globex.call("GET", path).status == 200
    globex.ok("POST", "/v1/vector_stores/globex-only/files", {"file_id": made})
    assert acme.ok("GET", "/v1/files")["data"] == []
    for reply in (
        acme.call("GET", path),
        acme.call("GET", f"{path}/content"),
        acme.call("DELETE", path),
        acme.call("POST", "/v1/vector_stores/docs/files", {"file_id": made}),
    ):
        assert (reply.status, "vault" in json.dumps(reply.body)) == (404, False)
    assert globex.call("GET", f"/v1/vector_stores/globex-only/files/{made}").status == 200
    assert globex.call("DELETE", path).status == 200
    assert globex.call("GET", f"/v1/vector_stores/globex-only/files/{made}").status == 404


def test_a_bound_key_reaches_no_uploads(guarded: Guarded, tenants: dict[str, Caller]) -> None:
    """They belong to no collection, so to none that it is bound to."""
    made = upload(tenants["acme"], "notes.txt", b"For the eyes of acme.")
    bound = guarded.caller("search", "write", tenant="acme", collections=["acme-only"])
    for reply in (
        bound.call("GET", "/v1/files"),
        bound.call("GET", f"/v1/files/{made}"),
        bound.call("GET", f"/v1/files/{made}/content"),
        bound.call("DELETE", f"/v1/files/{made}"),
        bound.call("POST", "/v1/vector_stores/acme-only/files", {"file_id": made}),
    ):
        assert reply.status == 403


def test_aliases_are_shown_to_those_who_may_use_them(guarded: Guarded) -> None:
    """A key bound to one alias neither sees nor uses the others; one bound to the collection may use all."""
    owner = guarded.caller("admin")
    owner.ok("POST", "/v1/collections", {"name": "launch"})
    owner.write("launch", {"id": "a", "text": "The launch is in May."})
    for alias in ("public", "merger"):
        owner.ok("PUT", f"/v1/aliases/{alias}", {"collection": "launch"})
    for bound, usable in (("public", ["public"]), ("launch", ["merger", "public"])):
        caller = guarded.caller("search", collections=[bound])
        (listed,) = caller.ok("GET", "/v1/collections")["collections"]
        assert listed["aliases"] == caller.ok("GET", "/v1/collections/launch")["aliases"] == usable
        for alias in ("public", "merger"):
            reply = caller.call("POST", f"/v1/collections/{alias}/search", {"query": "launch"})
            assert reply.status == (200 if alias in usable else 404)
    for alias, name in (("merger@acme", "launch"), ("merger", "launch@acme")):
        reply = owner.call("PUT", f"/v1/aliases/{alias}", {"collection": name})
        assert (reply.status, reply.body["error"]["param"]) == (409, "alias")


def test_an_alias_from_elsewhere_is_not_shown() -> None:
    """Directories may hold aliases into other tenants: a tenant sees its own, callers without a tenant see all."""
    aliases = {"x@acme": "docs@beta", "x": "docs@beta", "live@beta": "docs@beta"}
    assert Principal(tenant="beta").aliases_of("docs@beta", aliases) == ["live"]
    assert Principal().aliases_of("docs@beta", aliases) == sorted(aliases)
    assert not Principal(tenant="acme").may_use("x@acme", aliases)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/collections/docs@acme/search"),
        ("DELETE", "/v1/collections/docs@acme"),
        ("GET", "/v1/collections/docs/documents/docs@acme"),
        ("GET", "/v1/collections/docs/documents/docs@acme-more"),
    ],
)
def test_errors_repeat_what_was_asked(tenants: dict[str, Caller], method: str, path: str) -> None:
    """Also where a name or an id ends like the full names of the caller's tenant."""
    reply = tenants["acme"].call(method, path, {"query": "refunds"} if method == "POST" else None)
    assert reply.status == 404
    asked = next(word for word in path.split("/") if "@" in word)
    assert repr(asked) in reply.body["error"]["message"]


def test_errors_use_the_names_that_a_tenant_knows(guarded: Guarded, tenants: dict[str, Caller]) -> None:
    """Without what its collections are called for others."""
    acme = tenants["acme"]
    for reply in (
        acme.call("POST", "/v1/collections", {"name": "docs"}),
        acme.call("POST", "/v1/collections", {"name": "No Name"}),
        acme.call("GET", "/v1/vector_stores/docs/files/none"),
        acme.call("DELETE", "/v1/collections/docs"),
    ):
        assert reply.status in (404, 409, 422)
        assert "@acme" not in json.dumps(reply.body)
    acme.ok("PUT", "/v1/aliases/live", {"collection": "docs"})
    for call in (
        ("POST", "/v1/collections/live/rename", {"name": "new"}),
        ("DELETE", "/v1/collections/live"),
        ("PUT", "/v1/aliases/other", {"collection": "live"}),
    ):
        reply = acme.call(*call)
        assert reply.status == 404
        assert (
            reply.body["error"]["message"] == "'live' is an alias; the own name of its collection is 'docs'"
        )
    acme.ok("DELETE", "/v1/aliases/live")


@pytest.mark.slow
def test_a_quarantine_is_told_in_a_tenants_words(tmp_path: Path, model_folder: Path) -> None:
    """In the list of collections and in an error: its reason names a file below the collection's folder."""
    data, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with guarded_service(data, environ) as found:
        acme = found.caller("admin", tenant="acme")
        acme.ok("POST", "/v1/collections", {"name": "docs"})
    (data / "docs@acme" / "log.db").write_bytes(b"no database")
    with serving(data, environ) as server:
        caller = Caller(server.url, acme.token)
        listed = caller.ok("GET", "/v1/collections")["quarantined"]
        assert listed[0]["reason"].startswith("docs/log.db is damaged")
        refused = caller.call("GET", "/v1/collections/docs").body["error"]["message"]
        assert refused.startswith("collection 'docs' is quarantined: docs/log.db is damaged")


@pytest.mark.parametrize("document", ["bob@acme.example", "bob@acme"])
def test_a_callers_own_text_is_told_as_it_is(tenants: dict[str, Caller], document: str) -> None:
    """Also where it looks like a full name."""
    reply = tenants["acme"].call("GET", f"/v1/collections/docs/documents/{document}")
    assert reply.body["error"]["message"] == f"no document {document!r}"


def upload(caller: Caller, name: str, content: bytes) -> str:
    parts = (
        b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
        b'--edge\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n%s\r\n--edge--\r\n'
    ) % (name.encode(), content)
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    reply = caller.call("POST", "/v1/files", raw=parts, headers=headers)
    assert reply.status == 200, reply
    return str(reply.body["id"])


def test_commands_send_the_key_of_the_environment(guarded: Guarded, tenants: dict[str, Caller]) -> None:
    """And fail with one line without it."""
    command = ["search", "-c", "docs", "refunds", "--url", guarded.server.url]
    assert "fourteen days" in nearline(*command, NEARLINE_KEY=tenants["acme"].token).stdout
    refused = nearline(*command)
    assert refused.returncode == 1
    assert "access key" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_tenant_renames_and_deletes_its_own(guarded: Guarded) -> None:
    """By the names it knows; another tenant may use the same."""
    one, two = (guarded.caller("admin", tenant=tenant) for tenant in ("one", "two"))
    for caller in (one, two):
        caller.ok("POST", "/v1/collections", {"name": "first"})
        assert caller.ok("POST", "/v1/collections/first/rename", {"name": "second"})["name"] == "second"
    assert one.call("DELETE", "/v1/collections/second").status == 204
    assert two.ok("GET", "/v1/collections/second")["name"] == "second"


# --- documents for groups -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(guarded: Guarded) -> str:
    """A collection with a document for all, one for staff and one for staff and board."""
    admin = guarded.caller("admin", tenant="firm")
    admin.ok("POST", "/v1/collections", {"name": "papers"})
    admin.write(
        "papers",
        {"id": "all", "text": "The canteen opens at noon.", "metadata": {"kind": "notice"}},
        {"id": "staff", "text": "The payroll runs at noon.", "metadata": {"acl": ["staff"], "payroll": True}},
        {
            "id": "board",
            "text": "The merger is signed at noon.",
            "metadata": {"acl": ["board", "staff-lead"]},
        },
    )
    return "papers"


@pytest.mark.parametrize(
    ("groups", "visible"),
    [
        (None, {"all", "staff", "board"}),
        (["staff"], {"all", "staff"}),
        (["board", "staff"], {"all", "staff", "board"}),
        (["nobody"], {"all"}),
    ],
)
def test_documents_are_shown_to_their_groups_alone(
    guarded: Guarded, shared: str, groups: list[str] | None, visible: set[str]
) -> None:
    """In searches, cached or not, contexts, lists, scrolls, counts and by their ids."""
    caller = guarded.caller("search", tenant="firm", groups=groups)
    c = f"/v1/collections/{shared}"
    for mode in ("hybrid", "dense", "lexical", "hybrid"):
        assert {*caller.found(shared, query="what happens at noon", mode=mode)} == visible
    not_all = {"type": "ne", "key": "kind", "value": "notice"}
    assert {*caller.found(shared, query="noon", filter=not_all)} == visible - {"all"}
    context = caller.ok("POST", f"{c}/context", {"query": "what happens at noon", "token_budget": 500})
    assert {one["document_id"] for one in context["citations"]} == visible
    assert {one["id"] for one in caller.ok("GET", f"{c}/documents")["documents"]} == visible
    assert {one["id"] for one in caller.ok("POST", f"{c}/documents/scroll", {})["documents"]} == visible
    assert caller.ok("POST", f"{c}/documents/count", {})["documents"] == len(visible)
    for name in ("all", "staff", "board"):
        assert caller.call("GET", f"{c}/documents/{name}").status == (200 if name in visible else 404)
    assert caller.call("GET", c).status == (200 if groups is None else 403)
    store = f"/v1/vector_stores/{shared}"
    assert {one["id"] for one in caller.ok("GET", f"{store}/files")["data"]} == visible
    assert caller.call("GET", f"{store}/files/board").status == (200 if "board" in visible else 404)
    assert caller.call("GET", f"{store}/files/board/content").status == (200 if "board" in visible else 404)
    results = caller.ok("POST", f"{store}/search", {"query": "what happens at noon"})["data"]
    assert {one["file_id"] for one in results} == visible


def test_facets_do_not_tell_which_keys_hidden_documents_have(guarded: Guarded, shared: str) -> None:
    """A key of theirs counts as one that no document has, and ranges as those of a key with no such values."""
    reader = guarded.caller("search", tenant="firm", groups=["guests"])

    def counted(facet: object, key: str) -> object:
        (found,) = reader.ok(
            "POST", f"/v1/collections/{shared}/search", {"query": "noon", "facets": [facet]}
        )["facets"]
        assert found["key"] == key
        return {name: value for name, value in found.items() if name != "key"}

    assert counted("payroll", "payroll") == counted("nowhere", "nowhere")
    ranges = {"ranges": [1, 10]}
    assert counted({"key": "payroll", **ranges}, "payroll") == counted(
        {"key": "nowhere", **ranges}, "nowhere"
    )
    everybody = guarded.caller("search", tenant="firm")
    path = f"/v1/collections/{shared}/search"
    assert everybody.call("POST", path, {"query": "noon", "facets": ["nowhere"]}).status == 422


@pytest.mark.slow
def test_groups_are_names_whatever_they_look_like(guarded: Guarded) -> None:
    """A group called as a year does not see documents of groups called as its days; no way of reading differs."""
    names = [
        "2026",
        "2026-05",
        "2026-05-01",
        "2026-05-01T00:00:00Z",
        "20260501",
        "2026-05-01T02:00:00+02:00",
        "true",
    ]
    admin = guarded.caller("admin", tenant="dates")
    admin.ok("POST", "/v1/collections", {"name": "classes"})
    admin.write("classes", *({"id": name, "text": "Noon.", "metadata": {"acl": [name]}} for name in names))
    c = "/v1/collections/classes"
    for name in names:
        caller = guarded.caller("search", tenant="dates", groups=[name])
        assert caller.found("classes", query="noon", collapse=False) == [name]
        assert caller.ok("POST", f"{c}/documents/count", {})["documents"] == 1
        assert [one["id"] for one in caller.ok("GET", f"{c}/documents")["documents"]] == [name]
        assert [one for one in names if caller.call("GET", f"{c}/documents/{one}").status == 200] == [name]


def test_errors_tell_nothing_of_hidden_documents(guarded: Guarded, shared: str) -> None:
    """A filter on a key that only they have matches nothing, as one on a key that none has."""
    caller = guarded.caller("search", tenant="firm", groups=["nobody"])
    for name in ("payroll", "payrol", "nothing"):
        condition = {"type": "eq", "key": name, "value": True}
        assert caller.found(shared, query="noon", filter=condition) == []


KEYED: list[tuple[str, dict[str, Any]]] = [
    ("search", {"query": "noon", "filter": {"type": "exists", "key": "KEY", "value": True}}),
    (
        "search",
        {"query": "noon", "filter": {"type": "not", "filter": {"type": "eq", "key": "KEY", "value": 1}}},
    ),
    ("search", {"query": "noon", "sort": [{"key": "KEY"}]}),
    ("search", {"query": "noon", "boosts": [{"key": "KEY", "decay": {"half_life_days": 1}}]}),
    ("search", {"query": "noon", "facets": ["KEY"]}),
    ("search", {"query": "noon", "collapse": {"key": "KEY"}}),
    ("search/batch", {"searches": [{"query": "noon", "collapse": {"key": "KEY"}}]}),
    ("context", {"query": "noon", "token_budget": 300, "date_key": "KEY", "order": "newest"}),
    ("context", {"query": "noon", "token_budget": 300, "boosts": [{"key": "KEY", "weight": 1}]}),
    ("assess", {"action": "noon", "remedy_key": "KEY"}),
    ("assess", {"action": "noon", "outcome": {"key": "KEY", "bad": ["x"]}}),
    ("explain", {"query": "noon", "document_id": "all", "sort": [{"key": "KEY"}]}),
    ("documents/scroll", {"filter": {"type": "exists", "key": "KEY", "value": True}}),
    ("documents/count", {"filter": {"type": "exists", "key": "KEY", "value": True}}),
]


@pytest.mark.parametrize(("route", "body"), KEYED, ids=lambda value: str(value)[:60])
def test_no_option_tells_which_keys_hidden_documents_have(
    guarded: Guarded, shared: str, route: str, body: dict[str, Any]
) -> None:
    """Whatever names a metadata key is answered alike for one that only they have and for one that none has."""
    reader, asked = guarded.caller("search", tenant="firm", groups=["guests"]), json.dumps(body)

    def told(name: str) -> tuple[int, str]:
        reply = reader.call(
            "POST", f"/v1/collections/{shared}/{route}", json.loads(asked.replace("KEY", name))
        )
        seen = (
            reply.body
            if reply.status != 200
            else [len(reply.body.get("hits", ())), reply.body.get("documents")]
        )
        return reply.status, json.dumps(seen).replace(name, "KEY")

    nowhere = told("nowhere")
    assert nowhere[0] == 200
    for name in ("payrol", "payroll.all", "payroll"):
        assert told(name) == nowhere


def test_a_page_of_files_tells_others_nothing_of_its_last_one(guarded: Guarded, shared: str) -> None:
    """A caller that may not see it gets the answer for an id that never was, also after a page ended with it."""
    admin, other = (
        guarded.caller("admin", tenant="firm"),
        guarded.caller("search", tenant="firm", groups=["guests"]),
    )
    files = f"/v1/vector_stores/{shared}/files"
    before = other.ok("GET", f"{files}?after=staff")
    page = admin.ok("GET", f"{files}?limit=2")
    assert (page["last_id"], page["has_more"]) == ("staff", True)
    assert other.ok("GET", f"{files}?after=staff") == before == other.ok("GET", f"{files}?after=never")
    assert admin.ok("GET", f"{files}?after=staff")["first_id"] == "board"


def signed(groups: object, *, expires_s: float = 60, secret: str = SECRET) -> dict[str, str]:
    claims = {"groups": groups, "exp": int(time.time() + expires_s)}
    return {"X-Nearline-Groups": jwt.encode(claims, secret, algorithm="HS256")}


def test_a_trusted_caller_names_groups_for_each_request(guarded: Guarded, shared: str) -> None:
    """Signed; without the header it sees what is for all; its own groups bound those it may name."""
    path, body = f"/v1/collections/{shared}/search", {"query": "noon"}

    def found(caller: Caller, headers: dict[str, str] | None = None) -> set[str]:
        reply = caller.call("POST", path, body, headers=headers)
        assert reply.status == 200, reply
        return {hit["document_id"] for hit in reply.body["hits"]}

    caller = guarded.caller("search", tenant="firm", signed_groups=True)
    assert found(caller) == {"all"}
    assert found(caller, signed(["board"])) == {"all", "board"}
    assert found(caller, signed([])) == {"all"}
    narrow = guarded.caller("search", tenant="firm", groups=["staff"], signed_groups=True)
    assert found(narrow, signed(["board", "staff"])) == {"all", "staff"}
    plain = guarded.caller("search", tenant="firm")
    assert plain.call("POST", path, body, headers=signed(["board"])).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        signed(["board"], expires_s=-5),
        signed(["board"], secret="another secret of thirty-two characters"),
        signed("board"),
        {"X-Nearline-Groups": "board"},
        {"X-Nearline-Groups": jwt.encode({"groups": ["board"]}, SECRET, algorithm="HS256")},
        {"X-Nearline-Groups": jwt.encode({"groups": ["board"], "exp": 2**40}, "", algorithm="none")},
    ],
)
def test_a_signature_that_does_not_hold_is_refused(guarded: Guarded, headers: dict[str, str]) -> None:
    """Expired, of another secret, of another form, unsigned, or without an end."""
    caller = guarded.caller("search", signed_groups=True)
    assert caller.call("POST", "/v1/collections/none/search", {"query": "x"}, headers=headers).status == 401


def test_restored_keys_count_from_the_first_request(tmp_path: Path) -> None:
    """A store restores them after the service has read that there are none."""
    for name in ("new", "old"):
        Catalog(tmp_path / name, IndexOptions()).close()
    keys = Keys(tmp_path / "new", now=lambda: 0.0)
    made, text = Keys(tmp_path / "old").create(key("search"))
    shutil.copy(tmp_path / "old" / KEYS, tmp_path / "new" / KEYS)
    keys.read_again()
    with pytest.raises(Unauthorized):
        keys.admit({}, "search")
    assert keys.admit({"Authorization": f"Bearer {text}"}, "search").key == made.id


def test_a_key_with_groups_does_nothing_but_read(tmp_path: Path) -> None:
    """Whatever its file says."""
    keys = Keys(tmp_path)
    made, text = keys.create(key("search", groups=["staff"]))
    file = tmp_path / KEYS
    file.write_text(file.read_text().replace('"search"', '"admin"'))
    keys = Keys(tmp_path)
    with pytest.raises(Forbidden):
        keys.admit({"Authorization": f"Bearer {text}"}, "write")
    assert made.groups == ["staff"]


@pytest.mark.parametrize(
    "acl",
    [
        None,
        [],
        1,
        ["staff", 2],
        True,
        {"groups": ["staff"]},
        [None],
        [["staff"]],
        [{"group": "staff"}],
        "",
        [" "],
    ],
)
def test_an_acl_that_lists_no_groups_is_refused(http: Http, acl: object) -> None:
    """An empty list would be no value, and the document for all to see."""
    collection = http.new_collection()
    path = f"/v1/collections/{collection}/documents"
    document = {"id": "d", "text": "words", "metadata": {"acl": acl}}
    reply = http.call("POST", path, {"documents": [document]})
    assert (reply.status, reply.body["error"]["param"]) == (422, "documents[0].metadata.acl")
    http.write(collection, {"id": "d", "text": "words"})
    if acl is not None:  # which removes it, as a merge patch does
        reply = http.call("PATCH", f"{path}/d", {"metadata": {"acl": acl}})
        assert (reply.status, reply.body["error"]["param"]) == (422, "metadata.acl")


def test_typing_errors_are_corrected_to_visible_words(guarded: Guarded, shared: str) -> None:
    """A key with groups gets them corrected, to words of documents that it may see alone; a misspelt word counts as one
    that no passage has although a hidden document has it."""
    admin = guarded.caller("admin", tenant="firm")
    admin.write(shared, {"id": "hidden", "text": "A canten and a payrrolle.", "metadata": {"acl": ["board"]}})
    for group, query, found, corrected in (
        ("staff", "payrroll", ["staff"], {"payrroll": "payroll"}),
        ("nobody", "payrroll", [], None),
        ("nobody", "canten", ["all"], {"canten": "canteen"}),
        ("board", "canten", ["hidden"], None),
    ):
        caller = guarded.caller("search", tenant="firm", groups=[group])
        answer = caller.search(shared, query=query, mode="lexical")
        assert [hit["document_id"] for hit in answer["hits"]] == found, (group, query)
        assert answer["receipt"].get("corrected") == corrected, (group, query)
    admin.ok("DELETE", f"/v1/collections/{shared}/documents/hidden")


def test_synonyms_help_all_and_are_shown_to_keys_without_groups(guarded: Guarded, shared: str) -> None:
    """They may name what hidden documents are about; a key with groups searches with them, and cannot list them."""
    admin = guarded.caller("admin", tenant="firm")
    path = f"/v1/collections/{shared}/synonyms"
    admin.ok("PUT", path, {"synonyms": [["refectory", "canteen"], ["falcon", "merger"]]})
    for groups in ([], ["all"], None):
        caller = guarded.caller("search", tenant="firm", groups=groups)
        assert "all" in caller.found(shared, query="refectory", mode="lexical", typos=False)
        reply = caller.call("GET", path)
        assert reply.status == (200 if groups is None else 403)
        assert ("falcon" in json.dumps(reply.body)) == (groups is None)
    admin.ok("DELETE", path)


def test_feedback_is_about_visible_documents(guarded: Guarded, shared: str) -> None:
    """A key with groups leaves no word on a document that it may not see, and is told the same of those as of others
    that do not exist; not even what it said before they came to be counts."""
    admin, caller = (
        guarded.caller("admin", tenant="firm"),
        guarded.caller("search", tenant="firm", groups=["x"]),
    )
    path = f"/v1/collections/{shared}/feedback"
    for document_id in ("board", "later"):
        sent = [{"query": "noon", "document_id": document_id, "grade": 0}]
        assert caller.ok("POST", path, {"feedback": sent}) == {"kept": 0, "unknown": [document_id]}
    opened = {"query": "noon", "document_id": "all", "shown": ["staff", "later", "all"]}
    assert caller.ok("POST", path, {"feedback": [opened]}) == {"kept": 1, "unknown": []}
    admin.write(shared, {"id": "later", "text": "A secret at noon.", "metadata": {"acl": ["board"]}})
    kept = admin.ok("GET", path)["feedback"]
    assert [(one["document_id"], one["passed"]) for one in kept] == [("all", [])]
    admin.ok("DELETE", f"/v1/collections/{shared}/documents/later")


def test_attributes_leave_the_acl_in_place(http: Http) -> None:
    """OpenAI's clients send all attributes or none, and know no lists: neither opens a document to everybody."""
    store = http.new_collection()
    http.write(store, {"id": "d", "text": "words", "metadata": {"acl": ["board", "finance"], "x": 1}})
    path = f"/v1/vector_stores/{store}/files/d"
    shown = http.ok("GET", path)["attributes"]
    for attributes in ({"x": 2}, {}, shown):
        http.ok("POST", path, {"attributes": attributes})
        stored = http.ok("GET", f"/v1/collections/{store}/documents/d")["metadata"]
        assert stored["acl"] == ["board", "finance"]
    http.ok("POST", path, {"attributes": {"acl": "board"}})
    assert http.ok("GET", f"/v1/collections/{store}/documents/d")["metadata"]["acl"] == "board"
