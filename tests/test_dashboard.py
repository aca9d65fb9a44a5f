"""The dashboard: every query of it returns something from a Prometheus that scrapes a service in use."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.serving.process import serving
from tests.support.http import Http
from tests.support.redis_server import free_port, redis_server

DASHBOARD = Path(__file__).parents[1] / "configs/grafana/nearline.json"
MONITORING = Path(__file__).parents[1] / "docs/monitoring.md"
PANELS = [one for one in json.loads(DASHBOARD.read_text())["panels"] if one["type"] != "row"]
QUERIES = [
    (one["title"], target["legendFormat"], target["expr"]) for one in PANELS for target in one["targets"]
]
# What a service in use has no numbers for.
EMPTY = {
    (
        "Recall of the last evaluation, lower bound",
        "{{collection}} {{cohort}}",
    ),  # from files of the evaluator
    ("Share of requests that fail", "5xx"),  # none did
    ("Refused and cut short", "refused"),  # nor was any refused
    ("Hit rate", "false ones of these"),  # one hit in a hundred is checked
}
SCRAPES = 8


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """The address of one that scrapes `target` each half second."""
    port = free_port()
    scrape = {"job_name": "nearline", "static_configs": [{"targets": [target]}]}
    config = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/series"]
    child = subprocess.Popen(
        ["prometheus", *options, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        child.wait()


def asked(url: str, query: str) -> list[Any]:
    parameters = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"{url}/api/v1/query?{parameters}", timeout=10) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[tuple[Http, str]]:
    """A service that is the only node of its cluster, and a Prometheus that has seen searches, writes and a rebuild."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed; Debian's package of this name has it")
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SEARCH_STRAINED_FROM": "1",
        "NEARLINE_CLUSTER_NODES": json.dumps({"a": [f"http://127.0.0.1:{port}"]}),
    }
    with contextlib.ExitStack() as stack:
        environ["NEARLINE_STORE_URL"] = (folder / "store").as_uri()
        environ["NEARLINE_REDIS_URL"] = stack.enter_context(redis_server(folder)).url
        service = Http(stack.enter_context(serving(folder / "data", environ, port=port)).url)
        url = stack.enter_context(prometheus(folder, service.url.removeprefix("http://")))
        service.ok("POST", "/v1/collections", {"name": "docs"})
        service.write("docs", *({"id": str(at), "text": f"Refunds within {at} days"} for at in range(50)))
        service.reindex("docs")
        use(service, url)
        yield service, url


def use(service: Http, url: str) -> None:
    """Until Prometheus has seen enough of it: it begins to scrape five seconds after its start."""
    deadline, at = time.monotonic() + 60, 0
    while (
        not (seen := asked(url, 'count_over_time(up{job="nearline"}[1m])'))
        or int(seen[0]["value"][1]) < SCRAPES
    ):
        assert time.monotonic() < deadline
        at += 1
        service.search("docs", query=f"refunds within {at // 2} days")
        searches = [{"query": f"days {at} {one}"} for one in range(3)]
        service.ok("POST", "/v1/collections/docs/search/batch", {"searches": searches})
        service.write("docs", {"id": "new", "text": f"Returns within {at} days"})


@pytest.mark.parametrize(("title", "legend", "query"), QUERIES)
def test_every_query_returns_something(
    scraped: tuple[Http, str], title: str, legend: str, query: str
) -> None:
    """With numbers, not with 0 by 0; and what is known to be empty is empty for its reason."""
    found = asked(scraped[1], query.replace("$__rate_interval", "4s").replace("$job", "nearline"))
    values = [float(one["value"][1]) for one in found]
    numbers = [
        value for value in values if not math.isnan(value)
    ]  # a route that was not used has no quantile
    assert bool(numbers) == ((title, legend) not in EMPTY), found


def test_the_documents_list_every_metric(scraped: tuple[Http, str]) -> None:
    """And none that is gone."""
    with urllib.request.urlopen(f"{scraped[0].url}/metrics", timeout=10) as answer:
        served = re.findall(r"^# HELP (\w+)", answer.read().decode(), re.MULTILINE)
    assert sorted(re.findall(r"^\| `(\w+)` \|", MONITORING.read_text(), re.MULTILINE)) == sorted(served)


def test_panels_do_not_overlap() -> None:
    """Grafana would move them; and each needs an id of its own."""
    boxes = [one["gridPos"] for one in json.loads(DASHBOARD.read_text())["panels"]]
    cells = [
        (x, y)
        for box in boxes
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(cells) == len({*cells})
    assert len({one["id"] for one in PANELS}) == len(PANELS)


def test_only_our_metrics_are_asked_for() -> None:
    """And those of the process."""
    for _, _, query in QUERIES:
        assert re.findall(r"\b(?:nearline|process)_\w+", query), query
