"""A cluster of real services: two nodes, one of them with a replica that follows it through a store."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from indexes.base.model import IndexOptions
from indexes.base.moving import MOVING, Moving, parse_moving, write_moving
from indexes.directory.catalog import Catalog
from indexes.parts.memory import cpu_s
from indexes.store.collection_log import CollectionLog
from indexes.store.directory import COLLECTIONS
from indexes.store.objects import Bucket
from indexes.store.rows import LogChange
from jobs.serving.process import ServerProcess, serving
from jobs.sources.docstrings import docstrings
from retrieval.cluster.names import read_token, shard_of_document
from retrieval.cluster.routing import OF_A_SHARD
from retrieval.server.routes import ROUTES
from tests.support.children import children
from tests.support.commands import nearline
from tests.support.http import Http, Reply
from tests.support.redis_server import free_port
from tests.support.vectors import DIMENSIONS, World, settings
from tests.support.watching import watching

pytestmark = pytest.mark.model
WORLD = World()
UP_S = 30.0
SUBJECTS = ["The gardener", "A sailor", "My neighbor", "The old miller", "A careful engineer"]
VERBS = ["paints", "repairs", "forgets", "measures", "sells", "describes", "hides"]
THINGS = [
    "the copper kettle",
    "a wooden bridge",
    "the lighthouse",
    "two clocks",
    "an orchard",
    "the harbor map",
]
WHEN = ["before sunrise", "in the winter", "without a word", "every Sunday", "after the storm"]


class KeyHttp(Http):
    """Calls with an access key."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url)
        self.token = token

    def call(self, method: str, path: str, body: object = None, **options: Any) -> Reply:
        headers: Mapping[str, str] = {
            "Authorization": f"Bearer {self.token}",
            **(options.pop("headers", None) or {}),
        }
        return super().call(method, path, body, headers=headers, **options)

    def texts(self, collection: str, **search: object) -> str:
        reply = self.call("POST", f"/v1/collections/{collection}/search", {**search, "cache": False})
        return " ".join(hit["text"] for hit in reply.body["hits"]) if reply.status == 200 else ""


@dataclass
class Cluster:
    """`a` writes, `copy` follows it, `b` is another node. `http` asks `a`, `at_b` asks `b`; `reader` may see what is
    for the group `staff`."""

    folder: Path
    ports: dict[str, int]
    environ: dict[str, str]
    services: dict[str, ServerProcess]
    keys: dict[str, str]

    def start(self, name: str) -> None:
        store = {"a": "writer", "copy": "replica"}.get(name)
        more = {} if store is None else {"NEARLINE_STORE_URL": (self.folder / "store").as_uri()}
        more |= {"NEARLINE_STORE_REPLICA": "true"} if store == "replica" else {}
        self.services[name] = ServerProcess(
            self.folder / name, {**self.environ, **more}, port=self.ports[name]
        )

    @property
    def http(self) -> KeyHttp:
        return KeyHttp(self.services["a"].url, self.keys["a"])

    @property
    def at_b(self) -> KeyHttp:
        return KeyHttp(self.services["b"].url, self.keys["b"])

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        late = time.monotonic() + UP_S
        while not is_so():
            assert time.monotonic() < late
            time.sleep(0.05)

    def wait_for_copy(self, name: str, shards: int, seq: str) -> None:
        """Wait until all services are known to have what a write was acknowledged with, and nothing moves."""
        written = {f"{name}~{at}of{shards}": seq for at, seq in read_token(seq, shards).items()}

        def has_all() -> bool:
            services = self.at_b.ok("GET", "/v1/cluster")["services"]
            held = [(one["shards"], one["moving"]) for one in services]
            return held[0] == held[1] and all(
                not moving and have.get(shard, seq) >= seq
                for have, moving in held
                for shard, seq in written.items()
            )

        self.wait_for(has_all)

    def until(self, **up: bool) -> None:
        """Wait until `a` knows which services are up."""
        urls = {f"http://127.0.0.1:{self.ports[name]}": state for name, state in up.items()}
        late = time.monotonic() + UP_S
        while time.monotonic() < late:
            found = {one["url"]: one["up"] for one in self.http.ok("GET", "/v1/cluster")["services"]}
            if all(found[url] == state for url, state in urls.items()):
                return
            time.sleep(0.05)
        raise AssertionError(f"not so within {UP_S} s: {up}")


def make_key(data: Path, *scopes: str, **only: str) -> str:
    """Make an access key; `only` are further options of the command."""
    options = [part for one in scopes for part in ("--scope", one)]
    options += [part for name, value in only.items() for part in (f"--{name}", value)]
    made = nearline("keys", "create", "--data", data, *options, "--json")
    assert made.returncode == 0, made.stderr
    key: str = json.loads(made.stdout)["key"]
    return key


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    ports = {name: free_port() for name in ("a", "copy", "b")}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    keys = {
        "a": make_key(folder / "a", "search", "write", "admin"),
        "reader": make_key(folder / "a", "search", group="staff"),
        "b": make_key(folder / "b", "search", "write", "admin"),
    }
    environ = {
        "NEARLINE_CLUSTER_NODES": json.dumps({"a": [urls["a"], urls["copy"]], "b": [urls["b"]]}),
        "NEARLINE_CLUSTER_SECRET": "between us",
        "NEARLINE_SERVER_SEARCH_PROCESSES": "2",
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent.resolve()),
    }
    found = Cluster(folder, ports, environ, {}, keys)
    try:
        for name in ("a", "copy", "b"):
            found.start(name)
        found.until(a=True, copy=True, b=True)
        yield found
    finally:
        for one in found.services.values():
            one.stop()


def sentences(count: int) -> list[dict[str, Any]]:
    rng = random.Random(7)
    made = []
    for number in range(count):
        parts = [rng.choice(some) for some in (SUBJECTS, VERBS, THINGS, WHEN)]
        made.append(
            {
                "id": f"s{number}",
                "text": f"{' '.join(parts)}, {rng.choice(VERBS)} {rng.choice(THINGS)} {rng.choice(WHEN)}, {number}.",
                "metadata": {
                    "number": number,
                    "kind": rng.choice("abc"),
                    "day": f"2026-{number % 12 + 1:02}-01",
                },
            }
        )
    return made


SEARCHES: list[dict[str, Any]] = [
    {},
    {"mode": "lexical"},
    {"mode": "dense"},
    {"mode": "dense", "exact": True},
    {"filter": {"type": "eq", "key": "kind", "value": "a"}},
    {"k": 15, "offset": 20},
    {"facets": ["kind", {"key": "number", "ranges": [0, 50, 100]}]},
    # All that match are candidates: of more, those of equal scores are in no order.
    {
        "sort": [{"key": "day", "order": "desc"}, {"key": "number"}],
        "filter": {"type": "lt", "key": "number", "value": 90},
    },
    {"boosts": [{"key": "number", "scale": "log"}]},
    {"collapse": {"key": "kind", "hits": 2}, "k": 3},
    {"mmr": 0.7},
    {"like": ["s3"]},
    {"highlight": True},
    {"expand": {"before": 1}},
]


@pytest.fixture(scope="module")
def sizes(cluster: Cluster) -> dict[int, str]:
    """The same documents in one piece, in four and in seven shards, with some deleted and some replaced."""
    names = {}
    for shards in (1, 4, 7):
        names[shards] = name = f"of-{shards}"
        cluster.http.ok("POST", "/v1/collections", {"name": name, "shards": shards})
        made = sentences(260)
        for begin in range(0, 260, 65):
            cluster.http.write(name, *made[begin : begin + 65])
        cluster.http.write(name, *({**one, "text": f"{one['text']} Again."} for one in made[10:30]))
    return names


@pytest.mark.parametrize("options", SEARCHES, ids=str)
@pytest.mark.parametrize("shards", [4, 7])
def test_shards_answer_as_one_piece_does(
    cluster: Cluster, sizes: dict[int, str], shards: int, options: dict[str, Any]
) -> None:
    """The same hits with the same scores, whichever node is asked; only equal scores may stand in another order."""
    for asked, query in (
        (cluster.http, "who repairs the lighthouse?"),
        (cluster.at_b, "copper kettles in winter"),
    ):
        search = {"query": query, "cache": False, **options}
        whole, divided = cluster.http.search(sizes[1], **search), asked.search(sizes[shards], **search)
        assert [hit["score"] for hit in divided["hits"]] == pytest.approx(
            [hit["score"] for hit in whole["hits"]], abs=2e-5
        )
        last = whole["hits"][-1]["score"]
        above = [
            {hit["document_id"] for hit in one["hits"] if hit["score"] > last + 2e-5}
            for one in (whole, divided)
        ]
        assert above[0] == above[1] or "sort" in options
        assert divided.get("facets") == whole.get("facets")
        for hit in whole["hits"]:
            same = next((one for one in divided["hits"] if one["document_id"] == hit["document_id"]), hit)
            assert (same["text"], same.get("highlights")) == (hit["text"], hit.get("highlights"))


def test_search_processes_answer_for_shards(cluster: Cluster, sizes: dict[int, str]) -> None:
    """What comes together is answered there, with the same hits. If they are killed, no search fails."""
    queries = [f"{verb} {thing}" for verb in VERBS for thing in THINGS]
    done: list[str] = []
    ended = threading.Event()

    def found(at: KeyHttp, query: str) -> list[tuple[str, Any]]:
        hits = at.search(sizes[4], query=query, cache=False)["hits"]
        return [(hit["document_id"], pytest.approx(hit["score"], abs=2e-5)) for hit in hits]

    def spent() -> float:
        return sum(cpu_s(one) for service in cluster.services.values() for one in children(service.pid))

    def search(first: int) -> None:
        for at in itertools.count(first):
            if ended.is_set():
                return
            query = queries[at % len(queries)]
            assert found((cluster.http, cluster.at_b)[at % 2], query) == wanted[query]
            done.append(query)

    wanted = {query: found(cluster.http, query) for query in queries}
    with ThreadPoolExecutor(6) as pool:
        searching = [pool.submit(search, first) for first in range(6)]
        try:
            before = spent()
            cluster.wait_for(lambda: spent() > before + 0.5)
            for service in cluster.services.values():
                for one in children(service.pid):
                    os.kill(one, signal.SIGKILL)
            killed = len(done)
            cluster.wait_for(lambda: len(done) > killed + 100)
        finally:
            ended.set()
        for searched in searching:
            searched.result()


@contextlib.contextmanager
def moved_beside_writes(cluster: Cluster, name: str, ids: Sequence[str]) -> Iterator[threading.Event]:
    """Move the four shards of a collection to and fro until the event is set, while documents get other metadata, and
    so new passages with the same words. Every move and every write succeeds."""
    ended, faults = threading.Event(), list[object]()

    def move() -> None:
        for at in range(8):
            wanted = {"shard": f"{name}~{at % 4}of4", "to": "ba"[at // 4]}
            reply = cluster.http.call("POST", "/v1/cluster/moves", wanted)
            if reply.status == 202:
                moved = cluster.http.wait_for(reply.body["job"])
                faults.extend([moved] if moved["status"] != "succeeded" else [])
            else:
                faults.extend([reply] if reply.status != 409 else [])  # it is there already
        ended.set()

    def write() -> None:
        written = 0
        while not ended.is_set():
            path = f"/v1/collections/{name}/documents/{ids[written % len(ids)]}"
            reply = cluster.at_b.call("PATCH", path, {"metadata": {"round": written}})
            faults.extend([reply] if reply.status != 200 else [])
            written += 1
        faults.extend(["nothing was written"] if not written else [])

    threads = [threading.Thread(target=one) for one in (move, write)]
    for one in threads:
        one.start()
    try:
        yield ended
    finally:
        for one in threads:
            one.join()
    assert not faults


def test_shards_answer_as_one_piece_while_they_move(cluster: Cluster, sizes: dict[int, str]) -> None:
    name, compared = sizes[4], 0
    faults: list[object] = []
    with moved_beside_writes(cluster, name, [f"s{at}" for at in range(260)]) as ended:
        while not ended.is_set() or not compared:
            for options in SEARCHES:
                asked = (cluster.http, cluster.at_b)[compared % 2]
                search = {"query": "who repairs the lighthouse?", "cache": False, **options}
                whole, divided = cluster.http.search(sizes[1], **search), asked.search(name, **search)
                scores = [[hit["score"] for hit in one["hits"]] for one in (whole, divided)]
                same = scores[1] == pytest.approx(scores[0], abs=2e-5) and whole.get("facets") == divided.get(
                    "facets"
                )
                faults.extend([] if same else [(options, scores, whole.get("facets"), divided.get("facets"))])
                compared += 1
    assert not faults
    assert compared >= len(SEARCHES)


def recall_of(asked: Http, name: str) -> float:
    """Return the share of the true neighbors of some queries that approximate searches find."""
    queries = [{"vector": one, "mode": "dense"} for one in WORLD.queries(40).tolist()]
    found: list[list[set[str]]] = []
    for exact in (True, False):
        batch = [{**one, "exact": exact, "cache": False} for one in queries]
        answers = asked.ok("POST", f"/v1/collections/{name}/search/batch", {"searches": batch})["results"]
        found.append([{hit["document_id"] for hit in one["hits"]} for one in answers])
    pairs = list(zip(*found, strict=True))
    return sum(len(true & near) for true, near in pairs) / sum(len(true) for true, _ in pairs)


@pytest.fixture(scope="module")
def in_tiers(cluster: Cluster) -> dict[int, str]:
    """The same vectors in one piece, in four and in seven shards: most of them cold, some hot, some replaced and
    deleted since the indexes were built."""
    names = {}
    for shards in (1, 4, 7):
        names[shards] = name = f"near-{shards}"
        wanted = {"name": name, "shards": shards, "dimensions": DIMENSIONS, "hot_capacity": 700}
        cluster.http.ok("POST", "/v1/collections", wanted)
        for begin in range(0, 3500, 700):
            cluster.http.write(name, *vectors(range(begin, begin + 700)))
        built = cluster.http.wait_for(cluster.http.ok("POST", f"/v1/collections/{name}/reindex")["job"])
        assert built["status"] == "succeeded"
        cluster.http.write(name, *vectors(range(200), version=1))
        gone = [f"d{number}" for number in range(1000, 1100)]
        cluster.http.ok("POST", f"/v1/collections/{name}/documents/delete", {"ids": gone})
    return names


def vectors(numbers: range, version: int = 0) -> list[dict[str, Any]]:
    found = {number: WORLD.vector(number, version, 0).tolist() for number in numbers}
    return [{"id": f"d{at}", "text": f"{at}", "vector": one} for at, one in found.items()]


@pytest.mark.parametrize("shards", [4, 7])
def test_approximate_searches_find_no_less_in_shards(
    cluster: Cluster, in_tiers: dict[int, str], shards: int
) -> None:
    """Whichever node is asked, it finds as many of the true neighbors as one piece does."""
    whole = recall_of(cluster.http, in_tiers[1])
    search = {"vector": WORLD.vector(7).tolist(), "mode": "dense", "cache": False}
    assert "cold" in cluster.http.search(in_tiers[shards], **search)["receipt"]["tiers"]
    assert min(recall_of(one, in_tiers[shards]) for one in (cluster.http, cluster.at_b)) >= whole >= 0.95


def test_approximate_searches_find_no_less_while_shards_move(
    cluster: Cluster, in_tiers: dict[int, str]
) -> None:
    """Documents are written beside the searches, as they are but with other metadata."""
    whole, found = recall_of(cluster.http, in_tiers[1]), list[float]()
    with moved_beside_writes(cluster, in_tiers[4], [f"d{at}" for at in range(900)]) as ended:
        while not ended.is_set() or not found:
            found += [recall_of(one, in_tiers[4]) for one in (cluster.http, cluster.at_b)]
    assert min(found) >= whole


def test_a_filter_chooses_at_every_shard_while_they_move(cluster: Cluster) -> None:
    """What matches is changed and deleted wherever it is written: a replica may not have it yet."""
    callers = cluster.http, cluster.at_b
    cluster.http.ok("POST", "/v1/collections", {"name": "marked", "shards": 4})
    written = [{"id": str(one), "text": f"number {one}", "metadata": {"g": "x"}} for one in range(40)]
    marked: dict[str, Any] = {"filter": {"type": "eq", "key": "g", "value": "x"}}
    ended, faults = threading.Event(), list[object]()

    def change() -> None:
        for at in itertools.count():
            if ended.is_set():
                return
            http = callers[at % 2]
            http.write("marked", *written)
            for path, body, counted in (
                ("patch", {**marked, "metadata": {"v": at}}, "changed"),
                ("delete", marked, "deleted"),
            ):
                reply = callers[(at + 1) % 2].call("POST", f"/v1/collections/marked/documents/{path}", body)
                if reply.status != 200 or reply.body[counted] != 40:
                    faults.append((at, path, reply))

    with ThreadPoolExecutor() as pool:
        changing = pool.submit(change)
        try:
            for to in "ba":
                move_all(cluster.http, "marked", 4, to)
        finally:
            ended.set()
        changing.result()
    assert faults == []
    # A key that only one shard knows.
    cluster.http.write("marked", *written, {"id": "only", "text": "number 7", "metadata": {"rare": 1}})
    rare = {"type": "eq", "key": "rare", "value": 1}
    for more in ({}, {"exact": True, "mode": "dense"}, {"facets": ["g"]}, {"facets": ["rare"]}):
        found = cluster.at_b.search("marked", query="number", filter=rare, cache=False, **more)
        assert [one["document_id"] for one in found["hits"]] == ["only"], more
    for path, body in (("patch", {"metadata": {"v": 1}}), ("delete", {})):
        for wanted in (rare, {**rare, "key": "nowhere"}):
            reply = cluster.at_b.call(
                "POST", f"/v1/collections/marked/documents/{path}", {"filter": wanted, **body}
            )
            expected = (200, None) if wanted is rare else (422, "filter")
            assert (reply.status, reply.body.get("error", {}).get("param")) == expected, reply
    # So many changes may have begun a rebuild.
    cluster.wait_for(lambda: cluster.http.call("DELETE", "/v1/collections/marked").status == 204)


def test_a_key_that_few_shards_know_matches_nothing_in_the_others(cluster: Cluster) -> None:
    """Documents of those shards are not equal to any value of it, so they match `ne` and `not`, as in one piece. Facets
    count true and 1 apart."""
    http = cluster.http
    made: list[dict[str, Any]] = [
        {"id": f"k{at}", "text": f"Key {at}.", "metadata": {"n": at, "mixed": [1, True, 0, False][at % 4]}}
        for at in range(30)
    ]
    made[0]["metadata"]["flag"] = True
    made[1]["metadata"]["n"] = "text"
    for name, shards in (("keyed-1", {}), ("keyed-3", {"shards": 3})):
        http.ok("POST", "/v1/collections", {"name": name, **shards})
        http.write(name, *made)
    flagged = {"type": "eq", "key": "flag", "value": True}
    unflagged = {**flagged, "type": "ne"}
    for condition in (
        {"type": "not", "filter": flagged},
        unflagged,
        {"type": "or", "filters": [flagged, {"type": "gte", "key": "n", "value": 10}]},
        {"type": "nin", "key": "n", "value": ["text"]},
    ):
        one, three = (
            asked.ok("POST", f"/v1/collections/{name}/documents/count", {"filter": condition})
            for asked, name in ((http, "keyed-1"), (cluster.at_b, "keyed-3"))
        )
        assert one["documents"] == three["documents"] > 1, condition
    facets = [
        http.search(name, query="key", facets=["mixed"], k=1)["facets"] for name in ("keyed-1", "keyed-3")
    ]
    assert facets[0] == facets[1]
    path = "/v1/collections/keyed-3/documents"
    patched = cluster.at_b.ok("POST", f"{path}/patch", {"filter": unflagged, "metadata": {"seen": 1}})
    assert patched["changed"] == 29
    assert cluster.at_b.ok("POST", f"{path}/delete", {"filter": unflagged})["deleted"] == 29
    assert [one["id"] for one in http.ok("GET", path)["documents"]] == ["k0"]


@pytest.mark.parametrize("way", ["list", "scroll"])
def test_a_cursor_belongs_to_the_documents_it_came_from(cluster: Cluster, way: str) -> None:
    """It is refused by a collection that was created again under the same name. Renaming changes nothing."""
    http, made = cluster.http, [{"id": f"c{at}", "text": f"Cursor {at}."} for at in range(30)]

    def page(name: str, cursor: str | None = None) -> Any:
        path = f"/v1/collections/{name}/documents"
        if way == "scroll":
            return http.call("POST", f"{path}/scroll", {"limit": 14, "cursor": cursor}).body
        return http.call("GET", f"{path}?limit=14" + (f"&cursor={cursor}" if cursor else "")).body

    key = "cursor" if way == "scroll" else "next_cursor"
    name, other = f"cursors-{way}", f"renamed-{way}"
    http.ok("POST", "/v1/collections", {"name": name, "shards": 3})
    http.write(name, *made)
    first = page(name)
    http.ok("POST", f"/v1/collections/{name}/rename", {"name": other})
    second = page(other, first[key])
    third = page(other, second[key])
    assert len({one["id"] for some in (first, second, third) for one in some["documents"]}) == 30
    http.ok("DELETE", f"/v1/collections/{other}")
    http.ok("POST", "/v1/collections", {"name": other, "shards": 3})
    http.write(other, *made)
    cluster.wait_for(lambda: page(other, first[key]).get("error", {}).get("param") == "cursor")


def test_a_replica_that_is_behind_shows_no_older_version(cluster: Cluster) -> None:
    """While the node that acknowledged a newer version of a document is away, reading the document by its id fails."""
    at_b, name = cluster.at_b, "versions"
    at_b.ok("POST", "/v1/collections", {"name": name, "shards": 4})
    at_a = next(
        number for number in range(4) for one in at_b.ok("GET", "/v1/cluster")["services"]
        if one["node"] == "a" and f"{name}~{number}of4" in one["shards"]
    )  # fmt: skip
    document = next(
        one for one in (f"v{number}" for number in range(100)) if shard_of_document(one, 4) == at_a
    )
    written = at_b.write(name, {"id": document, "text": "The old version."})
    cluster.wait_for_copy(name, 4, written["seq"])
    copy = cluster.services["copy"].pid
    os.kill(copy, signal.SIGSTOP)
    try:
        at_b.write(name, {"id": document, "text": "The new version."})
        cluster.services["a"].kill()
    finally:
        os.kill(copy, signal.SIGCONT)
    try:
        seen = set()
        for _ in range(10):
            reply = at_b.call("GET", f"/v1/collections/{name}/documents/{document}")
            seen.add(reply.body.get("text", reply.status))
        assert seen <= {"The new version.", 503}
    finally:
        cluster.start("a")
    cluster.until(a=True)
    path = f"/v1/collections/{name}/documents/{document}"
    cluster.wait_for(lambda: "new" in at_b.call("GET", path).body.get("text", ""))


def test_several_collections_are_searched_together(cluster: Cluster) -> None:
    """One in a piece, and one in shards, with the ranking of two in a piece."""
    http, made = cluster.http, sentences(80)
    for name, shards in (("left", 1), ("right", 1), ("right-4", 4)):
        http.ok("POST", "/v1/collections", {"name": name, "shards": shards})
        http.write(name, *made[:40] if name == "left" else made[40:])
    for options in ({}, {"mode": "lexical"}, {"mode": "dense"}, {"k": 30, "group_by_document": True}):
        search = {"query": "who repairs the lighthouse?", **options}
        whole, divided = (
            http.ok("POST", "/v1/search", {**search, "collections": ["left", other]})
            for other in ("right", "right-4")
        )
        scores = [[hit["score"] for hit in one["hits"]] for one in (whole, divided)]
        assert scores[1] == pytest.approx(scores[0], abs=2e-5)
        assert {hit["collection"] for hit in divided["hits"]} == {"left", "right-4"}
        assert [one["collection"] for one in divided["receipts"]] == ["left", "right-4"]
        assert divided["receipts"][0]["seq"] == whole["receipts"][0]["seq"]
    assert len(divided["receipts"][1]["seq"].split("-")) == 4
    twice = http.call("POST", "/v1/search", {"query": "x", "collections": ["right-4", "left", "right-4"]})
    assert (twice.status, twice.body["error"]["param"]) == (422, "collections[2]")
    absent = http.call("POST", "/v1/search", {"query": "x", "collections": ["right-4", "nowhere"]})
    assert (absent.status, absent.body["error"]["param"]) == (404, "collections[1]")


def test_a_vector_store_is_searched_as_in_one_piece(cluster: Cluster, sizes: dict[int, str]) -> None:
    """Several queries, filters and thresholds of OpenAI's; what is wrong is named as OpenAI names it."""
    asked = {
        "query": ["the copper kettle in the winter", "two clocks"],
        "max_num_results": 7,
        "filters": {"type": "gte", "key": "number", "value": 3},
        "ranking_options": {"score_threshold": 0.01},
    }
    paths = [f"/v1/vector_stores/{sizes[shards]}/search" for shards in (1, 4)]
    whole, sharded = [cluster.http.ok("POST", path, asked) for path in paths]
    assert len(sharded["data"]) == 7
    assert [(one["file_id"], pytest.approx(one["score"], abs=1e-3)) for one in sharded["data"]] == [
        (one["file_id"], one["score"]) for one in whole["data"]
    ]
    wrong = cluster.at_b.call("POST", paths[1], {**asked, "filters": {"type": "eq", "key": "no", "value": 1}})
    assert (wrong.status, wrong.body["error"]["param"]) == (400, "filters")
    assert cluster.http.call("GET", f"/v1/vector_stores/{sizes[4]}").status == 409
    listed = [one["id"] for one in cluster.http.ok("GET", "/v1/vector_stores?limit=100")["data"]]
    assert sizes[1] in listed
    assert not any(one.startswith(sizes[4]) for one in listed)


def test_an_action_is_assessed_as_in_one_piece(cluster: Cluster, sizes: dict[int, str]) -> None:
    """The same similar events count, and so does the share of all events that ended badly."""
    wanted = {
        "action": "Somebody repairs the lighthouse.",
        "outcome": {"key": "kind", "bad": ["a"]},
        "neighbors": 20,
    }
    whole, divided = (
        cluster.at_b.ok("POST", f"/v1/collections/{sizes[shards]}/assess", wanted)
        if shards > 1
        else cluster.http.ok("POST", f"/v1/collections/{sizes[shards]}/assess", wanted)
        for shards in (1, 4)
    )
    assert divided["base_rate"] == whole["base_rate"]
    assert divided["risk_score"] == pytest.approx(whole["risk_score"], abs=1e-3)
    assert whole["risk_score"] > 0
    reply = cluster.http.call(
        "POST", f"/v1/collections/{sizes[4]}/assess", wanted | {"outcome": {"key": "nowhere", "bad": ["a"]}}
    )
    assert (reply.status, reply.body["error"]["param"]) == (422, "outcome")


@pytest.mark.slow
def test_documents_are_written_read_changed_and_deleted(cluster: Cluster) -> None:
    http, other = cluster.http, cluster.at_b
    http.ok("POST", "/v1/collections", {"name": "books", "shards": 5})
    made = sentences(60)
    assert other.call("POST", "/v1/collections", {"name": "books", "shards": 5}).status == 409
    written = other.write(
        "books", *made, {"id": 7, "text": "A number as an id.", "metadata": {"only": "here"}}
    )
    assert (written["documents"], written["unchanged"]) == (61, 0)
    assert http.write("books", *made)["unchanged"] == 60
    assert http.ok("GET", "/v1/collections/books/documents/7")["text"] == "A number as an id."
    assert http.call("GET", "/v1/collections/books/documents/nothing").status == 404
    assert other.found("books", query="an id that is a number", min_seq=written["seq"])[0] == "7"
    # The filter's key is known to the shard of one document alone.
    only = {"type": "exists", "key": "only"}
    assert http.ok("POST", "/v1/collections/books/documents/count", {"filter": only})["documents"] == 1
    patched = http.ok(
        "POST", "/v1/collections/books/documents/patch", {"filter": only, "metadata": {"read": True}}
    )
    assert patched["changed"] == 1
    assert other.ok("GET", "/v1/collections/books/documents/7")["metadata"] == {"only": "here", "read": True}
    path, seen = "/v1/collections/books/documents/scroll", list[str]()
    cursor = None
    while True:
        page = other.ok("POST", path, {"limit": 17, **({"cursor": cursor} if cursor else {})})
        seen += [one["id"] for one in page["documents"]]
        if (cursor := page["cursor"]) is None:
            break
    assert sorted(seen) == sorted(["7", *(one["id"] for one in made)])
    gone = http.ok("POST", "/v1/collections/books/documents/delete", {"ids": ["s1", "s2", "s3", "absent"]})
    assert gone["deleted"] == 3
    assert http.ok("DELETE", "/v1/collections/books/documents/s4")["deleted"] == 1
    late = {"type": "gte", "key": "number", "value": 30}
    assert other.ok("POST", "/v1/collections/books/documents/delete", {"filter": late})["deleted"] == 30
    shown = http.ok("GET", "/v1/collections/books")
    assert (shown["documents"], len(shown["shards"])) == (27, 5)
    assert {one["node"] for one in shown["shards"]} == {"a", "b"}
    job = http.reindex("books")
    assert (job["status"], job["collection"]) == ("succeeded", "books")
    assert http.ok("GET", "/v1/collections/books")["generation"] > 0
    assert (
        "no earlier generation"
        in other.call("POST", "/v1/collections/books/rollback").body["error"]["message"]
    )
    assert http.reindex("books")["status"] == "succeeded"
    rolled = other.ok("POST", "/v1/collections/books/rollback")["generation"]
    assert rolled == http.ok("GET", "/v1/collections/books")["generation"] < 4
    asked = cluster.folder / "asked.jsonl"
    asked.write_text("\n".join(json.dumps({"id": one["id"], "text": one["text"]}) for one in sentences(40)))
    options = ("--recall-target", "0.95", "--queries", asked, "--url", other.url)
    tuned = nearline("tune", "-c", "books", *options, NEARLINE_KEY=other.token)
    assert tuned.stdout.count("in use now") == 5, tuned
    assert other.call("GET", "/v1/collections/books/evaluation").status == 404
    http.ok("PUT", "/v1/collections/books/evaluation", {"report": {"recall": 1.0}})
    assert other.ok("GET", "/v1/collections/books/evaluation")["report"] == {"recall": 1.0}
    http.ok("PUT", "/v1/collections/books/synonyms", {"synonyms": [["zymurgy", "kettle"]]})
    cluster.wait_for(lambda: "kettle" in other.texts("books", query="zymurgy", mode="lexical"))
    http.ok("DELETE", "/v1/collections/books")
    assert other.call("GET", "/v1/collections/books").status == 404


KIND = {"type": "exists", "key": "kind"}


def test_a_hold_refuses_writes_to_all_shards_at_once(cluster: Cluster, sizes: dict[int, str]) -> None:
    """No node sends them again by itself: when it ends, they may belong to another collection."""
    path = f"/v1/collections/{sizes[4]}"
    for http in (cluster.http, cluster.at_b):
        cluster.http.ok("PUT", f"{path}/hold", {"seconds": 60})
        for method, where, body in (
            ("POST", "documents", {"documents": [{"id": f"h{at}", "text": "held"} for at in range(8)]}),
            ("PATCH", "documents/h0", {"metadata": {"x": 1}}),
            ("DELETE", "documents/h0", None),
            ("POST", "documents/delete", {"ids": ["h0", "h1"]}),
        ):
            reply = http.call(method, f"{path}/{where}", body)
            assert (reply.status, reply.body["error"]["type"]) == (503, "writes_held"), reply
        seq = cluster.http.ok("PUT", f"{path}/hold", {"seconds": 0})["seq"]
        assert seq == cluster.http.ok("GET", path)["seq"]


def test_errors_are_those_of_the_whole_request(cluster: Cluster, sizes: dict[int, str]) -> None:
    http, name = cluster.http, sizes[4]
    documents = [{"id": f"e{number}", "text": "fine"} for number in range(8)] + [{"id": "e8", "text": ""}]
    refused = http.call("POST", f"/v1/collections/{name}/documents", {"documents": documents})
    assert (refused.status, refused.body["error"]["param"]) == (422, "documents[8].text")
    assert "send the request again" in refused.body["error"]["message"]
    wrong = [
        ("search", {"query": "x", "sort": [{"key": "nowhere"}]}, "sort[0].key"),
        ("search", {"query": "x", "filter": {"type": "eq", "key": "nowhere", "value": 1}}, "filter"),
        ("search", {"query": "x", "min_seq": 5}, "min_seq"),
        ("search", {"query": "x", "facets": ["nowhere"]}, "facets[0]"),
        ("search", {"query": "x", "facets": ["kind", "nowhere"], "filter": KIND}, "facets[1]"),
        ("documents/scroll", {"cursor": "bm9uc2Vuc2U"}, "cursor"),
        ("documents", {"documents": []}, "documents"),
    ]
    for path, body, param in wrong:
        reply = http.call("POST", f"/v1/collections/{name}/{path}", body)
        assert (reply.status, reply.body["error"]["param"]) == (422, param), reply
    assert (
        http.call("POST", f"/v1/collections/{sizes[1]}/search", {"query": "x", "min_seq": "0.1"}).status
        == 422
    )
    # What belongs to a shard is not for a writer to say.
    shard = next(
        one["name"] for one in http.ok("GET", f"/v1/collections/{name}")["shards"] if one["node"] == "a"
    )
    changing = [one for one in ROUTES if one.scope in ("write", "admin") and one.method != "GET"]
    of_collections = [one for one in changing if "{collection}" in one.path and one.handler not in OF_A_SHARD]
    assert len(of_collections) > 15
    for route in of_collections:
        path = re.sub(r"{\w+}", "0", route.path.replace("{collection}", shard))
        direct = http.call(route.method, path, {})
        assert (direct.status, direct.body["error"]["param"]) == (409, "collection"), route


def test_feedback_is_kept_with_the_documents_it_is_about(cluster: Cluster) -> None:
    """Through any service, as in one piece: nothing about documents that are not there or that a key may not see, also
    not that they were passed. It moves with its shard."""
    http, at_b, kept = cluster.http, cluster.at_b, "/v1/collections/judged/feedback"
    http.ok("POST", "/v1/collections", {"name": "judged", "shards": 4})
    documents: list[dict[str, Any]] = [
        {"id": f"j{at}", "text": f"A note about {THINGS[at % 6]}."} for at in range(12)
    ]
    for one, group in (("s", "staff"), ("x", "board")):
        documents.append({"id": one, "text": f"For the {group}.", "metadata": {"acl": [group]}})
    http.ok("POST", "/v1/collections/judged/documents", {"documents": documents})
    sent = [{"query": f"note {at}", "document_id": f"j{at}", "grade": at % 4} for at in range(12)]
    assert at_b.ok(
        "POST", kept, {"feedback": [*sent, {"query": "gone", "document_id": "none", "grade": 1}]}
    ) == {
        "kept": 12,
        "unknown": ["none"],
    }
    seen = [f"j{at}" for at in range(12)]
    clicks = [{"query": "clicked", "document_id": "s", "shown": [*seen, "x", "none", "s"]}]
    clicks += [{"query": "clicked", "document_id": "x", "shown": ["j1", "x"]}]
    reader = KeyHttp(http.url, cluster.keys["reader"])
    assert reader.ok("POST", kept, {"feedback": clicks}) == {"kept": 1, "unknown": ["x"]}
    clicked = {"query": "clicked", "document_id": "s", "grade": None, "passed": seen}

    def found(at: KeyHttp) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = at.ok("GET", kept)["feedback"]
        assert [one.pop("time_ms") for one in at.ok("GET", kept)["feedback"]] == sorted(
            one.pop("time_ms") for one in entries
        )
        return entries

    assert found(http)[-1] == clicked
    assert sorted(found(at_b), key=str) == sorted(
        [*({**one, "passed": []} for one in sent), clicked], key=str
    )
    wrong = at_b.call("POST", kept, {"feedback": [sent[0], {**sent[1], "query": " "}]})
    assert (wrong.status, wrong.body["error"]["param"]) == (422, "feedback[1].query")
    assert len(found(http)) == 13
    # Beside moves, what was acknowledged is kept once.
    late: list[str] = []
    moving = threading.Event()

    def judge() -> None:
        while not moving.is_set():
            query = f"late {len(late)}"
            several = [{"query": query, "document_id": one, "grade": 2} for one in seen]
            assert at_b.ok("POST", kept, {"feedback": several}) == {"kept": 12, "unknown": []}
            late.append(query)

    with ThreadPoolExecutor() as pool:
        judging = pool.submit(judge)
        try:
            move_all(http, "judged", 4, to="b")
            move_all(http, "judged", 4, to="a")
        finally:
            moving.set()
        judging.result()
    entries = found(http)
    assert Counter(one["query"] for one in entries if one["query"].startswith("late")) == dict.fromkeys(
        late, 12
    )
    assert len(entries) == 13 + 12 * len(late)
    at_b.ok("DELETE", kept)
    assert found(http) == []


def test_a_collection_in_shards_is_renamed(cluster: Cluster) -> None:
    """By any service, beside searches and writes through an alias: they are answered, or refused for a moment, and what
    was acknowledged stays."""
    http, at_b = cluster.http, cluster.at_b
    http.ok("POST", "/v1/collections", {"name": "old", "shards": 4})
    http.ok("PUT", "/v1/aliases/current", {"collection": "old"})
    at_b.write("old", *({"id": f"o{at}", "text": f"Note {at}: {THINGS[at % 6]}."} for at in range(40)))
    question = {"query": "note about the lighthouse", "mode": "lexical", "k": 40}
    before = [hit["document_id"] for hit in http.ok("POST", "/v1/collections/old/search", question)["hits"]]
    over, statuses, written = threading.Event(), set[int](), list[str]()

    def search() -> None:
        while not over.is_set():
            reply = http.call(
                "POST", "/v1/collections/current/search", {"query": "kettle", "mode": "lexical"}
            )
            statuses.add(reply.status)
            assert reply.status != 200 or reply.body["hits"]

    def write() -> None:
        while not over.is_set():
            document = {"id": f"w{len(written)}", "text": "Written beside it."}
            reply = at_b.call("POST", "/v1/collections/current/documents", {"documents": [document]})
            statuses.add(reply.status)
            written.extend([document["id"]] if reply.status == 200 else [])

    with ThreadPoolExecutor() as pool:
        beside = [pool.submit(search), pool.submit(write)]
        try:
            for at, (known, name) in enumerate([("old", "new"), ("new", "old"), ("old", "new")]):
                renamed = (http, at_b)[at % 2].ok("POST", f"/v1/collections/{known}/rename", {"name": name})
                assert (renamed["name"], len(renamed["shards"])) == (name, 4)
        finally:
            over.set()
        for one in beside:
            one.result()
    assert 200 in statuses <= {200, 404, 503}, statuses
    assert written
    for asked in (http, at_b):
        cluster.wait_for(partial(is_gone, asked, "old"))
        assert all(
            asked.ok("GET", f"/v1/collections/current/documents/{one}")["id"] == one for one in written
        )
        found = asked.ok("POST", "/v1/collections/new/search", question)["hits"]
        assert [one["document_id"] for one in found if one["document_id"][0] == "o"] == before
    http.ok("POST", "/v1/collections", {"name": "other"})
    wrong = [("new", "other", 409), ("new", "current", 409), ("new", "new", 409), ("new", "No~", 422)]
    for known, name, status in [*wrong, ("current", "third", 404), ("old", "third", 404)]:
        reply = at_b.call("POST", f"/v1/collections/{known}/rename", {"name": name})
        assert (reply.status, reply.body["error"]["param"]) == (
            status,
            "collection" if status == 404 else "name",
        )
    # A service has died in the middle of it: the same request goes on.
    placed = {one["name"]: one["node"] for one in http.ok("GET", "/v1/collections/new")["shards"]}
    first = cluster.services[placed["new~0of4"]].url
    secret = {"X-Nearline-Cluster": cluster.environ["NEARLINE_CLUSTER_SECRET"]}
    half = Http(first).call("POST", "/v1/collections/new~0of4/rename", {"name": "end~0of4"}, headers=secret)
    assert half.status == 200
    assert len(at_b.ok("POST", "/v1/collections/new/rename", {"name": "end"})["shards"]) == 4
    found = at_b.ok("POST", "/v1/collections/end/search", question)["hits"]
    assert [one["document_id"] for one in found if one["document_id"][0] == "o"] == before
    http.ok("DELETE", "/v1/aliases/current")
    # One node has something of that name: the shards of the other have their old name again.
    last = next(one for one, node in placed.items() if node != placed["new~0of4"]).partition("~")[2]
    (cluster.folder / placed[f"new~{last}"] / f"never~{last}").mkdir()
    refused = at_b.call("POST", "/v1/collections/end/rename", {"name": "never"})
    assert (refused.status, refused.body["error"]["param"]) == (409, "name")
    assert len(http.ok("GET", "/v1/collections/end")["shards"]) == 4
    assert is_gone(http, "never")
    # A shard that cannot be renamed or deleted: all keep their name, and are there.
    job = Http(first).call("POST", "/v1/collections/end~0of4/reindex", {}, headers=secret).body["job"]
    for method, path, body in (("POST", "end/rename", {"name": "never"}), ("DELETE", "end", None)):
        refused = at_b.call(method, f"/v1/collections/{path}", body)
        assert (refused.status, refused.body["error"]["param"]) == (409, "collection")
        assert job in refused.body["error"]["message"]
        assert at_b.call("GET", "/v1/collections/never").status == 404
        assert len(at_b.ok("GET", "/v1/collections/end")["shards"]) == 4
    cluster.wait_for(lambda: http.call("DELETE", "/v1/collections/end").status == 204)


def is_gone(http: KeyHttp, name: str) -> bool:
    return http.call("GET", f"/v1/collections/{name}").status == 404


def test_words_of_titles_count_as_chosen_at_every_shard(cluster: Cluster) -> None:
    """Each shard is created with the weights that the collection is."""
    http, weights = cluster.http, {"title": 3, "heading": 1}
    scores = {}
    for shards in (1, 3):
        name = f"weighed-{shards}"
        made = http.ok("POST", "/v1/collections", {"name": name, "shards": shards, "field_weights": weights})
        assert made["field_weights"] == weights
        http.write(name, *({"id": f"d{n}", "title": f"Kettle {n}", "text": "It boils."} for n in range(9)))
        hits = http.search(name, query="kettle", mode="lexical", collapse=False, k=9)["hits"]
        scores[shards] = sorted((hit["document_id"], hit["score"]) for hit in hits)
        http.ok("DELETE", f"/v1/collections/{name}")
    assert scores[3] == scores[1]


def test_a_name_means_one_collection(cluster: Cluster) -> None:
    """Wherever it is: in shards, in one piece, or as an alias. A shard is not deleted or created by itself."""
    http, at_b = cluster.http, cluster.at_b
    http.ok("POST", "/v1/collections", {"name": "piece"})
    http.ok("POST", "/v1/collections", {"name": "parts", "shards": 2})
    conflicts = [
        at_b.call("POST", "/v1/collections", {"name": "piece", "shards": 2}),
        at_b.call("POST", "/v1/collections", {"name": "parts"}),
        at_b.call("POST", "/v1/collections", {"name": "parts", "shards": 3}),
        http.call("PUT", "/v1/aliases/parts", {"collection": "piece"}),
        *(asked.call("DELETE", "/v1/collections/parts~0of2") for asked in (http, at_b)),
    ]
    assert sorted(one.status for one in conflicts) == [
        404,
        409,
        409,
        409,
        409,
        409,
    ]  # one node does not have it
    assert http.call("POST", "/v1/collections", {"name": "other~0of2"}).status == 422
    assert http.call("GET", "/v1/collections/parts/documents/%2E%2E").status == 404
    late = at_b.call(
        "POST", "/v1/collections/parts/search", {"query": "x", "min_seq": "0.9", "deadline_ms": 200}
    )
    assert (late.status, late.body["error"]["type"]) == (503, "deadline_exceeded")
    http.ok("DELETE", "/v1/collections/parts")
    assert at_b.call("GET", "/v1/collections/parts").status == 404


def test_an_alias_moves_from_one_collection_to_another(cluster: Cluster) -> None:
    """It is known at all services, goes where the first shard goes, and means one collection at any time."""
    http, at_b = cluster.http, cluster.at_b
    for name in ("old", "new"):
        http.ok("POST", "/v1/collections", {"name": name, "shards": 2})
        http.write(name, {"id": "1", "text": f"the {name} one"})
    http.ok("PUT", "/v1/aliases/live", {"collection": "old"})
    cluster.wait_for(lambda: "old" in at_b.texts("live", query="the one"))
    at_b.write("live", {"id": "2", "text": "the old one again"})
    at_b.ok("PUT", "/v1/aliases/live", {"collection": "new"})
    assert "new" in at_b.texts("live", query="the one")
    cluster.wait_for(lambda: "new" in http.texts("live", query="the one"))
    assert [http.ok("GET", f"/v1/collections/{name}")["aliases"] for name in ("old", "live")] == [
        [],
        ["live"],
    ]
    first = next(one for one in http.ok("GET", "/v1/collections/new")["shards"] if one["name"] == "new~0of2")
    other = {"a": "b", "b": "a"}[first["node"]]
    job = http.ok("POST", "/v1/cluster/moves", {"shard": "new~0of2", "to": other})["job"]
    moved = http.wait_for(job)
    assert moved["result"]["moved"] == [{"shard": "new~0of2", "from": first["node"], "to": other}], moved
    assert "new" in http.texts("live", query="the one")
    refused = [
        http.call("DELETE", "/v1/collections/new"),
        http.call("POST", "/v1/collections", {"name": "live"}),
        http.call("POST", "/v1/collections", {"name": "live", "shards": 2}),
        http.call("PUT", "/v1/aliases/old", {"collection": "new"}),
    ]
    assert [one.status for one in refused] == [409] * 4
    assert http.call("PUT", "/v1/aliases/live", {"collection": "absent"}).status in (404, 409)
    # From shards to one piece and back: it means one of the two at any time.
    http.ok("POST", "/v1/collections", {"name": "single"})
    http.write("single", {"id": "1", "text": "the single one"})
    over = threading.Event()

    def search() -> set[str]:
        seen = set[str]()
        while not over.is_set():
            wanted = {"query": "the one", "cache": False}
            reply = http.call("POST", "/v1/collections/live/search", wanted)
            seen |= {*json.dumps(reply.body).split()} & {"new", "single"} or {json.dumps(reply.body)}
        return seen

    with ThreadPoolExecutor() as pool:
        searching = pool.submit(search)
        try:
            for name in ("single", "new", "single", "new"):
                http.ok("PUT", "/v1/aliases/live", {"collection": name})
                assert name in http.texts("live", query="the one")
                cluster.wait_for(partial(is_gone, at_b, "live") if name == "single" else lambda: True)
        finally:
            over.set()
        assert searching.result() == {"new", "single"}
    cluster.wait_for(lambda: "new" in at_b.texts("live", query="the one"))
    http.ok("DELETE", "/v1/aliases/live")
    assert http.call("POST", "/v1/collections/live/search", {"query": "x"}).status == 404
    assert http.call("DELETE", "/v1/aliases/live").status == 404
    for name in ("old", "new", "single"):
        http.ok("DELETE", f"/v1/collections/{name}")


def is_known(caller: KeyHttp) -> bool:
    """Whether a service has read the key that was just made."""
    return caller.call("GET", "/v1/collections").status == 200


def test_keys_and_groups_hold(cluster: Cluster) -> None:
    """Nodes ask each other with the secret alone; a key that sees some documents sees no others, wherever they are."""
    http = cluster.http
    http.ok("POST", "/v1/collections", {"name": "memos", "shards": 3})
    http.write(
        "memos",
        *({"id": f"open{n}", "text": f"memo {n} about parking"} for n in range(6)),
        *(
            {"id": f"staff{n}", "text": f"memo {n} about parking", "metadata": {"acl": ["staff"]}}
            for n in range(6)
        ),
        *(
            {"id": f"board{n}", "text": f"memo {n} about parking", "metadata": {"acl": ["board"]}}
            for n in range(6)
        ),
    )
    reader = KeyHttp(http.url, cluster.keys["reader"])
    found = reader.found("memos", query="memo about parking", k=18, collapse=False)
    assert sorted(found) == sorted(f"{kind}{n}" for kind in ("open", "staff") for n in range(6))
    assert reader.ok("POST", "/v1/collections/memos/documents/count", {})["documents"] == 12
    assert reader.ok("GET", "/v1/collections/memos/documents/staff1")["id"] == "staff1"
    assert reader.call("GET", "/v1/collections/memos/documents/board1").status == 404
    listed = reader.ok("GET", "/v1/collections/memos/documents?limit=100")["documents"]
    assert len(listed) == 12
    assert reader.call("GET", "/v1/collections/memos").status == 403
    for secret in ("another", "open", ""):
        reply = Http(http.url).call("GET", "/v1/shards", headers={"X-Nearline-Cluster": secret})
        assert reply.status == 401, secret
    for method, path in (("PUT", ""), ("GET", ""), ("POST", "/changes"), ("GET", "/indexes")):
        assert Http(http.url).call(method, f"/v1/shards/memos~0of3{path}").status == 401
    as_node = {"X-Nearline-Cluster": "between us"}
    changes = "/v1/shards/memos~0of3/changes"
    assert Http(http.url).call("POST", changes, raw=b"x", headers=as_node).status == 400
    assert Http(http.url).call("GET", "/v1/shards", headers=as_node).status == 400  # no WebSocket
    # Not for keys, which see the collections of a tenant, or some.
    acme = make_key(cluster.folder / "a", "search", "write", "admin", tenant="acme")
    bound = make_key(cluster.folder / "a", "search", "write", "admin", collection="memos")
    for key in (acme, bound, cluster.keys["a"]):
        caller = KeyHttp(http.url, key)
        cluster.wait_for(partial(is_known, caller))
        for method, path in (("PUT", ""), ("GET", ""), ("POST", "/changes"), ("GET", "/feedback")):
            assert caller.call(method, f"/v1/shards/memos~0of3{path}").status == 403
        assert caller.call("GET", "/v1/shards").status == 403
    other = KeyHttp(http.url, make_key(cluster.folder / "a", "search", "write", "admin", collection="other"))
    cluster.wait_for(partial(is_known, other))
    for route in ROUTES:
        for name in ("memos", "memos~0of3") if "{collection}" in route.path else ():
            path, absent = (
                re.sub(r"{\w+}", "0", route.path.replace("{collection}", one)) for one in (name, "absent")
            )
            hidden, nothing = (other.call(route.method, one, {}) for one in (path, absent))
            assert hidden.status == nothing.status, route
            assert hidden.body == json.loads(json.dumps(nothing.body).replace("absent", name)), route
    for key in (acme, bound):
        caller = KeyHttp(http.url, key)
        assert caller.call("GET", "/v1/cluster").status == 403
        assert caller.call("POST", "/v1/cluster/balance", {}).status == 403
        move = {"shard": "memos~0of3", "to": "b"}
        assert caller.call("POST", "/v1/cluster/moves", move).status == 403
        assert caller.call("GET", "/v1/store/changes").status == 403


PAID = "when are refunds paid"
REFUNDS: list[dict[str, Any]] = [
    {"id": "refunds", "text": "Refunds are paid within 14 days.", "metadata": {"lang": "en"}},
    {"id": "refunds-de", "text": "Erstattungen werden in 14 Tagen bezahlt.", "metadata": {"lang": "de"}},
    {"id": "fees", "text": "Fees apply to late orders.", "metadata": {"note": "refunds are paid here"}},
    {"id": "long", "text": "A part about refunds. " + "Of gardens and bread. " * 400 + "Paid in gold."},
]
ENDED = {"id": "ended", "text": "Refunds of old.", "expires_at": "2024-02-29T12:00:00Z"}
ONLY_ENGLISH = {"type": "eq", "key": "lang", "value": "en"}
# What is asked, and the kind of the cause.
EXPLAINED: list[tuple[dict[str, Any], str]] = [
    ({"document_id": "refunds"}, "found"),
    ({"document_id": "refunds", "mode": "dense"}, "found"),
    ({"document_id": "refunds", "mode": "lexical", "passage": 0}, "found"),
    ({"document_id": "refunds", "mode": "dense", "exact": True, "k": 1}, "found"),
    ({"document_id": "refunds-de", "filter": ONLY_ENGLISH}, "filtered"),
    ({"document_id": "refunds-de", "mode": "lexical"}, "missing_terms"),
    ({"document_id": "refunds-de", "k": 1}, "outscored"),
    ({"document_id": "fees", "k": 1, "mode": "lexical"}, "words_elsewhere"),
    ({"document_id": "refunds", "min_score": 0.999}, "below_floor"),
    ({"document_id": "long", "k": 1}, "outscored"),
    ({"document_id": "long", "k": 1, "mode": "lexical", "query": "paid refunds of gold"}, ""),
    ({"document_id": "long", "passage": 0, "group_by_document": True, "query": "paid in gold"}, "grouped"),
    ({"document_id": "refund", "k": 3}, "no_document"),
    ({"document_id": "refunds", "offset": 20, "query": "a list of numbers"}, ""),
    ({"document_id": "refunds", "query": "sort a list of numbers", "k": 2}, ""),
    ({"document_id": "fees", "query": "how to open a file", "k": 1, "mode": "hybrid"}, ""),
    ({"document_id": "refunds", "query": "when are refnds paid", "k": 2}, "found"),
]


@pytest.fixture(scope="module")
def explained(cluster: Cluster) -> dict[int, str]:
    """The same documents in one piece and in five shards, hardly any of which have equal scores."""
    texts = (one for one in docstrings() if 60 < len(one.text) < 2000)
    made = [
        {"id": one.id, "title": one.title, "text": one.text} for one in itertools.islice(texts, 0, 3000, 10)
    ]
    for shards in (1, 5):
        cluster.http.ok("POST", "/v1/collections", {"name": f"explained-{shards}", "shards": shards})
        cluster.http.write(f"explained-{shards}", *made, *REFUNDS)
    return {shards: f"explained-{shards}" for shards in (1, 5)}


def explain(http: KeyHttp, name: str, **wanted: Any) -> Any:
    asked: dict[str, Any] = {"query": PAID, "collapse": False, **wanted}
    return http.ok("POST", f"/v1/collections/{name}/explain", asked)


def alike(found: Any) -> Any:
    """Return a copy with numbers that are compared with a tolerance, and without operations, which differ."""
    if isinstance(found, dict):
        return {key: alike(value) for key, value in found.items() if not key.endswith("seq")}
    if isinstance(found, list):
        return [alike(one) for one in found]
    return pytest.approx(found, abs=2e-4) if isinstance(found, float) else found


@pytest.mark.parametrize(("wanted", "kind"), EXPLAINED, ids=str)
def test_an_explanation_is_that_of_one_piece(
    cluster: Cluster, explained: dict[int, str], wanted: dict[str, Any], kind: str
) -> None:
    """The causes with their numbers, the passages with their ranks among all, the words with what they add, and the
    changes that find it; whichever node is asked."""
    whole = explain(cluster.http, explained[1], **wanted)
    assert kind in ("", whole["cause"]["kind"])
    for asked in (cluster.http, cluster.at_b):
        divided = explain(asked, explained[5], **wanted)
        for part in ("found", "passages") + (
            () if "over_budget" in {*whole, *divided} else ("change", "others")
        ):
            assert divided[part] == alike(whole[part]), part
        for one, other in zip(
            [divided["cause"], *divided["also"]], [whole["cause"], *whole["also"]], strict=True
        ):
            for key, value in other["evidence"].items():
                assert key.endswith("seq") or one["evidence"][key] == alike(value)
            assert one["kind"] == other["kind"]
        assert read_token(divided["seq"], 5).keys() == {0, 1, 2, 3, 4}


def test_what_an_answer_could_not_know_of_is_explained(cluster: Cluster, explained: dict[int, str]) -> None:
    """An operation of each shard says what an answer knew of, and what a search asks for that has not come."""
    http, name = cluster.http, explained[5]
    before = http.search(name, query=PAID)["receipt"]["seq"]
    written = cluster.at_b.write(name, {"id": "vouchers", "text": "Refunds are paid in vouchers."})["seq"]
    got = explain(cluster.at_b, name, document_id="vouchers", answer_seq=before)
    assert got["cause"]["kind"] == "not_visible"
    assert got["cause"]["evidence"] == {"written_seq": written, "answer_seq": before}
    assert got["change"]["patch"] == {"min_seq": written}
    after = cluster.at_b.search(name, query=PAID)["receipt"]["seq"]
    assert explain(cluster.at_b, name, document_id="vouchers", answer_seq=after)["cause"]["kind"] == "found"
    got = explain(http, name, document_id="refunds", min_seq="1.999999")
    assert (got["cause"]["kind"], got["change"]["patch"]) == ("not_visible", {"min_seq": None})
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"document_id": "refunds", "answer_seq": 7}, "answer_seq"),
        ({"document_id": "refunds", "min_seq": "9.1"}, "min_seq"),
        ({"document_id": "refunds", "passage": 8}, "passage"),
        ({"document_id": "refunds", "filter": {"type": "eq", "key": "nowhere", "value": 1}}, "filter"),
        ({"document_id": "absent", "filter": {"type": "eq", "key": "nowhere", "value": 1}}, "filter"),
        ({"document_id": "refunds", "k": 0}, "k"),
    ]
    for wanted, param in wrong:
        refused = [
            http.call("POST", f"/v1/collections/{one}/explain", {"query": PAID, **wanted})
            for one in (name, explained[1])[: 1 if param == "answer_seq" else 2]
        ]
        assert {(one.status, one.body["error"]["param"]) for one in refused} == {(422, param)}
    http.ok("DELETE", f"/v1/collections/{name}/documents/vouchers")


@pytest.mark.slow
def test_an_expired_document_is_told_from_one_that_never_was(cluster: Cluster) -> None:
    """Until it is deleted, which happens beside this."""
    http = cluster.http
    http.ok("POST", "/v1/collections", {"name": "endings", "shards": 3})
    seq = http.write("endings", *REFUNDS, ENDED)["seq"]
    cause = explain(cluster.at_b, "endings", document_id="ended")["cause"]
    if cause["kind"] == "expired":
        assert cause["evidence"]["expires_at"] == ENDED["expires_at"]
        assert cause["evidence"]["written_seq"] in seq.split("-")
    else:
        assert cause["kind"] == "no_document"
    cluster.wait_for(lambda: explain(http, "endings", document_id="ended")["cause"]["kind"] == "no_document")
    cause = explain(http, "endings", document_id="refund")["cause"]
    assert cause["evidence"] == {"similar_ids": ["refunds", "refunds-de"]}
    http.ok("DELETE", "/v1/collections/endings")


def test_explanations_show_no_more_than_a_caller_may_see(cluster: Cluster, explained: dict[int, str]) -> None:
    """A caller with groups is told about documents of those groups alone, and no ids of others."""
    http = cluster.http
    reader = KeyHttp(http.url, cluster.keys["reader"])
    for name in explained.values():
        http.write(name, {"id": "ours", "text": "Refunds are paid to staff.", "metadata": {"acl": ["staff"]}})
        http.write(name, {"id": "theirs", "text": "Refunds are paid.", "metadata": {"acl": ["board"]}})
    for asked, document in ((reader, "ours"), (reader, "theirs"), (reader, "their"), (http, "theirs")):
        whole, divided = (explain(asked, name, document_id=document) for name in explained.values())
        assert (divided["cause"]["kind"], divided["passages"]) == (
            whole["cause"]["kind"],
            alike(whole["passages"]),
        )
    assert explain(reader, explained[5], document_id="their")["cause"]["evidence"] == {"similar_ids": []}
    for name in explained.values():
        http.ok("POST", f"/v1/collections/{name}/documents/delete", {"ids": ["ours", "theirs"]})


ALARM = {"query": "the payment service is down", "k": 20, "min_score": 0.5}


def test_a_standing_query_tells_of_writes_at_every_shard(cluster: Cluster) -> None:
    """The same hits with the same ranks as in one piece, through any service, before and after shards move."""
    http, at_b = cluster.http, cluster.at_b
    for name, shards in (("piece-alarms", 1), ("alarms", 4)):
        http.ok("POST", "/v1/collections", {"name": name, "shards": shards})
        http.write(name, *sentences(40))
    with (
        watching(http, "piece-alarms", ALARM) as whole,
        watching(http, "alarms", ALARM) as here,
        watching(at_b, "alarms", ALARM) as there,
    ):
        streams = whole, here, there
        assert {one.next()[0] for one in streams} == {"watching"}
        seen, written_to = here.id, set[int]()
        for number in range(12):
            text = f"The payment service is down, {SUBJECTS[number % 5]} says {WHEN[number // 5]}."
            document = {"id": f"w{number}", "text": text}
            written_to.add(shard_of_document(document["id"], 4))
            if number in (4, 8):  # to the other node, and back
                move_all(http, "alarms", 4, to="ab"[number // 8])
            for asked, name in ((http, "piece-alarms"), ((http, at_b)[number % 2], "alarms")):
                asked.write(name, document)
            entered = [one.entered() for one in streams]
            assert entered[0] == entered[1] == entered[2]
            assert list(entered[0]) == [document["id"]]
        assert written_to == {0, 1, 2, 3}
        last = there.id
    with watching(at_b, "alarms", ALARM, after=seen) as again:
        assert len(again.entered()) == 12
    with watching(http, "alarms", ALARM, after=last) as again:
        assert again.next()[0] == "watching"
        at_b.write("alarms", *({"id": f"w{n}", "text": f"Payment service down, {n}."} for n in (20, 21)))
        found = again.entered()
        assert set(found) | (set() if len(found) == 2 else set(again.entered())) == {"w20", "w21"}
    token, _, of = last.rpartition("-")
    wrong = [
        (f"{token}-{of[::-1]}x", 409, "another collection"),
        (token.replace(".", ".9", 1), 409, "recreated or restored"),
        ("41", 422, "none that this collection"),
    ]
    for known, status, why in wrong:
        path = "/v1/collections/alarms/watch"
        refused = http.call("POST", path, ALARM, headers={"Last-Event-ID": known})
        assert (refused.status, refused.body["error"]["param"]) == (status, "Last-Event-ID")
        assert why in refused.body["error"]["message"]
    with watching(at_b, "alarms", ALARM, after=token) as open_one:
        assert set(open_one.entered()) == {"w20", "w21"}
        http.ok("DELETE", "/v1/collections/alarms")
        http.ok("POST", "/v1/collections", {"name": "alarms", "shards": 4})
        name, data, _ = open_one.next()
        assert (name, data["error"]["type"] in ("conflict", "not_found")) == ("error", True), data
    assert http.call("POST", path, ALARM, headers={"Last-Event-ID": last}).status == 409
    http.ok("DELETE", "/v1/collections/alarms")
    http.ok("DELETE", "/v1/collections/piece-alarms")


def move_all(http: KeyHttp, name: str, shards: int, to: str) -> None:
    for number in range(shards):
        reply = http.call("POST", "/v1/cluster/moves", {"shard": f"{name}~{number}of{shards}", "to": to})
        assert reply.status == 409 or http.wait_for(reply.body["job"])["status"] == "succeeded", reply


@pytest.mark.slow
def test_a_standing_query_goes_on_while_a_writer_hangs(cluster: Cluster) -> None:
    """Its replica has the other shards; without one, the stream ends with an error."""
    http, at_b = cluster.http, cluster.at_b
    http.ok("POST", "/v1/collections", {"name": "bells", "shards": 2})
    for number, node in enumerate("ab"):
        move = {"shard": f"bells~{number}of2", "to": node}
        reply = http.call("POST", "/v1/cluster/moves", move)
        assert reply.status == 409 or http.wait_for(reply.body["job"])["status"] == "succeeded", reply
    written = http.write("bells", *sentences(20))
    own = [one for one in (f"bell{number}" for number in range(9)) if shard_of_document(one, 2) == 1]
    cluster.wait_for_copy("bells", 2, written["seq"])
    with watching(at_b, "bells", ALARM) as events:
        assert events.next()[0] == "watching"
        hung = cluster.services["a"]
        os.kill(hung.pid, signal.SIGSTOP)
        try:
            for one in own[:3]:
                at_b.write("bells", {"id": one, "text": f"The payment service is down, says {one}."})
                assert list(events.entered()) == [one]
        finally:
            os.kill(hung.pid, signal.SIGCONT)
        cluster.until(a=True)
    with watching(http, "bells", ALARM) as events:
        assert events.next()[0] == "watching"
        cluster.services["b"].kill()
        cluster.until(b=False)
        away = next(one for one in (f"bell{number}" for number in range(9)) if one not in own)
        http.write("bells", {"id": away, "text": "The payment service is down."})
        name, data, _ = events.next()
        assert (name, data["error"]["type"]) == ("error", "unavailable")
    cluster.start("b")
    cluster.until(b=True)
    http.ok("DELETE", "/v1/collections/bells")


@pytest.mark.slow
def test_a_replica_answers_while_its_writer_hangs(cluster: Cluster, sizes: dict[int, str]) -> None:
    """Searches go on; writes wait for the writer, and what was acknowledged before is found."""
    at_b, name = cluster.at_b, sizes[4]
    written = at_b.write(name, {"id": "zugzwang", "text": "A move that one would rather not make: zugzwang."})
    cluster.wait_for_copy(name, 4, written["seq"])
    hung = cluster.services["a"]
    os.kill(hung.pid, signal.SIGSTOP)
    try:
        for _ in range(5):
            assert at_b.found(name, query="zugzwang", min_seq=written["seq"], cache=False)[0] == "zugzwang"
    finally:
        os.kill(hung.pid, signal.SIGCONT)
    cluster.until(a=True)


def test_a_full_node_refuses_its_part(cluster: Cluster) -> None:
    """What it has is searched. The error says which shards have done their part; sent again with room, all is there."""
    http = cluster.http
    http.ok("POST", "/v1/collections", {"name": "full", "shards": 4})
    made = [{"id": f"r{number}", "text": f"Room {number} has a door."} for number in range(40)]
    http.write("full", *made[:20])
    pid = cluster.services["b"].pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (16_384, before[1]))  # EFBIG where a full disk says ENOSPC
    try:
        held = cluster.at_b.ok("GET", "/v1/cluster")["services"]
        at_a = {
            name for one in held if one["node"] == "a" for name in one["shards"] if name.startswith("full~")
        }
        refused = http.call("POST", "/v1/collections/full/documents", {"documents": made[20:]})
        assert (refused.status, refused.body["error"]["type"]) == (507, "disk_full"), refused
        assert all(name.removeprefix("full~")[0] in refused.body["error"]["message"] for name in at_a), (
            refused
        )
        assert http.found("full", query="room 3 door", mode="lexical")[0] == "r3"
        counted = http.ok("POST", "/v1/collections/full/documents/count", {})["documents"]
        assert 20 < counted < 40
        deleted = http.call("POST", "/v1/collections/full/documents/delete", {"filter": {}})
        assert deleted.status in (422, 507), deleted
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    http.write("full", *made[20:])
    assert http.ok("POST", "/v1/collections/full/documents/count", {})["documents"] == 40


@pytest.mark.slow
def test_a_node_is_lost_and_comes_back(cluster: Cluster, sizes: dict[int, str]) -> None:
    """Without it, what needs its shards gets 503 and names one; with it, nothing is missing."""
    http, name = cluster.http, sizes[7]
    before = http.ok("POST", f"/v1/collections/{name}/documents/count", {})["documents"]
    job = http.reindex(name)
    assert job["status"] == "succeeded"
    cluster.services["b"].kill()
    lost = http.call("POST", f"/v1/collections/{name}/search", {"query": "the harbor map", "cache": False})
    assert (lost.status, lost.body["error"]["type"]) == (503, "unavailable"), lost
    assert "Retry-After" in lost.headers
    cluster.until(b=False)
    document = next(one for one in (f"n{number}" for number in range(100)) if shard_of_document(one, 7) == 0)
    listed = http.ok("GET", "/v1/collections")
    assert (name in [one["name"] for one in listed["unavailable"]], listed["quarantined"]) == (True, [])
    cluster_key = {"NEARLINE_KEY": cluster.keys["a"]}
    printed = nearline("collections", "list", "--url", http.url, **cluster_key)
    assert f"{name} is unavailable: no node answers for shard {name}~" in " ".join(printed.stderr.split())
    shown = nearline("cluster", "--url", http.url, **cluster_key)
    assert "cannot be reached" in " ".join(shown.stdout.split()), shown
    held = {shard for one in http.ok("GET", "/v1/cluster")["services"] for shard in one["shards"]}
    gone = next(number for number in range(7) if f"{name}~{number}of7" not in held)
    for asked, said in (
        (
            ["move", f"{name}~{gone}of7", "a"],
            f"no node that answers has shard '{name}~{gone}of7'; not answering: b",
        ),
        (["move", f"{name}~7of7", "a"], f"no node has a shard '{name}~7of7'"),
        (["balance", "--without", "b"], "node b does not answer"),
    ):
        refused = nearline("cluster", *asked, "--url", http.url, **cluster_key)
        assert said in " ".join(refused.stderr.split()), refused
    assert http.ok("GET", f"/v1/jobs/{job['id']}") == job
    cluster.start("b")
    cluster.until(b=True)
    # A node forgets its jobs when it ends, and here they are known.
    assert job in http.ok("GET", "/v1/jobs")["jobs"]
    assert http.ok("POST", f"/v1/collections/{name}/documents/count", {})["documents"] == before
    http.write(name, {"id": document, "text": "Back again."})
    assert http.found(name, query="back again", mode="lexical")[0] == document


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_search_may_leave_out_what_does_not_answer(cluster: Cluster, fault: str) -> None:
    """Every kind of search that allows `partial` answers from the shards that respond, and lists the missing ones in
    its receipt. One that does not returns 503."""
    http, name = cluster.http, f"partly-{fault}"
    http.ok("POST", "/v1/collections", {"name": name, "shards": 4})
    http.write(name, *sentences(60))
    whole = {one["document_id"] for one in http.search(name, query="the harbor map", k=50)["hits"]}
    held = http.ok("GET", f"/v1/collections/{name}")["shards"]
    lost = [number for number, shard in enumerate(held) if shard["node"] == "b"]
    assert 0 < len(lost) < 4
    here = {one for one in whole if shard_of_document(one, 4) not in lost}
    asked = {"query": "the harbor map", "k": 50, "partial": True, "facets": ["kind"]}
    full = http.search(name, **asked)
    assert ("shards_missing" in full["receipt"], {one["document_id"] for one in full["hits"]}) == (
        False,
        whole,
    )
    if fault == "killed":
        cluster.services["b"].kill()
    else:
        os.kill(cluster.services["b"].pid, signal.SIGSTOP)
    try:
        for _ in range(2):  # before and after it is known
            path = f"/v1/collections/{name}"
            found = http.search(name, **asked)
            assert found["receipt"]["shards_missing"] == lost
            assert {one["document_id"] for one in found["hits"]} >= here
            assert not [one for one in found["hits"] if shard_of_document(one["document_id"], 4) in lost]
            assert found["facets"][0]["documents"] < full["facets"][0]["documents"]
            [batch] = http.ok("POST", f"{path}/search/batch", {"searches": [asked]})["results"]
            assert batch["hits"] == found["hits"]
            together = {"collections": [name], "query": "the harbor map", "partial": True}
            assert http.ok("POST", "/v1/search", together)["receipts"][0]["shards_missing"] == lost
            built = {"query": "the harbor map", "token_budget": 200, "partial": True}
            assert http.ok("POST", f"{path}/context", built)["receipt"]["shards_missing"] == lost
            words = ["the harbor map", "-c", name, "--partial", "--url", http.url]
            printed = nearline("search", *words, NEARLINE_KEY=cluster.keys["a"])
            shards = ", ".join(map(str, lost))
            assert f"did not answer: shards {shards} of {name}" in " ".join(printed.stdout.split())
            refused = http.call("POST", f"{path}/search", {"query": "the harbor map"})
            assert (refused.status, refused.body["error"]["type"]) == (503, "unavailable")
            explained = http.call(
                "POST", f"{path}/explain", {"query": "x", "document_id": "n1", "partial": True}
            )
            assert (explained.status, explained.body["error"]["param"]) == (422, "partial")
            cluster.until(b=False)
    finally:
        if fault == "killed":
            cluster.start("b")
        else:
            os.kill(cluster.services["b"].pid, signal.SIGCONT)
        cluster.until(b=True)
    assert {one["document_id"] for one in http.search(name, **asked)["hits"]} == whole
    http.ok("DELETE", f"/v1/collections/{name}")


def test_what_was_lost_is_not_waited_for(cluster: Cluster) -> None:
    """A collection that is deleted and created again through another node, where its operations begin at 1 again."""
    http, at_b = cluster.http, cluster.at_b
    for asked, text in ((http, "first"), (at_b, "second")):
        asked.ok("POST", "/v1/collections", {"name": "again", "shards": 2})
        for number in range(3 if text == "first" else 1):
            asked.write("again", {"id": "one", "text": f"{text} {number}"})
        late = time.monotonic() + UP_S
        while time.monotonic() < late:
            found = http.call("POST", "/v1/collections/again/search", {"query": text, "cache": False})
            assert found.status != 503, found
            if found.status == 200 and [hit["text"].split()[0] for hit in found.body["hits"]] == [text]:
                break
            time.sleep(0.1)
        else:
            raise AssertionError(found)
        if text == "first":
            at_b.ok("DELETE", "/v1/collections/again")


def test_the_store_has_what_was_given_away(cluster: Cluster) -> None:
    """Before another node may write a shard: the machine, lost and restored from its store, would write it, too."""
    store = cluster.folder / "store"
    before = {folder.name for folder in (store / COLLECTIONS).iterdir()}
    cluster.http.ok("POST", "/v1/collections", {"name": "gifts", "shards": 2})
    for to in "ab":
        move_all(cluster.http, "gifts", 2, to)
    bucket, given = Bucket(store.as_uri()), set[str]()
    for uid in {folder.name for folder in (store / COLLECTIONS).iterdir()} - before:
        slots = CollectionLog(bucket, uid).slots
        for number in map(int, bucket.names(slots.folder)):
            payload = slots.read(number).slot.payload
            state = msgspec.msgpack.decode(payload, type=LogChange).state if payload else None
            moving = parse_moving(state.files.get(MOVING)) if state else None
            given |= {uid} if moving and moving.role == "given" else set()
    assert len(given) == 2
    cluster.http.ok("DELETE", "/v1/collections/gifts")


@pytest.mark.slow
def test_what_was_being_moved_when_a_service_was_killed(tmp_path: Path, model_folder: Path) -> None:
    """A copy is removed at the start, and so is what another node has taken; nothing is forgotten of what was given
    away: it takes no writes."""
    port = free_port()
    environ = {
        "NEARLINE_CLUSTER_NODES": json.dumps(
            {"a": [f"http://127.0.0.1:{port}"], "b": ["http://127.0.0.1:9"]}
        ),
        "NEARLINE_SERVER_SEARCH_PROCESSES": "2",
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent.resolve()),
    }
    names = [f"docs~{number}of4" for number in range(4)]
    data = tmp_path / "data"
    catalog = Catalog(data, IndexOptions())
    for name in names:
        catalog.create(name, settings())
    catalog.close()
    write_moving(data / names[0], Moving("copy", "b"))
    write_moving(data / names[1], Moving("given", "b", 0))
    write_moving(data / names[3], Moving("gone", "b", 0))
    with serving(data, environ, port=port) as server:
        http = Http(server.url)
        seen = http.ok("GET", "/v1/cluster")["services"][0]
        while not seen["up"]:
            seen = http.ok("GET", "/v1/cluster")["services"][0]
        assert (list(seen["shards"]), seen["moving"]) == (names[1:3], names[1:2])
        assert not any((data / names[at]).exists() for at in (0, 3))


def test_a_node_is_lost_for_good(tmp_path: Path, model_folder: Path) -> None:
    """Once it is removed from the configuration, its shards can be created again and filled from the same documents."""
    ports = {name: free_port() for name in "ab"}
    urls = {name: [f"http://127.0.0.1:{port}"] for name, port in ports.items()}
    config = tmp_path / "cluster.toml"
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent.resolve())}

    def name_nodes(names: str) -> None:
        nodes = ", ".join(f"{name} = {json.dumps(urls[name])}" for name in names)
        config.write_text(f"[cluster]\nnodes = {{ {nodes} }}\n")

    name_nodes("ab")
    documents = [{"id": f"d{number}", "text": "word", "vector": [1, 0, 0]} for number in range(20)]
    wanted = {"name": "docs", "shards": 4, "dimensions": 3}
    with contextlib.ExitStack() as stack:
        left, lost = [
            stack.enter_context(serving(tmp_path / name, environ, port=port, config=config))
            for name, port in ports.items()
        ]
        http = Http(left.url)
        http.ok("POST", "/v1/collections", wanted)
        http.write("docs", *documents)
        lost.kill()
        shutil.rmtree(tmp_path / "b")
        with serving(tmp_path / "b", environ, port=ports["b"], config=config):  # which is empty
            late = time.monotonic() + UP_S
            seen: dict[str, Any] = {"missing": []}
            while not seen["missing"] or not all(one["up"] for one in seen["services"]):
                assert time.monotonic() < late
                seen = http.ok("GET", "/v1/cluster")
            missing = seen["missing"]
            assert len(missing) < 4
            refused = http.call("POST", "/v1/cluster/balance", {"without": []})
            assert (refused.status, missing[0] in refused.body["error"]["message"]) == (409, True)
            shown = nearline("cluster", "--url", left.url)
            assert (shown.returncode, missing[0] in shown.stderr) == (0, True)
        name_nodes("a")
        os.kill(left.pid, signal.SIGHUP)
        late = time.monotonic() + UP_S
        while len(http.ok("GET", "/v1/cluster")["services"]) > 1:
            assert time.monotonic() < late
        assert [one["name"] for one in http.ok("GET", "/v1/collections")["unavailable"]] == ["docs"]
        kept = http.ok("GET", "/v1/collections")["collections"]
        made = http.ok("POST", "/v1/collections", wanted)
        assert [one["node"] for one in made["shards"]] == ["a"] * 4
        written = http.write("docs", *documents)
        assert written["unchanged"] == sum(one["documents"] for one in kept) in range(1, 20)
        assert http.ok("GET", "/v1/collections/docs")["documents"] == len(documents)


def test_what_nodes_that_are_away_have_is_not_forgotten(tmp_path: Path, model_folder: Path) -> None:
    """The node that has no shard of a collection knows that the others have some, or cannot know what they have once it
    was restarted: the name stays taken, and requests get 503 instead of 404."""
    ports = {name: free_port() for name in "abc"}
    nodes = ", ".join(f'{name} = ["http://127.0.0.1:{port}"]' for name, port in ports.items())
    config = tmp_path / "cluster.toml"
    config.write_text(f"[cluster]\nnodes = {{ {nodes} }}\n")
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_SERVER_SEARCH_PROCESSES": "0"}
    documents = [
        {"id": f"d{number}", "text": f"word {number}", "vector": [1, 0, number]} for number in range(20)
    ]
    search = {"query": "word", "mode": "lexical"}

    def started(name: str) -> ServerProcess:
        return ServerProcess(tmp_path / name, environ, port=ports[name], config=config)

    def nothing_is_forgotten(http: Http, *, remembers: bool) -> None:
        for method, path, body in (
            ("POST", "/v1/collections/m/search", search),
            ("GET", "/v1/collections/m", None),
            ("POST", "/v1/collections", {"name": "m", "dimensions": 3}),
            ("PUT", "/v1/aliases/m", {"collection": "own"}),
            ("POST", "/v1/collections/m/documents", {"documents": documents[:1]}),
        ):
            reply = http.call(method, path, body)
            assert (reply.status, "m" in reply.body["error"]["message"]) == (503, True), (method, path, reply)
            assert "Retry-After" in reply.headers
        unavailable = [one["name"] for one in http.ok("GET", "/v1/collections")["unavailable"]]
        assert (unavailable, bool(http.ok("GET", "/v1/cluster")["missing"])) == (["m"] * remembers, remembers)
        assert http.found("own", **search) == ["d0"]

    servers = {name: started(name) for name in ports}
    try:
        http = {name: Http(server.url) for name, server in servers.items()}
        wait_until_up(http["a"], 3)
        http["a"].ok("POST", "/v1/collections", {"name": "m", "dimensions": 3, "shards": 2})
        http["a"].write("m", *documents)
        shards = {one["node"]: one["shards"] for one in http["a"].ok("GET", "/v1/cluster")["services"]}
        [empty] = [name for name, held in shards.items() if not held]
        asked = http[empty]
        asked.ok("POST", "/v1/collections", {"name": "own", "dimensions": 3})
        asked.write("own", documents[0])
        assert len(asked.found("m", k=20, **search)) == 20
        for name in ports.keys() - {empty}:
            servers[name].kill()
        late = time.monotonic() + UP_S
        while sum(one["up"] for one in asked.ok("GET", "/v1/cluster")["services"]) > 1:
            assert time.monotonic() < late
        nothing_is_forgotten(asked, remembers=True)
        assert asked.call("GET", "/v1/collections/another").status == 404  # which no node had
        servers[empty].kill()
        servers[empty] = started(empty)
        nothing_is_forgotten(asked, remembers=False)
        for name in ports.keys() - {empty}:
            servers[name] = started(name)
        wait_until_up(asked, 3)
        assert len(asked.found("m", k=20, cache=False, **search)) == 20
    finally:
        for server in servers.values():
            server.kill()


def test_half_of_a_name_is_not_made_whole_by_new_shards(tmp_path: Path, model_folder: Path) -> None:
    """When only some shards of a collection were renamed, no new ones are created under either name, and repeating the
    request renames the others."""
    ports = {name: free_port() for name in "ab"}
    nodes = ", ".join(f'{name} = ["http://127.0.0.1:{port}"]' for name, port in ports.items())
    config = tmp_path / "cluster.toml"
    config.write_text(f"[cluster]\nnodes = {{ {nodes} }}\n")
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_SERVER_SEARCH_PROCESSES": "0"}
    wanted = {"name": "old", "dimensions": 3, "shards": 4}
    documents = [{"id": f"d{number}", "text": "word", "vector": [1, 0, 0]} for number in range(20)]

    def started(name: str) -> ServerProcess:
        return ServerProcess(tmp_path / name, environ, port=ports[name], config=config)

    first, second = started("a"), started("b")
    try:
        http = Http(first.url)
        wait_until_up(http, 2)
        http.ok("POST", "/v1/collections", wanted)
        http.write("old", *documents)
        second.kill()
        for folder in (tmp_path / "b").glob("old~*"):
            folder.rename(folder.with_name(folder.name.replace("old", "new")))
        second = started("b")
        wait_until_up(http, 2)
        refused = http.call("POST", "/v1/collections", wanted)
        assert (refused.status, "half renamed" in refused.body["error"]["message"]) == (409, True)
        assert http.ok("POST", "/v1/collections/old/rename", {"name": "new"})["documents"] == 20
    finally:
        first.kill()
        second.kill()


def wait_until_up(http: Http, services: int) -> None:
    late = time.monotonic() + UP_S
    while sum(one["up"] for one in http.ok("GET", "/v1/cluster")["services"]) < services:
        assert time.monotonic() < late
        time.sleep(0.05)


def test_a_search_misses_no_write_while_shards_move(tmp_path: Path, model_folder: Path) -> None:
    """It is asked at one service as soon as the write is acknowledged by the other one, without `min_seq`."""
    ports = {name: free_port() for name in "ab"}
    environ = {
        "NEARLINE_CLUSTER_NODES": json.dumps({name: [f"http://127.0.0.1:{ports[name]}"] for name in ports}),
        "NEARLINE_SERVER_SEARCH_PROCESSES": "2",
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent.resolve()),
    }
    with contextlib.ExitStack() as stack:
        asked = [
            Http(stack.enter_context(serving(tmp_path / name, environ, port=port)).url)
            for name, port in ports.items()
        ]
        asked[1].ok("POST", "/v1/collections", {"name": "docs", "shards": 2, "dimensions": 3})
        ended, written, missed = threading.Event(), list[int](), list[object]()

        def write(offset: int) -> None:
            for number in itertools.count(offset, 2):
                if ended.is_set():
                    return
                at, other = asked[number // 2 % 2], asked[1 - number // 2 % 2]
                document = {"id": f"d{number % 40}", "text": f"word{number} again", "vector": [1, 0, 0]}
                at.write("docs", document)
                wanted = {"query": f"word{number}", "mode": "lexical", "k": 1, "cache": False}
                found = other.search("docs", **wanted)["hits"]
                missed.extend([] if found and found[0]["text"] == document["text"] else [(number, found)])
                written.append(number)

        with ThreadPoolExecutor(2) as pool:
            writers = [pool.submit(write, offset) for offset in range(2)]
            try:
                for step in range(8):
                    wanted = {"shard": f"docs~{step % 2}of2", "to": "ab"[step // 2 % 2]}
                    started = asked[0].call("POST", "/v1/cluster/moves", wanted)
                    if started.status == 202:
                        assert asked[0].wait_for(started.body["job"])["status"] == "succeeded"
            finally:
                ended.set()
            for one in writers:
                one.result()
    assert not missed
    assert len(written) > 8
