"""Read tensors from safetensors files, without PyTorch.

    8 bytes          length of the header, little endian
    header           JSON: {"name": {"dtype", "shape", "data_offsets": [start, end]}, ...}
    the rest         the tensors' bytes; offsets count from here

Several files of one model are listed by `model.safetensors.index.json`.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from indexes.errors import Damaged, InvalidInput, NotFound
from indexes.model import Floats

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER_BYTES_MAX = 100 << 20
# Where a folder holds a model with a head, such as a language model's, its encoder lies below one of these.
BASE_PREFIX = re.compile(r"^(model|bert|distilbert|electra|mpnet|roberta)\.")
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Weights:
    """The tensors of one model, by name, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        """Reads the headers. Raises NotFound where there are no weights, Damaged where a file is not whole."""
        self._tensors: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        for path in _files(folder):
            start, header = _header(path)
            for name, tensor in header.items():
                if name != "__metadata__":
                    self._tensors[_canonical(name)] = (path, start, tensor)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Floats:
        """A tensor as float32. Raises InvalidInput naming it where the model has none, or one of another type."""
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
    for old, new in OLD_NAMES.items():
        name = name.replace(old, new)
    return name


def _files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (index := folder / WEIGHTS_INDEX).is_file():
        return [
            folder / name for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        ]
    raise NotFound(f"{folder.name} has no {WEIGHTS}, from which this architecture is built")


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the tensors' bytes begin, and what the header says of each."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > HEADER_BYTES_MAX:
                raise ValueError(f"a header of {length} bytes")
            header: dict[str, Any] = json.loads(file.read(length))
        end = max(
            (tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"),
            default=0,
        )
        if path.stat().st_size != 8 + length + end:
            raise ValueError(f"{path.stat().st_size} bytes instead of {8 + length + end}")
    except (ValueError, KeyError, struct.error) as error:
        raise Damaged(f"{path.name} is not a whole safetensors file: {error}") from error
    return 8 + length, header
