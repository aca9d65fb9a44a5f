"""The shape of the code: direction of imports, modules that stand alone, rooms of a readable size."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("indexes", "retrieval", "nearline", "jobs")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__init__.py"
)
# Modules that need an extra, and what they import of it.
EXTRAS = {"langchain": "langchain_core", "llamaindex": "llama_index.core", "haystack": "haystack"}
ABSENT = {
    module
    for framework, needed in EXTRAS.items()
    if find_spec(needed.split(".")[0]) is None
    for module in MODULES
    if module.split(".")[-1].split("_")[0] == framework
}
if find_spec("ray") is None:
    ABSENT |= {"jobs.cluster.actors", "jobs.cluster.building", "jobs.cluster.starting"}


def test_imports_go_one_way() -> None:
    """import-linter's contracts hold: jobs -> nearline -> retrieval -> indexes, and serving never imports PyTorch."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout


def imports_of(module: str) -> set[str]:
    """Modules of ours that a module imports, also inside functions."""
    tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(MODULES)


def test_no_cycles() -> None:
    """Following imports never leads back."""
    graph = {module: imports_of(module) for module in MODULES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for imported in graph[module]:
                visit(imported, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_what_nothing_imports_can_be_imported_alone() -> None:
    """And with it what it imports, in the order of a program that begins there; imports have no cycles, so another
    beginning finds no other order. Left out are modules whose extra is absent."""
    imported = set().union(*map(imports_of, MODULES))
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n"
    code += f"    for loaded in [m for m in sys.modules if m.split('.')[0] in {PACKAGES}]:\n"
    code += "        del sys.modules[loaded]\n"
    code += "    importlib.import_module(name)\n"
    ended = subprocess.run(
        [sys.executable, "-c", code, *(module for module in MODULES if module not in ABSENT | imported)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_serving_needs_no_pytorch() -> None:
    """Importing the whole service loads neither torch nor onnx."""
    code = "import sys, jobs.serving.service; heavy = {'torch', 'transformers', 'onnx', 'sentence_transformers'}\n"
    code += "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


SEARCH_PROCESS = """
import os, socket
from jobs.serving import search_process
ours, theirs = socket.socketpair()
ours.close()
os._exit = lambda _: None
search_process.main(theirs.detach(), os.getppid())
"""


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        ("import jobs.cli", {"aiohttp", "numpy", "rich"}),
        ("import jobs.commands.serve", {"rich"}),
        ("import jobs.commands.keys", {"aiohttp", "onnxruntime"}),
        ("import jobs.ingestion.syncing", {"faiss", "onnxruntime"}),
        (SEARCH_PROCESS, {"aiohttp", "click", "prometheus_client", "rich", "yaml"}),
    ],
    ids=["nearline", "serve", "keys", "sync", "search process"],
)
def test_a_program_loads_only_what_it_uses(program: str, unused: set[str]) -> None:
    """What it imports is most of the time that its start takes."""
    code = f"{program}\nimport sys\nsys.exit(', '.join({unused} & set(sys.modules)) or 0)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_is_for(module: str) -> None:
    """In its docstring."""
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
    assert ast.get_docstring(ast.parse(source))


def test_one_class_name_has_one_meaning() -> None:
    """No two modules define a class of one name, but for the clients: their types mirror the service's, and each
    framework calls a store or a retriever the same."""
    places: dict[str, list[str]] = {}
    for module in MODULES:
        if not module.startswith("retrieval.clients."):
            tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text())
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
