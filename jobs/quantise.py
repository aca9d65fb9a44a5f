"""Turn a fused fp32 encoder graph into an int8 one whose vectors do not depend on their batch neighbours.

Plain dynamic int8 takes one activation scale over a whole batch, so a text's vector moves with whatever shares
its run (onnxruntime #10111). Here a scale is either fixed beforehand, from calibration texts, or a token's own:

    input of attention, its output, input of the feed-forward   uint8, one fixed scale a tensor
    output of GELU, where outliers live                         uint8, one scale a token: its largest value
    weights                                                     int8 of 7 bits, one scale a column

Sums leave the integer kernel as fp32 (MatMulIntegerToFloat, QAttention); softmax, normalisation, GELU and the
residual stream stay fp32 throughout. Weights keep 7 bits because AVX2 and AVX-512 without VNNI saturate when they
add two products of uint8 and full int8 (onnxruntime #6004): with 7 bits every CPU computes the same integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnx

CONTRIB = "com.microsoft"
WEIGHT_MAX = 63  # 7 bits: 255 * 63 * 2 stays below the int16 at which VPMADDUBSW saturates
QUANTISATION = "int8: 7-bit weights per column; uint8 activations, fixed scales, per token after GELU"
GELUS = frozenset({"BiasGelu", "Gelu", "FastGelu"})

Floats = npt.NDArray[np.float32]


@dataclass
class Extremes:
    """Smallest and largest value of one activation over all calibration tokens."""

    low: float = 0.0
    high: float = 0.0

    def widen(self, values: Floats) -> None:
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))


def quantise(model: onnx.ModelProto, feeds: Iterable[dict[str, npt.NDArray[np.int64]]]) -> onnx.ModelProto:
    """An int8 copy of `model`: each MatMul with constant weights and each fused Attention is replaced.

    `feeds` are calibration inputs (`input_ids` and `attention_mask`); values at padding are not looked at.
    """
    import onnx

    quantised = onnx.ModelProto()
    quantised.CopyFrom(model)
    _Rewrite(quantised, observe(model, feeds)).apply()
    return quantised


def observe(model: onnx.ModelProto, feeds: Iterable[dict[str, npt.NDArray[np.int64]]]) -> dict[str, Extremes]:
    """Run `model` over `feeds` and return the extremes of every activation that meets constant weights."""
    import onnx
    import onnxruntime

    names = list(dict.fromkeys(node.input[0] for node in model.graph.node if _is_target(node, model)))
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {output.name for output in probe.graph.output}
    probe.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in names
        if name not in known
    )
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    extremes: dict[str, Extremes] = {}
    for feed in feeds:
        real = feed["attention_mask"].astype(bool)
        for name, values in zip(names, session.run(names, feed)):
            extremes.setdefault(name, Extremes()).widen(values[real])
    return extremes


def _is_target(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    if node.op_type == "Attention":
        return True
    weights = {weight.name for weight in model.graph.initializer if len(weight.dims) == 2}
    return node.op_type == "MatMul" and node.input[1] in weights


@dataclass
class _Rewrite:
    """One pass over the graph. Nodes keep their order, which ONNX requires to be topological."""

    model: onnx.ModelProto
    extremes: dict[str, Extremes]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    codes: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def apply(self) -> None:
        graph = self.model.graph
        after_gelu = {node.output[0] for node in graph.node if node.op_type in GELUS}
        targets = [_is_target(node, self.model) for node in graph.node]
        for node, is_target in zip(list(graph.node), targets):
            if not is_target:
                self.nodes.append(node)
            elif node.op_type == "Attention":
                self._attention(node)
            elif node.input[0] in after_gelu:
                self._matmul_by_token(node)
            else:
                self._matmul(node)
        del graph.node[:]
        graph.node.extend(self.nodes)
        used = {name for node in self.nodes for name in node.input}
        kept = [weight for weight in graph.initializer if weight.name in used]
        del graph.initializer[:]
        graph.initializer.extend(kept)

    def _matmul(self, node: onnx.NodeProto) -> None:
        codes, scale, zero = self._fixed_codes(node)
        weight, weight_scale = self._weights(node)
        self._add(
            "MatMulIntegerToFloat", [codes, weight, scale, weight_scale, zero], node.output[0], domain=CONTRIB
        )

    def _matmul_by_token(self, node: onnx.NodeProto) -> None:
        """x = largest * (x / largest): the quotient lies in -1 to 1, so one constant scale serves every token."""
        prefix = _prefix(node)
        self._add("Abs", [node.input[0]], f"{prefix}_abs")
        self._add("ReduceMax", [f"{prefix}_abs"], f"{prefix}_largest", axes=[-1], keepdims=1)
        self._add("Div", [node.input[0], f"{prefix}_largest"], f"{prefix}_quotient")
        scale = self._constant(f"{prefix}_scale", np.float32(1 / 127))
        zero = self._constant(f"{prefix}_zero", np.uint8(128))
        self._add("QuantizeLinear", [f"{prefix}_quotient", scale, zero], f"{prefix}_codes")
        weight, weight_scale = self._weights(node)
        inputs = [f"{prefix}_codes", weight, scale, weight_scale, zero]
        self._add("MatMulIntegerToFloat", inputs, f"{prefix}_product", domain=CONTRIB)
        self._add("Mul", [f"{prefix}_product", f"{prefix}_largest"], node.output[0])

    def _attention(self, node: onnx.NodeProto) -> None:
        codes, scale, zero = self._fixed_codes(node)
        weight, weight_scale = self._weights(node)
        columns = self._array(node.input[1]).shape[1]
        weight_zero = self._constant(f"{weight}_zero", np.zeros(columns, dtype=np.int8))
        inputs = [codes, weight, node.input[2], scale, weight_scale, node.input[3], zero, weight_zero]
        heads = next(attribute.i for attribute in node.attribute if attribute.name == "num_heads")
        self._add("QAttention", inputs, node.output[0], domain=CONTRIB, num_heads=heads)

    def _fixed_codes(self, node: onnx.NodeProto) -> tuple[str, str, str]:
        """Names of the activation's codes, their scale and their zero point. Queries, keys and values share them."""
        activation = node.input[0]
        if activation not in self.codes:
            step, zero_point = affine(self.extremes[activation])
            scale = self._constant(f"{activation}_scale", np.float32(step))
            zero = self._constant(f"{activation}_zero", np.uint8(zero_point))
            self._add("QuantizeLinear", [activation, scale, zero], f"{activation}_codes")
            self.codes[activation] = (f"{activation}_codes", scale, zero)
        return self.codes[activation]

    def _weights(self, node: onnx.NodeProto) -> tuple[str, str]:
        """Names of the weights' codes and of their scales, one a column."""
        codes, steps = columns_int8(self._array(node.input[1]))
        prefix = _prefix(node)
        return self._constant(f"{prefix}_weight", codes), self._constant(f"{prefix}_weight_scale", steps)

    def _add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> None:
        from onnx import helper

        self.nodes.append(
            helper.make_node(operator, inputs, [output], name=f"{output}_{operator}", **attributes)
        )

    def _constant(self, name: str, value: Any) -> str:
        from onnx import numpy_helper

        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _array(self, name: str) -> Floats:
        from onnx import numpy_helper

        found = next(weight for weight in self.model.graph.initializer if weight.name == name)
        return np.asarray(numpy_helper.to_array(found), dtype=np.float32)


def _prefix(node: onnx.NodeProto) -> str:
    return str(node.name or node.output[0])


def affine(seen: Extremes) -> tuple[float, int]:
    """Step and zero point of uint8 codes that reach from the smallest to the largest value, and hold 0 exactly.

    The step is rounded up to a power of 2 ** (1/32), so that nothing is cut off and the last bits of another CPU's
    arithmetic do not change the model.
    """
    bottom, top = min(float(seen.low), 0.0), max(float(seen.high), 0.0)
    step = float(np.exp2(np.ceil(np.log2((top - bottom) / 255 or 1.0) * 32) / 32))
    return step, int(np.clip(round(-bottom / step), 0, 255))


def columns_int8(weights: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Symmetric 7-bit codes of `weights` [channels, columns], and one scale a column."""
    steps = np.abs(weights).max(axis=0) / WEIGHT_MAX
    steps[steps == 0] = 1
    codes = np.clip(np.round(weights / steps), -WEIGHT_MAX, WEIGHT_MAX).astype(np.int8)
    return codes, steps.astype(np.float32)
