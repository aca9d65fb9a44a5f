"""Export an encoder: find it, build its graph in several precisions, measure them, publish the fastest that is true.

    source --sources--> folder --architectures x recipes--> graphs --trials--> the fastest within the floors
           --publishing--> models/<name>/{model.onnx, model.weights, fallback.onnx, ..., tokenizer.json, manifest.json}

Nothing is written below the floors. PyTorch is not needed; where sentence-transformers is installed, the fp32 graph
must give its vectors.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from indexes.errors import InvalidInput, NotFound
from indexes.model import Floats
from jobs.export import recipes, shapes, sources, texts
from jobs.export.publishing import publish
from jobs.export.recipes import RECIPES, Recipe
from jobs.export.running import cosines, session, vectors
from jobs.export.shapes import Shape
from jobs.export.sources import DEFAULT_NAME
from jobs.export.texts import Texts
from jobs.export.trials import Trial, Workshop, choose
from retrieval.embedding.models import (
    FALLBACK,
    KNOWN_ANSWER_COSINE_MIN,
    MODEL,
    KnownAnswer,
    Manifest,
    Pooling,
    Variant,
)

Progress = Callable[[str], None]

SOURCE_COSINE_MIN = 0.9999  # of the fp32 graph to sentence-transformers
REFERENCE_TEXTS = 64
FALLBACK_MARGIN = 0.001  # fp32 arithmetic differs between machines in its last bits only
POOLING_MODES = {"mean": "mean", "cls": "cls", "last": "lasttoken"}  # sentence-transformers' names


@dataclass(frozen=True)
class Options:
    """What the caller asks for beyond source and name.

    The prefixes, `pooling` and `tokens_max` override what the source says. `calibrate`: a text file, one text a line,
    used instead of the bundled texts. `only`: build this candidate and keep it, without measuring times.
    """

    query_prefix: str | None = None
    document_prefix: str | None = None
    pooling: Pooling | None = None
    tokens_max: int | None = None
    calibrate: Path | None = None
    only: str | None = None


def export_model(
    source: str | None,
    out: Path,
    *,
    name: str = DEFAULT_NAME,
    progress: Progress,
    options: Options | None = None,
) -> Manifest:
    """Write the model into the folder `out`, which is replaced whole, and return its manifest.

    `source`: a folder, a hub repository, "wheel", "hub", or None to find the default model. Raises NotFound or
    Unavailable when something is missing, naming the remedy, and InvalidInput when the encoder cannot be exported or
    no candidate is within the floors.
    """
    options = options or Options()
    if importlib.util.find_spec("onnx") is None:
        raise NotFound("exporting a model needs onnx: pip install onnx")
    if options.only not in {None, *RECIPES}:
        raise InvalidInput(f"no candidate {options.only!r}; there are {', '.join(RECIPES)}", param="only")
    with sources.find(source, name, progress) as found, tempfile.TemporaryDirectory() as folder:
        shape = _shape(found.folder, options)
        material = Texts(found.folder, shape, options.calibrate)
        progress(f"building the graph from {found.label}")
        workshop = Workshop(found.folder, shape, material, Path(folder))
        checks = _compare_with_source(workshop.plain, found.folder, shape, material, options)
        names = [options.only] if options.only else [name for name in RECIPES if name != recipes.SMALL]
        trials = [_attempt(workshop, RECIPES[name], progress) for name in names]
        if len(trials) > 1:
            progress("measuring times")
            workshop.measure(trials)
        kept = choose(trials)
        answers = workshop.known_answers(kept)
        variants = [(Variant(kept.recipe.name, MODEL, kept.recipe.quantisation), kept.graph)]
        candidates = [trial.described("kept" if trial is kept else "slower") for trial in trials]
        if kept.recipe.fallback is not None:
            spare = _attempt(workshop, kept.recipe.fallback, progress)
            if len(trials) > 1:
                workshop.measure([spare])
            candidates.append(spare.described("fallback"))
            if spare.refused is None:
                agreement = float(cosines(workshop.known_answers(spare), answers).min())
                checks["fallback_vs_known_answers_min"] = agreement
                variants.append((_fallback(spare.recipe, agreement), spare.graph))
        return publish(
            out,
            name=name,
            label=found.label,
            shape=shape,
            graphs=variants,
            tokenizer=material.path,
            known_answers=_known_answers(answers),
            checks=checks | kept.checks,
            candidates=candidates,
        )


def _shape(folder: Path, options: Options) -> Shape:
    found = shapes.shape(folder, pooling=options.pooling, tokens_max=options.tokens_max)
    query, document = options.query_prefix, options.document_prefix
    return replace(
        found,
        query_prefix=found.query_prefix if query is None else query,
        document_prefix=found.document_prefix if document is None else document,
    )


def _attempt(workshop: Workshop, recipe: Recipe, progress: Progress) -> Trial:
    progress(f"building and checking {recipe.name}")
    return workshop.attempt(recipe)


def _fallback(recipe: Recipe, agreement: float) -> Variant:
    """What serves where the kept graph computes something else, if it comes about as near to it there as here."""
    floor = min(KNOWN_ANSWER_COSINE_MIN, round(agreement - FALLBACK_MARGIN, 3))
    return Variant(recipe.name, FALLBACK, recipe.quantisation, floor)


def _known_answers(answers: Floats) -> list[KnownAnswer]:
    return [
        KnownAnswer(text, [round(float(value), 5) for value in vector])
        for text, vector in zip(texts.KNOWN_ANSWER_TEXTS, answers)
    ]


def _compare_with_source(
    plain: Path, folder: Path, shape: Shape, material: Texts, options: Options
) -> dict[str, float]:
    """How near the fp32 graph comes to sentence-transformers, where that is installed; {} elsewhere."""
    checked = texts.hard_texts()[:REFERENCE_TEXTS]
    original = reference(folder, checked, shape, own_pooling=options.pooling is None)
    if original is None:
        return {}
    least = float(cosines(vectors(session(plain), material.feeds(checked)), original).min())
    if not least >= SOURCE_COSINE_MIN:  # written so that NaN fails too
        raise InvalidInput(
            f"cannot export {shape.architecture}: fp32_vs_source_min is {least:.4f}, below {SOURCE_COSINE_MIN}; the "
            "graph computes something else than sentence-transformers does; nothing was written"
        )
    return {"fp32_vs_source_min": least}


def reference(folder: Path, lines: Sequence[str], shape: Shape, *, own_pooling: bool = True) -> Floats | None:
    """Vectors of `lines` by sentence-transformers itself, or None where it is not installed.

    `own_pooling`: as the source says; otherwise as `shape` does, for a caller who overrode it.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return None
    loaded = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    if not own_pooling:
        from sentence_transformers.models import Pooling as PoolingModule

        pooling = PoolingModule(shape.dimensions, pooling_mode=POOLING_MODES[shape.pooling])
        loaded = SentenceTransformer(modules=[loaded[0], pooling], device="cpu")
    loaded.max_seq_length = shape.tokens_max
    # An empty prompt: without one, a default of the source's would be put before these texts.
    found = loaded.float().encode(
        list(lines), prompt="", normalize_embeddings=shape.normalise, show_progress_bar=False
    )
    return np.asarray(found, dtype=np.float32)
