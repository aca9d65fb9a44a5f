"""Open a model: use the first of its graphs that computes here what it computed where it was exported.

A folder may hold several graphs of one model, fastest first. Kernels differ between CPUs, and one that saturates or
rounds badly gives vectors that look plausible and find nothing. So texts with known vectors are run before anything is
served:

    close enough      this graph serves
    far off, or NaN   it is refused with a warning, and the next is tried
    none is left      Damaged

With another provider than the CPU, each graph is tried with it first, those of floating-point arithmetic before those
of integers, whose operators few providers have.

Which one serves does not change the model's fingerprint: their vectors are close, and collections written with one can
be searched with the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from indexes.base.errors import Damaged
from indexes.base.model import Floats
from retrieval.embedding.models import KnownAnswer, Model, Variant

logger = logging.getLogger(__name__)

OUTPUT = "embeddings"
QUOTED_CHARS = 40  # of a known text, in an error message

Feed = Mapping[str, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class ExecutionProvider:
    """What computes a model: an execution provider of ONNX Runtime, such as "cuda", with its own options."""

    name: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)


CPU = ExecutionProvider()
PROVIDER = "ExecutionProvider"


@dataclass(frozen=True)
class Refusal:
    """A graph that is not used, and the reason in one line."""

    variant: str
    reason: str


@dataclass(frozen=True)
class OpenedModel:
    """A session whose vectors were verified, the graph it runs, on which provider if not on the CPU, and the graphs
    refused before it."""

    session: onnxruntime.InferenceSession
    variant: str
    refused: tuple[Refusal, ...]


def open_model(
    model: Model, known: Feed | None, *, threads: int, provider: ExecutionProvider = CPU
) -> OpenedModel:
    """Open the first graph of `model` that loads and gives the known texts their vectors, with `threads` threads per
    run; on the CPU if none does on another provider.

    `known` has the texts of the manifest's known answers, in order, as inputs of the graph; None if there are none.
    Raises Damaged with every graph's reason if no graph qualifies.
    """
    refused: list[Refusal] = []
    variants = model.manifest.variants
    tries = [] if provider == CPU else [(one, provider) for one in reversed(variants)]
    for variant, by in [*tries, *((one, CPU) for one in variants)]:
        name = variant.name if by is CPU else f"{variant.name} on {by.name}"
        try:
            session = open_session(model.path_of(variant), threads=threads, provider=by)
            if known is not None:
                _compare(session, known, model.manifest.known_answers, variant)
        except Damaged as error:
            logger.warning("model %s: %s is not used: %s", model.manifest.name, name, error.message)
            refused.append(Refusal(name, error.message))
        else:
            return OpenedModel(session, name, tuple(refused))
    reasons = "; ".join(f"{refusal.variant}: {refusal.reason}" for refusal in refused)
    raise Damaged(f"no graph in {model.folder} can be used here, export it on this machine: {reasons}")


def _compare(
    session: onnxruntime.InferenceSession, known: Feed, answers: list[KnownAnswer], variant: Variant
) -> None:
    """Raise Damaged unless every vector comes as close to its known answer as the variant requires."""
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
    """Return row-wise cosines; NaN if a row is zero or not finite.

    For scores, which have one dimension: 1 minus the difference, relative to the range of the right side.
    """
    with np.errstate(all="ignore"):
        if right.shape[1] == 1:
            return np.asarray(1 - np.abs(left - right)[:, 0] / np.ptp(right), dtype=np.float32)
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        return np.asarray((left * right).sum(axis=1) / lengths, dtype=np.float32)


def open_session(
    path: Path, *, threads: int, provider: ExecutionProvider = CPU
) -> onnxruntime.InferenceSession:
    """Open a session over the graph at `path`, configured for serving. Raises Damaged if it cannot be loaded, or not
    with this provider."""
    offered = {one.removesuffix(PROVIDER).lower(): one for one in onnxruntime.get_available_providers()}
    if (wanted := offered.get(provider.name.lower())) is None:
        raise Damaged(
            f"the installed ONNX Runtime has no provider {provider.name!r}; it has {', '.join(sorted(offered))}"
        )
    options = onnxruntime.SessionOptions()
    # The runtime ignores CPU quotas and would start a thread for each visible core.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads answer faster, but take cores from the searches.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Plans are kept per shape, and nearly every batch has a shape of its own.
    options.enable_mem_pattern = False
    # The arena keeps the largest run's memory forever; without it runs measured just as fast.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, [(wanted, dict(provider.options))])
    except Exception as error:
        raise Damaged(f"{path} cannot be loaded: {error}") from error
    if (used := session.get_providers()[0]) != wanted:  # what a provider needs may be missing
        raise Damaged(f"ONNX Runtime opened it with {used} instead of {wanted}")
    return session
