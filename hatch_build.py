"""Compiles the extension module of `indexes/lexical`: into a wheel, or beside its source if installed as editable."""

from __future__ import annotations

import os
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import Distribution

MODULE = "indexes.lexical.scoring"
# Without contraction: a fused multiply-add rounds scores otherwise, on the machines that have one.
OPTIONS = ["-O3", "-ffp-contract=off"]


def mark_of(source: Path) -> str:
    """Return a digest of the source and of the options, which the module keeps as `MADE_OF`."""
    flags = [os.environ.get(name) for name in ("CXX", "CFLAGS", "CXXFLAGS")]
    return blake2b(repr((source.read_bytes(), OPTIONS, flags)).encode(), digest_size=16).hexdigest()


class CompileHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = Path(self.root, *MODULE.split(".")).with_suffix(".cpp")
        mark = mark_of(source)
        module = Pybind11Extension(
            MODULE,
            [str(source)],
            cxx_std=17,
            extra_compile_args=OPTIONS,
            define_macros=[("MADE_OF", f'"{mark}"')],
        )
        command = build_ext(Distribution({"ext_modules": [module]}))
        command.ensure_finalized()
        name = command.get_ext_filename(MODULE)
        beside = Path(self.root, name)
        if version == "editable" and beside.exists() and mark.encode() in beside.read_bytes():
            return
        self._folder = tempfile.TemporaryDirectory()
        command.build_temp = command.build_lib = self._folder.name
        command.run()
        compiled = Path(self._folder.name, name)
        if version == "editable":
            draft = beside.with_suffix(".draft.so")
            draft.write_bytes(compiled.read_bytes())
            draft.replace(beside)  # running processes keep the file that they have mapped
        else:
            build_data["force_include"][str(compiled)] = name
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
