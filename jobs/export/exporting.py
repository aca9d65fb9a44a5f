"""Export an encoder: find it, fuse it, make it small in several ways, measure them, publish the fastest that is true.

    source --sources--> folder --graphs--> fused fp32 graph --candidates--> seven graphs
           --measuring--> the fastest within the floors, and its fallback
           --publishing--> models/<name>/{model.onnx, model.weights, fallback.onnx, ..., tokenizer.json, manifest.json}

Nothing is written below the floors. PyTorch is needed only where an encoder of the BERT family comes without an ONNX
graph.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from indexes.errors import InvalidInput, NotFound
from indexes.model import Floats
from jobs.export import graphs, shapes, sources, texts
from jobs.export.candidates import RECIPES, SMALL, Recipe
from jobs.export.choosing import Workshop, choose, fallback, outcome
from jobs.export.measuring import FLOORS, SMALL_FLOORS
from jobs.export.publishing import Exported, publish
from jobs.export.running import cosines, session, vectors
from jobs.export.shapes import Shape
from jobs.export.sources import DEFAULT_NAME, Source
from jobs.export.tokens import Texts
from retrieval.embedding.models import MODEL, Candidate, KnownAnswer, Manifest, Pooling, Variant

Progress = Callable[[str], None]

SOURCE_COSINE_MIN = 0.9999  # of the fp32 graph to sentence-transformers
REFERENCE_TEXTS = 64


@dataclass(frozen=True)
class Options:
    """What the caller asks for beyond source and name.

    The prefixes, `pooling` and `tokens_max` override what the source says. `calibrate`: a text file, one text a line,
    used instead of the bundled texts. `only`: build this candidate and keep it, without measuring times. `small`: the
    same for the smallest one, held against lower floors.
    """

    query_prefix: str | None = None
    document_prefix: str | None = None
    pooling: Pooling | None = None
    tokens_max: int | None = None
    calibrate: Path | None = None
    only: str | None = None
    small: bool = False


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
    _require_onnx()
    recipes = _recipes(options)
    floors = SMALL_FLOORS if options.small else FLOORS
    with sources.find(source, name, progress) as found, tempfile.TemporaryDirectory() as folder:
        shape = _with_prefixes(
            shapes.shape(found.folder, pooling=options.pooling, tokens_max=options.tokens_max), options
        )
        material = Texts(found.folder, shape, options.calibrate)
        progress(f"building the graph from {found.label}")
        fused = graphs.fused(found, shape, Path(folder))
        workshop = Workshop(fused.model, material, Path(folder))
        checks = _compare_with_source(workshop.plain, found, shape, material, options)
        choice = _choose(workshop, recipes, floors, progress)
        exported = Exported(
            name=name,
            label=found.label,
            shape=shape,
            graphs=choice.graphs,
            tokenizer=material.path,
            known_answers=_known_answers(choice.answers),
            checks=checks | choice.checks,
            fused=fused.operators,
            candidates=choice.candidates,
        )
        return publish(exported, out)


def _require_onnx() -> None:
    missing = [module for module in ("onnx", "sympy") if importlib.util.find_spec(module) is None]
    if missing:
        raise NotFound(f"exporting a model needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def _recipes(options: Options) -> list[Recipe]:
    if options.small and options.only not in {None, SMALL}:
        raise InvalidInput(f"the small candidate is {SMALL}, not {options.only}", param="only")
    if (only := SMALL if options.small else options.only) is None:
        return list(RECIPES.values())
    if only not in RECIPES:
        raise InvalidInput(f"no candidate {only!r}; there are {', '.join(RECIPES)}", param="only")
    return [RECIPES[only]]


def _with_prefixes(shape: Shape, options: Options) -> Shape:
    return replace(
        shape,
        query_prefix=shape.query_prefix if options.query_prefix is None else options.query_prefix,
        document_prefix=shape.document_prefix if options.document_prefix is None else options.document_prefix,
    )


def _compare_with_source(
    plain: Path, source: Source, shape: Shape, material: Texts, options: Options
) -> dict[str, float]:
    """How near the fp32 graph comes to sentence-transformers, where that is installed; {} elsewhere."""
    checked = texts.hard_texts()[:REFERENCE_TEXTS]
    original = graphs.reference(source, checked, shape, own_pooling=options.pooling is None)
    if original is None:
        return {}
    least = float(cosines(vectors(session(plain), material.feeds(checked)), original).min())
    if not least >= SOURCE_COSINE_MIN:  # written so that NaN fails too
        raise InvalidInput(
            f"cannot export {shape.architecture}: fp32_vs_source_min is {least:.4f}, below {SOURCE_COSINE_MIN}; the "
            "graph computes something else than sentence-transformers does; nothing was written"
        )
    return {"fp32_vs_source_min": least}


@dataclass(frozen=True)
class _Choice:
    answers: Floats
    checks: dict[str, float]
    graphs: list[tuple[Variant, Path]]
    candidates: list[Candidate]


def _choose(
    workshop: Workshop, recipes: Sequence[Recipe], floors: Mapping[str, float], progress: Progress
) -> _Choice:
    """Build, check and time the candidates, take the best, and give it its fallback."""
    built = []
    for recipe in recipes:
        progress(f"building and checking {recipe.name}")
        built.append(workshop.build(recipe, floors))
    timed = {}
    if len(built) > 1:
        progress("measuring times")
        timed = workshop.speeds(built)
    kept = choose(built, timed)
    answers = workshop.known_answers(kept)
    candidates = [each.described(outcome(each, kept), timed.get(each.name)) for each in built]
    files = [(Variant(kept.name, MODEL, kept.recipe.quantisation), kept.graph)]
    checks = kept.accuracy.figures()
    if (spare := fallback(workshop, kept, answers, floors)) is not None:
        refused = spare.built.refused
        speed = workshop.speeds([spare.built]).get(spare.built.name) if timed else None
        candidates.append(spare.built.described(f"refused: {refused}" if refused else "fallback", speed))
        if refused is None:
            checks["fallback_vs_known_answers_min"] = spare.agreement
            files.append((spare.variant, spare.built.graph))
    return _Choice(answers, checks, files, candidates)


def _known_answers(answers: Floats) -> list[KnownAnswer]:
    return [
        KnownAnswer(text, [round(float(value), 5) for value in vector])
        for text, vector in zip(texts.KNOWN_ANSWER_TEXTS, answers)
    ]
