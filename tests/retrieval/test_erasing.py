"""Erasure in a real service: what was deleted is in no byte of the data directory, nor in a new backup."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jobs.serving.process import serving
from tests.support.commands import nearline
from tests.support.http import Http

CANARIES = 200
DIMENSIONS = 384
WRITTEN_AT_ONCE = 500
SONG = np.array([0.0123, -0.0456, 0.0789, 0.0987, -0.0654, 0.0321])


class Flock:
    """Canaries: text, title, metadata and id of each say so, and so do the first numbers of its vector."""

    def __init__(self, count: int) -> None:
        rest = np.random.default_rng(35).normal(size=(count, DIMENSIONS - len(SONG)))
        rest *= np.sqrt(1 - np.sum(SONG**2)) / np.linalg.norm(rest, axis=1, keepdims=True)
        self.vectors = np.hstack([np.tile(SONG, (count, 1)), rest]).astype(np.float32)
        self.marks = [f"canary{number:06d}z" for number in range(count)]

    def documents(self) -> list[dict[str, object]]:
        return [
            {
                "id": f"{mark}/id",
                "title": f"{mark} title",
                "text": f"# {mark} heading\n\nOnly {mark} says this.",
                "metadata": {"secret": f"{mark} value", f"{mark}_key": 1, "nested": {mark: 2}},
                "vector": vector.tolist(),
            }
            for mark, vector in zip(self.marks, self.vectors, strict=True)
        ]


def left_in(*folders: Path) -> dict[str, tuple[int, ...]]:
    """Files that hold anything of canaries: how often their marks, their vectors, and these in half precision."""
    songs = (b"canary", SONG.astype(np.float32).tobytes(), SONG.astype(np.float16).tobytes())
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    counts = {path.name: tuple(map(path.read_bytes().count, songs)) for path in files}
    return {name: count for name, count in counts.items() if any(count)}


def write(http: Http, name: str, documents: list[dict[str, object]]) -> None:
    for first in range(0, len(documents), WRITTEN_AT_ONCE):
        http.write(name, *documents[first : first + WRITTEN_AT_ONCE])


def remove(http: Http, name: str, flock: Flock) -> None:
    """Half of them are deleted, half overwritten and then deleted, one a second time."""
    ids = [f"{mark}/id" for mark in flock.marks]
    write(http, name, [{"id": one, "text": "nothing to see"} for one in ids[::20]])
    for first in range(0, len(ids), WRITTEN_AT_ONCE):
        some = ids[first : first + WRITTEN_AT_ONCE]
        http.ok("POST", f"/v1/collections/{name}/documents/delete", {"ids": some})
        http.ok("POST", f"/v1/collections/{name}/documents/delete", {"ids": some[:1]})


def lay_out(http: Http, name: str, flock: Flock) -> None:
    """Canaries among other documents, in two generations and behind them, asked for, then deleted."""
    others: list[dict[str, object]] = [
        {"id": f"doc{number}", "text": f"This is document {number}.", "vector": vector.tolist()}
        for number, vector in enumerate(-flock.vectors)
    ]
    canaries = flock.documents()
    half = len(canaries) // 2
    write(http, name, [*canaries[:half], *others[:half]])
    assert http.reindex(name)["status"] == "succeeded"
    write(http, name, canaries[half : half + half // 2])
    assert http.reindex(name)["status"] == "succeeded"
    write(http, name, [*canaries[half + half // 2 :], *others[half:]])
    for mark in flock.marks[:20]:
        http.search(name, query=f"who says {mark}?")
        said = {"query": f"who says {mark}?", "document_id": f"{mark}/id", "grade": 3}
        http.ok("POST", f"/v1/collections/{name}/feedback", {"feedback": [said]})
    remove(http, name, flock)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def environ(model_folder: Path, **more: str) -> dict[str, str]:
    return {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_QUERY_LOG_ENABLED": "true",
        "NEARLINE_QUERY_LOG_WRITE_EVERY_S": "0.2",
        "NEARLINE_INDEX_HOT_CAPACITY": "1000",
        **more,
    }


def erased_everywhere(data: Path, model_folder: Path, flock: Flock) -> None:
    backup = data.with_name("backup")
    with serving(data, environ(model_folder)) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        lay_out(http, "docs", flock)
        wait_for((data / "docs/queries.jsonl").is_file)
        owed = http.ok("GET", "/v1/collections/docs")
        assert owed["owed_bytes"] > len(flock.marks) * 4 * DIMENSIONS
        assert time.time() * 1000 - owed["owed_since_ms"] < 600_000
        assert http.metric("nearline_owed_bytes", collection="docs") == owed["owed_bytes"]
        found = left_in(data)
        in_log = [count for name, count in found.items() if name.startswith("log.db")]
        assert min(np.sum(in_log, axis=0)[:2]) >= len(flock.marks)
        assert found["vectors.f16"][2]
        assert found["queries.jsonl"][0]
        assert found["feedback.jsonl"][0]
        expired = Flock(1).documents()[0] | {"id": "canary"}
        http.write("docs", expired)
        http.ok("PATCH", "/v1/collections/docs/documents/canary", {"expires_at": "2001-01-01"})
        assert http.call("GET", "/v1/collections/docs/documents/canary").status == 404
        ended = nearline("erase", "--collection", "docs", "--url", server.url)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith("docs: ")
        assert left_in(data) == {}
        assert nearline("backup", "--data", data, "--to", backup).returncode == 0
        assert left_in(data, backup) == {}
        after = http.ok("GET", "/v1/collections/docs")
        assert (after["owed_bytes"], after["owed_since_ms"]) == (0, None)
        assert after["documents"] == len(flock.marks)
        assert len(http.found("docs", query="document", k=10)) == 10
    assert nearline("verify", "--data", data).returncode == 0
    assert left_in(data, backup) == {}


def wait_for(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_canaries_are_erased_everywhere(data: Path, model_folder: Path) -> None:
    """After `nearline erase` no file of the data directory holds a byte of what was deleted, nor does a new backup."""
    erased_everywhere(data, model_folder, Flock(CANARIES))


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_ten_thousand_canaries_are_erased_everywhere(data: Path, model_folder: Path) -> None:
    """The same with 10,000 of them."""
    erased_everywhere(data, model_folder, Flock(10_000))


@pytest.mark.slow
def test_erasing_by_itself(data: Path, model_folder: Path) -> None:
    """What was deleted goes by itself once it is `index.erase_after_h` old, also if deleted before a restart."""
    flock = Flock(20)
    with serving(data, environ(model_folder)) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        write(http, "docs", flock.documents())
        remove(http, "docs", flock)
    assert left_in(data)
    with serving(data, environ(model_folder, NEARLINE_INDEX_ERASE_AFTER_H="0.0001")) as server:
        http = Http(server.url)
        wait_for(lambda: http.ok("GET", "/v1/collections/docs")["owed_bytes"] == 0)
        assert left_in(data) == {}
        kinds = [job["kind"] for job in http.ok("GET", "/v1/jobs")["jobs"]]
        assert set(kinds) == {"erase"}
