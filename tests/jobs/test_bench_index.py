"""`nearline bench index`, as a user types it: real builds, real child processes, whatever peers are installed."""

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

from jobs.benchmark.index.child import PEERS
from jobs.benchmark.index.timing import between
from jobs.benchmark.index.truth import best_scores, recall
from tests.support.vectors import World

ROOT = Path(__file__).parents[2]
ROWS, QUERIES, DIMENSIONS = 2000, 60, 64
MODULES = {"usearch": "usearch", "qdrant": "qdrant_edge", "lancedb": "lancedb"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vectors, texts and query vectors, as --vectors takes them."""
    folder = tmp_path_factory.mktemp("made")
    world = World(dimensions=DIMENSIONS)
    np.save(folder / "x.npy", np.stack([world.vector(row) for row in range(ROWS)]))
    np.save(folder / "q.npy", world.queries(QUERIES))
    (folder / "texts.json").write_text(json.dumps([world.text(row) for row in range(ROWS)]))
    return folder


def bench(made: Path, *arguments: object, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    files = ["--vectors", made / "x.npy", "--texts", made / "texts.json", "--query-vectors", made / "q.npy"]
    command = [sys.executable, "-m", "jobs.cli", "bench", "index", *files, "--out", made / "reports"]
    return subprocess.run(
        [str(part) for part in (*command, "--queries", QUERIES, *arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=280,
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", "COLUMNS": "160"},
    )


@pytest.fixture(scope="module")
def report(made: Path) -> dict[str, Any]:
    ended = bench(made, "--peers", "--ingest", 600, "--repeat", 2, "--data", made / "data", "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.slow
def test_every_engine_is_measured_or_says_why_not(report: dict[str, Any]) -> None:
    """An installed peer has recall, latency and memory; one that is absent is skipped with the missing module."""
    assert set(report["rows"]) == {"nearline, all cold", "nearline, hot and cold", *PEERS}
    for name, row in report["rows"].items():
        module = next((MODULES[word] for word in MODULES if name.startswith(word)), None)
        if module is not None and find_spec(module) is None:
            assert module in row["skipped"]
            continue
        assert "error" not in row, f"{name}: {row['error']}"
        assert row["reached"]
        assert row["best"]["recall"] >= report["settings"]["recall"]
        assert row["best"] in row["sweep"]
        assert 0 < row["best"]["p50_ms"] <= row["best"]["p99_ms"]
        assert row["insert_to_found"]["not_found"] == 0
        assert row["build_peak_own_bytes"] > 0
        assert row["file_bytes_per_vector"] > DIMENSIONS / 2


@pytest.mark.slow
def test_tiers_are_those_asked_for(report: dict[str, Any]) -> None:
    """Without a hot tier every passage is cold; with one, a tenth is hot."""
    cold, tiered = (report["rows"][f"nearline, {name}"]["passages"] for name in ("all cold", "hot and cold"))
    assert (cold["hot"], cold["cold"]) == (0, ROWS)
    assert (tiered["hot"], tiered["cold"]) == (ROWS // 10, ROWS - ROWS // 10)


@pytest.mark.slow
def test_ratios_are_those_of_the_rows(report: dict[str, Any]) -> None:
    """Each ratio is the peer's need over Nearline's; an engine shown for information alone is not compared with."""
    rows = report["rows"]
    for name, ratio in report["ratios"].items():
        assert "faiss IVF-PQ" not in ratio["by_peer"]
        latency = rows["hnswlib"]["best"]["p50_ms"] / rows[name]["best"]["p50_ms"]
        assert ratio["by_peer"]["hnswlib"]["latency"] == pytest.approx(latency, abs=0.01)
        assert (
            min(ratio["by_peer"].values(), key=lambda one: one["own_memory"])
            == (ratio["by_peer"][ratio["best_peer"]["own_memory"]])
        )
    assert set(report["ratios"]) == {"nearline, all cold", "nearline, hot and cold"}


@pytest.mark.slow
def test_nearline_under_filters_and_writes(report: dict[str, Any]) -> None:
    """Searches are measured at every share of passages a filter allows, and while passages are written."""
    measured = report["nearline_under_load"]
    assert [row["passages"] for row in measured["filtered"]] == [1000, 200, 20, 2]
    assert all(row["full"] == 1 for row in measured["filtered"])
    assert measured["while_writing"]["passages_written"] == 600
    assert measured["while_writing"]["searches_meanwhile"] > 0
    assert measured["while_writing"]["afterwards"]["passages_in_delta"] == 600
    ratios = [
        one["while_writing"]["p99_ms"] / one["idle"]["p99_ms"] for one in measured["while_writing"]["rounds"]
    ]
    assert measured["while_writing"]["ratio"]["p99_ms"] == pytest.approx(np.median(ratios), abs=0.001)


@pytest.mark.slow
def test_the_second_run_uses_what_was_kept(made: Path, report: dict[str, Any]) -> None:
    """A folder of --data serves again, also to measure one engine alone; for other material it is refused."""
    kept = made / "data"
    before = (kept / "vectors.npy").stat().st_mtime_ns
    ended = bench(made, "--data", kept, "--only", "hnswlib")
    assert ended.returncode == 0, ended.stderr
    assert "hnswlib" in ended.stdout
    assert "usearch" not in ended.stdout
    assert (kept / "vectors.npy").stat().st_mtime_ns == before

    ended = bench(made, "--data", kept, "--only", "hnswlib", "--passages", 1500)
    assert ended.returncode == 1
    assert "name another folder" in ended.stderr


@pytest.mark.slow
def test_a_library_that_is_absent_or_crashes_is_one_row(made: Path, tmp_path: Path) -> None:
    """Whatever a peer does to its own process, the run goes on and the report says what happened."""
    (tmp_path / "usearch.py").write_text("raise ImportError('no such library here')")
    (tmp_path / "qdrant_edge.py").write_text("import os; os.abort()")
    (tmp_path / "lancedb.py").write_text("raise RuntimeError('built for another machine')")
    engines = ["usearch f16", "qdrant-edge", "lancedb IVF-PQ", "hnswlib"]
    chosen = [part for name in engines for part in ("--only", name)]
    ended = bench(made, *chosen, "--json", path=tmp_path)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    assert "no such library here" in rows["usearch f16"]["skipped"]
    assert "status -6" in rows["qdrant-edge"]["error"]
    assert "built for another machine" in rows["lancedb IVF-PQ"]["error"]
    assert rows["hnswlib"]["reached"]


def test_truth_and_recall() -> None:
    """Exact search agrees with sorting all scores; ties count as found, and a row returned twice counts once."""
    world = World(dimensions=DIMENSIONS)
    vectors = np.stack([world.vector(row) for row in range(300)])
    vectors[7] = vectors[3]
    queries = vectors[[3, 50, 299]]
    best = best_scores(vectors, queries, 10)
    scores = queries @ vectors.T
    assert np.allclose(best, -np.sort(-scores, axis=1)[:, :10])
    right = np.argsort(-scores, axis=1)[:, :10]
    assert recall(list(right), vectors, queries, best) == 1
    assert recall([[*row[:5], *row[:5]] for row in right], vectors, queries, best) == 0.5

    one = best_scores(vectors, queries[:1], 1)
    assert recall([[7]], vectors, queries[:1], one) == recall([[3]], vectors, queries[:1], one) == 1
    allowed = np.arange(300) < 4
    few = best_scores(vectors, queries, 10, allowed)
    assert few.shape == (3, 4)
    assert recall([[0, 1, 2, 3]] * 3, vectors, queries, few) == 1


def test_settings_between_those_tried_are_tried() -> None:
    """What lies between the fastest that is good enough and the next smaller one is halved, a number at a time."""
    rows = [row_of(ef, rescored) for ef in (64, 128, 256) for rescored in (50, 100)]
    rows.extend(row_of(**setting) for setting in between(rows, 0.98))
    fastest = min((row for row in rows if row["recall"] >= 0.98), key=lambda row: float(row["p50_ms"]))
    assert fastest["setting"] == {"ef": 104, "rescored": 56}
    assert not list(between(rows[:2], 0.98)), "none is good enough"


def row_of(ef: int, rescored: int) -> dict[str, Any]:
    """A made-up measurement: good enough from ef 100 and 51 rescored on; each costs time."""
    recall = 0.99 if ef >= 100 and rescored > 50 else 0.9
    return {"setting": {"ef": ef, "rescored": rescored}, "recall": recall, "p50_ms": ef + rescored / 10}
