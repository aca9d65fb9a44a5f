"""Find an exported model, and verify every byte of it before anything is parsed.

    models/<name>/manifest.json    what the model is: see Manifest
                  model.onnx       the graph: input_ids, attention_mask -> one vector per text
                  model.weights    its weights, which sessions map into memory
                  fallback.onnx    the same in plain fp32 arithmetic, for machines that compute the other wrong
                  fallback.weights
                  tokenizer.json   for the `tokenizers` library

`nearline export-model` writes the folder; this module only reads it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from indexes.base.durable import verify
from indexes.base.errors import Damaged, InvalidInput, NotFound

FORMAT_VERSION = 1
MANIFEST, MODEL, FALLBACK, TOKENIZER = "manifest.json", "model.onnx", "fallback.onnx", "tokenizer.json"
WEIGHTS = ".weights"
KNOWN_ANSWER_COSINE_MIN = (
    0.99  # rounding differs a little between CPUs; saturating kernels fall far below this
)
SIMILARITY_FLOOR = 0.2  # of all-MiniLM-L6-v2, for manifests that name none
REMEDY = "create it with: nearline export-model"

Kind = Literal["query", "document"]
Makes = Literal["vectors", "scores"]  # vectors of texts, or, by a reranker, scores of query-passage pairs
Pooling = Literal["mean", "cls", "last"]


class FileSeal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expected size and hash of one file."""

    sha256: str
    bytes: int


class KnownAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A document text and the vector it got on the exporter's machine; any machine must come close.

    For a reranker: a passage, its score, and the `query` it was read with.
    """

    text: str
    vector: list[float]
    query: str | None = None


class Variant(msgspec.Struct, frozen=True):
    """One graph of the model: its file, and how close its vectors must come to the known answers."""

    name: str
    file: str
    quantisation: str
    known_answer_cosine_min: float = KNOWN_ANSWER_COSINE_MIN


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A graph that was built when the model was exported, with its measurements and whether it was kept.

    Times are the best of many on the exporter's machine, on one thread, and None if not measured. Cosines compare with
    the fp32 graph: the minimum of all, and the mean over passages.
    """

    name: str
    quantisation: str
    outcome: str  # "kept", "slower", "fallback", or why it was refused
    bytes: int
    query_ms: float | None  # one text of ten tokens
    bulk_tokens_per_s: float | None  # eight texts of sixty tokens
    cosine_min: float
    cosine_mean: float
    alone_vs_batch_min: float


class ModelManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a model. Only what shapes vectors enters the fingerprint.

    The fields with defaults were added later, so older manifests lack them.
    """

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
    architecture: str = ""  # as the source's configuration calls it
    variant: str = "model"  # which candidate model.onnx is
    fallbacks: list[Variant] = []  # further graphs, tried in order where model.onnx computes something else
    candidates: list[Candidate] = []
    languages: list[str] | None = None  # BCP 47 codes of the languages it reads; None if unknown
    similarity_floor: float = SIMILARITY_FLOOR  # cosine that few unrelated queries and documents reach
    makes: Makes = "vectors"

    @property
    def variants(self) -> list[Variant]:
        """Every graph in the folder, in the order in which they are tried."""
        return [Variant(self.variant, MODEL, self.quantisation), *self.fallbacks]


@dataclass(frozen=True)
class Model:
    """A verified model folder. Only `load_model` makes one, so its bytes have been checked."""

    folder: Path
    manifest: ModelManifest

    def path_of(self, variant: Variant) -> Path:
        return self.folder / variant.file

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / TOKENIZER


def load_model(folder: Path) -> Model:
    """Load the model in `folder`, checking every file against the manifest.

    Raises NotFound for a missing folder or manifest, InvalidInput for a format this version cannot read, and Damaged,
    naming path, expected and found, when bytes are missing or differ.
    """
    manifest = read_manifest(folder)
    for required in (TOKENIZER, *(variant.file for variant in manifest.variants)):
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


def read_manifest(folder: Path) -> ModelManifest:
    """Read only the manifest, of a version this code supports; the files it lists are not checked."""
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
        return msgspec.json.decode(content, type=ModelManifest)
    except msgspec.DecodeError as error:
        raise Damaged(f"{path} is not a model manifest: {error}") from error


class _Version(msgspec.Struct):
    format_version: int


def find_models(root: Path) -> dict[str, Path]:
    """Map names to the folders below `root` that hold a manifest; nothing is verified. {} if `root` is missing.

    Hidden folders are left out: they are drafts of an export, or what an export replaced.
    """
    if not root.is_dir():
        return {}
    return {path.parent.name: path.parent for path in sorted(root.glob(f"[!.]*/{MANIFEST}"))}


def weights_of(graph: Path) -> Path:
    """Return the path of a graph's large weights, if they are not in its own file."""
    return graph.with_suffix(WEIGHTS)


# SHA-256 of the default model's graph and weights, mapped to those that an earlier exporter wrote. Only names and order
# differ, and vectors are identical bit for bit, so collections of one can be searched with the other.
SAME_VECTORS = {
    "2e7993df35fc8cb7a0206bde317cbcc0ab9f18a25d617661be717e4bcfdd26f7":
        "44eabe7d5cdc93c5879980607a6721cf283248ebb26f31e449f323a1e90a1d5f",
    "f89bcde8c072fc14007e355ec417944a419b8cbbb9b9c09a45a6e124af5b7f8c":
        "4ac9e996aef4f03e2b224e9504decacc8cb0bdb7b34c219bd9fa026c88b4a2b1",
}  # fmt: skip


def fingerprint(manifest: ModelManifest) -> str:
    """Hash everything that shapes a vector. The same model exported on another day or machine keeps its fingerprint."""
    graph = manifest.files[MODEL].sha256
    parts = {
        "model": SAME_VECTORS.get(graph, graph),
        "tokenizer": manifest.files[TOKENIZER].sha256,
        "quantisation": manifest.quantisation,
        "pooling": manifest.pooling,
        "normalise": manifest.normalise,
        "query_prefix": manifest.query_prefix,
        "document_prefix": manifest.document_prefix,
        "tokens_max": manifest.tokens_max,
        "dimensions": manifest.dimensions,
    }
    if manifest.makes != "vectors":
        parts["makes"] = manifest.makes
    if (weights := manifest.files.get(weights_of(Path(MODEL)).name)) is not None:
        parts["weights"] = SAME_VECTORS.get(weights.sha256, weights.sha256)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
