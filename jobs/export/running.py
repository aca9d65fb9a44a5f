"""Saving a graph of any size, and running it over texts: what building, checking and measuring have in common."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexes.model import Floats
from retrieval.embedding.encoder import available_threads
from retrieval.embedding.models import weights_of
from retrieval.embedding.sessions import open_session

if TYPE_CHECKING:
    import onnx
    import onnxruntime

Feed = dict[str, npt.NDArray[np.int64]]

OUTSIDE_BYTES_MIN = 1024  # smaller weights stay in the graph's own file


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write `model` to `path`, its weights to a file beside it, and return `path`.

    Sessions map that file: they open sooner, and those of one model share its word table. A graph may have any size.
    """
    import onnx

    emptied = onnx.ModelProto()
    emptied.CopyFrom(model)  # saving this way moves the weights out of the model that is saved
    weights = weights_of(path)
    weights.unlink(missing_ok=True)  # it would be appended to
    onnx.save(
        emptied, path, save_as_external_data=True, location=weights.name, size_threshold=OUTSIDE_BYTES_MIN
    )
    return path


def copy(saved: Path, path: Path) -> list[Path]:
    """Copy a saved graph and its weights to another name; the files that it has there."""
    import onnx

    model = onnx.load(saved, load_external_data=False)
    outside = [entry for weight in model.graph.initializer for entry in weight.external_data]
    for entry in outside:
        if entry.key == "location":
            entry.value = weights_of(path).name
    path.write_bytes(model.SerializeToString())
    if not outside:
        return [path]
    shutil.copyfile(weights_of(saved), weights_of(path))
    return [path, weights_of(path)]


def file_bytes(path: Path) -> int:
    """What a saved graph takes, with its weights."""
    return sum(each.stat().st_size for each in (path, weights_of(path)) if each.is_file())


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
