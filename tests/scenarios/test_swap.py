"""A real service process: writes while a rebuild runs, searches across the swap, and a kill in the middle of ingest."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from jobs.serving.process import ServerProcess, serving
from tests.support.http import Http

TOPICS = (
    "granite cliffs",
    "violin sonatas",
    "tax returns",
    "sourdough bread",
    "tidal power",
    "chess openings",
)


def text(number: int) -> str:
    return f"Note {number} about {TOPICS[number % len(TOPICS)]}, filed under code q{number}z."


def document(number: int) -> dict[str, object]:
    return {"id": f"n{number}", "text": text(number)}


def is_found(http: Http, name: str, number: int) -> bool:
    """Whether a document is found by its code, by its meaning and by reading it."""
    by_word = http.found(name, query=f"q{number}z", mode="lexical", k=5)
    by_meaning = http.found(name, query=text(number), mode="dense", k=10)
    read = http.call("GET", f"/v1/collections/{name}/documents/n{number}").status == 200
    states = {f"n{number}" in by_word, f"n{number}" in by_meaning, read}
    assert len(states) == 1, f"n{number}: by word {by_word}, by meaning {by_meaning}, read {read}"
    return read


def test_writes_while_a_rebuild_runs(http: Http) -> None:
    """Found before, during and after the swap; deleted never; every answer from one generation, none failing."""
    name = http.new_collection(hot_capacity=400)
    for start in range(0, 1500, 500):
        http.write(name, *(document(number) for number in range(start, start + 500)))
    job = http.ok("POST", f"/v1/collections/{name}/reindex", {})["job"]
    written: list[int] = []
    deleted: set[int] = set()
    failures: list[str] = []
    done = threading.Event()

    def search_all_the_time() -> None:
        while not done.is_set():
            gone_before = {f"n{number}" for number in list(deleted)}  # a deletion under way may still be seen
            reply = http.call(
                "POST", f"/v1/collections/{name}/search", {"query": "chess openings", "cache": False}
            )
            if reply.status != 200 or not reply.body["hits"]:
                failures.append(str(reply))
            hits = {hit["document_id"] for hit in reply.body["hits"]}
            if back := hits & gone_before:
                failures.append(f"deleted, but found: {back}")

    searching = threading.Thread(target=search_all_the_time)
    searching.start()
    number = 2000
    while http.ok("GET", f"/v1/jobs/{job}")["status"] in ("queued", "running"):
        http.write(name, document(number))
        assert is_found(http, name, number)
        written.append(number)
        gone = number - 2000
        http.ok("DELETE", f"/v1/collections/{name}/documents/n{gone}")
        deleted.add(gone)
        assert not is_found(http, name, gone)
        number += 1
    finished = http.wait_for(job)
    done.set()
    searching.join()
    assert finished["status"] == "succeeded", finished
    assert len(written) > 3, "the rebuild was over before anything could be written"
    assert not failures, failures[:3]
    assert http.search(name, query="chess")["receipt"]["generation"] == 1
    for one in written:
        assert is_found(http, name, one)
    for one in deleted:
        assert not is_found(http, name, one)
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 1500 + len(written) - len(deleted)


def ingest_until_dead(http: Http, name: str, acknowledged: list[int], first: int) -> None:
    """Write documents one after the other until the service no longer answers."""
    number = first
    while True:
        try:
            http.write(name, document(number))
        except OSError:
            return
        acknowledged.append(number)
        number += 1


@pytest.mark.slow
@pytest.mark.parametrize("rebuilding", [False, True], ids=["idle", "during a rebuild"])
def test_kill_during_ingest_loses_nothing(tmp_path: Path, model_folder: Path, rebuilding: bool) -> None:
    """After kill -9 every acknowledged document is found on restart, every deleted one is gone."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_INDEX_DELTA_PASSAGES_MAX": "200"}
    server = ServerProcess(tmp_path / "data", environ)
    http = Http(server.url)
    http.ok("POST", "/v1/collections", {"name": "notes", "hot_capacity": 150})
    http.write("notes", *(document(number) for number in range(500)))
    http.ok("POST", "/v1/collections/notes/documents/delete", {"ids": [f"n{number}" for number in range(50)]})
    if rebuilding:
        http.ok("POST", "/v1/collections/notes/reindex", {})
    acknowledged: list[int] = []
    writers = [
        threading.Thread(target=ingest_until_dead, args=(http, "notes", acknowledged, 10_000 * (at + 1)))
        for at in range(3)
    ]
    for writer in writers:
        writer.start()
    while len(acknowledged) < 60:
        assert all(writer.is_alive() for writer in writers)
        time.sleep(0.005)
    server.kill()
    for writer in writers:
        writer.join()
    with serving(tmp_path / "data", environ) as again:
        http = Http(again.url)
        for number in acknowledged:
            assert http.call("GET", f"/v1/collections/notes/documents/n{number}").status == 200, number
        for number in [*acknowledged[:5], *acknowledged[-5:]]:
            assert is_found(http, "notes", number)
        for number in (0, 25, 49):
            assert not is_found(http, "notes", number)
        count = http.ok("GET", "/v1/collections/notes")["documents"]
        # A write that was under way at the kill may be there without having been acknowledged: one a writer.
        assert 450 + len(acknowledged) <= count <= 450 + len(acknowledged) + len(writers)


def test_sigterm_finishes_what_was_accepted(tmp_path: Path, model_folder: Path) -> None:
    """A large write under way when the signal comes is acknowledged, and is there on restart."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    # As long as a slow machine may take for the write: what comes after the grace is another test's.
    patient = {**environ, "NEARLINE_SERVER_SHUTDOWN_GRACE_S": "120"}
    server = ServerProcess(tmp_path / "data", patient)
    http = Http(server.url)
    http.ok("POST", "/v1/collections", {"name": "notes"})
    replies = []
    documents = [{"id": f"n{number}", "text": text(number) * 6} for number in range(300)]
    path = "/v1/collections/notes/documents"
    writing = threading.Thread(
        target=lambda: replies.append(http.call("POST", path, {"documents": documents}))
    )
    writing.start()
    writing.join(0.3)
    assert writing.is_alive(), "the write was over before the signal"
    assert server.stop() == 0
    writing.join()
    assert replies[0].status == 200
    with serving(tmp_path / "data", environ) as again:
        assert Http(again.url).ok("GET", "/v1/collections/notes")["documents"] == 300


@pytest.mark.slow
def test_another_model_is_refused(tmp_path: Path, model_folder: Path) -> None:
    """Served with a model of another fingerprint, a collection refuses text, clearly, and keeps what it has."""
    import shutil

    import msgspec

    from retrieval.embedding.models import ModelManifest, fingerprint

    with serving(tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "notes"})
        http.write("notes", document(1))
    other = tmp_path / "models" / model_folder.name
    shutil.copytree(model_folder, other)
    manifest = msgspec.json.decode((other / "manifest.json").read_bytes(), type=ModelManifest)
    changed = msgspec.structs.replace(manifest, query_prefix="query: ")
    changed = msgspec.structs.replace(changed, fingerprint=fingerprint(changed))
    (other / "manifest.json").write_bytes(msgspec.json.encode(changed))
    with serving(tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(other.parent)}) as server:
        http = Http(server.url)
        for path, body in [
            ("search", {"query": "x"}),
            ("documents", {"documents": [document(2)]}),
            ("context", {"query": "x", "token_budget": 10}),
        ]:
            reply = http.call("POST", f"/v1/collections/notes/{path}", body)
            assert (reply.status, reply.body["error"]["type"], reply.body["error"]["param"]) == (
                409,
                "model_mismatch",
                "model",
            )
        assert http.found("notes", query="q1z", mode="lexical") == ["n1"]
        assert http.ok("GET", "/v1/collections/notes")["documents"] == 1
