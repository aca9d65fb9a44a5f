"""Making graphs small: what each rewriting keeps of fp32, on a little encoder with the operators of real ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.model import Floats
from jobs.export import running
from jobs.export.candidates import RECIPES
from jobs.export.measuring import FLOORS, NOISE, Accuracy, Speed, contenders, fastest
from jobs.export.normalising import normalised_apart
from jobs.export.quantise import WEIGHT_MAX, Extremes, affine, columns_int8, observe, quantise
from jobs.export.weights_only import BLOCK, blocks, by_columns, in_blocks, with_half_tables, with_small_tables

onnx = pytest.importorskip("onnx", reason="rewriting graphs needs onnx")

WORDS, DIMENSIONS, WIDE, HEADS = 1100, 64, 128, 4


@pytest.fixture(scope="module")
def encoder() -> Any:
    """One layer of BERT as the optimiser leaves it, with mean pooling; random weights, one of them an outlier."""
    from onnx import TensorProto, helper, numpy_helper

    chance = np.random.default_rng(3)

    def normal(*size: int, scale: float = 1.0) -> Floats:
        return (chance.normal(size=size) * scale).astype(np.float32)

    weights: dict[str, Floats] = {
        "words": normal(WORDS, DIMENSIONS), "places": normal(32, DIMENSIONS), "types": normal(2, DIMENSIONS),
        "gain": normal(DIMENSIONS, scale=0.2), "shift": normal(DIMENSIONS, scale=0.2),
        "qkv": normal(DIMENSIONS, 3 * DIMENSIONS, scale=0.2), "qkv_bias": normal(3 * DIMENSIONS),
        "out": normal(DIMENSIONS, DIMENSIONS, scale=0.1), "out_bias": normal(DIMENSIONS),
        "up": normal(DIMENSIONS, WIDE, scale=0.1), "up_bias": normal(WIDE),
        "down": normal(WIDE, DIMENSIONS, scale=0.1), "down_bias": normal(DIMENSIONS),
    }  # fmt: skip
    weights["up"][0, 0] = np.float32(3)
    weights["gain"] += np.float32(1)

    def fused(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
        return helper.make_node(operator, inputs, outputs, domain="com.microsoft", **attributes)

    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.INT32),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.INT32),
        helper.make_node("Sub", ["ids", "ids"], ["segments"]),
        fused(
            "EmbedLayerNormalization",
            ["ids", "segments", "words", "places", "types", "gain", "shift", "mask"],
            ["embedded", "lengths"],
            epsilon=1e-6,
        ),
        fused("Attention", ["embedded", "qkv", "qkv_bias", "lengths"], ["mixed"], num_heads=HEADS),
        helper.make_node("MatMul", ["mixed", "out"], ["projected"], name="out"),
        fused("SkipLayerNormalization", ["projected", "embedded", "gain", "shift", "out_bias"], ["stream"]),
        helper.make_node("MatMul", ["stream", "up"], ["wide"], name="up"),
        fused("BiasGelu", ["wide", "up_bias"], ["activated"]),
        helper.make_node("MatMul", ["activated", "down"], ["narrow"], name="down"),
        fused("SkipLayerNormalization", ["narrow", "stream", "gain", "shift", "down_bias"], ["hidden"]),
        helper.make_node("Cast", ["attention_mask"], ["row"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["row", "axis"], ["rows"]),
        helper.make_node("MatMul", ["rows", "hidden"], ["sums"]),
        helper.make_node("Squeeze", ["sums", "axis"], ["sum"]),
        helper.make_node("LpNormalization", ["sum"], ["embeddings"], axis=-1, p=2),
    ]
    shape = ["batch", "sequence"]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, shape)
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", DIMENSIONS])],
        [
            numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"),
            *(numpy_helper.from_array(value, name) for name, value in weights.items()),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feed(rows: int, length: int, seed: int, *, padding: int = 0) -> running.Feed:
    ids = np.random.default_rng(seed).integers(5, WORDS, (rows, length + padding))
    mask = np.ones_like(ids)
    mask[:, length:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def vectors(model: Any, folder: Path, inputs: running.Feed) -> Floats:
    return running.vectors(running.session(running.save(model, folder / "graph.onnx")), [inputs])


@pytest.fixture(scope="module")
def extremes(encoder: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Extremes]:
    return observe(encoder, [feed(8, 12, seed) for seed in range(8)], tmp_path_factory.mktemp("scratch"))


def test_padding_is_not_observed(encoder: Any, extremes: dict[str, Extremes], tmp_path: Path) -> None:
    """Extremes are those of real tokens: padding beside them changes nothing. Every product's input has them."""
    padded = [feed(8, 12, seed, padding=5) for seed in range(8)]
    for each, seed in zip(padded, range(8)):
        each["input_ids"][:, :12] = feed(8, 12, seed)["input_ids"]
    again = observe(encoder, padded, tmp_path)
    assert set(again) == {"embedded", "mixed", "stream", "activated"}
    for name, seen in again.items():
        assert (seen.low, seen.high) == pytest.approx((extremes[name].low, extremes[name].high), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "cosine"),
    [
        ("fixed", 0.99),
        ("mixed", 0.99),
        ("tokens", 0.99),
        ("dynamic", 0.99),
        ("weights8", 0.999),
        ("weights4", 0.96),
    ],
)
def test_candidates_are_near_fp32(
    encoder: Any, extremes: dict[str, Extremes], tmp_path: Path, name: str, cosine: float
) -> None:
    """Every candidate, and its fallback, gives about the vectors of the fp32 graph, for rows with padding too."""
    inputs = feed(16, 9, 77, padding=4)
    expected = vectors(encoder, tmp_path, inputs)
    recipe = RECIPES[name]
    assert (
        running.cosines(vectors(recipe.build(encoder, extremes), tmp_path, inputs), expected).min() >= cosine
    )
    assert recipe.fallback is not None
    spare = recipe.fallback.build(encoder, {})
    assert running.cosines(vectors(spare, tmp_path, inputs), expected).min() >= min(cosine + 0.005, 0.999)


@pytest.mark.parametrize(
    ("name", "moves"), [("dynamic", True), ("fixed", False), ("mixed", False), ("tokens", False)]
)
def test_neighbours(
    encoder: Any, extremes: dict[str, Extremes], tmp_path: Path, name: str, moves: bool
) -> None:
    """With fixed scales, or a token's own, a text's vector is the same among neighbours; with a run's it moves."""
    together = feed(8, 10, 5)
    alone = {key: value[:1] for key, value in together.items()}
    session = running.session(running.save(RECIPES[name].build(encoder, extremes), tmp_path / "graph.onnx"))
    distance = np.abs(running.vectors(session, [alone])[0] - running.vectors(session, [together])[0]).max()
    assert bool(distance > 1e-4) is moves


def test_which_operators(encoder: Any, extremes: dict[str, Extremes]) -> None:
    """Fixed scales keep attention one operator; a token's own take it apart. No product stays fp32."""
    counts = {
        name: Counter(node.op_type for node in RECIPES[name].build(encoder, extremes).graph.node)
        for name in ("fixed", "mixed", "tokens", "weights8")
    }
    assert counts["fixed"]["QAttention"] == counts["mixed"]["QAttention"] == 1
    assert counts["tokens"]["MultiHeadAttention"] == counts["weights8"]["MultiHeadAttention"] == 1
    assert counts["tokens"]["MatMulIntegerToFloat"] == counts["weights8"]["MatMulNBits"] == 4
    assert counts["fixed"]["ReduceMax"] == 0
    assert counts["mixed"]["ReduceMax"] == 1
    assert all(count["MatMul"] == 1 for count in counts.values()), "only pooling is left"


def test_token_of_zeros(encoder: Any, tmp_path: Path) -> None:
    """A token all of whose values are zero has no scale of its own; its products are zero all the same."""
    silent = onnx.ModelProto()
    silent.CopyFrom(encoder)
    for weight in silent.graph.initializer:
        if weight.name in {"gain", "shift"}:
            weight.raw_data = np.zeros(DIMENSIONS, dtype=np.float32).tobytes()
    probe = quantise(silent, {}, usual="token", activated="token")
    probe.graph.output.append(onnx.helper.make_tensor_value_info("wide", onnx.TensorProto.FLOAT, None))
    session = running.session(running.save(probe, tmp_path / "probe.onnx"))
    (wide,) = session.run(["wide"], feed(2, 4, 1))
    assert wide.shape == (2, 4, WIDE)
    assert not wide.any()


def test_newer_operators(encoder: Any, extremes: dict[str, Extremes], tmp_path: Path) -> None:
    """A ready-made graph of a newer operator set is rewritten with operators of that set."""
    newer = onnx.ModelProto()
    newer.CopyFrom(encoder)
    newer.opset_import[0].version = 18
    inputs = feed(4, 9, 8)
    expected = vectors(encoder, tmp_path, inputs)
    for name in ("mixed", "tokens", "weights8"):
        found = vectors(RECIPES[name].build(newer, extremes), tmp_path, inputs)
        assert running.cosines(found, expected).min() >= 0.99


def test_fallback_has_nothing_to_saturate(encoder: Any, tmp_path: Path) -> None:
    """The fallback has no integer kernel, opens as plain fp32 products, and is a third of fp32's size."""
    spare = with_small_tables(by_columns(encoder))
    kinds = {node.op_type for node in spare.graph.node}
    assert not kinds & {
        "MatMulIntegerToFloat",
        "QAttention",
        "MatMulNBits",
        "QuantizeLinear",
        "MatMulInteger",
    }
    assert len(spare.SerializeToString()) < len(encoder.SerializeToString()) / 2.5


def test_half_tables_read_rows(encoder: Any, tmp_path: Path) -> None:
    """Words take half the memory, and the vectors stay where they were; small tables stay fp32."""
    half = with_half_tables(encoder)
    kinds = {weight.name: weight.data_type for weight in half.graph.initializer}
    assert kinds["words_half"] == onnx.TensorProto.FLOAT16
    assert kinds["places_typed"] == onnx.TensorProto.FLOAT
    assert "words" not in kinds
    inputs = feed(8, 7, 21, padding=3)
    found = running.cosines(vectors(half, tmp_path, inputs), vectors(encoder, tmp_path, inputs))
    assert found.min() >= 0.99999


def test_small_tables_read_rows(encoder: Any, tmp_path: Path) -> None:
    """Taken apart, embedding gives the fused operator's vectors but for the rounding of words; small tables stay."""
    small = with_small_tables(encoder)
    names = {weight.name for weight in small.graph.initializer}
    assert {"words_codes", "words_scale", "places_typed"} <= names
    assert names.isdisjoint({"words", "places", "types"})
    inputs = feed(8, 7, 21, padding=3)
    assert (
        running.cosines(vectors(small, tmp_path, inputs), vectors(encoder, tmp_path, inputs)).min() >= 0.999
    )


def test_what_is_not_read_is_left_out(encoder: Any) -> None:
    """With the token type added to the positions, nothing makes types at run time any more."""
    made = {output for node in with_half_tables(encoder).graph.node for output in node.output}
    assert "segments" in {output for node in encoder.graph.node for output in node.output}
    assert "segments" not in made
    assert {"ids", "mask", "embedded", "lengths", "embeddings"} <= made


@pytest.mark.parametrize("bias", [True, False])
def test_normalisation_apart(encoder: Any, tmp_path: Path, *, bias: bool) -> None:
    """The same vectors without the fused operator, also where it adds no bias and where its sum is read."""
    whole = onnx.ModelProto()
    whole.CopyFrom(encoder)
    first, second = (node for node in whole.graph.node if node.op_type == "SkipLayerNormalization")
    first.output.extend(["", "", "kept"])
    second.input[1] = "kept"
    second.output.extend(["", "", ""])  # as a graph may say that it wants none of them
    if not bias:
        del first.input[4:]
    apart = normalised_apart(whole)
    kinds = Counter(node.op_type for node in apart.graph.node)
    assert (kinds["SkipLayerNormalization"], kinds["LayerNormalization"]) == (0, 2)
    inputs = feed(8, 7, 21, padding=3)
    found, expected = vectors(apart, tmp_path, inputs), vectors(whole, tmp_path, inputs)
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(expected - vectors(encoder, tmp_path, inputs)).max() > 1e-3


def test_feed_forward_alone_gets_four_bits(encoder: Any) -> None:
    """Of the four products the two of the feed-forward layer have 4 bits, those of attention keep 8."""
    bits = {
        node.output[0]: next(each.i for each in node.attribute if each.name == "bits")
        for node in in_blocks(encoder, 4).graph.node
        if node.op_type == "MatMulNBits"
    }
    assert {name: count for name, count in bits.items() if count == 4}.keys() == {"wide", "narrow"}
    assert sorted(bits.values()) == [4, 4, 8, 8]


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
    codes, steps = columns_int8(weights)
    assert int(np.abs(codes).max()) == WEIGHT_MAX
    assert np.all(np.abs(codes * steps - weights) <= steps / 2 + 1e-6)


def test_activation_range() -> None:
    """The 256 codes reach from the smallest to the largest value seen, and one of them is exactly 0."""
    step, zero = affine(Extremes(low=-1.0, high=3.0))
    assert (0 - zero) * step <= -1.0 + step
    assert (255 - zero) * step >= 3.0 - step
    assert affine(Extremes()) == (1.0, 0)


def test_weights_lie_beside_the_graph(encoder: Any, tmp_path: Path) -> None:
    """A saved graph runs the same, also over an older one and under another name; the one in memory is left whole."""
    before = encoder.SerializeToString()
    inputs = feed(2, 4, 1)
    (tmp_path / "whole.onnx").write_bytes(before)
    expected = running.vectors(running.session(tmp_path / "whole.onnx"), [inputs])
    for _ in range(2):  # the second time over the first
        path = running.save(encoder, tmp_path / "saved.onnx")
        assert np.array_equal(running.vectors(running.session(path), [inputs]), expected)
    assert path.stat().st_size < 20_000 < running.file_bytes(path)
    assert encoder.SerializeToString() == before
    other = tmp_path / "other"
    other.mkdir()
    files = running.copy(path, other / "copied.onnx")
    assert files == [other / "copied.onnx", other / "copied.weights"] == sorted(other.iterdir())
    for file in tmp_path.glob("saved.*"):
        file.unlink()
    assert np.array_equal(running.vectors(running.session(files[0]), [inputs]), expected)


def test_cosines_do_not_depend_on_lengths() -> None:
    """Row by row, whatever the lengths of the vectors; of a row of zeros there is none."""
    one = np.array([[1, 0], [3, 4], [1, 0], [0, 0]], np.float32)
    other = np.array([[5, 0], [6, 8], [0, 2], [1, 1]], np.float32)
    found = running.cosines(one, other)
    assert found[:3] == pytest.approx([1, 1, 0])
    assert np.isnan(found[3])


# -- choosing ---------------------------------------------------------------------------------------------------------


def accuracy(mean: float, lowest: float = 0.97, alone: float = 1.0) -> Accuracy:
    return Accuracy(
        cosine_min=lowest, cosine_mean=mean, hard_cosine_mean=mean, alone_vs_batch_min=alone, texts=1
    )


def test_ties_go_to_the_more_accurate() -> None:
    """The fastest is kept; of those that are as fast but for noise, the one nearest to fp32, in any order."""
    accuracies = {"a": accuracy(0.994), "b": accuracy(0.998), "c": accuracy(0.999)}
    timed = {"a": Speed(1.0, 9), "b": Speed(1 + NOISE * 0.9, 9), "c": Speed(1 + NOISE * 1.2, 9)}
    assert fastest(timed, accuracies) == "b"
    assert fastest(dict(reversed(timed.items())), accuracies) == "b"
    assert fastest({"a": Speed(1.0, 1), "c": Speed(1.2, 9)}, accuracies) == "a"


def test_contenders_are_measured_longer() -> None:
    """Those that could turn out the fastest are measured again, unless only one could; the best of all times counts."""
    timed = {"a": Speed(1.0, 100), "b": Speed(1.4, 50), "c": Speed(3.0, 50)}
    assert contenders(timed) == ["a", "b"]
    assert contenders({"a": timed["a"], "c": timed["c"]}) == []
    assert timed["b"].best(Speed(0.9, 40)) == Speed(0.9, 50)


@pytest.mark.parametrize(
    ("measured", "what"),
    [
        (accuracy(0.9939), "cosine_mean is 0.9939, below 0.994"),
        (accuracy(float("nan")), "cosine_mean is nan"),
        (accuracy(0.999, lowest=0.9499), "cosine_min"),
        (accuracy(0.999, alone=0.9998), "alone_vs_batch_min"),
    ],
)
def test_floors(measured: Accuracy, what: str) -> None:
    """A figure below its floor, or one that is no number, is the reason of a refusal."""
    assert (measured.below(FLOORS) or "").startswith(what)
    assert accuracy(0.994).below(FLOORS) is None
