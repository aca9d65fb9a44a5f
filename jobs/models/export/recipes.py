"""The candidate graphs of an export: how each stores weights and computes matrix products.

name       weights                activations                      words  used for
fp32       fp32                   fp32                             fp32   reference
mixed      7 bits, per column     8 bits, static scales; per-token fp16   BERT and its relatives
                                  scales after an activation
tokens     7 bits, per column     8 bits, per-token scales         fp16   activations too varied for static scales
weights8   8 bits, blocks of 32   8 bits, blocks of 32             fp16   activations with outliers: decoders
weights4   the same, but 4 bits   8 bits, blocks of 32             int8   small devices (`--small`)
           in feed-forward layers

The fallback of all but fp32, for CPUs whose integer kernels are wrong:

plain8     8 bits, per column     fp32: weights are dequantized    int8
                                  when a session opens the graph

No scale depends on the rest of a batch, so neither does a text's vector. Integer weights have 7 bits because AVX2 and
AVX-512 without VNNI saturate when they add two products of uint8 and full int8 (onnxruntime #6004). Normalization,
softmax, GELU and the residual stream are always fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from indexes.base.model import Floats
from jobs.models.export.graph import Graph, Part, Precision, Range

WEIGHT_MAX = 63  # 7 bits: 255 * 63 * 2 stays below the int16 at which VPMADDUBSW saturates
BLOCK = 32  # weights that share a scale in MatMulNBits
INT8_KERNEL = 4  # MatMulNBits' accuracy_level for int8 activations
# Clipping ratios tried for 4-bit blocks: clipping outliers makes steps finer.
SHRINKS = np.linspace(0.975, 0.7, 12)

# Candidates below these are refused. `cosine_mean` is over passages, `cosine_min` includes hard texts. On the 22,447
# questions of squad-sent, a mean of .993 cost .0020 nDCG@10, one of .995 cost .0006 (standard error .0005).
FLOORS = {"alone_vs_batch_min": 0.9999, "cosine_min": 0.95, "cosine_mean": 0.994}
# A mean of .988 cost .0040 (of .7283), worth it on small devices for a file a third as large. 4 bits everywhere saved
# only another 2 MB, for a mean of .974 and a cost of .0114.
SMALL_FLOORS = FLOORS | {"cosine_mean": 0.985}
# For rerankers, agreement is 1 less the difference of two scores as a share of the range of all. A pair far off moves
# one candidate; what counts is that the mean error is small compared with the difference between passages. A mean of .996
# cost .0008 nDCG@10 (95 percent interval -.0054 to +.0039; 250 questions of squad-sent, 20 candidates each).
SCORE_FLOORS = {"alone_vs_batch_min": 0.9999, "cosine_min": 0.8, "cosine_mean": 0.99}

Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Recipe:
    """How a graph stores its weights. `quantisation` goes into fingerprints and must not be reworded."""

    name: str
    quantisation: str
    precision: Precision
    fallback: Recipe | None = None
    calibrated: bool = False  # needs the ranges of activations
    floors: Mapping[str, float] = field(default_factory=lambda: FLOORS)


# -- products ---------------------------------------------------------------------------------------------------------


def fp32(graph: Graph, value: str, name: str, weights: Floats, part: Part) -> str:
    return graph.add("MatMul", value, graph.constant(f"{name}.weight", weights))


def fixed(graph: Graph, value: str, name: str, weights: Floats, part: Part) -> str:
    """Static quantization, but per-token scales after an activation function, whose outputs vary most."""
    if part == "down":
        return by_token(graph, value, name, weights, part)
    codes, scale, zero = _fixed_codes(graph, value, name)
    return _integers(graph, codes, scale, zero, name, weights)


def _fixed_codes(graph: Graph, value: str, name: str) -> tuple[str, str, str]:
    step, zero_point = affine(graph.ranges[name])
    scale = graph.constant(f"{name}.input_scale", np.float32(step))
    zero = graph.constant(f"{name}.input_zero", np.uint8(zero_point))
    return graph.add("QuantizeLinear", value, scale, zero), scale, zero


def fixed_attention(
    graph: Graph, value: str, name: str, weights: Floats, biases: Floats, mask: str, heads: int
) -> str:
    """Attention as a single operator, a tenth faster than separate product, split and attention."""
    codes, scale, zero = _fixed_codes(graph, value, name)
    weight, weight_scale = _weight_codes(graph, name, weights)
    weight_zero = graph.constant(f"{name}.weight_zero", np.zeros(len(biases), dtype=np.int8))
    bias = graph.constant(f"{name}.bias", biases)
    inputs = (codes, weight, bias, scale, weight_scale, mask, zero, weight_zero)
    return graph.fused("QAttention", *inputs, num_heads=heads)


def by_token(graph: Graph, value: str, name: str, weights: Floats, part: Part) -> str:
    """Dynamic quantization by token, as x = largest * (x / largest): one constant scale fits quotients in [-1, 1].

    For an all-zero token the quotient is NaN and its codes are arbitrary, but the product with `largest` is zero.
    """
    largest = graph.add("ReduceMax", graph.add("Abs", value), axes=[-1], keepdims=1)
    scale = graph.constant("token_scale", np.float32(1 / 127))
    zero = graph.constant("token_zero", np.uint8(128))
    codes = graph.add("QuantizeLinear", graph.add("Div", value, largest), scale, zero)
    return graph.add("Mul", _integers(graph, codes, scale, zero, name, weights), largest)


def _integers(graph: Graph, codes: str, scale: str, zero: str, name: str, weights: Floats) -> str:
    weight, weight_scale = _weight_codes(graph, name, weights)
    return graph.fused("MatMulIntegerToFloat", codes, weight, scale, weight_scale, zero)


def _weight_codes(graph: Graph, name: str, weights: Floats) -> tuple[str, str]:
    codes, steps = columns_int8(weights, WEIGHT_MAX)
    return graph.constant(f"{name}.weight", codes), graph.constant(f"{name}.weight_scale", steps)


def by_columns(graph: Graph, value: str, name: str, weights: Floats, part: Part) -> str:
    """Weight-only quantization: constant folding dequantizes the weights once, when ONNX Runtime opens the graph."""
    codes, steps = columns_int8(weights, 127)
    restored = graph.add("Cast", graph.constant(f"{name}.weight", codes), to=1)
    restored = graph.add("Mul", restored, graph.constant(f"{name}.weight_scale", steps))
    return graph.add("MatMul", value, restored)


def in_blocks(graph: Graph, value: str, name: str, weights: Floats, part: Part, *, bits: int) -> str:
    """Block quantization with `bits` in feed-forward layers, two thirds of all weights, and 8 in attention, which is
    more sensitive."""
    bits = 8 if part == "attention" else bits
    codes, scales, zeros = blocks(weights, bits)
    return graph.fused(
        "MatMulNBits", value, graph.constant(f"{name}.weight", codes),
        graph.constant(f"{name}.weight_scale", scales), graph.constant(f"{name}.weight_zero", zeros),
        K=weights.shape[0], N=weights.shape[1], bits=bits, block_size=BLOCK, accuracy_level=INT8_KERNEL,
    )  # fmt: skip


# -- embedding tables: only the rows that a run reads become fp32 -----------------------------------------------------


def fp32_words(graph: Graph, table: str, ids: str) -> str:
    return graph.add("Gather", graph.weight(table), ids)


def fp16_words(graph: Graph, table: str, ids: str) -> str:
    halves = graph.constant(table, graph.weights[table].astype(np.float16))
    return graph.add("Cast", graph.add("Gather", halves, ids), to=1)


def int8_words(graph: Graph, table: str, ids: str) -> str:
    """An int8 table with one scale per row."""
    codes, steps = columns_int8(graph.weights[table].T, 127)
    rows = graph.add("Cast", graph.add("Gather", graph.constant(table, codes.T), ids), to=1)
    return graph.add("Mul", rows, graph.add("Gather", graph.constant(f"{table}_scale", steps[:, None]), ids))


# -- quantization -----------------------------------------------------------------------------------------------------


def affine(seen: Range) -> tuple[float, int]:
    """Step and zero point of uint8 codes that cover the range and represent 0 exactly.

    The step is rounded up to a power of 2 ** (1/32): nothing is clipped, and the last bits of another CPU's arithmetic
    do not change the model.
    """
    bottom, top = min(seen[0], 0.0), max(seen[1], 0.0)
    step = float(np.exp2(np.ceil(np.log2((top - bottom) / 255 or 1.0) * 32) / 32))
    return step, int(np.clip(round(-bottom / step), 0, 255))


def columns_int8(weights: Floats, largest: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """Symmetric codes of `weights` [channels, columns] in [-`largest`, `largest`], and one scale per column."""
    steps = np.abs(weights).max(axis=0) / largest
    steps[steps == 0] = 1
    codes = np.clip(np.round(weights / steps), -largest, largest).astype(np.int8)
    return codes, steps.astype(np.float32)


def blocks(weights: Floats, bits: int) -> tuple[Codes, Floats, Codes]:
    """Codes [columns, blocks, bytes] of `weights` [channels, columns], with scales and zero points, in the layout of
    MatMulNBits: of two 4-bit codes in a byte, the first is the low half.

    4-bit blocks use the clipping ratio of SHRINKS, or none, with the least squared error.
    """
    channels, columns = weights.shape
    count = -(-channels // BLOCK)
    padded = np.zeros((columns, count * BLOCK), dtype=np.float32)
    padded[:, :channels] = weights.T
    values = padded.reshape(columns, count, BLOCK)
    error, codes, scales, zeros = _round_blocks(values, bits, 1.0)
    for shrink in SHRINKS if bits == 4 else ():
        found = _round_blocks(values, bits, shrink)
        better = found[0] < error
        error[better], codes[better] = found[0][better], found[1][better]
        scales[better], zeros[better] = found[2][better], found[3][better]
    if bits == 4:
        codes, zeros = _pack_pairs(codes), _pack_pairs(np.pad(zeros, ((0, 0), (0, count % 2))))
    return codes, scales.reshape(-1), zeros.reshape(-1)


def _pack_pairs(codes: Codes) -> Codes:
    """Pack pairs of 4-bit codes along the last axis into bytes."""
    return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4, dtype=np.uint8)


def _round_blocks(values: Floats, bits: int, shrink: float) -> tuple[Floats, Codes, Floats, Codes]:
    """Squared error, codes, scale and zero point of each block."""
    top = 2**bits - 1
    low = np.minimum(values.min(axis=2), 0) * np.float32(shrink)
    high = np.maximum(values.max(axis=2), 0) * np.float32(shrink)
    scales = (high - low) / np.float32(top)
    scales[scales == 0] = 1
    zeros = np.clip(np.round(-low / scales), 0, top)
    codes = np.clip(np.round(values / scales[:, :, None]) + zeros[:, :, None], 0, top)
    restored = (codes - zeros[:, :, None]) * scales[:, :, None]
    error = np.asarray(((restored - values) ** 2).sum(axis=2), dtype=np.float32)
    return error, codes.astype(np.uint8), scales, zeros.astype(np.uint8)


# -- the candidates ---------------------------------------------------------------------------------------------------

INT8 = "int8: 7-bit weights per column, fp16 words; uint8 activations, "
SMALL = "weights4"

FP32 = Recipe("fp32", "fp32", Precision(fp32, fp32_words))
PLAIN8 = Recipe(
    "plain8", "8-bit weights per column and words per row; fp32 arithmetic", Precision(by_columns, int8_words)
)
MIXED = Recipe(
    "mixed",
    f"{INT8}fixed scales, per token after GELU",
    Precision(fixed, fp16_words, fixed_attention),
    PLAIN8,
    calibrated=True,
)
TOKENS = Recipe("tokens", f"{INT8}per token", Precision(by_token, fp16_words), PLAIN8)
WEIGHTS8 = Recipe(
    "weights8",
    "8-bit weights and activations, blocks of 32, fp16 words",
    Precision(partial(in_blocks, bits=8), fp16_words),
    PLAIN8,
)
WEIGHTS4 = Recipe(
    SMALL,
    "4-bit feed-forward and 8-bit attention weights in blocks of 32, 8-bit words per row; 8-bit activations",
    Precision(partial(in_blocks, bits=4), int8_words),
    PLAIN8,
    floors=SMALL_FLOORS,
)
RECIPES = {recipe.name: recipe for recipe in (FP32, MIXED, TOKENS, WEIGHTS8, WEIGHTS4)}
