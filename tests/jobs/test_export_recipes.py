"""Precisions: what each recipe keeps of fp32, on a little BERT and a little Llama; and how a candidate is chosen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.base.errors import InvalidInput
from jobs.models.export import running
from jobs.models.export.architectures import build
from jobs.models.export.graph import Graph
from jobs.models.export.recipes import (
    BLOCK,
    FLOORS,
    FP32,
    MIXED,
    PLAIN8,
    RECIPES,
    TOKENS,
    WEIGHT_MAX,
    WEIGHTS4,
    WEIGHTS8,
    affine,
    blocks,
    columns_int8,
)
from jobs.models.export.shapes import shape
from jobs.models.export.texts import Feed
from jobs.models.export.trials import NOISE, Trial, choose, find_failure, observe
from jobs.models.export.weights import ModelWeights
from tests.support.encoders import DIMENSIONS, VOCABULARY, write_bert, write_decoder

onnx = pytest.importorskip("onnx", reason="building graphs needs onnx")


class Encoder:
    """A tiny encoder and what its recipes make of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.weights, self.shape = folder, ModelWeights(folder), shape(folder)
        self.ranges = observe(self.weights, self.shape, [feed(8, 12, seed) for seed in range(8)], folder)

    def graph(self, recipe: Any) -> Any:
        return build(Graph(self.weights, recipe.precision, self.ranges), self.shape)

    def vectors(self, recipe: Any, folder: Path, inputs: Feed) -> Any:
        running.save(self.graph(recipe), folder / "graph.onnx")
        return running.vectors(running.session(folder / "graph.onnx"), [inputs])


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder(write_bert(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder(write_decoder(tmp_path_factory.mktemp("llama")))


def feed(rows: int, length: int, seed: int, *, padding: int = 0) -> Feed:
    ids = np.random.default_rng(seed).integers(5, VOCABULARY, (rows, length + padding))
    mask = np.ones_like(ids)
    mask[:, length:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def kinds(model: Any) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def test_padding_is_not_observed(bert: Encoder, tmp_path: Path) -> None:
    """Extremes are those of real tokens: padding beside them changes nothing. Every product has them."""
    padded = [feed(8, 12, seed, padding=5) for seed in range(8)]
    for each, seed in zip(padded, range(8)):
        each["input_ids"][:, :12] = feed(8, 12, seed)["input_ids"]
    again = observe(bert.weights, bert.shape, padded, tmp_path)
    assert len(again) == 4 * bert.shape.layers
    for name, seen in again.items():
        assert seen == pytest.approx(bert.ranges[name], rel=1e-4)


@pytest.mark.parametrize("architecture", ["bert", "llama"])
@pytest.mark.parametrize(
    ("name", "cosine"),
    [("mixed", 0.99), ("tokens", 0.99), ("weights8", 0.998), ("weights4", 0.96)],
)
def test_candidates_are_near_fp32(
    architecture: str, name: str, cosine: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every candidate, and its fallback, gives about the vectors of the fp32 graph, for rows with padding too."""
    encoder: Encoder = request.getfixturevalue(architecture)
    inputs = feed(16, 9, 77, padding=4)
    expected = encoder.vectors(FP32, tmp_path, inputs)
    recipe = RECIPES[name]
    assert running.cosines(encoder.vectors(recipe, tmp_path, inputs), expected).min() >= cosine
    assert recipe.fallback is not None
    spare = encoder.vectors(recipe.fallback, tmp_path, inputs)
    assert running.cosines(spare, expected).min() >= min(cosine + 0.005, 0.998)


@pytest.mark.parametrize("name", ["fp32", "mixed", "tokens"])
def test_neighbours(bert: Encoder, tmp_path: Path, name: str) -> None:
    """With fixed scales, or a token's own, a text's vector is the same among neighbours."""
    together = feed(8, 10, 5)
    alone = {key: value[:1] for key, value in together.items()}
    found, expected = (bert.vectors(RECIPES[name], tmp_path, inputs)[0] for inputs in (alone, together))
    assert np.abs(found - expected).max() < 1e-4


def test_which_operators(bert: Encoder) -> None:
    """Fixed scales keep attention one operator. No product stays fp32, and the fallback has no integer kernel."""
    layers = bert.shape.layers
    counts = {recipe.name: kinds(bert.graph(recipe)) for recipe in (MIXED, TOKENS, WEIGHTS8)}
    assert counts["mixed"]["QAttention"] == counts["tokens"]["MultiHeadAttention"] == layers
    assert counts["tokens"]["MatMulIntegerToFloat"] == counts["weights8"]["MatMulNBits"] == 4 * layers
    assert counts["mixed"]["ReduceMax"] == layers, "after GELU"
    assert all(count["MatMul"] == 1 for count in counts.values()), "only pooling is left"
    integers = {"MatMulIntegerToFloat", "QAttention", "MatMulNBits", "QuantizeLinear", "MatMulInteger"}
    assert not integers & set(kinds(bert.graph(PLAIN8)))


def test_token_of_zeros(bert: Encoder, tmp_path: Path) -> None:
    """A token all of whose values are zero has no scale of its own; its products are zero all the same."""

    class Silent(ModelWeights):
        def __getitem__(self, name: str) -> Any:
            found = super().__getitem__(name)
            return np.zeros_like(found) if name.startswith("embeddings.LayerNorm") else found

    model = build(Graph(Silent(bert.folder), TOKENS.precision), bert.shape)
    first = next(node for node in model.graph.node if node.op_type == "MatMulIntegerToFloat")
    product = next(node.output[0] for node in model.graph.node if first.output[0] in node.input)
    model.graph.output.append(onnx.helper.make_tensor_value_info(product, onnx.TensorProto.FLOAT, None))
    running.save(model, tmp_path / "probe.onnx")
    (found,) = running.session(tmp_path / "probe.onnx").run([product], feed(2, 4, 1))
    assert found.shape == (2, 4, 3 * DIMENSIONS)
    assert not found.any()


def test_words_are_small(bert: Encoder, tmp_path: Path) -> None:
    """Words are fp16 or int8 in the file, and vectors stay where they were; small tables stay fp32."""
    types = {
        recipe.name: {weight.name: weight.data_type for weight in bert.graph(recipe).graph.initializer}
        for recipe in (TOKENS, PLAIN8)
    }
    words = "embeddings.word_embeddings.weight"
    assert types["tokens"][words] == onnx.TensorProto.FLOAT16
    assert types["plain8"][words] == onnx.TensorProto.INT8
    assert {each["positions"] for each in types.values()} == {onnx.TensorProto.FLOAT}
    sizes = [bert.graph(recipe).ByteSize() for recipe in (PLAIN8, FP32)]
    assert sizes[0] < sizes[1] / 2.5


def test_feed_forward_alone_gets_four_bits(bert: Encoder) -> None:
    """Of a layer's four products the two of the feed-forward layer have 4 bits, those of attention keep 8."""
    bits = {
        node.input[1]: next(each.i for each in node.attribute if each.name == "bits")
        for node in bert.graph(WEIGHTS4).graph.node
        if node.op_type == "MatMulNBits"
    }
    assert len(bits) == 4 * bert.shape.layers
    for name, count in bits.items():
        assert count == (8 if ".attention." in name else 4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("channels", [BLOCK * 2, BLOCK * 3])
def test_blocks(bits: int, channels: int) -> None:
    """Codes restore the weights to half a step; at 4 bits no worse, in squares, than with the whole range kept."""
    weights = np.random.default_rng(0).normal(size=(channels, 5)).astype(np.float32)
    weights[:, 4] = 0
    codes, scales, zeros = blocks(weights, bits)
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1)
        zeros = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(5, -1)[:, : channels // BLOCK]
    codes = codes.reshape(5, -1, BLOCK)
    scales = scales.reshape(5, -1)
    restored = (codes.astype(np.float32) - zeros.reshape(5, -1)[:, :, None]) * scales[:, :, None]
    original = weights.T.reshape(5, -1, BLOCK)
    steps = (original.max(axis=2) - original.min(axis=2)) / (2**bits - 1)
    if bits == 8:
        assert np.all(np.abs(restored - original) <= scales[:, :, None] + 1e-6)
    assert np.all(((restored - original) ** 2).mean(axis=2) <= (steps / 2) ** 2 + 1e-6)
    assert np.all(restored[4] == 0)


def test_weights_keep_seven_bits() -> None:
    """Weight codes stay within 7 bits, so that no kernel saturates, and are half a step off at most."""
    weights = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    weights[:, 3] = 0
    codes, steps = columns_int8(weights, WEIGHT_MAX)
    assert int(np.abs(codes).max()) == WEIGHT_MAX
    assert np.all(np.abs(codes * steps - weights) <= steps / 2 + 1e-6)


def test_activation_range() -> None:
    """The 256 codes reach from the smallest to the largest value seen, and one of them is exactly 0."""
    step, zero = affine((-1.0, 3.0))
    assert (0 - zero) * step <= -1.0 + step
    assert (255 - zero) * step >= 3.0 - step
    assert affine((0.0, 0.0)) == (1.0, 0)


def test_weights_lie_beside_the_graph(bert: Encoder, tmp_path: Path) -> None:
    """A saved graph runs the same, also over an older one; its weights lie in a file beside it."""
    inputs = feed(2, 4, 1)
    (tmp_path / "whole.onnx").write_bytes(bert.graph(FP32).SerializeToString())
    expected = running.vectors(running.session(tmp_path / "whole.onnx"), [inputs])
    for _ in range(2):  # the second time over the first
        path, weights = running.save(bert.graph(FP32), tmp_path / "saved.onnx")
        assert np.array_equal(running.vectors(running.session(path), [inputs]), expected)
    assert path.stat().st_size < 40_000 < weights.stat().st_size


def test_cosines_do_not_depend_on_lengths() -> None:
    """Row by row, whatever the lengths of the vectors; of a row of zeros there is none."""
    one = np.array([[1, 0], [3, 4], [1, 0], [0, 0]], np.float32)
    other = np.array([[5, 0], [6, 8], [0, 2], [1, 1]], np.float32)
    found = running.cosines(one, other)
    assert found[:3] == pytest.approx([1, 1, 0])
    assert np.isnan(found[3])


# -- choosing ---------------------------------------------------------------------------------------------------------


def trial(query_ms: float | None, mean: float, *, lowest: float = 0.97, alone: float = 1.0) -> Trial:
    checks = {"cosine_min": lowest, "cosine_mean": mean, "alone_vs_batch_min": alone}
    return Trial(FP32, Path("x"), 1, checks, find_failure(checks, FLOORS), query_ms)


def test_ties_go_to_the_more_accurate() -> None:
    """The fastest is kept; of those that are as fast but for noise, the one nearest to fp32, in any order."""
    a, b, c = trial(1.0, 0.994), trial(1 + NOISE * 0.9, 0.998), trial(1 + NOISE * 1.2, 0.999)
    assert choose([a, b, c]) is choose([c, b, a]) is b
    assert choose([a, c]) is a
    assert choose([trial(0.1, 0.9), a]) is a
    assert choose([alone := trial(None, 0.999)]) is alone
    with pytest.raises(InvalidInput, match=r"nothing was written: fp32: cosine_mean is 0\.9000"):
        choose([trial(0.1, 0.9)])


@pytest.mark.parametrize(
    ("measured", "what"),
    [
        (trial(1, 0.9939), "cosine_mean is 0.9939, below 0.994"),
        (trial(1, float("nan")), "cosine_mean is nan"),
        (trial(1, 0.999, lowest=0.9499), "cosine_min"),
        (trial(1, 0.999, alone=0.9998), "alone_vs_batch_min"),
    ],
)
def test_floors(measured: Trial, what: str) -> None:
    """A figure below its floor, or one that is no number, is the reason of a refusal."""
    assert (measured.refused or "").startswith(what)
    assert trial(1, 0.994).refused is None
