"""The data directory: names, aliases, the lock, and folders that are not ours."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest

from indexes.base import failures
from indexes.base.durable import FolderLock
from indexes.base.errors import (
    Conflict,
    Damaged,
    InvalidInput,
    Locked,
    NewerFormat,
    NotADataDirectory,
    NotFound,
    NotReady,
    OlderFormat,
    Quarantined,
    StorageError,
)
from indexes.base.model import IndexOptions
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from indexes.directory.marker import DAMAGED, MARKER, MARKER_COPY, is_locked, settle
from tests.support.vectors import World, fill, settings

WORLD = World()


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "data", IndexOptions())


def test_collections_come_back_after_opening_again(catalog: Catalog) -> None:
    """Names, aliases and documents survive."""
    catalog.create("docs", settings()).write([WORLD.document(1)]).result()
    catalog.set_alias("live", "docs")
    catalog.close()
    again = Catalog(catalog.folder, IndexOptions())
    assert again.get("live").document("d1").text == WORLD.text(1, 0)
    again.close()


def test_an_alias_and_its_collection_are_of_one_tenant(catalog: Catalog) -> None:
    """Neither setting one nor renaming makes an alias that tells one tenant of another."""
    for name in ("docs", "docs@acme", "docs@beta"):
        catalog.create(name, settings())
    for alias, name in (("x@acme", "docs@beta"), ("x", "docs@beta"), ("x@acme", "docs")):
        with pytest.raises(Conflict, match="not of one tenant"):
            catalog.set_alias(alias, name)
    catalog.set_alias("x@acme", "docs@acme")
    for new_name in ("moved", "moved@beta"):
        with pytest.raises(Conflict, match="not of one tenant"):
            catalog.rename("docs@acme", new_name)
    catalog.rename("docs@acme", "moved@acme")
    assert catalog.aliases == {"x@acme": "moved@acme"}


def test_an_alias_moves(catalog: Catalog) -> None:
    """Set again, an alias names the other collection."""
    for name in ("one", "two"):
        catalog.create(name, settings())
        catalog.set_alias("live", name)
    assert catalog.get("live") is catalog.get("two")
    catalog.remove_alias("live")
    with pytest.raises(NotFound):
        catalog.get("live")
    catalog.close()


def test_a_taken_name_is_a_conflict(catalog: Catalog) -> None:
    """Collections and aliases share one space of names."""
    catalog.create("docs", settings())
    catalog.set_alias("live", "docs")
    for name in ("docs", "live"):
        with pytest.raises(Conflict):
            catalog.create(name, settings())
    with pytest.raises(Conflict):
        catalog.set_alias("docs", "docs")
    catalog.close()


def test_deleting_removes_the_files(catalog: Catalog) -> None:
    """A deleted collection is gone from disk; one with an alias is kept until the alias goes."""
    catalog.create("docs", settings())
    catalog.set_alias("live", "docs")
    with pytest.raises(Conflict):
        catalog.delete("docs")
    catalog.remove_alias("live")
    catalog.delete("docs")
    assert sorted(path.name for path in catalog.folder.iterdir()) == [
        "LOCK",
        "nearline.copy.json",
        "nearline.json",
    ]
    catalog.create("docs", settings())
    catalog.close()


def test_renaming(catalog: Catalog) -> None:
    """Documents and aliases follow, now and after opening again; the old name is free, taken names are conflicts."""
    catalog.create("docs", settings()).write([WORLD.document(1)]).result()
    catalog.create("other", settings())
    catalog.set_alias("live", "docs")
    for taken in ("docs", "other", "live"):
        with pytest.raises(Conflict):
            catalog.rename("docs", taken)
    with pytest.raises(InvalidInput):
        catalog.rename("docs", "../up")
    for missing in ("live", "nobody"):
        with pytest.raises(NotFound):
            catalog.rename(missing, "new")
    assert catalog.rename("docs", "handbook") is catalog.get("live") is catalog.get("handbook")
    catalog.get("live").write([WORLD.document(2)]).result()
    catalog.create("docs", settings())
    catalog.close()
    again = Catalog(catalog.folder, IndexOptions())
    assert (sorted(again.collections), again.aliases) == (["docs", "handbook", "other"], {"live": "handbook"})
    assert [again.get("live").document(f"d{number}").id for number in (1, 2)] == ["d1", "d2"]
    again.close()


@pytest.mark.parametrize(
    "name", ["", "../up", "/etc", "a/b", "A", ".hidden", "-x", "a" * 64, "a\0b", "%2e%2e", "lock.db"]
)
def test_names_never_leave_the_directory(catalog: Catalog, name: str) -> None:
    """Paths and odd characters cannot be names."""
    with pytest.raises(InvalidInput):
        catalog.create(name, settings())
    catalog.close()


@pytest.mark.slow
def test_a_second_process_is_refused(catalog: Catalog) -> None:
    """While one process holds the directory another gets Locked, with the holder's pid."""
    code = "import sys; from pathlib import Path; from indexes.directory.catalog import Catalog\n"
    code += "from indexes.base.model import IndexOptions; from indexes.base.errors import Locked\n"
    code += "try: Catalog(Path(sys.argv[1]), IndexOptions())\nexcept Locked as error: print(error)"
    command = [sys.executable, "-c", code, str(catalog.folder)]
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    ).stdout
    import os

    assert str(os.getpid()) in output
    with pytest.raises(Locked):
        Catalog(catalog.folder, IndexOptions())
    catalog.close()
    Catalog(catalog.folder, IndexOptions()).close()


def test_a_lock_left_with_a_child_is_waited_for(tmp_path: Path) -> None:
    """A service killed between fork and exec leaves its lock with the child for a moment: the next one waits."""
    code = "import fcntl, sys, time; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\n"
    code += "print('held', flush=True); time.sleep(0.5)"
    command = [sys.executable, "-c", code, str(tmp_path / "LOCK")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        FolderLock(tmp_path / "LOCK").close()
    assert child.returncode == 0


@pytest.mark.parametrize("moved", [False, True])
def test_a_rename_that_fails_takes_nothing_out_of_service(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """The collection is served by the name that its folder has, with its aliases, also by the next process."""
    fill(catalog.create("docs", settings()), WORLD, range(5))
    catalog.set_alias("live", "docs")

    def fail(folder: Path) -> dict[str, str]:
        if moved:
            settle(folder)
        raise StorageError("a file is gone")

    monkeypatch.setattr("indexes.directory.catalog.settle", fail)
    with pytest.raises(StorageError, match="a file is gone"):
        catalog.rename("docs", "handbook")
    monkeypatch.undo()
    name = "handbook" if moved else "docs"
    catalog.set_alias("second", name)
    for _ in range(2):
        assert catalog.get("live") is catalog.get(name) is catalog.get("second")
        assert catalog.get(name).documents == 5
        assert not catalog.quarantined
        catalog.close()
        catalog = Catalog(catalog.folder, IndexOptions())
    assert (catalog.rename(name, "last").documents, catalog.get("live").name) == (5, "last")
    catalog.close()


def test_a_removed_lock_is_made_again(tmp_path: Path) -> None:
    """Another process is kept out as before; if one came first, this one acknowledges nothing more."""
    with closing(Catalog(tmp_path / "data", IndexOptions())) as catalog:
        lock = tmp_path / "data" / "LOCK"
        for remove in (lock.unlink, partial(lock.write_text, "rewritten, not removed")):
            remove()
            catalog.keep_locked()
            with pytest.raises(Locked):
                FolderLock(lock)
        lock.unlink()
        with closing(FolderLock(lock)):
            catalog.keep_locked()
            with pytest.raises(StorageError, match="in use by another"):
                failures.require_none()
    failures.require_none()


@pytest.mark.parametrize("name", ["nearline.json", "nearline.copy.json"])
def test_a_folder_in_the_place_of_a_marker(tmp_path: Path, name: str) -> None:
    """Is told by its path, and what the other file says is not lost."""
    Catalog(tmp_path, IndexOptions()).close()
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(StorageError, match=name):
        Catalog(tmp_path, IndexOptions())
    (tmp_path / name).rmdir()
    Catalog(tmp_path, IndexOptions()).close()


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    """A folder with other things in it, or a file, is not made into a data directory."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(NotADataDirectory):
        Catalog(tmp_path / "photos", IndexOptions())
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]
    with pytest.raises(NotADataDirectory):
        Catalog(tmp_path / "photos" / "cat.jpg", IndexOptions())


def sealed(fields: dict[str, object]) -> bytes:
    """A marker with these fields and a checksum that is right."""
    digest = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()
    return msgspec.json.encode({**fields, "sha256": digest})


def test_a_damaged_or_foreign_marker_is_refused(tmp_path: Path) -> None:
    """A marker that is not JSON is damage; one of a later format is not for this version."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "nearline.json").write_text("{")
    with pytest.raises(Damaged):
        Catalog(folder, IndexOptions())
    (folder / "nearline.json").write_bytes(sealed({"format": 99, "aliases": {}}))
    with pytest.raises(NewerFormat, match="format 99, this version reads 1"):
        Catalog(folder, IndexOptions())
    (folder / "nearline.json").write_bytes(sealed({"format": 99, "aliases": []}))
    with pytest.raises(NewerFormat):
        Catalog(folder, IndexOptions())


def test_no_byte_of_the_marker_is_needed(tmp_path: Path) -> None:
    """Any damage to it, or its loss, is mended from its copy. Where both are damaged, or gone, the aliases are lost, no
    collection is, and requests need keys, as they may have before."""
    with closing(Catalog(tmp_path / "data", IndexOptions())) as catalog:
        catalog.create("docs", settings())
        catalog.set_alias("live", "docs")
    marker, copy = (tmp_path / "data" / name for name in (MARKER, MARKER_COPY))
    whole = marker.read_bytes()
    for at in range(0, len(whole), 2):
        marker.write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        assert settle(tmp_path / "data") == {"live": "docs"}
        assert marker.read_bytes() == whole
    for content in (b"", whole[:20], None):
        marker.unlink() if content is None else marker.write_bytes(content)
        assert not all(one.ok for one in verify_data(tmp_path / "data", (), lambda *_: None))
        copy_before = copy.read_bytes()
        with closing(Catalog(tmp_path / "data", IndexOptions())) as catalog:
            assert catalog.get("live").name == "docs"
        assert copy.read_bytes() == copy_before == whole
    for content in (whole[1:], None):
        for path in (marker, copy):
            path.unlink() if content is None else path.write_bytes(content)
        assert is_locked(tmp_path / "data")
        with closing(Catalog(tmp_path / "data", IndexOptions())) as catalog:
            assert (list(catalog.collections), catalog.aliases) == (["docs"], {})
            catalog.set_alias("live", "docs")
        assert marker.read_bytes() == copy.read_bytes()
        assert is_locked(tmp_path / "data")
    assert (tmp_path / "data" / DAMAGED).read_bytes() == whole[1:]


def test_a_directory_from_before_the_first_version_is_refused(tmp_path: Path) -> None:
    """Its number is in a field of another name; nothing in it is changed."""
    (tmp_path / MARKER).write_text('{"format_version":1,"aliases":{}}\n')
    with pytest.raises(OlderFormat, match="a development version of nearline"):
        Catalog(tmp_path, IndexOptions())
    assert [path.name for path in tmp_path.iterdir()] == [MARKER]


def test_a_creation_cut_short_does_no_harm(catalog: Catalog) -> None:
    """What a crash in the middle of creating leaves behind is swept away, and the name is free."""
    catalog.close()
    (catalog.folder / ".creating-docs").mkdir()
    (catalog.folder / ".creating-docs" / "log.db").write_bytes(b"")
    again = Catalog(catalog.folder, IndexOptions())
    again.create("docs", settings())
    assert sorted(again.collections) == ["docs"]
    again.close()


def test_a_first_start_cut_short_can_be_repeated(tmp_path: Path) -> None:
    """A folder with nothing but the draft of our own marker counts as empty."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / ".nearline.json.draft").write_text("{")
    Catalog(folder, IndexOptions()).close()


@pytest.mark.parametrize(
    "content",
    [
        lambda log: b"not a log any more" * 100,
        lambda log: b"\0" * 100 + log[100:],
        lambda log: log[: len(log) // 2],
        lambda log: log[:4096],
        lambda log: b"",
    ],
    ids=["another file", "broken header", "half of it", "first page only", "empty"],
)
def test_a_damaged_log_is_quarantined(catalog: Catalog, content: Callable[[bytes], bytes]) -> None:
    """The others open; the sick one is named with its reason, refuses everything, and its name is free once deleted."""
    for name in ("good", "ill"):
        catalog.create(name, settings()).write([WORLD.document(at) for at in range(20)]).result()
    catalog.set_alias("patient", "ill")
    catalog.close()
    log = catalog.folder / "ill" / "log.db"
    log.write_bytes(damaged := content(log.read_bytes()))
    again = Catalog(catalog.folder, IndexOptions())
    assert list(again.collections) == ["good"]
    assert list(again.quarantined) == ["ill"]
    failures.require_none()
    for called, refused in (
        ("patient", lambda: again.get("patient")),
        ("ill", lambda: again.rename("ill", "other")),
        ("ill", lambda: again.set_alias("another", "ill")),
    ):
        with pytest.raises(Quarantined, match=rf"{called!r} is quarantined: .*nearline verify"):
            refused()
    with pytest.raises(Conflict, match="taken"):
        again.create("ill", settings())
    assert log.read_bytes() == damaged or not damaged
    again.remove_alias("patient")
    again.delete("ill")
    again.create("ill", settings()).write([WORLD.document(1)]).result()
    assert not again.quarantined
    again.close()


def test_closing_goes_on_after_a_failure(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a step of closing a collection fails, the rest of it, the others and the lock are closed all the same."""
    collections = [catalog.create(name, settings()) for name in ("a", "b")]

    def fail() -> None:
        raise RuntimeError("counts cannot be saved")

    monkeypatch.setattr(collections[0].hits, "save", fail)
    with pytest.raises(RuntimeError, match="counts cannot be saved"):
        catalog.close()
    for one in collections:
        with pytest.raises(NotReady):
            one.write([WORLD.document(1)])
        with pytest.raises(NotReady):
            one.log.position()
    Catalog(catalog.folder, IndexOptions()).close()
