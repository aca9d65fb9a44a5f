"""Write a model folder whole: into a draft beside it, sealed, then renamed into its place.

An older folder of that name steps aside first: a crash between the two renames leaves it as `.NAME.old`.
"""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import msgspec

from indexes.durable import disk_errors, publish_folder, sha256
from jobs.export.running import save
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


def publish(
    out: Path,
    *,
    name: str,
    label: str,
    shape: Shape,
    graphs: list[tuple[Variant, Path]],
    tokenizer: Path,
    known_answers: list[KnownAnswer],
    checks: dict[str, float],
    candidates: list[Candidate],
) -> Manifest:
    """Put the model in the place of the folder `out` and return its manifest.

    `graphs`: the kept one, then its fallbacks, and where they were saved.
    """
    import onnx

    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with disk_errors(out):
            draft.mkdir(parents=True)
            files = [Path(shutil.copyfile(tokenizer, draft / TOKENIZER))]
            for variant, path in graphs:
                files += save(onnx.load(path), draft / variant.file)
            (kept, _), *fallbacks = graphs
            manifest = Manifest(
                format_version=FORMAT_VERSION,
                name=name,
                fingerprint="",
                dimensions=shape.dimensions,
                tokens_max=shape.tokens_max,
                pooling=shape.pooling,
                normalise=shape.normalise,
                query_prefix=shape.query_prefix,
                document_prefix=shape.document_prefix,
                quantisation=kept.quantisation,
                files={file.name: FileSeal(sha256(file), file.stat().st_size) for file in files},
                known_answers=known_answers,
                checks={what: round(value, 6) for what, value in checks.items()},
                source=label,
                created_with=_versions(),
                architecture=shape.architecture,
                variant=kept.name,
                fallbacks=[variant for variant, _ in fallbacks],
                candidates=candidates,
            )
            manifest = msgspec.structs.replace(manifest, fingerprint=fingerprint(manifest))
            (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
            _replace(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


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
