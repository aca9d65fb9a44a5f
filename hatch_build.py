"""Compiles the extension module of `indexes/lexical` beside its source, for wheels and for editable installations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import Distribution

MODULE = "indexes.lexical.scoring"


class CompileHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = Path(*MODULE.split(".")).with_suffix(".cpp")
        # Without contraction: a fused multiply-add rounds scores otherwise, on the machines that have one.
        options = ["-O3", "-ffp-contract=off"]
        module = Pybind11Extension(MODULE, [str(source)], cxx_std=20, extra_compile_args=options)
        command = build_ext(Distribution({"ext_modules": [module]}))
        command.inplace = True
        command.ensure_finalized()
        compiled = Path(command.get_ext_filename(MODULE))
        if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
            command.run()
        build_data["artifacts"].append(str(compiled))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
