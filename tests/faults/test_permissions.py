"""Files that the service may not read or write: their collection is quarantined, and the others serve."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from indexes.base.model import IndexOptions
from indexes.directory.catalog import Catalog
from indexes.rebuild.builder import Rebuild
from tests.support.vectors import World, fill, settings

ROOT = Path(__file__).parents[2]
LOOK = """
import json, sys
from contextlib import closing
from pathlib import Path
from indexes.base import failures
from indexes.base.model import IndexOptions
from indexes.directory.backup.backup import back_up
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from tests.support.vectors import World, fill
data, quiet = Path(sys.argv[1]), lambda *_: None
with closing(Catalog(data, IndexOptions())) as catalog:
    fill(catalog.get("good"), World(), range(50, 60))
    found = {"serving": list(catalog.collections), "quarantined": catalog.quarantined}
    found["failed"] = failures.any_reported()
found["checks"] = [(one.collection, one.ok) for one in verify_data(data, (), quiet)]
back_up(data, data.with_name("backup"), ("good",), progress=quiet)
print(json.dumps(found))
"""
PUBLISH = """
import sys
from pathlib import Path
from indexes.base.durable import publish
from indexes.base.errors import StorageError
try:
    publish(Path(sys.argv[1]), b"x")
except StorageError as error:
    print(error)
"""

DELETE = """
import json, logging, os, sys
from contextlib import closing
from pathlib import Path
from indexes.base.errors import NearlineError
from indexes.base.model import IndexOptions
from indexes.directory.catalog import Catalog
from tests.support.vectors import World, fill
logging.basicConfig(stream=sys.stderr)
closed, data, said = Path(sys.argv[1]), Path(sys.argv[1]).parent, ""
data = closed if (closed / "LOCK").exists() else data
with closing(Catalog(data, IndexOptions())) as catalog:
    closed.chmod(0 if closed != data else 0o500)
    try:
        catalog.delete("ill")
    except NearlineError as error:
        said = error.message
    closed.exists() and closed.chmod(0o700)
    for name in catalog.collections:
        fill(catalog.get(name), World(), range(50, 60))
    found = {"said": said, "serving": {name: one.documents for name, one in catalog.collections.items()}}
found["left"] = any(data.glob(".removed-*"))
print(json.dumps(found))
"""


def run_unprivileged(script: str, path: Path) -> str:
    """Run a script as a user whom modes of files bind, as they do not bind root."""
    held = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if held and not shutil.which("setpriv"):
        pytest.skip("root reads every file, and setpriv is not installed")
    command = [*held, sys.executable, "-c", script, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    assert not ended.returncode, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("file", "mode", "reason"),
    [
        ("", 0, "log.db: Permission denied"),
        ("log.db", 0, "log.db: Permission denied"),
        ("log.db", 0o400, "log.db may not be written"),
        ("log.mark", 0o400, "log.mark: Permission denied"),
        ("CURRENT", 0, "CURRENT: Permission denied"),
        ("generations", 0, "generations: Permission denied"),
    ],
)
def test_a_collection_without_permission(tmp_path: Path, file: str, mode: int, reason: str) -> None:
    """It is found at the start and by a check, and keeps neither the others nor a backup of them from working."""
    catalog = Catalog(data := tmp_path / "data", IndexOptions())
    for name in ("good", "ill"):
        fill(catalog.create(name, settings()), World(), range(50))
    ill = catalog.get("ill")
    ill.adopt(Rebuild(ill.begin_build(), timeout_s=120).run(lambda *_: None))
    catalog.close()
    (path := data / "ill" / file).chmod(mode)
    try:
        found: dict[str, Any] = json.loads(run_unprivileged(LOOK, data))
    finally:
        path.chmod(0o700)
    assert (found["serving"], [*found["quarantined"]], found["failed"]) == (["good"], ["ill"], False)
    assert reason in found["quarantined"]["ill"]
    assert all(sound for name, sound in found["checks"] if name != "ill")
    assert not all(sound for name, sound in found["checks"] if name == "ill")
    with_permission = Catalog(data, IndexOptions())
    assert sorted(with_permission.collections) == ["good", "ill"]
    with_permission.close()


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["data", "collection"])
def test_a_deletion_without_permission_is_whole_or_none(tmp_path: Path, closed: str) -> None:
    """Where the folder cannot be renamed the collection goes on serving, and a restart agrees."""
    catalog = Catalog(data := tmp_path / "data", IndexOptions())
    for name in ("good", "ill"):
        fill(catalog.create(name, settings()), World(), range(50))
    catalog.close()
    found = json.loads(run_unprivileged(DELETE, data if closed == "data" else data / "ill"))
    kept = {"good": 60, "ill": 60} if closed == "data" else {"good": 60}
    assert found["serving"] == kept
    assert found["said"] == (f"{data}/ill: Permission denied" if closed == "data" else "")
    assert found["left"] == (closed == "collection")
    again = Catalog(data, IndexOptions())
    assert {name: one.documents for name, one in again.collections.items()} == kept
    again.close()
    assert not list(data.glob(".removed-*"))


def test_publishing_without_permission_names_the_file(tmp_path: Path) -> None:
    """And not the draft that is cleared away after it."""
    (folder := tmp_path / "closed").mkdir(0)
    assert run_unprivileged(PUBLISH, folder / "file").strip() == f"{folder}/file: Permission denied"
