"""Kill -9 in a loop during mixed writes, deletions, rebuilds, swaps, rollbacks and backups, against an oracle.

`make torture` does it NEARLINE_TORTURE_KILLS times (200).
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from indexes.collection.collection import Collection
from indexes.directory.backup.restoring import restore
from tests.support.inspection import consistent
from tests.support.oracle import Child, Oracle, read_until_killed
from tests.support.workload import BACKUPS, TUNING, Options

KILLS_IN_CI = 10


def kill_again_and_again(folder: Path, kills: int, seed: int) -> Oracle:
    rng = random.Random(seed)
    oracle = Oracle()
    checked: set[Path] = set()
    for kill in range(kills):
        child = Child(folder, Options(story="storm", seed=seed + kill, round=kill, hot_capacity=100))
        read_until_killed(child, oracle, rng.uniform(0.0, 0.5))
        oracle.check(folder)
        check_backups(folder, checked)
    child.end_its_children()
    assert len(checked) > kills / 4
    return oracle


def check_backups(folder: Path, checked: set[Path]) -> None:
    """The newest backup that has its name can be restored, to exactly the seq and the counts it tells."""
    fresh = sorted(set(folder.with_name(BACKUPS).glob("[0-9]*")) - checked)
    checked.update(fresh)
    for target in fresh[-1:]:
        data = folder.with_name("restored") / target.name
        for restored in restore(target, data, progress=lambda *_: None):
            collection = Collection(data / restored.name, TUNING)
            assert len(consistent(collection)) == restored.documents
            assert collection.snapshot.seq == restored.seq
            collection.close()
        shutil.rmtree(data)


def test_kills(memory_folder: Path) -> None:
    """Nothing acknowledged is lost, nothing deleted is back, nothing is there twice or in part."""
    oracle = kill_again_and_again(memory_folder / "data", KILLS_IN_CI, seed=1)
    assert oracle.acknowledged > KILLS_IN_CI  # how many it is depends on the machine


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_many_kills(tmp_path: Path) -> None:
    """The same, for as long as it takes to hit every moment."""
    kills = int(os.environ.get("NEARLINE_TORTURE_KILLS", "200"))
    oracle = kill_again_and_again(tmp_path / "data", kills, seed=kills)
    assert oracle.acknowledged > kills
