"""The commands against a server of another kind, which answers everything with status 200, or leads elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from jobs.cli import cli
from retrieval.clients.expected import explain_foreign, field_of
from retrieval.server.openapi import Route
from retrieval.server.routes import ROUTES
from tests.support.commands import nearline
from tests.support.stub import Reply, Stub
from tests.support.wire_types import fields_of

WITHIN_S = 60
ANSWERS = {
    "object": Reply({"status": "ok"}),
    "list": Reply([]),
    "page": Reply(b"<!doctype html>\n<title>Welcome</title>\n", headers={"Content-Type": "text/html"}),
    "nesting": Reply(b"[" * 200_000),
    "redirect": Reply(b"", 302, {"Location": "/login"}),
}
# {0} is a folder with a document, queries, and judgments of them.
COMMANDS = [
    "ingest -c docs {0}/docs",
    "ingest -c docs {0}/docs --create",
    "ingest -c docs {0}/docs --sync --state {0}/state",
    "search -c docs soup",
    "search -c docs soup --json",
    "search -c docs -c notes soup",
    "explain -c docs --document a soup",
    "explain -c docs --document a soup --json",
    "collections create docs",
    "collections delete docs --yes",
    "collections list",
    "collections list --json",
    "collections rename docs notes",
    "collections rollback docs",
    "collections show docs",
    "collections show docs --json",
    "reindex -c docs",
    "erase -c docs",
    "erase --all",
    "tune -c docs --recall-target 0.9",
    "learn -c docs",
    "learn -c docs --queries {0}/queries.jsonl --qrels {0}/qrels.tsv",
    "learn -c docs --reset",
    "reembed --from docs --into notes --model m",
    "evaluate -c docs",
    "evaluate -c docs --queries {0}/queries.jsonl --qrels {0}/qrels.tsv",
    "train-reranker --judged docs {0}/queries.jsonl {0}/qrels.tsv --out {0}/reranker",
    "top --once",
    "top --once --json",
    "cluster",
    "cluster --json",
    "cluster status",
    "cluster balance",
    "cluster move docs~1of2 b",
]
NOT_HERE = ["mcp"]  # which tells the callers of its tools what is wrong


def commands_with_url(command: click.Command, name: str = "") -> Iterator[str]:
    if any("--url" in one.opts for one in command.params):
        yield name
    if isinstance(command, click.Group):
        context = click.Context(command)
        for one in command.list_commands(context):
            found = command.get_command(context, one)
            assert found is not None
            yield from commands_with_url(found, f"{name} {one}".strip())


def test_every_command_that_asks_a_service_is_here() -> None:
    """One that is new must be added above."""
    missing = [
        one for one in commands_with_url(cli) if not any(f"{two} ".startswith(f"{one} ") for two in COMMANDS)
    ]
    assert missing == NOT_HERE


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("words", COMMANDS)
def test_another_kind_of_server_is_one_clear_line(tmp_path: Path, words: str, answer: str) -> None:
    """No traceback, no success, and no long wait: exit code 1, but for `evaluate`, whose 1 says that recall is too
    low."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_text("The soup needs lemongrass.")
    (tmp_path / "queries.jsonl").write_text('{"id": "1", "text": "soup"}\n')
    (tmp_path / "qrels.tsv").write_text("1\ta\t1\n")
    begun = time.monotonic()
    with Stub(ANSWERS[answer]) as stub:
        ended = nearline(*words.format(tmp_path).split(), NEARLINE_URL=stub.url)
    assert time.monotonic() - begun < WITHIN_S
    assert (ended.returncode, ended.stdout) == (2 if words.startswith("evaluate") else 1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("nearline: ")
    wrong = (
        f"{stub.url} (is not a Nearline service: its|answers with 302 to /login, and)|the answer is no JSON"
    )
    assert re.search(wrong, line)


OWN = ("/v1/collections", "/v1/search", "/v1/aliases", "/v1/jobs", "/v1/cluster")


@pytest.mark.parametrize(
    "route",
    [one for one in ROUTES if one.path.startswith(OWN) and one.media is None],
    ids=lambda one: f"{one.method} {one.path}",
)
def test_a_service_always_sends_what_is_expected(route: Route) -> None:
    """Each endpoint of its own API is known, by a field that none of its answers omits."""
    path = re.sub(r"\{[^}]+\}", "x", route.path)
    field = field_of(route.method, path)
    assert field is not None
    if route.answer is None:
        assert (route.status, field) == (204, "")
        assert not explain_foreign(route.method, path, None)
    else:
        always = [one for one in fields_of(route.answer, {}) if "NotRequired" not in one]
        assert field in [one.partition(":")[0] for one in always]
        assert not explain_foreign(route.method, f"{path}?limit=1", {field: None, "more": 1})
        assert "lacks" in explain_foreign(route.method, path, None)
