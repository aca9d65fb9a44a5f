"""Saving a graph of any size, and running it over texts: what building, checking and measuring have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexes.model import Floats
from retrieval.embedding.encoder import available_threads
from retrieval.embedding.sessions import open_session

if TYPE_CHECKING:
    import onnx
    import onnxruntime

Feed = dict[str, npt.NDArray[np.int64]]

BESIDE = ".weights"
FILE_BYTES_MAX = 2_000_000_000  # a little below the 2 GiB that one protobuf message can hold


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write `model` to `path` and return that. Where one file cannot hold the weights, they get one beside it."""
    import onnx

    if fits_one_file(model):
        path.write_bytes(model.SerializeToString())
        return path
    emptied = onnx.ModelProto()
    emptied.CopyFrom(model)  # saving this way moves the weights out of the model that is saved
    weights = path.with_suffix(BESIDE)
    weights.unlink(missing_ok=True)  # it would be appended to
    onnx.save(emptied, path, save_as_external_data=True, location=weights.name)
    return path


def file_bytes(path: Path) -> int:
    """What a saved graph takes, with the file beside it if there is one."""
    return sum(each.stat().st_size for each in (path, path.with_suffix(BESIDE)) if each.is_file())


def fits_one_file(model: onnx.ModelProto) -> bool:
    return sum(len(weight.raw_data) for weight in model.graph.initializer) < FILE_BYTES_MAX


def session(path: Path) -> onnxruntime.InferenceSession:
    """A session on every core this process may use."""
    return open_session(path, threads=available_threads())


def vectors(running: onnxruntime.InferenceSession, feeds: Sequence[Feed]) -> Floats:
    """The vectors of all feeds, in order, float32 [texts, dimensions]."""
    return np.concatenate([np.asarray(running.run(None, feed)[0], dtype=np.float32) for feed in feeds])


def cosines(left: Floats, right: Floats) -> Floats:
    """Row by row; NaN where a row is zero or not finite."""
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        return np.asarray((left * right).sum(axis=1) / lengths, dtype=np.float32)
