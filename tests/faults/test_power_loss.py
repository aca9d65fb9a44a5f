"""Simulated power losses: what was not synced is dropped, in part or whole, in any order. See `support/power.py`.

A kill cannot show a missing sync, because the system still writes what a dead process left with it.
"""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest

from indexes.base.errors import StorageError
from indexes.directory.catalog import Catalog
from tests.support.inspection import everything
from tests.support.oracle import Child, Line, Oracle
from tests.support.power import Platter
from tests.support.vectors import settings
from tests.support.versions import document
from tests.support.workload import LOST, TUNING, Options

LOSSES_IN_CI = 8
STORM_STEPS_MAX = 1500


def run(folder: Path, **options: object) -> tuple[list[Line], Path]:
    """A workload until the power fails or its story ends: what it told, and what the loss left."""
    data = folder / "disk" / "data"
    data.mkdir(parents=True)
    child = Child(data, Options(children=0.0, **options))  # type: ignore[arg-type]
    lines = list(child.lines())
    status, errors = child.end()
    assert status == 0, errors
    return lines, folder / LOST / "data"


@pytest.fixture(scope="module")
def tour_steps(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Writes, syncs and renames of an undisturbed tour, less a tenth: their number varies with how writes share
    syncs."""
    lines, _ = run(tmp_path_factory.mktemp("undisturbed"), story="tour", count=True)
    return lines[-1].steps * 9 // 10


def lose(folder: Path, seed: int, tour_steps: int) -> None:
    rng = random.Random(seed)
    story, steps = rng.choice((("tour", tour_steps), ("storm", STORM_STEPS_MAX)))
    lines, left = run(folder, story=story, seed=seed, hot_capacity=100, lose_at_step=rng.randint(1, steps))
    assert any(line.lost for line in lines)
    oracle = Oracle()
    oracle.read(lines)
    oracle.check(left)
    oracle.check(left)


@pytest.mark.parametrize("seed", range(LOSSES_IN_CI))
def test_power_loss(tmp_path: Path, tour_steps: int, seed: int) -> None:
    """Every acknowledged write, alias, creation and deletion is there afterwards, and nothing is there in part."""
    lose(tmp_path, seed, tour_steps)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_many_power_losses(tmp_path: Path, tour_steps: int) -> None:
    """The same, NEARLINE_TORTURE_LOSSES times (50)."""
    for seed in range(1000, 1000 + int(os.environ.get("NEARLINE_TORTURE_LOSSES", "50"))):
        lose(tmp_path / str(seed), seed, tour_steps)


@pytest.mark.parametrize("unsynced", ["commits", "files"])
def test_the_simulation_notices_missing_syncs(tmp_path: Path, tour_steps: int, unsynced: str) -> None:
    """Without the syncs of SQLite, or those of the publisher, something acknowledged is lost, and this shows."""
    noticed = 0
    for seed in range(3):
        lines, left = run(
            tmp_path / str(seed), story="tour", seed=seed, lose_at_step=tour_steps // 2, unsynced=unsynced
        )
        oracle = Oracle()
        oracle.read(lines)
        try:
            oracle.check(left)
        except (AssertionError, StorageError, TypeError):  # rows may have lost their values
            noticed += 1
    assert noticed


def test_a_new_data_directory_is_not_forgotten(tmp_path: Path) -> None:
    """The folder that the service makes for itself is there after a power loss, with what was acknowledged in it."""
    root = tmp_path / "disk"
    root.mkdir()
    platter = Platter(root)
    with platter.installed():
        catalog = Catalog(root / "var" / "data", TUNING)
        catalog.create("main", settings()).write([document(1, 1)]).result()
        platter.lose(tmp_path / LOST, random.Random(0), "nothing")
        catalog.close()
    with contextlib.closing(Catalog(tmp_path / LOST / "var" / "data", TUNING)) as again:
        assert everything(again)["doc:main:1"] == 1
