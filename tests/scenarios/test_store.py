"""A service with a bucket: the real commands, and S3 as moto serves it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexes.base.errors import InvalidInput
from indexes.store.collection_log import CollectionLog
from indexes.store.directory import DIRECTORY
from indexes.store.objects import Bucket, prove
from indexes.store.opening import directory_at
from indexes.store.restoring import NEWEST
from indexes.store.slots import SlotLog
from indexes.store.uploading import FILES_EVERY_S
from jobs.serving.process import ServerProcess, serving
from retrieval.base.settings import Config, StoreSection
from retrieval.server.lifecycle import store_of
from tests.support.commands import nearline
from tests.support.http import Http, Reply
from tests.support.redis_server import free_port, redis_server

pytestmark = pytest.mark.model
URL = "s3://books/a/prefix"


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[dict[str, str]]:
    """Where the S3 of these tests is, with a bucket."""
    pytest.importorskip("moto")
    port = free_port()
    log = (tmp_path_factory.mktemp("moto") / "log").open("wb")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(urllib.request.Request(f"{endpoint}/books", method="PUT"), timeout=5)
                break
            time.sleep(0.05)
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "NEARLINE_STORE_URL": URL,
            "NEARLINE_STORE_ACKNOWLEDGE": "bucket",
            "NEARLINE_MODELS_FOLDER": str(model_folder.parent.resolve()),
        }
    finally:
        server.terminate()
        server.wait(10)
        log.close()


def holds(folder: Path, word: bytes) -> bool:
    found = False
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # files come and go
            found = found or word in path.read_bytes()
    return found


def texts(http: Http, query: str) -> list[str]:
    found = http.ok("POST", "/v1/collections/docs/search", {"query": query, "k": 10})
    return sorted(hit["text"] for hit in found["hits"])


def test_a_machine_is_lost(tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory on the next machine serves all that was acknowledged, with keys; earlier moments are restored
    by command; what is erased is in no object."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    bucket = Bucket(URL)
    prove(bucket)
    with serving(tmp_path / "a", environ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        for number in range(5):
            document = {"id": f"n{number}", "text": f"note number {number}", "title": "zugzwang"}
            http.ok("POST", "/v1/collections/docs/documents", {"documents": [document]})
        body = http.ok("GET", "/v1/collections/docs")
        assert (body["store"]["seq"], body["store"]["behind"]) == (5, 0)
        assert "nearline_store_up 1.0" in http.call("GET", "/metrics").body
        http.ok("DELETE", "/v1/collections/docs/documents/n4")
        server.kill()
    shutil.rmtree(tmp_path / "a")
    restored = nearline(
        "restore", "--from", URL, "--data", tmp_path / "then", "-c", "docs", "--at", "5", **environ
    )
    assert restored.returncode == 0, restored.stderr
    assert "docs: 5 documents at seq 5" in restored.stdout
    wrong = nearline("restore", "--from", URL, "--data", tmp_path / "then", "--at", "yesterday", **environ)
    assert wrong.returncode == 2
    assert "neither the number of an operation nor a time" in wrong.stderr
    with serving(tmp_path / "b", environ) as server:
        http = Http(server.url)
        assert texts(http, "note") == [f"note number {number}" for number in range(4)]
        http.ok(
            "POST", "/v1/collections/docs/documents", {"documents": [{"id": "n0", "text": "something else"}]}
        )
        erased = nearline("erase", "--collection", "docs", "--url", server.url, **environ)
        assert erased.returncode == 0, erased.stderr
        http.ok(
            "POST", "/v1/collections/docs/documents", {"documents": [{"id": "n9", "text": "note number 9"}]}
        )
        before = http.ok("GET", "/v1/collections/docs")["generation"]
        built = nearline("reindex", "-c", "docs", "--on-this-machine", URL, **environ)
        assert built.returncode == 0, built.stderr
        assert "is live: 5 passages hot" in built.stdout
        assert http.ok("GET", "/v1/collections/docs")["generation"] > before
        again = nearline("reindex", "-c", "docs", "--on-this-machine", URL, **environ)
        assert again.returncode == 0
        assert "already" in again.stdout
    uid = directory_at(SlotLog(bucket, DIRECTORY), NEWEST).collections["docs"]
    held = [bucket.read(name) for name in CollectionLog(bucket, uid).objects_held()]
    assert not [content for content in held if b"note number 0" in content or b"note number 4" in content]
    assert [content for content in held if b"note number 1" in content]


def test_settings_and_keys_outlive_the_machine(tmp_path: Path, environ: dict[str, str]) -> None:
    """Whatever was set, removed, made or revoked is so on the next machine, which starts a moment after the answer."""
    environ = {**environ, "NEARLINE_STORE_URL": "s3://books/settings"}
    made = nearline("keys", "create", "--data", tmp_path / "a", "--scope", "admin", "--json", **environ)
    held = {"admin": json.loads(made.stdout)["key"]}
    docs, synonyms = "/v1/collections/docs", "/v1/collections/docs/synonyms"

    def call(server: ServerProcess, method: str, path: str, body: object = None, key: str = "admin") -> Reply:
        return Http(server.url).call(method, path, body, headers={"Authorization": f"Bearer {held[key]}"})

    with serving(tmp_path / "a", environ) as server:
        assert call(server, "POST", "/v1/collections", {"name": "docs"}).status < 300
        time.sleep(FILES_EVERY_S / 4)  # the thread has looked for settings, and does not soon again
        assert call(server, "PUT", f"{docs}/ranking", {"weight_dense": 0.25}).status == 200
        assert call(server, "PUT", synonyms, {"synonyms": [["boat", "ship"]]}).status == 200
        assert call(server, "POST", "/v1/vector_stores/docs", {"name": "Häufige Fragen"}).status == 200
        made_key = call(server, "POST", "/v1/keys", {"scopes": ["search"]}).body
        held["search"] = made_key["key"]
        server.kill()
    with serving(tmp_path / "b", environ) as server:
        assert Http(server.url).call("GET", "/v1/collections").status == 401  # from the first moment on
        assert call(server, "GET", docs).body["ranking"]["weight_dense"] == 0.25
        assert call(server, "GET", synonyms).body["synonyms"] == [["boat", "ship"]]
        assert call(server, "GET", "/v1/vector_stores/docs").body["name"] == "Häufige Fragen"
        assert call(server, "POST", f"{docs}/search", {"query": "boat"}, key="search").status == 200
        assert call(server, "DELETE", f"{docs}/ranking").status == 204
        assert call(server, "DELETE", synonyms).status == 204
        assert call(server, "DELETE", f"/v1/keys/{made_key['record']['id']}").status == 204
        server.kill()
    with serving(tmp_path / "c", environ) as server:
        assert call(server, "GET", docs).body["ranking"] is None
        assert call(server, "GET", synonyms).body["synonyms"] == []
        assert call(server, "POST", f"{docs}/search", {"query": "boat"}, key="search").status == 401


def test_a_replica_follows_and_is_promoted(tmp_path: Path, environ: dict[str, str]) -> None:
    """It has what was acknowledged within moments, survives kills of either side, refuses writes by naming the writer,
    and takes over when it is promoted."""
    environ = {**environ, "NEARLINE_STORE_URL": "s3://books/replicas", "NEARLINE_STORE_POLL_MS": "50"}
    follows = {**environ, "NEARLINE_STORE_REPLICA": "true"}

    def write(http: Http, number: int) -> int:
        document = {"id": f"n{number}", "text": f"note number {number}"}
        return int(http.ok("POST", "/v1/collections/docs/documents", {"documents": [document]})["seq"])

    def found(http: Http, seq: int) -> list[str]:
        search = {"query": "note", "k": 20, "min_seq": seq, "deadline_ms": 30_000}
        hits = http.ok("POST", "/v1/collections/docs/search", search)["hits"]
        return sorted(hit["document_id"] for hit in hits)

    with serving(tmp_path / "a", environ) as writer:
        http = Http(writer.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        seq = write(http, 0)
        with serving(tmp_path / "b", follows) as replica:
            other = Http(replica.url)
            assert found(other, seq) == ["n0"]
            for number in range(1, 4):
                assert len(found(other, write(http, number))) == number + 1
            refused = other.call(
                "POST", "/v1/collections/docs/documents", {"documents": [{"id": "x", "text": "x"}]}
            )
            assert refused.status == 409
            assert "this service is a replica; writes go to " in refused.body["error"]["message"]
            for method, path, body in (
                ("POST", "/v1/keys", {"scopes": ["search"]}),
                ("POST", "/v1/collections/docs/erase", {}),
                ("POST", "/v1/collections/docs/feedback", {"feedback": []}),
                ("DELETE", "/v1/collections/docs", None),
                ("PUT", "/v1/aliases/live", {"collection": "docs"}),
            ):
                assert other.call(method, path, body).status == 409, path
            assert other.call("POST", "/v1/collections/docs/reindex", {}).status == 202
            assert sorted(http.ok("GET", "/v1/collections/docs")["store"]) == ["behind", "lag_s", "seq"]
            state = other.ok("GET", "/v1/collections/docs")["store"]
            assert (sorted(state), state["seq"]) == (["age_s", "behind", "seq"], 4)
            shown = other.call("GET", "/metrics").body
            assert "\nnearline_store_age_seconds " in shown
            assert "\nnearline_store_lag_seconds " not in shown
            search = {"query": "note"}
            assert 0 <= other.ok("POST", "/v1/collections/docs/search", search)["receipt"]["age_s"] < 10
            assert "age_s" not in http.ok("POST", "/v1/collections/docs/search", search)["receipt"]
            replica.kill()
        seq = write(http, 4)
        with serving(tmp_path / "b", follows) as replica:
            other = Http(replica.url)
            assert len(found(other, seq)) == 5
            writer.kill()
            assert len(found(other, seq)) == 5
    promoted = nearline("promote", "--data", tmp_path / "b", **environ)
    assert promoted.returncode == 0, promoted.stderr
    with serving(tmp_path / "b", environ) as writer:
        http = Http(writer.url)
        assert len(found(http, write(http, 5))) == 6


def test_nothing_is_passed_on_to_a_writer_that_was_replaced(tmp_path: Path, environ: dict[str, str]) -> None:
    """The replica knows from the store that another service writes, and says so; it follows that one. The replaced
    writer, which has had nothing to write, ends."""
    environ = {**environ, "NEARLINE_STORE_URL": "s3://books/replaced"}
    body = {"documents": [{"id": "n1", "text": "note"}]}
    with serving(tmp_path / "a", environ) as writer:
        Http(writer.url).ok("POST", "/v1/collections", {"name": "docs"})
        follows = {
            "NEARLINE_STORE_REPLICA": "true",
            "NEARLINE_STORE_WRITER": writer.url,
            "NEARLINE_STORE_FORWARD_WRITES": "true",
        }
        with serving(tmp_path / "b", environ | follows) as replica:
            http = Http(replica.url)
            assert http.call("POST", "/v1/collections/docs/documents", body).status == 200
            os.kill(writer.pid, signal.SIGSTOP)
            with serving(tmp_path / "c", environ) as new:
                os.kill(writer.pid, signal.SIGCONT)
                late = time.monotonic() + 60
                while (answer := http.call("POST", "/v1/collections/docs/documents", body)).status == 200:
                    assert time.monotonic() < late
                    time.sleep(0.1)
                assert answer.status in (500, 503), answer  # of the old writer, or of the replica
                Http(new.url).ok(
                    "POST", "/v1/collections/docs/documents", {"documents": [{"id": "n2", "text": "b"}]}
                )
                while http.call("GET", "/v1/collections/docs/documents/n2").status != 200:
                    assert time.monotonic() < late
                    time.sleep(0.1)
                while (answer := http.call("POST", "/v1/collections/docs/documents", body)).status != 503:
                    assert time.monotonic() < late
            assert writer.stop() != 0


@pytest.mark.slow
def test_a_replica_passes_writes_on(tmp_path: Path, environ: dict[str, str]) -> None:
    """A replica with `store.writer` is told what is new instead of asking for it, and with `forward_writes` a client
    needs to know only the replica: writes, new collections, refusals and jobs come from the writer."""
    environ = {**environ, "NEARLINE_STORE_URL": "s3://books/forwards"}
    with serving(tmp_path / "a", environ) as writer:
        follows = {
            **environ,
            "NEARLINE_STORE_REPLICA": "true",
            "NEARLINE_STORE_WRITER": writer.url,
            "NEARLINE_STORE_FORWARD_WRITES": "true",
            "NEARLINE_STORE_POLL_MS": "60000",
        }
        with serving(tmp_path / "b", follows) as replica:
            http = Http(replica.url)
            http.ok("POST", "/v1/collections", {"name": "docs"})
            assert http.ok("GET", "/v1/collections/docs")["documents"] == 0
            for number in range(3):
                document = {"id": f"n{number}", "text": f"note number {number}"}
                written = http.ok("POST", "/v1/collections/docs/documents", {"documents": [document]})
                search = {"query": "note", "min_seq": written["seq"], "deadline_ms": 10_000}
                assert len(http.ok("POST", "/v1/collections/docs/search", search)["hits"]) == number + 1
            wrong = http.call(
                "POST", "/v1/collections/docs/documents", {"documents": [{"id": 7, "text": ""}]}
            )
            assert wrong.status == 422
            assert "documents[0]" in wrong.body["error"]["message"]
            http.ok("POST", "/v1/collections", {"name": "later"})
            secret = {"documents": [{"id": "n2", "text": "note number 2 zebraquartz"}]}
            http.ok("POST", "/v1/collections/docs/documents", secret)
            gone = http.ok("DELETE", "/v1/collections/docs/documents/n2")
            search = {"query": "note", "min_seq": gone["seq"], "deadline_ms": 10_000}
            assert len(http.ok("POST", "/v1/collections/docs/search", search)["hits"]) == 2
            erased = nearline("erase", "--collection", "docs", "--url", replica.url, **environ)
            assert erased.returncode == 0, erased.stderr
            until = time.monotonic() + 60
            while holds(tmp_path / "b", b"zebraquartz"):
                assert time.monotonic() < until
                time.sleep(0.2)
            assert not holds(tmp_path / "a", b"zebraquartz")
            rebuilt = http.ok("POST", "/v1/collections/docs/reindex", {})["job"]
            until = time.monotonic() + 60
            while http.ok("GET", f"/v1/jobs/{rebuilt}")["status"] in {"queued", "running"}:
                assert time.monotonic() < until
                time.sleep(0.2)
            listed = http.ok("GET", "/v1/jobs")["jobs"]
            assert listed[0]["id"] == rebuilt
            assert [job["kind"] for job in listed] == [
                "reindex",
                "erase",
                "erase",
            ]  # the replica has erased, too
            row = {"text": "word " * 2000, "vector": [1.0] * 384}  # large, with nothing to embed
            large = {"documents": [{"id": f"l{at}", **row} for at in range(50)]}
            assert http.ok("POST", "/v1/collections/later/documents", large)["documents"] == 50
            assert http.call("GET", "/v1/jobs/unknown").status == 404
            writer.kill()
            lost = http.call("DELETE", "/v1/collections/docs/documents/n0")
            assert (lost.status, lost.body["error"]["type"]) == (503, "unavailable")
            assert len(http.ok("POST", "/v1/collections/docs/search", {"query": "note"})["hits"]) == 2
            (tmp_path / "notes.txt").write_text("a note")
            said = said_by_ingest(tmp_path / "notes.txt", replica.url)
            assert "s on " in said
            assert "the service that writes " in said


def test_what_is_passed_on_counts_once(tmp_path: Path, environ: dict[str, str]) -> None:
    """Writer and replica share what a key has used of its limits through Redis."""
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis") as redis:
        environ = {
            **environ,
            "NEARLINE_STORE_URL": "s3://books/limits",
            "NEARLINE_REDIS_URL": redis.url,
            "NEARLINE_REDIS_SECRET": "0123456789abcdef0123",
        }
        made = nearline("keys", "create", "--data", tmp_path / "a", "--scope", "admin", "--json")
        key = json.loads(made.stdout)["key"]
        with serving(tmp_path / "a", environ) as writer:
            follows = {
                **environ,
                "NEARLINE_STORE_REPLICA": "true",
                "NEARLINE_STORE_WRITER": writer.url,
                "NEARLINE_STORE_WRITER_API_KEY": key,
                "NEARLINE_STORE_FORWARD_WRITES": "true",
            }

            def call(url: str, path: str, body: object, key: str = key) -> Reply:
                return Http(url).call("POST", path, body, headers={"Authorization": f"Bearer {key}"})

            assert call(writer.url, "/v1/collections", {"name": "docs"}).status == 201
            wanted = {"scopes": ["write"], "limits": {"per_day": 3}}
            limited = call(writer.url, "/v1/keys", wanted).body["key"]
            with serving(tmp_path / "b", follows) as replica:
                note = {"documents": [{"id": "1", "text": "a note"}]}
                path = "/v1/collections/docs/documents"
                late, written = time.monotonic() + 30, list[int]()
                while len(written) < 4 and time.monotonic() < late:
                    status = call(replica.url, path, note, limited).status
                    # The replica gets the key through the store.
                    written += [status] if written or status != 401 else []
                assert written == [200, 200, 200, 429]


@pytest.mark.slow
def test_names_that_a_replica_passes_on_are_known_there(tmp_path: Path, environ: dict[str, str]) -> None:
    """When the answer comes, although the writer by itself would upload them half a minute later."""
    environ = {**environ, "NEARLINE_STORE_URL": "s3://books/names", "NEARLINE_STORE_ACKNOWLEDGE": "local"}
    with serving(tmp_path / "a", {**environ, "NEARLINE_STORE_LAG_S_MAX": "60"}) as writer:
        Http(writer.url).ok("POST", "/v1/collections", {"name": "docs"})
        follows = {**environ, "NEARLINE_STORE_REPLICA": "true", "NEARLINE_STORE_WRITER": writer.url}
        with serving(tmp_path / "b", {**follows, "NEARLINE_STORE_FORWARD_WRITES": "true"}) as replica:
            http = Http(replica.url)
            for name in ("live", "next", "next"):
                answer = http.call("PUT", f"/v1/aliases/{name}", {"collection": "docs"})
                assert "Nearline-Names-Slot" not in answer.headers
                assert http.ok("GET", f"/v1/collections/{name}")["name"] == "docs"
            http.ok("POST", "/v1/collections", {"name": "more"})
            assert http.ok("GET", "/v1/collections/more")["documents"] == 0


def said_by_ingest(path: Path, url: str) -> str:
    """The first line of progress, which comes after a while."""
    command = [sys.executable, "-m", "jobs.cli", "ingest", str(path), "--collection", "docs", "--url", url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = running.stderr.readline()
        running.terminate()
    return said


@pytest.mark.slow
def test_a_writer_that_hangs(tmp_path: Path, environ: dict[str, str]) -> None:
    """What a replica has passed on is given up after a while, and said to have been done perhaps; what comes later is
    refused at once, until the writer answers again."""
    environ = {**environ, "NEARLINE_STORE_URL": "s3://books/hangs"}
    with serving(tmp_path / "a", environ) as writer:
        Http(writer.url).ok("POST", "/v1/collections", {"name": "docs"})
        follows = {**environ, "NEARLINE_STORE_REPLICA": "true", "NEARLINE_STORE_WRITER": writer.url}
        with serving(tmp_path / "b", {**follows, "NEARLINE_STORE_FORWARD_WRITES": "true"}) as replica:
            http = Http(replica.url)
            body = {"documents": [{"id": "n0", "text": "note number 0"}]}
            os.kill(writer.pid, signal.SIGSTOP)
            try:
                for said in ("did not answer, and may have done", "nothing was passed on"):
                    answer = http.call("POST", "/v1/collections/docs/documents", body)
                    assert (answer.status, answer.body["error"]["type"]) == (503, "unavailable")
                    assert said in answer.body["error"]["message"]
                    assert int(answer.headers["Retry-After"]) > 0
            finally:
                os.kill(writer.pid, signal.SIGCONT)
            until = time.monotonic() + 60
            while http.call("POST", "/v1/collections/docs/documents", body).status != 200:
                assert time.monotonic() < until
                time.sleep(0.2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (StoreSection(replica=True), "set store.url"),
        (StoreSection(url="file:///tmp/x", replica=True, forward_writes=True), "needs store.writer"),
    ],
)
def test_a_replica_needs_to_know_where(settings: StoreSection, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        store_of(Config(store=settings), tmp_path)
