"""Exports an encoder: find it, build its graph in several precisions, measure them, publish the fastest accurate one.

    source --sources--> folder --architectures x recipes--> graphs --trials--> the fastest within the floors
           --publish--> models/<name>/{model.onnx, model.weights, fallback.onnx, ..., tokenizer.json, manifest.json}

Nothing is written if no candidate meets the accuracy floors. PyTorch is not needed; if sentence-transformers is
installed, the fp32 graph must reproduce its vectors.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from indexes.base.durable import disk_errors, publish_folder, sha256
from indexes.base.errors import InvalidInput, NotFound
from indexes.base.languages import CODE
from indexes.base.model import Floats
from jobs.models.export import recipes, shapes, sources, texts
from jobs.models.export.recipes import RECIPES
from jobs.models.export.running import cosines, save, session, vectors
from jobs.models.export.shapes import Shape
from jobs.models.export.sources import DEFAULT_NAME, Progress
from jobs.models.export.texts import TokenizedTexts
from jobs.models.export.trials import Trial, Workshop, choose
from retrieval.embedding import models
from retrieval.embedding.models import ModelManifest, Pooling, Variant

SOURCE_COSINE_MIN = 0.9999  # between the fp32 graph and sentence-transformers
REFERENCE_TEXTS = 64
FALLBACK_MARGIN = 0.001  # fp32 arithmetic differs between machines only in its last bits


@dataclass(frozen=True)
class ExportOptions:
    """Options beyond source and name.

    The prefixes, `pooling`, `tokens_max` and `languages` (BCP 47 codes) override the source's. `calibrate`: a text
    file, one text per line, that replaces the bundled texts. `only`: build and keep this candidate, without measuring
    times.
    """

    query_prefix: str | None = None
    document_prefix: str | None = None
    pooling: Pooling | None = None
    tokens_max: int | None = None
    languages: tuple[str, ...] | None = None
    calibrate: Path | None = None
    only: str | None = None


def export_model(
    source: str | None,
    out: Path,
    *,
    name: str = DEFAULT_NAME,
    progress: Progress,
    options: ExportOptions | None = None,
) -> ModelManifest:
    """Write the model to the folder `out`, replacing all of it, and return the manifest.

    `source`: a folder, a hub repository, "wheel", "hub", or None to find the default model. Raises NotFound or
    Unavailable with the remedy if something is missing, and InvalidInput if the encoder cannot be exported or no
    candidate meets the floors.
    """
    options = options or ExportOptions()
    _check(options)
    with sources.find(source, name, progress) as found, tempfile.TemporaryDirectory() as folder:
        shape = _shape(found.folder, options)
        material = TokenizedTexts(found.folder, shape, options.calibrate)
        progress(f"building the graph from {found.label}")
        workshop = Workshop(found.folder, shape, material, Path(folder), progress)
        checks: dict[str, float] = {}
        if options.pooling is None:  # with the caller's own pooling there is no reference
            checks = _compare_with_source(workshop.plain, found.folder, shape, material)
        tried = _try(workshop, options.only or found.candidate, progress)
        kept = tried.kept
        languages = options.languages or found.languages
        manifest = ModelManifest(
            format_version=models.FORMAT_VERSION,
            name=name,
            fingerprint="",
            dimensions=shape.dimensions,
            tokens_max=shape.tokens_max,
            pooling=shape.pooling,
            normalise=shape.normalise,
            query_prefix=shape.query_prefix,
            document_prefix=shape.document_prefix,
            quantisation=kept.recipe.quantisation,
            files={},
            known_answers=[
                models.KnownAnswer(text, [round(float(value), 5) for value in vector], query)
                for text, vector, query in zip(
                    texts.KNOWN_ANSWER_TEXTS, tried.answers, material.known_queries
                )
            ],
            checks={what: round(value, 6) for what, value in (checks | tried.checks).items()},
            source=found.label,
            created_with={},
            architecture=shape.architecture,
            variant=kept.recipe.name,
            fallbacks=tried.fallbacks,
            candidates=tried.candidates,
            makes=shape.makes,
            languages=None if languages is None else list(languages),
            similarity_floor=round(workshop.similarity_floor(kept), 2) if shape.makes == "vectors" else 0.0,
        )
        return publish(manifest, tried.graphs, material.path, out)


def _check(options: ExportOptions) -> None:
    """Raises NotFound or InvalidInput before anything is fetched."""
    if importlib.util.find_spec("onnx") is None:
        raise NotFound("exporting a model needs onnx: pip install onnx")
    if options.only not in {None, *RECIPES}:
        raise InvalidInput(f"no candidate {options.only!r}; there are {', '.join(RECIPES)}", param="only")
    for code in options.languages or ():
        if not CODE.fullmatch(code):
            raise InvalidInput(f"{code!r} is not a BCP 47 code such as en or pt-BR", param="languages")


def _shape(folder: Path, options: ExportOptions) -> Shape:
    shape = shapes.shape(folder, pooling=options.pooling, tokens_max=options.tokens_max)
    if options.query_prefix is not None:
        shape = replace(shape, query_prefix=options.query_prefix)
    if options.document_prefix is not None:
        shape = replace(shape, document_prefix=options.document_prefix)
    return shape


@dataclass
class Chosen:
    """The chosen candidate, its vectors of the known answers, and what is published about the trials."""

    kept: Trial
    answers: Floats
    checks: dict[str, float]
    candidates: list[models.Candidate]
    graphs: list[Path]
    fallbacks: list[Variant] = field(default_factory=list)


def _try(workshop: Workshop, only: str | None, progress: Progress) -> Chosen:
    names = [only] if only else [name for name in RECIPES if name != recipes.SMALL]
    trials = [workshop.attempt(RECIPES[name]) for name in names]
    if len(trials) > 1:
        progress("measuring times")
        workshop.measure(trials)
    kept = choose(trials)
    candidates = [trial.describe("kept" if trial is kept else "slower") for trial in trials]
    tried = Chosen(kept, workshop.known_answers(kept), dict(kept.checks), candidates, [kept.graph])
    if kept.recipe.fallback is not None:
        spare = workshop.attempt(kept.recipe.fallback)
        if len(trials) > 1:
            workshop.measure([spare])
        candidates.append(spare.describe("fallback"))
        if spare.refused is None:
            agreement = float(cosines(workshop.known_answers(spare), tried.answers).min())
            tried.checks["fallback_vs_known_answers_min"] = agreement
            # Machines where the kept graph fails serve this one, if it matches the known answers there as it does here.
            floor = min(models.KNOWN_ANSWER_COSINE_MIN, round(agreement - FALLBACK_MARGIN, 3))
            recipe = spare.recipe
            tried.fallbacks.append(Variant(recipe.name, models.FALLBACK, recipe.quantisation, floor))
            tried.graphs.append(spare.graph)
    return tried


def _compare_with_source(plain: Path, folder: Path, shape: Shape, material: TokenizedTexts) -> dict[str, float]:
    """The lowest cosine between the fp32 graph and sentence-transformers, as a check; {} if that is not installed.

    Raises InvalidInput if it is below SOURCE_COSINE_MIN.
    """
    checked = texts.hard_texts()[:REFERENCE_TEXTS]
    if (original := reference(folder, checked, shape)) is None:
        return {}
    least = float(cosines(vectors(session(plain), material.feeds(checked)), original).min())
    if not least >= SOURCE_COSINE_MIN:  # written so that NaN fails too
        raise InvalidInput(
            f"cannot export {shape.architecture}: fp32_vs_source_min is {least:.4f}, below {SOURCE_COSINE_MIN}; the "
            "graph computes something else than sentence-transformers does; nothing was written"
        )
    return {"fp32_vs_source_min": least}


def reference(folder: Path, lines: Sequence[str], shape: Shape) -> Floats | None:
    """Vectors of `lines` by sentence-transformers, or None if it is not installed. For a reranker, scores of pairs."""
    if shape.makes == "scores":
        return _scores(folder, lines, shape)
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return None
    loaded = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    loaded.max_seq_length = shape.tokens_max
    # The empty prompt overrides the source's default prompt.
    found = loaded.float().encode(
        list(lines), prompt="", normalize_embeddings=shape.normalise, show_progress_bar=False
    )
    return np.asarray(found, dtype=np.float32)


def _scores(folder: Path, lines: Sequence[str], shape: Shape) -> Floats | None:
    """Scores by transformers, which sentence-transformers uses to run cross-encoders."""
    try:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
    except ImportError:
        return None
    local = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)  # nosec B615 # a folder
    model = local.float().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)  # nosec B615 # a folder
    pairs = [(texts.query_for(line), line) for line in lines]
    inputs = tokenizer(
        pairs,
        truncation=True,
        max_length=shape.tokens_max,
        padding=True,
        return_token_type_ids=True,
        return_tensors="pt",
    )
    with torch.inference_mode():
        return np.asarray(model(**inputs).logits, dtype=np.float32)


# -- publishing -------------------------------------------------------------------------------------------------------


def publish(manifest: ModelManifest, graphs: Sequence[Path], tokenizer: Path, out: Path) -> ModelManifest:
    """Write the model to a draft next to `out`, swap it in, and return the sealed manifest.

    `graphs` are the saved graphs of `manifest.variants`. Sealing fills in files, fingerprint and versions.
    """
    import onnx

    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with disk_errors(out):
            draft.mkdir(parents=True)
            files = [Path(shutil.copyfile(tokenizer, draft / models.TOKENIZER))]
            for variant, graph in zip(manifest.variants, graphs):
                files += save(onnx.load(graph), draft / variant.file)
            seals = {file.name: models.FileSeal(sha256(file), file.stat().st_size) for file in files}
            sealed = msgspec.structs.replace(manifest, files=seals, created_with=_versions())
            sealed = msgspec.structs.replace(sealed, fingerprint=models.fingerprint(sealed))
            (draft / models.MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(sealed), indent=2))
            _replace(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return sealed


def _replace(draft: Path, out: Path) -> None:
    """Move the old folder aside, since rename cannot replace a nonempty one, and restore it if publishing fails.

    A crash between the two renames leaves it as `.NAME.old`.
    """
    aside = out.with_name(f".{out.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if out.exists():
        out.rename(aside)
    try:
        publish_folder(draft, out)
    except BaseException:
        if aside.exists() and not out.exists():
            aside.rename(out)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _versions() -> dict[str, str]:
    versions = {}
    for package in ("onnxruntime", "onnx", "tokenizers", "torch", "sentence-transformers"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # some are optional
    return versions
