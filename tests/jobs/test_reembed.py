"""Embedding a collection anew with another model: a real service, two models, writes in between, a kill."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.ingestion.rate_limiter import RateLimiter
from jobs.ingestion.reembedding import Copied, digest, reembed
from jobs.serving.process import ServerProcess, serving
from nearline import AsyncClient, ServiceError
from retrieval.clients.bulk import DOCUMENTS_PER_REQUEST
from retrieval.clients.wire.records import AliasBody
from tests.support.http import Http
from tests.support.models import variation

OLD, NEW = "all-MiniLM-L6-v2", "prefixed"
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    """A service with two models: the second reads another prefix, so its vectors and its fingerprint differ."""
    root = tmp_path_factory.mktemp("reembed")
    variation(model_folder, root / "models" / OLD)
    variation(model_folder, root / "models" / NEW, document_prefix="passage: ", query_prefix="query: ")
    with serving(root / "data", {"NEARLINE_MODELS_FOLDER": str(root / "models")}) as server:
        yield server


@pytest.fixture
def http(service: ServerProcess) -> Http:
    return Http(service.url)


def document(number: int, version: int = 0) -> dict[str, object]:
    return {
        "id": f"n{number}",
        "text": f"Note {number}, version {version}, about code q{number}z.",
        "title": f"Note {number}",
        "metadata": {"number": number},
        "language": "en",
    }


def copy(
    service: ServerProcess, source: str, target: str, alias: str | None = None, **options: object
) -> Copied:
    async def run() -> Copied:
        async with AsyncClient(service.url) as client:
            settings = {"model": NEW, "pace": RateLimiter(0), "progress": lambda *_: None, **options}
            return await reembed(client, source, target, alias=alias, **settings)  # type: ignore[arg-type]

    return asyncio.run(run())


def contents(http: Http, collection: str) -> dict[str, bytes]:
    page = http.ok("POST", f"/v1/collections/{collection}/documents/scroll", {"limit": 1000})
    return {one["id"]: digest(one) for one in page["documents"]}


@pytest.mark.slow
def test_a_copy_holds_everything_with_the_new_model(http: Http, service: ServerProcess) -> None:
    """The target has every document, found by meaning with the new model, and the alias names it."""
    source, target = http.new_collection(model=OLD), "copy-1"
    http.write(source, *(document(number) for number in range(210)))
    http.ok("PUT", "/v1/aliases/notes-1", {"collection": source})
    done = copy(service, "notes-1", target, alias="notes-1")
    assert (done.written, done.unchanged, done.deleted) == (210, 0, 0)
    assert contents(http, target) == contents(http, source)
    assert http.ok("GET", "/v1/collections/notes-1")["name"] == target
    assert http.ok("GET", f"/v1/collections/{target}")["model"] == NEW
    (hit,) = http.search("notes-1", query="q7z", mode="lexical", k=1)["hits"]
    assert (hit["document_id"], hit["metadata"], hit["title"]) == ("n7", {"number": 7}, "Note 7")
    assert len(http.search("notes-1", query="a note about a code", mode="dense", k=5)["hits"]) == 5


@pytest.mark.parametrize("language", ["auto", "de"])
def test_languages_are_those_of_the_source(http: Http, service: ServerProcess, language: str) -> None:
    """The target gives documents the language that the source gave them, keeps one that a client named, and finds a
    document that is written again as it came to the source unchanged. It has the source's synonyms."""
    source, target = http.new_collection(model=OLD, language=language), f"copy-{language}"
    documents = [
        {"id": "en", "text": "The opening hours of the library in the morning."},
        {"id": "de", "text": "Wo ist der Bahnhof, und wann ist er geöffnet?"},
        {"id": "named", "text": "Où est la bibliothèque du quartier ?", "language": "pt-BR"},
    ]
    http.write(source, *documents)
    synonyms = [["library", "athenaeum"]]
    http.ok("PUT", f"/v1/collections/{source}/synonyms", {"synonyms": synonyms})
    copy(service, source, target)
    assert http.ok("GET", f"/v1/collections/{target}")["language"] == language
    assert http.ok("GET", f"/v1/collections/{target}/synonyms")["synonyms"] == synonyms
    assert contents(http, target) == contents(http, source)
    assert http.write(target, *documents)["unchanged"] == 3


def test_only_what_changed_is_copied_again(http: Http, service: ServerProcess) -> None:
    """A second copy, here into the alias, writes changed and new documents, deletes what is gone, synonyms too, and
    leaves the rest alone. With the name that was moved by the first it is refused, because others may have written by
    that name."""
    source, target = http.new_collection(model=OLD), "copy-2"
    http.write(source, *(document(number) for number in range(30)))
    http.ok("PUT", f"/v1/collections/{source}/synonyms", {"synonyms": [["library", "athenaeum"]]})
    copy(service, source, target)
    before = http.ok("GET", f"/v1/collections/{target}/documents/n20")["seq"]
    http.ok("DELETE", f"/v1/collections/{source}/synonyms")
    http.write(source, document(3, version=1), document(30))
    http.ok("POST", f"/v1/collections/{source}/documents/delete", {"ids": ["n5", "n6"]})
    http.ok("PUT", "/v1/aliases/notes-2", {"collection": target})
    with pytest.raises(ServiceError, match="notes-2 names copy-2 already"):
        copy(service, source, target, alias="notes-2")
    done = copy(service, source, "notes-2")
    assert (done.written, done.unchanged, done.deleted) == (2, 27, 2)
    assert http.ok("GET", f"/v1/collections/{target}/synonyms")["synonyms"] == []
    assert contents(http, target) == contents(http, source)
    assert http.ok("GET", f"/v1/collections/{target}/documents/n20")["seq"] == before


@pytest.mark.slow
def test_writes_meanwhile_are_taken_over(http: Http, service: ServerProcess) -> None:
    """What is written to, replaced in or deleted from the source while it is copied is in the target as well."""
    source, target = http.new_collection(model=OLD), "copy-3"
    http.write(source, *(document(number) for number in range(250)))
    changes = iter(range(3))

    def progress(stage: str, done: int, total: int) -> None:
        if (change := next(changes, None)) is not None:
            http.write(source, document(1, version=change + 1), document(1000 + change))
            http.ok("POST", f"/v1/collections/{source}/documents/delete", {"ids": [f"n{240 + change}"]})

    done = copy(service, source, target, progress=progress)
    assert done.passes > 1
    assert contents(http, target) == contents(http, source)
    assert "n1002" in contents(http, target)
    assert not {"n240", "n241", "n242"} & contents(http, target).keys()


@pytest.mark.slow
def test_a_killed_copy_goes_on_where_it_stopped(http: Http, service: ServerProcess) -> None:
    """The command, killed in the middle, leaves a target that the next run completes without writing anything twice."""
    source, target = http.new_collection(model=OLD), "copy-4"
    http.write(source, *(document(number) for number in range(450)))
    command = [sys.executable, "-m", "jobs.cli", "reembed", "--url", service.url, "--from", source]
    command += ["--into", target, "--model", NEW, "--json"]
    child = subprocess.Popen([*command, "--per-second", "200"], stdout=subprocess.DEVNULL)
    for _ in range(600):
        found = http.call("GET", f"/v1/collections/{target}")
        if found.status == 200 and found.body["documents"] >= 200:
            break
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    held = http.ok("GET", f"/v1/collections/{target}")["documents"]
    assert 200 <= held < 450
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    done = json.loads(output)
    assert done["written"] + done["unchanged"] == 450
    assert done["unchanged"] >= held
    assert contents(http, target) == contents(http, source)


def test_a_source_that_never_rests_is_copied(http: Http, service: ServerProcess) -> None:
    """With a write during every pass the copy ends all the same, and holds the last of them."""
    source, target = http.new_collection(model=OLD), "copy-5"
    http.write(source, *(document(number) for number in range(10)))
    writes = iter(range(100, 200))
    copy(service, source, target, progress=lambda *_: http.write(source, document(next(writes))))
    assert contents(http, target) == contents(http, source)


@pytest.mark.slow
def test_a_source_that_changes_too_fast_is_given_up(http: Http, service: ServerProcess) -> None:
    """Once a pass has as much to write as the one before, that is a conflict: the service was reached."""
    source = http.new_collection(model=OLD)
    count = DOCUMENTS_PER_REQUEST + 1
    http.write(source, *(document(number) for number in range(count)))

    versions = iter(range(1, 100))

    def rewrite(stage: str, done: int, total: int) -> None:
        if done == total:
            version = next(versions)
            http.write(source, *(document(number, version) for number in range(count)))

    with pytest.raises(ServiceError, match="changes faster than it is copied") as caught:
        copy(service, source, "copy-6", progress=rewrite)
    assert (caught.value.status, caught.value.kind) == (409, "conflict")


def test_no_write_is_lost_while_the_alias_moves(http: Http, service: ServerProcess) -> None:
    """Writes and deletions through the alias, of which one began long before, are in the new collection if they were
    acknowledged; what was deleted does not come back."""
    source, target, alias = http.new_collection(model=OLD), "copy-8", "moved"
    http.write(source, *(document(number) for number in range(300)))
    http.ok("PUT", f"/v1/aliases/{alias}", {"collection": source})
    ended, there, path = threading.Event(), set[str](), f"/v1/collections/{alias}/documents"

    def change(first: int) -> None:
        """Write, and delete every third document again a moment later."""
        for number in itertools.count(first, 2):
            if http.call("POST", path, {"documents": [document(number)]}).status == 200:
                there.add(f"n{number}")
            gone = f"n{number - 6}"
            if number % 3 == 0 and gone in there and http.call("DELETE", f"{path}/{gone}").status == 200:
                there.discard(gone)
            if ended.is_set():
                return

    def write_long() -> int:
        book = {"id": "book", "text": "a long manual about pumps and valves. " * 3000}
        return http.call("POST", path, {"documents": [book]}).status

    with ThreadPoolExecutor() as pool:
        changing = [pool.submit(change, first) for first in (1000, 1001)]
        long = pool.submit(write_long)
        copy(service, source, target, alias)
        assert http.ok("GET", f"/v1/collections/{alias}")["name"] == target
        time.sleep(0.5)
        ended.set()
        for one in changing:
            one.result()
        there |= {"book"} if long.result() == 200 else set()
    found = contents(http, alias).keys()
    assert {one for one in found if one == "book" or int(one[1:]) >= 1000} == there


def test_no_synonyms_are_lost_while_the_alias_moves(http: Http, service: ServerProcess) -> None:
    """Those that are set at the last moment are refused, or are in the new collection."""
    source, alias = http.new_collection(model=OLD), "synonyms-moved"
    http.write(source, document(1))
    http.ok("PUT", f"/v1/aliases/{alias}", {"collection": source})
    path, statuses = f"/v1/collections/{alias}/synonyms", []

    def set_synonyms(word: str) -> None:
        statuses.append(http.call("PUT", path, {"synonyms": [["library", word]]}).status)

    class Slow(AsyncClient):
        async def set_alias(self, alias: str, collection: str) -> AliasBody:
            await asyncio.to_thread(set_synonyms, "late")
            return await super().set_alias(alias, collection)

    async def run() -> None:
        async with Slow(service.url) as client:
            await reembed(
                client,
                source,
                "copy-11",
                alias=alias,
                model=NEW,
                pace=RateLimiter(0),
                progress=lambda *_: None,
            )

    set_synonyms("early")
    asyncio.run(run())
    assert statuses == [200, 503]
    assert http.ok("GET", path)["synonyms"] == [["library", "early"]]


def test_what_expires_while_it_is_copied_is_gone_in_both(http: Http, service: ServerProcess) -> None:
    """It is no failure, and the alias moves."""
    source, until = http.new_collection(model=OLD), time.time() + 4
    passing = [{**document(number), "expires_at": int(until * 1000)} for number in range(20)]
    http.write(source, *passing, *(document(number) for number in range(20, 30)))

    def wait(stage: str, done: int, total: int) -> None:
        time.sleep(max(0.0, until + 0.1 - time.time()) if done == total else 0)

    copy(service, source, "copy-9", "lasting", progress=wait)
    assert http.ok("GET", "/v1/collections/lasting")["name"] == "copy-9"
    assert contents(http, "copy-9").keys() == {f"n{number}" for number in range(20, 30)}


def test_a_copy_that_fails_at_its_end_holds_no_writes(http: Http, service: ServerProcess) -> None:
    source, alias = http.new_collection(model=OLD), "taken-later"
    http.write(source, document(1))

    def take_name(stage: str, done: int, total: int) -> None:
        http.call("POST", "/v1/collections", {"name": alias})

    with pytest.raises(ServiceError) as caught:
        copy(service, source, "copy-10", alias, progress=take_name)
    assert caught.value.status == 409
    http.write(source, document(2))


def test_a_collection_takes_no_writes_for_a_while(http: Http, service: ServerProcess) -> None:
    """Searches go on; of the writes none is done."""
    name = http.new_collection()
    seq = http.write(name, {"id": "a", "text": "one"})["seq"]
    path = f"/v1/collections/{name}"
    assert http.ok("PUT", f"{path}/hold", {"seconds": 60}) == {"seq": seq}
    for method, where, body in (
        ("POST", "documents", {"documents": [{"id": "b", "text": "two"}]}),
        ("PATCH", "documents/a", {"metadata": {"x": 1}}),
        ("DELETE", "documents/a", None),
        ("POST", "documents/delete", {"filter": {"type": "exists", "key": "x", "value": False}}),
        ("PUT", "synonyms", {"synonyms": [["one", "single"]]}),
        ("DELETE", "synonyms", None),
    ):
        reply = http.call(method, f"{path}/{where}", body)
        assert (reply.status, "takes no writes" in reply.body["error"]["message"]) == (503, True), reply
    assert len(http.search(name, query="one", cache=False)["hits"]) == 1
    assert http.ok("PUT", f"{path}/hold", {"seconds": 0}) == {"seq": seq}
    http.write(name, {"id": "b", "text": "two"})
    assert http.call("PUT", f"{path}/hold", {"seconds": 61}).body["error"]["param"] == "seconds"


@pytest.mark.parametrize(
    ("source", "target", "model", "alias", "reason"),
    [
        ("nowhere", "t", NEW, None, "nowhere"),
        ("same", "same", OLD, None, "same collection"),
        ("same", "other", NEW, None, "exists with model"),
        ("same", "fresh", "no-such-model", None, "no-such-model"),
        ("same", "fresh", NEW, "other", "cannot be an alias"),
        ("same", "fresh", NEW, "fresh", "cannot be an alias"),
    ],
)
def test_impossible_copies_are_refused(
    http: Http, service: ServerProcess, source: str, target: str, model: str, alias: str | None, reason: str
) -> None:
    """A missing source, a target of another model, a copy onto itself, an unknown model, an alias that cannot be one:
    one clear error each, before anything is made."""
    for name in ("same", "other"):
        http.call("POST", "/v1/collections", {"name": name, "model": OLD})
    with pytest.raises(ServiceError, match=reason):
        copy(service, source, target, alias, model=model)
    assert http.call("GET", "/v1/collections/fresh").status == 404


def test_a_collection_of_other_documents_is_refused(http: Http, service: ServerProcess) -> None:
    """A target that shares nothing with the source would be emptied: a mistake, and nothing of it is touched."""
    source, target = http.new_collection(model=OLD), http.new_collection(model=NEW)
    http.write(source, *(document(number) for number in range(3)))
    http.write(target, *(document(number) for number in range(50, 55)))
    before = contents(http, target)
    with pytest.raises(ServiceError, match="all would be deleted") as caught:
        copy(service, source, target)
    assert caught.value.status == 409
    assert contents(http, target) == before


@pytest.mark.slow
def test_writes_wait_for_their_turn(http: Http, service: ServerProcess) -> None:
    """Each request waits until the one before has had its time; documents that are left alone take none."""
    source, target = http.new_collection(model=OLD), "copy-7"
    http.write(source, *(document(number) for number in range(210)))
    now, waits = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        waits.append((round(seconds, 6), len(contents(http, target))))

    pace = RateLimiter(100, clock=lambda: now, sleep=sleep)
    copy(service, source, target, pace=pace)
    http.write(source, *(document(number) for number in range(300, 305)))
    copy(service, source, target, pace=pace)
    copy(service, source, target, pace=pace)
    assert waits == [(2.0, 200), (0.1, 210)]
