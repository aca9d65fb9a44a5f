"""Build candidates, hold each against fp32 and against the clock, and say which one is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from indexes.errors import InvalidInput
from indexes.model import Floats
from jobs.export.candidates import Recipe
from jobs.export.measuring import (
    ROUNDS,
    ROUNDS_MORE,
    Accuracy,
    Speed,
    Yardstick,
    contenders,
    fastest,
    speeds,
)
from jobs.export.normalising import normalised_apart
from jobs.export.quantise import Extremes, observe
from jobs.export.running import cosines, file_bytes, save, session, vectors
from jobs.export.tokens import Texts
from retrieval.embedding.models import FALLBACK, KNOWN_ANSWER_COSINE_MIN, Candidate, Variant

if TYPE_CHECKING:
    import onnx

FALLBACK_MARGIN = 0.001  # fp32 arithmetic differs between machines in its last bits only
NOT_RUN = Accuracy(cosine_min=0.0, cosine_mean=0.0, hard_cosine_mean=0.0, alone_vs_batch_min=0.0, texts=0)


@dataclass(frozen=True)
class Built:
    """A candidate's graph in the scratch folder, and what keeps it from being chosen, if anything does."""

    recipe: Recipe
    graph: Path
    bytes: int
    accuracy: Accuracy
    refused: str | None

    @property
    def name(self) -> str:
        return self.recipe.name

    def described(self, outcome: str, speed: Speed | None) -> Candidate:
        return Candidate(
            name=self.name,
            quantisation=self.recipe.quantisation,
            outcome=outcome,
            bytes=self.bytes,
            query_ms=round(speed.query_ms, 3) if speed else None,
            bulk_tokens_per_s=round(speed.bulk_tokens_per_s) if speed else None,
            cosine_min=_figure(self.accuracy.cosine_min),
            cosine_mean=_figure(self.accuracy.cosine_mean),
            alone_vs_batch_min=_figure(self.accuracy.alone_vs_batch_min),
        )


def _figure(cosine: float) -> float:
    """JSON has no NaN; a vector that is not finite is as far from fp32's as one can be."""
    return round(cosine, 6) if math.isfinite(cosine) else 0.0


class Workshop:
    """Builds candidates of one fused fp32 graph, which lies at `plain`, in the folder `scratch`."""

    def __init__(self, fused: onnx.ModelProto, material: Texts, scratch: Path) -> None:
        self._fused = fused
        self._material = material
        self._scratch = scratch
        self.plain = save(fused, scratch / "fused.onnx")

    @cached_property
    def _extremes(self) -> dict[str, Extremes]:
        return observe(self._fused, self._material.calibration(), self._scratch)

    @cached_property
    def _yardstick(self) -> Yardstick:
        return Yardstick(self.plain, self._material)

    def build(self, recipe: Recipe, floors: Mapping[str, float]) -> Built:
        """The candidate, refused where it falls below one of `floors`."""
        model = normalised_apart(recipe.build(self._fused, self._extremes if recipe.calibrated else {}))
        graph = save(model, self._scratch / f"{recipe.name}.onnx")
        accuracy, refused = self._held_against(self._yardstick, graph)
        return Built(recipe, graph, file_bytes(graph), accuracy, refused or accuracy.below(floors))

    @staticmethod
    def _held_against(yardstick: Yardstick, graph: Path) -> tuple[Accuracy, str | None]:
        """Older runtimes lack some kernels: what cannot be run here is one candidate less, not the end."""
        try:
            return yardstick.accuracy(graph), None
        except Exception as error:  # noqa: BLE001 - the runtime's errors have no common base
            return NOT_RUN, f"it cannot be run here: {str(error).splitlines()[0]}"

    def known_answers(self, built: Built) -> Floats:
        return vectors(session(built.graph), self._material.known())

    def speeds(self, built: Sequence[Built]) -> dict[str, Speed]:
        """How fast each that runs is here; those that may be chosen and lie close together are measured longer."""
        graphs = {each.name: each.graph for each in built if each.accuracy is not NOT_RUN}
        timed = speeds(graphs, self._material.vocabulary(), ROUNDS)
        passed = {each.name: timed[each.name] for each in built if each.refused is None}
        close = {name: graphs[name] for name in contenders(passed)} if passed else {}
        longer = speeds(close, self._material.vocabulary(), ROUNDS_MORE)
        return timed | {name: timed[name].best(speed) for name, speed in longer.items()}


def choose(built: Sequence[Built], timed: Mapping[str, Speed]) -> Built:
    """The fastest that was not refused; the only one, where there is but one. Raises InvalidInput if none is left."""
    passed = {each.name: each for each in built if each.refused is None}
    if not passed:
        reasons = "; ".join(f"{each.name}: {each.refused}" for each in built)
        raise InvalidInput(f"refused, nothing was written: {reasons}")
    if len(built) == 1:
        return built[0]
    speeds_of = {name: timed[name] for name in passed}
    return passed[fastest(speeds_of, {name: each.accuracy for name, each in passed.items()})]


def outcome(each: Built, kept: Built) -> str:
    if each is kept:
        return "kept"
    return "slower" if each.refused is None else f"refused: {each.refused}"


@dataclass(frozen=True)
class Fallback:
    """The graph that serves where the kept one computes something else, and how near to that it must come."""

    built: Built
    agreement: float  # least cosine to the known answers, here; 0 where it was refused

    @property
    def variant(self) -> Variant:
        floor = min(KNOWN_ANSWER_COSINE_MIN, round(self.agreement - FALLBACK_MARGIN, 3))
        return Variant(self.built.name, FALLBACK, self.built.recipe.quantisation, floor)


def fallback(
    workshop: Workshop, kept: Built, answers: Floats, floors: Mapping[str, float]
) -> Fallback | None:
    """The kept candidate's fallback, or None where it needs none: fp32 has no kernels that saturate."""
    if kept.recipe.fallback is None:
        return None
    built = workshop.build(kept.recipe.fallback, floors)
    if built.refused is not None:
        return Fallback(built, 0.0)
    return Fallback(built, float(cosines(workshop.known_answers(built), answers).min()))
