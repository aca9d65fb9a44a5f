"""The parts of the fault machinery that other tests rely on: who is told of a failure, and how a failpoint is armed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from indexes.base import failures
from indexes.base.durable import FolderLock, publish
from indexes.base.errors import InvalidInput, StorageError
from indexes.base.failpoints import VARIABLE, Failpoint
from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from indexes.log.wal import wal_of
from tests.support.vectors import World, fill, make_collection

WORLD = World()
ROOT = Path(__file__).parents[2]


def test_the_first_failure_is_told_once(tmp_path: Path) -> None:
    """Whoever listens hears of the first failure and not of those that follow from it; whoever stopped, of none."""
    told: list[StorageError] = []
    forgotten: list[StorageError] = []
    forget = failures.listen(told.append)
    failures.listen(forgotten.append)()
    lock = FolderLock(tmp_path / "LOCK")
    first = StorageError("the first")
    for error in (first, StorageError("the second")):
        failures.report(error)
    assert told == [first]
    assert not forgotten
    with pytest.raises(StorageError, match="the first"):
        publish(tmp_path / "file", b"content")
    assert not (tmp_path / "file").exists()
    lock.close()
    forget()


def test_a_failure_ends_with_the_last_data_directory(tmp_path: Path) -> None:
    """It counts while a directory is held; opening one anew begins afresh, and without one nothing is remembered."""
    failures.report(StorageError("nobody holds anything"))
    failures.require_none()
    locks = [FolderLock(tmp_path / name) for name in ("LOCK1", "LOCK2")]
    failures.report(StorageError("somebody does"))
    for lock in locks:
        with pytest.raises(StorageError, match="somebody does"):
            failures.require_none()
        lock.close()
        lock.close()
    failures.require_none()
    publish(tmp_path / "file", b"content")


def test_a_collection_without_a_directory_learns_of_a_failure(tmp_path: Path) -> None:
    """It commits nothing more, and leaves the write-ahead log as it is; opened again, it goes on."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(3))
    failures.report(StorageError("a sync failed"))
    with pytest.raises(StorageError, match="a sync failed"):
        fill(collection, WORLD, range(3, 6))
    collection.close()
    assert wal_of(tmp_path / "c" / "log.db").stat().st_size
    failures.require_none()
    again = Collection(tmp_path / "c", IndexOptions())
    fill(again, WORLD, range(3, 6))
    assert again.snapshot.live == 6
    again.close()
    assert not wal_of(tmp_path / "c" / "log.db").exists()


@pytest.mark.parametrize("text", ["", "name", "name=", "name=explode", "name:0=kill", "name:x=kill", "=kill"])
def test_a_misspelt_failpoint_is_refused(text: str) -> None:
    """A fault test with a slip in it must not pass for lack of a fault."""
    with pytest.raises(InvalidInput, match="expected name"):
        Failpoint.parse(text)


@pytest.mark.slow
def test_an_armed_process_says_so(tmp_path: Path) -> None:
    """Nobody serves with a failpoint set and does not see it; a misspelt one ends the command with one line."""
    command = [sys.executable, "-m", "jobs.cli", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    for value, status, line in (
        ("prepare.folder_made=error", 1, "this process will fail on purpose"),
        ("prepare.folder_made=explode", 1, "expected name"),
    ):
        ended = subprocess.run(
            command,
            env={**os.environ, VARIABLE: value},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == status
        assert line in ended.stderr
        assert "Traceback" not in ended.stderr


def test_the_nth_visit_counts() -> None:
    """Armed for the third visit, a failpoint fails then, and neither before nor after."""
    failpoint = Failpoint.parse("some.place:3=error")
    outcomes = []
    for _ in range(5):
        try:
            failpoint.visit()
            outcomes.append(True)
        except StorageError:
            outcomes.append(False)
    assert outcomes == [True, True, False, True, True]
