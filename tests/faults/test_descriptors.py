"""File descriptors: many collections need few, and running out of them ends nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from itertools import takewhile
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from indexes.base.model import IndexOptions
from indexes.directory.catalog import Catalog
from indexes.log import log, sqlite
from jobs.serving.process import log_of, serving
from jobs.serving.service import READY_LINE
from tests.support.http import Http
from tests.support.vectors import World, fill, make_collection, rebuild, settings

WORLD = World()
KEPT = 4
MOST = 2 + KEPT * 4 + KEPT * 4


def descriptors(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def writers() -> int:
    return sum(thread.name.startswith("writer-") for thread in threading.enumerate())


@pytest.mark.slow
def test_idle_collections_share_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bounded number, an idle collection holds no descriptor and no thread; its next write works."""
    monkeypatch.setattr(log, "OPEN_KEPT", KEPT)
    monkeypatch.setattr(sqlite, "READERS_KEPT", KEPT)
    before, threads = descriptors(), writers()
    catalog = Catalog(tmp_path / "data", IndexOptions())
    names = [f"c{number}" for number in range(30)]
    for name in names:
        catalog.create(name, settings()).write([WORLD.document(1)]).result()
    deadline = time.monotonic() + 20
    while writers() > threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert writers() == threads
    assert descriptors() <= before + MOST
    for name in names:
        catalog.get(name).write([WORLD.document(2)]).result()
    catalog.close()
    assert descriptors() <= before + 1
    again = Catalog(tmp_path / "data", IndexOptions())
    assert {again.get(name).snapshot.live for name in names} == {2}
    assert descriptors() <= before + MOST
    again.close()


def test_a_small_generation_needs_none(tmp_path: Path) -> None:
    """Its files are read, not mapped: each map would hold a descriptor for as long as the collection is open."""
    collection = make_collection(tmp_path / "c", hot_capacity=100)
    fill(collection, WORLD, range(300))
    rebuild(collection)
    assert collection.snapshot.generation == 1
    held = [str(one.readlink()) for one in list(Path("/proc/self/fd").iterdir()) if one.is_symlink()]
    folder = str(collection.shelf.path(1))
    assert [name for name in held if name.startswith(folder)] == []
    assert folder not in Path("/proc/self/maps").read_text()
    collection.close()


@pytest.mark.slow
def test_hundreds_of_collections_fit(memory_folder: Path, model_folder: Path) -> None:
    """A service with 1,024 descriptors holds 350 collections."""
    with serving(memory_folder / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        http = Http(server.url)
        for number in range(350):
            http.ok("POST", "/v1/collections", {"name": f"c{number}"})
        http.write("c0", {"id": "one", "text": "a document about rivers"})
        assert http.found("c0", query="rivers", k=1) == ["one"]
        assert descriptors(server.pid) < 500


@pytest.mark.parametrize(("limit", "warns"), [(60, True), (2000, False)])
def test_a_low_limit_is_warned_of(tmp_path: Path, model_folder: Path, limit: int, warns: bool) -> None:
    """The warning says how many connections the limit allows, and the service becomes ready all the same."""
    command = [sys.executable, "-m", "jobs.cli", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    environ = {**os.environ, "NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    limited = ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", *command]
    with subprocess.Popen(limited, env=environ, stdout=PIPE, stderr=STDOUT, text=True) as service:
        assert service.stdout is not None
        begun = list(takewhile(lambda line: not line.startswith(READY_LINE), service.stdout))
        service.terminate()
    assert any("only 60 files may be open (ulimit -n), for at most 30" in line for line in begun) == warns
    assert service.returncode == 0


def test_running_out_ends_nothing(tmp_path: Path, model_folder: Path) -> None:
    """A collection for which no descriptor is left is refused as such, and can be made once there is one."""
    with serving(tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        assert soft == hard
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "first"})
        http.write("first", {"id": "one", "text": "a document about rivers"})
        tried = 0
        for spare in range(2, 9):  # where in the making of a collection they run out
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (descriptors(server.pid) + spare, hard))
            reply = http.call("POST", "/v1/collections", {"name": f"c{spare}"})
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (hard, hard))
            if reply.status != 201:
                tried += 1
                assert (reply.status, reply.body["error"]["type"]) == (503, "out_of_descriptors"), spare
                assert int(reply.headers["Retry-After"]) > 0
                http.ok("POST", "/v1/collections", {"name": f"c{spare}"})
        assert tried > 2
        http.write("first", {"id": "two", "text": "a document about lakes"})
        assert http.ok("GET", "/readyz") == {"status": "ready", "quarantined": []}
        assert server.stop() == 0
    assert "Traceback" not in log_of(tmp_path / "data").read_text()
