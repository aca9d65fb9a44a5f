"""`nearline bench cold`, as a user types it, on a small world: real builds, real calibration, a load that shifts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.dense.skipping import NOTES
from indexes.model import DenseResult, Ranking
from jobs.benchmark.cold.asking import Asked, loss, possible
from jobs.benchmark.cold.findings import findings, moving_mean, running_mean, verdict
from jobs.benchmark.cold.load import load_of, popularity
from tests.support.vectors import World

ROOT = Path(__file__).parents[2]
ROWS, DIMENSIONS, TOPICS = 4000, 32, 40
BUDGET = 0.005


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vectors and texts, as --vectors and --texts take them."""
    folder = tmp_path_factory.mktemp("made")
    world = World(dimensions=DIMENSIONS)
    np.save(folder / "x.npy", np.stack([world.vector(row) for row in range(ROWS)]))
    (folder / "texts.json").write_text(json.dumps([world.text(row) for row in range(ROWS)]))
    return folder


def bench(made: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs.cli", "bench", "cold", "--out", made / "reports", *arguments]
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"},
    )


@pytest.fixture(scope="module")
def report(made: Path) -> dict[str, Any]:
    counts = ["--load", 2000, "--queries", 2500, "--shifted", 2500, "--seeds", 2]
    skew = ["--topics", TOPICS, "--zipf", 3, "--depth", 10]
    ended = bench(made, "--vectors", made / "x.npy", "--texts", made / "texts.json", *counts, *skew, "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.slow
def test_skips_cost_less_than_the_budget(report: dict[str, Any]) -> None:
    """On the load the hot tier was made for, some queries skip, and all together lose less than the budget."""
    assert [one["seed"] for one in report["seeds"]] == [0, 1]
    for one in report["seeds"]:
        assert one["queries_to_calibrate"] >= NOTES
        assert one["hot_by_hits"] > 0
        measured = one["measured"]
        assert measured["queries"] == 2500
        assert measured["skip_share"] > 0
        assert measured["loss"] <= BUDGET
        for policy in ("calibrated", "always"):
            assert 0 < measured[policy]["p50_ms"] <= measured[policy]["p99_ms"]


@pytest.mark.slow
def test_the_shift_costs_less_than_twice_the_budget(report: dict[str, Any]) -> None:
    """Whatever stops the skipping, the mean loss since calibration never passes twice the budget."""
    for one in report["seeds"]:
        assert one["shift"]["skipping_when_it_came"]
        assert one["shift"]["skip_share_first_2000"] < one["measured"]["skip_share"]
        assert one["shift"]["loss_running_max"] <= 2 * BUDGET


@pytest.mark.slow
def test_report_is_whole(made: Path, report: dict[str, Any]) -> None:
    """Series have a point every so many queries; medians, worst and verdicts are those of the seeds."""
    for one in report["seeds"]:
        series = one["series"]
        assert series["shift_at"] == 2500
        assert series["queries"][-1] == 5000
        for name in ("loss_running", "loss_window", "skip_share", "skipping"):
            assert len(series[name]) == len(series["queries"])
        assert series["loss_running"][series["queries"].index(2500)] == one["measured"]["loss"]
    shares = [one["measured"]["skip_share"] for one in report["seeds"]]
    assert report["over_seeds"]["skip_share"]["worst"] == min(shares)
    assert report["over_seeds"]["skip_share"]["median"] == pytest.approx(np.mean(shares))
    assert report["kept"]["loss_within_budget"] == {"seeds": 2, "of": 2}
    assert report["kept"]["half_skipped"]["seeds"] == sum(share >= 0.5 for share in shares)
    (written,) = (made / "reports").glob("bench-cold-*.json")
    assert json.loads(written.read_text()) == report
    assert written.with_suffix(".svg").is_file() == (find_spec("matplotlib") is not None)


def test_vectors_need_their_texts(made: Path) -> None:
    """Half of a pair of files is refused before anything is built."""
    ended = bench(made, "--vectors", made / "x.npy")
    assert ended.returncode == 2
    assert "--texts" in ended.stderr


def test_loads_are_skewed_and_repeatable() -> None:
    """The same seed draws the same queries, another one others; the most popular topic gets its share by Zipf, and
    after a shift another topic does."""
    world = World(dimensions=DIMENSIONS)
    vectors = np.stack([world.vector(row) for row in range(1500)])
    load = load_of(vectors, 20, 1.5, seed=0)
    queries = load.queries(2000, seed=1)
    assert np.array_equal(queries, load.queries(2000, seed=1))
    assert not np.array_equal(queries, load.queries(2000, seed=2))
    assert np.allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-5)

    topic_of = np.full(len(vectors), -1)
    for topic, rows in enumerate(load.members):
        topic_of[rows] = topic
    expected = popularity(len(load.members), 1.5)
    assert expected.sum() == pytest.approx(1)
    half = len(load.members) // 2
    for drawn, most in ((queries, 0), (load.shifted().queries(2000, seed=3), half)):
        topics = topic_of[np.argmax(drawn @ vectors.T, axis=1)]
        assert np.bincount(topics[topics >= 0]).argmax() == most
        assert np.mean(topics == most) == pytest.approx(expected[0], abs=0.15)


def test_loss_and_windows() -> None:
    """A passage as good as the last expected one is no loss; means cover what they say."""

    def result(*scores: float) -> DenseResult:
        values = np.array(scores, np.float32)
        return DenseResult(
            Ranking(np.arange(len(scores)), values, np.zeros(len(scores), np.int8)), ("hot",), None
        )

    always = result(0.9, 0.8, 0.7, 0.7, 0.1)
    assert loss(result(0.9, 0.8, 0.7, 0.7), always, 3) == 0
    assert loss(result(0.9, 0.7, 0.6, 0.5), always, 3) == pytest.approx(1 / 3)
    assert loss(result(), always, 4) == 1
    assert loss(result(), result(), 4) == 0

    values = np.array([1.0, 0, 0, 1])
    assert running_mean(values).tolist() == pytest.approx([1, 0.5, 1 / 3, 0.5])
    assert moving_mean(values, 2).tolist() == [1, 0.5, 0, 0.5]
    assert possible(values, 0.25) == 0.75
    assert possible(values, 0.2) == 0.5


def asked(skipped: list[bool], needed: list[float], *, skipping: bool) -> Asked:
    flags, values = np.array(skipped), np.array(needed)
    return Asked(flags, flags * values, values, np.full(len(flags), skipping), values + 1, values + 2)


def test_verdicts_can_be_against_us() -> None:
    """A loss beyond the budget, before the shift or after it, is reported as such, also in a short run; and a shift
    that found nothing being skipped proves nothing."""
    before = asked([True] * 100, [0.0] * 99 + [0.1], skipping=True)
    broken = findings(before, asked([True] * 100, [0.3] * 100, skipping=True), BUDGET)
    assert broken["measured"]["loss"] == pytest.approx(0.001)
    assert broken["shift"]["queries_until_stopped"] is None
    assert broken["shift"]["loss_running_max"] == pytest.approx(0.1505)
    none = asked([False] * 100, [1.0] * 100, skipping=False)
    stopped = findings(asked([True] * 100, [0.2] * 100, skipping=True), none, BUDGET)
    assert stopped["shift"]["queries_until_stopped"] == 1
    idle = findings(none, none, BUDGET)
    kept = verdict([broken, stopped, idle], BUDGET)["kept"]
    assert kept["half_skipped"] == {"seeds": 2, "of": 3}
    assert kept["loss_within_budget"] == {"seeds": 2, "of": 3}
    assert kept["shift_within_twice_budget"] == {"seeds": 0, "of": 2}
