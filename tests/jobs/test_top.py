"""nearline top, on a service in use."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.commands.top import Scrape, quantile_ms
from jobs.serving.process import serving
from tests.support.http import Http

TOP = [sys.executable, "-m", "jobs.cli", "top"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Http]:
    """Searched all the time."""
    ended = threading.Event()
    with serving(
        tmp_path_factory.mktemp("top") / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    ) as server:
        service = Http(server.url)
        service.ok("POST", "/v1/collections", {"name": "docs"})
        service.write("docs", *({"id": str(at), "text": f"Refunds within {at} days"} for at in range(20)))
        service.reindex("docs")

        def search() -> None:
            while not ended.wait(0.02):
                service.search("docs", query=f"refunds {time.monotonic()}")

        thread = threading.Thread(target=search)
        thread.start()
        yield service
        ended.set()
        thread.join()


def test_one_reading(service: Http) -> None:
    """As JSON: what happened in between, and what there is."""
    done = subprocess.run(
        [*TOP, "--url", service.url, "--once", "--json"], capture_output=True, check=True, timeout=60
    )
    found = json.loads(done.stdout)
    assert found["searches_per_s"] > 5
    assert found["requests_per_s"] >= found["searches_per_s"]
    assert (found["refused_per_s"], found["failed_per_s"], found["hit_rate"], found["redis"]) == (
        0,
        0,
        0,
        None,
    )
    assert 0 < found["p50_ms"]["total"] <= found["p99_ms"]["total"]
    assert 0 < found["memory_bytes"] < found["memory_bytes_max"]
    [docs] = found["collections"]
    assert (docs["name"], docs["hot"] + docs["cold"] + docs["other"], docs["generation"]) == ("docs", 20, 1)


def test_in_a_terminal(service: Http) -> None:
    """It fills the screen again and again, and Ctrl-C ends it without a word."""
    ours, its = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    child = subprocess.Popen(
        [*TOP, "--url", service.url, "--every-s", "0.2"],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environ,
        start_new_session=True,
    )
    os.close(its)
    seen = b""
    try:
        while seen.count(b"searches") < 3:
            seen += os.read(ours, 65536)
        assert b"cache hits" in seen
        assert b"docs" in seen
        child.send_signal(2)
        assert child.wait(timeout=20) == 0
    finally:
        child.kill()
        os.close(ours)
    assert b"Traceback" not in seen


def test_a_service_that_is_away() -> None:
    """Ends with the reason."""
    done = subprocess.run(
        [*TOP, "--url", "http://127.0.0.1:9", "--once"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_quantiles() -> None:
    """Of what was observed between the readings, evenly spread within a bucket."""
    name = "nearline_search_stage_seconds_bucket"

    def scrape(*counts: float) -> Scrape:
        edges = ("0.01", "0.02", "+Inf")
        of = [({"stage": "total", "le": edge}, count) for edge, count in zip(edges, counts, strict=True)]
        return Scrape(0, {name: of})

    before = scrape(5, 5, 5)
    assert quantile_ms(before, before, 0.5, stage="total") is None
    assert quantile_ms(before, scrape(15, 15, 15), 0.5, stage="total") == pytest.approx(5)
    assert quantile_ms(before, scrape(5, 15, 15), 0.99, stage="total") == pytest.approx(19.9)
    assert quantile_ms(before, scrape(5, 5, 15), 0.5, stage="total") == pytest.approx(20)
