"""The scripts of configs/load, run as users do, against a service that wants a key.

k6 is in no package index that CI uses: its script runs in Node, on a stand-in for k6's modules which sends its requests
for real. Locust is used where it is installed.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.serving.process import ServerProcess, serving
from retrieval.access.auth import Keys
from retrieval.access.key_file import Key
from tests.support.http import Http

SCRIPTS = Path(__file__).parents[2] / "configs" / "load"
LOCUST = os.environ.get("LOCUST") or shutil.which("locust")
K6 = Path(__file__).parents[1] / "support" / "k6.mjs"


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path
) -> Iterator[tuple[ServerProcess, str]]:
    """A service with a collection `docs`, and a key that may search and write there."""
    folder = tmp_path_factory.mktemp("guarded")
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with serving(folder / "data", environ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        http.write("docs", {"id": "1", "text": "A refund is paid within fourteen days."})
    _, key = Keys(folder / "data").create(Key(id="", sha256="", scopes=["search", "write"], created_ms=0))
    with serving(folder / "data", environ) as server:
        yield server, key


def k6(folder: Path, **values: object) -> dict[str, Any]:
    """What came of each scenario, run once."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("k6's script needs Node here, which is not installed")
    shutil.copy(K6, folder)
    script = folder / "script.mjs"
    script.write_text(re.sub(r"from 'k6[/a-z]*'", "from './k6.mjs'", (SCRIPTS / "k6.js").read_text()))
    given = [f"{name}={value}" for name, value in values.items()]
    ended = subprocess.run(
        [node, str(folder / "k6.mjs"), str(script), *given], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.slow
def test_k6_checks_the_answers_of_searches_contexts_and_writes(
    guarded: tuple[ServerProcess, str], tmp_path: Path
) -> None:
    """All are answered with 200 and the stages that belong to them; arrivals are at a fixed rate."""
    server, key = guarded
    (tmp_path / "questions.txt").write_text("when is a refund paid\n")
    found = k6(tmp_path, URL=server.url, KEY=key, WRITES=0.5, QUERIES=tmp_path / "questions.txt")
    assert found["statuses"] == [200, 200, 200]
    assert set(found["checks"]) == {"answered with 200", "Server-Timing has the stages"}
    assert all(all(held) for held in found["checks"].values())
    assert {"stage_embed", "stage_dense", "stage_lexical", "stage_total"} <= set(found["metrics"])
    assert found["scenarios"]["write"]["rate"] == 30
    assert found["scenarios"]["write"]["timeUnit"] == "60s"


def test_k6_fails_where_the_key_is_wrong(guarded: tuple[ServerProcess, str], tmp_path: Path) -> None:
    """A check says so; an answer without stages fails another."""
    found = k6(tmp_path, URL=guarded[0].url, KEY="nl_none", CONTEXTS=0)
    assert found["statuses"] == [401]
    assert found["checks"] == {"answered with 200": [False], "Server-Timing has the stages": [False]}


@pytest.mark.skipif(LOCUST is None, reason="Locust is not installed; LOCUST may name its command")
def test_locust_checks_the_answers_of_searches_contexts_and_writes(
    guarded: tuple[ServerProcess, str], tmp_path: Path
) -> None:
    """No request fails, and the stages of searches have rows of their own."""
    server, key = guarded
    options = f"--headless --users 4 --spawn-rate 4 --run-time 3s --csv {tmp_path / 'found'} --only-summary"
    environ = {
        "NEARLINE_COLLECTION": "docs",
        "NEARLINE_KEY": key,
        "NEARLINE_RATE": "20",
        "NEARLINE_WRITES": "1",
    }
    ended = subprocess.run(
        [str(LOCUST), "-f", str(SCRIPTS / "locustfile.py"), "--host", server.url, *options.split()],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environ},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    with (tmp_path / "found_stats.csv").open() as file:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
    assert {("POST", "search"), ("POST", "context"), ("POST", "write"), ("stage", "search, dense")} <= set(
        rows
    )
    assert all(row["Failure Count"] == "0" for row in rows.values())
