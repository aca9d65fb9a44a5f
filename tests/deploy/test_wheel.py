"""A wheel works whole: installed in an empty environment it serves, with its page, configuration and alert rules."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hatch_build import mark_of
from indexes.lexical import scoring
from jobs.serving.service import READY_LINE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and, linked from this one, the packages that it asks for, no others."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT])
    (wheel,) = folder.glob("nearline-*.whl")
    run([sys.executable, "-m", "venv", "--without-pip", folder / "env"])
    run([*pip, "--python", folder / "env/bin/python", "install", "--no-deps", wheel])
    (packages,) = folder.glob("env/lib/python3*/site-packages")
    for name in needed("nearline"):
        link(name, packages)
    return folder / "env"


def run(command: Sequence[object]) -> str:
    ended = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=240, cwd="/", env=clean()
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def needed(name: str) -> set[str]:
    """The packages that one asks for, and those that they ask for."""
    found: set[str] = set()
    waiting = [Requirement(name)]
    while waiting:
        asked = waiting.pop()
        for written in importlib.metadata.requires(asked.name) or []:
            one = Requirement(written)
            wanted = not one.marker or any(
                one.marker.evaluate({"extra": extra}) for extra in asked.extras or [""]
            )
            if wanted and one.name not in found:
                found.add(one.name)
                waiting.append(one)
    return found


def link(name: str, packages: Path) -> None:
    """Into an environment's packages, what an installed package has at the top of this one's."""
    distribution = importlib.metadata.distribution(name)
    for top in {
        file.parts[0] for file in distribution.files or [] if file.parts[0] not in {"..", "__pycache__"}
    }:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(distribution.locate_file(top))))


@pytest.fixture(scope="module")
def url(environment: Path, tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[str]:
    """The service, as its command starts it in an empty folder, with the configuration that came with it."""
    folder = tmp_path_factory.mktemp("empty")
    configuration = environment / "share/nearline/default.toml"
    child = subprocess.Popen(
        [environment / "bin/nearline", "serve", "--data", "data", "--port", "0", "--config", configuration],
        cwd=folder,
        env={**clean(), "NEARLINE_MODELS_FOLDER": str(model_folder.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line.startswith(READY_LINE)
        yield line.removeprefix(READY_LINE).strip()
    finally:
        child.terminate()
        child.wait(40)


def get(url: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def test_the_compiled_module_is_that_of_its_source() -> None:
    """A module compiled from an older source would be searched with here, so the build compiles it again."""
    assert mark_of(ROOT / "indexes/lexical/scoring.cpp") == scoring.MADE_OF


@pytest.mark.slow
def test_it_is_the_wheel_that_runs(environment: Path) -> None:
    """Nothing is imported from the checkout."""
    where = run([environment / "bin/python", "-c", "import retrieval; print(retrieval.__file__)"])
    assert where.startswith(str(environment))


@pytest.mark.slow
@pytest.mark.model
def test_it_serves(url: str) -> None:
    """A document written is found; the page with all its parts and the description of the API are there."""
    get(f"{url}/v1/collections", {"name": "docs"})
    get(f"{url}/v1/collections/docs/documents", {"documents": [{"id": "a", "text": "Whales sing."}]})
    found = json.loads(get(f"{url}/v1/collections/docs/search", {"query": "songs of whales"}))
    assert [hit["document_id"] for hit in found["hits"]] == ["a"]
    page = get(f"{url}/ui").decode()
    parts = {
        path.name for path in (ROOT / "retrieval/ui").iterdir() if path.suffix in {".js", ".css", ".svg"}
    }
    for part in parts:
        assert get(f"{url}/ui/assets/{part}") == (ROOT / "retrieval/ui" / part).read_bytes()
    assert "main.js" in page
    assert json.loads(get(f"{url}/openapi.json"))["openapi"].startswith("3.")
    assert b"/openapi.json" in get(f"{url}/docs")


@pytest.mark.slow
def test_configuration_and_alerts_come_with_it(environment: Path) -> None:
    """All of configs/, beside the command."""
    shipped = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*") if path.is_file()}
    for path in shipped:
        assert (environment / "share/nearline" / path).read_bytes() == (ROOT / "configs" / path).read_bytes()
    assert {Path("default.toml"), Path("prometheus/alerts.yml"), Path("grafana/nearline.json")} <= shipped


@pytest.mark.slow
def test_a_missing_extra_is_named(environment: Path) -> None:
    """Every command is there; one that needs an extra says which, and how it is installed."""
    assert "serve" in run([environment / "bin/nearline", "--help"])
    command = [str(environment / "bin/nearline"), "mcp", "-c", "docs"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=clean(), timeout=60)
    assert ended.returncode == 1
    assert "pip install '.[mcp]'" in ended.stderr
