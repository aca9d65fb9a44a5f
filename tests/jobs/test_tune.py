"""`nearline tune` and its endpoint, as a user types it, against a real service and against a folder alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from jobs.server_process import ServerProcess, serving
from tests.support.http import Http

ROOT = Path(__file__).parents[2]
PLACES = ("harbour", "quarry", "orchard", "library", "glacier", "market", "lighthouse", "mill")
THINGS = ("lantern", "map", "violin", "ledger", "compass", "kettle", "loom", "anchor", "clock")
DOCUMENTS = 700
pytestmark = pytest.mark.model


def text(number: int) -> str:
    rng = random.Random(number)
    first, second = rng.choice(THINGS), rng.choice(THINGS)
    return f"Entry {number}: the {first} and the {second} were left at the {rng.choice(PLACES)}."


def query(number: int) -> str:
    rng = random.Random(number)
    return f"where is the {rng.choice(THINGS)} of entry {number}?"


def nearline(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=240,
        env={**os.environ, "COLUMNS": "160", "PYTHONPATH": str(ROOT), **environ},
    )


def fill(http: Http, name: str) -> None:
    for at in range(0, DOCUMENTS, 350):
        http.write(name, *({"id": f"d{n}", "text": text(n)} for n in range(at, at + 350)))
    assert http.reindex(name)["status"] == "succeeded"


@pytest.fixture(scope="module")
def collection(service: ServerProcess) -> str:
    """Some hundred passages in two tiers, rebuilt."""
    http = Http(service.url)
    name = http.new_collection(hot_capacity=300)
    fill(http, name)
    return name


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("queries") / "queries.jsonl"
    path.write_text("".join(json.dumps({"id": f"q{n}", "text": query(n)}) + "\n" for n in range(120)))
    return path


def shown(http: Http, name: str) -> Any:
    return http.ok("GET", f"/v1/collections/{name}")


def test_a_dry_run_reports_and_changes_nothing(
    service: ServerProcess, http: Http, collection: str, queries: Path, tmp_path: Path
) -> None:
    """Both halves, the curve, the weights that judgements suggest; the collection is as before."""
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("".join(f"q{n}\td{n}\t1\n" for n in range(120)))
    before = shown(http, collection)
    ended = nearline(
        *("tune", "--url", service.url, "-c", collection, "--recall-target", "0.95"),
        *("--queries", queries, "--qrels", qrels, "--dry-run", "--json"),
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    result, fusion = report["result"], report["fusion"]
    assert (result["met"], result["applied"]) == (True, False)
    assert (result["tuning"]["queries"], result["validation"]["queries"]) == (60, 60)
    assert result["tuning"]["recall"] >= 0.95
    assert result["curve"]
    assert result["cold_policy"]["state"] in {"learning", "skipping"}
    assert [one["weight_dense"] for one in fusion["grid"]] == [at / 10 for at in range(11)]
    assert fusion["ndcg@10"]["tuning"] == max(one["ndcg@10"] for one in fusion["grid"]) > 0
    assert fusion["queries"] == {"tuning": 60, "validation": 60}
    after = shown(http, collection)
    assert after["search"] == before["search"]
    assert after["recall_target"] == before["recall_target"] == 0.99


def test_settings_are_applied_and_drawn(
    service: ServerProcess, http: Http, collection: str, queries: Path, tmp_path: Path
) -> None:
    """The tables say what more time buys; the service searches with the settings at once; the picture is an SVG."""
    picture = tmp_path / "curve.svg"
    arguments = [
        "tune",
        "--url",
        service.url,
        "-c",
        collection,
        "--recall-target",
        "0.97",
        "--queries",
        queries,
    ]
    have_plots = subprocess.run([sys.executable, "-c", "import matplotlib"], check=False, capture_output=True)
    if have_plots.returncode == 0:
        arguments += ["--plot", picture]
    ended = nearline(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert "what more time buys" in ended.stdout
    assert "in use now, and the target of every later rebuild" in ended.stdout
    body = shown(http, collection)
    assert (body["recall_target"], body["search"]["tuned"]) == (0.97, True)
    assert f"ef {body['search']['ef']}, {body['search']['probes']} lists" in ended.stdout
    assert len(http.found(collection, query=query(3), mode="dense", k=10, cache=False)) == 10
    if have_plots.returncode == 0:
        assert ET.parse(picture).getroot().tag.endswith("svg")


def test_a_plot_without_matplotlib_is_refused_at_once(collection: str, tmp_path: Path) -> None:
    """The message names the extra; no service is asked."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest)\n"
    )
    ended = nearline(
        *(
            "tune",
            "--url",
            "http://127.0.0.1:1",
            "-c",
            collection,
            "--recall-target",
            "0.95",
            "--plot",
            "x.svg",
        ),
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]),
    )
    assert ended.returncode == 1
    assert "nearline[" in ended.stderr


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 422, "recall_target"),
        ({"recall_target": 0}, 422, "recall_target"),
        ({"recall_target": 1.5}, 422, "recall_target"),
        ({"recall_target": 0.5}, 422, "recall_target"),
        ({"recall_target": 0.95, "queries": ["only one"] * 50}, 422, "queries"),
        ({"recall_target": 0.95, "queries": [f"q{n}" for n in range(10_001)]}, 413, "queries"),
        ({"recall_target": 0.95, "queries": [f"q{n}" for n in range(30)] + ["x" * 9000]}, 413, "queries"),
        ({"recall_target": 0.95, "aply": True}, 422, "aply"),
    ],
)
def test_bad_requests_name_the_field(
    http: Http, collection: str, body: dict[str, Any], status: int, param: str
) -> None:
    """No job is started for what cannot be done."""
    reply = http.call("POST", f"/v1/collections/{collection}/tune", body)
    assert (reply.status, reply.body["error"]["param"]) == (status, param)


def test_without_a_generation_there_is_nothing_to_tune(http: Http) -> None:
    """409, with the way out."""
    name = http.new_collection()
    reply = http.call("POST", f"/v1/collections/{name}/tune", {"recall_target": 0.95})
    assert reply.status == 409
    assert "nearline reindex" in reply.body["error"]["message"]


def test_one_job_at_a_time_for_a_collection(http: Http, collection: str) -> None:
    """A rebuild is refused while a tuning is under way, and says which it is."""
    job = http.ok("POST", f"/v1/collections/{collection}/tune", {"recall_target": 0.95, "apply": False})[
        "job"
    ]
    reply = http.call("POST", f"/v1/collections/{collection}/reindex", {})
    assert reply.status == 409
    assert f"a tune of '{collection}' is under way" in reply.body["error"]["message"]
    ended = http.wait_for(job)
    assert (ended["kind"], ended["status"]) == ("tune", "succeeded")
    assert ended["result"]["held_out"]


@pytest.fixture
def data(tmp_path: Path, model_folder: Path) -> tuple[Path, dict[str, str]]:
    """A data directory that was served once and is not now, and the environment that names the model."""
    folder, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with serving(folder, environ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs", "hot_capacity": 300})
        fill(http, "docs")
        refused = nearline("tune", "--data", folder, "-c", "docs", "--recall-target", "0.95", **environ)
        assert refused.returncode == 1
        assert "in use by another nearline process" in refused.stderr
    return folder, environ


def test_without_a_service(data: tuple[Path, dict[str, str]], queries: Path) -> None:
    """A folder that nobody serves is tuned in place, by texts embedded here; the next service uses the outcome."""
    folder, environ = data
    arguments = [
        "tune",
        "--data",
        folder,
        "-c",
        "docs",
        "--recall-target",
        "0.96",
        "--queries",
        queries,
        "--json",
    ]
    ended = nearline(*arguments, **environ)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)["result"]
    assert (result["applied"], result["held_out"]) == (True, False)
    with serving(folder, environ) as server:
        body = shown(Http(server.url), "docs")
    assert (body["recall_target"], body["search"]["tuned"], body["search"]["ef"]) == (
        0.96,
        True,
        result["ef"],
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--qrels", "x"], "--qrels needs --queries"),
        (["--config", "x"], "--config needs --data"),
        (["--data", "nowhere"], "is no nearline data directory"),
    ],
)
def test_options_that_need_others(arguments: list[str], words: str) -> None:
    """A wrong call says what is missing, and makes no folder."""
    ended = nearline("tune", "-c", "docs", "--recall-target", "0.95", *arguments)
    assert ended.returncode in {1, 2}
    assert words in " ".join(ended.stderr.split())
    assert not (ROOT / "nowhere").exists()
