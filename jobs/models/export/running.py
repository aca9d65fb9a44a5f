"""Saves graphs and runs them over texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from indexes.base.model import Floats
from jobs.models.export.texts import Feed
from retrieval.embedding.encoder import available_threads
from retrieval.embedding.models import weights_of
from retrieval.embedding.sessions import cosines, open_session

if TYPE_CHECKING:
    import onnx
    import onnxruntime

__all__ = ["cosines", "save", "session", "vectors"]

OUTSIDE_BYTES_MIN = 1024  # smaller weights stay in the graph's own file


def save(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Write `model` to `path` and move its weights to a file next to it. Returns the files written.

    Sessions memory-map the weights, so they open faster and share a model's embedding table, and a model may exceed
    protobuf's 2 GB.
    """
    import onnx

    weights = weights_of(path)
    weights.unlink(missing_ok=True)  # onnx.save would append to it
    onnx.save(
        model, path, save_as_external_data=True, location=weights.name, size_threshold=OUTSIDE_BYTES_MIN
    )
    return [each for each in (path, weights) if each.is_file()]


def session(path: Path) -> onnxruntime.InferenceSession:
    """A session on every core available to this process."""
    return open_session(path, threads=available_threads())


def vectors(running: onnxruntime.InferenceSession, feeds: Sequence[Feed]) -> Floats:
    """The vectors of all feeds, in order, float32 [texts, dimensions]."""
    return np.concatenate([np.asarray(running.run(None, feed)[0], dtype=np.float32) for feed in feeds])
