"""What a service says while it starts, and how it is ended then."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from indexes.base.model import IndexOptions
from indexes.directory.catalog import Catalog
from tests.support.http import Http, Reply
from tests.support.vectors import World, fill, settings

PASSAGES = 6000


@contextmanager
def starting(tmp_path: Path) -> Iterator[tuple[Http, subprocess.Popen[bytes], Path]]:
    """A service that reads two collections back from their logs, which takes a second or so; and its log."""
    options = IndexOptions(delta_passages_max=2 * PASSAGES, segments_max=0)
    with closing(Catalog(tmp_path / "data", options)) as catalog:
        for name in ("first", "second"):
            fill(catalog.create(name, settings(language="en")), World(), range(PASSAGES), batch=1000)
    told = tmp_path / "log"
    command = [sys.executable, "-m", "jobs.cli", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    with told.open("wb") as log:
        child = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)
        try:
            while " starting on " not in told.read_text():
                assert child.poll() is None, told.read_text()
                time.sleep(0.01)
            yield Http(told.read_text().partition(" starting on ")[2].split()[0]), child, told
        finally:
            child.kill()
            child.wait()


def test_a_start_says_how_far_it_is(tmp_path: Path, model_folder: Path) -> None:
    """From the first moment it is alive and not ready, and everything else is refused with a time to come back; then
    it is ready, and the log has a line for each collection."""
    seen: list[dict[str, Any]] = []
    refused: Reply | None = None
    with starting(tmp_path) as (http, _, told):
        while (reply := http.call("GET", "/readyz")).status == 503:
            assert http.call("GET", "/healthz").status == 200
            if "starting" in reply.body:
                seen.append(reply.body["starting"])
                refused = refused or http.call("POST", "/v1/collections/first/search", {"query": "word1"})
            time.sleep(0.02)
        assert http.search("first", query="word1", mode="lexical")["hits"]
        log = told.read_text()
    assert refused is not None
    assert (refused.status, refused.headers["Retry-After"]) == (503, "2"), refused
    assert "not_ready" in str(refused.body)
    assert {"first", "second"} <= {one.get("name") for one in seen}, seen
    assert max(one.get("passages", 0) for one in seen) > 0
    assert [f"opened {name} in " in log for name in ("first", "second")] == [True, True]


@pytest.mark.slow
def test_a_signal_ends_a_start(tmp_path: Path) -> None:
    """At once and cleanly: exit status 0, and the next start finds nothing to mend."""
    with starting(tmp_path) as (http, child, told):
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0, told.read_text()
        assert "stopping before the start is complete" in told.read_text()
        assert "nearline listens" not in told.read_text()
        try:
            http.call("GET", "/healthz")
        except (URLError, ConnectionError):
            pass
        else:
            raise AssertionError("it still answers")
    with closing(Catalog(tmp_path / "data", IndexOptions())) as catalog:
        assert sorted(catalog.collections) == ["first", "second"]
