"""Verifying finds each kind of damage, names it, and says what to do."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import numpy as np
import pytest

from indexes.base.durable import sha256, with_checksum
from indexes.base.errors import NotADataDirectory, NotFound
from indexes.base.model import IndexOptions, NewPassage, Upsert
from indexes.directory.backup import verifying
from indexes.directory.backup.backup import back_up
from indexes.directory.backup.verifying import check_generation, verify_backup, verify_data
from indexes.directory.catalog import Catalog
from indexes.directory.marker import write_aliases
from indexes.log.checks import Check
from indexes.parts.manifest import SealedFile, read_manifest
from tests.support.vectors import DIMENSIONS, World, delete, fill, rebuild, settings

WORLD = World()
TUNING = IndexOptions(delta_passages_max=256, segments_max=0)


def quiet(stage: str, done: int, total: int) -> None:
    pass


def long_document() -> Upsert:
    text = "Prologue. The middle part. An end."
    pieces = tuple(
        NewPassage(start, end, 3, WORLD.vector(9000, start)) for start, end in ((0, 9), (10, 26), (27, 34))
    )
    return Upsert("long", text, "A title", {"kind": "long"}, pieces)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed data directory with two generations, and deletions, replacements and additions after each."""
    data = tmp_path_factory.mktemp("sound") / "data"
    catalog = Catalog(data, TUNING)
    docs = catalog.create("docs", settings(hot_capacity=100))
    docs.write([long_document()]).result()
    fill(docs, WORLD, range(400))
    rebuild(docs)
    delete(docs, range(20))
    rebuild(docs)
    fill(docs, WORLD, range(20, 40), version=1)
    delete(docs, range(60, 80))
    catalog.create("empty", settings())
    catalog.set_alias("live", "docs")
    catalog.close()
    return data


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "data")


def verified(data: Path) -> list[Check]:
    return list(verify_data(data, [], quiet))


def wrong(checks: list[Check]) -> list[str]:
    assert all(check.advice for check in checks if not check.ok)
    return [check.name for check in checks if not check.ok]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_sound_directory(data: Path) -> None:
    """Every check passes, each generation is loaded, and no file is changed."""
    before = bytes_of(data)
    checks = verified(data)
    assert wrong(checks) == []
    assert [check.name for check in checks if check.collection == "docs"] == [
        "log file", "documents", "texts", "vectors", "history", "content", "generation 1", "generation 2", "CURRENT",
    ]  # fmt: skip
    found = {check.name: check.detail for check in checks if check.collection == "docs"}
    assert found["documents"] == "361 documents, 363 passages, seq 461"
    assert found["CURRENT"] == "generation 2"
    after = bytes_of(data)
    assert {name: content for name, content in after.items() if name in before} == before
    assert {Path(name).name for name in after.keys() - before.keys()} <= {"log.db-wal", "log.db-shm"}


@pytest.mark.slow
def test_a_live_directory(data: Path) -> None:
    """Beside a process that has it open and writes and rebuilds between all steps, nothing looks wrong."""
    catalog = Catalog(data, TUNING)
    docs = catalog.get("docs")
    steps: list[str] = []

    def on_step(stage: str, done: int, total: int) -> None:
        steps.append(stage)
        fill(docs, WORLD, range(1000 + len(steps), 1001 + len(steps)))
        delete(docs, range(100 + len(steps), 101 + len(steps)))
        if stage.startswith("generation") and len(steps) < 12:
            rebuild(docs)

    checks = list(verify_data(data, ["live"], on_step))
    assert wrong(checks) == []
    assert docs.snapshot.generation > 2
    assert any(check.name.startswith("generation") for check in checks)
    catalog.close()


def sql(statement: str) -> Callable[[Path], None]:
    def damage(data: Path) -> None:
        db = apsw.Connection(str(data / "docs" / "log.db"))
        db.execute(statement)
        assert db.total_changes()
        db.close()

    damage.__name__ = statement
    return damage


def vector(values: np.ndarray) -> Callable[[Path], None]:
    return sql(f"UPDATE vectors SET vector = x'{values.astype(np.float32).tobytes().hex()}' WHERE id = 300")


AXIS = np.eye(1, DIMENSIONS)[0]

LOG_DAMAGES = [
    (sql("UPDATE documents SET passages = 2 WHERE id = 'd200'"), ["documents", "texts"]),
    (sql("DELETE FROM passages WHERE id = 300"), ["documents"]),
    (sql("DELETE FROM documents WHERE id = 'd200'"), ["documents", "content"]),
    (sql("DELETE FROM vectors WHERE id = 300"), ["vectors"]),
    (sql("INSERT INTO vectors VALUES(99999, x'')"), ["documents"]),
    (sql("UPDATE passages SET document = 1 WHERE id = 300"), ["documents"]),
    (sql("UPDATE passages SET ordinal = 5 WHERE id = 2"), ["documents"]),
    (sql("UPDATE documents SET metadata = '{\"open\"' WHERE id = 'd200'"), ["documents"]),
    (sql("UPDATE documents SET seq = 99999 WHERE id = 'd200'"), ["documents"]),
    (sql("UPDATE sqlite_sequence SET seq = 50 WHERE name = 'passages'"), ["documents"]),
    (sql("UPDATE passages SET end = 999 WHERE id = 300"), ["texts"]),
    (sql("UPDATE passages SET start = 20, end = 10 WHERE id = 300"), ["texts"]),
    (sql("UPDATE passages SET text = 'another' WHERE id = 2"), ["texts"]),
    (sql("UPDATE documents SET text = 'Prologue. A middle part. An end.' WHERE id = 'long'"), ["texts"]),
    (sql("UPDATE vectors SET vector = substr(vector, 1, 100) WHERE id = 300"), ["vectors"]),
    (sql("UPDATE vectors SET vector = 'text' WHERE id = 300"), ["vectors"]),
    (vector(AXIS * 1.01), ["vectors"]),
    (vector(AXIS * np.nan), ["vectors"]),
    (vector(AXIS * 0), ["vectors"]),
    (sql("DELETE FROM operations WHERE seq = 445"), ["history"]),
    (sql("UPDATE operations SET dead_first = 300, dead_passages = 1 WHERE seq = 461"), ["history"]),
    (sql("UPDATE documents SET digest = zeroblob(32) WHERE id = 'd200'"), ["content"]),
    (sql("UPDATE content SET sums = zeroblob(2048)"), ["content"]),
    (sql("DELETE FROM content"), ["content"]),
]  # fmt: skip


def test_a_rename_that_the_next_start_finishes(data: Path) -> None:
    """Aliases already use the new name: nothing is wrong with them."""
    write_aliases(data, {"al": "new"}, renaming=("docs", "new"))
    [aliases] = [check for check in verify_data(data, [], quiet) if check.name == "aliases"]
    assert aliases.ok
    write_aliases(data, {"al": "new"})
    [aliases] = [check for check in verify_data(data, [], quiet) if check.name == "aliases"]
    assert not aliases.ok


@pytest.mark.parametrize(
    ("damage", "expected"), LOG_DAMAGES, ids=lambda value: getattr(value, "__name__", "")[:60]
)
def test_damage_in_the_log(data: Path, damage: Callable[[Path], None], expected: list[str]) -> None:
    """Rows that contradict each other are found, under the name of what they contradict."""
    shutil.rmtree(data / "docs" / "generations")
    (data / "docs" / "CURRENT").unlink()
    damage(data)
    assert wrong(verified(data)) == expected


def test_a_damaged_page(data: Path) -> None:
    """SQLite's own check finds what lies under the rows; the other checks end there."""
    path = data / "docs" / "log.db"
    content = bytearray(path.read_bytes())
    content[len(content) // 2 // 4096 * 4096 : len(content) // 2 // 4096 * 4096 + 2048] = bytes(2048)
    path.write_bytes(content)
    found = wrong(verified(data))
    assert found[0] in ("log file", "log")


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000])
def test_no_log_at_all(data: Path, content: bytes) -> None:
    """A file that is no log is the one finding: a generation that cannot be compared with it is not to blame."""
    (data / "docs" / "log.db").write_bytes(content)
    found = verified(data)
    assert wrong(found) == ["log"]
    (second,) = [check for check in found if check.name == "generation 2"]
    assert "not compared with the log" in second.detail


def test_a_log_that_could_be_read_before(data: Path) -> None:
    """Nothing passes uncompared because a log that was found whole cannot be read a moment later."""
    (data / "docs" / "log.db").write_bytes(b"")
    found = check_generation(data / "docs", 2, frozen=False, log_whole=True)
    assert found is not None
    assert not found.ok


def test_damage_on_both_sides(data: Path) -> None:
    """With a log that cannot be read nobody is told to delete a generation that is damaged, too."""
    (data / "docs" / "log.db").write_bytes(b"")
    (generation(data) / "ids.npy").write_bytes(b"")
    (second,) = [check for check in verified(data) if check.name == "generation 2"]
    assert not second.ok
    assert second.advice.startswith(f"leave {generation(data)} as it is")


def generation(data: Path, number: int = 2) -> Path:
    return data / "docs" / "generations" / f"{number:06d}"


def reseal(folder: Path, **changes: object) -> None:
    """Make the manifest agree with what the folder holds now, as a faulty build would."""
    manifest = read_manifest(folder)
    files = {
        name: SealedFile((folder / name).stat().st_size, sha256(folder / name)) for name in manifest.files
    }
    changed = msgspec.structs.replace(manifest, files=files, **changes)
    (folder / "manifest.json").write_bytes(with_checksum(changed))


def test_a_generation_that_is_being_deleted(data: Path) -> None:
    """Its files go one by one: what is missing then is no damage, and the generation is left out."""
    folder = generation(data, 1)
    (folder / "ids.npy").unlink()
    deleting = threading.Timer(0.3, shutil.rmtree, [folder])
    deleting.start()
    assert check_generation(data / "docs", 1, frozen=False, log_whole=True) is None
    deleting.join()


def test_every_file_of_a_generation_is_checked(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped byte or a missing file, in any of them, condemns this generation and no other."""
    monkeypatch.setattr(verifying, "GOING_S", 0)
    folder = generation(data, 1)
    for name in [*read_manifest(folder).files, "manifest.json"]:
        content = (folder / name).read_bytes()
        for damaged in (None, b"x" + content[1:]):
            (folder / name).unlink(missing_ok=True)
            if damaged is not None:
                (folder / name).write_bytes(damaged)
            found = check_generation(data / "docs", 1, frozen=False, log_whole=True)
            assert found is not None
            assert (found.ok, found.name) == (False, "generation 1"), name
            assert name in found.detail or not damaged
        if name != "manifest.json":
            (folder / name).write_bytes(content)
    assert wrong(verified(data)) == ["generation 1"]


def test_a_generation_that_brings_the_process_down(data: Path) -> None:
    """A graph with a right checksum, whose walk begins far outside, kills whoever searches it: only a child."""
    graph = generation(data) / "hot.hnsw"
    content = bytearray(graph.read_bytes())
    content[48:56] = (2**31 - 1).to_bytes(4, "little") * 2  # hnswlib's highest level and entry point
    graph.write_bytes(content)
    reseal(graph.parent)
    found = {check.name: check for check in verified(data) if not check.ok}
    assert set(found) == {"generation 2", "CURRENT"}
    assert "loading it failed: signal" in found["generation 2"].detail


def test_a_generation_that_never_loads(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that does not come to an end is ended, and that is the finding."""
    monkeypatch.setattr(verifying, "LOAD_S_MAX", 0.01)
    found = check_generation(data / "docs", 2, frozen=False, log_whole=True)
    assert found is not None
    assert (found.ok, found.detail) == (False, "loading it failed: it took more than 0.01 s")


@pytest.mark.slow
def test_a_generation_that_lacks_passages(data: Path) -> None:
    """One that claims to reach further than it does would hide documents."""
    reseal(generation(data), last_passage=423)
    found = [check for check in verified(data) if not check.ok]
    assert [check.name for check in found] == ["generation 2", "CURRENT"]
    assert "lacks 20 of 363 live passages" in found[0].detail


@pytest.mark.slow
def test_a_generation_with_unknown_passages(data: Path) -> None:
    """Passages that neither live nor are known as removed could not be hidden."""
    sql("UPDATE operations SET dead_passages = 0, dead_first = 0 WHERE seq > 445")(data)
    found = {check.name: check for check in verified(data) if not check.ok}
    assert "16 passages that the log does not know" in found["generation 2"].detail


@pytest.mark.slow
def test_a_generation_whose_history_is_gone(data: Path) -> None:
    """As after a restore from a store: whatever the log does not hold was removed, to the service as well."""
    sql("DELETE FROM operations WHERE seq < 450")(data)
    assert wrong(verified(data)) == []
    catalog = Catalog(data, TUNING)
    docs = catalog.get("docs")
    assert docs.generation == 2
    assert docs.snapshot.live == 363
    catalog.close()


@pytest.mark.slow
def test_a_generation_of_another_model(data: Path) -> None:
    """Its vectors mean something else."""
    reseal(generation(data), fingerprint="other")
    assert wrong(verified(data)) == ["generation 2", "CURRENT"]


@pytest.mark.parametrize("content", [b"7\n", b"", b"seven", b"-1", None])
def test_current_names_nothing(data: Path, content: bytes | None) -> None:
    """CURRENT that is gone, or that names no generation here, is found."""
    path = data / "docs" / "CURRENT"
    path.unlink() if content is None else path.write_bytes(content)
    assert wrong(verified(data)) == ["CURRENT"]


def test_an_alias_of_nothing(data: Path) -> None:
    """A collection that went away under its alias."""
    shutil.rmtree(data / "docs")
    [found] = [check for check in verified(data) if not check.ok]
    assert (found.name, found.detail) == ("aliases", "name nothing: live -> docs")


def test_what_cannot_be_verified(data: Path) -> None:
    """A folder that is not ours, and an unknown collection, are errors and not findings."""
    with pytest.raises(NotADataDirectory):
        verified(data.parent)
    with pytest.raises(NotFound, match="there are: docs, empty"):
        list(verify_data(data, ["nobody"], quiet))
    with pytest.raises(NotFound, match="no backup"):
        list(verify_backup(data, [], quiet))


def test_a_backup_is_verified_and_not_touched(data: Path, tmp_path: Path) -> None:
    """Checksums and contents are checked without leaving a file behind; damage stops before anything is parsed."""
    target = tmp_path / "backup"
    back_up(data, target, progress=quiet)
    before = bytes_of(target)
    checks = list(verify_backup(target, [], quiet))
    assert wrong(checks) == []
    assert [check.name for check in checks if check.collection == "docs"] == [
        "files", "log file", "documents", "texts", "vectors", "history", "content", "generation 2", "CURRENT",
    ]  # fmt: skip
    assert bytes_of(target) == before
    path = target / "docs" / "log.db"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    checks = list(verify_backup(target, [], quiet))
    assert [(check.collection, check.name) for check in checks if not check.ok] == [("docs", "files")]
    assert [check.name for check in checks if check.collection == "docs"] == ["files"]
    (target / "backup.json").write_bytes(b"{}")
    assert wrong(list(verify_backup(target, [], quiet))) == ["backup.json"]
