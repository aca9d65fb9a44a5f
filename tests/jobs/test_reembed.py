"""Embedding a collection anew with another model: a real service, two models, writes in between, a kill."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.reembedding import Copied, digest, reembed
from jobs.server_process import ServerProcess, serving
from retrieval.client import Client, ServiceError
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
    }


def copy(
    service: ServerProcess, source: str, target: str, alias: str | None = None, **options: object
) -> Copied:
    async def run() -> Copied:
        async with Client(service.url) as client:
            settings = {"model": NEW, "per_s": 0.0, "progress": lambda *_: None, **options}
            return await reembed(client, source, target, alias=alias, **settings)  # type: ignore[arg-type]

    return asyncio.run(run())


def contents(http: Http, collection: str) -> dict[str, bytes]:
    page = http.ok("POST", f"/v1/collections/{collection}/documents/scroll", {"limit": 1000})
    return {one["id"]: digest(one) for one in page["documents"]}


def test_a_copy_holds_everything_with_the_new_model(http: Http, service: ServerProcess) -> None:
    """The target has every document, found by meaning with the new model, and the alias names it."""
    source, target = http.new_collection(model=OLD), "copy-1"
    http.write(source, *(document(number) for number in range(250)))
    http.ok("PUT", "/v1/aliases/notes-1", {"collection": source})
    done = copy(service, "notes-1", target, alias="notes-1")
    assert (done.written, done.unchanged, done.deleted) == (250, 0, 0)
    assert contents(http, target) == contents(http, source)
    assert http.ok("GET", "/v1/collections/notes-1")["name"] == target
    assert http.ok("GET", f"/v1/collections/{target}")["model"] == NEW
    (hit,) = http.search("notes-1", query="q7z", mode="lexical", k=1)["hits"]
    assert (hit["document_id"], hit["metadata"], hit["title"]) == ("n7", {"number": 7}, "Note 7")
    assert len(http.search("notes-1", query="a note about a code", mode="dense", k=5)["hits"]) == 5


def test_only_what_changed_is_copied_again(http: Http, service: ServerProcess) -> None:
    """A second copy writes changed and new documents, deletes what is gone, and leaves the rest alone."""
    source, target = http.new_collection(model=OLD), "copy-2"
    http.write(source, *(document(number) for number in range(30)))
    copy(service, source, target)
    before = http.ok("GET", f"/v1/collections/{target}/documents/n20")["seq"]
    http.write(source, document(3, version=1), document(30))
    http.ok("POST", f"/v1/collections/{source}/documents/delete", {"ids": ["n5", "n6"]})
    done = copy(service, source, target)
    assert (done.written, done.unchanged, done.deleted) == (2, 27, 2)
    assert contents(http, target) == contents(http, source)
    assert http.ok("GET", f"/v1/collections/{target}/documents/n20")["seq"] == before


def test_writes_meanwhile_are_taken_over(http: Http, service: ServerProcess) -> None:
    """What is written to, replaced in or deleted from the source while it is copied is in the target as well."""
    source, target = http.new_collection(model=OLD), "copy-3"
    http.write(source, *(document(number) for number in range(400)))
    changes = iter(range(3))

    def progress(stage: str, done: int, total: int) -> None:
        if (change := next(changes, None)) is not None:
            http.write(source, document(1, version=change + 1), document(1000 + change))
            http.ok("POST", f"/v1/collections/{source}/documents/delete", {"ids": [f"n{390 + change}"]})

    done = copy(service, source, target, progress=progress)
    assert done.passes > 1
    assert contents(http, target) == contents(http, source)
    assert "n1002" in contents(http, target)
    assert not {"n390", "n391", "n392"} & contents(http, target).keys()


def test_a_killed_copy_goes_on_where_it_stopped(http: Http, service: ServerProcess) -> None:
    """The command, killed in the middle, leaves a target that the next run completes without writing anything twice."""
    source, target = http.new_collection(model=OLD), "copy-4"
    http.write(source, *(document(number) for number in range(800)))
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
    assert 200 <= held < 800
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    done = json.loads(output)
    assert done["written"] + done["unchanged"] == 800
    assert done["unchanged"] >= held
    assert contents(http, target) == contents(http, source)


def test_newer_writes_to_the_target_are_kept(http: Http, service: ServerProcess) -> None:
    """What clients write through the alias once it has moved is not overwritten by what the source held."""
    source, target = http.new_collection(model=OLD), "copy-5"
    http.write(source, *(document(number) for number in range(10)))
    http.ok("PUT", "/v1/aliases/notes-5", {"collection": source})
    copy(service, source, target, alias="notes-5")
    http.write("notes-5", document(2, version=9))
    assert http.ok("GET", f"/v1/collections/{target}/documents/n2")["text"] == document(2, version=9)["text"]


@pytest.mark.parametrize(
    ("source", "target", "model", "reason"),
    [
        ("nowhere", "t", NEW, "nowhere"),
        ("same", "same", OLD, "same collection"),
        ("same", "other", NEW, "with the model"),
        ("same", "fresh", "no-such-model", "no-such-model"),
    ],
)
def test_impossible_copies_are_refused(
    http: Http, service: ServerProcess, source: str, target: str, model: str, reason: str
) -> None:
    """A missing source, a target of another model, a copy onto itself, an unknown model: one clear error each."""
    for name in ("same", "other"):
        http.call("POST", "/v1/collections", {"name": name, "model": OLD})
    with pytest.raises(ServiceError, match=reason):
        copy(service, source, target, model=model)
    assert http.call("GET", "/v1/collections/fresh").status == 404


def test_the_pace_is_kept(http: Http, service: ServerProcess) -> None:
    """With a limit, a copy takes no less time than its documents need at that pace."""
    source = http.new_collection(model=OLD)
    http.write(source, *(document(number) for number in range(220)))
    assert copy(service, source, "copy-6", per_s=110.0).seconds >= 2.0
