"""A disk without room: writes are refused, reads go on, nothing half-written is published, and room mends it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from indexes.base import durable, failures
from indexes.base.durable import Disk
from indexes.base.errors import DiskFull
from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.backup.verifying import verify_backup, verify_data
from indexes.directory.catalog import Catalog
from indexes.directory.marker import is_locked, prepare
from indexes.parts.generation import Generation
from indexes.rebuild.builder import BuildRequest
from indexes.upkeep.erasing import Erasure
from jobs.serving.process import ServerProcess, serving
from retrieval.access.auth import Keys
from tests.support.commands import nearline
from tests.support.guarded import key
from tests.support.http import Http
from tests.support.inspection import consistent
from tests.support.vectors import World, delete, fill, make_collection, settings
from tests.support.versions import document

ROOT = Path(__file__).parents[2]
WORLD = World()


@dataclass
class Room:
    """How the disk of a data directory is filled up, and how room comes back."""

    data: Path
    fill: Callable[[ServerProcess], None]
    free: Callable[[ServerProcess], None]


def limited(folder: Path) -> Iterator[Room]:
    """The limit of a process on the size of its files, which an operator may lift: EFBIG where a disk says ENOSPC."""

    def set_limit(server: ServerProcess, limit: int) -> None:
        _, most = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, most))

    yield Room(
        folder / "data",
        fill=lambda server: set_limit(server, 16_384),
        free=lambda server: set_limit(server, resource.RLIM_INFINITY),
    )


@contextlib.contextmanager
def small_disk(data: Path) -> Iterator[None]:
    """A small file system of its own."""
    data.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "nearline-test", str(data)]
    try:
        refused = subprocess.run(command, capture_output=True, check=False).returncode
    except FileNotFoundError:
        refused = 1
    if refused:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(data)], check=True)


def fill_up(other: Path) -> None:
    with other.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def fill_up_to(other: Path, left: int) -> Iterator[None]:
    """Inside this block there are so many bytes left on a small disk."""
    free = os.statvfs(other.parent)
    try:
        with contextlib.suppress(OSError):  # somebody else has just written something
            other.write_bytes(bytes(free.f_bavail * free.f_frsize - left))
        yield
    finally:
        other.unlink()


def mounted(folder: Path) -> Iterator[Room]:
    """A disk that another file fills."""
    data = folder / "data"
    other = data / ".removed-nothing"  # a name that an opening catalog takes for its own litter
    with small_disk(data):
        yield Room(data, lambda server: fill_up(other), lambda server: other.unlink())


@pytest.fixture(params=[limited, mounted])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    yield from request.param(tmp_path)


def test_a_full_disk_under_the_service(room: Room, model_folder: Path) -> None:
    """Writes get 507, searches and documents are served, a rebuild publishes nothing; with room, all of it works."""
    with serving(room.data, {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        http = Http(server.url)
        name = http.new_collection()
        for number in range(50):
            http.write(name, {"id": f"d{number}", "text": f"animal number {number}"})
        assert http.reindex(name)["status"] == "succeeded"

        room.fill(server)
        written = write_until_refused(http, name, 507)
        for number in (0, 49, *range(50, written)):
            assert http.call("GET", f"/v1/collections/{name}/documents/d{number}").status == 200
        assert http.call("GET", f"/v1/collections/{name}/documents/d{written}").status == 404
        assert "d7" in http.found(name, query="animal number 7", k=50, cache=False)
        assert http.call("PUT", "/v1/aliases/live", {"collection": name}).status in {200, 507}
        assert http.reindex(name)["status"] == "failed"
        info = http.ok("GET", f"/v1/collections/{name}")
        assert info["documents"] == written
        assert info["generation"] == 1
        assert http.call("GET", "/readyz").status == 200

        room.free(server)
        http.write(name, {"id": f"d{written}", "text": "room again"})
        assert http.reindex(name)["status"] == "succeeded"
        assert f"d{written}" in http.found(name, query="room again", cache=False)
        assert http.ok("GET", f"/v1/collections/{name}")["documents"] == written + 1
        assert http.call("PUT", "/v1/aliases/live", {"collection": name}).status == 200


def write_until_refused(http: Http, name: str, status: int) -> int:
    """How many documents there are when the first is refused, with this status."""
    for number in itertools.count(50):
        body = {"documents": [{"id": f"d{number}", "text": "more and more " * 50}]}
        reply = http.call("POST", f"/v1/collections/{name}/documents", body)
        if reply.status != 200:
            assert reply.status == status, reply
            return number
    raise AssertionError


@pytest.mark.parametrize("disk", ["full", "read-only"])
def test_a_disk_that_takes_nothing_can_be_verified_and_copied(tmp_path: Path, disk: str) -> None:
    """An intact directory verifies, and can be backed up to another disk. A log with commits in its write-ahead log
    cannot be read without writing: the message says why, and does not advise deleting it."""
    data = tmp_path / "data"
    with small_disk(data):
        with contextlib.closing(Catalog(data / "whole", IndexOptions())) as catalog:
            fill(catalog.create("docs", settings()), WORLD, range(20))
        if disk == "full":
            fill_up(data / "other")
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(data)], check=True)
        checks = list(verify_data(data / "whole", [], lambda *_: None))
        may = "may not be written"  # which is true of a disk that is read-only
        assert [one for one in checks if not one.ok and may not in one.detail] == []
        ended = nearline("backup", "--data", data / "whole", "--to", tmp_path / "copy")
        assert ended.returncode == 0, ended.stderr
        assert all(one.ok for one in verify_backup(tmp_path / "copy", [], lambda *_: None))

        if disk == "read-only":
            subprocess.run(["mount", "-o", "remount,rw", str(data)], check=True)
        (data / "other").unlink(missing_ok=True)
        shutil.copytree(data / "whole", data / "waiting")
        code = "import apsw, os, sys; db = apsw.Connection(sys.argv[1]); "
        code += "db.execute('PRAGMA user_version = 7'); os._exit(0)"
        subprocess.run([sys.executable, "-c", code, str(data / "waiting/docs/log.db")], check=True)
        (data / "waiting/docs/log.db-shm").unlink()
        if disk == "full":
            fill_up(data / "other")
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(data)], check=True)
        wrong = [one for one in verify_data(data / "waiting", [], lambda *_: None) if one.name == "log"]
        assert [
            ("which reading log.db-wal needs" in one.detail, "delete" in one.advice) for one in wrong
        ] == [(True, False)]


@dataclass
class LastRoom(Disk):
    """There is room for so many more writes and syncs."""

    left: int

    def write(self, file: BinaryIO, content: bytes) -> None:
        self._take()
        super().write(file, content)

    def sync(self, descriptor: int, path: Path) -> None:
        self._take()
        super().sync(descriptor, path)

    def _take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_first_key_without_room_leaves_the_directory_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write or sync fails: either the key is made and needed, or a running service and the next need none."""
    failed = 0
    for left in itertools.count():
        prepare(data := tmp_path / str(left))
        running = Keys(data)
        monkeypatch.setattr(durable, "disk", disk := LastRoom(left))
        text = ""
        with contextlib.suppress(DiskFull):
            text = Keys(data).create(key("admin"))[1]
        monkeypatch.undo()
        running.reload()
        for keys in (running, Keys(data)):
            assert keys.required == is_locked(data) == bool(text), left
            assert bool(keys.admit({"Authorization": f"Bearer {text}"}, "admin").key) == bool(text)
        failed += not text
        if disk.left >= 0:
            break
    assert 3 <= failed < left


def test_a_directory_with_keys_opens_on_a_full_disk(tmp_path: Path) -> None:
    """Nothing about the keys needs to be written. A collection that needs room waits for it, and others do not."""
    with small_disk(data := tmp_path / "data"):
        with contextlib.closing(Catalog(data / "held", IndexOptions())) as catalog:
            fill(catalog.create("docs", settings()), WORLD, range(20))
        text = Keys(data / "held").create(key("admin"))[1]
        Keys(data / "held").remember()
        fill_up(data / "other")
        keys = Keys(data / "held")
        keys.remember()
        assert keys.admit({"Authorization": f"Bearer {text}"}, "admin").key
        with contextlib.closing(Catalog(data / "held", IndexOptions())) as catalog:
            assert "no space left" in catalog.quarantined.get("docs", "no space left")
            (data / "other").unlink()
            assert catalog.retry("docs") or not catalog.quarantined
            assert catalog.get("docs").documents == 20


def create(catalog: Catalog, number: int) -> None:
    catalog.create(f"new{number}", settings())


def write(catalog: Catalog, number: int) -> None:
    catalog.get("docs").write([document(number + 100, 1)]).result()


def remove(catalog: Catalog, number: int) -> None:
    collection = catalog.get("docs")
    delete(collection, [number])
    collection.on_writer(lambda: collection.log.forget_operations(collection.log.newest_seq))


def rename(catalog: Catalog, number: int) -> None:
    catalog.rename(next(iter(catalog.collections)), f"named{number}")


def drop(catalog: Catalog, number: int) -> None:
    create(catalog, number)
    catalog.delete(f"new{number}")


def call(catalog: Catalog, number: int) -> None:
    catalog.set_alias(f"alias{number}", "docs")


def erase(catalog: Catalog, number: int) -> None:
    delete(collection := catalog.get("docs"), [number])
    Erasure(collection).run(lambda *_: None)


@pytest.mark.parametrize("act", [create, write, remove, rename, drop, call, erase])
def test_however_little_room_is_left(tmp_path: Path, act: Callable[[Catalog, int], None]) -> None:
    """What is asked for is done, or refused because there is no room, and never taken for a failure of the disk."""
    with small_disk(data := tmp_path / "data"):
        with contextlib.closing(Catalog(data / "held", IndexOptions())) as catalog:
            fill(catalog.create("docs", settings()), WORLD, range(100))
            done, refused = 0, 0
            for pages in itertools.count():
                with fill_up_to(data / "other", 4096 * pages):
                    try:
                        act(catalog, pages)
                        done += 1
                    except DiskFull:
                        refused += 1
                assert not failures.any_reported()
                if done > 3:
                    break
            assert refused
            catalog.create("last", settings())
        assert all(one.ok for one in verify_data(data / "held", [], lambda *_: None))


BUILDER_WITH_A_LIMIT = """
import resource, sys
from indexes.rebuild.builder import BuildRequest, build
from indexes.base.child import answer
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
sys.exit(answer(BuildRequest, build))
"""


def build_with_limit(request: BuildRequest, bytes_max: int) -> bool:
    """Whether a builder succeeded that may write no file larger than that."""
    command = [
        sys.executable,
        "-c",
        BUILDER_WITH_A_LIMIT,
        str(bytes_max),
        msgspec.json.encode(request).decode(),
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def never_half_published(collection: Collection, limits: list[int]) -> None:
    """For each limit: the generation is there and whole, or nothing of it is."""
    for limit in limits:
        request = collection.begin_build()
        built = build_with_limit(request, limit)
        assert (request.number in collection.shelf.numbers()) == built, limit
        assert not list(collection.shelf.folder.glob(".draft-*")), limit
        if built:
            Generation.load(collection.shelf.path(request.number))
            collection.adopt(request.number)
            consistent(collection)


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    collection = make_collection(tmp_path / "c", hot_capacity=100)
    for start in range(1, 400, 50):
        collection.write([document(number, 1) for number in range(start, start + 50)]).result()
    yield collection
    collection.close()


def sizes(collection: Collection) -> list[int]:
    """Of the files of a generation, from small to large."""
    request = collection.begin_build()
    assert build_with_limit(request, 1 << 30)
    return sorted({path.stat().st_size for path in collection.shelf.path(request.number).rglob("*.*")})


@pytest.mark.slow
def test_no_half_generation_is_published(collection: Collection) -> None:
    """A builder that runs out of room at its smallest, a middle or its largest file leaves no generation behind."""
    found = sizes(collection)
    never_half_published(collection, [found[0] - 1, found[len(found) // 2] - 1, found[-1] - 1, found[-1]])


@pytest.mark.torture
@pytest.mark.timeout(1200)
def test_no_half_generation_at_any_limit(collection: Collection) -> None:
    """The same just below, at and above the size of every file."""
    never_half_published(collection, [size + by for size in sizes(collection) for by in (-4096, -1, 0, 1)])


def test_a_full_disk_below_a_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for its marker a generation is not adopted; the one before serves, and room makes it work."""
    collection = make_collection(tmp_path / "c")
    collection.write([document(number, 1) for number in range(20)]).result()
    request = collection.begin_build()
    assert build_with_limit(request, 1 << 30)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull):
        collection.adopt(request.number)
    assert collection.snapshot.generation == 0
    monkeypatch.undo()
    collection.write([document(20, 1)]).result()
    assert collection.adopt(request.number).number == request.number
    assert len(consistent(collection)) == 21
    collection.close()
