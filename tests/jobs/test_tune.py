"""`nearline tune` and its endpoint, as a user types it, against a real service and against a folder alone."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from indexes.base.errors import Locked, NotADataDirectory
from jobs.commands.tune import command, notes
from jobs.serving.process import ServerProcess, serving
from nearline import ServiceError
from retrieval.upkeep.query_log import Day, LoggedQuery, encode_file
from tests.support.http import Http

ROOT = Path(__file__).parents[2]
PLACES = ("harbour", "quarry", "orchard", "library", "glacier", "market", "lighthouse", "mill")
THINGS = ("lantern", "map", "violin", "ledger", "compass", "kettle", "loom", "anchor", "clock")
DOCUMENTS, HOT = 500, 150
pytestmark = pytest.mark.model


def text(number: int) -> str:
    rng = random.Random(number)
    first, second = rng.choice(THINGS), rng.choice(THINGS)
    return f"Entry {number}: the {first} and the {second} were left at the {rng.choice(PLACES)}."


def query(number: int) -> str:
    rng = random.Random(number)
    return f"where is the {rng.choice(THINGS)} of entry {number}?"


def tune(*arguments: object, **environ: str) -> Result:
    """The command in this process: to start Python each time would take longer than to tune."""
    return CliRunner().invoke(command, [str(one) for one in arguments], env=environ)


@pytest.fixture(scope="module")
def environ(model_folder: Path) -> dict[str, str]:
    return {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tune") / "data"


@pytest.fixture(scope="module")
def service(data: Path, environ: dict[str, str]) -> Iterator[ServerProcess]:
    with serving(data, environ) as server:
        yield server


@pytest.fixture(scope="module")
def collection(service: ServerProcess) -> str:
    """Some hundred passages in two tiers, rebuilt."""
    http = Http(service.url)
    name = http.new_collection(hot_capacity=HOT)
    http.write(name, *({"id": f"d{n}", "text": text(n)} for n in range(DOCUMENTS)))
    assert http.reindex(name)["status"] == "succeeded"
    return name


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("queries") / "queries.jsonl"
    path.write_text("".join(json.dumps({"id": f"q{n}", "text": query(n)}) + "\n" for n in range(120)))
    return path


def shown(http: Http, name: str) -> Any:
    return http.ok("GET", f"/v1/collections/{name}")


@pytest.mark.slow
def test_a_dry_run_reports_and_changes_nothing(
    service: ServerProcess, http: Http, collection: str, queries: Path
) -> None:
    """Both halves and the curve; the collection is as before."""
    before = shown(http, collection)
    ended = tune(
        *("--url", service.url, "-c", collection, "--recall-target", "0.95"),
        *("--queries", queries, "--dry-run", "--json"),
    )
    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.stdout)["result"]
    assert (result["met"], result["applied"]) == (True, False)
    assert (result["tuning"]["queries"], result["validation"]["queries"]) == (60, 60)
    assert result["tuning"]["recall"] >= 0.95
    assert result["curve"]
    assert result["cold_policy"]["state"] == "always"
    after = shown(http, collection)
    assert after["search"] == before["search"]
    assert after["recall_target"] == before["recall_target"] == 0.99


@pytest.mark.slow
def test_settings_are_applied_and_drawn(
    service: ServerProcess, http: Http, collection: str, queries: Path, tmp_path: Path
) -> None:
    """The tables say what more time buys; the service searches with the settings at once; the picture is an SVG."""
    picture = tmp_path / "curve.svg"
    arguments = ["--url", service.url, "-c", collection, "--recall-target", "0.97", "--queries", queries]
    have_plots = importlib.util.find_spec("matplotlib") is not None
    if have_plots:
        arguments += ["--plot", picture]
    ended = tune(*arguments)
    assert ended.exit_code == 0, ended.output
    told = " ".join(ended.stdout.split())
    assert "what more time buys" in told
    assert "in use now, and the target of every later rebuild" in told
    body = shown(http, collection)
    assert (body["recall_target"], body["search"]["tuned"]) == (0.97, True)
    assert f"ef {body['search']['ef']}, {body['search']['probes']} lists" in told
    assert len(http.found(collection, query=query(3), mode="dense", k=10, cache=False)) == 10
    if have_plots:
        assert ET.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.slow
def test_users_own_queries_tune(service: ServerProcess, collection: str, tmp_path: Path) -> None:
    """The log of queries that a service kept serves as well as a file of queries."""
    log = tmp_path / "queries.jsonl"
    kept = [LoggedQuery(1_700_000_000_000, query(number), None, None, None) for number in range(80)]
    log.write_bytes(encode_file("uid", {"2023-11-14": Day(80, kept)}, 1 << 20))
    arguments = ["--url", service.url, "-c", collection, "--recall-target", "0.95", "--dry-run", "--json"]
    ended = tune(*arguments, "--query-log", log)
    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.stdout)["result"]
    assert (result["held_out"], result["tuning"]["queries"] + result["validation"]["queries"]) == (False, 80)


def test_a_plot_without_matplotlib_is_refused_at_once(tmp_path: Path) -> None:
    """The message names the extra; no service is asked."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest)\n"
    )
    arguments = [
        "tune",
        "--url",
        "http://127.0.0.1:1",
        "-c",
        "docs",
        "--recall-target",
        "0.95",
        "--plot",
        "x.svg",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )
    assert ended.returncode == 1
    assert "pip install '.[report]'" in ended.stderr


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


@pytest.mark.slow
def test_an_empty_generation_is_refused_at_once(http: Http) -> None:
    """Built of nothing, or of what was deleted; a single passage can be tuned for queries of one's own."""
    name, queries = http.new_collection(), [f"query {at}" for at in range(30)]
    asked: list[dict[str, object]] = [{"recall_target": 0.95}, {"recall_target": 0.95, "queries": queries}]

    def refused() -> bool:
        http.reindex(name)
        replies = [http.call("POST", f"/v1/collections/{name}/tune", body) for body in asked]
        return all(one.status == 409 and "is empty" in one.body["error"]["message"] for one in replies)

    assert refused()
    http.write(name, {"id": "one", "text": "one note"})
    http.reindex(name)
    ended = [http.wait_for(http.ok("POST", f"/v1/collections/{name}/tune", body)["job"]) for body in asked]
    assert [one["status"] for one in ended] == ["failed", "succeeded"]
    assert "1 different queries are too few" in ended[0]["error"]
    http.ok("DELETE", f"/v1/collections/{name}/documents/one")
    assert refused()


@pytest.mark.slow
def test_one_job_at_a_time_for_a_collection(http: Http, collection: str) -> None:
    """A rebuild is refused while a tuning is under way, and says which it is."""
    job = http.ok("POST", f"/v1/collections/{collection}/tune", {"recall_target": 0.95, "apply": False})[
        "job"
    ]
    reply = http.call("POST", f"/v1/collections/{collection}/reindex", {})
    assert reply.status == 409
    error = reply.body["error"]
    assert error["message"] == f"a tune of '{collection}' is under way: job {job}"
    assert (error["type"], error["job"]) == ("conflict", job)
    rollback = http.call("POST", f"/v1/collections/{collection}/rollback", {})
    assert (rollback.status, rollback.body["error"]["job"]) == (409, job)
    ended = http.wait_for(job)
    assert (ended["kind"], ended["status"]) == ("tune", "succeeded")
    assert ended["result"]["held_out"]
    [note] = [line for line in notes(ended["result"]) if "stored vectors" in line]
    assert f"as low as {ended['result']['validation']['low']:.4f}" in note


@pytest.mark.slow
def test_without_a_service(
    service: ServerProcess,
    collection: str,
    data: Path,
    environ: dict[str, str],
    queries: Path,
    tmp_path: Path,
) -> None:
    """A folder that nobody serves is tuned in place; the next service uses the outcome."""
    arguments = ["-c", collection, "--recall-target", "0.96", "--queries", queries, "--json"]
    refused = tune("--data", data, *arguments, **environ)
    assert refused.exit_code == 1
    assert isinstance(refused.exception, Locked)
    assert "in use by another nearline process" in refused.exception.message
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    ended = tune("--data", folder, *arguments, **environ)
    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.stdout)["result"]
    assert (result["applied"], result["held_out"]) == (True, False)
    with serving(folder, environ) as server:
        body = shown(Http(server.url), collection)
    assert (body["recall_target"], body["search"]["tuned"]) == (0.96, True)
    assert body["search"]["ef"] == result["ef"]


def test_a_name_is_not_a_path(service: ServerProcess) -> None:
    """A name with a slash is a collection that does not exist, and is told so."""
    ended = tune("--url", service.url, "-c", "no/such", "--recall-target", "0.95")
    assert isinstance(ended.exception, ServiceError)
    assert (ended.exception.status, "no collection 'no/such'" in ended.exception.message) == (404, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "x"], "--config needs --data"),
        (["--queries", "x", "--query-log", "y"], "exclude each other"),
    ],
)
def test_options_that_need_others(arguments: list[str], words: str) -> None:
    """A wrong call says what is missing."""
    ended = tune("-c", "docs", "--recall-target", "0.95", *arguments)
    assert ended.exit_code == 2
    assert words in " ".join(ended.stderr.split())


def test_no_folder_is_made(tmp_path: Path) -> None:
    """A typing error in `--data` is told, and does not become a data directory."""
    ended = tune("--data", tmp_path / "nowhere", "-c", "docs", "--recall-target", "0.95")
    assert isinstance(ended.exception, NotADataDirectory)
    assert "is not a nearline data directory" in ended.exception.message
    assert not (tmp_path / "nowhere").exists()
