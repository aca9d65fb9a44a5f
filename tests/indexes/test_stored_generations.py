"""What one machine has built, others take from the store: after a loss, on replicas, after a build elsewhere."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from indexes.base.errors import Conflict
from indexes.base.model import Delete, IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from indexes.store import availability, carrying, collection_log, generations
from indexes.store.building import await_answer, build_folder, build_from
from indexes.store.generations import GENERATIONS
from indexes.upkeep.erasing import Erasure
from tests.indexes.test_following import Replica, following
from tests.indexes.test_uploading import BUCKET, WAIT_S, WORLD, Service, near, serving, wait_for
from tests.support.object_stores import Fault, MemoryObjects
from tests.support.vectors import found_ids, rebuild, settings


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


def built(service: Service, *numbers: int) -> Collection:
    """A collection with documents, a generation of them, and that in the store."""
    service.create("docs")
    collection = service.catalog.get("docs")
    service.write("docs", *numbers).result(WAIT_S)
    rebuild(collection)
    wait_for(lambda: is_stored(service, collection))
    return collection


def is_stored(service: Service, collection: Collection) -> bool:
    upload = service.uploader._session._uploads.get(collection.uid)
    live = upload and upload.stored_generation
    return bool(live and live.is_of(collection.shelf.path(collection.generation))) and service.is_level()


def pieces(objects: MemoryObjects) -> list[str]:
    return [name for name in objects.held if f"/{GENERATIONS}/" in name]


def agree(one: Collection, other: Collection) -> None:
    """Dense searches and words find the same, with the same scores."""
    assert one.documents == other.documents
    for query in WORLD.queries(5):
        assert found_ids(one, query) == found_ids(other, query)
    for number in range(5):
        text = WORLD.text(number, 0)
        found, same = (each.snapshot.lexical(text, 10) for each in (one, other))
        assert (found.ids.tolist(), found.scores.tolist()) == (same.ids.tolist(), same.scores.tolist())


@pytest.mark.parametrize("forgets", [False, True])
def test_a_new_machine_need_not_build(
    forgets: bool, tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It searches the generation of the lost one, without what died later: also if a checkpoint has made the store
    forget which documents those were, and after another start."""
    if forgets:
        monkeypatch.setattr(collection_log, "SLOTS_BETWEEN", 3)
    monkeypatch.setattr(generations, "PIECE_BYTES", 5000)
    with serving(tmp_path / "a", objects) as service:
        collection = built(service, *range(60))
        for number in range(0, 30, 3):
            collection.write([Delete(f"d{number}")]).result(WAIT_S)
        service.write("docs", 61, 62, 1, version=1).result(WAIT_S)
        held = MemoryObjects(dict(objects.held))
        for _ in range(2):
            with serving(tmp_path / "b", held) as other:
                restored = other.catalog.get("docs")
                assert restored.generation == collection.generation
                assert restored.wants_rebuild() is None
                assert (restored.log.forgotten() > 60) == forgets
                agree(collection, restored)
        assert [check for check in verify_data(tmp_path / "b", [], lambda *_: None) if not check.ok] == []
        assert len(pieces(objects)) > 3


@pytest.mark.parametrize("seed", range(3))
def test_a_replica_takes_what_its_writer_adopts(seed: int, tmp_path: Path, objects: MemoryObjects) -> None:
    """Beside random writes, deletions, rebuilds and rollbacks it searches the same generation, and builds none."""
    draw = random.Random(seed)
    with serving(tmp_path / "a", objects) as service:
        collection = built(service, *range(40))
        with following(tmp_path / "b", objects) as replica:
            own = replica.catalog.get("docs")
            for step in range(30):
                numbers = draw.sample(range(100), draw.randrange(1, 12))
                if draw.random() < 0.7:
                    service.write("docs", *numbers, version=step).result(WAIT_S)
                else:
                    collection.write([Delete(f"d{one}") for one in numbers]).result(WAIT_S)
                if draw.random() < 0.2:
                    rebuild(collection)
                elif draw.random() < 0.1 and min(collection.shelf.numbers()) < collection.generation:
                    collection.rollback()
                if draw.random() < 0.2:
                    same(collection, replica)
            same(collection, replica)
            assert own.wants_rebuild() is None


def same(writer: Collection, replica: Replica) -> None:
    own = replica.catalog.get("docs")
    wait_for(lambda: replica.has(writer) and live_of(own) == live_of(writer))
    agree(writer, own)


def live_of(collection: Collection) -> tuple[int, int]:
    generation = collection._assembly.generation
    assert generation is not None
    return generation.manifest.seq, generation.manifest.built_ms


def test_one_that_is_damaged_or_gone_is_built_again(tmp_path: Path, objects: MemoryObjects) -> None:
    with serving(tmp_path / "a", objects) as service:
        collection = built(service, *range(60))
    found = pieces(objects)
    for at, name in enumerate(found):
        held = MemoryObjects(dict(objects.held))
        held.held[name] = held.held[name][:-1] + bytes([held.held[name][-1] ^ 1])
        if at == len(found) - 1:
            del held.held[name]
        with serving(tmp_path / f"b{at}", held) as other:
            restored = other.catalog.get("docs")
            assert restored.wants_rebuild() or restored.generation == 0
            assert restored.documents == collection.documents
        with following(tmp_path / f"c{at}", held) as replica:
            wait_for(lambda: replica.catalog.get("docs").options.replication.builds(collection.uid))


def test_two_are_kept(tmp_path: Path, objects: MemoryObjects) -> None:
    with serving(tmp_path / "a", objects) as service:
        collection = built(service, *range(20))
        for number in range(20, 25):
            service.write("docs", number).result(WAIT_S)
            rebuild(collection)
            wait_for(lambda: is_stored(service, collection))
        wait_for(lambda: len({name.rpartition("-")[0] for name in pieces(objects)}) == 2)


def test_erasing_leaves_no_word_of_it(tmp_path: Path, objects: MemoryObjects) -> None:
    """A generation holds the words of documents that were deleted since: erasing removes every one but the live one."""
    with serving(tmp_path / "a", objects) as service:
        service.create("docs")
        collection = service.catalog.get("docs")
        secret = replace(WORLD.document(1), text="unmistakableword" + " " * 100)
        collection.write([secret, *map(WORLD.document, range(2, 30))]).result(WAIT_S)
        rebuild(collection)
        wait_for(lambda: is_stored(service, collection))
        assert any(b"unmistakableword" in objects.held[name] for name in pieces(objects))
        collection.write([Delete("d1")]).result(WAIT_S)
        erasure = Erasure(collection)
        rebuild(collection)
        erasure.run(lambda *_: None)
        service.uploader.erase(collection)
        assert not any(b"unmistakableword" in content for content in objects.held.values())
        with serving(tmp_path / "b", MemoryObjects(dict(objects.held))) as other:
            assert live_of(other.catalog.get("docs")) == live_of(collection)


def test_writes_do_not_wait_for_one(tmp_path: Path, objects: MemoryObjects) -> None:
    """A generation takes minutes to upload; writes that wait for the store pass it."""
    goes_on = threading.Event()

    def slow(operation: str, name: str) -> Fault:
        if operation == "create" and f"/{GENERATIONS}/" in name:
            goes_on.wait(WAIT_S)
        return ""

    with serving(tmp_path / "a", objects, BUCKET) as service:
        service.create("docs")
        collection = service.catalog.get("docs")
        service.write("docs", *range(20)).result(WAIT_S)
        objects.fault = slow
        rebuild(collection)
        for number in range(20, 25):
            service.write("docs", number).result(5)
        assert not is_stored(service, collection)
        goes_on.set()
        objects.fault = near
        wait_for(lambda: is_stored(service, collection))


@pytest.mark.slow
def test_a_build_elsewhere_is_adopted(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds what the store held; the writer adopts it, beside its own writes, and its replicas take it."""
    monkeypatch.setattr(carrying, "OFFERS_EVERY_S", 0.1)
    with serving(tmp_path / "a", objects) as service, following(tmp_path / "r", objects) as replica:
        collection = built(service, *range(40))
        service.write("docs", *range(40, 60)).result(WAIT_S)
        elsewhere = build_from(objects, "docs", tmp_path / "e", IndexOptions(), None, lambda *_: None)
        service.write("docs", *range(60, 70), 3, version=2).result(WAIT_S)
        answer = await_answer(objects, elsewhere.offer, WAIT_S)
        assert answer is not None
        assert answer.refusal == ""
        assert collection.live_seq == elsewhere.manifest.seq == 60
        assert is_stored(service, collection)
        same(collection, replica)
        with serving(tmp_path / "b", MemoryObjects(dict(objects.held))) as other:
            agree(collection, other.catalog.get("docs"))


@pytest.mark.slow
def test_one_that_was_adopted_while_the_store_was_away(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is live here, but the store could not be told: when it can, it still has it."""
    monkeypatch.setattr(carrying, "OFFERS_EVERY_S", 0.1)
    monkeypatch.setattr(availability, "RETRY_S", (0.1, 0.2))
    with serving(tmp_path / "a", objects) as service:
        collection = built(service, *range(40))
        service.write("docs", 40).result(WAIT_S)
        elsewhere = build_from(objects, "docs", tmp_path / "e", IndexOptions(), None, lambda *_: None)

        def full(operation: str, name: str) -> Fault:
            return "before" if operation == "create" and "/log/" in name else ""

        objects.fault = full
        wait_for(lambda: collection.live_seq == elsewhere.manifest.seq)
        time.sleep(0.5)
        objects.fault = near
        answer = await_answer(objects, elsewhere.offer, WAIT_S)
        assert answer is not None
        assert answer.refusal == ""
        wait_for(lambda: is_stored(service, collection))
        with serving(tmp_path / "b", MemoryObjects(dict(objects.held))) as other:
            assert live_of(other.catalog.get("docs")) == live_of(collection)


@pytest.mark.slow
def test_an_older_build_is_refused(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is no newer than the live one, or is damaged, is refused; what was offered is removed."""
    monkeypatch.setattr(carrying, "OFFERS_EVERY_S", 0.1)
    with serving(tmp_path / "a", objects) as service:
        collection = built(service, *range(40))
        service.write("docs", 40).result(WAIT_S)
        monkeypatch.setattr(carrying, "OFFERS_EVERY_S", 3600)
        time.sleep(0.3)
        before = set(pieces(objects))
        elsewhere = build_from(objects, "docs", tmp_path / "e", IndexOptions(), None, lambda *_: None)
        service.write("docs", 41).result(WAIT_S)
        rebuild(collection)
        wait_for(lambda: is_stored(service, collection))
        offered = {name for name in pieces(objects) if name not in before}
        service.uploader._carrier.offers_due = 0
        answer = await_answer(objects, elsewhere.offer, WAIT_S)
        assert answer is not None
        assert "as new is live" in answer.refusal
        assert {name for name in pieces(objects) if name in offered} < offered
        with pytest.raises(Conflict, match="already"):
            build_from(objects, "docs", tmp_path / "f", IndexOptions(), None, lambda *_: None)


def test_what_a_killed_build_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next build in the same place removes them, and leaves alone what is under way."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "from indexes.store.building import build_folder\n"
        "with build_folder() as folder:\n"
        "    (folder / 'log').write_text('x')\n"
        "    print(folder, flush=True)\n"
        "    input()\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        for _ in range(2)
    ]
    folders = [Path(one.stdout.readline().strip()) for one in running if one.stdout]
    try:
        running[0].kill()
        running[0].wait()
        assert (folders[0] / "log").exists()
        with build_folder() as folder:
            assert sorted(tmp_path.iterdir()) == sorted([folder, folders[1]])
        running[1].communicate("\n", timeout=30)
        assert not list(tmp_path.iterdir())
    finally:
        for one in running:
            one.kill()
            one.wait()


def test_one_that_was_built_before_there_was_a_store(tmp_path: Path, objects: MemoryObjects) -> None:
    """Its collection and its generation begin to be uploaded in the same moment."""
    plain = Catalog(tmp_path / "a", IndexOptions())
    collection = plain.create("docs", settings())
    collection.write(list(map(WORLD.document, range(20)))).result(WAIT_S)
    rebuild(collection)
    plain.close()

    def slow(operation: str, name: str) -> Fault:
        time.sleep(0.02)
        return ""

    objects.fault = slow
    with serving(tmp_path / "a", objects) as service:
        wait_for(lambda: is_stored(service, service.catalog.get("docs")))
