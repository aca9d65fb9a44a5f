"""The documents name only what exists, and leave out no endpoint, no error and no package."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from jobs.cli import cli
from retrieval.server.openapi import path_of
from retrieval.server.routes import ROUTES
from retrieval.wire.errors import STATUS, type_name

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
DOCUMENTS = [README, ARCHITECTURE, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]*))?\)")
COMMAND = re.compile(r"(?:^ +(?:\.venv/bin/|\$ )?|`)nearline +([^`\n]*)", re.MULTILINE)
PLACE = re.compile(
    r"`((?:indexes|retrieval|jobs|nearline|tests|configs|docs/design|docs/benchmarks)/[\w./-]+)(?:::\w+)?`"
)
PACKAGES = [
    package.parent.relative_to(ROOT).as_posix()
    for name in ("indexes", "retrieval", "jobs")
    for package in sorted((ROOT / name).rglob("__init__.py"))
]
SETTING = re.compile(r"`([a-z_]+)\.(?!json`|mark`)([a-z_]+)(?: = [^`]*)?`")


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_is_short() -> None:
    """The README has at most 150 lines."""
    assert len(README.read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file of the repository, and its anchor a heading there."""
    for target, anchor in LINK.findall(page.read_text()):
        if "://" not in target:
            found = page.parent / target
            assert found.exists(), target
            assert not anchor or anchor in anchors_of(found), f"{target}#{anchor}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    """Each command line has a command and options that `nearline` knows."""
    for line in COMMAND.findall(page.read_text()):
        words = shlex.split(line, comments=True)
        command: click.Command | None = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, line
        known = {option for parameter in command.params for option in parameter.opts}
        named = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert named <= known, f"{line}: {named - known}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_settings_exist(page: Path) -> None:
    """Each `section.key` of a section of the configuration is one of its keys."""
    sections = tomllib.loads((ROOT / "configs" / "default.toml").read_text())
    for section, key in SETTING.findall(page.read_text()):
        assert section not in sections or key in sections[section], f"{section}.{key}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_named_tests_exist(page: Path) -> None:
    """Each test that a page refers to is there, by its file and its name."""
    for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", page.read_text()):
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_each_promise_is_tested_with_every_change() -> None:
    """Of the tests that a promise names, at least one is neither slow nor torture; or its row says otherwise."""
    for row in (ROOT / "docs/reliability.md").read_text().splitlines():
        named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", row)
        assert (
            not named
            or "`make slow`" in row
            or any(runs_with_every_change(ROOT / file, name) for file, name in named)
        ), row


def runs_with_every_change(file: Path, name: str) -> bool:
    """Whether no mark leaves all cases of a test out of `make test`."""
    body = ast.parse(file.read_text()).body
    of_the_file = [
        node.value for node in body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
    ]
    (test,) = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    marks = [ast.unparse(mark) for mark in (*of_the_file, *test.decorator_list)]
    return not any(mark.endswith(("mark.slow", "mark.torture")) for mark in marks)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_named_places_exist(page: Path) -> None:
    """Each file or folder of the repository that a page names in backquotes is there."""
    for place in PLACE.findall(page.read_text()):
        assert (ROOT / place).exists(), place


def test_the_architecture_is_short() -> None:
    """ARCHITECTURE.md has at most 3,000 words; reasons that need room are in docs/design/."""
    assert len(ARCHITECTURE.read_text().split()) <= 3000


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_names_every_package(package: str) -> None:
    """ARCHITECTURE.md names each package, by its path in backquotes."""
    assert f"`{package}`" in ARCHITECTURE.read_text()


def test_the_site_shows_every_page() -> None:
    """The navigation of the site has each page of docs/, and no other."""
    site = tomllib.loads((ROOT / "zensical.toml").read_text())
    pages = re.findall(r"'([\w/-]+\.md)'", str(site["project"]["nav"]))
    assert sorted(pages) == sorted(
        page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")
    )


def test_every_endpoint_is_listed() -> None:
    """docs/api.md, docs/embedding-server.md and docs/integrations.md name every method with its path."""
    names = ("api.md", "embedding-server.md", "integrations.md")
    text = "".join((ROOT / "docs" / name).read_text() for name in names)
    for route in ROUTES:
        path = path_of(route).replace("{collection}", "{c}")
        assert re.search(rf"`{route.method} {re.escape(path)}[`?]", text), f"{route.method} {path}"


def test_every_error_is_listed() -> None:
    """docs/api.md has every type of error with its status."""
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted((str(status), type_name(kind)) for kind, status in STATUS.items())
