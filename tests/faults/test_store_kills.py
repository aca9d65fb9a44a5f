"""Kill -9 in a loop, and now and then the machine is gone with its disk: what was acknowledged is in the store.

`make torture` does it NEARLINE_TORTURE_KILLS times (200).
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.support.oracle import Child, Oracle, read_until_killed
from tests.support.workload import BACKUPS, Options, open_with_store

KILLS_IN_CI = 4


def lose_machines(folder: Path, kills: int, seed: int) -> Oracle:
    """Half of the times the directory is gone. The store is a folder, as on another machine."""
    rng = random.Random(seed)
    oracle = Oracle()
    url = folder.with_name("bucket").as_uri()
    for kill in range(kills):
        child = Child(
            folder, Options(story="storm", seed=seed + kill, round=kill, hot_capacity=100, store=url)
        )
        read_until_killed(child, oracle, rng.uniform(0.0, 1.0))
        child.end_its_children()
        if is_lost := kill % 2 == 0:
            shutil.rmtree(folder)
            shutil.rmtree(folder.with_name(BACKUPS), ignore_errors=True)
        # What the disk has beyond its acknowledgements goes to the store before it counts as certain.
        catalog, uploader = open_with_store(folder, url)
        uploader.close()
        catalog.close()
        oracle.check(
            folder, ("generation:",) if is_lost else ()
        )  # the store may have an earlier one, or none
    return oracle


def test_lost_machines(memory_folder: Path) -> None:
    """Nothing acknowledged is lost, nothing deleted is back, nothing is there twice or in part."""
    oracle = lose_machines(memory_folder / "data", KILLS_IN_CI, seed=1)
    assert oracle.acknowledged > KILLS_IN_CI


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_many_lost_machines(tmp_path: Path) -> None:
    """The same, for as long as it takes to hit every moment."""
    kills = int(os.environ.get("NEARLINE_TORTURE_KILLS", "200"))
    lose_machines(tmp_path / "data", kills, seed=kills)
