"""What an upgrade leaves to be rebuilt is rebuilt by the service, while nobody writes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jobs.serving.process import log_of, serving
from tests.support.commands import nearline
from tests.support.http import Http
from tests.support.manifests import change_manifests

NAMES = ("analysed", "formatted", "present")
DOCUMENTS = [{"id": f"d{number}", "text": f"Boat number {number} floats."} for number in range(40)]


@pytest.fixture
def environ(model_folder: Path) -> Mapping[str, str]:
    return {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}


@pytest.fixture
def upgraded(tmp_path: Path, environ: Mapping[str, str]) -> Path:
    """Three collections with a generation each: one of another analysis, one of another format, one as it should be."""
    data = tmp_path / "data"
    with serving(data, environ) as server:
        http = Http(server.url)
        for name in NAMES:
            http.ok("POST", "/v1/collections", {"name": name, "hot_capacity": 10})
            http.write(name, *DOCUMENTS)
            assert http.reindex(name)["status"] == "succeeded"
    change_manifests(data / "analysed", analysis="snowball-english-0")
    change_manifests(data / "formatted", format=2)
    return data


@pytest.mark.slow
def test_an_idle_service_rebuilds_one_after_the_other(upgraded: Path, environ: Mapping[str, str]) -> None:
    """It answers from the start, nobody writes, and what is of use already is left alone."""
    with serving(upgraded, environ) as server:
        http = Http(server.url)
        before = listing(http)
        assert before["present"]["rebuild_due"] is None
        reasons = [before[name]["rebuild_due"]["reason"] for name in NAMES[:2]]
        for name in NAMES:
            assert http.found(name, query="boat number 7", k=1, mode="lexical") == ["d7"]
        assert [reason.partition(": ")[0] for reason in reasons] == ["generation 1 could not be used"] * 2
        assert "text analysis snowball-english-0" in reasons[0]
        assert "manifest.json: format 2; this version reads 1" in reasons[1]
        assert str(upgraded.parent) not in reasons[1]
        awaited(lambda: not any(one["rebuild_due"] for one in listing(http).values()))
        generations = {name: one["generation"] for name, one in listing(http).items()}
        assert generations == {"analysed": 2, "formatted": 2, "present": 1}
        second, first = http.ok("GET", "/v1/jobs")["jobs"]
        assert first["finished_ms"] <= second["created_ms"]
        for name in NAMES:
            assert http.found(name, query="boat number 7", k=1, mode="lexical") == ["d7"]
            assert http.search(name, query="boat number 7")["receipt"]["tiers"]
    with serving(upgraded, environ) as server:
        assert not any(one["rebuild_due"] for one in listing(Http(server.url)).values())


@pytest.mark.slow
def test_after_a_failure_it_waits_and_says_so(upgraded: Path, environ: Mapping[str, str]) -> None:
    """The listing, the command line, the metrics and the log tell it; searches go on, and the others are rebuilt."""
    with serving(upgraded, {**environ, "NEARLINE_FAILPOINT": "build.placed=kill"}) as server:
        http = Http(server.url)
        awaited(
            lambda: all(one["rebuild_due"]["error"] for one in listing(http).values() if one["rebuild_due"])
        )
        due = listing(http)["analysed"]["rebuild_due"]
        assert (due["failed_attempts"], due["error"]) == (
            1,
            "build of generation 2 failed: signal 9 ended it",
        )
        assert 0 < due["next_ms"] - time.time() * 1000 <= 60_000
        assert len(http.ok("GET", "/v1/jobs")["jobs"]) == 2
        assert http.metric("nearline_rebuild_due") == 2
        assert http.metric("nearline_rebuild_due", collection="present") == 0
        assert http.found("analysed", query="boat number 7", k=1) == ["d7"]
        shown = nearline("collections", "show", "analysed", "--url", server.url)
        assert "Failed attempts: 1" in " ".join(shown.stdout.replace("│", " ").split())
        listed = nearline("collections", "list", "--url", server.url)
        assert "analysed needs a rebuild" in listed.stderr
        assert "present" not in listed.stderr
    assert log_of(upgraded).read_text().count("rebuilding analysed automatically") == 1


def listing(http: Http) -> dict[str, Any]:
    return {one["name"]: one for one in http.ok("GET", "/v1/collections")["collections"]}


def awaited(condition: Any, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)
