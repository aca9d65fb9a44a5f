"""Backup and restore: what a copy holds, what it survives, and what is refused."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from indexes.base.durable import with_checksum
from indexes.base.errors import (
    Conflict,
    Damaged,
    DiskFull,
    InvalidInput,
    Locked,
    NotADataDirectory,
    NotFound,
)
from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from indexes.dense.cold import ColdSettings
from indexes.directory.backup.backup import MANIFEST, Backup, back_up, read_backup
from indexes.directory.backup.restoring import Restored, restore
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from indexes.log import pinned as pinned_log
from indexes.parts.learned import VECTOR_STORE, VectorStoreSettings, read_settings
from indexes.parts.manifest import read_manifest
from indexes.rebuild.chosen import TunedSettings
from tests.support.vectors import World, delete, fill, found_ids, rebuild, settings

WORLD = World()
TUNING = IndexOptions(delta_passages_max=256, segments_max=0)
ROOT = Path(__file__).parents[2]


def quiet(stage: str, done: int, total: int) -> None:
    pass


def contents(path: Path) -> dict[str, Any]:
    """Everything a log says about its live documents, vectors included. Only for a log that nobody else has open."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    sql = "SELECT d.id, d.seq, d.title, d.metadata, d.text, p.id, p.start, p.end, p.tokens, v.vector"
    rows: Any = db.execute(
        f"{sql} FROM documents d JOIN passages p ON p.document = d.pk JOIN vectors v ON v.id = p.id ORDER BY p.id"
    ).fetchall()
    db.close()
    found: dict[str, Any] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row[1:])
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory: 500 documents in a generation, some replaced, deleted and added behind it; an alias."""
    catalog = Catalog(tmp_path_factory.mktemp("made") / "data", TUNING)
    docs = catalog.create("docs", settings(hot_capacity=150))
    fill(docs, WORLD, range(500))
    rebuild(docs)
    fill(docs, WORLD, range(50), version=1)
    delete(docs, range(100, 150))
    fill(docs, WORLD, range(500, 540))
    catalog.set_alias("live", "docs")
    catalog.close()
    return catalog.folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """The same, of its own and closed."""
    return shutil.copytree(made, tmp_path / "data")


@pytest.fixture
def catalog(data: Path) -> Iterator[Catalog]:
    """The same, live."""
    catalog = Catalog(data, TUNING)
    yield catalog
    catalog.close()


def back_and_forth(
    data: Path, progress: Callable[[str, int, int], None] = quiet
) -> tuple[Backup, Collection]:
    """Back a directory up, restore it into a new one, open that."""
    target, restored = data.with_name("backup"), data.with_name("restored")
    backup = back_up(data, target, progress=progress)
    restore(target, restored, progress=quiet)
    return backup, Collection(restored / "docs", TUNING)


def test_a_restored_collection_is_the_same(data: Path) -> None:
    """Documents, vectors and seq are those of the original, and the generation serves without a rebuild."""
    catalog = Catalog(data, TUNING)
    original = catalog.get("docs")
    backup, restored = back_and_forth(data)
    [described] = backup.collections
    assert (described.seq, described.documents, described.generation) == (original.snapshot.seq, 490, 1)
    assert restored.snapshot.seq == original.snapshot.seq
    assert restored.snapshot.generation == 1
    assert restored.snapshot.counts() == original.snapshot.counts()
    for query in WORLD.queries(20):
        assert found_ids(restored, query) == found_ids(original, query)
    assert found_ids(restored, WORLD.vector(120, 0, 0))[0] != "d120"
    restored.close()
    catalog.close()
    assert contents(data.with_name("restored") / "docs" / "log.db") == contents(data / "docs" / "log.db")


def test_a_restored_collection_goes_on(catalog: Catalog) -> None:
    """The next write gets the next seq, and a rebuild takes everything in."""
    backup, restored = back_and_forth(catalog.folder)
    assert restored.write([WORLD.document(1000)]).result().seq == backup.collections[0].seq + 1
    rebuild(restored)
    assert restored.snapshot.generation == 2
    assert found_ids(restored, WORLD.vector(1000, 0, 0))[0] == "d1000"
    restored.close()


def test_every_restore_has_a_uid_of_its_own(catalog: Catalog) -> None:
    """Also under the old name: two collections of one uid and seq could answer from each other's cache."""
    original = catalog.get("docs").uid
    target = catalog.folder.with_name("backup")
    back_up(catalog.folder, target, progress=quiet)
    uids = {original}
    for number in range(2):
        data = catalog.folder.with_name(f"restored-{number}")
        [restored] = restore(target, data, progress=quiet)
        opened = Collection(data / "docs", TUNING)
        assert opened.uid == restored.uid
        opened.close()
        uids.add(restored.uid)
    assert len(uids) == 3


def test_writes_during_the_copy_are_not_in_it(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is of one commit, whatever is written, deleted and checkpointed between its pages."""
    monkeypatch.setattr(pinned_log, "COPIED_PAGES", 4)
    docs = catalog.get("docs")
    steps: list[int] = []

    def write(stage: str, done: int, total: int) -> None:
        if stage == "log" and done:
            number = 2000 + len(steps)
            steps.append(docs.write([WORLD.document(number)]).result().seq)
            delete(docs, range(len(steps), len(steps) + 1))
            docs.log._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    backup, restored = back_and_forth(catalog.folder, write)
    assert len(steps) > 5
    assert backup.collections[0].seq == steps[0] - 1 == restored.snapshot.seq
    assert restored.snapshot.live == backup.collections[0].passages == 490
    assert restored.document("d3").text == WORLD.text(3, 1)
    restored.close()


@pytest.mark.parametrize("stage", ["generation", "log"])
def test_two_swaps_during_the_copy(catalog: Catalog, stage: str) -> None:
    """The copied generation is deleted under the backup, or its history forgotten: it takes a newer one."""
    docs = catalog.get("docs")
    swapped: list[str] = []

    def swap_twice(at: str, done: int, total: int) -> None:
        if at == stage and not swapped:
            swapped.append(stage)
            for number in range(600, 602):
                fill(docs, WORLD, range(number, number + 1))
                rebuild(docs)
            delete(docs, range(300, 310))

    backup, restored = back_and_forth(catalog.folder, swap_twice)
    assert backup.collections[0].generation == restored.snapshot.generation == 3
    assert restored.snapshot.live == 482
    assert found_ids(restored, WORLD.vector(601, 0, 0))[0] == "d601"
    assert "d305" not in found_ids(restored, WORLD.vector(305, 0, 0))
    restored.close()


def test_the_copied_log_reaches_back_to_the_generation(catalog: Catalog) -> None:
    """With a rebuild and a swap between the copies of generation and log, every later deletion is still known."""
    docs = catalog.get("docs")

    def swap(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("log", 0):
            delete(docs, range(200, 250))
            rebuild(docs)

    backup, restored = back_and_forth(catalog.folder, swap)
    assert backup.collections[0].generation == 1
    assert docs.snapshot.generation == 2
    assert restored.snapshot.live == 440
    for number in range(200, 250, 10):
        assert f"d{number}" not in found_ids(restored, WORLD.vector(number, 0, 0))
    restored.close()


def flip(path: Path, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 0xFF
    path.write_bytes(content)


def test_a_damaged_generation_is_left_out(catalog: Catalog) -> None:
    """The one before it goes into the backup; if no generation is whole, none does, and the log still has all."""
    docs = catalog.get("docs")
    rebuild(docs)
    shelf = docs.shelf
    for number, expected in [(2, 1), (1, 0)]:
        flip(shelf.path(number) / "ids.npy")
        target = catalog.folder.with_name(f"backup-{number}")
        assert back_up(catalog.folder, target, progress=quiet).collections[0].generation == expected
        data = catalog.folder.with_name(f"restored-{number}")
        restore(target, data, progress=quiet)
        restored = Collection(data / "docs", TUNING)
        assert (restored.snapshot.generation, restored.snapshot.live) == (expected, 490)
        restored.close()


def test_without_indexes(catalog: Catalog) -> None:
    """Only the log is copied, and it is enough."""
    target, data = catalog.folder.with_name("backup"), catalog.folder.with_name("restored")
    backup = back_up(catalog.folder, target, indexes=False, progress=quiet)
    assert list(backup.collections[0].files) == ["log.db"]
    assert sorted(path.name for path in target.rglob("*")) == ["backup.json", "docs", "log.db"]
    restore(target, data, progress=quiet)
    restored = Collection(data / "docs", TUNING)
    assert (restored.snapshot.generation, restored.snapshot.live) == (0, 490)
    restored.close()


def test_a_stopped_directory(data: Path) -> None:
    """Nobody needs to serve it."""
    _, restored = back_and_forth(data)
    assert restored.snapshot.live == 490
    restored.close()


def test_the_copies_are_files_of_their_own(catalog: Catalog) -> None:
    """No file of a backup is a link to one of the data directory, and no write-ahead log lies beside a copy."""
    target = catalog.folder.with_name("backup")
    back_up(catalog.folder, target, progress=quiet)
    files = [path for path in target.rglob("*") if path.is_file()]
    assert {path.stat().st_nlink for path in files} == {1}
    assert not [path for path in files if path.is_symlink() or path.name.startswith("log.db-")]
    assert {path.relative_to(target).as_posix() for path in files} == {
        MANIFEST,
        *(f"docs/{name}" for name in read_backup(target).collections[0].files),
    }


def test_several_collections_and_their_aliases(catalog: Catalog) -> None:
    """All are copied unless some are named, by name or alias; aliases go with what they name."""
    other = catalog.create("other", settings())
    fill(other, WORLD, range(5))
    catalog.set_alias("second", "other")
    folder = catalog.folder
    everything = back_up(folder, folder.with_name("all"), progress=quiet)
    assert [one.name for one in everything.collections] == ["docs", "other"]
    one = back_up(folder, folder.with_name("one"), ["second", "other"], progress=quiet)
    assert ([one.name for one in one.collections], one.aliases) == (["other"], {"second": "other"})
    restore(folder.with_name("all"), folder.with_name("restored"), ["live"], progress=quiet)
    restored = Catalog(folder.with_name("restored"), TUNING)
    assert (sorted(restored.collections), restored.aliases) == (["docs"], {"live": "docs"})
    restored.close()
    [added] = restore(folder.with_name("all"), folder.with_name("restored"), ["other"], progress=quiet)
    assert (added.name, added.documents, added.aliases) == ("other", 5, ["second"])
    elsewhere = Catalog(folder.with_name("elsewhere"), TUNING)
    elsewhere.create("live", settings())
    elsewhere.close()
    named = restore(folder.with_name("all"), elsewhere.folder, progress=quiet)
    assert [(one.name, one.aliases, one.taken) for one in named] == [
        ("docs", [], ["live"]),
        ("other", ["second"], []),
    ]


def test_what_a_backup_refuses(catalog: Catalog) -> None:
    """An existing target, a target among the data, an unknown collection, and a folder that is not ours."""
    folder = catalog.folder
    (folder.parent / "taken").mkdir()
    for target, names, error in [
        (folder.parent / "taken", [], Conflict),
        (folder / "backup", [], InvalidInput),
        (folder.parent / "x" / ".." / "data" / "docs" / "backup", [], InvalidInput),
        (folder.parent / "new", ["nobody"], NotFound),
    ]:
        with pytest.raises(error):
            back_up(folder, target, names, progress=quiet)
        with pytest.raises(NotADataDirectory):
            back_up(folder.parent, target, names, progress=quiet)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["data", "taken"]


def test_a_backup_that_fails_leaves_nothing(catalog: Catalog) -> None:
    """Whatever stops it, at every stage, neither the folder nor a draft is there afterwards."""
    for stop in ("generation", "log", "checksums"):

        def interrupt(stage: str, done: int, total: int, stop: str = stop) -> None:
            if stage == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            back_up(catalog.folder, catalog.folder.with_name("backup"), progress=interrupt)
        assert [path.name for path in catalog.folder.parent.iterdir()] == ["data"]


def test_a_full_disk(catalog: Catalog) -> None:
    """The kernel's "no space left" becomes DiskFull, and the draft is removed."""
    draft = catalog.folder.with_name(".backup.draft")

    def fill_up(stage: str, done: int, total: int) -> None:
        following = draft / "docs" / "generations" / "000001" / "ids.npy"
        if stage == "generation" and not following.exists():
            following.symlink_to("/dev/full")

    with pytest.raises(DiskFull):
        back_up(catalog.folder, catalog.folder.with_name("backup"), progress=fill_up)
    assert [path.name for path in catalog.folder.parent.iterdir()] == ["data"]


KILLED = """
import os, signal, sys
from pathlib import Path
from indexes.directory.backup.backup import back_up
def stop(stage, done, total):
    if stage == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
back_up(Path(sys.argv[1]), Path(sys.argv[2]), progress=stop)
"""


def test_a_killed_backup_looks_like_none(catalog: Catalog) -> None:
    """After SIGKILL at any stage there is no folder of that name, and the next backup clears the draft away."""
    target = catalog.folder.with_name("backup")
    for stage in ("generation", "log", "checksums"):
        command = [sys.executable, "-c", KILLED, str(catalog.folder), str(target), stage]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
        assert not target.exists()
        with pytest.raises(NotFound):
            restore(target.with_name(".backup.draft"), target.with_name("restored"), progress=quiet)
    back_up(catalog.folder, target, progress=quiet)
    assert sorted(path.name for path in target.parent.iterdir()) == ["backup", "data"]


def test_two_backups_to_one_place(catalog: Catalog) -> None:
    """The second is refused while the first runs, and does it no harm."""
    target = catalog.folder.with_name("backup")
    refused: list[Locked] = []

    def second(stage: str, done: int, total: int) -> None:
        if not refused:
            with pytest.raises(Locked) as caught:
                back_up(catalog.folder, target, progress=quiet)
            refused.append(caught.value)

    back_up(catalog.folder, target, progress=second)
    assert refused
    restore(target, target.with_name("restored"), progress=quiet)


# --- restoring ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of two small collections. Tests that change it change a copy."""
    folder = tmp_path_factory.mktemp("kept")
    catalog = Catalog(folder / "data", TUNING)
    for name in ("docs", "other"):
        fill(catalog.create(name, settings(hot_capacity=0)), WORLD, range(300))
    rebuild(catalog.get("docs"))
    catalog.set_alias("live", "docs")
    back_up(catalog.folder, folder / "backup", progress=quiet)
    catalog.close()
    return folder / "backup"


@contextmanager
def file_bytes_max(limit: int) -> Iterator[None]:
    """Let this process write no larger file, as on a disk without room for one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_for_some_file(kept: Path, tmp_path: Path) -> None:
    """Whichever it is: the error of a backup or a restore names the place that lacks room, and nothing is left."""
    sizes = sorted({path.stat().st_size for path in kept.rglob("*") if path.is_file()})
    for limit in (0, *(size - 1 for size in sizes)):
        new, data = tmp_path / str(limit), tmp_path / f"data {limit}"
        with (
            file_bytes_max(limit),
            pytest.raises(DiskFull, match=f"no space left for {tmp_path}/\\.?{limit}"),
        ):
            back_up(kept.parent / "data", new, progress=quiet)
        with file_bytes_max(limit), pytest.raises(DiskFull, match=f"no space left for {data}/"):
            restore(kept, data, progress=quiet)
        assert not new.exists()
        assert not [path for path in data.rglob("*") if path.is_dir()]


def files_of(backup: Path) -> list[str]:
    return sorted(path.relative_to(backup).as_posix() for path in backup.rglob("*") if path.is_file())


def test_any_damaged_file_is_refused_and_nothing_is_placed(kept: Path, tmp_path: Path) -> None:
    """One flipped byte, one byte less or a missing file, anywhere in a backup: no data directory comes to be."""
    names = files_of(kept)
    assert len(names) > 12
    for name in names:
        content = (kept / name).read_bytes()
        try:
            for damage in (flip, lambda path: path.write_bytes(path.read_bytes()[:-1] + b""), Path.unlink):
                damage(kept / name)
                if name == MANIFEST and (kept / name).exists() and read_or_none(kept) is not None:
                    continue  # the last byte is a line's end
                with pytest.raises((Damaged, NotFound)):
                    restore(kept, tmp_path / "restored", progress=quiet)
                assert list(tmp_path.iterdir()) == []
                (kept / name).write_bytes(content)
        finally:
            (kept / name).write_bytes(content)
    assert [one.name for one in restore(kept, tmp_path / "restored", progress=quiet)] == ["docs", "other"]


def read_or_none(folder: Path) -> Backup | None:
    try:
        return read_backup(folder)
    except (Damaged, NotFound):
        return None


def test_no_flipped_bit_of_the_description_is_believed(kept: Path, tmp_path: Path) -> None:
    """With any one bit of backup.json flipped, it is refused or says the same as before."""
    content = (kept / MANIFEST).read_bytes()
    true = read_backup(kept)
    refused = 0
    for at in range(0, len(content), 3):
        changed = bytearray(content)
        changed[at] ^= 1 << (at % 7)
        (tmp_path / MANIFEST).write_bytes(changed)
        found = read_or_none(tmp_path)
        assert found in (None, true)
        refused += found is None
    assert refused > len(content) // 6


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "generations/../../x", "a\0b", "nearline.json"])
def test_a_backup_cannot_name_other_places(kept: Path, tmp_path: Path, name: str) -> None:
    """A description with a right checksum of its own, but with files outside its collections, is refused."""
    true = read_backup(kept)
    one = true.collections[0]
    file = next(iter(one.files.values()))
    for forged in (
        msgspec.structs.replace(one, files={**one.files, name: file}),
        msgspec.structs.replace(one, name=name),
    ):
        changed = msgspec.structs.replace(true, collections=[forged])
        (tmp_path / MANIFEST).write_bytes(with_checksum(changed))
        with pytest.raises(Damaged, match="names files"):
            restore(tmp_path, tmp_path / "restored", progress=quiet)
        assert not (tmp_path / "restored").exists()


def test_a_later_format_is_refused(kept: Path, tmp_path: Path) -> None:
    """It says which format it is, and which one this version reads."""
    (tmp_path / MANIFEST).write_bytes(b'{"format": 9, "more": 1}')
    with pytest.raises(Damaged, match="format 9; this version reads 1"):
        restore(tmp_path, tmp_path / "restored", progress=quiet)


def names_in(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir())


def test_a_taken_name_is_refused(kept: Path, tmp_path: Path) -> None:
    """By a collection or an alias; another name works, and takes no alias away."""
    data = tmp_path / "data"
    catalog = Catalog(data, TUNING)
    catalog.create("docs", settings())
    catalog.set_alias("other", "docs")
    catalog.set_alias("live", "docs")
    catalog.close()
    for arguments in ({}, {"names": ["docs"]}, {"names": ["other"]}, {"names": ["docs"], "new_name": "live"}):
        with pytest.raises(Conflict):
            restore(kept, data, progress=quiet, **arguments)
    assert names_in(data) == ["LOCK", "docs", "nearline.copy.json", "nearline.json"]
    [restored] = restore(kept, data, ["docs"], new_name="docs-old", progress=quiet)
    assert restored == Restored("docs-old", restored.uid, 300, 300, 300, 1, [], [])
    again = Catalog(data, TUNING)
    assert again.aliases == {"other": "docs", "live": "docs"}
    assert again.get("docs-old").snapshot.live == 300
    again.close()


def test_a_served_directory_is_refused(kept: Path, tmp_path: Path) -> None:
    """Nothing is placed under the feet of a process that has the directory open."""
    catalog = Catalog(tmp_path / "data", TUNING)
    with pytest.raises(Locked):
        restore(kept, tmp_path / "data", progress=quiet)
    catalog.close()
    assert names_in(tmp_path / "data") == ["LOCK", "nearline.copy.json", "nearline.json"]


@pytest.mark.parametrize("name", ["../up", "UP", "a/b", ""])
def test_a_new_name_follows_the_rule(kept: Path, tmp_path: Path, name: str) -> None:
    """And is for one collection only."""
    with pytest.raises(InvalidInput):
        restore(kept, tmp_path / "data", ["docs"], new_name=name, progress=quiet)
    with pytest.raises(InvalidInput, match="2 are chosen"):
        restore(kept, tmp_path / "data", new_name="fine", progress=quiet)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_folder_is_not_restored_into(kept: Path, tmp_path: Path) -> None:
    """Holiday pictures stay what they are."""
    (tmp_path / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(NotADataDirectory):
        restore(kept, tmp_path, progress=quiet)
    assert names_in(tmp_path) == ["cat.jpg"]


def test_a_restore_that_stops_leaves_nothing(kept: Path, tmp_path: Path) -> None:
    """Interrupted in the second collection, the first is not there either, so the same call can be repeated."""
    data = tmp_path / "data"

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "place" and (data / "docs").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(kept, data, progress=interrupt)
    assert names_in(data) == ["LOCK", "nearline.copy.json", "nearline.json"]
    other = next(one for one in restore(kept, data, progress=quiet) if one.name == "other")
    catalog = Catalog(data, TUNING)
    assert [catalog.get(name).snapshot.live for name in ("docs", "other")] == [300, 300]
    assert other.generation == 0
    catalog.close()


def test_a_backup_that_changes_while_it_is_restored(kept: Path, tmp_path: Path) -> None:
    """Bytes that were right when they were verified and are not when they are copied, are not placed."""
    path = kept / "docs" / "log.db"
    content = path.read_bytes()

    def change(stage: str, done: int, total: int) -> None:
        if stage == "place" and path.read_bytes() == content:
            flip(path)

    try:
        with pytest.raises(Damaged):
            restore(kept, tmp_path / "data", progress=change)
    finally:
        path.write_bytes(content)
    assert not (tmp_path / "data" / "docs").exists()


def test_a_tuned_collection_stays_tuned(tmp_path: Path) -> None:
    """A backup takes the settings that a collection was tuned to with it, and a restored one searches with them."""
    catalog = Catalog(tmp_path / "data", TUNING)
    docs = catalog.create("docs", settings(hot_capacity=150))
    fill(docs, WORLD, range(500))
    rebuild(docs)
    manifest = read_manifest(docs.shelf.path(docs.snapshot.generation))
    chosen = TunedSettings(
        recall_target=0.93,
        generation=manifest.number,
        seal=manifest.sha256,
        ef=77,
        search=ColdSettings(probes=3, rescored=44),
        recall={},
        chosen_ms=0,
    )
    docs.set_search(chosen)
    catalog.close()
    back_up(catalog.folder, tmp_path / "copy", progress=quiet)
    restore(tmp_path / "copy", tmp_path / "restored", progress=quiet)
    restored = Catalog(tmp_path / "restored", TUNING)
    found = restored.get("docs").info()
    assert found.recall_target == 0.93
    assert found.search is not None
    assert (found.search.ef, found.search.probes, found.search.rescored, found.search.tuned) == (
        77,
        3,
        44,
        True,
    )
    restored.close()


def test_a_vector_store_stays_one(catalog: Catalog) -> None:
    """A backup takes what OpenAI's interface keeps of a collection with it, and where that is cut, `verify` says so."""
    kept = VectorStoreSettings(name="Häufige Fragen", metadata={"team": "support"}, expires_days=9, used_at=7)
    catalog.get("docs").vector_store.set(kept)
    _, restored = back_and_forth(catalog.folder)
    found = restored.vector_store.current
    assert found is not None
    assert msgspec.structs.replace(found, sha256="") == kept
    restored.close()
    path = restored.folder / VECTOR_STORE
    assert [check.ok for check in verify_data(path.parents[1], [], quiet) if check.name == VECTOR_STORE] == [
        True
    ]
    path.write_bytes(path.read_bytes()[:-20])
    assert [check.ok for check in verify_data(path.parents[1], [], quiet) if check.name == VECTOR_STORE] == [
        False
    ]


def test_setting_the_same_again_mends_a_damaged_file(catalog: Catalog) -> None:
    """As `verify` advises: what the service holds in memory says nothing of the disk."""
    docs = catalog.get("docs")
    path = docs.folder / VECTOR_STORE
    docs.vector_store.set(VectorStoreSettings(name="FAQ"))
    path.write_bytes(path.read_bytes()[:-20])
    docs.vector_store.change(lambda current: current or VectorStoreSettings())
    assert read_settings(path, VectorStoreSettings) is not None
