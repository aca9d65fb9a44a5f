"""A data directory and its store: who may write, what each restores of the other, and when a write is acknowledged."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from indexes.base import failures
from indexes.base.durable import with_checksum
from indexes.base.errors import Conflict, Damaged, NotFound, Quarantined, StorageError, Unavailable
from indexes.base.model import Delete, IndexOptions, Upsert, WriteResult
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from indexes.directory.marker import (
    KEYS,
    KEYS_LOCK,
    MARKER,
    MARKER_COPY,
    Marker,
    change_marker,
    is_locked,
    read_marker,
    write,
)
from indexes.parts.learned import VectorStoreSettings
from indexes.store import availability, confirming, naming, rows, session
from indexes.store.directory import (
    DIRECTORY,
    PUT,
    Directory,
    Put,
    Record,
    describe_directory,
    read_put,
    write_record,
)
from indexes.store.following import promote
from indexes.store.generations import StoredGeneration
from indexes.store.objects import Bucket, Objects
from indexes.store.offers import Offers
from indexes.store.opening import restore_from
from indexes.store.restoring import NEWEST, Until
from indexes.store.slots import SlotLog
from indexes.store.uploading import StoreOptions, Uploader
from indexes.upkeep.erasing import Erasure
from tests.support.object_stores import Fault, MemoryObjects
from tests.support.vectors import World, settings

WORLD = World()
WAIT_S = 20.0


class Service:
    """A catalog with a store, as a service has them."""

    def __init__(self, data: Path, objects: Objects, options: StoreOptions) -> None:
        self.uploader = Uploader(objects, options, data)
        indexes = IndexOptions(replication=self.uploader)
        self.catalog = Catalog(data, indexes, before_opening=lambda: self.uploader.open(lambda *_: None))
        self.uploader.start(self.catalog)

    def create(self, name: str) -> None:
        self.catalog.create(name, settings())
        if self.uploader.options.acknowledge == "bucket":
            self.uploader.directory_changed().result(WAIT_S)

    def write(self, name: str, *numbers: int, version: int = 0) -> Future[WriteResult]:
        documents = [WORLD.document(number, version=version) for number in numbers]
        return self.catalog.get(name).write(documents)

    def ids(self, name: str) -> set[str]:
        collection = self.catalog.get(name)
        return {one for number in range(300) for one in [f"d{number}"] if collection.log.document(one)}

    def is_level(self) -> bool:
        level = all(not self.uploader.state_of(one).behind for one in self.catalog.collections.values())
        return level and not self.uploader.lag_s and not self.uploader.error

    def close(self) -> None:
        self.uploader.close()
        self.catalog.close()


BUCKET = StoreOptions("memory:", "bucket")
LOCAL = StoreOptions("memory:", "local", lag_s_max=0.2)


@contextlib.contextmanager
def serving(data: Path, objects: Objects, options: StoreOptions = BUCKET) -> Iterator[Service]:
    service = Service(data, objects, options)
    try:
        yield service
    finally:
        service.close()


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def damage_end(objects: MemoryObjects, uid: str) -> tuple[str, bytes]:
    """Cut the last object of a collection's log. Returns its name, and what it held."""
    name = max(one for one in objects.held if uid in one and "/log/" in one)
    whole = objects.held[name]
    objects.held[name] = whole[:-1]
    return name, whole


def away(operation: str, name: str) -> Fault:
    return "before"


def near(operation: str, name: str) -> Fault:
    return ""


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


def test_settings_are_confirmed_once_the_store_has_them(tmp_path: Path, objects: MemoryObjects) -> None:
    """The machine may vanish then; a store that is away confirms nothing, and what it missed comes at the end."""

    def restored(name: str) -> str | None:
        held = MemoryObjects(dict(objects.held))
        with serving(tmp_path / name, held) as other:
            found = other.catalog.get("docs").vector_store.current
        return found.name if found else None

    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        docs = service.catalog.get("docs")
        for number in range(5):
            docs.vector_store.set(VectorStoreSettings(name=f"{number}"))
            service.uploader.settings_changed(docs.uid).result(WAIT_S)
            assert restored(f"b{number}") == f"{number}"
        docs.vector_store.clear()
        service.uploader.settings_changed(docs.uid).result(WAIT_S)
        assert restored("none") is None
        objects.fault = away
        docs.vector_store.set(VectorStoreSettings(name="late"))
        missed = service.uploader.settings_changed(docs.uid)
        wait_for(lambda: bool(service.uploader.error))
        assert not missed.done()
        objects.fault = near
        assert missed.result(WAIT_S)
        docs.vector_store.set(VectorStoreSettings(name="last"))
    assert restored("end") == "last"


def test_an_acknowledged_write_is_in_the_store(tmp_path: Path, objects: MemoryObjects) -> None:
    """When a write is acknowledged, the machine may vanish at once."""
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        for number in range(20):
            service.write("docs", number).result(WAIT_S)
            if number % 5 == 0:
                copied = MemoryObjects(dict(objects.held))
                with serving(tmp_path / f"at{number}", copied) as other:
                    assert other.ids("docs") == {f"d{one}" for one in range(number + 1)}


def test_writes_wait_for_a_store_that_is_away(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that the store did not get in time is not acknowledged, the next ones are refused at once, searches go
    on; and when the store is back, it gets everything."""
    monkeypatch.setattr(confirming, "CONFIRM_S", 0.5)
    monkeypatch.setattr(availability, "RETRY_S", (0.1, 0.2))
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
        objects.fault = away
        with pytest.raises(Unavailable, match="not yet in the store"):
            service.write("docs", 2).result(WAIT_S)
        with pytest.raises(Unavailable, match="writes wait for the store"):
            service.write("docs", 3)
        with pytest.raises(Unavailable, match="writes wait for the store"):
            service.create("other")
        assert len(service.catalog.get("docs").exact(WORLD.queries(1), 5)[0][0]) == 2
        objects.fault = near
        wait_for(service.is_level)
        service.write("docs", 4).result(WAIT_S)
    with serving(tmp_path / "b", objects) as other:
        assert other.ids("docs") == {"d1", "d2", "d4"}
        assert set(other.catalog.collections) == {"docs"}


def test_local_writes_go_on_while_the_store_is_away(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "RETRY_S", (0.1, 0.2))
    with serving(tmp_path / "a", objects, LOCAL) as service:
        service.create("docs")
        wait_for(service.is_level)
        objects.fault = away
        for number in range(5):
            service.write("docs", number).result(WAIT_S)
        wait_for(lambda: bool(service.uploader.error))
        state = service.uploader.state_of(service.catalog.get("docs"))
        assert (state.seq, state.behind) == (0, 5)
        assert state.lag_s > 0
        objects.fault = near
        wait_for(service.is_level)
        assert service.uploader.state_of(service.catalog.get("docs")).seq == 5


@pytest.mark.parametrize("options", [BUCKET, LOCAL])
def test_a_store_that_comes_back_is_noticed_without_a_write(
    options: StoreOptions, tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a service whose writes wait for the store would refuse them for good."""
    monkeypatch.setattr(availability, "RETRY_S", (0.1, 0.2))
    with serving(tmp_path / "a", objects, options) as service:
        service.create("docs")
        wait_for(service.is_level)
        objects.fault = away

        def is_away() -> bool:
            service.uploader._session.available.failed(Unavailable("the store is away"))
            time.sleep(0.5)
            return bool(service.uploader.error)

        wait_for(is_away)  # what was under way may have found it there at first
        objects.fault = near
        wait_for(lambda: not service.uploader.error)
        service.write("docs", 1).result(WAIT_S)


@pytest.mark.slow
def test_what_local_writes_lose_is_said(tmp_path: Path, objects: MemoryObjects) -> None:
    """A machine that is lost at any moment loses the operations that the store is said to be behind by, and no other;
    with nothing more written, that is none after `lag_s_max`."""
    with serving(tmp_path / "a", objects, LOCAL) as service:
        service.create("docs")
        wait_for(service.is_level)
        collection, uploader = service.catalog.get("docs"), service.uploader
        for moment in range(12):
            for number in range(moment * 5, moment * 5 + 5):
                service.write("docs", number).result(WAIT_S)
                time.sleep(0.02)
            known = uploader.state_of(collection).seq
            copied = MemoryObjects(dict(objects.held))
            later = uploader.state_of(collection).seq
            with serving(tmp_path / f"at{moment}", copied, LOCAL) as other:
                is_there = "docs" in other.catalog.collections
                kept = other.catalog.get("docs").log.newest_seq if is_there else 0
                assert known <= kept
                assert kept <= later or known == 0
                assert not is_there or other.ids("docs") == {f"d{one}" for one in range(kept)}
        time.sleep(LOCAL.lag_s_max)
        wait_for(service.is_level)
        assert uploader.state_of(collection).behind == 0


@pytest.mark.parametrize("options", [BUCKET, LOCAL])
def test_an_outage_beside_writes(
    options: StoreOptions, tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was acknowledged is lost. With `local` all is, and the log grows; the uploads hold no memory for it,
    try now and then, and catch up in pieces. With `bucket` writes are refused."""
    monkeypatch.setattr(availability, "RETRY_S", (0.1, 0.4))
    monkeypatch.setattr(rows, "BLOCK_BYTES", 50_000)
    writes, text_bytes = 60, 100_000

    def full(operation: str, name: str) -> Fault:
        return "before" if operation == "create" else ""

    def large(number: int) -> Upsert:
        document = WORLD.document(number)
        return replace(document, text=document.text + number.to_bytes(2).hex() * (text_bytes // 4))

    with serving(tmp_path / "a", objects, options) as service:
        service.create("docs")
        collection = service.catalog.get("docs")
        collection.write([WORLD.document(0)]).result(WAIT_S)
        wait_for(service.is_level)
        objects.fault = full
        service.uploader._session.available.failed(Unavailable("the store is away"))
        objects.calls.clear()
        tracemalloc.start()
        acknowledged = {"d0"}
        try:
            for number in range(1, writes):
                with contextlib.suppress(Unavailable):
                    collection.write([large(number)]).result(WAIT_S)
                    acknowledged.add(f"d{number}")
                time.sleep(0.03)
            assert len(acknowledged) == (1 if options is BUCKET else writes)
            assert service.uploader.error
            assert 0 < len(objects.calls) < 100
            ours = [tracemalloc.Filter(True, "*/indexes/store/*")]
            held = tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
        finally:
            tracemalloc.stop()
        assert sum(one.size for one in held) < writes * text_bytes / 10
        objects.fault = near
        wait_for(service.is_level)
        assert max(map(len, objects.held.values())) < 3 * text_bytes
        collection.write([WORLD.document(200)]).result(WAIT_S)
    with serving(tmp_path / "b", objects) as other:
        assert other.ids("docs") == {*acknowledged, "d200"}


def test_names_are_read_again_only_after_a_change(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads beside writes leave the marker and the keys alone."""
    read: list[Path] = []

    def describe(data: Path, *rest: Any) -> Directory:
        read.append(data)
        return describe_directory(data, *rest)

    monkeypatch.setattr(naming, "describe_directory", describe)
    with serving(tmp_path / "a", objects, LOCAL) as service:
        service.create("docs")
        service.uploader.directory_changed().result(WAIT_S)
        read.clear()
        for number in range(10):
            service.write("docs", number).result(WAIT_S)
            time.sleep(LOCAL.lag_s_max / 2)
        assert service.uploader.uploads > 2
        assert not read
        (tmp_path / "a" / KEYS).write_bytes(b'{"revision":1,"keys":[]}')
        slot = service.uploader.directory_changed().result(WAIT_S)
        assert read
        assert service.uploader.directory_changed().result(WAIT_S) == slot


def test_an_object_in_a_folder_outlives_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file and the folder are synced before it is said to be there, and the folders above with the first one that
    needs them."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(str(tmp_path)))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    bucket = Bucket(f"file://{tmp_path}/bucket", makes_folder=True)
    assert bucket.create("a/b/one", b"1")
    assert sorted(synced) == ["/bucket", "/bucket/a", "/bucket/a/b", "/bucket/a/b/one"]
    synced.clear()
    assert bucket.create("a/b/two", b"2")
    assert synced == ["/bucket/a/b/two", "/bucket/a/b"]


def described(service: Service) -> dict[str, Any]:
    """What concerns more than the documents: names with their ids, aliases, and settings."""
    held, data = service.catalog.collections, service.catalog.folder
    return {
        "names": {name: one.uid for name, one in held.items()},
        "aliases": dict(service.catalog.aliases),
        "settings": {
            name: one.vector_store.current.name for name, one in held.items() if one.vector_store.current
        },
        "documents": {name: one.documents for name, one in held.items()},
        "keys": (data / KEYS).read_bytes() if (data / KEYS).exists() else None,
    }


def live_a_while(service: Service) -> None:
    """Change everything that a directory had."""
    catalog = service.catalog
    catalog.delete("gone")
    catalog.rename("one", "three")
    catalog.rename("two", "one")
    catalog.set_alias("new", "three")
    catalog.remove_alias("old")
    catalog.get("set").vector_store.set(VectorStoreSettings(name="later"))
    catalog.get("unset").vector_store.clear()
    service.write("docs", 2, 3).result(WAIT_S)
    (catalog.folder / KEYS).write_bytes(b'{"revision":2,"keys":[]}')
    service.uploader.directory_changed().result(WAIT_S)


@pytest.mark.parametrize("then", ["set back", "promoted", "only settings"])
def test_a_directory_of_an_earlier_time_gets_what_the_store_has(
    then: str, tmp_path: Path, objects: MemoryObjects
) -> None:
    """Names, deletions, aliases, keys and settings, whether it was set back itself, or followed and is promoted."""
    data = tmp_path / "a"
    with serving(data, objects) as service:
        for name in ("gone", "one", "two", "set", "unset", "docs"):
            service.create(name)
            service.write(name, 1).result(WAIT_S)
        service.catalog.set_alias("first", "one")
        service.catalog.set_alias("old", "docs")
        service.catalog.get("unset").vector_store.set(VectorStoreSettings(name="before"))
        (data / KEYS).write_bytes(b'{"revision":1,"keys":[]}')
        service.uploader.directory_changed().result(WAIT_S)
    earlier = shutil.copytree(data, tmp_path / "earlier")
    with serving(data, objects) as service:
        if then == "only settings":
            service.catalog.get("set").vector_store.set(VectorStoreSettings(name="later"))
            service.catalog.get("unset").vector_store.clear()
        else:
            live_a_while(service)
        wanted = described(service)
    if then == "promoted":
        write_record(earlier, Record(url=BUCKET.url, replica=True))
        (earlier / PUT).unlink()
        promote(earlier, objects, BUCKET.url)
    else:
        shutil.rmtree(data)
        earlier = earlier.rename(data)
    for _ in range(2):
        with serving(earlier, objects) as service:
            assert described(service) == wanted
    with serving(tmp_path / "empty", objects) as service:
        assert described(service) == wanted


@pytest.mark.parametrize(("runs", "is_lost"), [(0, False), (1, False), (3, False), (2, True)])
def test_a_store_of_an_earlier_time_gets_what_the_directory_has(
    runs: int, is_lost: bool, tmp_path: Path, objects: MemoryObjects
) -> None:
    """It was set back, which is noticed while the service runs, or only after further runs; a restart completes it.
    Also where the directory was restored since."""
    with serving(tmp_path / "a", objects) as service:
        for name in ("gone", "one", "two", "set", "unset", "docs"):
            service.create(name)
            service.write(name, 1).result(WAIT_S)
        service.catalog.set_alias("old", "docs")
        service.catalog.get("unset").vector_store.set(VectorStoreSettings(name="before"))
        service.uploader.directory_changed().result(WAIT_S)
        earlier = dict(objects.held)
        live_a_while(service)
        wanted = described(service)
        objects.held = objects.held if runs else earlier
    for run in range(runs):
        if is_lost and not run:
            shutil.rmtree(tmp_path / "a")
        with serving(tmp_path / "a", objects) as service:
            service.write("docs", 10 + run).result(WAIT_S)
            wanted = described(service)
    if runs:  # as if its slots had been counted further, by starts that came to nothing
        known = {what: (0, hashes) for what, (_, hashes) in read_put(tmp_path / "a").known.items()}
        (tmp_path / "a" / PUT).write_bytes(with_checksum(Put(known=known)))
    objects.held = earlier
    for _ in range(2):
        with serving(tmp_path / "a", objects) as service:
            assert described(service) == wanted
    with serving(tmp_path / "empty", objects) as service:
        assert described(service) == wanted


@pytest.mark.parametrize(
    "older",
    [[KEYS], [MARKER], [MARKER_COPY], [KEYS, MARKER], [MARKER, MARKER_COPY], [KEYS, MARKER, MARKER_COPY]],
)
def test_files_of_an_earlier_time_beside_newer_ones(
    older: list[str], tmp_path: Path, objects: MemoryObjects
) -> None:
    """A key that was revoked does not work again, and an alias that was removed does not come back, here or in the
    store."""
    data = tmp_path / "a"

    def change(service: Service, revision: int) -> None:
        (data / KEYS).write_bytes(b'{"revision":%d,"keys":[]}' % revision)
        change_marker(data, lambda found: msgspec.structs.replace(found, locked=True, keys_revision=revision))
        service.uploader.directory_changed().result(WAIT_S)

    with serving(data, objects) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
        service.catalog.set_alias("old", "docs")
        change(service, 1)
    shutil.copytree(data, tmp_path / "earlier")
    with serving(data, objects) as service:
        service.catalog.remove_alias("old")
        service.catalog.set_alias("new", "docs")
        change(service, 2)
        wanted = described(service)
    for name in older:
        shutil.copy2(tmp_path / "earlier" / name, data / name)
    for where in (data, data, tmp_path / "empty"):
        with serving(where, objects) as service:
            assert described(service) == wanted
            assert read_marker(where).keys_revision == 2


@pytest.mark.parametrize("lost", [False, True])
def test_an_older_folder_beside_a_renamed_collection(
    lost: bool, tmp_path: Path, objects: MemoryObjects
) -> None:
    """It stays closed, also if the newer one has lost its log: both would be one collection in the store."""
    data = tmp_path / "a"
    with serving(data, objects) as service:
        service.create("old")
        service.write("old", 1).result(WAIT_S)
    shutil.copytree(data / "old", tmp_path / "copy")
    with serving(data, objects) as service:
        service.catalog.rename("old", "new")
        service.write("new", 2).result(WAIT_S)
    shutil.copytree(tmp_path / "copy", data / "old")
    if lost:
        (data / "new/log.db").unlink()
    with serving(data, objects) as service:
        assert "the folder new is the same collection" in service.catalog.quarantined["old"]
        if not lost:
            service.write("new", 3).result(WAIT_S)
    with serving(tmp_path / "empty", objects) as service:
        assert service.ids("new") == ({"d1", "d2"} if lost else {"d1", "d2", "d3"})
        assert "old" not in service.catalog.collections


def test_a_store_may_move_and_another_may_be_taken(tmp_path: Path, objects: MemoryObjects) -> None:
    """Nothing that the directory has is lost, whatever the address."""
    other = MemoryObjects()
    for where, held in (("one", objects), ("two", objects), ("three", other)):
        with serving(tmp_path / "a", held, replace(BUCKET, url=f"memory:{where}")) as service:
            if not service.catalog.collections:
                service.create("docs")
                service.catalog.set_alias("live", "docs")
                service.catalog.get("docs").vector_store.set(VectorStoreSettings(name="kept"))
            service.write("docs", len(service.ids("docs"))).result(WAIT_S)
            wanted = described(service) | {"documents": None}
            assert (wanted["aliases"], wanted["settings"]) == ({"live": "docs"}, {"docs": "kept"})
    with serving(tmp_path / "b", other, replace(BUCKET, url="memory:three")) as service:
        assert described(service) | {"documents": None} == wanted


def test_what_the_store_did_not_get_is_no_earlier_time(tmp_path: Path, objects: MemoryObjects) -> None:
    """A directory keeps what it acknowledged by itself while the store was away, or lost the answer."""
    with serving(tmp_path / "a", objects, LOCAL) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
        wait_for(service.is_level)
    for number, fault in enumerate((away, lambda operation, name: "after" if operation == "create" else "")):
        with serving(tmp_path / "a", objects, LOCAL) as service:
            objects.fault = fault
            service.catalog.set_alias(f"alias{number}", "docs")
            service.catalog.get("docs").vector_store.set(VectorStoreSettings(name=f"{number}"))
            (tmp_path / "a" / KEYS).write_bytes(b'{"revision":%d,"keys":[]}' % number)
            wanted = described(service)
        objects.fault = near
        with serving(tmp_path / "a", objects, LOCAL) as service:
            assert described(service) == wanted


def test_no_name_is_missing_in_the_store_while_it_changes(tmp_path: Path, objects: MemoryObjects) -> None:
    """Wherever a machine is lost during a rename, its aliases name a collection."""
    with serving(tmp_path / "a", objects, LOCAL) as service:
        service.create("docs0")
        service.catalog.set_alias("live", "docs0")
        service.write("docs0", 1).result(WAIT_S)
        for number in range(20):
            service.uploader.directory_changed()
            service.catalog.rename(f"docs{number}", f"docs{number + 1}")
    names = SlotLog(objects, DIRECTORY)
    stored = [
        msgspec.msgpack.decode(payload, type=Directory)
        for number in range(1, names.last_number() + 1)
        if (payload := names.read(number).slot.payload)
    ]
    assert [one for one in stored if one.collections and {*one.aliases.values()} - {*one.collections}] == []
    assert [one for one in stored if not one.collections][2:] == []


def test_a_slash_at_the_end_is_no_other_store(tmp_path: Path) -> None:
    """Neither for the service that writes, nor for a replica's directory that is promoted."""
    url = (tmp_path / "bucket").as_uri()
    for times, one in enumerate((url, f"{url}/", url), 1):
        objects = Bucket(one, makes_folder=True)
        with serving(tmp_path / "a", objects, replace(LOCAL, url=objects.url)) as service:
            if times == 1:
                service.create("docs")
            service.write("docs", times).result(WAIT_S)
            assert len(service.ids("docs")) == times
    write_record(tmp_path / "a", Record(url=f"{url}/", replica=True))
    promote(tmp_path / "a", Bucket(url), url)
    assert (Bucket("s3://bucket/").url, Bucket("s3://bucket/a/b/").url) == ("s3://bucket/", "s3://bucket/a/b")


def test_a_service_starts_while_its_store_is_away(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it had the store before. A directory that never had it does not know whose the store is."""
    monkeypatch.setattr(availability, "RETRY_S", (0.1, 0.2))
    with serving(tmp_path / "a", objects, LOCAL) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
    objects.fault = away
    with serving(tmp_path / "a", objects, LOCAL) as service:
        service.write("docs", 2).result(WAIT_S)
        objects.fault = near
        wait_for(service.is_level)
    objects.fault = away
    with pytest.raises(Unavailable):
        Service(tmp_path / "b", objects, LOCAL)
    objects.fault = near
    with serving(tmp_path / "b", objects, LOCAL) as other:
        assert other.ids("docs") == {"d1", "d2"}


@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2])
def test_what_was_written_just_before_the_end_is_stored(
    pause_s: float, tmp_path: Path, objects: MemoryObjects
) -> None:
    """A service that stops uploads the rest first, new collections with their names."""
    with serving(tmp_path / "a", objects, LOCAL) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
        time.sleep(pause_s)
    with serving(tmp_path / "b", objects, LOCAL) as other:
        assert other.ids("docs") == {"d1"}


def test_a_new_machine_fences_the_old_one_off(tmp_path: Path, objects: MemoryObjects) -> None:
    """A service whose store was taken over acknowledges nothing more and ends; started again it is refused, and told
    what only it has."""
    failed: list[StorageError] = []
    forget = failures.listen(failed.append)
    old = Service(tmp_path / "old", objects, BUCKET)
    try:
        old.create("docs")
        old.write("docs", 1).result(WAIT_S)
        new = Service(tmp_path / "new", objects, BUCKET)
        try:
            with pytest.raises(StorageError, match="another service has taken over"):
                old.write("docs", 2).result(WAIT_S)
            wait_for(lambda: bool(failed))
        finally:
            new.close()
    finally:
        old.close()
        forget()
    with serving(tmp_path / "newer", objects) as newer:
        assert newer.ids("docs") == {"d1"}
    with pytest.raises(Conflict, match=r"taken over the store: .*only here are docs \(operations 2 to 2\)"):
        Service(tmp_path / "old", objects, BUCKET)


@pytest.mark.parametrize("options", [LOCAL, BUCKET])
def test_a_service_with_nothing_to_upload_ends_too(
    options: StoreOptions, tmp_path: Path, objects: MemoryObjects
) -> None:
    """Once its store was taken over: it would go on answering with what is old, and acknowledge what is lost."""
    failed: list[StorageError] = []
    forget = failures.listen(failed.append)
    try:
        with serving(tmp_path / "old", objects, options) as old:
            old.create("docs")
            old.write("docs", 1).result(WAIT_S)
            old.uploader._fence_due = math.inf  # failures are of the process, which here is that of both
            with serving(tmp_path / "new", objects, options):
                assert not failed
                old.uploader._fence_due = 0.0
                wait_for(lambda: bool(failed))
                with pytest.raises(StorageError, match=r"^another service has taken over"):
                    old.write("docs", 2).result(WAIT_S)
    finally:
        forget()


def test_another_directory_is_refused(tmp_path: Path, objects: MemoryObjects) -> None:
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
    elsewhere = Catalog(tmp_path / "b", IndexOptions())
    elsewhere.create("own", settings())
    elsewhere.close()
    with pytest.raises(Conflict, match=r"belongs to another data directory.*own \(all of it\)"):
        Service(tmp_path / "b", objects, LOCAL)
    with serving(tmp_path / "a", objects) as service:
        assert set(service.catalog.collections) == {"docs"}


def test_names_aliases_and_keys_are_restored(tmp_path: Path, objects: MemoryObjects) -> None:
    """What was deleted or renamed stays so, and a directory that needed keys needs them again."""
    with serving(tmp_path / "a", objects) as service:
        for name in ("docs", "gone", "before"):
            service.create(name)
            service.write(name, 1).result(WAIT_S)
        service.catalog.set_alias("live", "docs")
        service.catalog.delete("gone")
        service.catalog.rename("before", "after")
        service.write("after", 2).result(WAIT_S)
        (tmp_path / "a" / KEYS).write_bytes(b'{"revision":1,"keys":[]}')
        service.uploader.directory_changed().result(WAIT_S)
    # As the manifests do, so that nothing is open before there are keys.
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / KEYS).write_bytes(b'{"revision":9,"keys":[]}')
    (tmp_path / "b" / KEYS_LOCK).touch()
    write(tmp_path / "b", Marker(1, {}, locked=True, keys_revision=9))
    with serving(tmp_path / "b", objects) as other:
        assert set(other.catalog.collections) == {"docs", "after"}
        assert other.ids("after") == {"d1", "d2"}
        assert other.catalog.aliases == {"live": "docs"}
        assert (tmp_path / "b" / KEYS).read_bytes() == (tmp_path / "a" / KEYS).read_bytes()
        assert is_locked(tmp_path / "b")


@pytest.mark.slow
def test_a_lost_or_older_disk_is_brought_up_to_date(tmp_path: Path, objects: MemoryObjects) -> None:
    """A collection that vanished from the disk comes back, one that is older catches up, with what lies beside it; one
    that was deleted does not come back, even if the machine ended before the store was told."""
    with serving(tmp_path / "a", objects) as service:
        for name in ("lost", "older", "deleted"):
            service.create(name)
            service.write(name, 1).result(WAIT_S)
    (tmp_path / "a" / "older" / "feedback.jsonl").write_text("kept")
    shutil.copytree(tmp_path / "a" / "older", tmp_path / "copy")
    with serving(tmp_path / "a", objects) as service:
        for name in ("lost", "older", "deleted"):
            service.write(name, 2, 3).result(WAIT_S)
        objects.fault = away
        service.catalog.delete("deleted")
    objects.fault = near
    shutil.rmtree(tmp_path / "a" / "lost")
    shutil.rmtree(tmp_path / "a" / "older")
    shutil.copytree(tmp_path / "copy", tmp_path / "a" / "older")
    with serving(tmp_path / "a", objects) as service:
        assert set(service.catalog.collections) == {"lost", "older"}
        assert service.ids("lost") == service.ids("older") == {"d1", "d2", "d3"}
        assert (tmp_path / "a" / "older" / "feedback.jsonl").read_text() == "kept"


def test_a_quarantined_collection_stays_in_the_store(tmp_path: Path, objects: MemoryObjects) -> None:
    """A damaged log is neither taken for a deletion nor replaced without being asked."""
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
    log = tmp_path / "a" / "docs" / "log.db"
    log.write_bytes(b"x" * 100)
    with serving(tmp_path / "a", objects) as service:
        with pytest.raises(Quarantined):
            service.catalog.get("docs")
        service.create("other")
    with serving(tmp_path / "b", objects) as other:
        assert set(other.catalog.collections) == {"docs", "other"}


@pytest.mark.parametrize("which", [0, -1])
def test_what_is_damaged_in_the_store_keeps_nothing_else_away(
    which: int, tmp_path: Path, objects: MemoryObjects
) -> None:
    """A new machine serves what can be restored, and says what cannot; the next start tries again. A deletion ends it,
    in the store, too."""
    with serving(tmp_path / "a", objects) as service:
        for name in ("docs", "other"):
            service.create(name)
            for number in range(3):
                service.write(name, number).result(WAIT_S)
        uid = service.catalog.get("docs").uid
    name = sorted(one for one in objects.held if uid in one and "/log/" in one)[which]
    whole = objects.held[name]
    objects.held[name] = whole[:-1]
    for place in ("b", "c"):
        with serving(tmp_path / place, objects) as service:
            assert service.ids("other") == {"d0", "d1", "d2"}
            with pytest.raises(Quarantined, match=name.rpartition("/")[2]):
                service.catalog.get("docs")
            service.write("other", 0, version=1).result(WAIT_S)
        assert not service.uploader.error
        failed = [one for one in verify_data(tmp_path / place, [], lambda *_: None) if not one.ok]
        assert [one.collection for one in failed] == ["docs"]
        assert name in failed[0].detail
    objects.held[name] = whole
    with serving(tmp_path / "c", objects) as service:
        assert service.ids("docs") == {"d0", "d1", "d2"}
    objects.held[name] = whole[:-1]
    with serving(tmp_path / "d", objects) as service:
        service.catalog.delete("docs")
    with serving(tmp_path / "e", objects) as service:
        assert set(service.catalog.collections) == {"other"}
        assert not service.catalog.quarantined


def test_a_disk_is_not_served_beside_a_damaged_end_of_its_log(tmp_path: Path, objects: MemoryObjects) -> None:
    """The store may have more than the disk, which keeps what it has: it is served when the store is mended, or used
    no more."""
    with serving(tmp_path / "a", objects) as service:
        for name in ("docs", "other"):
            service.create(name)
            service.write(name, 1, 2).result(WAIT_S)
        uid = service.catalog.get("docs").uid
    name, whole = damage_end(objects, uid)
    for _ in range(2):
        with serving(tmp_path / "a", objects) as service:
            with pytest.raises(Quarantined, match=name):
                service.catalog.get("docs")
            assert service.ids("other") == {"d1", "d2"}
    shutil.copytree(tmp_path / "a", tmp_path / "alone")
    objects.held[name] = whole
    with serving(tmp_path / "a", objects) as service:
        assert service.ids("docs") == {"d1", "d2"}
    with contextlib.closing(Catalog(tmp_path / "alone", IndexOptions())) as alone:
        assert alone.get("docs").log.document("d2")


def test_deleted_collections_leave_the_store_after_a_while(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = StoreOptions("memory:", "bucket", keep_days=0)
    with serving(tmp_path / "a", objects, options) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
        uid = service.catalog.get("docs").uid
        service.catalog.delete("docs")
        service.uploader.directory_changed().result(WAIT_S)
        service.uploader._names.clear_removed()
        assert not [name for name in objects.held if uid in name]
        service.create("next")
    with serving(tmp_path / "a", objects, options) as service:
        assert not service.uploader._names.stored.removed


def test_a_moment_is_restored_beside_what_is_served(tmp_path: Path, objects: MemoryObjects) -> None:
    """`nearline restore --at`: another directory or name, a uid of its own, locked where keys were needed; the store
    is left as it is."""
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        service.write("docs", 1, 2).result(WAIT_S)
        seq = service.catalog.get("docs").snapshot.seq
        service.catalog.get("docs").write([Delete("d1")]).result(WAIT_S)
        service.catalog.set_alias("live", "docs")
        service.uploader.directory_changed().result(WAIT_S)
        uid = service.catalog.get("docs").uid
    before = dict(objects.held)
    how = {"progress": lambda *_: None, "new_name": None}
    [made] = restore_from(objects, tmp_path / "b", ["live"], until=NEWEST, **how)  # type: ignore[arg-type]
    assert (made.name, made.documents, made.aliases) == ("docs", 1, ["live"])
    assert made.uid != uid
    [made] = restore_from(
        objects, tmp_path / "b", ["docs"], until=Until(seq=seq), new_name="then", progress=lambda *_: None
    )
    assert (made.name, made.documents, made.seq) == ("then", 2, seq)
    with pytest.raises(Conflict, match="taken"):
        restore_from(objects, tmp_path / "b", ["docs"], until=NEWEST, **how)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="so early"):
        restore_from(objects, tmp_path / "c", [], until=Until(at_ms=1000), **how)  # type: ignore[arg-type]
    assert objects.held == before
    catalog = Catalog(tmp_path / "b", IndexOptions())
    assert catalog.get("then").document("d1").id == "d1"
    catalog.close()


@pytest.mark.parametrize("kind", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_start_that_fails_anywhere_can_be_repeated(
    kind: Fault, tmp_path: Path, objects: MemoryObjects
) -> None:
    """The store goes away at each of the calls of a restoring start in turn, or its answer is lost: the next start
    restores all, and keys are never missing."""
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
        service.catalog.set_alias("live", "docs")
        (tmp_path / "a" / KEYS).write_bytes(b'{"revision":1,"keys":[]}')
        service.uploader.directory_changed().result(WAIT_S)
    failed = 0
    for call in range(30):
        data, copied = tmp_path / f"b{call}", MemoryObjects(dict(objects.held))
        left = iter(range(call, -1, -1))
        copied.fault = lambda operation, name, left=left: kind if next(left, 1) == 0 else ""  # type: ignore[misc]
        try:
            Service(data, copied, BUCKET).close()
        except Unavailable:
            failed += 1
        copied.fault = near
        with serving(data, copied) as other:
            assert other.ids("docs") == {"d1"}
            assert other.catalog.aliases == {"live": "docs"}
            assert (data / KEYS).exists()
    assert failed > 3


@pytest.mark.slow
def test_a_store_that_lost_everything_gets_nothing(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that was emptied, or a folder that is not mounted, is not written to: nothing there could be restored.
    When what it held is back, all goes on. A start finds that out, too."""
    monkeypatch.setattr(session, "PRESENT_S", 0.0)
    monkeypatch.setattr(confirming, "CONFIRM_S", 0.5)
    monkeypatch.setattr(availability, "RETRY_S", (0.1, 0.2))
    held = objects.held
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
        objects.held = {}
        with pytest.raises(Unavailable):
            service.write("docs", 2).result(WAIT_S)
        assert "has lost what it held" in service.uploader.error
    with serving(tmp_path / "a", objects) as service:
        assert "although this directory has filled it" in service.uploader.error
        assert not [name for name in objects.held if not name.startswith("proof/")]
        objects.held = held
        wait_for(service.is_level)
        service.write("docs", 3).result(WAIT_S)
    with serving(tmp_path / "b", objects) as other:
        assert other.ids("docs") == {"d1", "d2", "d3"}


def test_a_disk_from_before_a_restart_catches_up(tmp_path: Path, objects: MemoryObjects) -> None:
    """The disk is set back to a time before the last starts of the same service; with writes that only it has, it is
    refused."""
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    for number in (2, 3):
        with serving(tmp_path / "a", objects) as service:
            service.write("docs", number).result(WAIT_S)
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "copy", tmp_path / "a")
    with serving(tmp_path / "a", objects) as service:
        assert service.ids("docs") == {"d1", "d2", "d3"}
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "copy", tmp_path / "a")
    alone = Catalog(tmp_path / "a", IndexOptions())
    alone.get("docs").write([WORLD.document(9)]).result(WAIT_S)
    alone.close()
    with pytest.raises(
        Conflict, match=r"only here are docs \(operations 2 to 2, for all that the store tells\)"
    ):
        Service(tmp_path / "a", objects, BUCKET)


def test_what_was_deleted_is_owed_by_a_copy(tmp_path: Path, objects: MemoryObjects) -> None:
    """Its log holds what was removed since the last checkpoint, as that of the writer does, until it is erased."""
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        service.write("docs", 1, 2).result(WAIT_S)
        collection = service.catalog.get("docs")
        collection.write([replace(WORLD.document(3), text="zebrafinch secret")]).result(WAIT_S)
        collection.write([Delete("d3")]).result(WAIT_S)
        owed = collection.log.owed
    with serving(tmp_path / "b", objects) as restored:
        collection = restored.catalog.get("docs")
        assert collection.log.owed == owed
        assert owed.bytes > 0
        Erasure(collection).run(lambda *_: None)
        assert collection.log.owed.bytes == 0
    assert not [
        path for path in (tmp_path / "b").rglob("*") if path.is_file() and b"zebrafinch" in path.read_bytes()
    ]


@pytest.mark.parametrize("kind", ["documents", "names"])
def test_an_older_copy_of_a_folder_is_noticed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged on a log with a hole; a restart completes it."""
    monkeypatch.setattr(availability, "RETRY_S", (0.1, 0.2))
    monkeypatch.setattr(confirming, "CONFIRM_S", 1.0)
    store, options = tmp_path / "store", StoreOptions((tmp_path / "store").as_uri(), "bucket")
    objects = Bucket(store.as_uri(), makes_folder=True)
    with serving(tmp_path / "a", objects, options) as service:
        service.create("docs")
        service.write("docs", 1).result(WAIT_S)
        shutil.copytree(store, tmp_path / "old")
        service.write("docs", 2, 3).result(WAIT_S)
        service.create("late")
        store.rename(tmp_path / "new")
        (tmp_path / "old").rename(store)
        with pytest.raises((Unavailable, StorageError)):
            service.write("docs", 4).result(WAIT_S) if kind == "documents" else service.create("later")
        wait_for(lambda: "older copy" in service.uploader.error)  # for a moment there was no store
    with serving(tmp_path / "a", objects, options) as service:
        service.write("docs", 5).result(WAIT_S)
    with serving(tmp_path / "b", objects, options) as restored:
        assert restored.ids("docs") >= {"d1", "d2", "d3", "d5"}
        assert "late" in restored.catalog.collections


def test_a_moment_is_restored_from_before_damaged_names(tmp_path: Path, objects: MemoryObjects) -> None:
    """Their objects are the only ones that concern all collections."""
    with serving(tmp_path / "a", objects) as service:
        for name in ("docs", "other"):
            service.create(name)
            service.write(name, 1).result(WAIT_S)
    name = max(one for one in objects.held if one.startswith("directory/"))
    objects.held[name] = objects.held[name][:-1]
    with pytest.raises(Damaged, match=name):
        Service(tmp_path / "b", objects, BUCKET)
    made = restore_from(objects, tmp_path / "c", [], new_name=None, until=NEWEST, progress=lambda *_: None)
    assert "docs" in {one.name for one in made}


def test_what_can_be_restored_by_hand_is(tmp_path: Path, objects: MemoryObjects) -> None:
    """The error says what could not, and what was."""
    with serving(tmp_path / "a", objects) as service:
        for name in ("docs", "other"):
            service.create(name)
            service.write(name, 1).result(WAIT_S)
        uid = service.catalog.get("docs").uid
    name = min(one for one in objects.held if uid in one and "/log/" in one)
    del objects.held[name]
    with pytest.raises(Damaged, match=rf"^docs: .*{name} in the store is missing; restored: other$"):
        restore_from(objects, tmp_path / "c", [], new_name=None, until=NEWEST, progress=lambda *_: None)
    with contextlib.closing(Catalog(tmp_path / "c", IndexOptions())) as restored:
        assert set(restored.collections) == {"other"}


def test_answers_are_kept_for_those_who_look_later(objects: MemoryObjects) -> None:
    """Several machines build at a time, and each looks once a second."""
    offers, found = Offers(objects), StoredGeneration("g", 1, 1, 0, 1)
    numbers = [offers.make("uid", found) for _ in range(3)]
    for number in numbers:
        assert offers.next() is not None
        offers.answer("", 10 + number)
    for number in numbers:
        answer = Offers(objects).answer_to(number)
        assert answer is not None
        assert answer.number == 10 + number


def test_a_first_upload_does_not_wait(tmp_path: Path, objects: MemoryObjects) -> None:
    """Only those that come soon after it do."""
    with serving(tmp_path / "a", objects, StoreOptions("memory:", "local", lag_s_max=10 * WAIT_S)) as service:
        service.create("docs")
        wait_for(lambda: service.uploader.uploads > 0)


def test_waiting_for_the_store_is_not_for_later_writes(tmp_path: Path, objects: MemoryObjects) -> None:
    """Where something is written whenever something is uploaded, the store never has all of it."""
    numbers = iter(range(2, 80))
    with serving(tmp_path / "a", objects, StoreOptions("memory:", "local", lag_s_max=0.05)) as service:
        service.create("docs")

        def write_more(operation: str, name: str) -> Fault:
            if operation == "create" and "/log/" in name and (number := next(numbers, None)):
                service.write("docs", number)
            return ""

        objects.fault = write_more
        service.write("docs", 1).result(WAIT_S)
        service.uploader.wait_for(service.catalog.get("docs"))
        assert next(numbers) < 20
        objects.fault = MemoryObjects.fault
        wait_for(service.is_level)
