"""Erasure: what was deleted or overwritten is in no byte of a collection's files, and its space comes back."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from indexes.base.errors import Unavailable
from indexes.base.model import Delete, NewPassage, Upsert
from indexes.collection.collection import Collection
from indexes.log.checks import check_log
from indexes.log.owed import Owed
from indexes.log.pinned import pin
from indexes.reading import scrolling
from indexes.upkeep import erasing
from indexes.upkeep.erasing import Erased, Erasure, disk_bytes
from tests.support.vectors import World, delete, fill, make_collection, rebuild

WORLD = World()


def quiet(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    made = make_collection(tmp_path / "c")
    yield made
    made.close()


def erase(collection: Collection) -> Erased:
    erasure = Erasure(collection)
    if erasure.needs_rebuild:
        rebuild(collection)
    return erasure.run(quiet)


def canary(number: int) -> Upsert:
    """A document that is unlike all others in everything it holds."""
    mark = f"canary{number:06d}z"
    text = f"the {mark}text says what nobody else says"
    vector = WORLD.vector(5_000_000 + number)
    piece = NewPassage(0, len(text), 9, vector, f"{mark}heading")
    return Upsert(f"{mark}id", text, f"{mark}title", {"secret": f"{mark}value", f"{mark}key": 1}, (piece,))


def needles(number: int) -> list[bytes]:
    vector = WORLD.vector(5_000_000 + number)
    return [f"canary{number:06d}z".encode(), vector.tobytes(), vector.astype(np.float16).tobytes()]


def found_in(folder: Path, wanted: list[bytes]) -> dict[str, int]:
    """Files below the folder that hold any of these bytes, and how many of them."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    counts = {str(path): sum(one in content for one in wanted) for path, content in files.items()}
    return {path: count for path, count in counts.items() if count}


def log_bytes(collection: Collection) -> int:
    return sum(path.stat().st_size for path in collection.folder.glob("log.db*"))


def sound(collection: Collection) -> None:
    checks = list(check_log("c", collection.log.path, frozen=False, progress=quiet))
    assert [one for one in checks if not one.ok] == []


def test_nothing_of_what_was_deleted_is_left(collection: Collection) -> None:
    """Text, title, heading, metadata, id and vector, deleted or overwritten, also where pages were split since."""
    numbers = range(300)
    fill(collection, WORLD, range(500))
    for number in numbers:
        collection.write([canary(number), WORLD.document(1000 + number)]).result()
    rebuild(collection)
    rebuild(collection)
    wanted = [one for number in numbers for one in needles(number)]
    assert found_in(collection.folder, wanted)
    collection.write([Delete(canary(number).id) for number in numbers[::2]]).result()
    for number in numbers[1::2]:
        same_id = canary(number)
        collection.write([Upsert(same_id.id, "gone", "", {}, WORLD.document(1).passages)]).result()
    collection.write([Delete(canary(number).id) for number in numbers[1::2]]).result()
    fill(collection, WORLD, range(2000, 2100))
    assert erase(collection).erased_bytes > 300 * 300
    assert found_in(collection.folder, wanted) == {}
    assert collection.log.owed == Owed()
    assert scrolling.count(collection).documents == 900
    sound(collection)


@pytest.mark.slow
def test_space_returns(collection: Collection) -> None:
    """After 90 percent was deleted, so much of the log's file is gone, and of the whole folder."""
    fill(collection, WORLD, range(4000))
    rebuild(collection)
    collection.settle()  # files of segments are removed in the background
    before, folder_before = log_bytes(collection), disk_bytes(collection.folder)
    delete(collection, range(3600))
    erased = erase(collection)
    assert log_bytes(collection) < 0.15 * before
    assert erased.disk_bytes == disk_bytes(collection.folder) < 0.25 * folder_before
    assert erased.freed_bytes > 0.5 * folder_before


def test_everything_goes_on_beside_it(collection: Collection) -> None:
    """Writes and reads beside many erasures: none fails, and what was acknowledged is there, also after reopening."""
    stop = threading.Event()
    live: set[int] = set()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            collection.write([WORLD.document(at) for at in range(number, number + 5)]).result()
            live.update(range(number, number + 5))
            collection.write([Delete(f"d{number}"), Delete(f"d{number + 2}")]).result()
            live.difference_update({number, number + 2})

    def read() -> None:
        while not stop.is_set():
            for one in list(live)[:20]:
                collection.log.document(f"d{one}")
            scrolling.page(collection, 0, 50, vectors=True)

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(work) for work in (write, read, read)]
        for _ in range(8):
            Erasure(collection).run(quiet)
            time.sleep(0.05)
        stop.set()
    for one in working:
        one.result()
    sound(collection)
    folder, options = collection.folder, collection.options
    collection.close()
    again = Collection(folder, options)
    assert {one.document.id for one in scrolling.page(again, 0, 10_000).documents} == {
        f"d{one}" for one in live
    }
    assert again.snapshot.live == len(live)
    sound(again)
    again.close()


def test_a_backup_is_waited_for(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another program reads the log it keeps its file, and the erasure fails in the end; writes go on."""
    monkeypatch.setattr(erasing, "WAIT_S_MAX", 0.1)
    monkeypatch.setattr(erasing, "PAUSE_S", 0.05)
    fill(collection, WORLD, range(10))
    with pin(collection.log.path) as pinned:
        with pytest.raises(Unavailable, match="read by another program"):
            erase(collection)
        fill(collection, WORLD, range(10, 20))
        assert pinned.state().documents == 10
    assert not list(collection.folder.glob(".log*"))
    erase(collection)
    assert collection.log.document_count() == 20
    sound(collection)


def test_a_folder_is_measured_while_others_remove_what_is_in_it(tmp_path: Path) -> None:
    """What disappears during the walk does not count, and is no error."""
    (tmp_path / "kept").write_bytes(b"0123456789")
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            for number in range(20):
                folder = tmp_path / f"segment-{number}"
                folder.mkdir()
                (folder / "file").touch()
            for number in range(20):
                shutil.rmtree(tmp_path / f"segment-{number}")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert {disk_bytes(tmp_path) for _ in range(500)} == {10}
    finally:
        done.set()
        thread.join()
