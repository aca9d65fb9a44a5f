"""What a collection holds, as a hash; and logs from before there was one."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from indexes.base.errors import Damaged, NewerFormat
from indexes.base.model import Delete, IndexOptions, Operation, Upsert
from indexes.directory.backup.backup import back_up
from indexes.directory.backup.restoring import restore
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from indexes.log.content import ContentHash
from indexes.log.log import Log
from indexes.log.pinned import pin
from indexes.log.reader import LogReader
from indexes.log.schema import add_content
from tests.support.vectors import World, found_ids, settings

WORLD = World(dimensions=4)
OLD_LOG = Path(__file__).parents[1] / "compat" / "log-1.sql"
TUNING = IndexOptions(delta_passages_max=256, segments_max=0)


def quiet(stage: str, done: int, total: int) -> None:
    pass


def versioned(number: int, version: int = 0) -> Upsert:
    """The same document with the same digest, whenever and wherever it is written."""
    return replace(WORLD.document(number, version=version), digest=bytes([number, version]) * 16)


def content_after(path: Path, commits: Sequence[Sequence[Operation]]) -> bytes:
    path.unlink(missing_ok=True)
    log = Log.create(path, settings(dimensions=4), "uid")
    for operations in commits:
        log.commit([operations])
    content = log.content
    log.close()
    return content


# --- the hash -----------------------------------------------------------------------------------------------


operations = st.lists(
    st.builds(versioned, st.integers(0, 4), st.integers(0, 2))
    | st.integers(0, 4).map(lambda number: Delete(f"d{number}")),
    max_size=12,
)


@bounded(max_examples=30, deadline=None)
@given(first=operations, second=operations)
def test_equal_exactly_where_the_documents_are(
    tmp_path_factory: pytest.TempPathFactory, first: list[Operation], second: list[Operation]
) -> None:
    """Whatever order, commits and detours led there: equal documents, equal hash; other documents, another hash."""
    folder = tmp_path_factory.mktemp("logs")

    def held(all_operations: list[Operation]) -> dict[str, bytes]:
        documents: dict[str, bytes] = {}
        for operation in all_operations:
            documents.pop(operation.id, None)
            if isinstance(operation, Upsert):
                documents[operation.id] = operation.digest
        return documents

    one = content_after(folder / "one.db", [[operation] for operation in first])
    other = content_after(folder / "other.db", [second])
    assert (one == other) == (held(first) == held(second))
    at_once = [versioned(int(name[1:]), digest[1]) for name, digest in reversed(held(first).items())]
    assert content_after(folder / "one.db", [at_once]) == one


def test_it_is_kept_with_the_documents(tmp_path: Path) -> None:
    """Opened again, a log has the hash of its last commit; a commit that is taken back changes nothing."""
    log = Log.create(tmp_path / "log.db", settings(dimensions=4), "uid")
    log.commit([[versioned(1), versioned(2)]])
    before = log.content
    broken = replace(versioned(3), metadata={"x": object()})
    with pytest.raises(TypeError):
        log.commit([[versioned(4), broken]])
    assert log.content == before
    log.close()
    again = Log(log.path)
    assert again.content == before
    again.close()


def test_a_document_without_a_digest_is_like_no_other(tmp_path: Path) -> None:
    """Two logs whose writers gave no digests have different hashes, although the documents look the same."""
    hashes = {content_after(tmp_path / "log.db", [[WORLD.document(1)]]) for _ in range(2)}
    assert len(hashes) == 2


def test_digests_are_read_back(tmp_path: Path) -> None:
    """Of those documents that live, by id."""
    log = Log.create(tmp_path / "log.db", settings(dimensions=4), "uid")
    log.commit([[versioned(1), versioned(2), versioned(3)], [Delete("d3")]])
    assert log.digests(["d1", "d3", "nobody"]) == {"d1": versioned(1).digest}
    log.close()


def test_a_hash_of_another_length_is_damage() -> None:
    """What is not as long as the sums were not written by us."""
    with pytest.raises(Damaged, match="2047 bytes, expected 2048"):
        ContentHash(bytes(2047))


# --- logs of format 1 ---------------------------------------------------------------------------------------


def rows(path: Path) -> dict[str, list[Any]]:
    """What format 1 knows of a log, less the ids in its operations, which are forgotten."""
    db = apsw.Connection(str(path))
    separate = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'vectors'").fetchone()
    found = {
        "documents": db.execute(
            "SELECT pk, id, seq, first_passage, passages, title, metadata, text FROM documents"
        ).fetchall(),
        "passages": db.execute(
            "SELECT p.id, document, ordinal, start, end, tokens, text, vector FROM passages p"
            + (" JOIN vectors USING (id)" if separate else "")
        ).fetchall(),
        "operations": db.execute(
            "SELECT seq, at_ms, first_passage, passages, dead_first, dead_passages FROM operations"
        ).fetchall(),
        "numbers": db.execute("SELECT * FROM sqlite_sequence").fetchall(),
        "uid": db.execute("SELECT value FROM meta WHERE key = 'uid'").fetchall(),
    }
    db.close()
    return found


def old_log(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path)
    db.executescript(OLD_LOG.read_text())
    db.close()
    return path


@pytest.fixture
def old_data(tmp_path: Path) -> Path:
    """A data directory of an older version, with one collection."""
    data = tmp_path / "data"
    Catalog(data, TUNING).close()
    old_log(data / "docs" / "log.db")
    return data


def test_an_old_log_is_opened_without_loss(old_data: Path) -> None:
    """Every document, passage and operation stays as it was; it is searched, written to and opened again."""
    path = old_data / "docs" / "log.db"
    before = rows(path)
    catalog = Catalog(old_data, TUNING)
    docs = catalog.get("docs")
    assert rows(path) == before
    assert docs.snapshot.seq == 6
    assert found_ids(docs, WORLD.vector(2, 0, 0), 1) == ["d2"]
    content = docs.snapshot.content
    new = versioned(9)
    docs.write([replace(new, passages=tuple(replace(one, heading="A > B") for one in new.passages))]).result()
    assert {one.heading for one in docs.passages([2, 7]).values()} == {"", "A > B"}
    assert docs.snapshot.content != content
    docs.write([Delete("d9")]).result()
    assert docs.snapshot.content == content
    catalog.close()
    catalog = Catalog(old_data, TUNING)
    assert catalog.get("docs").snapshot.content == content
    catalog.close()
    assert all(check.ok for check in verify_data(old_data, [], quiet))


def test_old_documents_count_as_changed_once(old_data: Path, tmp_path: Path) -> None:
    """They have no digest until they are written again; then the collection equals one that was always new."""
    catalog = Catalog(old_data, TUNING)
    docs = catalog.get("docs")
    assert docs.log.digests(["d1", "d2", "long"]) == {}
    docs.write([versioned(1), versioned(2), Delete("long")]).result()
    assert docs.log.digests(["d1", "d2"]).keys() == {"d1", "d2"}
    assert docs.snapshot.content == content_after(tmp_path / "new.db", [[versioned(2), versioned(1)]])
    catalog.close()


def test_two_openings_of_an_old_log_share_nothing(tmp_path: Path) -> None:
    """Nobody knows whether old logs hold the same documents, so each gets a hash of its own."""
    logs = [Log(old_log(tmp_path / name)) for name in ("one.db", "two.db")]
    assert logs[0].content != logs[1].content
    for log in logs:
        log.close()


def test_a_migration_that_fails_leaves_the_old_log(tmp_path: Path) -> None:
    """Taken back whole, and done at the next opening."""
    path = old_log(tmp_path / "log.db")
    before = rows(path)
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').get}")
    with pytest.raises(apsw.FullError):
        add_content(db)
    db.close()
    assert LogReader(path).format_version == 1
    assert rows(path) == before
    log = Log(path)
    assert log.position().seq == 6
    log.close()


def test_an_old_log_is_read_as_it_is(old_data: Path) -> None:
    """Verifying and backing up an old directory neither fail nor change it."""
    path = old_data / "docs" / "log.db"
    before = path.read_bytes()
    assert all(check.ok for check in verify_data(old_data, [], quiet))
    back_up(old_data, old_data.parent / "kept", progress=quiet)
    with pin(old_data.parent / "kept" / "docs" / "log.db", frozen=True) as log:
        assert log.state().format_version == 1
    assert path.read_bytes() == before


def test_an_old_backup_is_restored(old_data: Path, tmp_path: Path) -> None:
    """It is brought to the present format when it is first opened."""
    back_up(old_data, tmp_path / "kept", progress=quiet)
    shutil.rmtree(old_data)
    restore(tmp_path / "kept", old_data, progress=quiet)
    catalog = Catalog(old_data, TUNING)
    assert catalog.get("docs").document("long").title == "A title"
    assert catalog.get("docs").log.uid != "a" * 32
    catalog.close()


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    """The error names both formats."""
    path = old_log(tmp_path / "log.db")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '5' WHERE key = 'format_version'")
    db.close()
    with pytest.raises(NewerFormat, match="log format 5, this version reads 1 to 4"):
        Log(path)
