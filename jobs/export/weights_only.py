"""Rewritings that make weights small and leave activations alone.

in_blocks           MatMulNBits: one scale for every 32 weights of a column. Either all have 8 bits, or those of
                    the feed-forward layers, two thirds of all, have 4: attention suffers more from coarse
                    weights than it saves. The kernel rounds activations to 8 bits, block by block, or not at all
by_columns          int8 in the file, one scale a column; made fp32 again when the session is opened, so that
                    every product is a plain fp32 one. Nothing in it can saturate: a fallback
with_half_tables    word tables as fp16: half the memory, rounded far finer than the products are. A run makes only the
                    rows fp32 that it reads
with_small_tables   the same as int8, one scale a row
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from indexes.model import Floats
from jobs.export.quantise import columns_int8
from jobs.export.rewriting import (
    CONTRIB,
    GELUS,
    Products,
    Rewrite,
    after_activation,
    attention_attributes,
    epsilon_of,
    prefix_of,
)

if TYPE_CHECKING:
    import onnx

BLOCK = 32  # weights that share a scale
FP32_KERNEL, INT8_KERNEL = 1, 4  # MatMulNBits' accuracy_level: what activations are rounded to
SHRINKS = np.linspace(
    0.975, 0.7, 12
)  # of a block's range that are tried: cutting outliers off makes finer steps
TABLE_ROWS_MIN = 1024  # smaller tables (positions, token types) stay as they are


def in_blocks(
    model: onnx.ModelProto, feed_forward_bits: Literal[4, 8], *, exact: bool = False
) -> onnx.ModelProto:
    """A copy whose products are MatMulNBits. `exact`: activations stay fp32."""
    return _Blocks(model, feed_forward_bits, FP32_KERNEL if exact else INT8_KERNEL).applied()


def by_columns(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with 8-bit weights and fp32 arithmetic."""
    return _Columns(model).applied()


def with_half_tables(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose large word tables are fp16."""
    return _HalfTables(model).applied()


def with_small_tables(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose large word tables are int8."""
    return _SmallTables(model).applied()


class _Blocks(Products):
    def __init__(self, model: onnx.ModelProto, feed_forward_bits: Literal[4, 8], kernel: int) -> None:
        super().__init__(model)
        self._feed_forward_bits = feed_forward_bits
        self._feed_forward = feed_forward_outputs(model)
        self._kernel = kernel

    def product(self, prefix: str, activation: str, weights: Floats, output: str) -> None:
        bits = self._feed_forward_bits if output in self._feed_forward else 8
        channels, columns = weights.shape
        codes, scales, zeros = blocks(weights, bits)
        inputs = [
            activation,
            self.constant(f"{prefix}_weight", codes),
            self.constant(f"{prefix}_weight_scale", scales),
            self.constant(f"{prefix}_weight_zero", zeros),
        ]
        self.add(
            "MatMulNBits", inputs, output, domain=CONTRIB, K=channels, N=columns, bits=bits,
            block_size=BLOCK, accuracy_level=self._kernel,
        )  # fmt: skip


Codes = npt.NDArray[np.uint8]


def blocks(weights: Floats, bits: int) -> tuple[Codes, Floats, Codes]:
    """Codes [columns, blocks, bytes] of `weights` [channels, columns], their scales and zero points, laid out as
    MatMulNBits reads them: in a byte of 4-bit codes the first is the low half.

    Each block's scale is the one, of some that cut its range shorter and shorter, with the least squared error.
    """
    channels, columns = weights.shape
    count = -(-channels // BLOCK)
    padded = np.zeros((columns, count * BLOCK), dtype=np.float32)
    padded[:, :channels] = weights.T
    values = padded.reshape(columns, count, BLOCK)
    codes, scales, zeros = _rounded(values, bits, 1.0)
    least = _error(values, codes, scales, zeros)
    for shrink in SHRINKS if bits == 4 else ():
        other_codes, other_scales, other_zeros = _rounded(values, bits, shrink)
        error = _error(values, other_codes, other_scales, other_zeros)
        better = error < least
        least[better] = error[better]
        codes[better] = other_codes[better]
        scales[better] = other_scales[better]
        zeros[better] = other_zeros[better]
    if bits == 4:
        codes, zeros = _paired(codes), _paired(np.pad(zeros, ((0, 0), (0, count % 2))))
    return codes, scales.reshape(-1), zeros.reshape(-1)


def _paired(codes: Codes) -> Codes:
    """Two 4-bit codes of the last axis in each byte."""
    return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4, dtype=np.uint8)


def _rounded(values: Floats, bits: int, shrink: float) -> tuple[Codes, Floats, Codes]:
    top = 2**bits - 1
    low = np.minimum(values.min(axis=2), 0) * np.float32(shrink)
    high = np.maximum(values.max(axis=2), 0) * np.float32(shrink)
    scales = (high - low) / np.float32(top)
    scales[scales == 0] = 1
    zeros = np.clip(np.round(-low / scales), 0, top)
    codes = np.clip(np.round(values / scales[:, :, None]) + zeros[:, :, None], 0, top)
    return codes.astype(np.uint8), scales, zeros.astype(np.uint8)


def _error(values: Floats, codes: Codes, scales: Floats, zeros: Codes) -> Floats:
    restored = (codes.astype(np.float32) - zeros[:, :, None]) * scales[:, :, None]
    return np.asarray(((restored - values) ** 2).sum(axis=2), dtype=np.float32)


def feed_forward_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """Outputs of the products of feed-forward layers: what reaches an activation such as GELU, and what leaves it."""
    makers = {output: node for node in model.graph.node for output in node.output}
    found: set[str] = set()
    for node in model.graph.node:
        if node.op_type in GELUS:
            before = makers[node.input[0]]
            while before.op_type in {"Add", "Split"}:
                before = makers[before.input[0]]
            found.add(before.output[0])
    activated = after_activation(model.graph.node)
    found |= {
        node.output[0] for node in model.graph.node if node.op_type == "MatMul" and node.input[0] in activated
    }
    return frozenset(found)


class _Columns(Products):
    def product(self, prefix: str, activation: str, weights: Floats, output: str) -> None:
        self.add("MatMul", [activation, self._expanded(prefix, weights)], output)

    def attention(self, node: onnx.NodeProto) -> None:
        weights = self._expanded(prefix_of(node), self.array(node.input[1]))
        inputs = [node.input[0], weights, *node.input[2:]]
        self.add("Attention", inputs, node.output[0], domain=CONTRIB, **attention_attributes(node))

    def _expanded(self, prefix: str, weights: Floats) -> str:
        """Both nodes have constant inputs only, so that the runtime computes them once, when it opens the graph."""
        codes, steps = columns_int8(weights, largest=127)
        self.add("Cast", [self.constant(f"{prefix}_weight", codes)], f"{prefix}_weight_codes", to=1)
        scale = self.constant(f"{prefix}_weight_scale", steps)
        self.add("Mul", [f"{prefix}_weight_codes", scale], f"{prefix}_weight_fp32")
        return f"{prefix}_weight_fp32"


class _Tables(Rewrite):
    """EmbedLayerNormalization reads fp32 tables only, and is taken apart into what it consists of."""

    @abstractmethod
    def _look_up(self, prefix: str, table: str, rows: str, output: str) -> None:
        """Add nodes that compute `output`, these rows of the table, in fp32."""

    def visit(self, node: onnx.NodeProto) -> None:
        if node.op_type == "EmbedLayerNormalization":
            self._embed(node)
        elif node.op_type == "Gather" and self._is_large(node.input[0]):
            self._look_up(prefix_of(node), node.input[0], node.input[1], node.output[0])
        else:
            self.nodes.append(node)

    def _is_large(self, name: str) -> bool:
        table = self._constants.get(name)
        return table is not None and len(table.dims) == 2 and table.dims[0] >= TABLE_ROWS_MIN

    def _embed(self, node: onnx.NodeProto) -> None:
        """word + position + token type, normalised; and how many tokens of each text are real.

        Texts are one segment, so the first token type is theirs: it is added to the positions here, once for all.
        """
        prefix = prefix_of(node)
        ids, types, words, positions, type_table, gamma, beta, mask, places = [*node.input, "", "", ""][:9]
        if types:
            typed = self.array(positions) + self.array(type_table)[0]
            positions = self.constant(f"{positions}_typed", typed)
        self._look_up(f"{prefix}_words", words, ids, f"{prefix}_words")
        if places:
            self.add("Gather", [positions, places], f"{prefix}_positions")
        else:
            self.add("Shape", [ids], f"{prefix}_length", start=1, end=2)
            zero = self.constant(f"{prefix}_first", np.array([0], dtype=np.int64))
            self.add("Slice", [positions, zero, f"{prefix}_length", zero], f"{prefix}_positions")
        self.add("Add", [f"{prefix}_words", f"{prefix}_positions"], f"{prefix}_placed")
        inputs = [f"{prefix}_placed", gamma, beta]
        self.add("LayerNormalization", inputs, node.output[0], axis=-1, epsilon=epsilon_of(node))
        if mask and len(node.output) > 1 and node.output[1]:
            axis = self.constant(f"{prefix}_axis", np.array([1], dtype=np.int64))
            self.add("ReduceSum", [mask, axis], node.output[1], keepdims=0)


class _HalfTables(_Tables):
    def _look_up(self, prefix: str, table: str, rows: str, output: str) -> None:
        halves = self.constant(f"{table}_half", self.array(table).astype(np.float16))
        self.add("Gather", [halves, rows], f"{prefix}_half")
        self.add("Cast", [f"{prefix}_half"], output, to=1)


class _SmallTables(_Tables):
    def _look_up(self, prefix: str, table: str, rows: str, output: str) -> None:
        codes, steps = columns_int8(self.array(table).T, largest=127)
        found = {"codes": np.ascontiguousarray(codes.T), "scale": steps[:, None]}
        for part, values in found.items():
            self.add("Gather", [self.constant(f"{table}_{part}", values), rows], f"{prefix}_{part}")
        self.add("Cast", [f"{prefix}_codes"], f"{prefix}_fp32", to=1)
        self.add("Mul", [f"{prefix}_fp32", f"{prefix}_scale"], output)
