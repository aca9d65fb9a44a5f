"""The demo's corpus: the docstrings of the installed Python."""

from __future__ import annotations

import itertools
import sys
import sysconfig
from pathlib import Path

import pytest

from jobs.sources.docstrings import CHARS_MIN, docstrings

MODULE = '''
"""What the module promises to those who import it."""

import antigravity_that_does_not_exist


def public(a, /, b: int = 1, *rest: str, c="x", **others) -> None:
    """What the public function does, in one line.

        Indented code keeps its place.

    The end.
    """
    def inner():
        """A function inside a function is nobody's interface."""


def _private():
    """A private function, long enough to count otherwise."""


def short():
    """Too short."""


class Thing:
    """A thing that has methods and properties."""

    async def wait(self, seconds: float) -> None:
        """Wait for the thing, in seconds of real time."""

    @property
    def size(self):
        """How large the thing is, in units of things."""

    @size.setter
    def size(self, value):
        """How large the thing shall be from now on."""

    def __len__(self):
        """How long the thing is, which is not its size."""


if True:
    def alternative():
        """The first of two definitions of one name."""
else:
    def alternative():
        """The second of two definitions of one name."""
'''


def write_library(folder: Path) -> Path:
    for name in ["pkg", "pkg/tests", "site-packages", "idlelib", "pkg/_hidden"]:
        (folder / name).mkdir()
        (folder / name / "inside.py").write_text('"""A module in the folder called ' + name + '."""\n')
    (folder / "pkg" / "__init__.py").write_text('"""The package itself, not one of its modules."""\n')
    (folder / "module.py").write_text(MODULE)
    (folder / "_pymodule.py").write_text('"""A private file that holds a public module."""\n')
    (folder / "broken.py").write_text('"""A docstring before a syntax error."""\ndef (:\n')
    (folder / "null.py").write_bytes(b'"""A docstring before a null byte."""\n\x00\n')
    (folder / "latin.py").write_bytes(b'# -*- coding: latin-1 -*-\n"""A module by Andr\xe9, in Latin-1."""\n')
    (folder / "notes.txt").write_text("not Python")
    return folder


def test_names_titles_and_order(tmp_path: Path) -> None:
    """Public definitions come in order of file and line; broken files and left-out folders do not."""
    found = [(document.id, document.title) for document in docstrings(write_library(tmp_path))]
    assert found == [
        ("_pymodule", "_pymodule"),
        ("latin", "latin"),
        ("module", "module"),
        ("module.public", "module.public(a, /, b: int=1, *rest: str, c='x', **others)"),
        ("module.Thing", "module.Thing"),
        ("module.Thing.wait", "module.Thing.wait(self, seconds: float)"),
        ("module.Thing.size", "module.Thing.size(self)"),
        ("module.Thing.__len__", "module.Thing.__len__(self)"),
        ("module.alternative", "module.alternative()"),
        ("pkg", "pkg"),
        ("pkg.inside", "pkg.inside"),
    ]


def test_text_and_metadata(tmp_path: Path) -> None:
    """The text is the cleaned docstring of the first definition; metadata says module, kind and line."""
    by_id = {document.id: document for document in docstrings(write_library(tmp_path))}
    public = by_id["module.public"]
    assert public.text == (
        "What the public function does, in one line.\n\n    Indented code keeps its place.\n\nThe end."
    )
    assert public.metadata == {"module": "module", "kind": "function", "line": 7}
    assert public.source == "module.py:7"
    assert by_id["module.Thing"].metadata["kind"] == "class"
    assert by_id["pkg"].metadata == {"module": "pkg", "kind": "module", "line": 1}
    assert by_id["module.alternative"].text.startswith("The first")
    assert by_id["latin"].text == "A module by André, in Latin-1."


def test_a_very_long_signature_is_abbreviated(tmp_path: Path) -> None:
    """A title stays a title: signatures beyond the limit are shown as (...)."""
    parameters = ", ".join(f"parameter_{n}=None" for n in range(40))
    (tmp_path / "wide.py").write_text(
        f'def wide({parameters}):\n    """A function with many parameters."""\n'
    )
    assert [document.title for document in docstrings(tmp_path)] == ["wide.wide(...)"]


@pytest.mark.slow
def test_the_installed_library() -> None:
    """The running Python yields thousands of documents, unique ids, none trivial or from its tests."""
    documents = list(docstrings())
    by_id = {document.id: document for document in documents}
    assert 4000 < len(documents) == len(by_id) < 8000
    assert min(len(document.text) for document in documents) >= CHARS_MIN
    assert by_id["asyncio.queues.Queue.get"].title == "asyncio.queues.Queue.get(self)"
    assert "json.decoder.JSONDecoder" in by_id
    left_out = ("test.", "idlelib.", "lib2to3.", "site-packages.", "unittest.test.")
    assert not [name for name in by_id if name.startswith(left_out)]


def test_the_order_is_always_the_same_and_nothing_is_imported() -> None:
    """Two runs agree, and parsing leaves no module behind: some open a browser when they are imported."""
    sysconfig.get_config_vars()  # the interpreter imports a module of its own for them
    before = set(sys.modules)
    first = [document.id for document in itertools.islice(docstrings(), 300)]
    assert first == [document.id for document in itertools.islice(docstrings(), 300)]
    assert set(sys.modules) - before == set()
