"""Graphs of each architecture against sentence-transformers itself, with small encoders of random weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from jobs.models.export import running, texts
from jobs.models.export.architectures import buckets, build
from jobs.models.export.decoder import frequencies
from jobs.models.export.exporting import reference
from jobs.models.export.graph import Graph
from jobs.models.export.recipes import FP32, RECIPES, WEIGHTS4
from jobs.models.export.shapes import shape
from jobs.models.export.texts import Feed, TokenizedTexts
from jobs.models.export.trials import observe
from jobs.models.export.weights import ModelWeights
from tests.support.encoders import (
    DIMENSIONS,
    HEADS,
    LAYERS,
    VOCABULARY,
    WIDE,
    write_decoder,
    write_modules,
    write_tokenizer,
)

ABSENT = [name for name in ("torch", "sentence_transformers", "onnx") if not importlib.util.find_spec(name)]
pytestmark = pytest.mark.skipif(
    bool(ABSENT), reason=f"the export extra is not installed: no {', '.join(ABSENT)}"
)

SIZES = {
    "hidden_size": DIMENSIONS,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": WIDE,
    "vocab_size": VOCABULARY,
}
BERT = SIZES | {"max_position_embeddings": 258, "pad_token_id": 1}
DECODER = SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 256}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}

LINES = [*texts.hard_texts()[:24], *texts.PASSAGES[:8], "x", ""]

CASES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert, mean": ("BertConfig", "BertModel", BERT, "mean"),
    "bert, cls": ("BertConfig", "BertModel", BERT, "cls"),
    "bert, another activation": ("BertConfig", "BertModel", BERT | {"hidden_act": "gelu_new"}, "mean"),
    "camembert": ("CamembertConfig", "CamembertModel", BERT | {"type_vocab_size": 1}, "mean"),
    "roberta": ("RobertaConfig", "RobertaModel", BERT | {"type_vocab_size": 1}, "mean"),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", BERT | {"type_vocab_size": 1}, "cls"),
    "mpnet": ("MPNetConfig", "MPNetModel", BERT, "mean"),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {
            "dim": DIMENSIONS,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "hidden_dim": WIDE,
            "vocab_size": VOCABULARY,
        },
        "mean",
    ),
    "electra": ("ElectraConfig", "ElectraModel", BERT | {"embedding_size": 32}, "mean"),
    "llama": ("LlamaConfig", "LlamaModel", DECODER, "lasttoken"),
    "llama, one head of keys each": (
        "LlamaConfig",
        "LlamaModel",
        DECODER | {"num_key_value_heads": HEADS},
        "mean",
    ),
    "llama, biases": (
        "LlamaConfig",
        "LlamaModel",
        DECODER | {"attention_bias": True, "mlp_bias": True},
        "lasttoken",
    ),
    "llama 3 positions": ("LlamaConfig", "LlamaModel", DECODER | {"rope_parameters": LLAMA3}, "lasttoken"),
    "linear positions": ("LlamaConfig", "LlamaModel", DECODER | {"rope_parameters": LINEAR}, "lasttoken"),
    "llama, both ways": ("LlamaConfig", "LlamaModel", DECODER | {"is_causal": False}, "mean"),
    "mistral": ("MistralConfig", "MistralModel", DECODER, "lasttoken"),
    "qwen2": ("Qwen2Config", "Qwen2Model", DECODER, "lasttoken"),
    "qwen3": ("Qwen3Config", "Qwen3Model", DECODER | {"head_dim": 32}, "lasttoken"),
}


def write_source(folder: Path, config: str, model: str, settings: dict[str, Any], pooling: str) -> Path:
    """A folder with an untrained encoder, whose weights are wide enough for every part to matter."""
    import torch
    import transformers

    folder.mkdir()
    torch.manual_seed(11)
    encoder = getattr(transformers, model)(getattr(transformers, config)(**settings))
    for name, weight in encoder.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, 0, 0.15)
        else:
            torch.nn.init.normal_(weight, float("norm" in name.lower() and "weight" in name), 0.1)
    encoder.save_pretrained(folder)
    write_tokenizer(folder, at_the_end_only=pooling == "lasttoken")
    # Some architectures bring rules of their own for cutting text into words: both sides shall read the same file.
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    write_modules(folder, pooling)
    return folder


def nearness(found: Floats, expected: Floats) -> float:
    """The least cosine, after what all texts have in common is taken away: untrained vectors are rather alike."""
    common = expected.mean(axis=0)
    return float(running.cosines(found - common, expected - common).min())


def padded_left(feed: Feed) -> Feed:
    """The same texts with their padding in front."""
    moved = {name: np.zeros_like(values) for name, values in feed.items()}
    for row, length in enumerate(feed["attention_mask"].sum(axis=1)):
        for name, values in feed.items():
            moved[name][row, values.shape[1] - length :] = values[row, :length]
    return moved


@pytest.mark.parametrize("case", CASES)
def test_same_vectors(case: str, tmp_path: Path) -> None:
    """The graph gives sentence-transformers' vectors, alone and padded; a decoder's padding may be on either side."""
    import transformers

    if "is_causal" in CASES[case][2] and int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("older ones take no notice of is_causal")
    folder = write_source(tmp_path / "source", *CASES[case])
    found = shape(folder)
    material = TokenizedTexts(folder, found)
    expected = reference(folder, LINES, found)
    assert expected is not None
    graph = tmp_path / "graph.onnx"
    running.save(build(Graph(ModelWeights(folder), FP32.precision), found), graph)
    session = running.session(graph)
    (together,) = material.feeds(LINES, len(LINES))
    for feeds in ([together], material.feeds(LINES, 1), material.feeds(LINES, 5)):
        assert nearness(running.vectors(session, feeds), expected) >= 0.9999
    if CASES[case][3] == "lasttoken":
        left = running.vectors(session, [padded_left(together)])
        assert nearness(left, expected) >= 0.9999


@pytest.mark.parametrize("case", ["mpnet", "electra", "distilbert", "qwen3"])
def test_every_precision_of_an_architecture(case: str, tmp_path: Path) -> None:
    """Each recipe and its fallback can be built of every kind of encoder, and stays near the original."""
    folder = write_source(tmp_path / "source", *CASES[case])
    found, weights = shape(folder), ModelWeights(folder)
    expected = reference(folder, LINES, found)
    assert expected is not None
    material = TokenizedTexts(folder, found)
    extremes = observe(weights, found, material.calibration(), tmp_path)
    for recipe in RECIPES.values():
        for each in filter(None, (recipe, recipe.fallback)):
            graph = tmp_path / f"{each.name}.onnx"
            running.save(build(Graph(weights, each.precision, extremes), found), graph)
            vectors = running.vectors(running.session(graph), material.feeds(LINES))
            # Random weights suffer more than trained ones.
            assert running.cosines(vectors, expected).min() >= (0.9 if each is WEIGHTS4 else 0.97), each.name


@pytest.mark.parametrize(
    ("config", "model", "settings", "match"),
    [
        (
            "LlamaConfig",
            "LlamaModel",
            DECODER | {"hidden_act": "relu"},
            "export llama with the activation relu",
        ),
        ("BertConfig", "BertModel", BERT | {"hidden_act": "relu"}, "export bert with the activation relu"),
    ],
)
def test_unknown_variations(
    config: str, model: str, settings: dict[str, Any], match: str, tmp_path: Path
) -> None:
    """A variation of an architecture that the export does not know is refused by name."""
    folder = write_source(tmp_path / "source", config, model, settings, "mean")
    with pytest.raises(InvalidInput, match=match):
        build(Graph(ModelWeights(folder), FP32.precision), shape(folder))


def test_positions_of_unknown_kinds() -> None:
    """A kind of rotary scaling that is not known is refused; its older names are understood."""
    with pytest.raises(InvalidInput, match="positions of the kind yarn"):
        frequencies({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 8)
    older = frequencies({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 100.0}, 8)
    assert older == pytest.approx(100.0 ** -(np.arange(0, 8, 2) / 8) / 2)


def test_buckets() -> None:
    """Every distance gets the bias that MPNet's own code gives it."""
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = np.arange(-700, 701)
    own: Callable[..., Any] = MPNetEncoder.relative_position_bucket
    assert np.array_equal(buckets(distances, 32), own(torch.from_numpy(distances)).numpy())


def test_decoder_without_its_weights(tmp_path: Path) -> None:
    """A tensor that the architecture must have and the file has not is named."""
    folder = write_decoder(tmp_path / "source", num_hidden_layers=3)
    with pytest.raises(InvalidInput, match=r"no layers\.2\.input_layernorm\.weight"):
        build(Graph(ModelWeights(folder), FP32.precision), shape(folder))
