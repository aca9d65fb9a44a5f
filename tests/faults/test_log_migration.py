"""A log of the format before is brought to the present one: killed at any step, short of room, or beside a reader."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from indexes.base.errors import DiskFull
from indexes.base.failpoints import VARIABLE
from indexes.log.log import Log
from indexes.log.owed import Owed
from indexes.log.pinned import pin
from indexes.log.reader import FORMAT_VERSION
from indexes.log.schema import DOCUMENTS, VECTORS
from tests.compat.make_directory import FOLDER

OPEN = "import sys; from pathlib import Path; from indexes.log.log import Log; Log(Path(sys.argv[1])).close()"
STEPS = (
    "erase.synced",
    "erase.wal_removed",
    "replace.folder_synced",
    "replace.renamed",
    "erase.replaced",
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A log of format 2, of which something was deleted."""
    with tarfile.open(FOLDER / "directory-1.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data" / "docs" / "log.db"


def contents(path: Path) -> dict[str, list[Any]]:
    """Every row; of an operation without the id, which is forgotten, of a passage with its vector, and of a document
    without the language, which older formats lack."""
    columns = "pk, id, seq, first_passage, passages, digest, title, metadata, text"
    with pin(path) as log:
        passages = (
            "SELECT p.id, document, ordinal, start, end, tokens, heading, text, v.vector FROM passages p"
        )
        return {
            "documents": list(log.rows(f"SELECT {columns} FROM documents ORDER BY pk")),
            "passages": list(log.rows(f"{passages} JOIN vectors v ON v.id = p.id ORDER BY p.id")),
            "operations": list(log.rows("SELECT seq, at_ms, dead_first, dead_passages FROM operations")),
            "meta": list(log.rows("SELECT * FROM meta WHERE key IN ('settings', 'uid') ORDER BY key")),
            "content": list(log.rows("SELECT * FROM content")),
            "numbers": list(log.rows("SELECT * FROM sqlite_sequence ORDER BY name")),
        }


def is_present(path: Path) -> bool:
    with pin(path) as log:
        assert log.value("SELECT sql FROM sqlite_schema WHERE name = 'vectors'") == VECTORS
        assert log.value("SELECT sql FROM sqlite_schema WHERE name = 'documents'") == DOCUMENTS
        assert not log.value("SELECT count(*) FROM documents WHERE language = ''")
        return log.state().format_version == FORMAT_VERSION


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_loses_nothing(old: Path, step: str) -> None:
    """Whichever log the kill leaves, the next opening has every row in the present format, and no copy is left."""
    before = contents(old)
    environ = {**os.environ, VARIABLE: f"{step}:1=kill"}
    killed = subprocess.run([sys.executable, "-c", OPEN, str(old)], env=environ, check=False)
    assert killed.returncode == -9
    assert contents(old) == before
    Log(old).close()
    assert is_present(old)
    assert contents(old) == before
    assert not list(old.parent.glob(".log.db*"))


def test_a_disk_without_room_is_named(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is not begun where it has no room; the log stays as it was."""
    before = old.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        with pytest.raises(DiskFull, match=r"docs/log\.db has log format 2.* 0 are free"):
            Log(old)
    assert old.read_bytes() == before
    Log(old).close()
    assert is_present(old)


def test_what_is_owed_stays_owed(old: Path) -> None:
    """The indexes still hold what was deleted, and its age counts on."""
    owed = Owed(1000, 1_790_000_000_000)
    db = apsw.Connection(str(old))
    db.execute("INSERT INTO meta VALUES('owed', ?)", (owed.stored,))
    db.close()
    for _ in range(2):
        log = Log(old)
        assert log.owed == owed
        log.close()
