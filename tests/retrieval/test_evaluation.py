"""The last evaluation of a collection, as the service keeps it for its page."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from jobs.commands.evaluate import command
from retrieval.handlers.evaluation import BYTES_MAX
from tests.support.http import Http

REPORT = {"version": 2, "cohorts": [{"name": "überall", "recall": 0.98}], "large": 10**30}


def test_the_last_report_is_kept(http: Http) -> None:
    """As it was sent, in place of the one before; before the first there is none."""
    path = f"/v1/collections/{http.new_collection()}/evaluation"
    missing = http.call("GET", path)
    assert (missing.status, missing.body["error"]["type"]) == (404, "not_found")
    http.ok("PUT", path, {"report": {"version": 1}})
    kept = http.ok("PUT", path, {"report": REPORT})
    assert kept["report"] == REPORT
    assert http.ok("GET", path) == kept


def test_what_is_no_report_is_refused(http: Http) -> None:
    """Naming the field; the report before stays."""
    path = f"/v1/collections/{http.new_collection()}/evaluation"
    http.ok("PUT", path, {"report": REPORT})
    large = {"report": {"text": "x" * BYTES_MAX}}
    for body, status in (({}, 422), ({"report": []}, 422), ({"report": None}, 422), (large, 413)):
        reply = http.call("PUT", path, body)
        assert (reply.status, reply.body["error"]["param"]) == (status, "report"), reply
    assert http.ok("GET", path)["report"] == REPORT


def test_erasing_forgets_it(http: Http) -> None:
    """A report names values of metadata, some perhaps of documents that were deleted."""
    name = http.new_collection()
    path = f"/v1/collections/{name}/evaluation"
    http.ok("PUT", path, {"report": REPORT})
    assert http.wait_for(http.ok("POST", f"/v1/collections/{name}/erase", {})["job"])["status"] == "succeeded"
    assert http.call("GET", path).status == 404


def test_evaluate_publishes_its_report(http: Http) -> None:
    """`nearline evaluate --publish` sends what `--json` prints."""
    name = http.new_collection()
    http.write(name, *({"id": f"d{at}", "text": f"document number {at}"} for at in range(30)))
    run = CliRunner().invoke(
        command, ["--url", http.url, "-c", name, "--publish", "--json", "--rate", "1000"]
    )
    assert run.exit_code == 0, run.output
    kept = http.ok("GET", f"/v1/collections/{name}/evaluation")["report"]
    assert kept == json.loads(run.output)
    assert kept["cohorts"]


def test_publishing_needs_a_service(tmp_path: Path) -> None:
    """`--data` evaluates without one."""
    run = CliRunner().invoke(command, ["--data", str(tmp_path), "-c", "docs", "--publish"])
    assert run.exit_code == 2
    assert "--publish" in run.output
