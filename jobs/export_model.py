"""Export an encoder: find it, fuse it, make it int8, prove it against fp32, publish it whole.

    source --export_sources--> folder --export_graph--> fused fp32 graph --quantise--> int8 graph
           --checks against fp32--> models/<name>/{model.onnx, tokenizer.json, manifest.json}

Nothing is written below the floors. PyTorch is needed only where a source has weights but no ONNX graph.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from indexes.durable import disk_errors, publish_folder, sha256
from indexes.errors import InvalidInput, NotFound
from jobs import export_graph, export_sources, export_texts
from jobs.export_sources import DEFAULT_NAME, Shape, Source
from jobs.quantise import QUANTISATION, quantise
from retrieval.embedding.models import (
    FORMAT_VERSION,
    MANIFEST,
    MODEL,
    TOKENIZER,
    FileSeal,
    KnownAnswer,
    Manifest,
    fingerprint,
)  # fmt: skip
from retrieval.embedding.tokens import pad_id

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Floats = np.ndarray[Any, np.dtype[np.float32]]
Feed = dict[str, np.ndarray[Any, np.dtype[np.int64]]]
Progress = Callable[[str], None]

# Below these an export is refused. all-MiniLM-L6-v2 measures .982, .993, 1.000000 and 1.000000.
FLOORS = {"cosine_min": 0.95, "cosine_mean": 0.99, "alone_vs_batch_min": 0.9999, "fp32_vs_source_min": 0.9999}
BATCH_TEXTS = 16
REFERENCE_TEXTS = 64


def export_model(
    source: str | None,
    out: Path,
    *,
    name: str = DEFAULT_NAME,
    progress: Callable[[str], None],
    calibrate: Path | None = None,
    query_prefix: str | None = None,
    document_prefix: str | None = None,
) -> Manifest:
    """Write the model into the folder `out`, which is replaced whole, and return its manifest.

    `source`: a folder, a hub repository, "wheel", "hub", or None to find the default model. `calibrate`: a text
    file, one text a line, used instead of the bundled texts. The prefixes override those of the source. Raises
    NotFound or Unavailable when something is missing, naming the remedy, and InvalidInput when the encoder cannot
    be exported or falls below `FLOORS`.
    """
    _require_onnx()
    with export_sources.find(source, name, progress) as found, tempfile.TemporaryDirectory() as scratch:
        shape = _with_prefixes(export_sources.shape(found.folder), query_prefix, document_prefix)
        texts = _Tokens(found.folder / TOKENIZER, shape)
        progress(f"building the graph from {found.label}")
        plain = export_graph.fused(found, shape, Path(scratch))
        progress("quantising")
        small = quantise(plain, texts.calibration(calibrate))
        progress("comparing with fp32")
        checks = check(plain.SerializeToString(), small.SerializeToString(), found, shape, texts)
        return _publish(small.SerializeToString(), found, shape, name, checks, texts, out)


def _require_onnx() -> None:
    missing = [module for module in ("onnx", "sympy") if importlib.util.find_spec(module) is None]
    if missing:
        raise NotFound(f"exporting a model needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def _with_prefixes(shape: Shape, query: str | None, document: str | None) -> Shape:
    return replace(
        shape,
        query_prefix=shape.query_prefix if query is None else query,
        document_prefix=shape.document_prefix if document is None else document,
    )


class _Tokens:
    """The source's tokenizer, cutting at the model's window, never padding by itself."""

    def __init__(self, path: Path, shape: Shape) -> None:
        from tokenizers import Tokenizer

        if not path.is_file():
            raise NotFound(f"{path.name} is missing in the source: only fast tokenizers can be exported")
        self.path = path
        self.tokens_max = shape.tokens_max
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(path))
        self.tokenizer.no_padding()
        self.pad = pad_id(self.tokenizer)
        self.tokenizer.enable_truncation(shape.tokens_max)

    def feeds(self, texts: Sequence[str], batch_texts: int = BATCH_TEXTS) -> list[Feed]:
        """Padded inputs for `texts`, in order, `batch_texts` at a time."""
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        return [_padded(ids[at : at + batch_texts], self.pad) for at in range(0, len(ids), batch_texts)]

    def calibration(self, file: Path | None) -> list[Feed]:
        if file is not None:
            lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
            if not lines:
                raise InvalidInput(f"{file.name} holds no calibration text", param="calibrate")
            return self.feeds(sorted(lines, key=len))
        frame = self.tokenizer.encode("a").ids
        vocabulary = sorted(set(self.tokenizer.get_vocab().values()))
        random = export_texts.random_ids(
            vocabulary, frame[0], frame[-1], count=64, length=self.tokens_max // 2
        )
        batches = [
            _padded(random[at : at + BATCH_TEXTS], self.pad) for at in range(0, len(random), BATCH_TEXTS)
        ]
        return self.feeds(sorted(export_texts.calibration_texts(), key=len)) + batches


def _padded(ids: Sequence[Sequence[int]], pad: int) -> Feed:
    longest = max(map(len, ids))
    tokens = np.full((len(ids), longest), pad, dtype=np.int64)
    mask = np.zeros((len(ids), longest), dtype=np.int64)
    for row, sequence in enumerate(ids):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return {"input_ids": tokens, "attention_mask": mask}


def check(plain: bytes, small: bytes, source: Source, shape: Shape, tokens: _Tokens) -> dict[str, float]:
    """Compare int8 with fp32, each text alone with the same in a mixed batch, and fp32 with the original.

    Raises InvalidInput naming the first figure below its floor.
    """
    texts = export_texts.check_texts()
    expected = _run(plain, tokens.feeds(texts))
    cosines = _cosines(_run(small, tokens.feeds(texts)), expected)
    mixed = texts[:: max(1, len(texts) // BATCH_TEXTS)]
    together = _run(small, tokens.feeds(mixed, len(mixed)))
    checks = {
        "cosine_min": float(cosines.min()),
        "cosine_mean": float(cosines.mean()),
        "alone_vs_batch_min": float(_cosines(_run(small, tokens.feeds(mixed, 1)), together).min()),
        "texts": float(len(texts)),
    }
    original = export_graph.reference(source, texts[:REFERENCE_TEXTS]) if shape.normalise else None
    if original is not None:
        checks["fp32_vs_source_min"] = float(_cosines(expected[:REFERENCE_TEXTS], original).min())
    for what, floor in FLOORS.items():
        if not checks.get(what, 1.0) >= floor:  # written so that NaN fails too
            raise InvalidInput(f"refused: {what} is {checks[what]:.4f}, below {floor}; nothing was written")
    return {what: round(value, 6) for what, value in checks.items()}


def _run(graph: bytes, feeds: Sequence[Feed]) -> Floats:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return np.concatenate([np.asarray(session.run(None, feed)[0], dtype=np.float32) for feed in feeds])


def _cosines(left: Floats, right: Floats) -> Floats:
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / lengths, dtype=np.float32)


def _publish(
    graph: bytes,
    source: Source,
    shape: Shape,
    name: str,
    checks: dict[str, float],
    tokens: _Tokens,
    out: Path,
) -> Manifest:
    """Fill a draft folder beside `out`, then put it in the place of `out`."""
    draft = out.with_name(f".{out.name}.draft")
    with disk_errors(out):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        (draft / MODEL).write_bytes(graph)
        (draft / TOKENIZER).write_bytes(tokens.path.read_bytes())
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
        quantisation=QUANTISATION,
        files={
            file: FileSeal(sha256(draft / file), (draft / file).stat().st_size) for file in (MODEL, TOKENIZER)
        },
        known_answers=_known_answers(graph, shape, tokens),
        checks=checks,
        source=source.label,
        created_with=_versions(),
    )
    manifest = msgspec.structs.replace(manifest, fingerprint=fingerprint(manifest))
    with disk_errors(out):
        (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        _replace(draft, out)
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


def _known_answers(graph: bytes, shape: Shape, tokens: _Tokens) -> list[KnownAnswer]:
    texts = export_texts.KNOWN_ANSWER_TEXTS
    vectors = _run(graph, tokens.feeds([shape.document_prefix + text for text in texts], 1))
    return [
        KnownAnswer(text, [round(float(value), 5) for value in vector])
        for text, vector in zip(texts, vectors)
    ]


def _versions() -> dict[str, str]:
    versions = {}
    for package in ("onnxruntime", "onnx", "tokenizers", "torch", "sentence-transformers"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # not needed for every source
    return versions
