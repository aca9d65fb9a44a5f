"""Builds candidates, measures their agreement with fp32 and their speed on this machine, and chooses one.

Accuracy: cosines between a candidate's vectors and fp32's, and between a text's vectors alone and in a mixed batch.
Speed: one short query, and a batch of passages, on one thread, with the session options of the service.

Of the candidates that meet their floors, the one with the fastest query is kept: searches wait for queries, while
passages are embedded in the background. Times within `NOISE` count as ties, which the more accurate candidate wins, so
that repeated exports choose the same one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnxruntime

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from jobs.models.export import texts
from jobs.models.export.architectures import build
from jobs.models.export.graph import Graph, Range
from jobs.models.export.recipes import FP32, SCORE_FLOORS, Recipe
from jobs.models.export.running import cosines, save, session, vectors
from jobs.models.export.shapes import Shape
from jobs.models.export.sources import Progress
from jobs.models.export.texts import BATCH_TEXTS, Feed, TokenizedTexts
from jobs.models.export.weights import ModelWeights
from retrieval.embedding.models import Candidate
from retrieval.embedding.sessions import OUTPUT, open_session

NOISE = 0.05  # relative difference between two times that is not significant
QUERY_TOKENS, BULK_TEXTS, BULK_TOKENS = 10, 8, 60
ROUNDS, QUERIES_A_ROUND = 8, 25
UNRELATED = 0.95  # the share of unrelated pairs below the floor of similarity
COSINES = ("cosine_min", "cosine_mean", "alone_vs_batch_min")


@dataclass
class Trial:
    """A candidate's graph in the scratch folder, its measurements, and the reason for refusal, if any.

    `checks` are cosines, NaN if a vector is not finite; empty if the graph cannot be run. Times are None until
    `measure`.
    """

    recipe: Recipe
    graph: Path
    bytes: int
    checks: dict[str, float] = field(default_factory=dict)
    refused: str | None = None
    query_ms: float | None = None
    bulk_tokens_per_s: float | None = None

    def describe(self, outcome: str) -> Candidate:
        # JSON has no NaN; report 0 for a vector that is not finite.
        cosines = {name: float(np.nan_to_num(round(self.checks.get(name, 0.0), 6))) for name in COSINES}
        return Candidate(
            name=self.recipe.name,
            quantisation=self.recipe.quantisation,
            outcome=f"refused: {self.refused}" if self.refused else outcome,
            bytes=self.bytes,
            query_ms=self.query_ms and round(self.query_ms, 3),
            bulk_tokens_per_s=self.bulk_tokens_per_s and round(self.bulk_tokens_per_s),
            **cosines,
        )


class Workshop:
    """Builds candidates of one encoder in the folder `scratch` and compares them with its fp32 graph `plain`."""

    def __init__(
        self, folder: Path, shape: Shape, material: TokenizedTexts, scratch: Path, progress: Progress
    ) -> None:
        self._weights = ModelWeights(folder)
        self._shape, self._material, self._scratch, self._progress = shape, material, scratch, progress
        self.plain = scratch / "plain.onnx"
        save(build(Graph(self._weights, FP32.precision), shape), self.plain)
        self._hard = material.feeds(sorted(texts.hard_texts(), key=len))
        self._passages = material.feeds(sorted(material.passages, key=len))
        mixed = [*texts.hard_texts(), *material.passages]
        mixed = mixed[:: max(1, len(mixed) // BATCH_TEXTS)][:BATCH_TEXTS]
        self._alone, self._together = material.feeds(mixed, 1), material.feeds(mixed, len(mixed))
        running = session(self.plain)
        self._plain_vectors = [vectors(running, feeds) for feeds in (self._hard, self._passages)]

    def attempt(self, recipe: Recipe) -> Trial:
        """Build and check a candidate; it is refused if it cannot be run or falls below one of its floors."""
        self._progress(f"building and checking {recipe.name}")
        ranges = self._ranges if recipe.calibrated else None
        graph = self._scratch / f"{recipe.name}.onnx"
        files = save(build(Graph(self._weights, recipe.precision, ranges), self._shape), graph)
        trial = Trial(recipe, graph, sum(file.stat().st_size for file in files))
        try:
            trial.checks = self._checks(session(graph))
        except Exception as error:  # noqa: BLE001 - the runtime's errors have no common base
            # Older runtimes lack some kernels; the other candidates may still work.
            trial.refused = f"it cannot be run here: {str(error).splitlines()[0]}"
        else:
            scores = self._shape.makes == "scores"
            trial.refused = find_failure(trial.checks, SCORE_FLOORS if scores else recipe.floors)
        return trial

    def known_answers(self, trial: Trial) -> Floats:
        return vectors(session(trial.graph), self._material.known())

    def similarity_floor(self, trial: Trial) -> float:
        """The UNRELATED quantile of cosines between the bundled passages, each as a query for every other one.

        On questions about sentences of an encyclopedia, 1 percent of the right answers lie below all-MiniLM-L6-v2's
        floor (.2), and 2 to 5 percent below multilingual-e5-small's (.8); those that contain the question's words are
        still shown.
        """
        running = session(trial.graph)
        queries, documents = (vectors(running, feeds) for feeds in self._material.both_sides(texts.PASSAGES))
        similarities = np.stack([cosines(documents, query[None]) for query in queries])
        return float(np.quantile(similarities[~np.eye(len(similarities), dtype=bool)], UNRELATED))

    def measure(self, trials: Sequence[Trial]) -> None:
        """Record the shortest of many runs of each graph that works.

        Uses CPU time, which does not include other processes. Graphs take turns so that other load affects all of them,
        and are reopened every round because memory placement of the weights changes times by a tenth.
        """
        query, bulk = self._material.noise(1, QUERY_TOKENS), self._material.noise(BULK_TEXTS, BULK_TOKENS)
        for _ in range(ROUNDS):
            for trial in (each for each in trials if each.checks):
                running = open_session(trial.graph, threads=1)
                rate = BULK_TEXTS * BULK_TOKENS / _cpu_s(running, bulk)
                trial.bulk_tokens_per_s = max(trial.bulk_tokens_per_s or 0.0, rate)
                query_ms = 1e3 * min(_cpu_s(running, query) for _ in range(QUERIES_A_ROUND))
                trial.query_ms = min(trial.query_ms or math.inf, query_ms)

    def _checks(self, running: onnxruntime.InferenceSession) -> dict[str, float]:
        hard, passages = (
            cosines(vectors(running, feeds), plain)
            for feeds, plain in zip((self._hard, self._passages), self._plain_vectors)
        )
        alone = cosines(vectors(running, self._alone), vectors(running, self._together))
        return {
            "cosine_min": float(np.min([hard.min(), passages.min()])),
            "cosine_mean": float(passages.mean()),
            "hard_cosine_mean": float(hard.mean()),
            "alone_vs_batch_min": float(alone.min()),
            "texts": float(len(hard) + len(passages)),
        }

    @cached_property
    def _ranges(self) -> dict[str, Range]:
        return observe(self._weights, self._shape, self._material.calibration(), self._scratch)


def observe(weights: ModelWeights, shape: Shape, feeds: Sequence[Feed], scratch: Path) -> dict[str, Range]:
    """The range of each product's input over real tokens, ignoring padding, by the product's name."""
    from onnx import TensorProto, helper

    graph = Graph(weights, FP32.precision)
    model = build(graph, shape)
    inputs = list(dict.fromkeys(graph.product_inputs.values()))
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inputs)
    probe = scratch / "probe.onnx"
    save(model, probe)
    running = session(probe)
    seen = dict.fromkeys(inputs, (0.0, 0.0))
    for feed in feeds:
        real = feed["attention_mask"].astype(bool)
        for name, values in zip(inputs, running.run(inputs, feed)):
            low, high = seen[name]
            seen[name] = min(low, float(values[real].min())), max(high, float(values[real].max()))
    return {product: seen[name] for product, name in graph.product_inputs.items()}


def _cpu_s(running: onnxruntime.InferenceSession, feed: Feed) -> float:
    """CPU time of this thread, the only one of a single-threaded session."""
    started = time.thread_time()
    running.run([OUTPUT], feed)
    return time.thread_time() - started


def find_failure(checks: Mapping[str, float], floors: Mapping[str, float]) -> str | None:
    """A message about the first figure below its floor; None if there is none."""
    for what, floor in floors.items():
        if not checks[what] >= floor:  # written so that NaN fails too
            return f"{what} is {checks[what]:.4f}, below {floor}"
    return None


def choose(trials: Sequence[Trial]) -> Trial:
    """The trial with the highest mean cosine among those within `NOISE` of the fastest query. Raises InvalidInput with
    every reason if all were refused.
    """
    passed = [trial for trial in trials if trial.refused is None]
    if not passed:
        reasons = "; ".join(f"{trial.recipe.name}: {trial.refused}" for trial in trials)
        raise InvalidInput(f"refused, nothing was written: {reasons}")
    bound = min(trial.query_ms or 0.0 for trial in passed) * (1 + NOISE)
    near = [trial for trial in passed if (trial.query_ms or 0.0) <= bound]
    return max(near, key=lambda trial: trial.checks["cosine_mean"])
