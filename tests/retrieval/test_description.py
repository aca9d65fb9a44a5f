"""The service keeps to its description, whatever the description allows: schemathesis reads one and tries the other.

It does so with all of its checks (but for the findings that schemathesis.toml answers), in `make suites` too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from indexes.directory.marker import prepare
from jobs.serving.process import log_of, serving
from retrieval.access.auth import Keys
from retrieval.base.settings import Config
from retrieval.context.llm import EVENT_STREAM
from retrieval.handlers.state import API
from retrieval.server import routes
from retrieval.server.app import create_app
from retrieval.server.examples import make_examples
from retrieval.server.openapi import describe
from retrieval.server.routes import ROUTES
from retrieval.wire import (
    collections as collection_schemas,
)
from retrieval.wire import (
    documents as document_schemas,
)
from retrieval.wire import (
    errors,
)
from retrieval.wire import (
    search as schemas,
)
from tests.support.guarded import Caller, key
from tests.support.http import Http

pytest.importorskip("schemathesis", reason="schemathesis is not installed; the extra test has it")

SUPPORT = Path(__file__).parent.parent / "support"
CONFIG, HOOKS = SUPPORT / "schemathesis.toml", SUPPORT / "schemathesis_hooks.py"
BY_ITSELF = ("--phases", "examples,coverage,fuzzing")
IN_TURN = ("--phases", "stateful")  # along the links


@pytest.fixture
def tried(tmp_path: Path, rerank_environ: dict[str, str]) -> Iterator[Caller]:
    """A service of its own, with keys: many collections are made, and none of its log may be a traceback."""
    data = tmp_path / "data"
    prepare(data)
    _, token = Keys(data).create(key("admin", "vectors"))
    with serving(data, rerank_environ) as server:
        yield Caller(server.url, token)
        assert Http(server.url).ok("GET", "/healthz") == {"status": "ok"}
    # aiohttp's own is about the NUL byte in a header that schemathesis begins with.
    assert log_of(data).read_text().count("Traceback") <= 1


def try_all(caller: Caller, folder: Path, *options: str) -> None:
    """Raises AssertionError with what schemathesis has found."""
    command = [sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", str(CONFIG), "run"]
    where = [
        f"{caller.url}/openapi.json",
        "--header",
        f"Authorization: Bearer {caller.token}",
        "--continue-on-failure",
        "--request-timeout",
        "30",
    ]
    run = subprocess.run(
        [*command, *where, *options],
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    tried = len(ROUTES) - 1  # all but the description, which it reads
    left_out = sum(route.media == EVENT_STREAM or route.path.endswith("/hold") for route in ROUTES)
    assert f" {tried - left_out} selected / {tried} total" in run.stdout, run.stdout


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            (*BY_ITSELF, "-n", "5", "--generation-deterministic"), marks=pytest.mark.slow, id="by itself"
        ),
        pytest.param((*IN_TURN, "--seed", "0", "--max-time", "10"), id="in turn"),
    ],
)
def test_every_operation_keeps_to_its_description(
    tried: Caller, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """No operation fails, or answers with a status, a content type or a body that is not described."""
    try_all(tried, tmp_path, *options)


@pytest.mark.torture
@pytest.mark.parametrize(
    "options", [(*BY_ITSELF, "-n", "500"), (*IN_TURN, "--max-time", "240")], ids=["by itself", "in turn"]
)
@pytest.mark.timeout(3600)
def test_every_operation_for_long(tried: Caller, tmp_path: Path, options: tuple[str, ...]) -> None:
    """The same with other requests each time; schemathesis prints the seed of a run that fails."""
    try_all(tried, tmp_path, *options)


def test_it_is_made_once_and_only_if_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making it would be an eighth of a start."""
    made = Mock(wraps=describe)
    monkeypatch.setattr(routes, "describe", made)
    app = create_app(Config(), tmp_path / "data")
    assert not made.called
    assert app[API]() is app[API]()
    assert made.call_count == 1


def test_links_lead_everywhere() -> None:
    """Each operation whose path has parameters can be reached from one that gives them all."""
    paths = describe(ROUTES, make_examples("m"))["paths"]
    operations = [one for methods in paths.values() for one in methods.values()]
    targets = {
        link["operationId"]
        for one in operations
        for answer in one["responses"].values()
        for link in answer.get("links", {}).values()
    }
    assert targets == {
        one["operationId"] for one in operations if any(place["in"] == "path" for place in one["parameters"])
    }


def test_every_field_says_what_it_means() -> None:
    """Each field of our own wire types has a description."""
    components = describe(ROUTES, make_examples("m"))["components"]["schemas"]
    kinds = {**vars(schemas), **vars(document_schemas), **vars(collection_schemas), **vars(errors)}
    ours = {
        name for name in kinds.keys() & components.keys() if kinds[name].__module__.startswith("retrieval.")
    }
    undescribed = {
        f"{name}.{field}"
        for name in ours
        for field, described in components[name].get("properties", {}).items()
        if "description" not in described
    }
    assert len(ours) > 30
    assert not undescribed


def test_no_two_types_have_one_name() -> None:
    """A type is described by its own name; two of one name would be told apart by the modules they are in."""
    assert [
        name for name in describe(ROUTES, make_examples("m"))["components"]["schemas"] if not name.isalnum()
    ] == []
