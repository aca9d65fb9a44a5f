"""The benches: the arithmetic of their figures, engines in processes of their own, and a small real run of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.base.errors import NearlineError
from jobs.benchmark.report import table
from jobs.benchmark.texts import best_scores, half_and_half, overlap, recall
from jobs.benchmark.turns import NOTES, Engine, Run, Worker, figures, rotate, start, turns
from tests.support.redis_server import redis_binary

ROOT = Path(__file__).parents[2]


def run_of(*milliseconds: float) -> Run:
    return Run(list(milliseconds), [[]] * len(milliseconds), sum(milliseconds) / 1000, 0.001, 0.0005)


def test_figures_are_percentiles_of_all_queries_and_medians_of_rounds() -> None:
    """One slow round moves the percentiles, and not the ratios, which compare within a round."""
    base = [run_of(1, 1, 1), run_of(10, 10, 10), run_of(1, 1, 1)]
    slower = [run_of(2, 2, 2), run_of(20, 20, 20), run_of(9, 9, 9)]
    row = figures(slower, base)
    assert row["p50 ms"] == 9
    assert row["x p50"] == 2
    assert row["x rate"] == 0.5
    assert row["CPU ms"] == pytest.approx(1 / 3, abs=1e-3)
    assert row["queries/s"] == pytest.approx(9 / 0.093, abs=0.1)


def test_queries_are_asked_in_whole_turns() -> None:
    """What does not fill a turn is left out; fewer queries than one turn are one all the same."""
    assert [len(part) for part in turns(list(range(100)))] == [40, 40]
    assert turns([1, 2]) == [[1, 2]]


def test_recall_counts_ties_and_repeated_rows_once() -> None:
    """A row that scores like the last true one is as good; a row given twice is one."""
    vectors = np.array([[1, 0], [0.8, 0.6], [0.8, 0.6], [0, 1]], np.float32)
    query = vectors[:1]
    best = best_scores(vectors, query, 2)
    assert best.tolist() == [[1, pytest.approx(0.8)]]
    assert recall([[0, 2]], vectors, query, best) == 1
    assert recall([[0, 0]], vectors, query, best) == 0.5
    assert overlap([[1, 2], []], [[1, 3], []]) == 0.75


def test_mixed_texts_have_the_begin_of_one_and_the_end_of_another() -> None:
    """Where a collection must be larger than there are texts."""
    assert half_and_half("a b c d", "w x y z") == "a b y z"


def test_a_table_has_the_columns_of_all_its_rows() -> None:
    """A row that lacks a column leaves it blank."""
    assert table([{"engine": "one", "p50": 1.23456}, {"engine": "two", "p99": 1234}]) == [
        "| engine | p50   | p99   |",
        "|--------|-------|-------|",
        "| one    | 1.235 |       |",
        "| two    |       | 1,234 |",
    ]


class Doubling(Engine):
    def open(self) -> None:
        pass

    def ask(self, query: int) -> int:
        return 2 * query


class Missing(Doubling):
    def open(self) -> None:
        raise ImportError("no such library")


class Dying(Doubling):
    def ask(self, query: int) -> int:
        os._exit(3)


@pytest.mark.slow
def test_engines_run_in_turns_in_processes_of_their_own() -> None:
    """Answers come back in the order of the queries, from one client and from two; who is missing is named."""
    with ExitStack() as stack:
        workers, notes = start({"one": Doubling, "two": Doubling, "gone": Missing}, stack, lambda _: None)
        assert len({os.getpid(), *(worker.call("pid") for worker in workers.values())}) == 3
        runs = rotate(workers, [[0, 5, 7], [1, 5, 7], [2, 5, 7]], clients={"two": 2})
    assert [run.answers for run in runs["one"]] == [[0, 10, 14], [2, 10, 14], [4, 10, 14]]
    assert [run.answers for run in runs["two"]] == [[0, 10, 14], [2, 10, 14], [4, 10, 14]]
    assert all(run.cpu_s > 0 for run in runs["one"])
    assert notes == [*NOTES, "gone is left out: ImportError: no such library"]


def test_a_process_that_dies_is_an_error() -> None:
    """Not a wait for an answer that never comes."""
    worker = Worker(Dying)
    with pytest.raises(NearlineError, match="ended before it answered"):
        worker.run([1])
    worker.close()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents with queries beside them."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = [f"Entry {n} tells of item {n * 7 % 1000} in room {n % 31}." for n in range(400)]
    (folder / "corpus.jsonl").write_text(
        "\n".join(json.dumps({"id": str(n), "text": t}) for n, t in enumerate(texts))
    )
    queries = [{"id": str(n), "text": f"which entry tells of item {n} in room {n % 31}"} for n in range(200)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    return folder / "corpus.jsonl"


def bench(corpus: Path, model: Path | None, *arguments: object) -> dict[str, Any]:
    """The report of a run as a user types it, with texts and vectors kept beside the corpus."""
    models = {"NEARLINE_MODELS_FOLDER": str(model.parent)} if model else {}
    ended = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "bench", *map(str, arguments),
         "--corpus", str(corpus), "--out", str(corpus.parent), "--json"],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT), **models},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    assert {"machine", "versions", "settings", "tables", "notes"} <= set(report)
    written = sorted(corpus.parent.glob(f"bench-{report['bench']}-*"))
    assert json.loads(written[0].read_text()) == report
    assert written[1].read_text().startswith("# nearline bench")
    return report


def rows_of(report: dict[str, Any], table: int = 0) -> dict[str, dict[str, Any]]:
    rows = list(report["tables"].values())[table]
    for row in rows:
        assert 0 < row["p50 ms"] <= row["p95 ms"] <= row["p99 ms"]
        assert row["CPU ms"] > 0
    return {next(iter(row.values())): row for row in rows}


@pytest.mark.slow
@pytest.mark.model
def test_the_service_takes_turns_with_another_checkout(corpus: Path, model_folder: Path) -> None:
    """Each service in three ways, the bare embedding run, and a load; here the other checkout is this one."""
    few = ["--passages", 200, "--queries", 40]
    report = bench(corpus, model_folder, *few, "--no-peers", "--against", ROOT)
    alone, crowd = rows_of(report), rows_of(report, 1)
    assert [name for name in alone if name.startswith("against")] == [
        "against hybrid", "against dense", "against lexical",
    ]  # fmt: skip
    assert alone["nearline hybrid"]["recall@10"] > 0.8
    assert alone["nearline hybrid"]["x p50"] == 1
    assert alone["nearline hybrid"]["x CPU of bare"] > 0
    assert alone["nearline hybrid, from the result cache"]["CPU ms"] < alone["nearline hybrid"]["CPU ms"]
    assert set(crowd) == {"nearline hybrid", "against hybrid"}
    assert {row["clients"] for row in crowd.values()} == {16}


@pytest.mark.slow
@pytest.mark.model
def test_the_index_is_measured_at_each_depth_beside_peers(corpus: Path, model_folder: Path) -> None:
    """Ours all cold, a tenth and all hot; peers that are not installed are notes, the others have a setting."""
    report = bench(corpus, model_folder, "index", "--peers", "--passages", 200, "--queries", 40, "--depth", 5)
    assert list(report["tables"]) == ["5 nearest of 200"]
    rows = rows_of(report)
    assert list(rows)[:5] == [
        "nearline, all cold",
        "nearline, a tenth hot",
        "nearline, all hot",
        "hnswlib",
        "faiss",
    ]
    assert rows["hnswlib"]["ef"]
    assert all(row["recall"] > 0.8 and row["2 threads"] > 0 and row["own MiB"] > 0 for row in rows.values())
    assert len(rows) + sum("is left out" in note for note in report["notes"]) == 8


@pytest.mark.slow
def test_bm25_is_measured_at_several_sizes(corpus: Path) -> None:
    """In the same turns; engines agree on what they find."""
    report = bench(
        corpus, None, "bm25", "--passages", 1000, "--passages", 2000, "--queries", 40, "--depth", 10
    )
    rows = rows_of(report)
    assert {"nearline 1,000", "nearline 2,000", "rank-bm25 1,000"} <= set(rows)
    assert rows["nearline 2,000"]["recall"] == 1


@pytest.mark.slow
@pytest.mark.model
def test_dense_search_is_measured_at_several_sizes(corpus: Path, model_folder: Path) -> None:
    """In the same turns, each against the true neighbors among its own passages."""
    report = bench(
        corpus, model_folder, "scale", "--passages", 1000, "--passages", 2000, "--queries", 40, "--depth", 10
    )
    rows = rows_of(report)
    assert list(rows) == ["1,000 passages", "2,000 passages"]
    assert all(row["recall"] > 0.9 and row["lists"] > 0 and row["own MiB"] > 0 for row in rows.values())


@pytest.mark.slow
@pytest.mark.model
def test_embedding_is_measured_by_batcher_and_service(corpus: Path, model_folder: Path) -> None:
    """Queries one by one, and texts in bulk."""
    rows = rows_of(bench(corpus, model_folder, "embed", "--queries", 40, "--passages", 200))
    assert {"nearline, batcher", "nearline, over HTTP", "bare graph"} <= set(rows)
    assert all(row["bulk tokens/s"] > 0 for row in rows.values())


@pytest.mark.slow
@pytest.mark.model
def test_skipping_is_measured_against_always(corpus: Path, model_folder: Path) -> None:
    """Before and after the load shifts; policy "always" neither skips nor loses anything."""
    report = bench(corpus, model_folder, "cold", "--passages", 1000, "--queries", 80, "--learn", 200)
    for number in range(2):
        rows = rows_of(report, number)
        assert rows["always"]["skipped"] == rows["always"]["loss"] == 0
        assert 0 <= rows["calibrated"]["skipped"] <= 1


@pytest.mark.slow
@pytest.mark.model
def test_load_is_offered_as_multiples_of_the_peak(corpus: Path, model_folder: Path) -> None:
    """Normal load, what was asked for, and the flood, beside writes; then the recovery, and a plot of it all."""
    report = bench(
        corpus, model_folder, "load", "--passages", 200, "--factor", 1, "--rate", 20, "--seconds", 1,
        "--flood", 3, "--flood-s", 1, "--writes", 5,
    )  # fmt: skip
    peak, rows, patience, (after,) = report["tables"].values()
    assert [row["callers"] for row in peak] == [8, 16, 32, 64]
    assert {0.5, 1, 3} <= {row["x peak"] for row in rows}
    assert 20 in {row["offered/s"] for row in rows}
    assert all(row["in time/s"] > 0 and row["cores"] > 0 and row["own MiB"] > 0 for row in rows)
    assert all(row["errors"] == row["no Retry-After"] == 0 for row in rows)
    assert sum(row["written/s"] for row in rows) > 0
    assert [row["patience s"] for row in patience] == [0.5, 1, 2]
    assert all(row["answered/s"] > 0 for row in patience)
    assert after["of"] > 0
    assert "answered in time" in max(corpus.parent.glob("bench-load-*.svg")).read_text()


@pytest.mark.slow
@pytest.mark.model
def test_caches_are_measured_beside_writes_and_in_redis(
    corpus: Path, model_folder: Path, tmp_path: Path
) -> None:
    """What was asked before is a hit, no hit is stale, and what another process left in Redis is found there."""
    report = bench(
        corpus, model_folder, "cache", "--passages", 1000, "--questions", 150, "--requests", 50, "--clients", 4,
        "--rounds", 1, "--alone", 20, "--redis-server", redis_binary(tmp_path),
    )  # fmt: skip
    rows, by_outcome, alone = report["tables"].values()
    found = {row["caches"]: row for row in rows}
    assert list(found)[:5] == ["caches off", "in process", "in process, writes", "Redis", "Redis, writes"]
    assert all(row["errors"] == row["stale"] == 0 and row["searches/s"] > 0 for row in rows)
    assert found["caches off"]["hit rate"] == 0
    assert 0.5 < found["in process"]["hit rate"] <= 1
    assert found["in process, writes"]["written/s"] > 0
    assert {row["outcome"] for row in by_outcome if row["caches"] == "caches off"} == {"bypass"}
    assert {row["outcome"] for row in alone if row["caches"] == "Redis"} >= {"hit, Redis", "hit, in process"}


@pytest.mark.torture
def test_a_store_is_measured(corpus: Path, model_folder: Path, memory_folder: Path) -> None:
    """It is part of the longer runs because it starts seven services."""
    report = bench(
        corpus,
        model_folder,
        "store",
        "--passages",
        1000,
        "--seconds",
        2,
        "--rounds",
        1,
        "--bucket",
        memory_folder,
    )
    assert report["settings"]["bucket"] == str(memory_folder)
    assert not list(memory_folder.iterdir())
    without, with_store = report["tables"]["Beside 500 documents a second"]
    assert without["x p99 search"] == without["x p99 write"] == 1
    assert with_store["search failed"] == with_store["write failed"] == 0
    assert report["tables"]["A replica"][0]["behind p100 s"] >= 0
    (new,) = report["tables"]["A new machine"]
    assert new["documents"] > 1000
    assert new["generation"] == 1
