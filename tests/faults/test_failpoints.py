"""Death at every named step of a commit, a publication, a swap, a build: before it or after it, never between."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from indexes.base.failpoints import VARIABLE
from indexes.directory.catalog import Catalog
from tests.support.inspection import scrolled
from tests.support.oracle import Child, Oracle
from tests.support.vectors import rebuild, settings
from tests.support.versions import document
from tests.support.workload import MAIN, TUNING, Options

ROOT = Path(__file__).parents[2]
TOUR = Options(story="tour")


def failpoints_in_the_source() -> list[str]:
    """Every name given to `failpoints.reach`. Other ways to call it, or names made while running, would escape."""
    found: list[str] = []
    for path in sorted(
        file for package in ("indexes", "retrieval", "jobs") for file in (ROOT / package).rglob("*.py")
    ):
        text = path.read_text()
        if "failpoints" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "indexes.base.failpoints"), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoints.reach":
                [name] = node.args
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}"
                found.append(str(name.value))
    return found


NAMES = failpoints_in_the_source()


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How often an undisturbed tour comes to each failpoint."""
    child = Child(tmp_path_factory.mktemp("undisturbed") / "data", Options(story="tour", count=True))
    counted = next(line.visits for line in child.lines() if line.visits)
    status, errors = child.end()
    assert status == 0, errors
    return counted


def die_at(name: str, visit: int, folder: Path) -> None:
    child = Child(folder, TOUR, {VARIABLE: f"{name}:{visit}=kill"})
    oracle = Oracle()
    oracle.read(child.lines())
    status, errors = child.end()
    assert status == -9, f"the tour does not come to {name} a {visit}. time: {errors}"
    assert f"failpoint {name}" in errors
    oracle.check(folder)
    goes_on(folder)


def goes_on(folder: Path) -> None:
    """What is found after a death can be written to, rebuilt and opened again."""
    catalog = Catalog(folder, TUNING)
    collection = catalog.get(MAIN) if MAIN in catalog.collections else catalog.create(MAIN, settings())
    before = {stored.id for stored in scrolled(collection)}
    collection.write([document(99, 1)]).result()
    generation = rebuild(collection).number
    catalog.close()
    assert not [path.name for path in folder.iterdir() if path.name.startswith((".creating", ".removed"))]
    catalog = Catalog(folder, TUNING)
    assert {stored.id for stored in scrolled(catalog.get(MAIN))} == {*before, "d99"}
    assert catalog.get(MAIN).snapshot.generation == generation
    catalog.close()


def test_names_are_given_once() -> None:
    """No two places share a name."""
    assert len(set(NAMES)) == len(NAMES) > 40


@pytest.mark.slow
def test_the_tour_comes_to_every_failpoint(visits: dict[str, int]) -> None:
    """A failpoint that nothing reaches would be tested by nobody."""
    assert visits.keys() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_death_at_each_failpoint(name: str, visits: dict[str, int], memory_folder: Path) -> None:
    """Killed there in the middle of the tour, the directory holds the old state or the new one, and goes on."""
    die_at(name, middle(visits[name]), memory_folder / "data")


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_death_at_every_visit(name: str, visits: dict[str, int], memory_folder: Path) -> None:
    """The same for each other time it is reached."""
    for visit in set(range(1, visits[name] + 1)) - {middle(visits[name])}:
        die_at(name, visit, memory_folder / f"data{visit}")


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_an_error_at_each_failpoint(name: str, visits: dict[str, int], memory_folder: Path) -> None:
    """An error there fails what was under way, or ends the process with it; what was promised holds."""
    for visit in {1, middle(visits[name])}:
        child = Child(memory_folder / f"data{visit}", TOUR, {VARIABLE: f"{name}:{visit}=error"})
        lines = list(child.lines())
        status, errors = child.end()
        assert status in {0, 1}, errors
        assert f"fail on purpose at {name}:{visit}=error" in errors
        oracle = Oracle()
        oracle.read(lines)
        oracle.check(memory_folder / f"data{visit}")


def middle(visits: int) -> int:
    return visits // 2 + 1
