"""A sync that fails, whichever it is: nothing more is acknowledged, the process leaves, and recovery is clean."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import shutil
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from indexes.base import failures
from indexes.base.errors import StorageError
from indexes.base.failpoints import VARIABLE
from indexes.directory.catalog import Catalog
from indexes.log import sqlite
from jobs.serving.process import ServerProcess, serving
from tests.support import workload
from tests.support.http import Http
from tests.support.oracle import Line, Oracle
from tests.support.power import Platter
from tests.support.vectors import make_collection
from tests.support.workload import LOST, MAIN, TUNING, Actor, Options


@dataclass
class Tour:
    """A tour in this process over a disk of which one sync fails, until the service would have left."""

    platter: Platter
    data: Path
    lines: list[Line] = field(default_factory=list)
    told: list[StorageError] = field(default_factory=list)
    lines_before: int | None = None

    def run(self, failing: int, options: Options) -> None:
        self.platter.fails = lambda sync: sync == failing and self._fail()
        forget = failures.listen(self.told.append)
        try:
            for life in (workload.first_life, workload.second_life):
                with contextlib.closing(Catalog(self.data, TUNING)) as catalog:
                    life(Actor("tour", catalog, self._tell), options)
                if self.told:
                    return
        except StorageError as error:  # the directory could not be opened at all
            self.told.append(error)
        finally:
            forget()

    def _fail(self) -> bool:
        self.lines_before = len(self.lines)
        return True

    def _tell(self, line: Mapping[str, object]) -> None:
        self.lines.append(msgspec.convert(line, Line))

    def acknowledged_after(self) -> list[int]:
        """Numbers of operations. A swap may end well if it was clearing away behind it that failed."""
        swaps = {line.n for line in self.lines if f"generation:{MAIN}" in (line.do or {})}
        after = self.lines[self.lines_before :]
        return [line.n for line in after if line.seq is not None and line.n not in swaps]


def tour(folder: Path, failing: int, options: Options) -> Tour:
    data = folder / "disk" / "data"
    data.mkdir(parents=True)
    tour = Tour(Platter(data.parent), data)
    with tour.platter.installed():
        tour.run(failing, options)
        tour.platter.lose(folder / LOST, random.Random(failing))
    return tour


def fail_every_sync(folder: Path, options: Options) -> int:
    """One tour for each n, until n is more than there are syncs: how many failed."""
    for failing in itertools.count(1):
        done = tour(folder / str(failing), failing, options)
        oracle = Oracle()
        oracle.read(done.lines)
        if not options.short:
            copy.deepcopy(oracle).check(done.data)
        oracle.check(folder / str(failing) / LOST / "data")
        shutil.rmtree(folder / str(failing))
        if done.lines_before is None:
            return failing - 1
        assert done.told, f"nobody was told that sync {failing} failed"
        assert not done.acknowledged_after(), f"acknowledged after sync {failing} had failed"
    raise AssertionError


@pytest.fixture
def early_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", workload.CHECKPOINT_PAGES)


@pytest.mark.slow
@pytest.mark.usefixtures("early_checkpoints")
def test_every_sync_that_can_fail(memory_folder: Path) -> None:
    """Sync n fails: nothing is acknowledged after it, and all that was before it survives even a power loss."""
    assert fail_every_sync(memory_folder, Options(story="tour", short=True)) > 40


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("early_checkpoints")
def test_every_sync_of_a_longer_tour(tmp_path: Path) -> None:
    """The same over more rebuilds; without a power loss too, the directory is as it was promised."""
    assert fail_every_sync(tmp_path, Options(story="tour")) > 90


def test_the_service_leaves(tmp_path: Path, model_folder: Path) -> None:
    """A failed sync of the log or of a file ends a real service with exit code 1 and one line; the next has it all."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    server = ServerProcess(tmp_path / "data", environ | {VARIABLE: "commit.before_sync:30=error"})
    http = Http(server.url)
    collection = http.new_collection()
    statuses: dict[str, int] = {}
    readiness: list[int] = []

    def write_until_refused(writer: int) -> None:
        for number in itertools.count():
            document = {"id": f"{writer}-{number}", "text": f"document {number}"}
            try:
                reply = http.call(
                    "POST", f"/v1/collections/{collection}/documents", {"documents": [document]}
                )
                statuses[str(document["id"])] = reply.status
                if reply.status != 200:
                    readiness.append(http.call("GET", "/readyz").status)
                    return
            except OSError:
                return  # nobody listens any more

    threads = [threading.Thread(target=write_until_refused, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended(server, tmp_path) == (1, 1)
    assert set(statuses.values()) <= {200, 500, 503}
    assert 500 in statuses.values()
    assert set(readiness) <= {503}

    server = ServerProcess(tmp_path / "data", environ | {VARIABLE: "sync.begin=error"})
    aliased = "PUT", "/v1/aliases/live", {"collection": collection}
    assert Http(server.url).call(*aliased).status == 500
    assert ended(server, tmp_path) == (1, 2)

    with serving(tmp_path / "data", environ) as again:
        http = Http(again.url)
        for document_id, status in statuses.items():
            found = http.call("GET", f"/v1/collections/{collection}/documents/{document_id}").status
            assert found == 200 or status != 200, f"{document_id} was acknowledged"
        assert http.call(*aliased).status == 200


def ended(server: ServerProcess, folder: Path) -> tuple[int, int]:
    """Exit status, once it has left by itself, and how often the log says that the storage failed."""
    try:
        status = server._child.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        raise
    assert server.stop() == status
    return status, (folder / "data.server.log").read_text().count("the storage failed, exiting")


def test_no_checkpoint_hides_a_failed_sync(tmp_path: Path) -> None:
    """SQLite's own checkpoints are off: they keep a failed sync to themselves. Ours run after a commit, and raise."""
    collection = make_collection(tmp_path / "c")
    assert collection.log._db.pragma("wal_autocheckpoint") == 0
    collection.close()
