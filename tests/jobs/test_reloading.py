"""SIGHUP and what a running service makes of its configuration then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.http import Http

PATIENCE_S = 20.0


@pytest.mark.slow
def test_sighup_takes_over_what_can_change(tmp_path: Path, model_folder: Path) -> None:
    """Limits, defaults, admission, origins and the log follow at once; others are named; an error changes nothing,
    and a file that cannot be read holds nothing up, not even the end."""
    settings, told = tmp_path / "nearline.toml", tmp_path / "log"
    settings.write_text("[search]\nk = 2\n")
    command = [sys.executable, "-m", "jobs.cli", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    environ = {**os.environ, "NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with (
        told.open("wb") as log,
        subprocess.Popen(
            [*command, "--config", str(settings)], stdout=subprocess.PIPE, stderr=log, env=environ, text=True
        ) as child,
    ):
        try:
            assert child.stdout is not None
            http = Http(next(line for line in child.stdout).split()[-1])
            http.ok("POST", "/v1/collections", {"name": "docs"})
            http.write("docs", *({"id": str(at), "text": f"apple number {at}"} for at in range(5)))
            assert len(http.search("docs", query="apple")["hits"]) == 2

            def reload(text: str, done: Callable[[], bool]) -> None:
                settings.write_text(text)
                child.send_signal(signal.SIGHUP)
                until = time.monotonic() + PATIENCE_S
                while not done():
                    assert time.monotonic() < until, told.read_text()
                    time.sleep(0.02)

            changed = (
                '[search]\nk = 4\n[limits]\nk_max = 60\n[server]\ncors_origins = ["https://a.example"]\nport = 1\n'
                'connections_max = 9\n[log]\nformat = "json"\n[admission]\nsearches_max = 1\n'
            )
            reload(changed, lambda: "need a restart: server.connections_max" in told.read_text())
            assert len(http.search("docs", query="apple")["hits"]) == 4
            assert http.call("POST", "/v1/collections/docs/search", {"query": "apple", "k": 61}).status == 422
            reply = http.call("GET", "/healthz", headers={"Origin": "https://a.example"})
            assert reply.headers["Access-Control-Allow-Origin"] == "https://a.example"
            assert '"message": "the configuration was read again' in told.read_text()
            for wrong, named in [("[limits]\nk_max = 0\n", "k_max"), ("[limits\n", "not valid TOML")]:
                reload(wrong, lambda named=named: f"{named}" in told.read_text().partition("in error")[2])  # type: ignore[misc]
                assert len(http.search("docs", query="apple")["hits"]) == 4
            settings.unlink()
            os.mkfifo(settings)
            child.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            assert len(http.search("docs", query="apple")["hits"]) == 4
        finally:
            child.terminate()
        assert child.wait(PATIENCE_S) == 0
