"""Segments are files: mapped at the next start and by other processes, never trusted more than the log."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexes.base.errors import Damaged, StorageError
from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from indexes.collection.replica import Replica
from indexes.directory.backup.verifying import check_segment
from indexes.log.reader import LogPosition, LogReader, PassageEntry
from indexes.parts.delta import DeltaView
from indexes.parts.segment import Segment
from indexes.parts.segment_shelf import SegmentShelf, segment_folders
from indexes.rebuild.builder import build
from indexes.upkeep.erasing import Erasure
from tests.support.histories import take_step
from tests.support.vectors import World, delete, fill, make_collection, rebuild

WORLD = World(seed=9)
OPTIONS = IndexOptions(delta_passages_max=32, segments_max=0)
QUERIES = WORLD.queries(3)
WORDS = [WORLD.text(number, 0) for number in (3, 57, 140)]
ROUNDED = 2e-4


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    made = make_collection(tmp_path / "c", options=OPTIONS)
    yield made
    made.close()


def segments_of(collection: Collection | Replica) -> list[Segment]:
    return [one.part for one in collection.snapshot.parts if isinstance(one.part, Segment)]


def on_disk(collection: Collection) -> set[str]:
    return {path.name for path in segment_folders(collection.folder / "segments")}


def names_of(segments: list[Segment]) -> set[str]:
    return {f"{one.covers.start}-{one.covers.stop - 1}" for one in segments}


@contextlib.contextmanager
def copied(collection: Collection, to: Path, *, segments: bool) -> Iterator[Collection]:
    """A copy as a kill would leave it, opened; perhaps without its segments."""
    shutil.copytree(collection.folder, to, ignore=shutil.ignore_patterns(".removed-*"))  # which vanish
    if not segments:
        shutil.rmtree(to / "segments", ignore_errors=True)
    with contextlib.closing(Collection(to, collection.options)) as other:
        yield other
    shutil.rmtree(to)


def assert_alike(one: Collection | Replica, other: Collection) -> None:
    """The same state, with the same scores."""
    own, its = one.snapshot, other.snapshot
    assert (own.seq, own.content, own.live) == (its.seq, its.content, its.live)
    assert own.languages() == its.languages()
    assert own.statistics().passages == its.statistics().passages
    for query in QUERIES:
        np.testing.assert_allclose(
            own.dense(query, 20).ranking.scores, its.dense(query, 20).ranking.scores, atol=ROUNDED
        )
    for text in WORDS:
        found, expected = own.lexical(text, 20), its.lexical(text, 20)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.scores.tolist() == expected.scores.tolist()


def follow(replica: Replica, collection: Collection) -> None:
    """Tell a replica that there is something new on disk, as the service does, until it has loaded that."""
    replica.look()
    replica.catch_up()
    until = time.monotonic() + 20
    while replica.generation != collection.generation or names_of(segments_of(replica)) != on_disk(
        collection
    ):
        assert time.monotonic() < until
        time.sleep(0.005)
        replica.catch_up()


def test_a_start_maps_them(collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sealed is not read from the log again, and is searched as before, deletions since then included."""
    fill(collection, WORLD, range(200))
    collection.settle()
    delete(collection, range(0, 100, 7))
    fill(collection, WORLD, range(40, 60), version=1)
    read = []
    entries = LogReader.entries

    def counting(self: LogReader, after: int, upto: int) -> Iterator[object]:
        for entry in entries(self, after, upto):
            read.append(entry.passage)
            yield entry

    monkeypatch.setattr(LogReader, "entries", counting)
    with copied(collection, tmp_path / "again", segments=True) as again:
        assert min(read) > max(one.covers.stop - 1 for one in segments_of(again))
        assert len(read) < 64
        assert all(one.files for one in segments_of(again))
        assert_alike(again, collection)


def test_whatever_was_done(collection: Collection, tmp_path: Path) -> None:
    """Random steps. A copy with its segments, one without, and the collection itself are alike after each."""
    chance = random.Random(3)
    fill(collection, WORLD, range(40))
    mapped = 0
    for step in range(24):
        take_step(collection, WORLD, chance, step)
        if step % 3 == 0:
            collection.settle()
            assert on_disk(collection) == names_of(segments_of(collection))
            with copied(collection, tmp_path / "with", segments=True) as again:
                mapped += len(segments_of(again))
                assert_alike(again, collection)
            with copied(collection, tmp_path / "without", segments=False) as again:
                assert_alike(again, collection)
    assert mapped > 8


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "no manifest"])
def test_a_damaged_one_is_read_from_the_log(collection: Collection, tmp_path: Path, damage: str) -> None:
    """`verify` reports it, and the start reads its passages from the log and removes it."""
    fill(collection, WORLD, range(200))
    collection.settle()
    shutil.copytree(collection.folder, folder := tmp_path / "damaged")
    for segment in segment_folders(folder / "segments"):
        path = segment / ("manifest.json" if damage == "no manifest" else "vectors.f16")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
        if damage in {"gone", "no manifest"}:
            path.unlink()
        found = check_segment(segment, set(), log_whole=True)
        assert found is not None
        assert not found.ok
    with contextlib.closing(Collection(folder, OPTIONS)) as again:
        assert_alike(again, collection)
        again.settle()
        assert_alike(again, collection)
        for segment in segment_folders(folder / "segments"):
            whole = check_segment(segment, set(), log_whole=True)
            assert whole is not None
            assert whole.ok


def test_of_another_name_or_collection(collection: Collection, tmp_path: Path) -> None:
    """A folder that says it covers more than it does, or with the segment of another collection, is not believed."""
    fill(collection, WORLD, range(100))
    collection.settle()
    with contextlib.closing(make_collection(tmp_path / "other", options=OPTIONS)) as other:
        fill(other, World(seed=10), range(100))
        other.settle()
    (name,) = on_disk(collection)
    shutil.copytree(collection.folder, renamed := tmp_path / "renamed")
    (renamed / "segments" / name).rename(renamed / "segments" / "1-99")
    shutil.copytree(collection.folder, foreign := tmp_path / "foreign")
    shutil.rmtree(foreign / "segments")
    shutil.copytree(tmp_path / "other" / "segments", foreign / "segments")
    (foreign / "segments" / "12345678901234567890-9").mkdir()
    for folder in (renamed, foreign):
        with contextlib.closing(Collection(folder, OPTIONS)) as again:
            assert not segments_of(again)
            assert_alike(again, collection)


def test_room_is_asked_for_what_is_read_back(collection: Collection, tmp_path: Path) -> None:
    """A damaged segment needs as much room as a missing one; what is mapped needs little."""
    fill(collection, WORLD, range(200))
    collection.settle()
    asked: list[int] = []

    def room(size: int) -> float:
        asked.append(size)
        return float("inf")

    for damage in ("none", "damaged", "gone"):
        shutil.copytree(collection.folder, folder := tmp_path / damage)
        for segment in segment_folders(folder / "segments"):
            shutil.rmtree(segment) if damage == "gone" else None
            (segment / "ids.npy").write_bytes(b"") if damage == "damaged" else None
        Collection(folder, replace(OPTIONS, room=room)).close()
    mapped, damaged, gone = asked
    assert mapped < gone / 5
    assert damaged == gone


@pytest.mark.slow
def test_many_starts_leave_no_pieces(collection: Collection, tmp_path: Path) -> None:
    """What a start reads back grows on, and is sealed like any other."""
    folder, parts = collection.folder, []
    shutil.copytree(folder, folder := tmp_path / "again")
    for start in range(0, 900, 45):  # more than a delta, so that what is read back is not the last of them
        with contextlib.closing(Collection(folder, OPTIONS)) as again:
            fill(again, WORLD, range(start, start + 45))
            again.settle()
            parts.append([one.part.size for one in again.snapshot.parts])
    assert max(map(len, parts)) <= 5
    assert all(sum(sizes) == 45 * (at + 1) for at, sizes in enumerate(parts))


def test_one_from_before_forgotten_deletions(collection: Collection, tmp_path: Path) -> None:
    """A segment that should be gone, beside a log that no longer has the deletions since: all is read from the log."""
    fill(collection, WORLD, range(100))
    collection.settle()
    shutil.copytree(collection.folder / "segments", before := tmp_path / "before")
    delete(collection, range(50))
    for number in range(100, 103):
        fill(collection, WORLD, [number])
        rebuild(collection)
    assert collection.log.forgotten() > 102
    shutil.copytree(collection.folder, folder := tmp_path / "lost")
    shutil.rmtree(folder / "generations")
    (folder / "CURRENT").unlink()
    shutil.copytree(before, folder / "segments", dirs_exist_ok=True)
    with contextlib.closing(Collection(folder, OPTIONS)) as again:
        assert not segments_of(again)
        assert again.snapshot.live == collection.snapshot.live == 53


def test_what_a_crash_leaves(collection: Collection, tmp_path: Path) -> None:
    """Between naming a merged segment and removing those that it is made of, both are there; drafts are swept."""
    fill(collection, WORLD, range(65))
    collection.settle()
    shutil.copytree(collection.folder / "segments", before := tmp_path / "before")
    fill(collection, WORLD, range(65, 110))
    collection.settle()
    assert len(on_disk(collection)) == 1
    shutil.copytree(collection.folder, folder := tmp_path / "crashed")
    shutil.copytree(before, folder / "segments", dirs_exist_ok=True)
    shutil.copytree(before, folder / "segments" / ".draft-1-9")
    with contextlib.closing(Collection(folder, OPTIONS)) as again:
        assert names_of(segments_of(again)) == on_disk(collection)
        again.settle()
        assert {path.name for path in (folder / "segments").iterdir()} == on_disk(collection)
        assert_alike(again, collection)


def test_a_log_from_before_is_told(collection: Collection, tmp_path: Path) -> None:
    """A segment that knows a later operation, or later passages, than the log: writes were lost."""
    fill(collection, WORLD, range(20))
    collection.on_writer(lambda: collection.log._checkpoint_if(pages=1))
    shutil.copytree(collection.folder, tmp_path / "older")
    fill(collection, WORLD, range(20, 100))
    collection.settle()
    shutil.copytree(collection.folder / "segments", tmp_path / "older" / "segments", dirs_exist_ok=True)
    with pytest.raises(Damaged, match="a segment was made at"):
        Collection(tmp_path / "older", OPTIONS)


def test_a_full_disk_costs_only_speed(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that cannot be written serves from memory, and the next start reads the log."""

    def full(self: Segment, folder: Path) -> None:
        (folder / "ids.npy").write_bytes(b"part of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Segment, "save", full)
    fill(collection, WORLD, range(200))
    collection.settle()
    assert segments_of(collection)
    assert not any(one.files for one in segments_of(collection))
    assert not list((collection.folder / "segments").iterdir())

    def damaged(self: Segment, folder: Path) -> None:
        save(self, folder)
        (folder / "ids.npy").write_bytes(b"torn")

    monkeypatch.undo()
    save = Segment.save
    monkeypatch.setattr(Segment, "save", damaged)
    fill(collection, WORLD, range(200, 300))
    collection.settle()
    assert not any(one.files for one in segments_of(collection))
    monkeypatch.undo()
    with copied(collection, tmp_path / "again", segments=True) as again:
        assert_alike(again, collection)


def test_one_that_gets_no_name(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves until the next start, which reads the log; nothing of it stays on disk."""

    def broken(self: Path, target: Path) -> Path:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", broken)
    fill(collection, WORLD, range(100))
    collection.settle()
    monkeypatch.undo()
    assert segments_of(collection)
    assert not list((collection.folder / "segments").iterdir())
    with copied(collection, tmp_path / "again", segments=True) as again:
        assert_alike(again, collection)


@pytest.mark.slow
def test_processes_map_the_same_files(collection: Collection) -> None:
    """A replica seals nothing: it maps what the writer has made, before it was opened and since."""
    fill(collection, WORLD, range(100))
    collection.settle()
    with contextlib.closing(Replica(collection.folder, OPTIONS, collection.hits)) as replica:
        for until in (100, 300, 420):
            fill(collection, WORLD, range(100, until))
            delete(collection, range(until // 2, until // 2 + 9))
            collection.settle()
            follow(replica, collection)
            assert_alike(replica, collection)
            deltas = [one.part for one in replica.snapshot.parts if isinstance(one.part, DeltaView)]
            assert sum(one.size for one in deltas) < 64
        rebuild(collection)
        follow(replica, collection)
        assert not segments_of(replica)
        assert_alike(replica, collection)


def test_a_segment_from_after_the_position(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that appears after a replica has read how far the log goes is not loaded with that state."""
    fill(collection, WORLD, range(40))
    position = LogReader.position

    def then_more(self: LogReader) -> LogPosition:
        found = position(self)
        monkeypatch.undo()
        fill(collection, WORLD, range(40, 120))
        collection.settle()
        return found

    monkeypatch.setattr(LogReader, "position", then_more)
    with contextlib.closing(Replica(collection.folder, OPTIONS, collection.hits)) as replica:
        assert_alike(replica, collection)


@pytest.mark.parametrize("followed", [True, False])
def test_a_merge_keeps_the_deltas(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, followed: bool
) -> None:
    """Where segments cover no more than before, a replica reads nothing from the log again. What died while they were
    loaded is hidden, whether or not the replica has followed that."""
    fill(collection, WORLD, range(33))
    collection.settle()
    with contextlib.closing(Replica(collection.folder, OPTIONS, collection.hits)) as replica:
        fill(collection, WORLD, range(33, 90))
        replica.catch_up()
        collection.settle()
        follow(replica, collection)
        before = [one.part for one in replica.snapshot.parts if isinstance(one.part, DeltaView)]
        # As after a merge: other files, which cover what the ones before did.
        (last,) = segments_of(collection)[-1:]
        monkeypatch.setattr(replica._assembly, "on_disk", lambda: [last.covers])
        load, behind, loaded, go_on = replica._load, threading.Event(), threading.Event(), threading.Event()

        def slowly(*, whole: bool = False) -> object:
            assert behind.wait(60)
            delete(collection, [2, 75])  # the replica has not followed that
            found = load(whole=whole)
            loaded.set()
            assert go_on.wait(60)
            return found

        monkeypatch.setattr(replica, "_load", slowly)
        replica.look()
        delete(collection, [3, 70])
        replica.catch_up()
        behind.set()
        assert loaded.wait(60)
        delete(collection, [4, 80])
        if followed:
            replica.catch_up()
        go_on.set()
        monkeypatch.undo()
        while not replica.ready:
            time.sleep(0.001)
        replica.catch_up()
        after = [one.part for one in replica.snapshot.parts if isinstance(one.part, DeltaView)]
        assert [one.delta for one in before] == [one.delta for one in after]
        replica.catch_up()
        assert_alike(replica, collection)


@pytest.mark.parametrize("early", [False, True])
def test_a_new_segment_keeps_the_deltas_after_it(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """A replica indexes each passage once, unless the writer began a new delta `early`, as for a rebuild: then what is
    after the segment is read from the log again."""
    read: list[int] = []
    with contextlib.closing(Replica(collection.folder, OPTIONS, collection.hits)) as replica:
        read_back = replica._assembly.read_back

        def seen(entries: Iterable[PassageEntry]) -> list[DeltaView]:
            found = read_back(entries)
            read.extend(one.size for one in found)
            return found

        monkeypatch.setattr(replica._assembly, "read_back", seen)
        fill(collection, WORLD, range(10))
        if early:
            collection.begin_build()
        for begin in range(10, 120, 10):
            fill(collection, WORLD, range(begin, begin + 10))
            replica.catch_up()
            collection.settle()
            follow(replica, collection)
            assert_alike(replica, collection)
        assert segments_of(replica)
        assert bool(read) is early


def test_a_segment_that_ends_after_what_was_followed(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that loads it does not follow the passages in it once more."""
    with contextlib.closing(Replica(collection.folder, OPTIONS, collection.hits)) as replica:
        fill(collection, WORLD, range(40))
        replica.catch_up()
        load = replica._load

        def late(*, whole: bool = False) -> object:
            fill(collection, WORLD, range(40, 140))
            delete(collection, [50])
            collection.settle()
            return load(whole=whole)

        monkeypatch.setattr(replica, "_load", late)
        monkeypatch.setattr(replica._assembly, "on_disk", lambda: [range(1)])
        replica.look()
        replica.catch_up()
        monkeypatch.undo()
        while not replica.ready:
            time.sleep(0.001)
        replica.catch_up()
        assert segments_of(replica)
        assert_alike(replica, collection)


def test_what_was_removed_is_not_loaded(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer may remove a segment while a replica loads it; it reads the log instead, and then the next one."""
    fill(collection, WORLD, range(65))
    collection.settle()
    load = SegmentShelf.load

    def too_late(self: SegmentShelf, covers: range) -> Segment:
        shutil.rmtree(self.path(covers))
        return load(self, covers)

    monkeypatch.setattr(SegmentShelf, "load", too_late)
    with contextlib.closing(Replica(collection.folder, OPTIONS, collection.hits)) as replica:
        assert not segments_of(replica)
        assert_alike(replica, collection)
        monkeypatch.undo()
        fill(collection, WORLD, range(65, 200))
        collection.settle()
        follow(replica, collection)
        assert_alike(replica, collection)


def test_erased_content_is_in_none(collection: Collection) -> None:
    """After erasing, no file of a segment has a word or a vector of what was deleted."""
    fill(collection, WORLD, range(100))
    secret = WORLD.document(7777)
    collection.write([secret, *(WORLD.document(number) for number in range(100, 140))]).result()
    collection.settle()
    vector = secret.passages[0].vector.astype(np.float16).tobytes()
    assert any(vector in path.read_bytes() for path in (collection.folder / "segments").rglob("*.f16"))
    delete(collection, [7777])
    erasure = Erasure(collection)
    assert erasure.needs_rebuild
    rebuild(collection)
    fill(collection, WORLD, range(200, 300))
    collection.settle()
    erasure.run(lambda *_: None)
    assert on_disk(collection)
    for path in collection.folder.rglob("*"):
        assert not path.is_file() or vector not in path.read_bytes(), path


def test_erasing_waits_for_what_is_being_sealed(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seal under way may be writing what is to be erased."""
    begun, go_on, save = threading.Event(), threading.Event(), Segment.save

    def slow(self: Segment, folder: Path) -> None:
        begun.set()
        assert go_on.wait(60)
        save(self, folder)

    monkeypatch.setattr(Segment, "save", slow)
    secret = WORLD.document(7777)
    vector = secret.passages[0].vector.astype(np.float16).tobytes()
    collection.write([secret, *(WORLD.document(number) for number in range(40))]).result()
    assert begun.wait(60)
    delete(collection, [7777])
    erasure = Erasure(collection)
    rebuild(collection)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(erasure.run, lambda *_: None)
        with pytest.raises(TimeoutError):
            running.result(0.5)
        go_on.set()
        running.result(60)
    for path in collection.folder.rglob("*"):
        assert not path.is_file() or vector not in path.read_bytes(), path


def test_erasing_fails_where_a_segment_stays(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(collection, WORLD, range(100))
    collection.settle()
    delete(collection, [7])
    erasure = Erasure(collection)

    def stuck(self: Path, target: Path) -> Path:
        raise OSError(30, "Read-only file system")

    number = build(collection.begin_build(), lambda *_: None)
    monkeypatch.setattr(Path, "rename", stuck)
    collection.adopt(number)
    with pytest.raises(StorageError, match="cannot be removed"):
        erasure.run(lambda *_: None)
    monkeypatch.undo()
    erasure.run(lambda *_: None)
    assert not on_disk(collection)
