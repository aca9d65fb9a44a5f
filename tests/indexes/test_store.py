"""A collection in object storage: uploaded, restored as it was at any moment, written by one service at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from indexes.base.errors import Conflict, Damaged, NotFound, Unavailable
from indexes.base.model import Delete, IndexOptions
from indexes.collection.collection import Collection
from indexes.log.pinned import pin
from indexes.parts.shelf import Shelf
from indexes.store import collection_log, rows
from indexes.store.collection_log import CollectionLog, CollectionUpload
from indexes.store.objects import Bucket, Objects, prove
from indexes.store.opening import fence_log, restore_collection
from indexes.store.restoring import NEWEST, Until
from indexes.store.slots import NOTHING, SlotLog, SlotWriter, Superseded
from tests.support.object_stores import Fault, MemoryObjects
from tests.support.vectors import World, delete, fill, make_collection, rebuild

NEVER = 1 << 62
WORLD = World()


def uploader(
    objects: Objects, collection: Collection, epoch: int = 1, keep_ms: int = NEVER
) -> CollectionUpload:
    writer = fence_log(CollectionLog(objects, collection.uid), epoch)
    return CollectionUpload(writer.held, writer.slots, collection.log, writer.checkpoint, keep_ms=keep_ms)


def state_of(folder: Path) -> str:
    """A hash of everything that a log says, down to the numbers of its passages."""
    with pin(folder / "log.db") as log:
        found = [
            list(log.rows(f"SELECT * FROM {table} ORDER BY 1"))
            for table in ("documents", "passages", "vectors", "content", "sqlite_sequence")
        ]
        meta = [
            (key, value)
            for key, value in log.rows("SELECT * FROM meta ORDER BY key")
            if key not in ("owed", "forgotten_ms")
        ]
    return sha256(msgspec.msgpack.encode([found, meta])).hexdigest()


def restored(objects: Objects, uid: str, data: Path, until: Until = NEWEST, name: str = "docs") -> str:
    restore_collection(CollectionLog(objects, uid), data, name, lambda *_: None, until)
    return state_of(data / name)


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    made = make_collection(tmp_path / "here")
    yield made
    made.close()


def test_what_is_restored_is_what_was_uploaded(collection: Collection, tmp_path: Path) -> None:
    """Every row, number and setting of the log is the same, and the collection opens and answers alike."""
    objects = MemoryObjects()
    upload = uploader(objects, collection)
    fill(collection, WORLD, range(900))
    upload.upload(1)
    fill(collection, WORLD, range(100, 200), version=1)
    delete(collection, range(50))
    assert upload.upload(2) == collection.snapshot.seq
    assert restored(objects, collection.uid, tmp_path / "there") == state_of(collection.folder)
    again = Collection(tmp_path / "there" / "docs", IndexOptions())
    try:
        assert again.documents == collection.documents == 850
        query = WORLD.queries(1)
        assert [ids.tolist() for ids, _ in again.exact(query, 10)] == [
            ids.tolist() for ids, _ in collection.exact(query, 10)
        ]
        again.write([WORLD.document(5000)]).result()
    finally:
        again.close()


HOUR_MS = 3_600_000


def restore_moments(
    seed: int, steps: int, moments: int, collection: Collection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through random writes, uploads, checkpoints, merged and thinned parts, rebuilds that drop operations, a writer
    that is replaced, and clocks that are wrong by hours, each uploaded state is restored by its operation, and the
    newest without."""
    monkeypatch.setattr(collection_log, "SLOTS_BETWEEN", 7)
    monkeypatch.setattr(rows, "BLOCK_BYTES", 3000)
    monkeypatch.setattr(rows, "PART_BYTES", 6000)
    draw = random.Random(seed)
    objects, epoch = MemoryObjects(), 1
    upload = uploader(objects, collection)
    states: dict[int, str] = {}
    for step in range(steps):
        now_ms = 10**12 + (step + draw.choice([-8, 0, 8])) * HOUR_MS
        numbers = draw.sample(range(120), draw.randrange(1, 20))
        if draw.random() < 0.7:
            fill(collection, WORLD, numbers, batch=draw.choice([3, 50]), version=step)
        else:
            collection.write([Delete(f"d{one}") for one in numbers]).result()
        if draw.random() < 0.7:
            seq = upload.upload(now_ms)
            states[seq] = state_of(collection.folder)
        if draw.random() < 0.1:
            upload.check_in(now_ms)
            states[upload.seq] = state_of(collection.folder)
        if draw.random() < 0.05:
            upload.upload(now_ms)
            rebuild(collection)
        if draw.random() < 0.1:
            epoch += 1
            upload = uploader(objects, collection, epoch)
    upload.upload(10**12 + steps * HOUR_MS)
    states[upload.seq] = newest = state_of(collection.folder)
    for seq in draw.sample(sorted(states), moments):
        assert restored(objects, collection.uid, folder / f"at{seq}", Until(seq=seq)) == states[seq]
    assert restored(objects, collection.uid, folder / "newest") == newest
    assert any("/checkpoint/" in name for name in objects.held)


@pytest.mark.parametrize("seed", range(4))
def test_any_moment_is_restored_as_it_was(
    seed: int, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See `restore_moments`."""
    restore_moments(seed, 60, 12, collection, tmp_path, monkeypatch)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_hundred_moments(collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, of a longer history."""
    restore_moments(100, 150, 100, collection, tmp_path, monkeypatch)


@pytest.mark.slow
def test_little_more_is_read_than_lives(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After documents were replaced sixty times, restoring reads what lives and the slots since the last checkpoint."""
    monkeypatch.setattr(collection_log, "SLOTS_BETWEEN", 10)
    objects = MemoryObjects()
    upload = uploader(objects, collection, keep_ms=0)
    for version in range(60):
        fill(collection, WORLD, range(80), version=version)
        upload.upload(10**12 + version)
    fresh = MemoryObjects()
    uploader(fresh, collection).upload(1)
    live = sum(map(len, fresh.held.values()))
    objects.calls.clear()
    restored(objects, collection.uid, tmp_path / "there")
    read = sum(len(objects.held[name]) for operation, name in objects.calls if operation == "read")
    assert read < 12 * live  # the last checkpoint, and up to ten slots of as many documents
    assert sum(map(len, objects.held.values())) < 25 * live  # of 60 versions


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_store_that_fails_costs_time_only(kind: Fault, collection: Collection, tmp_path: Path) -> None:
    """Half of all calls fail, or their answers are lost: nothing is lost, doubled or out of order."""
    draw = random.Random(1)
    objects = MemoryObjects()
    upload = uploader(objects, collection)
    objects.fault = lambda operation, name: kind if draw.random() < 0.5 else ""
    for version in range(12):
        fill(collection, WORLD, range(30), version=version)
        for _ in range(100):
            try:
                upload.upload(version)
                upload.check_in(version)
                break
            except Unavailable:
                continue
    objects.fault = lambda operation, name: ""
    upload.upload(12)
    assert restored(objects, collection.uid, tmp_path / "there") == state_of(collection.folder)


def test_an_older_writer_stops_before_it_acknowledges(collection: Collection, tmp_path: Path) -> None:
    """Once a newer writer has put its fence, the older one can append nothing, whatever it has seen."""
    objects = MemoryObjects()
    old = uploader(objects, collection, 1)
    fill(collection, WORLD, range(10))
    old.upload(1)
    before = state_of(collection.folder)
    uploader(objects, collection, 2)
    fill(collection, WORLD, range(10, 20))
    with pytest.raises(Superseded, match="epoch 2"):
        old.upload(2)
    with pytest.raises(Superseded):
        old.check_in(3)
    with pytest.raises(Superseded):
        uploader(objects, collection, 1)
    assert restored(objects, collection.uid, tmp_path / "there") == before


def test_writers_that_race_for_a_slot(collection: Collection) -> None:
    """Of two writers that append at once, whichever epoch they have, one gets the slot; an answer that was lost is not
    taken for another writer's."""
    objects = MemoryObjects()
    first, second = (SlotWriter(SlotLog(objects, "log"), epoch, NOTHING) for epoch in (1, 2))
    assert first.fence(1)
    assert not second.fence(1)
    objects.fault = lambda operation, name: "after" if operation == "create" else ""
    with pytest.raises(Unavailable):
        first.append(b"a", NOTHING.slot.reached, 2)
    objects.fault = lambda operation, name: ""
    first.append(b"b", NOTHING.slot.reached, 3)
    assert [SlotLog(objects, "log").read(number).slot.payload for number in (1, 2, 3)] == [b"", b"a", b"b"]


def test_erasing_leaves_no_deleted_text(collection: Collection, tmp_path: Path) -> None:
    """No object holds a word of a deleted or replaced document, and what lives is still restored."""
    objects = MemoryObjects()
    upload = uploader(objects, collection)
    secret = replace(WORLD.document(1), text="zebrafinch secret", title="quokka")
    collection.write([secret, WORLD.document(2)]).result()
    upload.upload(1)
    upload.check_in(2)
    collection.write([Delete("d1")]).result()
    upload.upload(3)
    assert any(b"zebrafinch" in content for content in objects.held.values())
    upload.check_in(4, erase=True)
    assert not [
        name for name, content in objects.held.items() if b"zebrafinch" in content or b"quokka" in content
    ]
    assert restored(objects, collection.uid, tmp_path / "there") == state_of(collection.folder)
    with pytest.raises(NotFound):
        restored(objects, collection.uid, tmp_path / "early", Until(seq=1))


def test_damage_is_found(collection: Collection, tmp_path: Path) -> None:
    """A changed, missing or misplaced object is named, and nothing is placed."""
    objects = MemoryObjects()
    upload = uploader(objects, collection)
    for version in range(4):
        fill(collection, WORLD, range(20), version=version)
        upload.upload(version)
    names = sorted(name for name in objects.held if "/log/" in name)
    whole = dict(objects.held)
    for damage in ("flip", "cut", "gone", "other"):
        objects.held = dict(whole)
        content = objects.held[names[2]]
        if damage == "flip":
            objects.held[names[2]] = content[:40] + bytes([content[40] ^ 1]) + content[41:]
        elif damage == "cut":
            objects.held[names[2]] = content[:-1]
        elif damage == "gone":
            del objects.held[names[2]]
        else:
            objects.held[names[2]] = objects.held[names[1]]
        with pytest.raises(Damaged, match=names[2].rpartition("/")[2]):
            restored(objects, collection.uid, tmp_path / damage)
        assert not (tmp_path / damage / "docs").exists()


def test_damaged_indexes_are_not_placed(
    collection: Collection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever a byte of them differs, the log is restored, and a warning says that they are built again."""
    objects, places = MemoryObjects(), random.Random(3)
    fill(collection, WORLD, range(200))
    rebuild(collection)
    upload = uploader(objects, collection)
    assert upload.take_generation(collection.shelf.path(collection.generation), 1)
    upload.upload(1)
    pieces = [name for name in objects.held if "/generation/" in name]
    assert len(pieces) > 1
    whole = dict(objects.held)
    restored(objects, collection.uid, tmp_path / "whole")
    assert Shelf(tmp_path / "whole" / "docs").current() == collection.generation
    for at in range(12):
        name = places.choice(pieces)
        content = bytearray(whole[name])
        content[places.randrange(len(content))] ^= 1
        objects.held = {**whole, name: bytes(content)}
        caplog.clear()
        assert restored(objects, collection.uid, tmp_path / f"{at}") == state_of(collection.folder)
        assert Shelf(tmp_path / f"{at}" / "docs").current() == 0, name
        assert "the indexes of docs will be built again" in caplog.text


def test_a_log_that_dropped_operations_is_uploaded_anew(collection: Collection, tmp_path: Path) -> None:
    """A collection that was written and rebuilt while no store was configured gets a new beginning in it."""
    objects = MemoryObjects()
    fill(collection, WORLD, range(50))
    uploader(objects, collection).upload(1)
    fill(collection, WORLD, range(40, 90), version=1)
    delete(collection, range(10))
    rebuild(collection)
    fill(collection, WORLD, range(90, 100))
    rebuild(collection)
    collection.forget_generations()
    uploader(objects, collection, 2).upload(2)
    assert restored(objects, collection.uid, tmp_path / "there") == state_of(collection.folder)


def test_settings_beside_the_log_travel(collection: Collection, tmp_path: Path) -> None:
    objects = MemoryObjects()
    upload = uploader(objects, collection)
    fill(collection, WORLD, range(5))
    upload.upload(1)
    (collection.folder / "synonyms.json").write_bytes(b"{}")
    upload.upload(2)
    restored(objects, collection.uid, tmp_path / "there")
    assert (tmp_path / "there" / "docs" / "synonyms.json").read_bytes() == b"{}"
    count = len(objects.held)
    upload.upload(3)
    assert len(objects.held) == count


class Replacing(MemoryObjects):
    """A store that ignores the condition of a create, as some look-alikes do."""

    def create(self, name: str, content: bytes) -> bool:
        self.held[name] = content
        return True


def test_a_store_that_replaces_objects_is_refused() -> None:
    with pytest.raises(Conflict, match="replaces an object"):
        prove(Replacing())
    prove(MemoryObjects())


def test_a_folder_is_a_store(collection: Collection, tmp_path: Path) -> None:
    """`file://` keeps objects in a folder that may have any name, through the library that also speaks to buckets."""
    objects = Bucket((tmp_path / "a b#c").as_uri(), makes_folder=True)
    prove(objects)
    upload = uploader(objects, collection, keep_ms=0)
    fill(collection, WORLD, range(30))
    upload.upload(1)
    upload.check_in(10**12)
    delete(collection, range(10))
    upload.check_in(10**12, erase=True)
    assert restored(objects, collection.uid, tmp_path / "there") == state_of(collection.folder)
    objects.remove(["no/such", "object"])
    [slot, *_] = upload.held.slots.objects.names(upload.held.slots.folder)
    assert upload.held.slots.holds(int(slot))
    assert not objects.exists("no/such")
    with pytest.raises(NotFound):
        objects.read("no/such")
