"""A small builder for ONNX graphs: each call adds an operator and returns the name of its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from indexes.base.model import Floats
from jobs.models.export.weights import ModelWeights

if TYPE_CHECKING:
    import onnx

OPSET = 17
CONTRIB = "com.microsoft"
INPUTS = ("input_ids", "attention_mask")

# Which product of a layer: attention, or into or out of the feed-forward layer ("down" takes activation outputs).
Part = Literal["attention", "up", "down"]


Range = tuple[float, float]  # minimum and maximum of an activation over all calibration tokens

# (graph, input, name, weights [channels, columns], part) -> name of the product
Product = Callable[["Graph", str, str, Floats, Part], str]
# (graph, input, name, weights and biases of queries, keys and values, mask, heads) -> name of the attention output
Attention = Callable[["Graph", str, str, Floats, Floats, str, int], str]
# (graph, name of an embedding table, token ids) -> name of their rows in fp32
Words = Callable[["Graph", str, str], str]


@dataclass(frozen=True)
class Precision:
    """How weights are stored and multiplied. `attention`: one fused operator for all of it, if there is one."""

    product: Product
    words: Words
    attention: Attention | None = None


class Graph:
    """A graph under construction. Names are numbered in call order, so equal calls give equal bytes.

    `ranges` maps products' names to the ranges of their inputs, for calibrated precisions.
    """

    def __init__(
        self, weights: ModelWeights, precision: Precision, ranges: Mapping[str, Range] | None = None
    ) -> None:
        self.weights = weights
        self.ranges = ranges or {}
        self.product_inputs: dict[str, str] = {}
        self._precision = precision
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def add(self, operator: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """Add an operator; returns the name of its first output. The others are `name:1`, `name:2`, and so on."""
        from onnx import helper

        name = f"{operator}_{len(self._nodes)}"
        names = [name, *(f"{name}:{number}" for number in range(1, outputs))]
        self._nodes.append(
            helper.make_node(operator, list(inputs), names, name=name, domain=domain, **attributes)
        )
        return name

    def fused(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add one of ONNX Runtime's contrib operators."""
        return self.add(operator, *inputs, outputs=outputs, domain=CONTRIB, **attributes)

    def constant(self, name: str, value: Any) -> str:
        """A constant, stored once per name."""
        from onnx import numpy_helper

        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant("integers_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def weight(self, name: str) -> str:
        """A tensor of the source, unchanged, as a constant."""
        return self.constant(name, self.weights[name])

    def words(self, table: str, ids: str) -> str:
        """Rows of an embedding table in fp32."""
        return self._precision.words(self, table, ids)

    def product(self, value: str, *names: str, part: Part = "attention") -> str:
        """`value` times the concatenated weights of the layers `names`."""
        joined = "+".join(names)
        self.product_inputs[joined] = value
        return self._precision.product(self, value, joined, self._matrix(names), part)

    def linear(self, value: str, *names: str, part: Part = "attention") -> str:
        """`product` plus the layers' biases, if they have any."""
        product = self.product(value, *names, part=part)
        if f"{names[0]}.bias" not in self.weights:
            return product
        return self.add("Add", product, self.constant(f"{'+'.join(names)}.bias", self._biases(names)))

    def attention(self, value: str, *names: str, heads: int, mask: str, scores: str = "") -> str:
        """Attention with queries, keys and values from the layers `names`. `scores` is an additive bias."""
        if self._precision.attention is not None and not scores:
            matrix, biases = self._matrix(names), self._biases(names)
            return self._precision.attention(self, value, "+".join(names), matrix, biases, mask, heads)
        parts = self.split(
            self.linear(value, *names), *(len(self.weights[f"{name}.weight"]) for name in names)
        )
        return self.fused("MultiHeadAttention", *parts, "", mask, scores, num_heads=heads)

    def _matrix(self, names: Sequence[str]) -> Floats:
        return np.concatenate([self.weights[f"{name}.weight"] for name in names]).T

    def _biases(self, names: Sequence[str]) -> Floats:
        return np.concatenate([self.weights[f"{name}.bias"] for name in names])

    def split(self, value: str, *sizes: int) -> list[str]:
        """Slices of the last axis, in order."""
        parts = self.add("Split", value, self.integers(*sizes), outputs=len(sizes), axis=-1)
        return [parts, *(f"{parts}:{number}" for number in range(1, len(sizes)))]

    def model(self, output: str, name: str, dimensions: int) -> onnx.ModelProto:
        """The finished graph: token ids and mask in, `output` out as `name`."""
        from onnx import TensorProto, helper

        self._nodes[-1].output[0] = name
        assert self._nodes[-1].name == output, "the last operator computes the output"
        inputs = [
            helper.make_tensor_value_info(each, TensorProto.INT64, ["batch", "sequence"]) for each in INPUTS
        ]
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", dimensions])
        graph = helper.make_graph(self._nodes, "encoder", inputs, [result], list(self._constants.values()))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)
