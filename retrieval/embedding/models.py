"""Find an exported model, and verify every byte of it before anything is parsed.

    models/<name>/manifest.json    what the model is: see Manifest
                  model.onnx       int8 graph: input_ids, attention_mask -> one vector a text
                  tokenizer.json   of the `tokenizers` library

`nearline export-model` writes the folder; this module only reads it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from indexes.durable import verify
from indexes.errors import Damaged, InvalidInput, NotFound

FORMAT_VERSION = 1
MANIFEST, MODEL, TOKENIZER = "manifest.json", "model.onnx", "tokenizer.json"
REMEDY = "create it with: nearline export-model"

Kind = Literal["query", "document"]
Pooling = Literal["mean", "cls"]


class FileSeal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the bytes of one file must be."""

    sha256: str
    bytes: int


class KnownAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document text and the vector the exporter's machine gave it; any machine must come close."""

    text: str
    vector: list[float]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about a model. Only what shapes vectors enters the fingerprint."""

    format_version: int
    name: str
    fingerprint: str
    dimensions: int
    tokens_max: int  # special tokens included; longer texts are cut
    pooling: Pooling
    normalise: bool  # vectors have length 1
    query_prefix: str
    document_prefix: str
    quantisation: str
    files: dict[str, FileSeal]
    known_answers: list[KnownAnswer]
    checks: dict[str, float]  # measured by the exporter: cosine_min, cosine_mean, ...
    source: str
    created_with: dict[str, str]


@dataclass(frozen=True)
class Model:
    """A verified model folder. Only `load_model` makes one, so who holds a Model holds checked bytes."""

    folder: Path
    manifest: Manifest

    @property
    def model_path(self) -> Path:
        return self.folder / MODEL

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / TOKENIZER


def load_model(folder: Path) -> Model:
    """The model in `folder`, every file checked against the manifest.

    Raises NotFound for a missing folder or manifest, InvalidInput for a format this version cannot read, and
    Damaged, naming path, expected and found, when bytes are missing or differ.
    """
    manifest = read_manifest(folder)
    for required in (MODEL, TOKENIZER):
        if required not in manifest.files:
            raise Damaged(f"{folder / MANIFEST} does not list {required}")
        if not (folder / required).is_file():
            raise NotFound(f"{folder / required} is missing; {REMEDY} --name {manifest.name}")
    for name, seal in manifest.files.items():
        verify(folder / name, seal.bytes, seal.sha256)
    if (found := fingerprint(manifest)) != manifest.fingerprint:
        raise Damaged(
            f"{folder / MANIFEST} has fingerprint {manifest.fingerprint}; its contents give {found}"
        )
    return Model(folder, manifest)


def read_manifest(folder: Path) -> Manifest:
    """The manifest alone, of a version this code reads; the files it lists are not looked at."""
    path = folder / MANIFEST
    if not path.is_file():
        raise NotFound(f"no model at {folder}; {REMEDY} --name {folder.name}")
    content = path.read_bytes()
    try:
        version = msgspec.json.decode(content, type=_Version).format_version
        if version != FORMAT_VERSION:
            raise InvalidInput(
                f"{path} has format {version}; this version reads {FORMAT_VERSION}. Re-{REMEDY}"
            )
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise Damaged(f"{path} is not a model manifest: {error}") from error


class _Version(msgspec.Struct):
    format_version: int


def find_models(root: Path) -> dict[str, Path]:
    """Folders below `root` that hold a manifest, by folder name; nothing is verified. {} when `root` is missing."""
    if not root.is_dir():
        return {}
    return {path.parent.name: path.parent for path in sorted(root.glob(f"*/{MANIFEST}"))}


def fingerprint(manifest: Manifest) -> str:
    """Hash of all that shapes a vector; the same model exported on another day or machine keeps it."""
    parts = {
        "model": manifest.files[MODEL].sha256,
        "tokenizer": manifest.files[TOKENIZER].sha256,
        "quantisation": manifest.quantisation,
        "pooling": manifest.pooling,
        "normalise": manifest.normalise,
        "query_prefix": manifest.query_prefix,
        "document_prefix": manifest.document_prefix,
        "tokens_max": manifest.tokens_max,
        "dimensions": manifest.dimensions,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
