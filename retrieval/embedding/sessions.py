"""Open a model: the first of its graphs that computes here what it computed where it was exported.

A folder may hold several graphs of one model, fastest first. Kernels differ between processors, and one that
saturates or rounds strangely gives vectors that look sound and find nothing. So texts with known vectors are run
before anything is served:

    near enough       this graph serves
    far off, or NaN   it is refused, with a warning, and the next is tried
    none is left      Damaged

Which one serves does not change the model's fingerprint: their vectors are near each other, and collections written
with one are searched with the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from indexes.base.errors import Damaged
from indexes.base.model import Floats
from retrieval.embedding.models import KnownAnswer, Model, Variant

logger = logging.getLogger(__name__)

OUTPUT = "embeddings"
QUOTED_CHARS = 40  # of a known text, in a reason

Feed = Mapping[str, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Refusal:
    """A graph that is not used, and why, in one line."""

    variant: str
    reason: str


@dataclass(frozen=True)
class Opened:
    """A session whose vectors were compared with known ones; which graph it runs, and which were refused before."""

    session: onnxruntime.InferenceSession
    variant: str
    refused: tuple[Refusal, ...]


def open_model(model: Model, known: Feed | None, *, threads: int) -> Opened:
    """The first graph of `model` that loads and gives the known texts their vectors, with `threads` threads a run.

    `known`: the texts of the manifest's known answers, in order, as inputs of the graph; None if it has none. Raises
    Damaged, with every graph's reason, when none is left.
    """
    refused: list[Refusal] = []
    for variant in model.manifest.variants:
        try:
            session = open_session(model.path_of(variant), threads=threads)
            if known is not None:
                _compare(session, known, model.manifest.known_answers, variant)
        except Damaged as error:
            logger.warning("model %s: %s is not used: %s", model.manifest.name, variant.name, error.message)
            refused.append(Refusal(variant.name, error.message))
        else:
            return Opened(session, variant.name, tuple(refused))
    reasons = "; ".join(f"{refusal.variant}: {refusal.reason}" for refusal in refused)
    raise Damaged(f"no graph in {model.folder} can be used here, export it on this machine: {reasons}")


def _compare(
    session: onnxruntime.InferenceSession, known: Feed, answers: list[KnownAnswer], variant: Variant
) -> None:
    """Raise Damaged unless every vector comes as near to its known answer as the variant must."""
    try:
        found: Floats = session.run([OUTPUT], dict(known))[0]
    except Exception as error:
        raise Damaged(f"{variant.file} cannot be run: {error}") from error
    expected = np.array([answer.vector for answer in answers], dtype=np.float32)
    if found.shape != expected.shape:
        raise Damaged(
            f"{variant.file} gives vectors of {found.shape[-1]} dimensions, not of {expected.shape[-1]}"
        )
    for answer, alike in zip(answers, cosines(found, expected).tolist(), strict=True):
        if not alike >= variant.known_answer_cosine_min:  # written so that NaN fails too
            raise Damaged(
                f"{variant.file} computes another vector here than where it was exported: cosine {alike:.3f} for "
                f"{answer.text[:QUOTED_CHARS]!r}, expected at least {variant.known_answer_cosine_min}"
            )


def cosines(left: Floats, right: Floats) -> Floats:
    """Row-wise cosines; NaN if a row is zero or not finite.

    Of scores, which have one dimension: 1 minus the difference, as a share of the range of those on the right.
    """
    with np.errstate(all="ignore"):
        if right.shape[1] == 1:
            return np.asarray(1 - np.abs(left - right)[:, 0] / np.ptp(right), dtype=np.float32)
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        return np.asarray((left * right).sum(axis=1) / lengths, dtype=np.float32)


def open_session(path: Path, *, threads: int) -> onnxruntime.InferenceSession:
    """A session over the graph at `path`, set up for serving. Raises Damaged where it cannot be loaded."""
    options = onnxruntime.SessionOptions()
    # The runtime ignores CPU quotas and would start a thread for each core it can see.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads answer faster and take the core from whoever else wants it: here, the searches.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Plans are kept per shape, and nearly every batch has a shape of its own.
    options.enable_mem_pattern = False
    # The arena keeps the largest run's memory for ever; without it runs measured just as fast.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise Damaged(f"{path} cannot be loaded: {error}") from error
