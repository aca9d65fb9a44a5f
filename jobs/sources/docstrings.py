"""The demo's corpus: the five to six thousand docstrings of the running Python's standard library.

It is real English text about something every reader knows, and it is on every machine. Files are parsed, never
imported: importing some of them opens windows or browsers. Compiled modules have no source and are left out.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from jobs.sources import SourceDocument

CHARS_MIN = 20
SIGNATURE_CHARS_MAX = 160
# Tests, fixtures, and folders of installed packages or of the build.
FOLDERS_LEFT_OUT = frozenset({
    "__phello__", "__pycache__", "dist-packages", "idle_test", "idlelib", "lib-dynload", "lib2to3",
    "pydoc_data", "site-packages", "test", "tests", "turtledemo",
})  # fmt: skip

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(library: Path | None = None) -> Iterator[SourceDocument]:
    """Yield the docstrings below `library`, by default the running Python's standard library, by path and line.

    Yields one document per documented module, class, function and method. Definitions with a leading underscore are
    left out, but not files: half of `datetime`, `decimal` and `concurrent.futures` is in such files. The id is the
    qualified name (`asyncio.queues.Queue.get`) and is unique: of several definitions of a name, the first with a
    docstring wins. Texts under `CHARS_MIN` characters and files that cannot be parsed are left out. `metadata` holds
    `module`, `kind` (module, class or function) and `line`.
    """
    root = library if library is not None else Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    for path in _source_files(root):
        for document in _file_docstrings(path, path.relative_to(root)):
            if document.id not in seen:
                seen.add(document.id)
                yield document


def _source_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in FOLDERS_LEFT_OUT and path.name.isidentifier() and _is_public(path.name):
                yield from _source_files(path)
        elif path.suffix == ".py":
            yield path


def _file_docstrings(path: Path, relative: Path) -> Iterator[SourceDocument]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in the library
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    for name, node in _definitions(tree, module):
        text = ast.get_docstring(node)
        if text is not None and len(text) >= CHARS_MIN:
            yield _document(name, node, text, module, relative)


def _definitions(node: ast.AST, name: str) -> Iterator[tuple[str, Documented]]:
    """Yield `node` and its public definitions with qualified names, except those inside functions."""
    if isinstance(node, Documented):
        yield name, node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_public(child.name):
                yield from _definitions(child, f"{name}.{child.name}")
        elif isinstance(child, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            yield from _definitions(child, name)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _document(name: str, node: Documented, text: str, module: str, relative: Path) -> SourceDocument:
    line, kind, signature = getattr(node, "lineno", 1), "module", ""  # a module has no line
    if isinstance(node, ast.ClassDef):
        kind = "class"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        kind, signature = "function", f"({ast.unparse(node.args)})"
    return SourceDocument(
        id=name,
        text=text,
        title=name + (signature if len(signature) <= SIGNATURE_CHARS_MAX else "(...)"),
        metadata={"module": module, "kind": kind, "line": line},
        source=f"{relative.as_posix()}:{line}",
    )
