"""Opening a model: the first graph that computes what the exporter's did serves; broken ones are refused by name."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from indexes.base.durable import sha256
from indexes.base.errors import Damaged, NotFound
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import (
    FALLBACK,
    FORMAT_VERSION,
    MANIFEST,
    MODEL,
    TOKENIZER,
    FileSeal,
    KnownAnswer,
    ModelManifest,
    Variant,
    fingerprint,
    load_model,
    read_manifest,
)
from retrieval.embedding.sessions import (
    CPU,
    OUTPUT,
    PROVIDER,
    ExecutionProvider,
    Refusal,
    cosines,
    open_session,
)

onnx = pytest.importorskip("onnx", reason="making graphs to break needs onnx")

WORDS = ["[PAD]", "[UNK]", *(f"word{number}" for number in range(30))]
DIMENSIONS = 16
KNOWN = ["word1 word2 word3", "word9 word4", "word20"]

Floats = np.ndarray[Any, np.dtype[np.float32]]
Change = Callable[[Floats], Floats]


def table() -> Floats:
    """A vector for each word."""
    return np.random.default_rng(4).normal(size=(len(WORDS), DIMENSIONS)).astype(np.float32)


def write_graph(path: Path, words: Floats) -> None:
    """Mean of word vectors, of length 1."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["hidden"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axis"], ["row"]),
        helper.make_node("MatMul", ["row", "hidden"], ["sums"]),
        helper.make_node("Squeeze", ["sums", "axis"], ["sum"]),
        helper.make_node("LpNormalization", ["sum"], [OUTPUT], axis=-1, p=2),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", words.shape[1]])
    constants = [
        numpy_helper.from_array(words, "words"),
        numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"),
    ]
    graph = helper.make_graph(nodes, "mean", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def seal(folder: Path, **changes: Any) -> ModelManifest:
    """Give the manifest the seals and the fingerprint of the files as they are."""
    manifest = read_manifest(folder)
    files = {name: FileSeal(sha256(folder / name), (folder / name).stat().st_size) for name in manifest.files}
    manifest = msgspec.structs.replace(manifest, files=files, **changes)
    manifest = msgspec.structs.replace(manifest, fingerprint=fingerprint(manifest))
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of two graphs, which are the same, with the answers that they give."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / TOKENIZER))
    for name in (MODEL, FALLBACK):
        write_graph(folder / name, table())
    ids = [[WORDS.index(word) for word in text.split()] for text in KNOWN]
    means = [table()[row].mean(axis=0) for row in ids]
    manifest = ModelManifest(
        format_version=FORMAT_VERSION,
        name="tiny",
        fingerprint="",
        dimensions=DIMENSIONS,
        tokens_max=16,
        pooling="mean",
        normalise=True,
        query_prefix="",
        document_prefix="",
        quantisation="fp32",
        files={name: FileSeal("", 0) for name in (MODEL, FALLBACK, TOKENIZER)},
        known_answers=[
            KnownAnswer(text, (mean / np.linalg.norm(mean)).tolist()) for text, mean in zip(KNOWN, means)
        ],
        checks={},
        source="test",
        created_with={},
        variant="quick",
        fallbacks=[Variant("plain", FALLBACK, "fp32", 0.98)],
    )
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    seal(folder)
    return folder


def turned(words: Floats) -> Floats:
    """Vectors turned away from where they were, as by saturated sums."""
    return np.clip(words, -0.1, 0.1)


BROKEN: dict[str, tuple[Change, str]] = {
    "saturated": (turned, r"cosine 0\.\d+ for 'word"),
    "zeros": (lambda words: words * 0, r"cosine nan"),
    "not a number": (lambda words: words * np.float32("nan"), r"cosine nan"),
    "infinite": (lambda words: words * np.float32("inf"), r"cosine nan"),
    "of another size": (lambda words: words[:, :8].copy(), "vectors of 8 dimensions, not of 16"),
}


def test_first_graph_serves(folder: Path) -> None:
    """A model whose first graph is sound runs it, and refuses none."""
    encoder = Encoder(load_model(folder), threads=1)
    assert (encoder.variant, encoder.refused) == ("quick", ())


@pytest.mark.parametrize("how", BROKEN)
def test_fallback_serves(folder: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where the first graph computes something else the next one serves; the refusal says which graph and why."""
    change, reason = BROKEN[how]
    write_graph(folder / MODEL, change(table()))
    seal(folder)
    with caplog.at_level(logging.WARNING):
        encoder = Encoder(load_model(folder), threads=1)
    assert encoder.variant == "plain"
    (refusal,) = encoder.refused
    assert isinstance(refusal, Refusal)
    assert refusal.variant == "quick"
    assert re.search(reason, refusal.reason), refusal.reason
    assert "model tiny: quick is not used" in caplog.text
    (vector,) = encoder.encode([KNOWN[0]], "document")
    assert float(vector @ np.array(read_manifest(folder).known_answers[0].vector)) >= 0.999


def test_a_graph_that_does_not_load(folder: Path) -> None:
    """A first graph that this runtime cannot load is refused like one that computes something else."""
    (folder / MODEL).write_bytes(b"no graph")
    seal(folder)
    encoder = Encoder(load_model(folder), threads=1)
    assert encoder.variant == "plain"
    assert "cannot be loaded" in encoder.refused[0].reason


def test_none_is_left(folder: Path) -> None:
    """If every graph computes something else the model is Damaged, with each one's reason and the remedy."""
    for name in (MODEL, FALLBACK):
        write_graph(folder / name, turned(table()))
    seal(folder)
    with pytest.raises(Damaged, match=r"export it on this machine: quick: .*cosine 0.*; plain: .*cosine 0"):
        Encoder(load_model(folder), threads=1)


def test_each_graph_has_its_own_floor(folder: Path) -> None:
    """A fallback may lie a little further from the known answers than the first graph, as far as its floor says."""
    chance = np.random.default_rng(0).standard_normal((len(WORDS), DIMENSIONS), dtype=np.float32)
    write_graph(folder / MODEL, turned(table()))
    write_graph(folder / FALLBACK, table() + chance / np.float32(7))
    for floor, serves in ((0.9, True), (0.9999, False)):
        seal(folder, fallbacks=[Variant("plain", FALLBACK, "fp32", floor)])
        if serves:
            assert Encoder(load_model(folder), threads=1).variant == "plain"
        else:
            with pytest.raises(Damaged, match="plain"):
                Encoder(load_model(folder), threads=1)


OTHERS = sorted(
    {one.removesuffix(PROVIDER).lower() for one in onnxruntime.get_available_providers()} - {CPU.name}
)


@pytest.mark.model
@pytest.mark.parametrize("provider", OTHERS)
def test_each_provider_that_is_installed(provider: str, model_folder: Path) -> None:
    """The graph of floating-point arithmetic is tried first. A text gets the same vector alone and among others, close
    to that of the CPU."""
    model = load_model(model_folder)
    encoder, on_cpu = (
        Encoder(model, threads=1, provider=ExecutionProvider(one)) for one in (provider, "cpu")
    )
    assert (encoder.variant, encoder.refused) == (f"{model.manifest.variants[-1].name} on {provider}", ())
    texts = [f"{'a longer ' * count}note about the harbor" for count in range(9)]
    together = encoder.encode(texts, "document")
    alone = np.concatenate([encoder.encode([one], "document") for one in texts])
    assert cosines(together, alone).min() > 0.9999
    assert cosines(together, on_cpu.encode(texts, "document")).min() > 0.97


def test_a_provider_that_is_not_there(folder: Path) -> None:
    """The CPU does what it cannot, and each refusal says what there is."""
    encoder = Encoder(load_model(folder), threads=1, provider=ExecutionProvider("magic", {"device": "9"}))
    assert encoder.variant == "quick"
    assert [one.variant for one in encoder.refused] == ["plain on magic", "quick on magic"]
    assert "no provider 'magic'; it has" in encoder.refused[0].reason
    assert " cpu" in encoder.refused[0].reason


@pytest.mark.skipif(not OTHERS, reason="ONNX Runtime has no provider but the CPU here")
def test_a_provider_proves_itself_too(folder: Path) -> None:
    """A graph that computes something else with it is not used with it."""
    write_graph(folder / FALLBACK, turned(table()))
    seal(folder)
    encoder = Encoder(load_model(folder), threads=1, provider=ExecutionProvider(OTHERS[0]))
    assert encoder.variant == f"quick on {OTHERS[0]}"
    assert [one.variant for one in encoder.refused] == [f"plain on {OTHERS[0]}"]


def test_fingerprint_is_the_models(folder: Path) -> None:
    """The fingerprint names the first graph, whichever runs: collections stay usable."""
    before = load_model(folder).manifest.fingerprint
    write_graph(folder / FALLBACK, table() * 2)
    seal(folder, fallbacks=[Variant("other", FALLBACK, "something else", 0.5)])
    assert Encoder(load_model(folder), threads=1).fingerprint == before


def test_fallbacks_are_verified(folder: Path) -> None:
    """A fallback that differs from its seal, is missing, or is not listed, is found before it runs."""
    content = bytearray((folder / FALLBACK).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / FALLBACK).write_bytes(content)
    with pytest.raises(Damaged, match=r"fallback\.onnx .*SHA-256"):
        load_model(folder)
    (folder / FALLBACK).unlink()
    with pytest.raises(NotFound, match=r"fallback\.onnx is missing"):
        load_model(folder)
    manifest = read_manifest(folder)
    files = {name: each for name, each in manifest.files.items() if name != FALLBACK}
    (folder / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))
    with pytest.raises(Damaged, match=r"does not list fallback\.onnx"):
        load_model(folder)


def test_manifests_from_before_there_was_a_choice(folder: Path) -> None:
    """A manifest without variants, candidates or fallbacks loads, serves its one graph, and keeps its fingerprint."""
    (folder / FALLBACK).unlink()
    manifest = msgspec.to_builtins(read_manifest(folder))
    for name in ("architecture", "variant", "fallbacks", "candidates"):
        del manifest[name]
    del manifest["files"][FALLBACK]
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    encoder = Encoder(load_model(folder), threads=1)
    assert (encoder.variant, encoder.refused) == ("model", ())
    assert encoder.fingerprint == manifest["fingerprint"]
    write_graph(folder / MODEL, turned(table()))
    seal(folder)
    with pytest.raises(Damaged, match=r"cosine 0\.\d+ .*expected at least 0\.99"):
        Encoder(load_model(folder), threads=1)


def test_session_options(folder: Path) -> None:
    """A session has the threads it is given, which do not spin, and keeps neither an arena nor plans of memory."""
    options = open_session(folder / MODEL, threads=2).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 1)
    assert (options.enable_mem_pattern, options.enable_cpu_mem_arena) == (False, False)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.model
@pytest.mark.parametrize("how", ["zeroed", "saturated"])
def test_fallback_of_the_default_model(model_folder: Path, tmp_path: Path, how: str) -> None:
    """With its integer weights broken, the default model serves from its fallback, and finds what it found before."""
    copied = tmp_path / "copied"
    shutil.copytree(model_folder, copied)
    if not read_manifest(copied).fallbacks:
        pytest.skip("the model was exported before there were fallbacks")
    whole = Encoder(load_model(copied), threads=1)
    graph = onnx.load(copied / MODEL)
    broken = 0
    for weight in graph.graph.initializer:
        if weight.data_type == onnx.TensorProto.INT8 and len(weight.dims) == 2:
            codes = np.frombuffer(weight.raw_data, dtype=np.int8)
            weight.raw_data = (codes * 0 if how == "zeroed" else np.sign(codes) * np.int8(63)).tobytes()
            broken += 1
    assert broken >= 12
    onnx.save(graph, copied / MODEL)
    seal(copied)
    spare = Encoder(load_model(copied), threads=1)
    assert [refusal.variant for refusal in spare.refused] == [whole.variant]
    assert spare.variant != whole.variant
    texts = [
        "how do I reset my password",
        "Bees make honey.",
        "The sky is blue.",
        "Change a forgotten password.",
    ]
    assert (
        float((spare.encode(texts, "document") * whole.encode(texts, "document")).sum(axis=1).min()) >= 0.98
    )
    scores = spare.encode(texts[1:], "document") @ spare.encode(texts[:1], "query")[0]
    assert int(np.argmax(scores)) == 2
