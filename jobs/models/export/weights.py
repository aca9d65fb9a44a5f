"""Reads tensors from safetensors files, without PyTorch.

8 bytes          length of the header, little endian
header           JSON: {"name": {"dtype", "shape", "data_offsets": [start, end]}, ...}
the rest         the tensors' bytes; offsets count from here
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from indexes.base.errors import Damaged, InvalidInput, NotFound
from indexes.base.model import Floats

WEIGHTS = "model.safetensors"
WEIGHTS_FILES = re.compile(r"model(-\d+-of-\d+)?\.safetensors")  # single or sharded
# In models with a head, such as language models, the encoder's tensors have one of these prefixes.
BASE_PREFIX = re.compile(r"^(model|bert|distilbert|electra|mpnet|roberta)\.")
# Other architectures' names for parts that BERT has, and BERT's names for them.
BERT_NAMES = {
    "LayerNorm.gamma": "LayerNorm.weight",  # early versions of BERT itself
    "LayerNorm.beta": "LayerNorm.bias",
    "attention.attn.q.": "attention.self.query.",  # MPNet
    "attention.attn.k.": "attention.self.key.",
    "attention.attn.v.": "attention.self.value.",
    "attention.attn.o.": "attention.output.dense.",
    "attention.LayerNorm.": "attention.output.LayerNorm.",
    "transformer.layer.": "encoder.layer.",  # DistilBERT
    "attention.q_lin.": "attention.self.query.",
    "attention.k_lin.": "attention.self.key.",
    "attention.v_lin.": "attention.self.value.",
    "attention.out_lin.": "attention.output.dense.",
    "sa_layer_norm.": "attention.output.LayerNorm.",
    "ffn.lin1.": "intermediate.dense.",
    "ffn.lin2.": "output.dense.",
    "output_layer_norm.": "output.LayerNorm.",
}
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class ModelWeights:
    """The tensors of one model, read lazily, under BERT's names where BERT has an equivalent."""

    def __init__(self, folder: Path) -> None:
        """Reads the headers. Raises NotFound if there are no weights, Damaged if a file is incomplete."""
        self._tensors: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        files = [path for path in sorted(folder.glob("*.safetensors")) if WEIGHTS_FILES.fullmatch(path.name)]
        if not files:
            raise NotFound(f"{folder.name} has no {WEIGHTS}")
        for path in files:
            start, header = _header(path)
            for name, tensor in header.items():
                self._tensors[_canonical(name)] = (path, start, tensor)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Floats:
        """A tensor as float32. Raises InvalidInput naming it if it is missing or of an unsupported type."""
        if name not in self._tensors:
            raise InvalidInput(f"the weights have no {name}: not the layout that this architecture has")
        path, start, tensor = self._tensors[name]
        if (dtype := TYPES.get(tensor["dtype"])) is None:
            raise InvalidInput(f"{name} has weights of type {tensor['dtype']}; known are {', '.join(TYPES)}")
        shape = tuple(map(int, tensor["shape"]))
        offset = start + int(tensor["data_offsets"][0])
        raw = np.memmap(path, dtype, "r", offset, shape or (1,)).reshape(shape)
        if tensor["dtype"] == "BF16":  # the upper half of a float32
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(raw, dtype=np.float32)


def _canonical(name: str) -> str:
    name = BASE_PREFIX.sub("", name)
    for old, new in BERT_NAMES.items():
        name = name.replace(old, new)
    return name


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Offset of the tensors' bytes, and the header entries by tensor name."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(min(length, path.stat().st_size)))
        header.pop("__metadata__", None)
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        if path.stat().st_size != end:
            raise ValueError(f"{path.stat().st_size} bytes instead of {end}")
    except (ValueError, KeyError, struct.error) as error:
        raise Damaged(f"{path.name} is not a whole safetensors file: {error}") from error
    return 8 + length, header
