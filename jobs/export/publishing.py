"""Write a model folder whole: into a draft beside it, sealed, then renamed into its place.

An older folder of that name steps aside first: a crash between the two renames leaves it as `.NAME.old`.
"""

from __future__ import annotations

import importlib.metadata
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from indexes.durable import disk_errors, publish_folder, sha256
from jobs.export.running import copy
from jobs.export.shapes import Shape
from retrieval.embedding.models import (
    FORMAT_VERSION,
    MANIFEST,
    TOKENIZER,
    Candidate,
    FileSeal,
    KnownAnswer,
    Manifest,
    Variant,
    fingerprint,
)


@dataclass(frozen=True)
class Exported:
    """All that an export found out about a model. `graphs`: the kept one, then its fallbacks, and where they lie."""

    name: str
    label: str
    shape: Shape
    graphs: list[tuple[Variant, Path]]
    tokenizer: Path
    known_answers: list[KnownAnswer]
    checks: dict[str, float]
    fused: dict[str, int]
    candidates: list[Candidate]


def publish(exported: Exported, out: Path) -> Manifest:
    """Put the model in the place of the folder `out` and return its manifest."""
    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with disk_errors(out):
            draft.mkdir(parents=True)
            files = [file for variant, path in exported.graphs for file in copy(path, draft / variant.file)]
            files.append(Path(shutil.copyfile(exported.tokenizer, draft / TOKENIZER)))
            seals = {file.name: FileSeal(sha256(file), file.stat().st_size) for file in files}
            manifest = _manifest(exported, seals)
            (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
            _replace(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


def _manifest(exported: Exported, files: dict[str, FileSeal]) -> Manifest:
    shape = exported.shape
    (kept, _), *fallbacks = exported.graphs
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=exported.name,
        fingerprint="",
        dimensions=shape.dimensions,
        tokens_max=shape.tokens_max,
        pooling=shape.pooling,
        normalise=shape.normalise,
        query_prefix=shape.query_prefix,
        document_prefix=shape.document_prefix,
        quantisation=kept.quantisation,
        files=files,
        known_answers=exported.known_answers,
        checks={what: round(value, 6) for what, value in exported.checks.items()},
        source=exported.label,
        created_with=_versions(),
        architecture=shape.architecture,
        fused=exported.fused,
        variant=kept.name,
        fallbacks=[variant for variant, _ in fallbacks],
        candidates=exported.candidates,
    )
    return msgspec.structs.replace(manifest, fingerprint=fingerprint(manifest))


def _replace(draft: Path, out: Path) -> None:
    """A folder cannot be renamed over a full one: the old one steps aside, and comes back if the new one fails."""
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
            continue  # not needed for every source
    return versions
