"""`nearline collections`, as a user types it, against a real service."""

from __future__ import annotations

import json
import re

import pytest

from jobs.commands.collections import command
from jobs.serving.process import ServerProcess
from tests.support.commands import nearline
from tests.support.http import Http


@pytest.fixture
def docs(http: Http) -> str:
    """A collection of two documents and two generations."""
    name = http.new_collection()
    http.write(name, {"id": "a", "text": "Apples grow."}, {"id": "b", "text": "Boats float."})
    for _ in range(2):
        http.reindex(name)
    return name


def collections(service: ServerProcess, *arguments: str) -> tuple[int, str, str]:
    ended = nearline("collections", *arguments, "--url", service.url)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("name", command.commands)
def test_every_subcommand_has_help_with_an_example(name: str) -> None:
    """`--help` works without a service."""
    ended = nearline("collections", name, "--help")
    assert ended.returncode == 0
    assert f"Example: nearline collections {name}" in ended.stdout


def test_create(service: ServerProcess, http: Http) -> None:
    """What is given is sent, and what the service refuses is one line."""
    created = (0, "made-by-command is created\n", "")
    assert collections(service, "create", "made-by-command", "--dimensions", "3") == created
    made = http.ok("GET", "/v1/collections/made-by-command")
    assert (made["model"], made["dimensions"]) == (None, 3)
    refused = (1, "", "nearline: the name 'made-by-command' is taken\n")
    assert collections(service, "create", "made-by-command") == refused
    http.ok("DELETE", "/v1/collections/made-by-command")


def test_list_and_show(service: ServerProcess, http: Http, docs: str) -> None:
    """Tables for people and JSON for programs say what the service says; `show` takes an alias too."""
    http.ok("PUT", f"/v1/aliases/{docs}-live", {"collection": docs})
    status, out, _ = collections(service, "list")
    row = next(line for line in out.splitlines() if re.search(rf"\b{docs}\b", line))
    assert (status, f"{docs}-live" in row, "all-MiniLM-L6-v2" in row) == (0, True, True)
    _, out, _ = collections(service, "list", "--json")
    assert json.loads(out) == http.ok("GET", "/v1/collections")["collections"]
    status, out, _ = collections(service, "show", f"{docs}-live")
    assert status == 0
    assert re.search(rf"name\W+{docs}\b", out)
    assert re.search(r"passages\W+hot 2", out)
    _, out, _ = collections(service, "show", docs, "--json")
    assert json.loads(out) == http.ok("GET", f"/v1/collections/{docs}")


def test_rollback(service: ServerProcess, http: Http, docs: str) -> None:
    """The generation before is live; where there is none, that is one line and exit code 1."""
    assert collections(service, "rollback", docs) == (0, f"generation 1 of {docs} is live\n", "")
    status, out, err = collections(service, "rollback", docs)
    assert (status, out) == (1, "")
    assert err.startswith("nearline: there is no earlier generation")
    assert http.ok("GET", f"/v1/collections/{docs}")["generation"] == 1


@pytest.mark.slow
def test_rename(service: ServerProcess, http: Http, docs: str) -> None:
    """Documents and aliases follow, and the old name is gone; a taken name, or an alias, changes nothing."""
    alias, other = f"{docs}-of-today", http.new_collection()
    http.ok("PUT", f"/v1/aliases/{alias}", {"collection": docs})
    assert collections(service, "rename", docs, f"{docs}-new") == (0, f"{docs} is now {docs}-new\n", "")
    assert http.ok("GET", f"/v1/collections/{alias}")["name"] == f"{docs}-new"
    assert http.found(f"{docs}-new", query="boats", k=1) == ["b"]
    assert http.call("GET", f"/v1/collections/{docs}").status == 404
    status, _, err = collections(service, "rename", f"{docs}-new", other)
    assert (status, err) == (1, f"nearline: the name '{other}' is taken\n")
    status, _, err = collections(service, "rename", alias, "x")
    assert (status, f"'{alias}' is an alias" in err) == (1, True)


@pytest.mark.slow
def test_delete_asks_first(service: ServerProcess, http: Http, docs: str) -> None:
    """Without a yes nothing is deleted and the exit code is 1; with --yes it is gone, also for --json."""
    status, out, err = collections(service, "delete", docs)
    assert (status, out) == (1, "")
    assert "Delete" in err
    assert "nothing is deleted" in err
    status, out, _ = collections(service, "delete", docs, "--yes", "--json")
    assert (status, json.loads(out)) == (0, {"deleted": docs, "documents": 2})
    status, out, err = collections(service, "delete", docs, "--yes")
    assert (status, out, err) == (1, "", f"nearline: no collection '{docs}'\n")
